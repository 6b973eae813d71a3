"""Guards that every race begins on an empty database with its own connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.races.stage import Stage, stage_in
from tests.support.databases import ServerAdmin
from tests.support.house import House, tally_house


@pytest.fixture(scope="session")
def shared_house(postgres_server: ServerAdmin, template: str) -> Iterator[House]:
    with tally_house(postgres_server, template) as house:
        yield house


@pytest.fixture
def house(shared_house: House) -> Iterator[House]:
    shared_house.empty()
    yield shared_house
    shared_house.send_guests_home()


@pytest.fixture
def stage(house: House) -> Iterator[Stage]:
    with stage_in(house) as stage:
        yield stage
        assert stage.errors == [], "the database refused something on the way"
