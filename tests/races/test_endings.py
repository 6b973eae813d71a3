"""Guards that a run ends once, whoever else is at its last lane in the same moment."""

from __future__ import annotations

import pytest

from shared.kernel.errors import Refused
from shared.kernel.model import RunStatus, StepOutcome
from shared.kernel.points import Point
from shared.kernel.step import Lost
from tests.races.acts import cancel, ticks, turn
from tests.races.stage import Stage
from tests.support.house import House

IN_THE_COMMIT = (Point.TURN_RUN_LOCKED, Point.TURN_WRITTEN, Point.TURN_SETTLED)


@pytest.mark.parametrize("where", IN_THE_COMMIT)
def test_two_last_lanes_that_end_at_once_end_the_run_once(house: House, stage: Stage, where: str) -> None:
    run_id = house.start(lanes=2, target=1)
    first, second = stage.actor("first"), stage.actor("second")

    one = first.does(turn(house, run_id, "l0"), until=where)
    other = second.does(turn(house, run_id, "l1"))
    second.blocks()
    first.goes_on()

    assert (one.answer(), other.answer()) == (StepOutcome.DONE, StepOutcome.DONE)
    assert house.run(run_id).status == RunStatus.SUCCEEDED
    assert house.endings(run_id) == ["succeeded"]
    assert house.value("select count(*) from signal") == 1


@pytest.mark.parametrize("where", IN_THE_COMMIT)
def test_two_last_lanes_that_end_at_once_open_one_next_phase(house: House, stage: Stage, where: str) -> None:
    run_id = house.start(lanes=2, target=1, final=True)
    first, second = stage.actor("first"), stage.actor("second")

    one = first.does(turn(house, run_id, "l0"), until=where)
    other = second.does(turn(house, run_id, "l1"))
    second.blocks()
    first.goes_on()

    assert (one.answer(), other.answer()) == (StepOutcome.DONE, StepOutcome.DONE)
    assert house.keys(run_id) == ["final", "l0", "l1"]
    assert house.history(run_id).count("phase") == 1
    assert house.run(run_id).status == RunStatus.RUNNING


def test_a_cancel_that_waited_for_the_last_ending_is_refused(house: House, stage: Stage) -> None:
    run_id = house.start(target=1)
    worker, operator = stage.actor("worker"), stage.actor("operator")

    ending = worker.does(turn(house, run_id), until=Point.TURN_SETTLED)
    canceling = operator.does(cancel(house, run_id))
    operator.blocks()
    worker.goes_on()

    assert ending.answer() is StepOutcome.DONE
    assert getattr(canceling.failure(Refused), "code", None) == "already_ended"
    assert house.endings(run_id) == ["succeeded"]
    assert "cancel_requested" not in house.history(run_id)


def test_work_that_was_done_when_the_cancel_came_still_succeeds(house: House, stage: Stage) -> None:
    run_id = house.start(target=1)
    worker, operator = stage.actor("worker"), stage.actor("operator")

    ending = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    canceling = operator.does(cancel(house, run_id), until=Point.ACTION_WRITTEN)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    canceling.answer()

    assert ending.answer() is StepOutcome.DONE
    assert house.endings(run_id) == ["succeeded"]
    assert house.tally(run_id) == [0]


def test_a_lane_that_ends_during_a_cancel_leaves_the_end_to_the_lanes_being_canceled(
    house: House, stage: Stage
) -> None:
    run_id = house.start(lanes=2, target=1)
    worker, operator = stage.actor("worker"), stage.actor("operator")

    ending = worker.does(turn(house, run_id, "l0"), until=Point.STEP_LOOKED)
    canceling = operator.does(cancel(house, run_id), until=Point.ACTION_WRITTEN)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    canceling.answer()

    assert ending.answer() is StepOutcome.DONE
    assert house.endings(run_id) == []
    assert house.take_turn(run_id, "l1") is StepOutcome.CANCELED
    assert house.endings(run_id) == ["canceled"]


def test_the_last_lane_out_opens_no_next_phase_once_a_cancel_has_come(house: House, stage: Stage) -> None:
    run_id = house.start(target=1, final=True)
    worker, operator = stage.actor("worker"), stage.actor("operator")

    ending = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    canceling = operator.does(cancel(house, run_id), until=Point.ACTION_WRITTEN)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    canceling.answer()

    assert ending.answer() is StepOutcome.DONE
    assert house.keys(run_id) == ["l0"]
    assert house.endings(run_id) == ["canceled"]


def test_a_deadline_that_waited_for_the_last_ending_changes_nothing(house: House, stage: Stage) -> None:
    run_id = house.start(target=1, time_limit_s=3600)
    worker, clockwork = stage.actor("worker"), stage.actor("clockwork")
    ending = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    house.pass_deadline(run_id)

    worker.goes_on(until=Point.TURN_SETTLED)
    moving = clockwork.does(ticks(house))
    clockwork.blocks()
    worker.goes_on()

    assert ending.answer() is StepOutcome.DONE
    assert moving.answer().runs_moved == 0
    assert house.endings(run_id) == ["succeeded"]
    assert house.lane(run_id).status == "done"


def test_an_ending_that_waited_for_the_deadline_writes_nothing(house: House, stage: Stage) -> None:
    run_id = house.start(target=1, time_limit_s=3600)
    worker, clockwork = stage.actor("worker"), stage.actor("clockwork")
    ending = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    house.pass_deadline(run_id)

    moving = clockwork.does(ticks(house), until=Point.TICK_RUN_LOCKED)
    worker.goes_on()
    worker.blocks()
    clockwork.goes_on()

    assert moving.answer().runs_moved == 1
    assert ending.answer() is Lost.OVERTAKEN
    assert (house.run(run_id).outcome, house.endings(run_id)) == ("timed_out", ["failed"])
    assert (house.tally(run_id), house.ledger(run_id)) == ([], [])
