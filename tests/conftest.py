"""Guards that tests meet a real Postgres: one server per process, a template that is migrated once, one copy per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from shared.kernel import aws
from tests.support import rings
from tests.support.databases import ServerAdmin, as_user, server_admin
from tests.support.prepared import PreparedServer, copied_server, prepared_for

# Property tests take the time they take: a busy machine must not fail them.
settings.register_profile(
    "baton", deadline=None, max_examples=150, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("baton")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ring", choices=("test", "full", "all"), help="which tests (default: test; all, if a path is named)"
    )
    parser.addoption("--kind", choices=sorted(rings.WORDS), help="only what belongs to one kind of work")


def pytest_configure(config: pytest.Config) -> None:
    # Decided once: a worker is told by its options, and takes every path for one that was named.
    if config.option.ring is None:
        config.option.ring = "all" if config.args_source is config.ArgsSource.ARGS else "test"
    if getattr(config.option, "numprocesses", None) and not rings.need_no_postgres(config.args):
        config.pluginmanager.register(PreparedServer())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> rings.InCompany:
    return rings.InCompany(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return (is_module and rings.leaves_out(config.option.ring, collection_path.read_text())) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kind, ring = config.option.kind, config.option.ring

    def is_wanted(item: pytest.Item) -> bool:
        marks = (mark.name for mark in item.iter_markers())
        return rings.in_ring(ring, marks) and (kind is None or rings.belongs_to(kind, item.nodeid))

    wanted = {item: is_wanted(item) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not wanted[item]])
    items[:] = sorted(filter(wanted.__getitem__, items), key=lambda item: rings.place(item.nodeid))


@pytest.fixture(autouse=True)
def no_client_of_another_test() -> Iterator[None]:
    """A process keeps its AWS clients; the next test may have another endpoint, region or emulation."""
    yield
    aws.client.cache_clear()


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Iterator[ServerAdmin]:
    prepared = prepared_for(pytestconfig)
    with copied_server(prepared["directory"]) if prepared else server_admin() as admin:
        yield admin


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, postgres_server: ServerAdmin) -> str:
    prepared = prepared_for(pytestconfig)
    return prepared["template"] if prepared else postgres_server.create_template()


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
