"""Guards that a pause holds lanes still and a resume moves them all, whoever looks at them in the same moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from shared.kernel.clock import new_id
from shared.kernel.model import NewLane, NoTurn, StepOutcome
from shared.kernel.points import Point
from shared.kernel.tick import tick
from tests.races.acts import cancel, pause, resume, ticks, turn
from tests.races.stage import Stage
from tests.support.house import ALICE, House

# A read of `run` by the actor named clockwork waits inside its statement, after the snapshot was taken.
DOOR = """
create function wait_at_the_door() returns boolean language plpgsql volatile as $$
begin
    if current_setting('application_name') = 'clockwork' then
        perform pg_advisory_lock_shared(77);
        perform pg_advisory_unlock_shared(77);
    end if;
    return true;
end $$;
create policy door on run as restrictive for select to baton_worker using (wait_at_the_door())
"""
NO_DOOR = "drop policy door on run; drop function wait_at_the_door()"


@contextmanager
def door_before_runs(house: House) -> Iterator[None]:
    with house._owner.connect() as connection:
        connection.exec_driver_sql(DOOR)
    try:
        yield
    finally:
        with house._owner.connect() as connection:
            connection.exec_driver_sql(NO_DOOR)


def test_a_turn_claimed_before_the_pause_commits_and_the_next_is_refused(house: House, stage: Stage) -> None:
    run_id = house.start_running()
    worker, operator = stage.actor("worker"), stage.actor("operator")

    pausing = operator.does(pause(run_id), until=Point.ACTION_WRITTEN)
    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    operator.goes_on()
    pausing.answer()
    worker.goes_on()

    assert stepping.answer() is StepOutcome.MOVED
    assert house.take_turn(run_id) is NoTurn.PAUSED
    assert (house.tally(run_id), house.lane(run_id).claims) == ([0], 0)


def test_a_claim_that_waited_while_the_pause_came_takes_at_most_that_one_turn(house: House, stage: Stage) -> None:
    run_id = house.start_running(target=3)
    worker, operator = stage.actor("worker"), stage.actor("operator")

    with house.locking("select from lane where run_id = :id for update", id=run_id):
        stepping = worker.does(turn(house, run_id))
        worker.blocks()
        operator.does(pause(run_id)).answer()

    assert stepping.answer() in {StepOutcome.MOVED, NoTurn.PAUSED, NoTurn.TWIN}
    assert house.take_turn(run_id) is NoTurn.PAUSED
    assert len(house.tally(run_id)) <= 1


def test_the_tick_parks_a_lane_of_a_paused_run_and_the_resume_that_waited_wakes_it(house: House, stage: Stage) -> None:
    run_id = house.start_running()
    operator, clockwork = stage.actor("operator"), stage.actor("clockwork")
    operator.does(pause(run_id)).answer()
    house.set_lane(run_id, "l0", "check_at = now()")

    ticking = clockwork.does(ticks(house), until=Point.TICK_JUDGED)
    resuming = operator.does(resume(run_id))
    operator.blocks()
    clockwork.goes_on()

    assert ticking.answer().lanes == {"parked": 1}
    resuming.answer()
    assert not house.lane(run_id).parked
    assert house.take_turn(run_id) is StepOutcome.MOVED


def test_a_tick_that_looked_while_the_run_was_resumed_does_not_park_its_lane_for_ever(
    house: House, stage: Stage
) -> None:
    """The tick stands still between its snapshot and its look at the run; the resume began before it."""
    run_id = house.start_running()
    operator, clockwork = stage.actor("operator"), stage.actor("clockwork")
    operator.does(pause(run_id)).answer()
    house.set_lane(run_id, "l0", "check_at = now() - interval '1 s'")

    with door_before_runs(house):
        resuming = operator.does(resume(run_id), until=Point.ACTION_RUN_LOCKED)
        with house.locking("select pg_advisory_xact_lock(77)"):
            ticking = clockwork.does(ticks(house))
            clockwork.blocks()
            operator.goes_on()
            operator.comes_to_rest()
        ticking.answer()
        resuming.answer()

    assert not house.lane(run_id).parked
    assert house.take_turn(run_id) is StepOutcome.MOVED


def test_a_copy_that_comes_during_the_resume_is_refused_and_the_fresh_one_taken(house: House, stage: Stage) -> None:
    run_id = house.start_running()
    worker, operator = stage.actor("worker"), stage.actor("operator")
    operator.does(pause(run_id)).answer()

    resuming = operator.does(resume(run_id), until=Point.ACTION_WRITTEN)
    early = worker.does(turn(house, run_id)).answer()
    operator.goes_on()
    resuming.answer()

    assert early is NoTurn.PAUSED
    assert house.lane(run_id).resend_no == 1
    assert house.take_turn(run_id) is StepOutcome.MOVED


def test_a_turn_in_flight_over_pause_and_resume_goes_on_with_the_fresh_copy(house: House, stage: Stage) -> None:
    run_id = house.start_running(target=3)
    worker, operator = stage.actor("worker"), stage.actor("operator")
    old = house.baton(run_id)

    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    operator.does(pause(run_id)).answer()
    resuming = operator.does(resume(run_id), until=Point.ACTION_WRITTEN)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    resuming.answer()

    assert stepping.answer() is StepOutcome.MOVED
    now = house.baton(run_id)
    assert (now.seq, now.resend_no) == (old.seq + 1, old.resend_no + 1)
    assert now.to_json() in house.waiting()


def add_side_lane(house: House, run_id: UUID) -> None:
    """A lane that does not hold its run."""
    with house.store.begin(ALICE) as tx:
        run = tx.lock_run(run_id, ALICE)
        assert run is not None
        tx.insert_lanes(run, [(new_id(), NewLane(key="cleanup/side", holds_run=False, time_limit_s=500))], 9)


def park(house: House, run_id: UUID) -> None:
    house.set_lane(run_id, "cleanup/side", "check_at = now()")
    tick(house.ports, house.kinds)
    assert house.lane(run_id, "cleanup/side").parked


@pytest.mark.parametrize("how", ["resume", "cancel", "ending", "cancel of a run whose lanes have ended"])
def test_a_lane_parked_beside_its_run_wakes_however_the_pause_ends(house: House, stage: Stage, how: str) -> None:
    run_id = house.start_running(target=1 if how == "ending" else 3)
    add_side_lane(house, run_id)
    operator, worker = stage.actor("operator"), stage.actor("worker")
    old = house.lane(run_id, "cleanup/side")

    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    operator.does(pause(run_id)).answer()
    park(house, run_id)
    house.sql("update run set paused_at = paused_at - interval '300 s' where id = :id", id=run_id)
    if how == "cancel of a run whose lanes have ended":
        worker.goes_on()
        stepping.answer()
        house.set_lane(run_id, "l0", "status = 'done'")
    if how == "resume":
        operator.does(resume(run_id)).answer()
    elif how.startswith("cancel"):
        operator.does(cancel(house, run_id)).answer()
    if stepping.thread.is_alive():
        worker.goes_on()
        stepping.answer()

    lane = house.lane(run_id, "cleanup/side")
    assert not lane.parked
    assert 295 < (lane.deadline_at - old.deadline_at).total_seconds() < 310, "its own time stood still too"
    assert lane.cancel_at is None
    assert house.take_turn(run_id, "cleanup/side") is StepOutcome.DONE


def test_an_ending_that_waited_for_the_tick_wakes_the_lane_it_parked(house: House, stage: Stage) -> None:
    run_id = house.start_running(target=1)
    add_side_lane(house, run_id)
    worker, clockwork = stage.actor("worker"), stage.actor("clockwork")
    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    stage.actor("operator").does(pause(run_id)).answer()
    house.set_lane(run_id, "cleanup/side", "check_at = now()")

    ticking = clockwork.does(ticks(house), until=Point.TICK_JUDGED)
    worker.goes_on()
    worker.blocks()
    clockwork.goes_on()

    assert ticking.answer().lanes["parked"] == 1
    assert stepping.answer() is StepOutcome.DONE
    assert house.endings(run_id) == ["succeeded"]
    assert not house.lane(run_id, "cleanup/side").parked
