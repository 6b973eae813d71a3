"""Guards the promise of jobs under schedules that nobody would think of; `make verify` plays ten thousand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.jobs import DEADLY, simulate
from tests.support.databases import ServerAdmin
from tests.support.jobs import Office, job_office
from tests.support.rings import tenths


@pytest.fixture(scope="module")
def office(postgres_server: ServerAdmin, template: str) -> Iterator[Office]:
    with job_office(postgres_server, template) as office:
        yield office


@tenths()
def test_whatever_happens_every_job_ends_once(office: Office, tenths: range) -> None:
    found, deaths = simulate(office, range(30 * tenths.start, 30 * tenths.stop))

    assert found == []
    assert tenths == range(1) or set(deaths) >= DEADLY, "somebody dies at every point"
