"""Guards that a lane which takes its time to stop takes that time: no turn after turn at the same instant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shared.kernel import run as runs
from shared.kernel.catalogue import Outside
from shared.kernel.errors import Throttled, Transient
from shared.kernel.model import Continue, Decision, StepOutcome, Turn, Wait
from shared.kernel.step import take_turn
from tests.support.house import ALICE, DELAY, FIFO, House

OnCancel = Callable[[Turn, Outside], Decision]


def wait(turn: Turn, outside: Outside) -> Decision:
    return Wait(after_s=600)


def wait_long(turn: Turn, outside: Outside) -> Decision:
    return Wait(after_s=5000)


def go_on(turn: Turn, outside: Outside) -> Decision:
    return Continue(cursor=turn.cursor, after_s=600)


def throttled(turn: Turn, outside: Outside) -> Decision:
    raise Throttled("upstream", 600)


def transient(turn: Turn, outside: Outside) -> Decision:
    raise Transient("not yet", retry_after_s=600)


@pytest.mark.parametrize("on_cancel", [wait, wait_long, go_on, throttled, transient], ids=lambda f: f.__name__)
def test_a_delay_of_a_step_that_knew_of_the_cancel_counts(house: House, on_cancel: OnCancel) -> None:
    kind = replace(house.kind, on_cancel=on_cancel)
    run_id = house.start_running()
    runs.cancel_run(house.ports, kind, ALICE, run_id)
    house.queue.purge(FIFO)

    assert isinstance(take_turn(house.baton(run_id), kind, house.ports), StepOutcome)

    lane = house.lane(run_id)
    due_in_s = float(house.value("select extract(epoch from next_due_at - now()) from lane"))
    look_in_s = float(house.value("select extract(epoch from check_at - now()) from lane"))
    assert due_in_s > (4990 if on_cancel is wait_long else 590)
    assert (lane.sent_at is None) == (on_cancel is wait_long)
    assert look_in_s <= 1, "the cancel asked the tick to look now, and nothing moves that later"
    assert house.waiting(FIFO) == []
    assert len(house.waiting(DELAY)) == (0 if on_cancel is wait_long else 1)


def test_a_cancel_that_comes_during_the_step_makes_the_next_turn_due_at_once(house: House) -> None:
    run_id = house.start_running(delays=[600])
    house.visits = lambda turn, n: runs.cancel_run(house.api_ports(), house.kind, ALICE, turn.run_id)

    assert house.take_turn(run_id) is StepOutcome.MOVED

    house.visits = lambda turn, n: None
    assert abs(float(house.value("select extract(epoch from next_due_at - now()) from lane"))) < 5
    assert house.take_turn(run_id) is StepOutcome.CANCELED
