"""Guards that a take costs the same however much waits, waits for later, has ended, or has been worked off without a vacuum;
and that an end does."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from shared.kernel.model import Ending, LaneChange, LaneStatus, RunStatus, StepOutcome, TurnEnd
from shared.kernel.offers import _part
from tests.kinds.parcel.kind import CARTS, QUEUE
from tests.support.databases import ServerAdmin
from tests.support.depot import Depot, parcel_depot
from tests.support.plans import Cost, explain

pytestmark = pytest.mark.full

TENANTS = [UUID(int=0xF000 + n) for n in range(20)]
TABLES = ("offer", "pull_line", "pull_class", "pull_tenant", "pull_queue", "lane", "run")


@pytest.fixture
def depot(postgres_server: ServerAdmin, template: str) -> Iterator[Depot]:
    with parcel_depot(postgres_server, template) as depot:
        depot.empty()
        for table in TABLES:
            depot.sql(f"alter table {table} set (autovacuum_enabled = false)")
        yield depot


def fill(depot: Depot, count: int, *, delay: str = "0", status: str = "active") -> None:
    """So many lanes, shared by the tenants, as the product would have made them."""
    depot.sql(
        f"""with made as (
                insert into run (id, tenant_id, kind, status, params, check_at, created_at, finished_at)
                select gen_random_uuid(), (cast(:tenants as uuid[]))[mod(n, 20) + 1], 'parcel',
                       case when '{status}' = 'active' then 'queued' else 'succeeded' end, '{{}}', 'infinity', now(),
                       case when '{status}' = 'active' then null else now() end
                from generate_series(1, :count) n
                returning id, tenant_id)
            insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, check_at, max_steps,
                              class_id, priority)
            select gen_random_uuid(), id, tenant_id, 'parcel', 'carry', true, '{status}', '{{"stage": 0}}',
                   now() + interval '{delay}', 'infinity', 1000, '{CARTS}', 100
            from made""",
        tenants=[str(tenant) for tenant in TENANTS],
        count=count,
    )


def work_off(depot: Depot, count: int) -> None:
    """Taken and ended, as fast as rows can be written."""
    for _ in range(count // 100):
        depot.sql(
            """with taken as (select lane_id from take_offers(:queue, 100, gen_random_uuid(), '60 s', 'w'))
               select count(*) from taken""",
            queue=QUEUE,
        )
        depot.sql(
            """update lane set status = 'done', claim_token = null, lease_until = null, seq = seq + 1
               where claim_token is not null"""
        )


def buffers(depot: Depot) -> int:
    """Of a take of one, the least of some: now and then one raises a head or tidies a list."""
    found = []
    for _ in range(7):
        (row,) = depot.sql(
            """explain (analyze, buffers, format json)
               select * from take_offers(:queue, 1, gen_random_uuid(), '60 s', 'w')""",
            queue=QUEUE,
        )
        plan = vars(row)["QUERY PLAN"][0]["Plan"]
        found.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
        depot.sql(
            "update lane set status = 'done', claim_token = null, lease_until = null, seq = seq + 1 where claim_token is not null"
        )
    return int(sorted(found)[len(found) // 2])


def test_a_take_costs_the_same_whatever_waits_and_ended(depot: Depot) -> None:
    for tenant in TENANTS:
        depot.sql("insert into pull_tenant (tenant_id, most_running) values (:t, 5)", t=tenant)
    depot.sql("update pull_class set most_running = 50 where id = :id", id=CARTS)
    fill(depot, 1_000)
    few = buffers(depot)
    fill(depot, 8_000)
    fill(depot, 8_000, delay="1 day")
    fill(depot, 8_000, status="done")
    many = buffers(depot)
    depot.sql("update pull_tenant set most_running = 10000, running = null")
    depot.sql("update pull_class set most_running = 10000, running = null")
    work_off(depot, 5_000)
    depot.sql("update pull_tenant set most_running = 5, running = '{}'")
    depot.sql("update pull_class set most_running = 50, running = '{}'")
    worked_off = buffers(depot)

    print(f"\nbuffers of a take of one: {few} with 1 k waiting, {many} with 9 k, 8 k for later and 8 k ended, "
          f"{worked_off} after 5 k were worked off without a vacuum")  # fmt: skip
    assert many <= 1.3 * few + 4
    assert worked_off <= 1.3 * few + 4


DONE = LaneChange(status=LaneStatus.DONE, outcome=StepOutcome.DONE, attempts=0)


def cost_of_ending(depot: Depot, turns: int) -> Cost:
    """Of the statement that ends so many turns of one tenant. It is rolled back."""
    taken = [turn for turn in depot.take(20 * turns) if turn.tenant_id == TENANTS[0]]
    assert len(taken) == turns
    ahead, ((statement, params),) = _part(
        [TurnEnd(turn, DONE, Ending(RunStatus.SUCCEEDED, "done"), 1) for turn in taken]
    )
    with depot.engine().connect() as connection, connection.begin() as transaction:
        for each, given in ahead:
            connection.execute(each, given)
        cost = explain(connection, statement, params)
        transaction.rollback()
    return cost


@pytest.mark.parametrize("turns", [1, 5])
def test_an_end_finds_its_rows_by_their_ids_also_while_the_tables_are_young(depot: Depot, turns: int) -> None:
    """Its plan is kept, and the tables grow: it must not read all that is open, however little that is yet."""
    for waiting in (100, 100, 1_000, 9_000):
        fill(depot, waiting)
        cost = cost_of_ending(depot, turns)
        assert cost.indexes <= {"lane_pkey", "lane_open", "run_pkey", "history_pkey"}
        assert not cost.scanned & {"lane", "run", "offer", "history"}
