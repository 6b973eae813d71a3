"""Guards that what people ask of the job queue costs the same among twice as many jobs, waiting and ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.job_queue import store
from shared.kernel import db
from tests.support.databases import ServerAdmin, as_user
from tests.support.house import tally_database
from tests.support.plans import explain

pytestmark = pytest.mark.full

# More than is counted of any status; so only what is read beyond the bounds can grow.
FEW, MANY = 12_000, 24_000
MOST_GROWTH = 1.3
TENANT, DEFINITION, MEMBER = UUID(int=0xACE), UUID(int=0xD), "user:member"
_ID = "(lpad(to_hex(n), 12, '0') || '{0}' || substr(md5(n::text), 1, 16))::uuid"
FILL = f"""
insert into run (id, tenant_id, kind, label, source, status, outcome, params, check_at, created_by, created_at, started_at, finished_at)
select {_ID.format("7001")}, :t, 'job', 'd', 'api',
       case when mod(n, 2) = 0 then 'queued' when mod(n, 40) = 1 then 'failed' else 'succeeded' end,
       case when mod(n, 40) = 1 then 'dead_letter' when mod(n, 2) = 1 then 'done' end,
       '{{"definition_key": "d", "payload": {{}}, "max_attempts": 3, "version": 1}}', 'infinity', case when n < cast(:mine as bigint) then 'user:member' else 'user:a' end,
       now() - interval '50 minutes' + n * interval '1 ms', now(), case when mod(n, 2) = 1 then now() - interval '1 minute' end
from generate_series(cast(:first as bigint), cast(:last as bigint)) n
"""
FILL_LANES = f"""
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps, class_id, priority)
select {_ID.format("7002")}, {_ID.format("7001")}, :t, 'job', 'run', true, case when mod(n, 2) = 0 then 'active' else 'done' end, '{{}}',
       case when mod(n, 16) = 0 then now() + interval '1 hour' else now() end, 'infinity', 9, :d, 100
from generate_series(cast(:first as bigint), cast(:last as bigint)) n
"""
FILL_ATTEMPTS = f"""
insert into job_attempts (job_id, attempt_no, tenant_id, worker_id, status, started_at, finished_at, stdout_tail)
select {_ID.format("7001")}, 1, :t, 'w', 'succeeded', now() - interval '2 minutes', now() - interval '1 minute', 'x'
from generate_series(cast(:first as bigint), cast(:last as bigint)) n where mod(n, 2) = 1
"""
FIRST = """
insert into tenant (id, name) values (:t, 'Acme');
insert into super_admin (subject) values ('sue');
insert into pull_queue (name) values ('default');
insert into pull_class (id, queue, most_running) values (:d, 'default', 5);
insert into pull_tenant (tenant_id, most_running) values (:t, 5);
insert into job_workers (worker_id, hostname, queues) select 'w' || n, 'h', '{default}' from generate_series(1, 20) n
"""


def questions(waiting: UUID, ended: UUID) -> Iterator[tuple[str, sa.TextClause, dict[str, Any]]]:
    yield "summary", store.summary(own=False), {"subject": None}
    yield "summary of all tenants", store.summary(own=False), {"subject": "sue"}
    yield "one job", store.ONE_JOB, {"job_id": waiting}
    yield "why it waits", store.WHY, {"job_id": waiting}
    yield "attempts", store.ATTEMPTS, {"job_id": ended, "before": 2**31 - 1}
    yield "one attempt", store.ATTEMPT, {"job_id": ended, "attempt_no": 1}
    yield "workers", store.WORKERS, {"subject": "sue"}
    for status in (None, "queued", "running", "succeeded", "dead_letter"):
        asked = store.list_jobs(status, own=False, source=False, since=False, until=False, after=False)
        yield f"jobs: {status}", asked, {}


def own_questions() -> Iterator[tuple[str, sa.TextClause, dict[str, Any]]]:
    """Of a member who has a few jobs, among all those of others."""
    yield "own summary", store.summary(own=True), {"subject": None}
    for status in (None, "queued", "running", "succeeded", "dead_letter"):
        asked = store.list_jobs(status, own=True, source=False, since=False, until=False, after=False)
        yield f"own jobs: {status}", asked, {}


def measured(url: str) -> dict[str, int]:
    engine = db.connect_engine(as_user(url, "baton_api"))
    costs = {}
    with engine.connect() as connection, connection.begin():
        db.set_tenant(connection, TENANT)
        newest = "select id from run where status = '{0}' order by created_at desc limit 1"
        waiting, ended = (
            connection.execute(sa.text(newest.format(status))).scalar_one() for status in ("queued", "succeeded")
        )
        for name, statement, params in questions(waiting, ended):
            costs[name] = explain(connection, statement, {"tenant_id": TENANT, "most": 51, **params}).buffers
    engine.dispose()
    return costs


def measured_by_a_member(url: str) -> dict[str, int]:
    engine = db.connect_engine(as_user(url, "baton_api"))
    with engine.connect() as connection, connection.begin():
        db.set_tenant(connection, TENANT)
        connection.execute(sa.text("select set_config('app.owner', :who, true)"), {"who": MEMBER})
        asked = {"tenant_id": TENANT, "most": 51, "owner": MEMBER}
        costs = {
            name: explain(connection, statement, {**asked, **params}).buffers
            for name, statement, params in own_questions()
        }
    engine.dispose()
    return costs


def grow(url: str, first: int, last: int, mine: int = 0) -> None:
    engine = db.connect_engine(url)
    bound = {"t": TENANT, "d": DEFINITION, "first": first, "last": last, "mine": mine}
    with engine.begin() as connection:
        for statement in (*(FIRST.split(";\n") if first == 0 else ()), FILL, FILL_LANES, FILL_ATTEMPTS):
            connection.execute(sa.text(statement), {name: bound[name] for name in bound if f":{name}" in statement})
    with db.autocommit(engine).connect() as connection:
        connection.exec_driver_sql("vacuum analyze run, lane, offer, job_attempts, pull_line")
    engine.dispose()


def test_what_is_asked_of_the_queue_costs_the_same_among_many_jobs(postgres_server: ServerAdmin, template: str) -> None:
    with tally_database(postgres_server, template) as url:
        grow(url, 0, 2 * FEW - 1)
        few = measured(url)
        grow(url, 2 * FEW, 2 * MANY - 1)
        many = measured(url)

    print(f"\nbuffers among {FEW:,} and {MANY:,} waiting: { {name: (few[name], many[name]) for name in few} }")
    assert {name: (few[name], n) for name, n in many.items() if n > max(few[name] * MOST_GROWTH, few[name] + 4)} == {}


def test_what_a_member_asks_costs_the_same_among_many_jobs_of_others(
    postgres_server: ServerAdmin, template: str
) -> None:
    with tally_database(postgres_server, template) as url:
        grow(url, 0, 2 * FEW - 1, mine=40)
        few = measured_by_a_member(url)
        grow(url, 2 * FEW, 2 * MANY - 1)
        many = measured_by_a_member(url)

    assert {name: (few[name], n) for name, n in many.items() if n > max(few[name] * MOST_GROWTH, few[name] + 4)} == {}
    assert max(few.values()) < 1_000, "nobody reads all jobs of the tenant to find the few that are theirs"
