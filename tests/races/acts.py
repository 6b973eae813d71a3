"""What actors do in a race: each is the product's own entry, bound to the baton or run that it is about."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from shared.kernel import run as runs
from shared.kernel.step import Outcome, take_turn
from shared.kernel.tick import TickReport, tick
from tests.races.stage import Actor
from tests.support.house import ALICE, House


def turn(house: House, run_id: UUID, key: str = "l0") -> Callable[[Actor], Outcome]:
    """Take the turn of the baton that is current now, whenever the actor comes to it."""
    baton = house.baton(run_id, key)
    return lambda actor: take_turn(baton, house.kind, actor.ports)


def cancel(house: House, run_id: UUID) -> Callable[[Actor], None]:
    return lambda actor: runs.cancel_run(actor.ports, house.kind, ALICE, run_id)


def pause(run_id: UUID) -> Callable[[Actor], None]:
    return lambda actor: runs.pause_run(actor.ports, ALICE, run_id)


def resume(run_id: UUID) -> Callable[[Actor], None]:
    return lambda actor: runs.resume_run(actor.ports, ALICE, run_id)


def retry(house: House, run_id: UUID) -> Callable[[Actor], None]:
    return lambda actor: runs.retry_run(actor.ports, house.kind, ALICE, run_id)


def restart(house: House, run_id: UUID, key: str = "l0") -> Callable[[Actor], None]:
    lane_id = house.lane(run_id, key).id
    return lambda actor: runs.restart_lane(actor.ports, ALICE, lane_id)


def ticks(house: House) -> Callable[[Actor], TickReport]:
    return lambda actor: tick(actor.ports, house.kinds)
