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


def test_two_lanes_that_intend_the_same_call_both_go_on(house: House, stage: Stage) -> None:
    run_id = house.start_running(lanes=2, target=3)
    first, second = stage.actor("first"), stage.actor("second")

    def visit(turn: Turn, n: int) -> None:
        actor = first if turn.key == "l0" else second
        answers[turn.key] = actor.store.intend(turn, "job", "thing", leaves_asset=True)

    answers: dict[str, Intent | None] = {}
    house.visits = visit
    with house.locking("lock table remote_call in exclusive mode"):
        one = first.does(turn(house, run_id, "l0"))
        first.blocks()
        other = second.does(turn(house, run_id, "l1"))
        second.blocks()

    assert (one.answer(), other.answer()) == (StepOutcome.MOVED, StepOutcome.MOVED)
    found = sorted((answer.fresh if answer else None for answer in answers.values()), key=str)
    assert found == [False, True]
