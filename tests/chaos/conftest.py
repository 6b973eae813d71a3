"""One stage with one warm zygote for all tests that stop no server; each of them clears it first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.stage import Stage, open_stage
from tests.support.databases import ServerAdmin


@pytest.fixture(scope="session")
def stage(postgres_server: ServerAdmin, template: str) -> Iterator[Stage]:
    name = postgres_server.create_from_template(template)
    with open_stage(postgres_server.url(name)) as stage:
        yield stage
    postgres_server.drop(name)
