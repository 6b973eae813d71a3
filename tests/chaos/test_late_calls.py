"""Guards what was made outside by a step whose run ended without it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from shared.kernel.points import Point
from tests.chaos.checks import violations
from tests.chaos.hub import Hub
from tests.chaos.matrix import Puppet
from tests.chaos.stage import Stage, open_stage, pass_time_for_the_idle
from tests.support.databases import ServerAdmin


@pytest.fixture
def stage(postgres_server: ServerAdmin, template: str) -> Iterator[Stage]:
    name = postgres_server.create_from_template(template)
    with open_stage(postgres_server.url(name)) as stage:
        yield stage
    postgres_server.drop(name)


def test_a_call_made_after_its_run_timed_out_is_cleaned_even_if_the_caller_dies_before_it_confirms(
    stage: Stage,
) -> None:
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
            other.ask("sweep")
        finally:
            slow.end()
            other.end()

    with stage.connect() as connection:
        assert violations(connection) == []
