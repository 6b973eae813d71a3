"""Guards that a turn is taken once and committed by its holder alone: everyone else leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from shared.kernel.clock import new_id
from shared.kernel.errors import Refused
from shared.kernel.model import NoTurn, StepOutcome, Turn
from shared.kernel.points import Point
from shared.kernel.step import Lost
from tests.races.acts import restart, retry, ticks, turn
from tests.races.stage import Actor, Stage
from tests.support.house import House


def claim(house: House, run_id: UUID) -> Callable[[Actor], Turn | NoTurn]:
    baton = house.baton(run_id)
    return lambda actor: actor.store.claim(baton, new_id(), 70)


def test_two_claims_of_one_baton_at_once_give_one_turn(house: House, stage: Stage) -> None:
    run_id = house.start_running()
    first, second = stage.actor("first"), stage.actor("second")

    with house.locking("select from lane where run_id = :id for update", id=run_id):
        one, other = first.does(claim(house, run_id)), second.does(claim(house, run_id))
        first.blocks()
        second.blocks()

    answers = [one.answer(), other.answer()]
    assert len([answer for answer in answers if isinstance(answer, Turn)]) == 1
    assert [answer for answer in answers if isinstance(answer, NoTurn)] == [NoTurn.TWIN]
    assert house.lane(run_id).claims == 1


@pytest.mark.parametrize("target", [1, 2], ids=["ending", "plain step"])
@pytest.mark.parametrize("successor_goes", [Point.STEP_LOOKED, None], ids=["claimed", "committed"])
def test_a_zombie_that_wakes_after_its_successor_claimed_writes_nothing(
    house: House, stage: Stage, target: int, successor_goes: str | None
) -> None:
    run_id = house.start_running(target=target)
    zombie, successor = stage.actor("zombie"), stage.actor("successor")
    late = zombie.does(turn(house, run_id), until=Point.STEP_LOOKED)
    house.expire_lease(run_id)

    taking_over = successor.does(turn(house, run_id), until=successor_goes)
    if successor_goes is None:
        taking_over.answer()
    zombie.goes_on()
    assert late.answer() is Lost.OVERTAKEN
    if successor_goes is not None:
        successor.goes_on()

    assert taking_over.answer() in {StepOutcome.MOVED, StepOutcome.DONE}
    assert house.tally(run_id) == [0]
    assert [(epoch, seq) for epoch, seq, _ in house.ledger(run_id)] == [(1, 0)]


@pytest.mark.parametrize("target", [1, 2], ids=["ending", "plain step"])
def test_a_zombie_that_waited_for_its_successors_commit_writes_nothing(house: House, stage: Stage, target: int) -> None:
    run_id = house.start(target=target)  # still queued: the successor's commit is a transaction that can be stopped
    zombie, successor = stage.actor("zombie"), stage.actor("successor")
    late = zombie.does(turn(house, run_id), until=Point.STEP_LOOKED)
    house.expire_lease(run_id)

    taking_over = successor.does(turn(house, run_id), until=Point.TURN_SETTLED)
    zombie.goes_on()
    zombie.blocks()
    successor.goes_on()

    assert late.answer() is Lost.OVERTAKEN
    taking_over.answer()
    assert house.tally(run_id) == [0]
    assert house.history(run_id).count("running") == 1


def test_a_late_commit_that_nobody_has_overtaken_counts_once(house: House, stage: Stage) -> None:
    run_id = house.start_running()
    zombie, successor = stage.actor("zombie"), stage.actor("successor")
    late = zombie.does(turn(house, run_id), until=Point.STEP_LOOKED)
    copy = turn(house, run_id)
    house.expire_lease(run_id)

    zombie.goes_on()

    assert late.answer() is StepOutcome.MOVED
    assert successor.does(copy).answer() is NoTurn.STALE
    assert (house.tally(run_id), house.lane(run_id).seq) == ([0], 1)


@pytest.mark.parametrize("target", [1, 2], ids=["ending", "plain step"])
def test_a_commit_of_the_old_epoch_that_comes_after_the_retry_writes_nothing(
    house: House, stage: Stage, target: int
) -> None:
    run_id = house.start_running(target=target, time_limit_s=3600)
    worker, operator, clockwork = stage.actor("worker"), stage.actor("operator"), stage.actor("clockwork")
    late = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    house.pass_deadline(run_id)
    clockwork.does(ticks(house)).answer()

    retrying = operator.does(retry(house, run_id), until=Point.ACTION_WRITTEN)
    worker.goes_on()
    worker.comes_to_rest()
    operator.goes_on()
    retrying.answer()

    assert late.answer() is Lost.OVERTAKEN
    lane = house.lane(run_id)
    assert (lane.epoch, lane.seq, lane.status) == (2, 0, "active")
    assert house.tally(run_id) == []


@pytest.mark.parametrize("target", [1, 2], ids=["ending", "plain step"])
def test_a_commit_that_waited_for_the_restart_of_its_lane_writes_nothing(
    house: House, stage: Stage, target: int
) -> None:
    run_id = house.start_running(target=target)
    worker, operator = stage.actor("worker"), stage.actor("operator")
    late = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)

    restarting = operator.does(restart(house, run_id), until=Point.ACTION_WRITTEN)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    restarting.answer()

    assert late.answer() is Lost.OVERTAKEN
    assert (house.tally(run_id), house.lane(run_id).epoch, house.endings(run_id)) == ([], 2, [])


def test_a_restart_that_waited_for_the_end_of_the_run_is_refused(house: House, stage: Stage) -> None:
    run_id = house.start(target=1)
    worker, operator = stage.actor("worker"), stage.actor("operator")

    ending = worker.does(turn(house, run_id), until=Point.TURN_SETTLED)
    restarting = operator.does(restart(house, run_id))
    operator.blocks()
    worker.goes_on()

    assert ending.answer() is StepOutcome.DONE
    assert getattr(restarting.failure(Refused), "code", None) == "already_ended"
    assert (house.lane(run_id).status, house.endings(run_id)) == ("done", ["succeeded"])


def test_a_restart_of_one_lane_while_the_other_ends_keeps_the_run_open(house: House, stage: Stage) -> None:
    run_id = house.start(lanes=2, target=1)
    house.take_turn(run_id, "l0")
    worker, operator = stage.actor("worker"), stage.actor("operator")
    ending = worker.does(turn(house, run_id, "l1"), until=Point.STEP_LOOKED)

    restarting = operator.does(restart(house, run_id, "l0"), until=Point.ACTION_WRITTEN)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    restarting.answer()

    assert ending.answer() is StepOutcome.DONE
    assert house.endings(run_id) == []
    assert house.take_turn(run_id, "l0") is StepOutcome.DONE
    assert house.endings(run_id) == ["succeeded"]
