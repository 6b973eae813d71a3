"""Guards that a cancel reaches every lane that holds its run, also those born in the same moment."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from shared.kernel import sql
from shared.kernel.model import StepOutcome
from shared.kernel.points import Point
from tests.races.acts import cancel, turn
from tests.races.stage import Place, Stage
from tests.support.house import House


def canceled_lanes(house: House, run_id: object) -> list[str]:
    rows = house.sql("select key from lane where run_id = :id and cancel_at is not null order by key", id=run_id)
    return [row.key for row in rows]


@pytest.mark.parametrize("where", [Point.TURN_RUN_LOCKED, Point.TURN_WRITTEN, Point.TURN_SETTLED])
def test_a_cancel_that_waited_for_a_split_cancels_the_new_lane_too(house: House, stage: Stage, where: str) -> None:
    run_id = house.start_running(splits=["l0"])
    worker, operator = stage.actor("worker"), stage.actor("operator")

    splitting = worker.does(turn(house, run_id), until=where)
    canceling = operator.does(cancel(house, run_id))
    operator.blocks()
    worker.goes_on()

    assert splitting.answer() is StepOutcome.MOVED
    canceling.answer()
    assert canceled_lanes(house, run_id) == ["l0", "l0/s"]


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(Point.ACTION_RUN_LOCKED, id="nothing written"),
        pytest.param(sql.CANCEL_LANES, id="run written"),
        pytest.param(Point.ACTION_WRITTEN, id="lanes written"),
    ],
)
def test_a_lane_whose_split_waited_for_the_cancel_is_born_canceled(house: House, stage: Stage, where: Place) -> None:
    run_id = house.start_running(splits=["l0"])
    worker, operator = stage.actor("worker"), stage.actor("operator")

    splitting = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    canceling = operator.does(cancel(house, run_id), until=where)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    canceling.answer()

    assert splitting.answer() is StepOutcome.MOVED
    assert canceled_lanes(house, run_id) == ["l0", "l0/s"]
    for key in ("l0", "l0/s"):
        assert house.take_turn(run_id, key) is StepOutcome.CANCELED
    assert house.endings(run_id) == ["canceled"]


def test_a_plain_step_in_flight_during_a_cancel_comes_back_at_once(house: House, stage: Stage) -> None:
    run_id = house.start_running(delays=[600])
    worker, operator = stage.actor("worker"), stage.actor("operator")

    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    canceling = operator.does(cancel(house, run_id), until=Point.ACTION_WRITTEN)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    canceling.answer()

    assert stepping.answer() is StepOutcome.MOVED
    assert house.value("select next_due_at <= now() from lane where run_id = :id", id=run_id)
    assert house.take_turn(run_id) is StepOutcome.CANCELED


def test_two_cancels_at_once_are_one(house: House, stage: Stage) -> None:
    run_id = house.start_running(lanes=2)
    first, second = stage.actor("first"), stage.actor("second")

    one = first.does(cancel(house, run_id), until=Point.ACTION_WRITTEN)
    other = second.does(cancel(house, run_id))
    second.blocks()
    first.goes_on()
    one.answer()
    other.answer()

    assert house.history(run_id).count("cancel_requested") == 1
    assert [house.lane(run_id, key).resend_no for key in ("l0", "l1")] == [1, 1]


def test_the_stop_before_a_statement_is_before_it(house: House, stage: Stage) -> None:
    """The stage itself: at a stop before CANCEL_LANES the run is written and no lane is."""
    run_id = house.start_running()
    operator = stage.actor("operator")

    canceling = operator.does(cancel(house, run_id), until=sql.CANCEL_LANES)
    with house.locking("select from lane where run_id = :id for update nowait", id=run_id):
        pass
    with pytest.raises(sa.exc.DatabaseError, match="could not obtain lock"):
        house.sql("select from run where id = :id for no key update nowait", id=run_id)
    operator.goes_on()
    canceling.answer()
