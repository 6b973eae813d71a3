"""Guards that a page of rows touches as much of the database wherever it begins and whatever it is filtered by, and never what
a row was read from."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import db
from shared.row_job import store
from tests.support.databases import ServerAdmin, as_user
from tests.support.house import tally_database

pytestmark = pytest.mark.full

TENANT, QUIET = UUID(int=0xACE), UUID(int=0xBEE)
JOB, OTHER = UUID(int=1), UUID(int=2)
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
MOST_GROWTH = 1.3
PAGE, LAST = 51, 9_000  # so many rows before the end, every list still has a page
FEW, MANY = 60_000, 5_000_000

JOBS = """
insert into tenant (id, name) values (:t, 'Acme'), (:quiet, 'Quiet') on conflict do nothing;
insert into super_admin (subject) values ('boss') on conflict do nothing;
insert into files (id, tenant_id, name) values (:job, :t, 'a.csv'), (:other, :t, 'b.csv');
insert into run (id, tenant_id, kind, status, check_at, created_by) values (:job, :t, 'row_job', 'running', now(), 'user:ann'),
    (:other, :t, 'row_job', 'running', now(), 'user:bob');
insert into file_jobs (run_id, tenant_id, file_id, user_id, job_type, slots)
values (:job, :t, :job, 'user:ann', 'csv', 4), (:other, :t, :other, 'user:bob', 'image', 4)
"""
# Three quarters are one person's; one in a hundred is at work, and so a list of those alone has far to search.
FILL = """
insert into job_items (run_id, row_no, tenant_id, user_id, job_type, slot, status, input_json, normalized_json, result_json, due_at, updated_at)
select case when mod(n, 4) = 0 then cast(:other as uuid) else cast(:job as uuid) end, n, :t,
       case when mod(n, 4) = 0 then 'user:bob' else 'user:ann' end, case when mod(n, 4) = 0 then 'image' else 'csv' end, mod(n, 4),
       case when mod(n, 400) in (1, 2, 3, 4) then 'PROCESSING' when mod(n, 400) in (5, 6, 7, 8) then 'ERROR' when mod(n, 3) = 0 then 'DONE' else 'PENDING' end,
       '{"title": "a title"}', '{"title": "a title"}', '{"offers": [{"title": "found", "price": "1.00"}]}', now(),
       timestamptz '2026-01-01 00:00+00' + n * interval '1 ms'
from generate_series(1, cast(:n as bigint)) n
"""


@pytest.fixture(scope="module", params=[pytest.param(FEW), pytest.param(MANY, marks=pytest.mark.long)])
def filled(
    request: pytest.FixtureRequest, postgres_server: ServerAdmin, template: str
) -> Iterator[tuple[sa.Engine, int]]:
    with tally_database(postgres_server, template) as url:
        owner = db.autocommit(db.connect_engine(url))
        ids = {"t": TENANT, "quiet": QUIET, "job": JOB, "other": OTHER, "n": request.param}
        with owner.connect() as connection:
            for statement in JOBS.split(";"):
                used = {name: value for name, value in ids.items() if f":{name}" in statement}
                connection.execute(sa.text(statement), used)
            connection.execute(sa.text(FILL), {name: ids[name] for name in ("t", "job", "other", "n")})
            connection.exec_driver_sql("vacuum analyze job_items")
        api = db.connect_engine(as_user(url, "baton_api"))
        yield api, request.param
        api.dispose()
        owner.dispose()


def questions() -> Iterator[tuple[str, sa.TextClause, dict[str, Any]]]:
    every = ["DONE", "ERROR", "NOT_FOUND", "PENDING", "PROCESSING", "SKIPPED"]
    of_job = {"run_id": JOB, "tenant_id": TENANT, "from_at": "-infinity", "before_at": "infinity"}
    for name, statuses in {
        "all": every,
        "one state": ["PENDING"],
        "two states": ["PENDING", "PROCESSING"],
        "rare": ["ERROR"],
    }.items():
        for sort in ("updated_at", "-updated_at"):
            yield f"items {sort}: {name}", store.ITEMS[sort], {**of_job, "statuses": statuses}
    day = {"from_at": "2026-01-01T00:00:01Z", "before_at": "2026-01-09T00:00:00Z"}
    yield "items: between", store.ITEMS["updated_at"], {**of_job, "statuses": every, **day}
    yield "items in order", store.ITEMS_IN_ORDER, {"run_id": JOB, "tenant_id": TENANT}
    both, types = ["PENDING", "PROCESSING"], ["csv", "image"]
    pending = {"tenant_id": TENANT, "from_at": "-infinity", "before_at": "infinity", "statuses": both, "types": types}
    mine = {"user_id": "user:ann"}
    scopes: dict[str, dict[str, Any]] = {
        "all": {},
        "at work": {"statuses": ["PROCESSING"]},
        "of a type": {"types": ["image"]},
        "between": day,
    }
    for name, changes in scopes.items():
        yield f"pending of the tenant: {name}", store.PENDING_OF_TENANT, {**pending, **changes}
        yield (
            f"pending of mine: {name}",
            store.PENDING_MINE,
            {**pending, **changes, "user_id": "user:bob" if "type" in name else "user:ann"},
        )
        everywhere = {
            each: value for each, value in {**pending, **changes, "subject": "boss"}.items() if each != "tenant_id"
        }
        yield f"pending of all tenants: {name}", store.PENDING_OF_ALL_TENANTS, everywhere
    yield "pending of a job", store.PENDING_OF_JOB, {**pending, "job_id": JOB}
    yield "pending of my job", store.PENDING_MINE_OF_JOB, {**pending, "job_id": JOB, **mine}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def test_every_page_costs_the_same_and_none_reads_what_a_row_was_read_from(filled: tuple[sa.Engine, int]) -> None:
    engine, count = filled
    wrong: list[str] = []
    with engine.connect() as connection, connection.begin():
        db.set_tenant(connection, TENANT)
        for name, statement, params in questions():
            costs: list[int] = []
            # The first, a middle and the last whole page; the first is asked for twice, because a first run of a function plans its
            # statements and reads the catalogue for that.
            for along in (0, 0, count // 2, count - LAST):
                place = count - along if "items -" in name else along
                at = {
                    "after_at": (BEGINNING + timedelta(milliseconds=place)).isoformat(),
                    "after_row": place,
                    "after_run": UUID(int=0),
                    "most": PAGE,
                }
                asked = {key: value for key, value in {**at, **params}.items() if f":{key}" in statement.text}
                text = sa.text(f"explain (analyze, verbose, buffers, timing off, format json) {statement.text}")
                (answer,) = connection.execute(text, asked).scalar_one()
                plan = answer["Plan"]
                costs.append(int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]))
                # What is scanned is a whole row, its long values elsewhere until somebody asks for them: nobody may.
                above = [node for node in nodes(plan) if "Scan" not in node["Node Type"]]
                if any("input_json" in output for node in above for output in node.get("Output", ())):
                    wrong.append(f"{name} reads input_json")
                if any(
                    node["Node Type"] == "Seq Scan" and node.get("Relation Name") == "job_items" for node in nodes(plan)
                ):
                    wrong.append(f"{name} reads the whole table")
            print(f"{name}: {costs[1:]}")
            if max(costs[1:]) > MOST_GROWTH * min(costs[1:]):
                wrong.append(f"{name}: {costs[1:]}")
    assert wrong == []


def test_a_count_reads_no_more_than_it_tells(filled: tuple[sa.Engine, int]) -> None:
    engine, count = filled
    asked = {"tenant_id": TENANT, "statuses": ["PENDING", "PROCESSING"], "types": ["csv", "image"]}
    with engine.connect() as connection, connection.begin():
        db.set_tenant(connection, TENANT)
        told = connection.execute(store.COUNT_OF_TENANT, asked).scalar_one()
        mine = connection.execute(store.COUNT_MINE, {**asked, "user_id": "user:ann"}).scalar_one()
    assert store.MOST_COUNTED < told <= 4 * (store.MOST_COUNTED + 1)
    assert mine <= told <= count
