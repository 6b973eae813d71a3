"""Guards that migrating is safe to repeat, to run twice at once and to fail, from any folder and in any process."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from alembic.util import CommandError

from infra.migrations import at_deploy, run
from infra.migrations.head import VERSIONS, newest_revision
from infra.migrations.run import Unfinished, migrate
from shared.kernel import db
from shared.kernel.store import PgStore
from tests.support.databases import ServerAdmin, scratch_server

ROOT = Path(__file__).resolve().parents[2]
REVISION = """
from alembic import op
revision, down_revision, branch_labels, depends_on = {revision!r}, {down!r}, None, None
def upgrade(): op.execute({sql!r})
"""
# A process waits for a lock that somebody holds: the one in the middle of a revision, then another before its first.
BLOCKED = "select 1 from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"
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
        result = connection.exec_driver_sql(sql)
        return [tuple(row) for row in result] if result.returns_rows else []


def wait_for(url: str, event: str, somebody: subprocess.Popen[bytes]) -> None:
    while not rows(url, event):
        assert somebody.poll() is None, somebody.communicate()
        time.sleep(0.02)


@pytest.mark.full
def test_each_revision_runs_once_and_in_order(empty: str, versions: Path) -> None:
    write_revision(versions, 1, "create table leg (id int primary key)")
    migrate(empty, versions)
    write_revision(versions, 2, "insert into leg values (1)")

    migrate(empty, versions)
    migrate(empty, versions)

    assert rows(empty, "select * from leg") == [(1,)]
    assert rows(empty, "select version_num from public.alembic_version") == [("0002",)]


def test_older_code_leaves_a_newer_schema_as_it_is(empty: str, versions: Path) -> None:
    """After a step back it is deployed again, or called by hand. One that is merely unknown is not newer."""
    write_revision(versions, 1, "create table leg (id int primary key)")
    write_revision(versions, 2, "insert into leg values (1)")
    assert migrate(empty, versions) is None
    versions.joinpath("0002_leg.py").unlink()

    assert migrate(empty, versions) == "0002"
    assert rows(empty, "select version_num from public.alembic_version") == [("0002",)]

    rows(empty, "update public.alembic_version set version_num = '0000'")
    with pytest.raises(CommandError):
        migrate(empty, versions)


def test_a_failed_revision_leaves_nothing_of_itself_and_takes_nothing_back(empty: str, versions: Path) -> None:
    write_revision(versions, 1, "create table leg (id int primary key)")
    write_revision(versions, 2, "create table other (id int); select 1 / 0")

    with pytest.raises(sa.exc.DBAPIError, match="division by zero"):
        migrate(empty, versions)

    assert rows(empty, "select to_regclass('leg')::text, to_regclass('other')::text") == [("leg", None)]
    assert rows(empty, "select version_num from public.alembic_version") == [("0001",)]
    # And goes on from there.
    write_revision(versions, 2, "create table other (id int)")
    migrate(empty, versions)
    assert rows(empty, "select version_num from public.alembic_version") == [("0002",)]


@contextmanager
def in_use(url: str, table: str) -> Iterator[sa.Connection]:
    """A transaction that read a table and is not over."""
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as somebody:
        somebody.exec_driver_sql(f"select count(*) from {table}")
        yield somebody


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LOCK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(run, "PAUSE_S", 0.01)


@pytest.mark.full
@pytest.mark.usefixtures("impatient")
def test_a_migration_does_not_wait_for_a_lock_while_the_relay_waits_behind_it(empty: str, versions: Path) -> None:
    """A waiting `alter table` holds up every later reader of the table: it gives up, and others go first."""
    write_revision(versions, 1, "create table leg (id int primary key)")
    migrate(empty, versions)
    write_revision(versions, 2, "alter table leg add column name text")

    with in_use(empty, "leg"):
        with pytest.raises(Unfinished, match="The schema is at revision 0001") as told:
            migrate(empty, versions, within_s=0.5)
        assert rows(empty, "select count(*) from leg") == [(0,)]

    assert "pg_stat_activity" in str(told.value)
    migrate(empty, versions)
    assert rows(empty, "select version_num from public.alembic_version") == [("0002",)]


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_is_let_go_of_does_not_fail_the_deployment(
    empty: str, versions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_revision(versions, 1, "create table leg (id int primary key)")
    migrate(empty, versions)
    write_revision(versions, 2, "alter table leg add column name text")
    with in_use(empty, "leg") as somebody:
        monkeypatch.setattr(time, "sleep", lambda _: somebody.rollback())

        migrate(empty, versions, within_s=60)

    assert rows(empty, "select version_num from public.alembic_version") == [("0002",)]


@pytest.mark.full
def test_a_revision_that_takes_too_long_fails_before_the_function_does(empty: str, versions: Path) -> None:
    write_revision(versions, 1, "create table leg (id int primary key)")
    migrate(empty, versions)
    write_revision(versions, 2, "select pg_sleep(600)")

    with pytest.raises(Unfinished, match=r"at revision 0001\. The next revision was stopped when the 1 s"):
        migrate(empty, versions, within_s=1)


@pytest.mark.full
def test_all_revisions_together_have_the_time_that_one_would_have(empty: str, versions: Path) -> None:
    """Each within its time, and the function is gone before the last: it has to end by itself, and say how far it came."""
    write_revision(versions, 1, "create table leg (id int primary key)")
    migrate(empty, versions)
    for number in range(2, 10):
        write_revision(versions, number, "select pg_sleep(1)")

    with pytest.raises(Unfinished, match=r"at revision 000[1-5]\."):
        migrate(empty, versions, within_s=3)


@pytest.mark.full
def test_a_migration_that_waits_for_another_says_so(empty: str, versions: Path) -> None:
    write_revision(versions, 1, "create table leg (id int primary key)")
    with sa.create_engine(empty, poolclass=sa.NullPool).connect() as other:
        other.exec_driver_sql("select pg_advisory_lock(hashtext('baton.migrations'))")

        with pytest.raises(Unfinished, match="Another migration of this database is under way"):
            migrate(empty, versions, within_s=1)


ONLINE = """
from infra.migrations.online import index_online
revision, down_revision, branch_labels, depends_on = "0002", "0001", None, None
def upgrade(): index_online("leg_name", "on leg (name)", unique={unique})
"""
OWNED = "create table leg (name text); grant usage, create on schema public to baton_owner; alter table leg owner to baton_owner"
VALID = "select indisvalid, indisunique from pg_index where indexrelid = to_regclass('leg_name')"


@pytest.mark.full
@pytest.mark.usefixtures("template")  # the roles
def test_an_index_on_a_large_table_keeps_no_writer_out(empty: str, versions: Path) -> None:
    write_revision(versions, 1, OWNED)
    migrate(empty, versions)
    versions.joinpath("0002_index.py").write_text(ONLINE.format(unique=False))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", MIGRATE, empty, str(versions)]

    with sa.create_engine(empty, poolclass=sa.NullPool).connect() as older:
        older.exec_driver_sql("insert into leg values ('a')")  # the index is built only after this transaction
        with subprocess.Popen(command, cwd=versions, env=environment) as migration:
            wait_for(empty, "select 1 from pg_index where indexrelid = to_regclass('leg_name')", migration)
            rows(empty, "set lock_timeout = '60s'; insert into leg values ('b')")
            assert migration.poll() is None
            older.commit()
            assert migration.wait(60) == 0

    assert rows(empty, VALID) == [(True, False)]
    assert rows(empty, "select version_num from public.alembic_version") == [("0002",)]


@pytest.mark.full
@pytest.mark.usefixtures("template")  # the roles
def test_an_index_whose_making_was_interrupted_is_not_taken_for_a_whole_one(empty: str, versions: Path) -> None:
    write_revision(versions, 1, OWNED)
    migrate(empty, versions)
    rows(empty, "insert into leg values ('twice'), ('twice')")
    versions.joinpath("0002_index.py").write_text(ONLINE.format(unique=True))
    with pytest.raises(sa.exc.DBAPIError, match="could not create unique index"):
        migrate(empty, versions)
    assert rows(empty, VALID) == [(False, True)]

    rows(empty, "delete from leg")
    migrate(empty, versions)

    assert rows(empty, VALID) == [(True, True)]


# From here on every revision keeps them; what came before is in every installation already.
FIRST_KEPT = "0130"
CREATED = re.compile(r"create table (?:if not exists )?(\w+)", re.IGNORECASE)
INDEXED = re.compile(r"create (?:unique )?index (?:if not exists )?\w+\s+on (\w+)", re.IGNORECASE)
ALTERED = re.compile(r"alter table (?:if exists )?(\w+)", re.IGNORECASE)
FILLED = re.compile(r"^\s*(?:update|delete from) (\w+)", re.IGNORECASE | re.MULTILINE)
CONTRACTS = re.compile(
    r"\b(drop (?:column|table|function)|rename (?:to|column)|alter column \w+ (?:type|set not null))\b", re.IGNORECASE
)


def what_hurts_those_who_work(text: str) -> list[str]:
    """Of one revision: indexes that keep writers out, and what the release before still needs."""
    found = [
        f"an index on {table} keeps its writers out: infra/migrations/online.py"
        for table in INDEXED.findall(text)
        if table not in CREATED.findall(text)
    ]
    if "index_online(" in text and "exec_driver_sql" in text:
        found.append("an index that is built online shares its revision with something else")
    found += [
        f"{table} is altered, then filled in the same transaction: nobody reads it until all of it is filled"
        for altered in ALTERED.finditer(text)
        for table in FILLED.findall(text, altered.end())
        if table == altered[1]
    ]
    if not re.search(r"^# Contract: ", text, re.MULTILINE):
        found += [f"`{each}` is not said to be a contraction" for each in CONTRACTS.findall(text)]
    return found


def test_no_revision_stalls_or_breaks_the_release_that_runs_meanwhile() -> None:
    for file in sorted(VERSIONS.glob("[0-9]*.py")):
        if file.name >= FIRST_KEPT:
            assert what_hurts_those_who_work(file.read_text()) == [], file.name


@pytest.mark.parametrize(
    "text",
    [
        "run('create index lane_x on lane (x)')",
        "run('create unique index if not exists lane_x on lane (x)')",
        "index_online('a', 'on lane (x)')\nop.get_bind().exec_driver_sql('select 1')",
        "run('alter table lane drop column x')",
        "run('alter table lane alter column x set not null')",
        "run('alter table lane rename to track')",
        "alter table lane add column x text;\nupdate lane set x = ''",
    ],
)
def test_a_revision_that_would_is_noticed(text: str) -> None:
    assert what_hurts_those_who_work(text) != []
    assert what_hurts_those_who_work("create table leg (id int); create index leg_x on leg (x)") == []
    assert what_hurts_those_who_work("# Contract: nobody reads it since 0131\ndrop table leg") == []


def test_an_index_that_is_built_online_has_a_name_of_its_own() -> None:
    """One that is there already counts as built by an attempt that was interrupted: another's name would hide that it is not."""
    texts = {file.name: file.read_text() for file in sorted(VERSIONS.glob("[0-9]*.py"))}
    for name, text in texts.items():
        for index in re.findall(r"""index_online\(\s*["'](\w+)["']""", text):
            assert [other for other in texts if other < name and re.search(rf"\bindex {index}\b", texts[other])] == []


@pytest.mark.full
def test_the_master_of_an_rds_database_who_is_no_superuser_migrates() -> None:
    """As RDS makes it: may create roles and databases, owns this one, may hand out rds_iam, and is no superuser."""
    with scratch_server() as server:
        rows(server.url(), """
            create role rds_iam nologin;
            create role baton_master login createrole createdb nosuperuser noreplication nobypassrls password 'm';
            grant rds_iam to baton_master with admin option;
            grant pg_monitor, pg_signal_backend to baton_master with admin option""")  # fmt: skip
        engine = sa.create_engine(server.url(), poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql("create database baton owner baton_master")
        where = sa.make_url(server.url()).set(username="baton_master", password="m", database="baton")
        master = where.render_as_string(hide_password=False)

        for _ in range(2):
            at_deploy.bring_up_to_date(env={"DATABASE_URL": master, "BATON_ROLES_IAM": "true"})

        assert rows(master, "select version_num from public.alembic_version") == [(newest_revision(),)]
        assert rows(master, "select rolsuper from pg_roles where rolname = current_user") == [(False,)]
        granted = "select count(*) from pg_auth_members where roleid = 'rds_iam'::regrole and member::regrole::text like 'baton_%'"
        assert rows(master, f"{granted} and member <> 'baton_master'::regrole") == [(3,)]
        # And the worker's role, which the master made, sees nothing without a tenant.
        rows(master, "alter role baton_worker password 'w'")
        worker = where.set(username="baton_worker", password="w").render_as_string(hide_password=False)
        assert rows(worker, "select count(*) from run") == [(0,)]


@pytest.mark.full
def test_two_migrations_at_once_from_any_folder_run_each_revision_once(empty: str, versions: Path) -> None:
    write_revision(versions, 1, "create table leg (id int primary key); select pg_advisory_xact_lock(1)")

    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", MIGRATE, empty, str(versions)]
    with (
        sa.create_engine(empty, poolclass=sa.NullPool).connect() as gate,
        ThreadPoolExecutor(1) as pool,
        subprocess.Popen(
            command, cwd=versions, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as other,
    ):
        gate.exec_driver_sql("select pg_advisory_xact_lock(1)")
        wait_for(empty, BLOCKED, other)
        second = pool.submit(migrate, empty, versions)
        wait_for(empty, f"{BLOCKED} offset 1", other)
        gate.commit()
        printed, _ = other.communicate()
        second.result()

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


@pytest.mark.full
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
