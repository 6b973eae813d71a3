"""Guards that tests of the relay share one database, emptied before each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.databases import ServerAdmin
from tests.support.house import House, tally_house
from tests.support.ingest import ingest, page_by_page
from tests.support.queries import queries
from tests.support.rig import make_rig, rig, rig_database
from tests.support.searches import searches
from tests.support.sources import sources

__all__ = ["ingest", "make_rig", "page_by_page", "queries", "rig", "rig_database", "searches", "sources"]


@pytest.fixture(scope="session")
def shared_house(postgres_server: ServerAdmin, template: str) -> Iterator[House]:
    with tally_house(postgres_server, template) as house:
        yield house


@pytest.fixture
def house(shared_house: House) -> Iterator[House]:
    shared_house.empty()
    yield shared_house
    shared_house.send_guests_home()
