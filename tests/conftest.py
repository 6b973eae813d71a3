"""Guards that tests meet a real Postgres: one server per session, one migrated template, one copy of it per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shared.kernel import aws
from tests.support.databases import ServerAdmin, as_user, server_admin


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest one begins first: as the last it would keep one worker busy while the others have nothing to do."""
    items.sort(key=lambda item: "tests/browser/test_rows.py" not in item.nodeid)


@pytest.fixture(autouse=True)
def no_client_of_another_test() -> Iterator[None]:
    """A process keeps its AWS clients; the next test may have another endpoint, region or emulation."""
    yield
    aws.client.cache_clear()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[ServerAdmin]:
    with server_admin() as admin:
        yield admin


@pytest.fixture(scope="session")
def template(postgres_server: ServerAdmin) -> str:
    return postgres_server.create_template()


@pytest.fixture
def database_url(postgres_server: ServerAdmin, template: str) -> Iterator[str]:
    name = postgres_server.create_from_template(template)
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture(scope="module")
def module_database_url(postgres_server: ServerAdmin, template: str) -> Iterator[str]:
    """For a module whose tests leave nothing behind, or clear it away themselves: a copy costs a third of a second."""
    name = postgres_server.create_from_template(template)
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture
def url_as(database_url: str) -> Callable[[str], str]:
    """`url_as("baton_worker")` is the same database, entered as that role."""
    return lambda role: as_user(database_url, role)
