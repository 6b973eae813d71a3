"""Guards that a closed gate holds everyone back but one probe, and that only that probe opens it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from shared.kernel.errors import Throttled
from shared.kernel.model import GatePass, StepOutcome, Turn
from shared.kernel.points import Point
from tests.races.acts import turn
from tests.races.stage import Actor, Stage
from tests.support.house import ALICE, House

GATE = "upstream"


@pytest.fixture
def throttles(house: House) -> Iterator[dict[UUID, float]]:
    """Runs whose steps are told to stay away, and for how long."""
    away: dict[UUID, float] = {}

    def visit(turn: Turn, n: int) -> None:
        if turn.run_id in away:
            raise Throttled(GATE, away[turn.run_id])

    house.visits = visit
    yield away
    house.visits = lambda _turn, _n: None


def closed_and_due(house: House) -> None:
    house.sql(
        "insert into gate (tenant_id, key, state, until) values (:t, :key, 'closed', now() - interval '1 s')",
        t=ALICE,
        key=GATE,
    )


def gate(house: House) -> Any:
    (row,) = house.sql("select state, holder, extract(epoch from until - now()) as left_s from gate")
    return row


def test_a_prober_whose_gate_is_being_closed_does_not_open_it(
    house: House, stage: Stage, throttles: dict[UUID, float]
) -> None:
    probed, throttled = house.start_running(target=3, gate=GATE), house.start_running()
    throttles[throttled] = 120
    closed_and_due(house)
    prober, other = stage.actor("prober"), stage.actor("other")

    probing = prober.does(turn(house, probed), until=Point.STEP_LOOKED)
    closing = other.does(turn(house, throttled), until=Point.TURN_WRITTEN)
    prober.goes_on()
    prober.blocks()
    other.goes_on()

    assert closing.answer() is StepOutcome.THROTTLED
    assert probing.answer() is StepOutcome.MOVED
    assert gate(house).state == "closed"
    assert 110 < gate(house).left_s < 121


def test_a_stalled_prober_does_not_open_a_gate_that_was_closed_and_probed_since(
    house: House, stage: Stage, throttles: dict[UUID, float]
) -> None:
    probed, next_probed = house.start_running(target=3, gate=GATE), house.start_running(target=3, gate=GATE)
    closed_and_due(house)
    stalled, prober = stage.actor("stalled"), stage.actor("prober")

    late = stalled.does(turn(house, probed), until=Point.STEP_LOOKED)
    house.sql("update gate set until = now() - interval '1 s'")
    probing = prober.does(turn(house, next_probed), until=Point.STEP_LOOKED)
    stalled.goes_on()

    assert late.answer() is StepOutcome.MOVED
    assert gate(house).state == "probing", "the gate belongs to its second prober now"
    prober.goes_on()
    assert probing.answer() is StepOutcome.MOVED
    assert gate(house).state == "open"


def test_a_throttle_that_waited_for_the_probe_closes_the_gate_it_opened(
    house: House, stage: Stage, throttles: dict[UUID, float]
) -> None:
    probed, throttled = house.start_running(target=3, gate=GATE), house.start_running()
    throttles[throttled] = 120
    closed_and_due(house)
    prober, other = stage.actor("prober"), stage.actor("other")

    probing = prober.does(turn(house, probed), until=Point.TURN_WRITTEN)
    closing = other.does(turn(house, throttled))
    other.blocks()
    prober.goes_on()

    assert probing.answer() is StepOutcome.MOVED
    assert closing.answer() is StepOutcome.THROTTLED
    assert gate(house).state == "closed"


@pytest.mark.parametrize(("first_s", "second_s"), [(120.0, 30.0), (30.0, 120.0)])
@pytest.mark.parametrize("known", [True, False], ids=["known gate", "new gate"])
def test_two_throttles_at_once_close_the_gate_for_the_longer_time(
    house: House, stage: Stage, throttles: dict[UUID, float], first_s: float, second_s: float, known: bool
) -> None:
    runs = [house.start_running(), house.start_running()]
    throttles.update(zip(runs, (first_s, second_s), strict=True))
    if known:
        closed_and_due(house)
    first, second = stage.actor("first"), stage.actor("second")

    one = first.does(turn(house, runs[0]), until=Point.TURN_WRITTEN)
    other = second.does(turn(house, runs[1]))
    second.blocks()
    first.goes_on()

    assert (one.answer(), other.answer()) == (StepOutcome.THROTTLED, StepOutcome.THROTTLED)
    assert 110 < gate(house).left_s < 121


def knocks(house: House, run_id: UUID) -> Callable[[Actor], GatePass]:
    turn = house.claim(run_id)
    return lambda actor: actor.store.pass_gates(turn, [GATE], 70)


def test_two_lanes_at_a_gate_whose_time_has_come_send_one_probe(house: House, stage: Stage) -> None:
    runs = [house.start_running(), house.start_running()]
    closed_and_due(house)
    first, second = stage.actor("first"), stage.actor("second")

    with house.locking("select from gate for update"):
        scenes = [first.does(knocks(house, runs[0])), second.does(knocks(house, runs[1]))]
        first.blocks()
        second.blocks()

    passed, held = sorted((scene.answer() for scene in scenes), key=lambda answer: answer.wait_s is not None)
    assert (passed.wait_s, passed.probes) == (None, frozenset({GATE}))
    assert held.wait_s is not None
    assert held.probes == frozenset()


def test_a_gate_that_is_opened_while_a_step_waits_for_it_stays_open(house: House, stage: Stage) -> None:
    run_id = house.start_running()
    closed_and_due(house)
    prober = stage.actor("prober")

    with house.locking("update gate set state = 'open', holder = null, until = now(), reason = null"):
        knocking = prober.does(knocks(house, run_id))
        prober.blocks()

    assert knocking.answer().probes == frozenset()
    assert gate(house).state == "open"


def test_a_step_that_only_probes_keeps_its_probe_when_it_asks_again(house: House, stage: Stage) -> None:
    run_id = house.start_running()
    closed_and_due(house)
    knock, prober = knocks(house, run_id), stage.actor("prober")

    answers = [prober.does(knock).answer(), prober.does(knock).answer()]

    assert answers == [GatePass(None, frozenset({GATE}))] * 2


def test_a_step_that_gets_only_one_of_its_probes_gives_it_back(house: House, stage: Stage) -> None:
    """Else nobody could probe the gate while its prober waits for the other one."""
    run_id, next_run = house.start_running(), house.start_running()
    for key in ("a", "b"):
        house.sql(
            "insert into gate (tenant_id, key, state, until) values (:t, :key, 'closed', now() - interval '1 s')",
            t=ALICE,
            key=key,
        )
    held, prober = house.claim(run_id), stage.actor("prober")

    with house.locking(
        "update gate set state = 'probing', holder = gen_random_uuid(), until = now() + interval '70 s' where key = 'b'"
    ):
        knocking = prober.does(lambda actor: actor.store.pass_gates(held, ["a", "b"], 70))
        prober.blocks()

    assert knocking.answer() == GatePass(1.0, frozenset())
    assert house.store.pass_gates(house.claim(next_run), ["a"], 70) == GatePass(None, frozenset({"a"}))
