"""No statement of any kind has a plan that turns bad: not in young tables, nor in grown ones, nor when it was made before they grew.

Each kind's story is told four times on one connection: in fresh tables, in truncated ones, beside many rows that nobody has
analyzed (200,000 of each table in `make verify`), and beside the same rows once they are analyzed. What it does is the same each time, so it must touch as many pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.local.standins.dropbox import with_photos
from shared.kernel import db
from shared.kernel.clock import Chance
from shared.row_job.model import ENDED
from tests.integration.test_folder_sync import FolderRig
from tests.kinds.folder_sync.subject import CONNECT, connection_of
from tests.simulation.backends import prepare_database
from tests.support.databases import ServerAdmin
from tests.support.ingest import IngestRig
from tests.support.pictures import packed, png
from tests.support.queries import QueryRig, sql
from tests.support.rig import TENANT, RigDatabase
from tests.support.rows import RowRig, csv_of
from tests.support.searches import DAY_S, SearchRig
from tests.support.watched import Watch, outline

pytestmark = pytest.mark.full

FRESH, TRUNCATED, GROWN, ANALYZED = STATES = ("fresh", "truncated", "grown", "analyzed")
# Another level of an index is a page more each time it is entered; a table has several.
MOST, DEEPER, SLACK = 1.5, 4, 40
# Once in a cycle every company of the tenant is looked at, and before they are analyzed all cycles and searches; now and then the rows of
# a job are counted.
EACH = re.compile("set open_offers = 0 from turn|set total_items = c.total|from search_cycle|searches_not_fresh")

# Of these a tenant has a handful, however long it works.
FEW = ("account_token", "connection", "upstream", "pace", "gate")
TABLES = """
select c.relname from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and not c.relispartition order by 1"""
# What stands there waits for nobody.
ENDED_ALL = """
update signal set dispatched_at = at;
delete from hearing;
update lane set status = 'done', sent_at = pg_catalog.now(), check_at = 'infinity' where status not in ('done', 'failed', 'canceled');
update run set status = 'succeeded', finished_at = pg_catalog.now() where status in ('queued', 'running');
update companies set open_offers = 0;
update remote_call set cleaned_at = pg_catalog.now() where cleaned_at is null"""
COLUMNS = """
select a.attname as name, format_type(a.atttypid, null) as type, a.attidentity <> '' as counted,
       exists (select from pg_index i where i.indrelid = a.attrelid and i.indisunique and a.attnum = any(i.indkey)) as in_key
from pg_attribute a
where a.attrelid = cast(:table as regclass) and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
order by a.attnum"""


class Tables:
    """What stands in the tables beside a story."""

    def __init__(self, database: RigDatabase) -> None:
        self._owner = db.autocommit(database.owner)
        self._mine = [name for name in self._names() if not self._rows(name)]
        self._grow = [name for name in self._mine if name not in FEW]

    def prepare(self, state: str, rows: int) -> None:
        if state == FRESH:
            self._run("; ".join(f"alter table {name} set (autovacuum_enabled = off)" for name in self._mine))
        elif state == TRUNCATED:
            self._run(f"truncate {', '.join(self._mine)} cascade")
        elif state == GROWN:
            self._fill(rows)
        else:
            self._run("analyze")

    def _fill(self, rows: int) -> None:
        """What the story left there, so many times, each time with other ids and keys."""
        self._run(ENDED_ALL)
        for table in self._grow:
            have = self._rows(table)
            if have:
                self._copy(table, rows // have)

    def _copy(self, table: str, times: int) -> None:
        with self._owner.connect() as connection:
            columns = list(connection.execute(sa.text(COLUMNS), {"table": table}).mappings())
            wanted = [row for row in columns if not row["counted"]]
            spelled = ", ".join(_other(row) for row in wanted)
            connection.exec_driver_sql("set session_replication_role = replica")
            connection.exec_driver_sql(
                f"insert into {table} ({', '.join(row['name'] for row in wanted)}) "
                f"select {spelled} from {table} t, generate_series(1, {times}) copies (no) order by copies.no on conflict do nothing"
            )
            connection.exec_driver_sql("reset session_replication_role")

    def _names(self) -> list[str]:
        with self._owner.connect() as connection:
            return list(connection.exec_driver_sql(TABLES).scalars())

    def _rows(self, table: str) -> int:
        with self._owner.connect() as connection:
            return int(connection.exec_driver_sql(f"select count(*) from {table}").scalar_one())

    def _run(self, statement: str) -> None:
        with self._owner.connect() as connection:
            connection.exec_driver_sql(statement)


def _other(column: Any) -> str:
    name = f't."{column["name"]}"'
    if column["type"] == "uuid" and column["name"] != "tenant_id":
        # As the product's do, ids grow with time.
        return f"(lpad(to_hex(copies.no), 8, '0') || substr(md5({name}::text || copies.no), 9))::uuid"
    if (
        column["in_key"]
        and column["type"] == "text"
        and column["name"] not in ("kind", "client", "provider", "purpose")
    ):
        return f"{name} || '~' || copies.no"
    return name


Story = Callable[[RigDatabase, int], None]


@contextmanager
def other_ids(database: RigDatabase, rig: Any, state: int) -> Iterator[Any]:
    ids = Random(f"{type(rig).__name__} {state}")
    chance = Chance(new_id=lambda: UUID(int=ids.getrandbits(128)), fraction=lambda: 0.5)
    rig.ports = replace(rig.ports, chance=chance)
    rig.ids = ids
    rig.now = state * 100 * DAY_S  # what stands there is older
    with database.follows(rig):
        yield rig


def page_ingest(database: RigDatabase, state: int) -> None:
    with other_ids(database, IngestRig(database.worker, database.owner), state) as rig:
        rig.stock(400)
        for _ in range(2):
            assert rig.finish(rig.start()) == "succeeded complete"
        rig.standin.stop()


def search(database: RigDatabase, state: int) -> None:
    with other_ids(database, SearchRig(database.worker, database.owner), state) as rig:
        rig.now += 40 * DAY_S
        rig.infojobs.post_days(rig.now - 3 * DAY_S, 3, 40, late=0)
        rig.save(days=2, name=f"search {state}", q=f"k{state}")
        rig.start()
        rig.go(7200)
        rig.write("update query_state set active = false, next_due_at = 'infinity', history_due_at = null")
        rig.write("update search_cycle set ended_at = begins_at")


def query_run(database: RigDatabase, state: int) -> None:
    with other_ids(database, QueryRig(database.worker, database.owner), state) as rig:
        assert rig.finish(rig.start(sql(rows=60))) == "succeeded ready"
        rig.pass_time(3_700)


def row_job(database: RigDatabase, state: int) -> None:
    with other_ids(database, RowRig(database.worker, database.owner), state) as rig:
        run_id = rig.upload(csv_of(300))
        assert rig.finish(run_id) == "succeeded"
        rig.reprocess(run_id, statuses=[*ENDED])
        assert rig.finish(run_id) == "succeeded"
        held = [(f"acme-{n}.png", png(10 + n, 20)) for n in range(60)]
        assert rig.finish(rig.upload(packed(*held), name="shop.zip", job_type="image")) == "succeeded"


def folder_sync(database: RigDatabase, state: int) -> None:
    with database.owner.begin() as connection:
        connection.execute(sa.text("delete from connection"))
        connection.execute(CONNECT, {"id": connection_of(TENANT), "t": TENANT})
    with other_ids(database, FolderRig(database.worker, database.owner), state) as rig:
        with_photos(rig.box, 120)
        assert rig.sync() == "succeeded"
        rig.box.put("/photos/0007.jpg", 9)
        rig.box.delete("/photos/0008.jpg")
        assert rig.sync() == "succeeded"
        rig.box.stop()


STORIES: dict[str, Story] = {each.__name__: each for each in (page_ingest, search, query_run, row_job, folder_sync)}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rows", [20_000, pytest.param(200_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", STORIES)
def test_no_statement_touches_more_pages_in_one_state_than_in_another(
    postgres_server: ServerAdmin, template: str, kind: str, rows: int
) -> None:
    url = postgres_server.url(postgres_server.create_from_template(template))
    prepare_database(url)
    with closing(RigDatabase(url)) as database:
        database.worker.pool._recycle = -1  # one connection, however long it takes
        tables = Tables(database)
        with database.worker.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
        watch = Watch(driver)
        for number, state in enumerate(STATES):
            tables.prepare(state, rows)
            with watch.watching(state):
                STORIES[kind](database, number)

    assert len(watch.pages) > 15
    bad = []
    for statement, states in watch.pages.items():
        if EACH.search(statement):
            continue
        most = {state: max(pages) for state, pages in states.items()}
        known = [most[state] for state in (FRESH, ANALYZED) if state in most]  # where the server knows its tables
        limits = dict.fromkeys(most, MOST * max(known, default=max(most.values())) + SLACK)
        if FRESH in most:
            limits[ANALYZED] = DEEPER * most[FRESH] + SLACK
        bad += [
            f"{state}, of {most}:\n{statement}\n{outline(watch.plans[statement, state])}"
            for state, pages in most.items() if pages > limits[state]
        ]  # fmt: skip
    assert not bad, "\n\n".join(bad)
