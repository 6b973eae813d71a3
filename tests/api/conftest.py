"""Guards that tests of the API share one database: each has tenants of its own, so nothing needs to be emptied."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.databases import ServerAdmin
from tests.support.door import Door, TenantHouse, open_door
from tests.support.house import tally_database
from tests.support.lambda_calls import plain_logger

__all__ = ["plain_logger"]


@pytest.fixture(scope="session")
def door(postgres_server: ServerAdmin, template: str) -> Iterator[Door]:
    with tally_database(postgres_server, template) as url, open_door(url) as door:
        yield door


@pytest.fixture
def acme(door: Door) -> TenantHouse:
    return door.new_tenant()


@pytest.fixture
def globex(door: Door) -> TenantHouse:
    return door.new_tenant("Globex")
