"""Guards that nothing a kind does wrong goes on for ever: what it cannot say is bounded, and stops nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn
from uuid import UUID

import pytest
from pg8000.exceptions import DatabaseError

from shared.kernel import run as runs
from shared.kernel.catalogue import Catalogue, Kind, Outside
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent, StepError, Throttled, Transient
from shared.kernel.model import (
    Decision,
    Effect,
    Finish,
    LaneChange,
    NewLane,
    NewRun,
    Starting,
    Statement,
    StepOutcome,
    Turn,
)
from shared.kernel.offers import PgOffers
from shared.kernel.ports import Tx
from shared.kernel.step import Lost, take_turn
from shared.kernel.tick import SET_ASIDE
from tests.support.databases import ServerAdmin
from tests.support.depot import Depot, parcel_depot
from tests.support.house import ALICE, House

UNWRITABLE = Effect(Statement("broken.write", "insert into tally (tenant_id) select tenant_id from turn"))


def broken(step: Callable[[Turn, Outside], Decision], **how: Any) -> Kind:
    def one_lane(_: Tx, starting: Starting) -> NewRun:
        return NewRun(params=starting.params, lanes=[NewLane(key="l0")])

    return Kind(name="tally", take_step=step, start=one_lane, limits=Limits(max_attempts=3), **how)


def outcomes(house: House, kind: Kind, most: int = 10) -> list[Any]:
    """Until the lane ends, or somebody has seen enough."""
    house.kind, house.kinds = kind, Catalogue(kind)
    run_id = runs.start_run(house.ports, kind, ALICE, {})
    seen: list[Any] = []
    while house.lane(run_id).status == "active" and len(seen) < most:
        house.set_lane(run_id, "l0", "next_due_at = now()")
        seen.append(take_turn(house.baton(run_id), kind, house.ports))
    return seen


def raises(error: Exception) -> Callable[..., NoReturn]:
    def act(*_: Any) -> NoReturn:
        raise error

    return act


def test_limits_that_cannot_be_asked_for_are_a_failed_attempt(house: House) -> None:
    kind = broken(lambda *_: Finish(), limits_of=raises(KeyError("max_attempts")))

    assert outcomes(house, kind) == [StepOutcome.RETRIED, StepOutcome.RETRIED, StepOutcome.FAILED]


def test_a_run_that_has_ended_is_held_by_no_lane_of_its_kind(house: House) -> None:
    """It would work on after the end that everybody was told."""
    kind = broken(lambda *_: Finish(), on_end=lambda *_: [NewLane(key="afterwards")])

    assert outcomes(house, kind) == [StepOutcome.DONE]
    (run,) = house.sql("select id, status from run")
    assert (run.status, house.keys(run.id)) == ("running", ["l0"]), "its end is tried again, as if on_end had raised"
    assert house.history(run.id)[-1] == "settle_failed"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Transient("slow", retry_after_s="30"), id="a wait that is no number"),  # type: ignore[arg-type]
        pytest.param(Throttled("upstream", 5, message=ValueError("stop")), id="a reason that is no text"),  # type: ignore[arg-type]
        pytest.param(Unspeakable(), id="an exception that has no words"),
    ],
)
def test_a_failure_that_cannot_be_read_is_a_failed_attempt(house: House, error: Exception) -> None:
    assert outcomes(house, broken(raises(error))) == [StepOutcome.RETRIED, StepOutcome.RETRIED, StepOutcome.FAILED]


def test_a_failure_whose_reason_is_an_exception_ends_its_lane(house: House) -> None:
    assert outcomes(house, broken(raises(Permanent(ValueError("no such stone"))))) == [StepOutcome.FAILED]  # type: ignore[arg-type]

    assert house.value("select last_error ->> 'message' from lane") == "no such stone"


@pytest.mark.parametrize("error", [Permanent("gone", effects=[UNWRITABLE]), Transient("ill", effects=[UNWRITABLE])])
def test_a_failure_whose_rows_cannot_be_written_ends_its_lane_with_its_reason(house: House, error: StepError) -> None:
    seen = outcomes(house, broken(raises(error)))

    assert seen[-1] is StepOutcome.FAILED
    assert len(seen) <= 3
    assert Lost.GIVEN_BACK not in seen


def test_an_upstream_that_asks_for_no_wait_is_not_asked_without_a_pause(house: House) -> None:
    kind = broken(raises(Throttled("upstream", 0)))
    house.kind = kind
    run_id = runs.start_run(house.ports, kind, ALICE, {})

    assert take_turn(house.baton(run_id), kind, house.ports) is StepOutcome.THROTTLED

    assert house.value("select extract(epoch from until - updated_at) >= 1 from gate")
    assert house.value("select extract(epoch from next_due_at - now()) > 0.5 from lane where run_id = :id", id=run_id)


# What is pulled.


@pytest.fixture(scope="session")
def shared_depot(postgres_server: ServerAdmin, template: str) -> Iterator[Depot]:
    with parcel_depot(postgres_server, template) as depot:
        yield depot


@pytest.fixture
def depot(shared_depot: Depot) -> Iterator[Depot]:
    shared_depot.empty()
    yield shared_depot
    shared_depot.check()
    shared_depot.send_guests_home()


def teach(depot: Depot, **how: Any) -> None:
    depot.parcel = replace(depot.parcel, **how)
    depot.kinds = Catalogue(depot.kind, depot.parcel)


def lose_until_it_ends(depot: Depot, run_id: UUID, most: int = 6) -> int:
    """How often its worker has to be lost until the run ends."""
    for times in range(most):
        if depot.run(run_id).finished_at is not None:
            return times
        depot.pass_time(3600)
        if depot.lane(run_id, "carry").claim_token is None:
            depot.take()
        depot.sql("update lane set lease_until = now() - interval '1 s' where claim_token is not null")
        depot.ticks()
    return most


@pytest.mark.parametrize("canceled", [False, True])
def test_a_lost_turn_whose_kind_raises_is_a_failed_attempt(depot: Depot, canceled: bool) -> None:
    teach(depot, on_lost=raises(KeyError("worker")), on_cancel=raises(Transient("the shop is closed")))
    run_id = depot.post()
    depot.take()
    if canceled:
        runs.cancel_run(depot.ports, depot.parcel, ALICE, run_id)

    assert lose_until_it_ends(depot, run_id) <= 3

    assert depot.run(run_id).status == ("canceled" if canceled else "failed")


def test_a_lost_turn_whose_rows_cannot_be_written_still_ends(depot: Depot) -> None:
    teach(depot, on_lost=lambda _: Transient("lost", "worker_lost", effects=[UNWRITABLE]))
    run_id = depot.post()

    assert lose_until_it_ends(depot, run_id) <= 3

    assert depot.run(run_id).status == "failed"


def test_a_kind_that_does_not_say_how_its_run_ends_is_asked_the_long_way(depot: Depot) -> None:
    def ending(turn: Turn, change: LaneChange) -> NoReturn:
        raise KeyError(change.status)

    teach(depot, ending=ending)
    run_id = depot.post()

    assert depot.do(depot.take_one()) is StepOutcome.DONE

    assert (depot.run(run_id).status, depot.endings(run_id)) == ("succeeded", ["succeeded"])


def test_one_lost_turn_that_cannot_be_taken_over_keeps_no_other(depot: Depot) -> None:
    lost = [depot.post() for _ in range(3)]
    for turn in depot.take(3):
        depot.lose(turn)
    first = min(depot.lanes_of(lost), key=lambda each: each.int)

    class Locked(PgOffers):
        def take_over(self, lane_id: UUID, token: UUID, lease_s: float) -> Turn | None:
            if lane_id == first:
                raise DatabaseError({"C": "55P03", "M": "lock not available"})
            return super().take_over(lane_id, token, lease_s)

    depot.ports = replace(depot.ports, offers=Locked(depot.store._engine))
    report = depot.ticks()

    assert report.lanes[SET_ASIDE] == 1
    assert [depot.lane(run_id, "carry").attempts for run_id in _but(lost, first, depot)] == [1, 1]


def _but(run_ids: Sequence[UUID], lane_id: UUID, depot: Depot) -> list[UUID]:
    return [run_id for run_id in run_ids if depot.lane(run_id, "carry").id != lane_id]
