"""Guards the pulse: every step is counted once in its minute, also one that was committed late; and its cost is the last minutes'."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import db, sql
from shared.kernel.clock import new_id
from shared.kernel.entry import tick_handler
from shared.kernel.errors import Permanent, Transient
from shared.kernel.log_json import FunctionFailed
from shared.kernel.model import By, Turn
from shared.kernel.run import start_run
from shared.kernel.settings import Relay
from shared.kernel.store import PgStore
from shared.kernel.sweep import sweep
from tests.support.databases import ServerAdmin, as_user
from tests.support.house import ALICE, BOB, House, tally_database
from tests.support.lambda_calls import FakeContext, plain_logger
from tests.support.plans import Cost, explain

__all__ = ["plain_logger"]

STEP = """
insert into step (lane_id, epoch, seq, tenant_id, outcome, rows, ms, at)
values (:lane, 1, :seq, :tenant, 'moved', 5, 1, now() - cast(:age as interval))
"""


def beat(house: House) -> None:
    tick_handler(house.ports, house.kinds)({}, FakeContext())


def a_step(house: House, age: str, tenant: UUID = ALICE) -> None:
    house.sql(STEP, lane=new_id(), seq=0, tenant=tenant, age=age)


def counted(house: House) -> list[tuple[int, int, int]]:
    rows = house.sql("select steps, failed, rows from pulse order by minute, created_by")
    return [(row.steps, row.failed, row.rows) for row in rows]


def test_a_tick_sums_the_steps_up_by_minute_tenant_and_whose_run_it_is(house: House) -> None:
    def trouble(turn: Turn, n: int) -> None:
        if turn.params.get("breaks"):
            raise Permanent("no")
        if turn.params.get("stumbles"):
            raise Transient("not now")

    house.visits, api = trouble, house.api_ports()
    for tenant, actor, params in (
        (ALICE, "user:ann", {}), (ALICE, "user:ann", {"breaks": True}), (ALICE, "user:ben", {"stumbles": True}),
        (BOB, "user:ann", {}),
    ):  # fmt: skip
        house.take_turn(start_run(api, house.kind, tenant, {"lanes": 1, "target": 3, **params}, By(actor)))
    house.take_turn(house.start(ALICE))
    house.sql("update step set at = date_trunc('minute', now())")  # else a new minute may begin in between
    a_step(house, "2 minutes")

    beat(house)

    rows = house.sql(
        "select *, minute = date_trunc('minute', minute) as whole from pulse order by tenant_id, created_by, minute"
    )
    assert all(row.whole for row in rows)
    told = [(row.tenant_id, row.created_by, row.steps, row.failed, row.rows) for row in rows]
    assert told == [
        (BOB, "user:ann", 1, 0, 1),
        (ALICE, "", 1, 0, 5),
        (ALICE, "", 1, 0, 1),
        (ALICE, "user:ann", 2, 1, 1),
        (ALICE, "user:ben", 1, 1, 0),
    ]  # fmt: skip


def test_a_step_that_is_committed_after_the_tick_has_looked_is_not_lost(house: House) -> None:
    beat(house)
    with house.engine().begin() as late:
        late.execute(sa.text(STEP), {"lane": new_id(), "seq": 0, "tenant": ALICE, "age": "100 s"})
        beat(house)
        assert counted(house) == []

    beat(house)

    assert counted(house) == [(1, 0, 5)]


def test_what_happened_while_no_tick_came_is_summed_up_by_the_next(house: House) -> None:
    for age in ("40 minutes", "3 hours"):
        a_step(house, age)
    house.sql("insert into beat (name, at) values ('tick', now() - interval '50 minutes')")

    beat(house)

    assert counted(house) == [(1, 0, 5)], "an hour back at most"


def test_the_first_tick_of_all_sums_up_an_hour(house: House) -> None:
    a_step(house, "55 minutes")

    beat(house)

    assert counted(house) == [(1, 0, 5)]


def test_a_sum_only_grows_and_one_that_is_complete_is_not_written_again(house: House) -> None:
    """Of two ticks at once the one that looked earlier may write later."""
    a_step(house, "30 s")
    versions = "select xmin::text as version, steps from pulse"
    beat(house)
    (first,) = house.sql(versions)

    beat(house)
    assert house.sql(versions) == [first]
    house.sql("update pulse set steps = 7, failed = 1, rows = 9")
    beat(house)
    assert counted(house) == [(7, 1, 9)]


def test_a_tick_that_mended_lives_though_its_sums_failed(house: House) -> None:
    class NoSums(PgStore):
        def roll_up(self, window_s: float) -> int:
            raise RuntimeError("too much")

    broken = replace(house.ports, store=NoSums(house.engine()))

    with pytest.raises(FunctionFailed):
        tick_handler(broken, house.kinds)({}, FakeContext())

    assert [row.name for row in house.sql("select name from beat")] == ["tick"]


def test_a_step_that_takes_longer_is_waited_for_longer(house: House) -> None:
    asked = []

    class Asked(PgStore):
        def roll_up(self, window_s: float) -> int:
            asked.append(window_s)
            return 0

    ports = replace(house.ports, store=Asked(house.engine()), relay=Relay(step_timeout_s=800, lease_s=900))
    for _ in range(2):
        tick_handler(ports, house.kinds)({}, FakeContext())

    assert asked[0] == 3600 + 860
    assert 860 <= asked[1] < 920


def test_old_minutes_leave_with_the_sweep(house: House) -> None:
    a_step(house, "1 minute")
    house.sql("insert into pulse values (:t, now() - interval '15 days', '', 1, 0, 1)", t=ALICE)
    beat(house)

    assert sweep(house.ports, house.kinds)["pulse"] == 1
    assert counted(house) == [(1, 0, 5)]


# What it costs.


FEW, MANY, LATELY = 20_000, 80_000, 2_000
OLD = """
insert into step (lane_id, epoch, seq, tenant_id, outcome, at)
select gen_random_uuid(), 1, n, :t, 'moved', now() - interval '10 days' + n * interval '1 s'
from generate_series(cast(:first as bigint), cast(:last as bigint)) n
"""
LANES = """
with r as (insert into run (id, tenant_id, kind, status, check_at, created_by)
           select gen_random_uuid(), :t, 'tally', 'running', now(), 'user:ann' from generate_series(1, cast(:n as bigint))
           returning id)
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, check_at, max_steps)
select gen_random_uuid(), id, :t, 'tally', 'l0', true, '{}', now(), now(), 9 from r
"""
NEW = """
insert into step (lane_id, epoch, seq, tenant_id, outcome)
select id, 1, n, tenant_id, 'moved' from (select id, tenant_id from lane order by id limit 200) l
cross join generate_series(1, cast(:lately as bigint) / 200) n
"""


@pytest.mark.full
def test_summing_up_costs_the_steps_of_the_last_minutes_however_many_there_were(
    postgres_server: ServerAdmin, template: str
) -> None:
    def grow(first: int, last: int) -> Cost:
        with owner.begin() as connection:
            connection.execute(sa.text(OLD), {"t": ALICE, "first": first, "last": last})
            connection.execute(sa.text(LANES), {"t": ALICE, "n": (last - first) // 4})
        with db.autocommit(owner).connect() as connection:
            connection.exec_driver_sql("vacuum analyze")
        with worker.connect() as connection, connection.begin() as transaction:
            connection.execute(sa.text(NEW), {"lately": LATELY})
            cost = explain(connection, sql.ROLL_UP, {"window_s": 180.0})
            assert connection.execute(sa.text("select sum(steps) from pulse")).scalar_one() == LATELY
            transaction.rollback()
        return cost

    with tally_database(postgres_server, template) as url:
        owner, worker = db.connect_engine(url), db.connect_engine(as_user(url, "baton_worker"))
        few, many = grow(0, FEW), grow(FEW, MANY)
        owner.dispose()
        worker.dispose()

    assert (few.scanned | many.scanned) & {"step", "lane", "run"} == frozenset()
    assert many.buffers <= few.buffers * 1.3
