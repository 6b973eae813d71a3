"""Guards what the kernel offers to kinds where two processes meet: the cap on open runs, and a write before the commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from shared.kernel import run as runs
from shared.kernel.errors import NoRoom, Overtaken
from shared.kernel.model import Effect, Statement
from shared.kernel.points import Point
from shared.kernel.remote_call import Calls
from shared.kernel.step import take_turn
from tests.races.stage import Actor, Stage
from tests.support.house import ALICE, House

OPEN = "select count(*) from run where status in ('queued', 'running')"
PARAMS = {"lanes": 1, "target": 1}
SHOW = Statement("show", "insert into tally (tenant_id, run_id, lane, n) select tenant_id, run_id, key, 7 from turn")


def started(house: House) -> Callable[[Actor], bool]:
    def go(actor: Actor) -> bool:
        try:
            runs.start_run(actor.ports, house.kind, ALICE, PARAMS)
        except NoRoom:
            return False
        return True

    return go


def retried(house: House, run_id: UUID) -> Callable[[Actor], bool]:
    def go(actor: Actor) -> bool:
        try:
            runs.retry_run(actor.ports, house.kind, ALICE, run_id)
        except NoRoom:
            return False
        return True

    return go


@pytest.mark.parametrize("who", ["two starts", "a start and a retry", "two retries"])
def test_two_at_the_same_moment_never_pass_the_cap(house: House, stage: Stage, who: str) -> None:
    house.kind = replace(house.kind, most_open_runs=2)
    ended = [house.start(target=1), house.start(target=1)]
    for run_id in ended:
        runs.cancel_run(house.ports, house.kind, ALICE, run_id)
        take_turn(house.baton(run_id), house.kind, house.ports)
    house.start(target=1)
    first, second = stage.actor("first"), stage.actor("second")
    of_first, until = (started(house), Point.START_WRITTEN)
    of_second = started(house) if who == "two starts" else retried(house, ended[1])
    if who == "two retries":
        of_first, until = retried(house, ended[0]), Point.ACTION_WRITTEN

    one = first.does(of_first, until=until)
    other = second.does(of_second)
    second.blocks()
    first.goes_on()

    assert (one.answer(), other.answer()) == (True, False)
    assert house.value(OPEN) == 2


def test_a_write_before_the_commit_waits_for_whoever_takes_the_lane_over(house: House, stage: Stage) -> None:
    """Seen a moment too early the turn is still ours: without the lock the row would be written all the same."""
    run_id = house.start_running()
    turn = house.claim(run_id)
    writer = stage.actor("writer")

    with house.locking("update lane set claim_token = gen_random_uuid() where run_id = :id", id=run_id):
        writing = writer.does(lambda actor: Calls(turn, actor.ports).write(Effect(SHOW)))
        writer.blocks()

    assert isinstance(writing.failure(Overtaken), Overtaken)
    assert house.value("select count(*) from tally") == 0
