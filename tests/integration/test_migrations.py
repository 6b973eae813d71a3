"""Guards that migrating is safe to repeat, to run twice at once and to fail, from any folder and in any process."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.migrations.head import VERSIONS
from infra.migrations.run import migrate
from shared.kernel import db
from shared.kernel.store import PgStore
from tests.support.databases import ServerAdmin

ROOT = Path(__file__).resolve().parents[2]
REVISION = """
from alembic import op
revision, down_revision, branch_labels, depends_on = {revision!r}, {down!r}, None, None
def upgrade(): op.execute({sql!r})
"""
MIGRATING = """
    select 1 from pg_locks join pg_database on pg_database.oid = pg_locks.database
    where datname = current_database() and locktype = 'advisory' and granted
"""
MIGRATE = (
    "import sys, pathlib; from infra.migrations.run import migrate; migrate(sys.argv[1], pathlib.Path(sys.argv[2]))"
)


@pytest.fixture
def empty(postgres_server: ServerAdmin) -> Iterator[str]:
    """The URL of a database before its first migration."""
    name = postgres_server.create_from_template("template0")
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    path = tmp_path / "100% of them: all"
    path.mkdir()
    return path


def write_revision(versions: Path, number: int, sql: str) -> None:
    down = f"{number - 1:04}" if number > 1 else None
    versions.joinpath(f"{number:04}_leg.py").write_text(REVISION.format(revision=f"{number:04}", down=down, sql=sql))


def rows(url: str, sql: str) -> list[tuple[object, ...]]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(sql)]


def wait_until_somebody_migrates(url: str, somebody: subprocess.Popen[bytes]) -> None:
    while not rows(url, MIGRATING):
        assert somebody.poll() is None, somebody.communicate()
        time.sleep(0.02)


def test_each_revision_runs_once_and_in_order(empty: str, versions: Path) -> None:
    write_revision(versions, 1, "create table leg (id int primary key)")
    migrate(empty, versions)
    write_revision(versions, 2, "insert into leg values (1)")

    migrate(empty, versions)
    migrate(empty, versions)

    assert rows(empty, "select * from leg") == [(1,)]
    assert rows(empty, "select version_num from public.alembic_version") == [("0002",)]


def test_a_failed_revision_leaves_the_database_as_it_was(empty: str, versions: Path) -> None:
    write_revision(versions, 1, "create table leg (id int primary key)")
    write_revision(versions, 2, "select 1 / 0")

    with pytest.raises(sa.exc.DBAPIError, match="division by zero"):
        migrate(empty, versions)

    assert rows(empty, "select tablename from pg_tables where schemaname = 'public'") == []


def test_two_migrations_at_once_from_any_folder_run_each_revision_once(empty: str, versions: Path) -> None:
    write_revision(versions, 1, "create table leg (id int primary key); select pg_sleep(0.3)")

    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", MIGRATE, empty, str(versions)]
    with subprocess.Popen(
        command, cwd=versions, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as other:
        wait_until_somebody_migrates(empty, other)
        migrate(empty, versions)
        printed, _ = other.communicate()

    assert (printed, other.returncode) == (b"", 0)
    assert rows(empty, "select version_num from public.alembic_version") == [("0001",)]


def test_migrating_leaves_the_logging_of_its_caller_alone(empty: str, versions: Path) -> None:
    def logging_now() -> tuple[object, ...]:
        alembic = logging.getLogger("alembic")
        return logging.root.level, list(logging.root.handlers), alembic.level, list(alembic.handlers), alembic.disabled

    write_revision(versions, 1, "create table leg (id int primary key)")
    before = logging_now()

    migrate(empty, versions)

    assert logging_now() == before


# Of one tenant, in every table that the front door changes: as an installation had them before.
TENANT, RUN, EVENT = (f"00000000-0000-7000-8000-00000000000{n}" for n in (1, 2, 3))
OLD_ROWS = f"""
insert into tenant (id, name) values ('{TENANT}', 'Acme');
insert into run (id, tenant_id, kind, status, check_at, created_by) values ('{RUN}', '{TENANT}', 'tally', 'running', now(), 'user:ann');
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, check_at, max_steps)
    values ('{RUN}', '{RUN}', '{TENANT}', 'tally', 'a', true, '{{}}', now(), now(), 10);
insert into history (run_id, n, tenant_id, epoch, type) values ('{RUN}', 1, '{TENANT}', 1, 'created');
insert into signal (tenant_id, name, payload, event_id) values ('{TENANT}', 'hello.world', '{{}}', '{EVENT}');
insert into signal (tenant_id, name, payload) values ('{TENANT}', 'from.inside', '{{}}'), ('{TENANT}', 'from.inside', '{{}}');
insert into machine_token (id, tenant_id, name, role, hash, created_by) values ('{RUN}', '{TENANT}', 'ci', 'viewer', 'x', 'user:ann')
"""
KEPT = """
select (select count(*) from run), (select count(*) from lane), (select count(*) from history), (select count(*) from signal),
       (select count(*) from machine_token)
"""


def test_a_database_with_rows_survives_the_front_door(empty: str, versions: Path) -> None:
    for file in sorted(VERSIONS.glob("[0-9]*.py")):
        if file.name < "0009":
            shutil.copy(file, versions)
    migrate(empty, versions)
    engine = sa.create_engine(empty, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in OLD_ROWS.split(";"):
            connection.exec_driver_sql(statement)

    migrate(empty)

    assert rows(empty, KEPT) == [(1, 1, 1, 3, 1)]
    store = PgStore(db.connect_engine(empty, pool="none"))
    assert [store.add_signal_once(UUID(EVENT), UUID(tenant), "again.here", {}) for tenant in (TENANT, RUN)] == [
        False,
        True,
    ]
