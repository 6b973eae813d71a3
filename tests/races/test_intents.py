"""Guards that lanes which want the same call from outside make way for each other and do not stand still."""

from __future__ import annotations

from collections.abc import Callable

from shared.kernel.model import Intent, StepOutcome, Turn
from tests.races.acts import turn
from tests.races.stage import Actor, Stage
from tests.support.house import ALICE, House

WRITTEN_BY_ANOTHER = """
insert into remote_call (run_id, epoch, key, tenant_id, kind, leaves_asset) values (:id, 1, 'job', :t, 'thing', true)
"""


def intends(turn: Turn) -> Callable[[Actor], Intent | None]:
    return lambda actor: actor.store.intend(turn, "job", "thing", leaves_asset=True)


def test_whoever_intends_a_call_in_the_same_moment_as_another_lane_is_not_fresh(house: House, stage: Stage) -> None:
    run_id = house.start_running()
    held, loser = house.claim(run_id), stage.actor("loser")

    with house.locking(WRITTEN_BY_ANOTHER, id=run_id, t=ALICE):
        intending = loser.does(intends(held))
        loser.blocks()

    answer = intending.answer()
    assert answer is not None
    assert (answer.fresh, answer.confirmed, answer.remote_id) == (False, False, None)


def test_whoever_lost_his_turn_in_the_same_moment_intends_nothing(house: House, stage: Stage) -> None:
    run_id = house.start_running()
    held, loser = house.claim(run_id), stage.actor("loser")

    with house.locking(WRITTEN_BY_ANOTHER, id=run_id, t=ALICE):
        intending = loser.does(intends(held))
        loser.blocks()
        house.sql("update lane set claim_token = gen_random_uuid() where run_id = :id", id=run_id)

    assert intending.answer() is None


def test_a_step_whose_call_another_lane_intended_in_the_same_moment_goes_on(house: House, stage: Stage) -> None:
    run_id = house.start_running(target=3, assets=["l0"])
    loser = stage.actor("loser")

    with house.locking(WRITTEN_BY_ANOTHER.replace("job", "asset-l0"), id=run_id, t=ALICE):
        stepping = loser.does(turn(house, run_id))
        loser.blocks()

    assert stepping.answer() is StepOutcome.MOVED
