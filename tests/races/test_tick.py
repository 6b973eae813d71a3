"""Guards that the tick mends what is broken, once, and never stands in the way of what works."""

from __future__ import annotations

import pytest

from shared.kernel.model import StepOutcome
from shared.kernel.points import Point
from shared.kernel.settings import Relay
from shared.kernel.step import Lost
from tests.races.acts import cancel, ticks, turn
from tests.races.stage import Stage
from tests.support.house import House


def test_a_tick_does_not_wait_for_a_lane_that_is_being_committed(house: House, stage: Stage) -> None:
    run_id = house.start(target=1)
    worker, clockwork = stage.actor("worker"), stage.actor("clockwork")
    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    house.expire_lease(run_id)

    worker.goes_on(until=Point.TURN_WRITTEN)
    report = clockwork.does(ticks(house)).answer()
    worker.goes_on()

    assert report.lanes == {}
    assert stepping.answer() is StepOutcome.DONE
    assert house.repairs(run_id) == []


@pytest.mark.parametrize("target", [1, 2], ids=["ending", "plain step"])
def test_a_commit_after_the_repair_of_its_lease_is_overtaken(house: House, stage: Stage, target: int) -> None:
    run_id = house.start_running(target=target)
    worker, clockwork = stage.actor("worker"), stage.actor("clockwork")
    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    house.expire_lease(run_id)

    assert clockwork.does(ticks(house)).answer().lanes == {"lease_ran_out": 1}
    worker.goes_on()

    assert stepping.answer() is Lost.OVERTAKEN
    assert (house.tally(run_id), house.ledger(run_id), house.lane(run_id).seq) == ([], [], 0)
    assert house.take_turn(run_id) is not Lost.OVERTAKEN
    assert house.tally(run_id) == [0]


@pytest.mark.parametrize("target", [1, 2], ids=["ending", "plain step"])
def test_a_commit_that_waited_for_the_repair_of_its_lease_is_overtaken(house: House, stage: Stage, target: int) -> None:
    run_id = house.start_running(target=target)
    worker, clockwork = stage.actor("worker"), stage.actor("clockwork")
    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    house.expire_lease(run_id)

    ticking = clockwork.does(ticks(house), until=Point.TICK_JUDGED)
    worker.goes_on()
    worker.blocks()
    clockwork.goes_on()
    ticking.answer()

    assert stepping.answer() is Lost.OVERTAKEN
    assert (house.tally(run_id), house.ledger(run_id)) == ([], [])


def test_two_ticks_at_once_mend_each_lane_once(house: House, stage: Stage) -> None:
    house.relay = Relay(tick_batch=3)
    run_id = house.start_running(lanes=8)
    house.sql("update lane set sent_at = null, check_at = now() - interval '1 s'")
    first, second = stage.actor("first"), stage.actor("second")

    one = first.does(ticks(house), until=Point.TICK_LOCKED)
    other = second.does(ticks(house))
    repaired = other.answer().lanes["unsent"]
    first.goes_on()
    one.answer()

    assert repaired == 5, "the second tick takes what the first has not locked"
    assert house.value("select count(*) from repair") == 8
    assert house.value("select count(distinct lane_id) from repair") == 8
    assert {house.lane(run_id, f"l{n}").resend_no for n in range(8)} == {1}


def test_a_claim_that_waited_for_the_repair_takes_the_turn(house: House, stage: Stage) -> None:
    """The copy that was late and the copy that the tick sends name the same turn: either may take it, once."""
    run_id = house.start_running()
    house.set_lane(run_id, "l0", "sent_at = null, check_at = now() - interval '1 s'")
    worker, clockwork = stage.actor("worker"), stage.actor("clockwork")

    ticking = clockwork.does(ticks(house), until=Point.TICK_JUDGED)
    stepping = worker.does(turn(house, run_id))
    worker.blocks()
    clockwork.goes_on()
    ticking.answer()

    assert stepping.answer() is StepOutcome.MOVED
    assert house.tally(run_id) == [0]


def test_a_cancel_that_waited_for_the_tick_makes_its_lane_due_now(house: House, stage: Stage) -> None:
    run_id = house.start_running(delays=[600])
    house.take_turn(run_id)
    house.set_lane(run_id, "l0", "check_at = now() - interval '1 s'")
    operator, clockwork = stage.actor("operator"), stage.actor("clockwork")

    ticking = clockwork.does(ticks(house), until=Point.TICK_JUDGED)
    canceling = operator.does(cancel(house, run_id))
    operator.blocks()
    clockwork.goes_on()
    ticking.answer()
    canceling.answer()

    assert house.lane(run_id).resend_no == 1
    assert house.take_turn(run_id) is StepOutcome.CANCELED
    assert house.endings(run_id) == ["canceled"]
