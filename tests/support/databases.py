"""Guards that every test has a database of its own, on a server of its own or on the one that DATABASE_URL names."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sqlalchemy as sa

from infra.local import private
from infra.local.postgres import NO_SETTINGS, Postgres
from infra.migrations.head import VERSIONS
from infra.migrations.run import migrate

# Roles belong to the whole server, so two migrations at once on one server would race to create them.
ONE_MIGRATION = sa.text("select pg_advisory_lock(hashtext('baton.template'))")
MIGRATION_DONE = sa.text("select pg_advisory_unlock(hashtext('baton.template'))")

# A migrated database on the server that DATABASE_URL names, for many sessions with the same migrations.
TEMPLATE = "BATON_TEST_TEMPLATE"

SESSIONS = sa.text("select count(*) from pg_stat_activity where datname = :name")


class ServerAdmin:
    """Makes and drops databases on one server; their names carry a prefix that no other session uses."""

    def __init__(self, superuser_url: str) -> None:
        self._url = sa.make_url(superuser_url).set(drivername="postgresql+pg8000")
        self._engine = sa.create_engine(
            self._url, isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=0, pool_pre_ping=True
        )
        self._prefix = f"baton_{secrets.token_hex(4)}"
        self._made: list[str] = []

    def url(self, database: str) -> str:
        return self._url.set(database=database).render_as_string(hide_password=False)

    def create_template(self, versions: Path = VERSIONS) -> str:
        """A migrated database that nobody may enter, so that it can be copied at any time."""
        if versions == VERSIONS and TEMPLATE in os.environ and self._is_named_by_the_environment():
            return os.environ[TEMPLATE]
        name = self._new_name("template")
        with self._engine.connect() as connection:
            connection.execute(ONE_MIGRATION)
            try:
                connection.exec_driver_sql(f"create database {name}")
                migrate(self.url(name), versions)
                private.give_passwords(self.url(name))
                connection.exec_driver_sql(f"alter database {name} allow_connections false")
            finally:
                connection.execute(MIGRATION_DONE)
        return name

    def create_from_template(self, template: str) -> str:
        """A copy of `template`; its name is the answer."""
        name = self._new_name("test")
        with self._engine.connect() as connection:
            # Copying files is half the time of logging every page, and the strategy can be named since Postgres 15.
            strategy = "strategy file_copy" if _version(connection) >= 15 else ""
            connection.exec_driver_sql(f"create database {name} template {template} {strategy}")
        return name

    def drop(self, name: str) -> None:
        with self._engine.connect() as connection:
            _let_sessions_end(connection, name)
            connection.exec_driver_sql(f"drop database if exists {name} with (force)")
        self._made.remove(name)

    def close(self) -> None:
        """Drop whatever this session made and is still there."""
        for name in reversed(tuple(self._made)):
            self.drop(name)
        self._engine.dispose()

    def leave(self) -> None:
        """What this session made stays."""
        self._engine.dispose()

    def _is_named_by_the_environment(self) -> bool:
        named = sa.make_url(os.environ.get("DATABASE_URL") or "postgresql://")
        return (named.host, named.port) == (self._url.host, self._url.port)

    def _new_name(self, kind: str) -> str:
        self._made.append(f"{self._prefix}_{kind}_{secrets.token_hex(4)}")
        return self._made[-1]


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A temporary folder that the account of the server may enter, unlike those of pytest."""
    path = Path(tempfile.mkdtemp(prefix="baton-"))
    try:
        path.chmod(0o711)
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def scratch_server(settings: Mapping[str, str] = NO_SETTINGS) -> Iterator[Postgres]:
    """A new server, gone with its data at the end."""
    with scratch_directory() as path, Postgres.start(path / "postgres", settings=settings) as server:
        yield server


@contextmanager
def server_admin() -> Iterator[ServerAdmin]:
    """The server that DATABASE_URL names (a superuser's URL), else a new one."""
    with ExitStack() as stack:
        url = os.environ.get("DATABASE_URL") or stack.enter_context(scratch_server()).url()
        admin = ServerAdmin(url)
        stack.callback(admin.close)
        yield admin


as_user = private.url_as


def _let_sessions_end(connection: sa.Connection, name: str) -> None:
    # A closed session ends within milliseconds, but a drop that meets it sleeps for a tenth of a second.
    for _ in range(20):
        if not connection.scalar(SESSIONS, {"name": name}):
            return
        time.sleep(0.005)


def _version(connection: sa.Connection) -> int:
    version = connection.dialect.server_version_info
    assert version is not None
    return int(version[0])
