"""Guards the store's statements one by one: what each writes, what it leaves alone, and at which second it changes its mind."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from pg8000.exceptions import DatabaseError

from shared.kernel import run as runs
from shared.kernel.baton import Baton
from shared.kernel.clock import new_id
from shared.kernel.db import sqlstate
from shared.kernel.model import (
    Due,
    Effect,
    Ending,
    GateClosing,
    GatePass,
    LaneChange,
    LaneStatus,
    NewLane,
    NoTurn,
    Problem,
    RunStatus,
    Statement,
    StepOutcome,
    Turn,
)
from tests.support.house import ALICE, BOB, House
from tests.support.tally import ADD

MOVED = LaneChange(status=LaneStatus.ACTIVE, outcome=StepOutcome.MOVED, attempts=0, cursor={"n": 1}, spent=1)
PROBLEM = Problem("broken", "it broke at 17")


def commit(house: House, turn: Turn, change: LaneChange) -> Any:
    return house.store.commit_turn(turn, change, 5)


def seconds_from_now(house: House, run_id: UUID, column: str, key: str = "l0") -> Any:
    """Equal to what was written up to four seconds ago: a busy machine takes its time to look."""
    statement = f"select extract(epoch from {column} - now()) from lane where run_id = :id and key = :key"
    value = house.value(statement, id=run_id, key=key)
    return None if value is None else pytest.approx(float(value) + 2, abs=2.5)


# Claim.


def test_a_claim_takes_the_turn_with_everything_a_step_may_know(house: House) -> None:
    run_id = house.start(target=7)
    baton, token = house.baton(run_id), new_id()

    turn = house.store.claim(baton, token, 70)

    assert isinstance(turn, Turn)
    assert (turn.run_id, turn.tenant_id, turn.kind, turn.key) == (run_id, ALICE, "tally", "l0")
    assert (turn.epoch, turn.seq, turn.resend_no, turn.claims, turn.attempts, turn.steps) == (1, 0, 0, 1, 0, 0)
    assert (turn.cursor, turn.params["target"], turn.token) == ({"n": 0}, 7, token)
    assert (turn.run_status, turn.run_epoch, turn.holds_run, turn.cancel_at) == (RunStatus.QUEUED, 1, True, None)
    assert seconds_from_now(house, run_id, "lease_until") == 70


def test_the_same_token_may_claim_twice_and_counts_once(house: House) -> None:
    baton, token = house.baton(run_id := house.start()), new_id()

    turns = [house.store.claim(baton, token, 70) for _ in range(2)]

    assert [turn.claims for turn in turns if isinstance(turn, Turn)] == [1, 1]
    assert house.lane(run_id).claims == 1


def test_a_claim_after_the_lease_ran_out_counts_again(house: House) -> None:
    run_id = house.start()
    house.claim(run_id)
    house.expire_lease(run_id)

    assert house.claim(run_id).claims == 2


def test_a_claim_begins_the_patience_of_the_tick_anew_and_never_moves_its_look_later(house: House) -> None:
    run_id = house.start()
    house.set_lane(run_id, "l0", "resends = 4, check_at = now() + interval '1 hour'")

    house.claim(run_id)

    assert house.lane(run_id).resends == 0
    assert seconds_from_now(house, run_id, "check_at") == 130
    house.set_lane(run_id, "l0", "claim_token = null, lease_until = null, check_at = now() + interval '5 s'")
    house.claim(run_id)
    assert seconds_from_now(house, run_id, "check_at") == 5


def unknown(house: House, run_id: UUID, baton: Baton) -> Baton:
    return baton.model_copy(update={"lane_id": new_id()})


def of_another_kind(house: House, run_id: UUID, baton: Baton) -> Baton:
    return baton.model_copy(update={"kind": "pages"})


def stale(house: House, run_id: UUID, baton: Baton) -> Baton:
    house.set_lane(run_id, "l0", "seq = seq + 1")
    return baton


def of_an_old_epoch(house: House, run_id: UUID, baton: Baton) -> Baton:
    house.set_lane(run_id, "l0", "epoch = epoch + 1")
    return baton.model_copy(update={"seq": 99})


def ahead(house: House, run_id: UUID, baton: Baton) -> Baton:
    return baton.model_copy(update={"seq": baton.seq + 1})


def of_a_later_epoch(house: House, run_id: UUID, baton: Baton) -> Baton:
    return baton.model_copy(update={"epoch": baton.epoch + 1})


def ended(house: House, run_id: UUID, baton: Baton) -> Baton:
    house.set_lane(run_id, "l0", "status = 'done'")
    return baton


def paused(house: House, run_id: UUID, baton: Baton) -> Baton:
    runs.pause_run(house.ports, ALICE, run_id)
    return baton


def early(house: House, run_id: UUID, baton: Baton) -> Baton:
    house.set_lane(run_id, "l0", "next_due_at = now() + interval '3 s'")
    return baton


def twin(house: House, run_id: UUID, baton: Baton) -> Baton:
    house.claim(run_id)
    return baton


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (unknown, NoTurn.UNKNOWN),
        (of_another_kind, NoTurn.UNKNOWN),
        (stale, NoTurn.STALE),
        (of_an_old_epoch, NoTurn.STALE),
        (ahead, NoTurn.AHEAD),
        (of_a_later_epoch, NoTurn.AHEAD),
        (ended, NoTurn.ENDED),
        (paused, NoTurn.PAUSED),
        (early, NoTurn.EARLY),
        (twin, NoTurn.TWIN),
    ],
)
def test_a_refused_claim_says_why_and_changes_nothing(house: House, prepare: Any, reason: NoTurn) -> None:
    run_id = house.start()
    baton = prepare(house, run_id, house.baton(run_id))
    before = house.lane(run_id)

    assert house.store.claim(baton, new_id(), 70) is reason
    assert house.lane(run_id) == before


def test_every_reason_for_a_refusal_is_tried_above() -> None:
    tried = {NoTurn(name) for name in ("unknown", "stale", "ahead", "ended", "paused", "early", "twin")}

    assert tried == set(NoTurn)


def test_a_baton_may_come_a_second_before_its_time(house: House) -> None:
    run_id = house.start()
    house.set_lane(run_id, "l0", "next_due_at = now() + interval '0.9 s'")

    assert house.claim(run_id).claims == 1


def test_a_copy_with_an_old_resend_number_still_takes_the_turn(house: House) -> None:
    run_id = house.start()
    copy = house.baton(run_id)
    house.set_lane(run_id, "l0", "resend_no = 3")

    turn = house.store.claim(copy, new_id(), 70)

    assert isinstance(turn, Turn)
    assert turn.resend_no == 3


def test_a_lane_being_canceled_takes_its_turn_though_the_run_is_paused(house: House) -> None:
    run_id = house.start()
    runs.pause_run(house.ports, ALICE, run_id)
    house.set_lane(run_id, "l0", "cancel_at = now()")

    assert house.claim(run_id).cancel_at is not None


# Commit.


@pytest.mark.parametrize(
    ("delay_s", "sent", "check_s"),
    [(0, True, 90), (1.5, True, 92), (900, True, 990), (900.5, False, 780), (86_400, False, 86_280)],
)
def test_a_commit_is_sent_up_to_900_seconds_and_looked_at_in_time(
    house: House, delay_s: float, sent: bool, check_s: float
) -> None:
    run_id = house.start()
    turn = house.claim(run_id)
    house.set_lane(run_id, "l0", "check_at = 'infinity'")

    due = commit(house, turn, replace(MOVED, delay_s=delay_s))

    assert due.delay_s == pytest.approx(delay_s, abs=0.01)
    assert due.baton == Baton(kind="tally", lane_id=turn.lane_id, epoch=1, seq=1, resend_no=0)
    assert (house.lane(run_id).sent_at is not None) is sent
    assert seconds_from_now(house, run_id, "check_at") == check_s
    assert seconds_from_now(house, run_id, "next_due_at") == delay_s


def test_a_commit_never_moves_the_look_of_the_tick_later(house: House) -> None:
    run_id = house.start()
    turn = house.claim(run_id)
    house.set_lane(run_id, "l0", "check_at = now() + interval '7 s'")

    commit(house, turn, replace(MOVED, delay_s=600))

    assert seconds_from_now(house, run_id, "check_at") == 7


@pytest.mark.parametrize("delay_s", [0, 600, 5000])
def test_a_commit_of_a_lane_being_canceled_is_due_at_once(house: House, delay_s: float) -> None:
    run_id = house.start()
    turn = house.claim(run_id)
    house.set_lane(run_id, "l0", "cancel_at = now(), check_at = 'infinity'")

    due = commit(house, turn, replace(MOVED, delay_s=delay_s))

    assert due.delay_s == 0
    assert house.lane(run_id).sent_at is not None
    assert seconds_from_now(house, run_id, "check_at") == 90


def test_a_dead_letter_does_not_hide_what_ended_its_lane(house: House) -> None:
    """A deadline closes a lane without a step, so its last message still names its place."""
    run_id = house.start()
    baton = house.baton(run_id)
    with house.store.begin(None) as tx:
        tx.fail_open_lanes(run_id, PROBLEM)

    assert not house.store.note_dead_letter(baton, Problem("dead_letter", "it was given up"))
    assert house.lane(run_id).last_error["code"] == PROBLEM.code


def test_what_needs_no_delay_queue_is_looked_at_though_that_takes_nothing(house: House) -> None:
    due, later, out_of_time = (house.start() for _ in range(3))
    for run_id in (later, out_of_time):
        house.set_lane(run_id, "l0", "next_due_at = now() + interval '10 min'")
    house.set_lane(out_of_time, "l0", "deadline_at = now() - interval '1 s'")
    house.sql("update lane set check_at = now() - interval '1 s'")

    with house.store.begin(None) as tx:
        places = tx.lock_due_lanes(10, but_delayed=True)

    assert {place.id for place in places} == {house.lane(run_id).id for run_id in (due, out_of_time)}


def test_opening_a_gate_wakes_what_waits_for_it_and_nothing_else(house: House) -> None:
    waits, paused, at_work, elsewhere = (house.start_running() for _ in range(4))
    theirs = house.start_running(BOB)
    house.claim(at_work)
    for run_id in (waits, paused, at_work, elsewhere, theirs):
        gate = "other" if run_id == elsewhere else "upstream"
        house.set_lane(run_id, "l0", f"waits_for = 'gate:{gate}', next_due_at = now() + interval '1 hour'")
    house.sql("update run set paused_at = now() where id = :id", id=paused)

    with house.store.begin(None) as tx:
        woken = tx.wake_waiting(ALICE, "upstream")

    assert [due.baton for due in woken] == [house.baton(waits)]
    assert seconds_from_now(house, waits, "next_due_at") == 0
    for run_id in (paused, at_work, elsewhere, theirs):
        assert (house.baton(run_id).resend_no, seconds_from_now(house, run_id, "next_due_at")) == (0, 3600)


def test_a_commit_frees_the_lane_and_writes_the_ledger(house: House) -> None:
    run_id = house.start()
    turn = house.claim(run_id)

    commit(house, turn, replace(MOVED, rows=3, attempts=2, problem=PROBLEM))

    lane = house.lane(run_id)
    assert (lane.seq, lane.steps, lane.claims, lane.claim_token, lane.lease_until) == (1, 1, 0, None, None)
    assert (lane.attempts, lane.cursor, lane.last_error["code"]) == (2, {"n": 1}, "broken")
    (step,) = house.sql("select * from step where lane_id = :id", id=turn.lane_id)
    assert (step.epoch, step.seq, step.outcome, step.rows, step.ms, step.tenant_id) == (1, 0, "moved", 3, 5, ALICE)


def test_a_wait_without_a_cursor_keeps_the_place_and_spends_no_step(house: House) -> None:
    run_id = house.start()

    commit(house, house.claim(run_id), replace(MOVED, outcome=StepOutcome.WAITED, cursor=None, spent=0))

    lane = house.lane(run_id)
    assert (lane.seq, lane.steps, lane.cursor) == (1, 0, {"n": 0})


@pytest.mark.parametrize(
    "foreign", [{"token": UUID(int=1)}, {"seq": 5}, {"epoch": 5}, {"lane_id": UUID(int=1)}], ids=str
)
def test_a_commit_that_is_not_the_holders_writes_nothing_at_all(house: House, foreign: dict[str, Any]) -> None:
    run_id = house.start()
    turn = house.claim(run_id)
    before = house.lane(run_id)

    assert commit(house, replace(turn, **foreign), replace(MOVED, effects=[Effect(ADD, {"n": 0})])) is None
    assert house.lane(run_id) == before
    assert (house.tally(run_id), house.ledger(run_id)) == ([], [])


def test_an_ended_lane_takes_no_commit(house: House) -> None:
    run_id = house.start()
    turn = house.claim(run_id)
    with house.store.begin(ALICE) as tx:
        tx.fail_open_lanes(run_id, PROBLEM)

    assert commit(house, turn, MOVED) is None
    lane = house.lane(run_id)
    assert (lane.status, lane.claim_token, lane.seq, lane.last_error["code"]) == ("failed", None, 0, "broken")


def test_effects_commit_with_the_step(house: House) -> None:
    run_id = house.start()
    again = Statement("tally.again", ADD.sql.replace(":n", ":m"))

    commit(house, house.claim(run_id), replace(MOVED, effects=[Effect(ADD, {"n": 4}), Effect(again, {"m": 5})]))

    assert house.tally(run_id) == [4, 5]


def test_an_effect_sees_the_turn_being_committed(house: House) -> None:
    run_id = house.start()
    sees = Statement(
        "tally.sees",
        """insert into tally (tenant_id, run_id, lane, n, canary)
           select tenant_id, run_id, key, seq, concat_ws('/', kind, epoch, id) from turn where :yes = 1""",
    )

    turn = house.claim(run_id)
    commit(house, turn, replace(MOVED, effects=[Effect(sees, {"yes": 1})]))

    (row,) = house.sql("select * from tally")
    assert (row.tenant_id, row.run_id, row.lane, row.n) == (ALICE, run_id, "l0", 0)
    assert row.canary == f"tally/1/{turn.lane_id}"


@pytest.mark.parametrize("name", ["token", "lane_id", "cursor", "rows", "delay"])
def test_an_effect_may_not_use_a_name_of_the_relay(house: House, name: str) -> None:
    run_id = house.start()
    turn = house.claim(run_id)

    with pytest.raises(ValueError, match=rf"tally\.add uses names that belong to the relay: .*{name}"):
        commit(house, turn, replace(MOVED, effects=[Effect(ADD, {"n": 1, name: "x"})]))
    assert house.lane(run_id).seq == 0


def test_two_effects_may_not_share_a_name(house: House) -> None:
    """Else the second value would silently replace the first."""
    run_id = house.start()
    turn = house.claim(run_id)

    with pytest.raises(ValueError, match=r"tally\.add"):
        commit(house, turn, replace(MOVED, effects=[Effect(ADD, {"n": 1}), Effect(ADD, {"n": 2})]))


def test_a_failed_effect_takes_the_whole_commit_with_it(house: House) -> None:
    run_id = house.start()
    turn = house.claim(run_id)

    with pytest.raises(DatabaseError):
        commit(house, turn, replace(MOVED, effects=[Effect(ADD, {"n": "not a number"})]))
    assert (house.lane(run_id).seq, house.ledger(run_id)) == (0, [])


def test_a_released_lane_is_free_and_only_its_own_claim_is_uncounted(house: House) -> None:
    run_id = house.start()
    house.claim(run_id)
    house.expire_lease(run_id)
    baton, turn = house.baton(run_id), house.claim(run_id)
    assert turn.claims == 2

    house.store.release(baton, new_id())
    assert house.lane(run_id).claim_token == turn.token, "only the holder gives a lane back"
    house.store.release(baton, turn.token)

    lane = house.lane(run_id)
    assert (lane.claim_token, lane.lease_until, lane.claims) == (None, None, 1)


def test_what_is_to_follow_a_commit_follows_nothing_else(house: House) -> None:
    done: list[str] = []
    with suppress(ValueError), house.store.begin(ALICE) as tx:
        tx.after_commit(lambda: done.append("taken back"))
        raise ValueError
    with house.store.begin(ALICE) as tx:
        tx.after_commit(lambda: done.append("committed"))
        assert done == []
    assert done == ["committed"]


def test_the_state_of_a_lane_tells_its_current_baton(house: House) -> None:
    run_id = house.start()
    turn = house.claim(run_id)

    state = house.store.lane_state(turn.lane_id)
    assert state is not None
    assert (state.epoch, state.seq, state.status, state.claim_token) == (1, 0, LaneStatus.ACTIVE, turn.token)
    assert (state.due.baton, state.due.delay_s) == (house.baton(run_id), 0)
    assert house.store.lane_state(new_id()) is None


# Sent and unsent.

INEXACT = [{"epoch": 2}, {"seq": 1}, {"resend_no": 1}]


@pytest.mark.parametrize("difference", INEXACT, ids=str)
def test_only_the_exact_baton_is_marked(house: House, difference: dict[str, int]) -> None:
    run_id = house.start()
    other = house.baton(run_id).model_copy(update=difference)

    before = house.lane(run_id)
    house.store.mark_unsent([Due(other, ALICE, 0.0)])
    assert house.lane(run_id) == before
    house.set_lane(run_id, "l0", "sent_at = null")
    house.store.mark_sent([Due(other, ALICE, 0.0)])
    assert house.lane(run_id).sent_at is None


def test_an_unsent_baton_is_looked_at_two_minutes_before_it_is_due(house: House) -> None:
    run_id = house.start()
    house.set_lane(run_id, "l0", "next_due_at = now() + interval '600 s', check_at = now() + interval '690 s'")

    house.store.mark_unsent([house.due(run_id)])

    assert house.lane(run_id).sent_at is None
    assert seconds_from_now(house, run_id, "check_at") == 480


def test_marking_never_moves_the_look_of_the_tick_later(house: House) -> None:
    run_id = house.start()
    house.set_lane(run_id, "l0", "next_due_at = now() + interval '600 s', check_at = now()")

    house.store.mark_unsent([house.due(run_id)])
    assert seconds_from_now(house, run_id, "check_at") == 0
    house.store.mark_sent([house.due(run_id)])
    assert house.lane(run_id).sent_at is not None
    assert seconds_from_now(house, run_id, "check_at") == 0


def test_a_baton_that_was_sent_keeps_the_time_of_its_first_sending(house: House) -> None:
    run_id = house.start()
    house.set_lane(run_id, "l0", "sent_at = '2020-01-01Z'")

    house.store.mark_sent([house.due(run_id)])

    assert house.lane(run_id).sent_at.year == 2020


def test_an_ended_lane_is_not_marked(house: House) -> None:
    run_id = house.start()
    house.set_lane(run_id, "l0", "status = 'done'")

    house.store.mark_unsent([house.due(run_id)])

    assert house.lane(run_id).sent_at is not None


# Runs and lanes.


@pytest.mark.parametrize(
    ("delay_s", "limit_s", "sent", "check_s"),
    [(0, 800, True, 90), (900, 1000, True, 990), (900.5, 800, False, 780), (900.5, 60, False, 60), (0, 60, True, 60)],
)
def test_new_lanes_are_sent_up_to_900_seconds_and_looked_at_by_their_deadline(
    house: House, delay_s: float, limit_s: int, sent: bool, check_s: float
) -> None:
    run_id = house.start()
    with house.store.begin(ALICE) as tx:
        run = tx.lock_run(run_id, ALICE)
        assert run is not None
        (due,) = tx.insert_lanes(run, [(new_id(), NewLane(key="x", delay_s=delay_s, time_limit_s=limit_s))], 17)

    lane = house.lane(run_id, "x")
    assert due.delay_s == pytest.approx(delay_s)
    assert (lane.sent_at is not None, lane.max_steps, lane.cancel_at) == (sent, 17, None)
    assert (lane.deadline_at - lane.created_at).total_seconds() == limit_s
    assert seconds_from_now(house, run_id, "check_at", "x") == check_s


def test_lanes_born_while_the_run_is_canceled_are_canceled_unless_they_clean_up(house: House) -> None:
    run_id = house.start()
    runs.cancel_run(house.ports, house.kind, ALICE, run_id)
    new = [NewLane(key="works", delay_s=5000), NewLane(key="cleans", holds_run=False, delay_s=5000)]

    with house.store.begin(ALICE) as tx:
        run = tx.lock_run(run_id, ALICE)
        assert run is not None
        tx.insert_lanes(run, [(new_id(), lane) for lane in new], 17)

    works, cleans = house.lane(run_id, "works"), house.lane(run_id, "cleans")
    assert works.cancel_at is not None
    assert works.sent_at is not None
    assert seconds_from_now(house, run_id, "next_due_at", "works") == 0
    assert (cleans.cancel_at, cleans.sent_at) == (None, None)
    assert seconds_from_now(house, run_id, "next_due_at", "cleans") == 5000


def test_a_run_is_looked_at_by_its_deadline_or_after_a_day(house: House) -> None:
    soon, late, never = house.start(time_limit_s=60), house.start(time_limit_s=100_000), house.start()

    ages = "select round(extract(epoch from check_at - created_at)) from run where id = :id"
    assert [int(house.value(ages, id=run_id)) for run_id in (soon, late, never)] == [60, 86_400, 86_400]
    assert house.run(never).deadline_at is None


def test_another_tenants_run_is_not_locked(house: House) -> None:
    run_id = house.start(ALICE)

    with house.store.begin(BOB) as tx:
        assert tx.lock_run(run_id, BOB) is None


def test_a_run_ends_once(house: House) -> None:
    run_id = house.start()
    with house.store.begin(ALICE) as tx:
        run = tx.lock_run(run_id, ALICE)
        assert run is not None
        assert tx.end_run(run, Ending(RunStatus.FAILED, "broken", PROBLEM))
        assert not tx.end_run(run, Ending(RunStatus.SUCCEEDED, "done"))
        assert not tx.mark_running(run)

    ended = house.run(run_id)
    assert (ended.status, ended.outcome, ended.error["code"]) == ("failed", "broken", "broken")


def test_only_lanes_that_hold_the_run_keep_it_open(house: House) -> None:
    run_id = house.start(lanes=2)
    with house.store.begin(ALICE) as tx:
        assert tx.has_open_lanes(run_id)
    house.set_lane(run_id, "l0", "status = 'done'")
    house.set_lane(run_id, "l1", "holds_run = false")
    with house.store.begin(ALICE) as tx:
        assert not tx.has_open_lanes(run_id)
        assert [(lane.key, lane.status) for lane in tx.lanes(run_id)] == [("l0", "done"), ("l1", "active")]


def test_history_is_numbered_without_gaps_also_after_a_rollback(house: House) -> None:
    run_id = house.start()

    def line(type_: str, *, fail: bool = False) -> None:
        with house.store.begin(ALICE) as tx:
            run = tx.lock_run(run_id, ALICE)
            assert run is not None
            tx.add_history(run, type_, {"why": "test"})
            if fail:
                raise LookupError

    line("one")
    with pytest.raises(LookupError):
        line("lost", fail=True)
    line("two")

    rows = house.sql("select n, type, epoch, tenant_id from history where run_id = :id order by n", id=run_id)
    assert [(row.n, row.type) for row in rows] == [(1, "accepted"), (2, "one"), (3, "two")]
    assert {(row.epoch, row.tenant_id) for row in rows} == {(1, ALICE)}


def test_one_epoch_takes_one_terminal_line(house: House) -> None:
    run_id = house.start()

    def line(type_: str) -> None:
        with house.store.begin(ALICE) as tx:
            run = tx.lock_run(run_id, ALICE)
            assert run is not None
            tx.add_history(run, type_, {})

    line("succeeded")
    with pytest.raises(DatabaseError) as caught:
        line("failed")
    assert sqlstate(caught.value) == "23505"


# What operators do.


def test_a_cancel_makes_every_holding_lane_due_now_in_a_new_copy(house: House) -> None:
    run_id = house.start(lanes=2, delays=[600])
    house.take_turn(run_id, "l0")
    house.set_lane(run_id, "l0", "resends = 7")
    house.set_lane(run_id, "l1", "holds_run = false")
    before = house.lane(run_id, "l1")

    with house.store.begin(ALICE) as tx:
        dues = tx.cancel_lanes(run_id)

    lane = house.lane(run_id, "l0")
    assert [(due.baton, due.delay_s) for due in dues] == [(house.baton(run_id, "l0"), 0)]
    assert (lane.resend_no, lane.resends, lane.sent_at) == (1, 0, None)
    assert lane.cancel_at is not None
    assert house.lane(run_id, "l1") == before


def test_a_cancel_ends_the_pause(house: House) -> None:
    run_id = house.start()
    runs.pause_run(house.ports, ALICE, run_id)

    runs.cancel_run(house.ports, house.kind, ALICE, run_id)

    run = house.run(run_id)
    assert (run.paused_at, run.cancel_requested_at is not None) == (None, True)


def test_a_resume_keeps_due_times_and_moves_deadlines_by_the_paused_time(house: House) -> None:
    run_id = house.start(delays=[600], time_limit_s=1000)
    house.take_turn(run_id)
    house.set_lane(run_id, "l0", "deadline_at = now() + interval '500 s', resends = 3")
    runs.pause_run(house.ports, ALICE, run_id)
    house.sql("update run set paused_at = paused_at - interval '300 s' where id = :id", id=run_id)
    run, lane = house.run(run_id), house.lane(run_id)

    runs.resume_run(house.ports, ALICE, run_id)

    resumed, freed = house.run(run_id), house.lane(run_id)
    assert resumed.paused_at is None
    assert about(resumed.deadline_at - run.deadline_at, 300)
    assert about(freed.deadline_at - lane.deadline_at, 300)
    assert freed.next_due_at == lane.next_due_at
    assert (freed.resend_no, freed.resends) == (lane.resend_no + 1, 0)
    assert seconds_from_now(house, run_id, "check_at") == 0


def about(span: timedelta, seconds: float) -> bool:
    return abs(span.total_seconds() - seconds) < 5


def test_a_resume_without_a_deadline_sets_none(house: House) -> None:
    run_id = house.start()
    runs.pause_run(house.ports, ALICE, run_id)

    runs.resume_run(house.ports, ALICE, run_id)

    assert (house.run(run_id).deadline_at, house.lane(run_id).deadline_at) == (None, None)
    assert house.value("select check_at > now() + interval '3590 s' from run where id = :id", id=run_id)


def test_a_resume_finds_parked_lanes(house: House) -> None:
    run_id = house.start()
    runs.pause_run(house.ports, ALICE, run_id)
    house.set_lane(run_id, "l0", "check_at = 'infinity'")
    assert house.lane(run_id).parked

    runs.resume_run(house.ports, ALICE, run_id)

    assert not house.lane(run_id).parked


def test_a_reopened_run_begins_its_next_epoch_fresh(house: House) -> None:
    run_id = house.start(lanes=4, time_limit_s=100)
    runs.cancel_run(house.ports, house.kind, ALICE, run_id)
    house.sql("update run set status = 'failed', outcome = 'x', error = '{}', finished_at = now(), deadline_at = now()")
    worn = "attempts = 3, claims = 2, steps = 9, resend_no = 5, cursor = '{\"n\": 1}', deadline_at = now()"
    for key, status in (("l0", "failed"), ("l1", "canceled"), ("l2", "done")):
        house.set_lane(run_id, key, f"status = '{status}', cancel_at = now(), {worn}")
    house.set_lane(run_id, "l3", "status = 'failed', holds_run = false")

    with house.store.begin(ALICE) as tx:
        run = tx.lock_run(run_id, ALICE)
        assert run is not None
        reopened = tx.reopen_run(run)
        assert reopened is not None
        dues = tx.reopen_lanes(run_id)

    assert (reopened.status, reopened.epoch, reopened.outcome) == (RunStatus.RUNNING, 2, None)
    assert reopened.cancel_requested_at is None
    assert reopened.deadline_at is not None
    assert about(reopened.deadline_at - reopened.now, 100)
    assert {due.baton for due in dues} == {house.baton(run_id, "l0"), house.baton(run_id, "l1")}
    for key in ("l0", "l1"):
        lane = house.lane(run_id, key)
        assert (lane.status, lane.epoch, lane.resend_no, lane.cancel_at) == ("active", 2, 6, None)
        assert (lane.attempts, lane.claims, lane.steps, lane.resends, lane.cursor) == (0, 0, 0, 0, {"n": 1})
        assert lane.deadline_at is None, "a lane without a limit of its own has none"
    assert (house.lane(run_id, "l2").status, house.lane(run_id, "l3").status) == ("done", "failed")


def test_a_lane_with_a_limit_of_its_own_gets_it_again_when_it_is_reopened(house: House) -> None:
    run_id = house.start()
    house.set_lane(run_id, "l0", "status = 'failed', time_limit_s = 50, deadline_at = now() - interval '1 day'")

    with house.store.begin(ALICE) as tx:
        tx.reopen_lanes(run_id)

    assert seconds_from_now(house, run_id, "deadline_at") == 50


@pytest.mark.parametrize(("cursor", "expected"), [(None, {"n": 1}), ({"n": 0}, {"n": 0})])
@pytest.mark.parametrize("status", ["active", "done", "failed", "canceled"])
def test_a_restarted_lane_begins_a_new_epoch_where_it_was_or_where_it_is_told(
    house: House, cursor: dict[str, int] | None, expected: dict[str, int], status: str
) -> None:
    run_id = house.start(lanes=2)
    house.set_lane(run_id, "l0", f"status = '{status}', cursor = '{{\"n\": 1}}', steps = 5, attempts = 2, seq = 4")

    runs.restart_lane(house.ports, ALICE, house.lane(run_id).id, cursor)

    lane = house.lane(run_id)
    assert (lane.status, lane.epoch, lane.seq, lane.cursor) == ("active", 2, 4, expected)
    assert (lane.steps, lane.attempts, lane.resend_no) == (0, 0, 1)
    assert house.history(run_id)[-1] == "lane_restarted"


def test_a_woken_lane_is_due_now_in_a_new_copy(house: House) -> None:
    run_id = house.start(delays=[5000])
    house.take_turn(run_id)

    runs.wake_lane(house.ports, ALICE, house.lane(run_id).id)

    lane = house.lane(run_id)
    assert seconds_from_now(house, run_id, "next_due_at") == 0
    assert (lane.epoch, lane.seq, lane.resend_no) == (1, 1, 1)
    assert house.baton(run_id).to_json() in house.waiting()


def test_an_ended_lane_cannot_be_woken(house: House) -> None:
    run_id = house.start(lanes=2, target=1)
    house.take_turn(run_id)

    with house.store.begin(ALICE) as tx:
        assert tx.wake_lane(house.lane(run_id).id) is None


# Dead letters.


def test_a_dead_letter_is_noted_on_its_current_baton(house: House) -> None:
    run_id = house.start()
    before = house.lane(run_id)

    assert house.store.note_dead_letter(house.baton(run_id), PROBLEM)

    lane = house.lane(run_id)
    assert lane.last_error["code"] == "broken"
    assert (lane.status, lane.seq, lane.check_at, lane.sent_at) == ("active", 0, before.check_at, before.sent_at)
    assert house.repairs(run_id) == ["dead_letter"]


@pytest.mark.parametrize("difference", [{"epoch": 1}, {"epoch": 3}, {"seq": 4}, {"seq": 6}, {"kind": "pages"}], ids=str)
def test_a_dead_letter_of_another_baton_is_not(house: House, difference: dict[str, Any]) -> None:
    """Neither one of an earlier turn nor one that cannot be yet."""
    run_id = house.start()
    house.set_lane(run_id, "l0", "epoch = 2, seq = 5")

    assert not house.store.note_dead_letter(house.baton(run_id).model_copy(update=difference), PROBLEM)
    assert (house.lane(run_id).last_error, house.repairs(run_id)) == (None, [])


# Gates.


def close(house: House, seconds: float, *, shared: bool = False, tenant: UUID = ALICE, key: str = "api") -> None:
    with house.store.begin(tenant) as tx:
        tx.close_gate(tenant, GateClosing(key=key, shared=shared, retry_after_s=seconds, reason="429"))


def let_it_pass(house: House) -> None:
    house.sql("update gate set until = now() - interval '1 s'")


def knock(house: House, turn: Turn, *keys: str) -> GatePass:
    return house.store.pass_gates(turn, keys or ("api",), 70)


@pytest.fixture
def turns(house: House) -> list[Turn]:
    """Two turns of one tenant, and one of another."""
    return [house.claim(house.start(tenant)) for tenant in (ALICE, ALICE, BOB)]


def test_an_unknown_gate_is_open(house: House, turns: list[Turn]) -> None:
    assert knock(house, turns[0]) == GatePass(None, frozenset())


def test_a_closed_gate_holds_its_tenant_back_and_no_other(house: House, turns: list[Turn]) -> None:
    close(house, 30)

    assert knock(house, turns[0]).wait_s == pytest.approx(30, abs=1)
    assert knock(house, turns[2]) == GatePass(None, frozenset())


def test_a_shared_gate_holds_everyone_back(house: House, turns: list[Turn]) -> None:
    close(house, 30, shared=True)

    assert all(knock(house, turn).wait_s is not None for turn in turns)
    assert house.value("select tenant_id from gate") is None


def test_a_gate_whose_time_has_come_lets_one_turn_through_as_its_probe(house: House, turns: list[Turn]) -> None:
    close(house, 30)
    let_it_pass(house)

    assert knock(house, turns[0]) == GatePass(None, frozenset({"api"}))
    assert knock(house, turns[1]).wait_s == pytest.approx(70, abs=1)
    assert knock(house, turns[0]) == GatePass(None, frozenset({"api"})), "the prober may ask again"


def test_no_probe_is_taken_while_another_gate_of_the_step_is_closed(house: House, turns: list[Turn]) -> None:
    close(house, 30, key="a")
    let_it_pass(house)
    close(house, 50, key="b")

    assert knock(house, turns[0], "a", "b").wait_s == pytest.approx(50, abs=1)
    assert house.value("select state from gate where key = 'a'") == "closed"


def test_a_step_may_probe_several_gates(house: House, turns: list[Turn]) -> None:
    for key in ("a", "b"):
        close(house, 30, key=key)
    let_it_pass(house)

    assert knock(house, turns[0], "a", "b") == GatePass(None, frozenset({"a", "b"}))


def test_twin_gates_of_one_key_are_probed_and_opened_together(house: House, turns: list[Turn]) -> None:
    """One of all tenants and one of this tenant: two rows, one key."""
    for shared in (True, False):
        close(house, 30, shared=shared)
    let_it_pass(house)

    assert knock(house, turns[0]) == GatePass(None, frozenset({"api"}))
    with house.store.begin(ALICE) as tx:
        tx.open_gates(ALICE, ["api"], turns[0].token)

    assert [row.state for row in house.sql("select state from gate")] == ["open", "open"]
    assert knock(house, turns[1]) == GatePass(None, frozenset())


def test_a_killed_prober_blocks_nobody_for_longer_than_its_lease(house: House, turns: list[Turn]) -> None:
    close(house, 30)
    let_it_pass(house)
    knock(house, turns[0])
    let_it_pass(house)

    assert knock(house, turns[1]) == GatePass(None, frozenset({"api"}))


def test_a_gate_is_never_closed_for_less_than_is_known(house: House, turns: list[Turn]) -> None:
    close(house, 100)
    close(house, 5)

    assert knock(house, turns[0]).wait_s == pytest.approx(100, abs=1)


def test_only_the_holder_of_the_probe_opens_or_closes_the_gate_again(house: House, turns: list[Turn]) -> None:
    close(house, 30)
    let_it_pass(house)
    prober, other = turns[0], turns[1]
    knock(house, prober)

    with house.store.begin(ALICE) as tx:
        tx.open_gates(ALICE, ["api"], other.token)
        tx.reclose_gates(ALICE, ["api"], other.token, 1)
    assert house.value("select holder from gate") == prober.token
    with house.store.begin(ALICE) as tx:
        tx.open_gates(ALICE, ["api"], prober.token)

    assert house.value("select state from gate") == "open"
    assert knock(house, other) == GatePass(None, frozenset())


def test_a_probe_that_failed_closes_its_gate_again(house: House, turns: list[Turn]) -> None:
    close(house, 30)
    let_it_pass(house)
    knock(house, turns[0])

    with house.store.begin(ALICE) as tx:
        tx.reclose_gates(ALICE, ["api"], turns[0].token, 20)

    assert knock(house, turns[1]).wait_s == pytest.approx(20, abs=1)


def test_a_gate_closed_again_while_it_is_probed_forgets_its_prober(house: House, turns: list[Turn]) -> None:
    close(house, 30)
    let_it_pass(house)
    knock(house, turns[0])
    close(house, 10)

    with house.store.begin(ALICE) as tx:
        tx.open_gates(ALICE, ["api"], turns[0].token)

    (gate,) = house.sql("select state, holder, extract(epoch from until - now()) as left_s from gate")
    assert (gate.state, gate.holder) == ("closed", None)
    assert 60 < gate.left_s < 71, "the time of the probe was known already"


# Runs that are due.


def test_open_runs_whose_time_has_come_are_due_oldest_first(house: House) -> None:
    first, second, _later, over = house.start(), house.start(BOB), house.start(), house.start()
    for run_id, age in ((first, 20), (second, 10), (over, 30)):
        house.sql(f"update run set check_at = now() - interval '{age} s' where id = :id", id=run_id)
    house.sql("update run set status = 'failed', finished_at = now() where id = :id", id=over)

    house.sql("update lane set status = 'done'")
    found = house.store.due_runs(10)
    assert [(each.id, each.tenant_id, each.kind) for each in found] == [(first, ALICE, "tally"), (second, BOB, "tally")]
    assert not any(each.at_work for each in found)
    assert [each.id for each in house.store.due_runs(1)] == [first], "what has to be moved stays due"
    assert [each.id for each in house.store.due_runs(10, found[0].place)] == [second]
    assert house.store.due_runs(10, found[1].place) == []


def test_a_run_at_work_is_put_off_by_the_look_itself(house: House) -> None:
    late, working, paused = house.start(time_limit_s=600), house.start(time_limit_s=600), house.start(time_limit_s=60)
    runs.pause_run(house.ports, ALICE, paused)
    house.sql("update run set check_at = now() - interval '1 s'")
    house.sql("update run set deadline_at = now() - interval '1 s' where id = any(:ids)", ids=[late, paused])

    found = {each.id: each.at_work for each in house.store.due_runs(10)}

    assert found == {late: False, working: True, paused: True}, "the clock of a paused run stands still"
    assert house.run(working).check_at == house.run(working).deadline_at
    assert [each.id for each in house.store.due_runs(10)] == [late]


def test_a_paused_run_is_looked_at_in_a_day_and_another_by_its_deadline(house: House) -> None:
    run_id = house.start(time_limit_s=600)

    def look() -> datetime:
        with house.store.begin(ALICE) as tx:
            run = tx.lock_run(run_id, ALICE)
            assert run is not None
            tx.look_at_run_later(run)
        looked_at: datetime = house.run(run_id).check_at
        return looked_at

    assert look() == house.run(run_id).deadline_at
    runs.pause_run(house.ports, ALICE, run_id)
    assert look() > house.run(run_id).deadline_at


def test_a_run_that_goes_on_is_looked_at_by_its_new_deadline(house: House) -> None:
    run_id = house.start(time_limit_s=600)
    runs.pause_run(house.ports, ALICE, run_id)
    runs.resume_run(house.ports, ALICE, run_id)
    assert house.run(run_id).check_at == house.run(run_id).deadline_at
    house.sql("update run set status = 'failed', finished_at = now() where id = :id", id=run_id)
    house.sql("update lane set status = 'failed' where run_id = :id", id=run_id)

    runs.retry_run(house.ports, house.kind, ALICE, run_id)

    assert house.run(run_id).check_at == house.run(run_id).deadline_at
