"""Guards that one tenant with a hundred thousand of everything open costs the others nothing: counted in turns and in rows
that a statement reads, never in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import quantiles
from typing import Any
from uuid import UUID

import pytest

from functions.catalogue import KINDS
from shared.kernel.baton import read_baton
from shared.kernel.model import Turn
from shared.kernel.step import take_turn
from shared.row_job.store import CLAIM
from tests.kinds.parcel.kind import CARTS
from tests.support.databases import ServerAdmin
from tests.support.depot import Depot, parcel_depot
from tests.support.house import FIFO

pytestmark = pytest.mark.full

NOISY = UUID(int=0xBAD)
QUIET = [UUID(int=0xF000 + n) for n in range(40)]
ALLOWED = 1.5
# The hundred thousand are for `make verify`: they take half a minute to write.
SIZES = [
    pytest.param(10_000, id="ten thousand"),
    pytest.param(100_000, id="a hundred thousand", marks=pytest.mark.long),
]

# Runs of every kind that is pushed, each with a lane that waits for later.
OPEN_RUNS = """
with made as (
    insert into run (id, tenant_id, kind, status, params, check_at, created_at)
    select gen_random_uuid(), :noisy, (cast(:kinds as text[]))[mod(n, cardinality(cast(:kinds as text[]))) + 1], 'running', '{}',
           now() + interval '1 day', now()
    from generate_series(1, cast(:many as integer)) n returning id, kind)
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, sent_at, check_at, max_steps)
select gen_random_uuid(), id, :noisy, kind, 'l0', true, 'active', '{}', now() + interval '1 hour', now(), now() + interval '2 hours', 1000
from made
"""
# Jobs that are due now.
DUE_JOBS = f"""
with made as (
    insert into run (id, tenant_id, kind, status, params, check_at, created_at)
    select gen_random_uuid(), :noisy, 'parcel', 'queued', '{{}}', 'infinity', now() from generate_series(1, cast(:many as integer))
    returning id)
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps, class_id, priority)
select gen_random_uuid(), id, :noisy, 'parcel', 'carry', true, 'active', '{{"stage": 0}}', now(), 'infinity', 1000, '{CARTS}', 100
from made
"""
# Lanes that work on the rows of files: a hundred for each.
WORK_LANES = """
with made as (
    insert into run (id, tenant_id, kind, status, params, check_at, created_at)
    select gen_random_uuid(), :noisy, 'row_job', 'running', '{}', 'infinity', now()
    from generate_series(1, cast(:many as integer) / 100) returning id)
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps)
select gen_random_uuid(), id, :noisy, 'row_job', concat_ws(chr(58), 'work', n, 0), true, 'active', '{}', now(), 'infinity', 1000
from made cross join generate_series(0, 99) n
"""


# One of those files, with rows to be claimed.
ROWS = """
with one as (select run_id from lane where tenant_id = :noisy and kind = 'row_job' limit 1),
file as (
    insert into files (id, tenant_id, name, options, hold, created_by, created_at)
    values (gen_random_uuid(), :noisy, 'rows.csv', '{}', false, 'user:ann', now()) returning id),
job as (
    insert into file_jobs (run_id, tenant_id, file_id, job_type, slots, created_at)
    select run_id, :noisy, file.id, 'csv', 100, now() from one cross join file returning run_id)
insert into job_items (run_id, row_no, tenant_id, job_type, slot, status, input_json, normalized_json, due_at, updated_at)
select run_id, n * 100, :noisy, 'csv', 0, 'PENDING', '{}', '{}', now() - interval '1 hour', now()
from job cross join generate_series(1, 1000) n
"""


@pytest.fixture(scope="module")
def depot(postgres_server: ServerAdmin, template: str) -> Iterator[Depot]:
    with parcel_depot(postgres_server, template) as depot:
        depot.empty()
        yield depot


def p95(counted: list[int]) -> float:
    return quantiles(counted, n=20)[-1]


def turns_until_the_first_step(depot: Depot) -> dict[str, float]:
    """Every quiet tenant starts one of each: how many turns anybody took until theirs, of queues and of pulls."""
    pushed: list[int] = []
    lanes = {depot.lane(depot.start(tenant)).id for tenant in QUIET}
    for turn in range(1, len(QUIET) * 4):
        (message,) = depot.queue.receive(FIFO)
        depot.queue.delete(FIFO, message.receipt)
        baton = read_baton(message.body)
        take_turn(baton, depot.kind, depot.ports)
        pushed += [turn] if baton.lane_id in lanes else []
        lanes.discard(baton.lane_id)
        if not lanes:
            break
    assert not lanes, "not all of them had their turn"
    waiting = {depot.post(tenant) for tenant in QUIET}
    pulled: list[int] = []
    for turn in range(1, len(QUIET) * 4):
        taken: list[Turn] = depot.take()
        pulled += [turn for each in taken if each.run_id in waiting]
        if len(pulled) == len(QUIET):
            break
    assert len(pulled) == len(QUIET), "not all of them had their turn"
    return {"push": p95(pushed), "pull": p95(pulled)}


def lanes_that_a_claim_reads(depot: Depot) -> int:
    """Of the noisiest tenant's own claim of rows: it holds a connection that others need."""
    (run,) = depot.sql("select run_id from file_jobs where tenant_id = :t", t=NOISY)
    turn = "with turn as (select cast(:run as uuid) as run_id, cast(:tenant as uuid) as tenant_id, 'row_job' as kind)"
    given = {"holder": NOISY, "lease_s": 60, "slot": 0, "gen": 0, "most": 50, "alone": False, "tenant_most": 200}
    depot.sql("analyze lane")
    (row,) = depot.sql(
        f"explain (analyze, format json) {turn}, c as ({CLAIM.sql}) select * from c",
        run=run.run_id,
        tenant=NOISY,
        **given,
    )
    return read_of("lane", vars(row)["QUERY PLAN"][0]["Plan"])


def read_of(table: str, plan: dict[str, Any]) -> int:
    own = plan["Actual Rows"] * plan["Actual Loops"] if plan.get("Relation Name") == table else 0
    return int(own) + sum(read_of(table, each) for each in plan.get("Plans", []))


@pytest.mark.parametrize("many", SIZES)
def test_no_tenant_waits_for_all_that_another_has_open(depot: Depot, many: int) -> None:
    depot.empty()
    idle = turns_until_the_first_step(depot)
    depot.empty()
    depot.sql(OPEN_RUNS, noisy=NOISY, many=many, kinds=["tally", *(name for name in KINDS if name != "job")])
    depot.sql(DUE_JOBS, noisy=NOISY, many=many)

    noisy = turns_until_the_first_step(depot)

    print(
        f"\nturns from start to first step, p95: {idle} idle, {noisy} beside {many:,} open runs and {many:,} due jobs"
    )
    assert all(noisy[way] <= ALLOWED * idle[way] for way in idle)


@pytest.mark.parametrize("many", SIZES)
def test_no_claim_of_rows_counts_all_open_jobs_of_its_tenant(depot: Depot, many: int) -> None:
    depot.empty()
    depot.sql("delete from job_items; delete from file_jobs; delete from files")
    depot.sql(WORK_LANES, noisy=NOISY, many=1_000)
    depot.sql(ROWS, noisy=NOISY)
    few = lanes_that_a_claim_reads(depot)
    depot.sql(WORK_LANES, noisy=NOISY, many=many - 1_000)
    lots = lanes_that_a_claim_reads(depot)

    print(f"\nlanes that a claim of rows reads: {few} of 1,000 that are open, {lots} of {many:,}")
    assert few >= 200, "it shares nothing out"
    assert lots <= ALLOWED * few
