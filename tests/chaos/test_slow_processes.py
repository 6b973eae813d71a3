"""Guards against a process that goes on when the others have long gone on without it."""

from __future__ import annotations

from random import Random

import pytest

from shared.kernel.points import Point
from tests.chaos.checks import OPEN_WORK, violations
from tests.chaos.hub import Hub
from tests.chaos.matrix import Puppet
from tests.chaos.stage import Stage, let_calls_end, pass_time, pass_time_for_the_idle

pytestmark = pytest.mark.full


@pytest.mark.parametrize(
    "point",
    [
        Point.STEP_RECEIVED,
        Point.STEP_CLAIMED,
        Point.STEP_LOOKED,
        Point.STEP_COMMITTED,
        Point.STEP_SENT,
        Point.FORWARD_RECEIVED,
        Point.START_COMMITTED,
    ],
)
def test_a_process_that_wakes_up_after_its_lease_neither_loses_nor_doubles_anything(point: Point, stage: Stage) -> None:
    stage.clear()
    with Hub(Random(1)) as hub:
        slow, other = Puppet(stage, hub, 1, stop_at=(point, 1)), Puppet(stage, hub, 2)
        try:
            other.ask("start", 1, {"lanes": 2, "target": 3, "delays": [30]})
            slow.tell("start", 0, {"lanes": 2, "target": 3, "delays": [30]})
            slow.tell("drain")
            if point is Point.FORWARD_RECEIVED:
                other.ask("drain")
                hub.skip(31)
                slow.tell("drain")
            stage.zygote.wait_until_it_stops(slow.pid)
            wait(stage, hub, 20)  # past lease and visibility
            other.ask("drain")
            stage.zygote.go_on(slow.pid)
            for _ in range(10):
                wait(stage, hub, 60)
                other.ask("tick")
                other.ask("drain")
            with stage.connect() as connection:
                let_calls_end(connection)
            other.ask("sweep")
        finally:
            slow.end()
            other.end()

    with stage.connect() as connection:
        assert not connection.execute(OPEN_WORK).scalar_one()
        assert violations(connection) == []


def wait(stage: Stage, hub: Hub, seconds: float) -> None:
    with stage.connect() as connection:
        pass_time(connection, hub, seconds)


def test_a_call_made_after_its_run_timed_out_is_cleaned_even_if_the_caller_dies_before_it_confirms(
    stage: Stage,
) -> None:
    stage.clear()
    with Hub(Random(1)) as hub:
        slow = Puppet(stage, hub, 1, stop_at=(Point.REMOTE_INTENDED, 1), die_at=(Point.REMOTE_CALLED, 1))
        other = Puppet(stage, hub, 2)
        try:
            slow.ask("start", 0, {"lanes": 1, "target": 1, "assets": ["l0"], "time_limit_s": 30})
            slow.tell("drain")
            stage.zygote.wait_until_it_stops(slow.pid)
            with stage.connect() as connection:
                pass_time_for_the_idle(connection, 31)  # the deadline passes, the lease does not
            other.ask("tick")
            other.ask("drain")
            stage.zygote.go_on(slow.pid)
            stage.zygote.wait_until_it_stops(slow.pid)
            other.ask("tick")
            other.ask("drain")
            with stage.connect() as connection:
                let_calls_end(connection)
            other.ask("sweep")
        finally:
            slow.end()
            other.end()

    with stage.connect() as connection:
        assert violations(connection) == []
