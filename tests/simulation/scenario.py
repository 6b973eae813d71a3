"""What a seed means: which runs there are, what operators do, how hostile the world is."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

CANARY = "canary-7f3a-secret"


@dataclass(frozen=True, slots=True)
class Action:
    at: float
    name: str
    run: int


@dataclass(slots=True)
class Scenario:
    seed: int
    runs: list[dict[str, Any]]
    actions: list[Action]
    workers: int
    stall_s: float
    fault_rate: float = 0.0
    fault_budget: int = 0
    fault_until: float = 0.0
    duplicate_rate: float = 0.0
    purges: list[float] = field(default_factory=list)
    blackout: tuple[float, float] = (0.0, 0.0)
    burst: tuple[float, float] = (0.0, 0.0)
    upstream_trouble: float = 0.0
    switch_rate: float = 0.5
    tick: bool = True
    sends: bool = True
    redelivery: bool = False


def draw_scenario(seed: int) -> Scenario:
    """Everything about a schedule but its interleaving; the same seed then decides that too."""
    rng = Random(seed)
    runs = [_draw_run(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    hostile = rng.choice(("calm", "some", "some", "wild"))
    scenario = Scenario(
        seed=seed,
        runs=runs,
        actions=_draw_actions(rng, len(runs)),
        workers=rng.choice((1, 2, 3, 4)),
        stall_s=rng.choice((30.0, 80.0, 200.0, 400.0)),
        duplicate_rate=rng.choice((0.0, 0.0, 0.1, 0.3)),
        upstream_trouble=rng.choice((0.0, 0.0, 0.1, 0.3)),
        switch_rate=rng.choice((0.2, 0.5, 0.9)),
    )
    if hostile != "calm":
        scenario.fault_rate = rng.choice((0.01, 0.03)) if hostile == "some" else 0.1
        scenario.fault_budget = rng.choice((1, 2, 4)) if hostile == "some" else 25
        scenario.fault_until = rng.choice((5.0, 120.0, 900.0))
    if rng.random() < 0.1:
        scenario.purges = [rng.uniform(0, 60) for _ in range(rng.choice((1, 2)))]
    if rng.random() < 0.06:
        _black_out(scenario, rng)
    if rng.random() < 0.06:
        _burst(scenario, rng)
    return scenario


def _black_out(scenario: Scenario, rng: Random) -> None:
    """No message gets through for a while, and something is asked for meanwhile."""
    begin = rng.uniform(0, 20)
    scenario.blackout = (begin, begin + rng.choice((400.0, 1500.0, 4000.0)))
    if rng.random() < 0.7:
        at = scenario.blackout[1] - rng.uniform(1, 100)
        scenario.actions.append(Action(at, rng.choice(("cancel", "pause", "wake")), 0))


def _burst(scenario: Scenario, rng: Random) -> None:
    """A bad deploy: for a minute every visit of the outside ends in a surprise, and nothing else goes wrong."""
    begin = rng.uniform(0, 5)
    scenario.burst = (begin, begin + 60)
    scenario.upstream_trouble = scenario.fault_rate = 0.0


def blackout_scenario(seed: int) -> Scenario:
    """A long blackout with little else: how repairs are spaced and what resets their patience."""
    rng = Random(seed)
    scenario = Scenario(seed=seed, runs=[_draw_run(rng)], actions=[], workers=2, stall_s=80.0)
    begin = rng.uniform(0, 3)
    scenario.blackout = (begin, begin + 9000.0)
    scenario.actions = [Action(begin + rng.uniform(6000, 8990), rng.choice(("cancel", "pause", "wake", "restart")), 0)]
    return scenario


def operator_scenario(seed: int) -> Scenario:
    """Nothing fails, but people are busy: every action meets lanes that wait, work and end."""
    rng = Random(seed)
    scenario = Scenario(seed=seed, runs=[_draw_run(rng) for _ in range(2)], actions=[], workers=3, stall_s=80.0)
    for run in scenario.runs:
        run["delays"] = rng.choice(((2,), (5, 45), (45,), (1000,)))
        run["target"] = 3
    names = ("cancel", "pause", "pause", "resume", "retry", "retry", "wake", "restart")
    scenario.actions = [Action(rng.uniform(0, 120), rng.choice(names), rng.randrange(2)) for _ in range(6)]
    scenario.duplicate_rate = rng.choice((0.0, 0.3))
    return scenario


def redelivery_scenario(seed: int) -> Scenario:
    """No tick, and only faults after which the message itself comes again: that alone must be enough."""
    scenario = draw_scenario(seed)
    scenario.tick, scenario.redelivery = False, True
    scenario.actions, scenario.purges, scenario.blackout = [], [], (0.0, 0.0)
    scenario.upstream_trouble, scenario.duplicate_rate, scenario.burst = 0.0, 0.0, (0.0, 0.0)
    scenario.fault_budget = min(scenario.fault_budget, 3)
    for run in scenario.runs:
        run["delays"] = [delay for delay in run["delays"] if delay <= 900] or [0]
        run.pop("time_limit_s", None)
        run["killers"] = []
    return scenario


def plain_scenario(seed: int) -> Scenario:
    """A short schedule without any fault: the base of the exhaustive single-fault schedules."""
    rng = Random(seed)
    scenario = Scenario(
        seed=seed,
        runs=[_draw_run(rng)],
        actions=_draw_actions(rng, 1)[:1],
        workers=2,
        stall_s=rng.choice((80.0, 400.0)),
    )
    scenario.runs[0]["killers"] = []
    return scenario


def _draw_run(rng: Random) -> dict[str, Any]:
    lanes = rng.choice((1, 1, 2, 2, 3))
    names = [f"l{n}" for n in range(lanes)]
    params: dict[str, Any] = {
        "tenant": rng.randrange(3),
        "lanes": lanes,
        "target": rng.choice((1, 2, 2, 3)),
        "delays": rng.choice(((0,), (0,), (0, 0, 5), (2,), (45,), (1000,))),
        "canary": CANARY,
    }
    if rng.random() < 0.25:
        params["assets"] = [rng.choice(names)]
        params["leaks"] = rng.random() < 0.3
    if rng.random() < 0.2:
        params["splits"] = [rng.choice(names)]
    if rng.random() < 0.25:
        params["final"] = True
    if rng.random() < 0.3:
        params["gate"] = "upstream"
    if rng.random() < 0.05:
        params["killers"] = [rng.choice(names)]
    if rng.random() < 0.12:
        params["time_limit_s"] = rng.choice((30, 200, 2000))
    if rng.random() < 0.05:
        params["max_steps"] = 1
    return params


def _draw_actions(rng: Random, runs: int) -> list[Action]:
    actions = []
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        name = rng.choice(("cancel", "cancel", "pause", "resume", "retry", "wake", "restart", "start"))
        actions.append(Action(rng.choice((rng.uniform(0, 2), rng.uniform(0, 100))), name, rng.randrange(runs)))
    return actions
