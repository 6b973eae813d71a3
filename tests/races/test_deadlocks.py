"""Guards the order of locks: the run, then its lanes, so that nobody ever waits in a circle."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from shared.kernel import run as runs
from shared.kernel.errors import NotFound, Refused
from shared.kernel.points import Point
from shared.kernel.step import take_turn
from shared.kernel.tick import tick
from tests.races.acts import cancel, turn
from tests.races.stage import Actor, Stage
from tests.support.house import ALICE, House

ACTS_PER_ACTOR = 60
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"
BUSY_RUNS = """
select l.run_id, l.key from lane l join run r on r.id = l.run_id
where r.status in ('queued', 'running') and l.status = 'active' order by random() limit 1
"""


def lanes_against_the_grain(house: House, run_id: UUID) -> None:
    """Let the rows lie in the opposite order of their ids, as updates leave them sooner or later."""
    house.sql("create table kept as select * from lane where run_id = :id", id=run_id)
    house.sql("delete from lane where run_id = :id", id=run_id)
    house.sql("insert into lane select * from kept order by id desc")
    house.sql("drop table kept")


def busy(house: House, seed: int) -> Callable[[Actor], None]:
    """Take turns, cancel and tick at random."""
    rng = random.Random(seed)

    def work(actor: Actor) -> None:
        for _ in range(ACTS_PER_ACTOR):
            with suppress(Refused, NotFound):
                _act(actor)

    def _act(actor: Actor) -> None:
        chosen = house.sql(BUSY_RUNS)
        if not chosen:
            params = {"lanes": 3, "target": 2, "splits": ["l0", "l1"], "final": True}
            runs.start_run(actor.ports, house.kind, ALICE, params)
            return
        run_id, key = chosen[0].run_id, chosen[0].key
        match rng.choice(("turn", "turn", "turn", "turn", "cancel", "tick")):
            case "turn":
                take_turn(house.baton(run_id, key), house.kind, actor.ports)
            case "cancel":
                runs.cancel_run(actor.ports, house.kind, ALICE, run_id)
            case "tick":
                tick(actor.ports, house.kinds)

    return work


def test_endings_cancels_splits_and_ticks_on_the_same_runs_never_deadlock(house: House, stage: Stage) -> None:
    before = house.value(DEADLOCKS)
    actors = [stage.actor(f"stress{n}") for n in range(4)]

    scenes = [actor.does(busy(house, seed)) for seed, actor in enumerate(actors)]
    for scene in scenes:
        scene.answer(within_s=120)

    assert stage.errors == []
    for actor in actors:
        actor.engine.dispose()  # a session that ends reports what it has seen
    wait_for_the_end_of(house, "stress%")
    assert house.value(DEADLOCKS) == before
    ended = house.sql("select id from run where finished_at is not null")
    assert ended
    for run in ended:
        assert len(house.endings(run.id)) == 1


def wait_for_the_end_of(house: House, names: str) -> None:
    deadline = time.monotonic() + 60
    while house.value(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name like :names",
        names=names,
    ):
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("where", [Point.ACTION_RUN_LOCKED, Point.ACTION_WRITTEN])
@pytest.mark.parametrize("params", [{"target": 1}, {"splits": ["l0"]}], ids=["ending", "split"])
def test_a_step_that_needs_its_run_holds_no_lane_while_it_waits_for_it(
    house: House, stage: Stage, where: Point, params: dict[str, Any]
) -> None:
    run_id = house.start_running(**params)
    worker, operator = stage.actor("worker"), stage.actor("operator")

    stepping = worker.does(turn(house, run_id), until=Point.STEP_LOOKED)
    canceling = operator.does(cancel(house, run_id), until=where)
    worker.goes_on()
    worker.blocks()
    operator.goes_on()
    canceling.answer()
    stepping.answer()

    assert stage.errors == []


def test_noting_sent_batons_never_deadlocks_with_a_cancel_of_the_same_lanes(house: House, stage: Stage) -> None:
    """After a resume its batons are noted as sent while the run is canceled already."""
    run_id = house.start_running(lanes=2)
    lanes_against_the_grain(house, run_id)
    house.sql("update lane set sent_at = null")
    first, last = sorted((house.lane(run_id, key) for key in ("l0", "l1")), key=lambda lane: lane.id.int)
    dues = [house.due(run_id, lane.key) for lane in (first, last)]
    sender, operator = stage.actor("sender"), stage.actor("operator")

    with house.locking("select from lane where id = :id for update", id=first.id):
        noting = sender.does(lambda actor: actor.store.mark_sent(dues))
        sender.comes_to_rest()
        canceling = operator.does(cancel(house, run_id))
        operator.blocks()

    noting.answer()
    canceling.answer()
