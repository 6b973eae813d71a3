"""Guards the store's statements about calls to the outside and what they leave there, and about rows that are past their retention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from shared.kernel.clock import new_id
from shared.kernel.model import (
    Intent,
    NewLane,
    PrunedRuns,
    RemoteCall,
    Turn,
    idempotency_key,
)
from shared.kernel.settings import RETENTION_DAYS
from shared.kernel.sweep import sweep
from tests.support.house import ALICE, House

# Calls to the outside.


def call_of(turn: Turn, key: str = "job", remote_id: str | None = None) -> RemoteCall:
    return RemoteCall(
        run_id=turn.run_id,
        tenant_id=turn.tenant_id,
        run_kind="tally",
        epoch=turn.epoch,
        key=key,
        kind="thing",
        remote_id=remote_id,
    )


def test_an_intent_is_fresh_once(house: House) -> None:
    turn = house.claim(house.start())

    first = house.store.intend(turn, "job", "thing", leaves_asset=True)
    again = house.store.intend(turn, "job", "thing", leaves_asset=True)
    house.store.confirm(call_of(turn), "remote-1")
    house.store.confirm(call_of(turn), "remote-2")
    known = house.store.intend(turn, "job", "thing", leaves_asset=True)

    assert first == Intent(True, False, None)
    assert again is not None
    assert known is not None
    assert (again.fresh, again.confirmed) == (False, False)
    assert (known.confirmed, known.remote_id) == (True, "remote-1"), "the first confirmation stays"


@pytest.mark.parametrize("foreign", [{"token": UUID(int=1)}, {"seq": 5}, {"epoch": 5}], ids=str)
def test_only_the_holder_of_the_turn_writes_an_intent(house: House, foreign: dict[str, Any]) -> None:
    turn = house.claim(house.start())

    assert house.store.intend(replace(turn, **foreign), "job", "thing", leaves_asset=True) is None
    assert house.value("select count(*) from remote_call") == 0


def test_a_call_confirmed_after_its_clean_up_is_an_asset_again(house: House) -> None:
    turn = house.claim(house.start())
    house.store.intend(turn, "job", "thing", leaves_asset=True)

    house.store.note_cleaned(call_of(turn))
    assert house.store.assets(turn.lane_id) == []
    house.store.confirm(call_of(turn), "late")

    assert house.value("select cleaned_at is null from remote_call")


def test_the_key_of_a_call_is_stable_within_an_epoch_and_new_in_the_next(house: House) -> None:
    run_id = new_id()

    assert idempotency_key(run_id, 1, "job") == idempotency_key(run_id, 1, "job")
    assert idempotency_key(run_id, 1, "job") != idempotency_key(run_id, 2, "job")
    assert len(idempotency_key(run_id, 1, "job")) == 32


def test_a_clean_up_lane_sees_only_what_was_there_when_it_was_born(house: House) -> None:
    run_id = house.start()
    turn = house.claim(run_id)
    for key in ("before", "after"):
        house.store.intend(turn, key, "thing", leaves_asset=True)
    house.store.intend(turn, "nothing left", "thing", leaves_asset=False)
    house.sql("update remote_call set intended_at = now() + interval '1 s' where key = 'after'")
    house.sql("update remote_call set confirmed_at = now()")
    with house.store.begin(ALICE) as tx:
        run = tx.lock_run(run_id, ALICE)
        assert run is not None
        tx.insert_lanes(run, [(new_id(), NewLane(key="cleanup", holds_run=False))], 17)

    assert house.store.assets(house.lane(run_id, "cleanup").id) == [call_of(turn, "before")]


def test_a_call_that_may_still_be_under_way_is_not_cleaned(house: House) -> None:
    run_id = house.start()
    turn = house.claim(run_id)
    house.store.intend(turn, "under way", "thing", leaves_asset=True)
    house.sql("update lane set status = 'done', claim_token = null, lease_until = null")
    house.sql("update run set status = 'succeeded', finished_at = now()")

    assert house.store.leaked_assets(10, 0) == []
    house.sql("update remote_call set intended_at = now() - interval '17 min'")
    assert [call for call, _ in house.store.leaked_assets(10, 0)] == [call_of(turn, "under way")]


def leaking(house: House, finished: str = "2 hours", **params: Any) -> UUID:
    """An ended run that left an asset outside."""
    run_id = house.start(target=1, assets=["l0"], leaks=True, **params)
    house.take_turn(run_id)
    house.sql(f"update run set finished_at = now() - interval '{finished}' where id = :id", id=run_id)
    return run_id


def test_assets_of_runs_that_ended_a_while_ago_are_leaked(house: House) -> None:
    old, _young = leaking(house), leaking(house, "10 minutes")
    working = leaking(house)
    house.set_lane(working, "l0", "status = 'active'")
    open_run = house.start(assets=["l0"])
    house.take_turn(open_run)

    assert [call.run_id for call, _ in house.store.leaked_assets(10, 3600)] == [old]
    assert len(house.store.leaked_assets(1, 0)) == 1, "no more than asked for"


def test_a_sweep_cleans_leaked_assets_and_notes_it(house: House) -> None:
    leaking(house)
    assert len(house.world.things) == 1

    done = sweep(house.ports, house.kinds, {})

    assert (done, house.world.things) == ({"assets": 1}, {})
    assert sweep(house.ports, house.kinds, {}) == {"assets": 0}


@pytest.mark.parametrize("looks", [0, 1])
def test_a_call_that_was_confirmed_meanwhile_is_not_called_again(house: House, looks: int) -> None:
    """Whoever made it was slow to say so: nobody may make a second one because he had looked before that."""
    turn = house.claim(house.start())
    house.store.intend(turn, "job", "order", leaves_asset=False)
    assert house.store.note_look(turn, "job", 1)
    house.store.confirm(call_of(turn), "the first")

    assert not house.store.note_look(turn, "job", looks)
    house.store.confirm(call_of(turn), "a second")
    found = house.store.intend(turn, "job", "order", leaves_asset=False)
    assert found is not None
    assert (found.confirmed, found.remote_id) == (True, "the first")


def test_a_call_made_again_after_its_clean_up_is_looked_for_from_the_start(house: House) -> None:
    turn = house.claim(house.start())
    house.store.intend(turn, "job", "order", leaves_asset=True)
    assert house.store.note_look(turn, "job", 2)
    house.store.note_cleaned(call_of(turn))

    again = house.store.intend(turn, "job", "order", leaves_asset=True)
    later = house.store.intend(turn, "job", "order", leaves_asset=True)

    assert again is not None
    assert later is not None
    assert (again.fresh, later.fresh, later.looks, later.looked_s) == (True, False, 0, None)


# Retention.

AGED = {
    "answered": "insert into answered (tenant_id, actor, key, request_hash, at) values (:t, :id, :n, '', {at})",
    "pace_decision": """insert into pace_decision (tenant_id, account, domain, window_no, rate_before, rate_after, reason, seen, at)
        values (:t, :id, 'd', cast(:n as int), 1, 1, 'grow', '{{}}', {at})""",
    "repair": "insert into repair (lane_id, tenant_id, why, at) values (:id, :t, 'unsent' || :n, {at})",
    "pulse": "insert into pulse values (:t, {at}, :id || '-' || :n, 1, 0, 1)",
    "hearing": "insert into hearing (signal_id, listener, tenant_id, at, due_at) values (cast(:n as int), :id, :t, {at}, now())",
    "signal": "insert into signal (tenant_id, name, payload, at) values (:t, :id || '-' || :n, '{{}}', {at})",
}


def test_every_table_with_a_retention_can_be_pruned() -> None:
    assert set(RETENTION_DAYS) == {*AGED, "step", "run"}


@pytest.mark.parametrize("table", list(AGED))
def test_old_rows_go_in_batches_and_young_rows_stay(house: House, table: str) -> None:
    days = RETENTION_DAYS[table]
    for n in range(5):
        age = days - 1 if n < 2 else days + 1
        statement = AGED[table].format(at=f"now() - interval '{age} days'")
        house.sql(
            f"{statement}",
            id=new_id() if table == "repair" else str(new_id()),
            n=str(n),
            t=ALICE,
        )

    pruned = [house.store.prune(table, days, 2) for _ in range(3)]

    assert pruned == [2, 1, 0]
    assert house.value(f"select count(*) from {table}") == 2


def finished(house: House, age: str, **params: Any) -> UUID:
    run_id = house.start(target=1, **params)
    house.take_turn(run_id)
    house.sql(f"update run set finished_at = now() - interval '{age}' where id = :id", id=run_id)
    return run_id


def rows_of(house: House, run_id: UUID) -> dict[str, int]:
    """How many rows of each table belong to a run."""
    counts = {
        table: house.value(f"select count(*) from {table} where {column} = :id", id=run_id)
        for table, column in (("run", "id"), ("lane", "run_id"), ("history", "run_id"), ("remote_call", "run_id"))
    }
    return counts | {"step": house.value("select count(*) from step where lane_id = :id", id=LANES[run_id])}


def prune_runs(house: House, most: int = 10) -> int:
    """How many runs go when the batches are asked for until nothing is left to do."""
    gone = 0
    while (batch := house.store.prune_runs([], RETENTION_DAYS["run"], most)).rows or batch.runs:
        gone += batch.runs
    return gone


LANES: dict[UUID, UUID] = {}


def test_an_old_run_leaves_with_all_that_belongs_to_it(house: House) -> None:
    old, young = finished(house, "91 days", assets=["l0"], leaks=True), finished(house, "89 days")
    house.sql("update remote_call set cleaned_at = now()")
    LANES.update({run_id: house.lane(run_id).id for run_id in (old, young)})
    assert min(rows_of(house, old).values()) == 1

    assert prune_runs(house) == 1

    assert set(rows_of(house, old).values()) == {0}
    assert {table for table, count in rows_of(house, young).items() if count} == {"run", "lane", "history", "step"}


def test_a_run_with_an_active_lane_or_an_asset_outside_stays(house: House) -> None:
    working, leaky = finished(house, "91 days"), finished(house, "91 days", assets=["l0"], leaks=True)
    house.set_lane(working, "l0", "status = 'active', holds_run = false")

    assert house.store.prune_runs([], RETENTION_DAYS["run"], 10) == PrunedRuns(0, 0, [])
    assert (house.run(working).id, house.run(leaky).id) == (working, leaky)


def test_an_open_run_stays_however_old_it_is(house: House) -> None:
    run_id = house.start()
    house.sql("update run set created_at = now() - interval '400 days'")

    assert house.store.prune_runs([], RETENTION_DAYS["run"], 10) == PrunedRuns(0, 0, [])
    assert house.run(run_id).id == run_id


def test_old_runs_go_in_batches_oldest_first(house: House) -> None:
    runs_by_age = [finished(house, f"{days} days") for days in (200, 100, 150)]

    house.store.prune_runs([], 90, 2)

    leaving = house.sql("select id from run where leaving_since is not null order by finished_at")
    assert [row.id for row in leaving] == [runs_by_age[0], runs_by_age[2]]
    assert prune_runs(house) == 3
