"""Guards that a tenant is set for one transaction and for nobody after it."""

from __future__ import annotations

import sqlalchemy as sa

from shared.kernel.model import StepOutcome
from shared.kernel.points import Point
from tests.races.acts import cancel, turn
from tests.races.stage import Actor, Stage
from tests.support.house import ALICE, BOB, House

WHO = sa.text("select coalesce(current_setting('app.tenant', true), '') where cast(:x as int) = 1")
SEEN = sa.text("select count(*) from tally where cast(:x as int) = 1")


def left_behind(actor: Actor) -> tuple[str, int]:
    """What the next user of this actor's one connection finds."""
    with actor.engine.connect() as connection:
        return connection.execute(WHO, {"x": 1}).scalar_one(), connection.execute(SEEN, {"x": 1}).scalar_one()


def test_no_tenant_is_left_on_the_connection_after_a_plain_commit(house: House, stage: Stage) -> None:
    run_id = house.start_running()
    worker = stage.actor("worker")

    assert worker.does(turn(house, run_id)).answer() is StepOutcome.MOVED
    assert left_behind(worker) == ("", 0)


def test_no_tenant_is_left_on_the_connection_after_a_transaction(house: House, stage: Stage) -> None:
    run_id = house.start(target=1)
    worker = stage.actor("worker")

    assert worker.does(turn(house, run_id)).answer() is StepOutcome.DONE
    assert left_behind(worker) == ("", 0)


def test_no_tenant_is_left_on_the_connection_after_an_action_that_failed(house: House, stage: Stage) -> None:
    run_id = house.start(target=1)
    house.take_turn(run_id)
    operator = stage.actor("operator")

    operator.does(cancel(house, run_id)).failure(Exception)

    assert left_behind(operator) == ("", 0)


def test_two_tenants_through_one_connection_each_write_their_own_rows(house: House, stage: Stage) -> None:
    runs = {ALICE: house.start_running(ALICE, target=3), BOB: house.start_running(BOB, target=3)}
    worker = stage.actor("worker")

    for _ in range(3):
        for run_id in runs.values():
            worker.does(turn(house, run_id)).answer()

    for tenant, run_id in runs.items():
        rows = house.sql("select distinct tenant_id from tally where run_id = :id", id=run_id)
        assert [row.tenant_id for row in rows] == [tenant]
        assert house.tally(run_id) == [0, 1, 2]


def test_two_tenants_at_once_do_not_see_each_others_tenant(house: House, stage: Stage) -> None:
    """One commit stands still in its transaction while another tenant commits beside it."""
    hers, his = house.start(ALICE, target=1), house.start(BOB, target=1)
    first, second = stage.actor("first"), stage.actor("second")

    one = first.does(turn(house, hers), until=Point.TURN_WRITTEN)
    assert second.does(turn(house, his)).answer() is StepOutcome.DONE
    first.goes_on()

    assert one.answer() is StepOutcome.DONE
    rows = house.sql("select tenant_id, run_id from tally order by tenant_id")
    assert [(row.tenant_id, row.run_id) for row in rows] == [(BOB, his), (ALICE, hers)]
