"""Guards that tests of the relay share one database, emptied before each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.databases import ServerAdmin
from tests.support.house import House, empty_house, tally_database


@pytest.fixture(scope="session")
def tally_url(postgres_server: ServerAdmin, template: str) -> Iterator[str]:
    with tally_database(postgres_server, template) as url:
        yield url


@pytest.fixture
def house(tally_url: str) -> Iterator[House]:
    with empty_house(tally_url) as house:
        yield house

