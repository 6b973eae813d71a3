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


@dataclass(frozen=True, slots=True)
class Shut:
    """A queue that refuses everything for a while: it is missing, or nobody may send. Each refusal takes `slow_s`."""

    queue: str
    begin: float
    end: float
    slow_s: float = 0.0


@dataclass(slots=True)
class Scenario:
    seed: int
    runs: list[dict[str, Any]]
    actions: list[Action]
    workers: int
    stall_s: float
    tick_batch: int = 50
    shut: list[Shut] = field(default_factory=list)
    strike: tuple[float, float] = (0.0, 0.0)  # messages lie and nobody takes them
    outage: tuple[float, float] = (0.0, 0.0)  # turns can be claimed, but no step can be committed
    sweeps: list[float] = field(default_factory=list)
    retention: dict[str, int] = field(default_factory=dict)
    throttled_share: float = 0.3  # of the trouble upstream
    max_attempts: int = 6
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


DELAY = "baton-delay"
QUEUE_OF = {"tally": "baton-tally.fifo", "count": "baton-count.fifo"}


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
        tick_batch=rng.choice((50, 50, 50, 1, 2)),
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


def gates_scenario(seed: int) -> Scenario:
    """Upstreams that ask to wait: gates of a tenant and of all, also of the same name, and probes that fail."""
    rng = Random(seed)
    runs = [_draw_run(rng) for _ in range(rng.choice((2, 3)))]
    for run in runs:
        run.pop("gate", None)
        run |= {"gates": rng.choice((["upstream"], ["upstream", "account"])), "tenant": rng.randrange(2)}
        run |= {"target": rng.choice((2, 3)), "delays": rng.choice(((0,), (2, 30))), "splits": []}
        if rng.random() < 0.2:
            run["limits"] = {"l0": 60}
    scenario = Scenario(seed=seed, runs=runs, actions=_draw_actions(rng, len(runs))[:1], workers=3, stall_s=80.0)
    scenario.upstream_trouble, scenario.throttled_share = rng.choice((0.2, 0.4)), rng.choice((0.4, 0.8))
    scenario.max_attempts = rng.choice((1, 2, 6))
    if rng.random() < 0.5:
        scenario.fault_rate, scenario.fault_budget, scenario.fault_until = 0.03, 3, 900.0
    return scenario


def limits_scenario(seed: int) -> Scenario:
    """Nothing fails, but time runs out: for the run, for one lane, while it waits, works, pauses or is canceled."""
    rng = Random(seed)
    runs = [_draw_run(rng) for _ in range(rng.choice((1, 2, 3)))]
    for run in runs:
        run |= {
            "delays": rng.choice(((45,), (1000,), (5000,))),
            "target": rng.choice((2, 3)),
            "side": rng.choice((0, 1)),
        }
        limit = rng.choice((30, 200, 700, 3000))
        which = rng.random()
        if which < 0.5:
            run["time_limit_s"] = limit
        if which > 0.4:
            run["limits"] = {rng.choice(("l0", "l0", "side0")): limit}
        if rng.random() < 0.3:
            run["waits"] = {"l0": [2, rng.choice((20, 1500))]}
        if rng.random() < 0.5:
            run["on_cancel"] = rng.choice((["wait"] * 12, ["wait"] * 40, ["wait"], ["step"] * 30))
    scenario = Scenario(seed=seed, runs=runs, actions=[], workers=3, stall_s=80.0, tick_batch=rng.choice((1, 2, 50)))
    for _ in range(rng.choice((0, 1, 2))):
        name = rng.choice(("cancel", "cancel", "cancel", "pause", "retry", "wake"))
        scenario.actions.append(
            Action(rng.choice((rng.uniform(0, 200), rng.uniform(0, 3000))), name, rng.randrange(len(runs)))
        )
    for number, run in enumerate(runs):  # a cancel that is still heard when the time is over
        if "time_limit_s" in run and "on_cancel" in run and rng.random() < 0.8:
            scenario.actions.append(Action(run["time_limit_s"] * rng.uniform(0.5, 1.0), "cancel", number))
    return scenario


def shut_scenario(seed: int) -> Scenario:
    """Two kinds of work, a queue that refuses, and more lanes than a tick takes at once."""
    rng = Random(seed)
    runs = [_draw_run(rng) | {"kind": ("tally", "count")[n % 2]} for n in range(rng.choice((2, 3)))]
    for run in runs:
        run |= {
            "lanes": rng.choice((2, 3, 5)),
            "target": rng.choice((2, 3)),
            "delays": rng.choice(((0,), (45,), (1000,))),
        }
        if rng.random() < 0.3:
            run["time_limit_s"] = rng.choice((200, 700))
    scenario = Scenario(
        seed=seed,
        runs=runs,
        actions=_draw_actions(rng, len(runs)),
        workers=3,
        stall_s=80.0,
        tick_batch=rng.choice((1, 2, 3)),
    )
    begin = rng.uniform(0, 30)
    queue = rng.choice((QUEUE_OF["tally"], QUEUE_OF["tally"], QUEUE_OF["tally"], DELAY))
    slow_s = rng.choice((0.0, 0.0, 5.0))
    scenario.shut = [Shut(queue, begin, begin + rng.choice((100.0, 300.0, 1000.0)), slow_s)]
    if rng.random() < 0.3:
        scenario.fault_rate, scenario.fault_budget, scenario.fault_until = 0.03, 2, 900.0
    return scenario


def cancels_scenario(seed: int) -> Scenario:
    """Every way to stop, met by waits, steps, refusals and failures of the kind's own clean way out."""
    rng = Random(seed)
    runs = [_draw_run(rng) for _ in range(2)]
    words = ("wait", "wait", "step", "throttled", "transient", "finish")
    for run in runs:
        run["on_cancel"] = [rng.choice(words) for _ in range(rng.choice((1, 2, 3)))]
        run |= {"delays": rng.choice(((5,), (45,), (1000,))), "target": 3, "side": rng.choice((0, 1, 2))}
    scenario = Scenario(seed=seed, runs=runs, actions=[], workers=3, stall_s=80.0)
    for number in range(2):
        at = rng.uniform(0, 60)
        if rng.random() < 0.5:
            scenario.actions.append(Action(at - rng.uniform(0, 20), "pause", number))
        scenario.actions.append(Action(at, "cancel", number))
        if rng.random() < 0.4:
            scenario.actions.append(Action(at + rng.uniform(0, 200), "retry", number))
    if rng.random() < 0.4:
        scenario.fault_rate, scenario.fault_budget, scenario.fault_until = 0.03, 2, 900.0
    return scenario


def stubborn_scenario(seed: int) -> Scenario:
    """Kinds that raise where their run is settled or ended, some for ever."""
    rng = Random(seed)
    scenario = Scenario(seed=seed, runs=[_draw_run(rng) for _ in range(2)], actions=[], workers=2, stall_s=80.0)
    for run in scenario.runs:
        run["stubborn"] = {rng.choice(("settle", "on_end")): rng.choice((1, 2, 3, -1, -1))}
        run["target"] = 2
        if rng.random() < 0.3:
            run["time_limit_s"] = rng.choice((30, 200))
    scenario.actions = _draw_actions(rng, 2)
    return scenario


def strike_scenario(seed: int) -> Scenario:
    """Nobody takes messages for a while, or no step can be committed; then, perhaps, all messages are lost as well."""
    rng = Random(seed)
    scenario = Scenario(seed=seed, runs=[_draw_run(rng) for _ in range(2)], actions=[], workers=3, stall_s=80.0)
    for run in scenario.runs:
        run |= {"killers": [], "target": 3, "delays": rng.choice(((2,), (30,), (45,)))}
    begin = rng.uniform(0, 40)
    if rng.random() < 0.5:
        scenario.outage = (begin, begin + rng.choice((60.0, 180.0, 600.0)))
        return scenario
    scenario.strike = (begin, begin + rng.choice((400.0, 400.0, 400.0, 2000.0, 9000.0)))
    if rng.random() < 0.7:
        scenario.purges = [scenario.strike[1] - 0.5]
    return scenario


def sweeps_scenario(seed: int) -> Scenario:
    """Retention short enough to be met: rows and runs leave while others work, are retried and clean up."""
    rng = Random(seed)
    runs = [_draw_run(rng) | {"kind": rng.choice(("tally", "count"))} for _ in range(rng.choice((2, 3)))]
    for run in runs:
        run["delays"] = rng.choice(((0,), (45,), (5000,), (40_000,)))
        run["side"] = rng.choice((0, 0, 1))
        if rng.random() < 0.5:
            run |= {"assets": ["l0"], "leaks": True, "same_asset": False}
    scenario = Scenario(seed=seed, runs=runs, actions=_draw_actions(rng, len(runs)), workers=3, stall_s=80.0)
    scenario.retention = {table: rng.choice((0, 1)) for table in ("step", "repair", "signal", "run")}
    every_s = rng.choice((100.0, 3000.0, 20_000.0))
    scenario.sweeps = [every_s * n for n in range(1, 9)]
    for action in list(scenario.actions):
        scenario.actions.append(Action(rng.uniform(0, 4000), rng.choice(("retry", "cancel")), action.run))
    if rng.random() < 0.5:
        scenario.fault_rate, scenario.fault_budget, scenario.fault_until = rng.choice((0.03, 0.1)), 5, 40_000.0
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
        run.pop("limits", None)
        run.pop("waits", None)
        run.pop("stubborn", None)
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
        "kind": "tally",
        "tenant": rng.randrange(3),
        "lanes": lanes,
        "target": rng.choice((1, 2, 2, 3)),
        "delays": rng.choice(((0,), (0,), (0, 0, 5), (2,), (45,), (1000,))),
        "canary": CANARY,
    }
    if rng.random() < 0.25:
        params["assets"] = [rng.choice(names)]
        params["leaks"] = rng.random() < 0.3
        if rng.random() < 0.3:
            params |= {"assets": names, "same_asset": True}
    if rng.random() < 0.2:
        params["splits"] = [rng.choice(names)]
    if rng.random() < 0.25:
        params["final"] = True
    if rng.random() < 0.3:
        params["gates"] = rng.choice((["upstream"], ["upstream"], ["upstream", "account"]))
    if rng.random() < 0.05:
        params["killers"] = [rng.choice(names)]
    if rng.random() < 0.12:
        params["time_limit_s"] = rng.choice((30, 200, 2000))
    if rng.random() < 0.05:
        params["max_steps"] = 1
    if rng.random() < 0.15:
        params["side"] = rng.choice((1, 2))
    if rng.random() < 0.15:
        params["waits"] = {rng.choice(names): [rng.choice((1, 2)), rng.choice((0, 10, 1000))]}
    if rng.random() < 0.1:
        params["limits"] = {rng.choice(names): rng.choice((30, 200))}
    if rng.random() < 0.15:
        params["on_cancel"] = [rng.choice(("wait", "step", "throttled", "transient", "finish"))]
    return params


def _draw_actions(rng: Random, runs: int) -> list[Action]:
    actions = []
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        name = rng.choice(("cancel", "cancel", "pause", "resume", "retry", "wake", "restart", "start"))
        actions.append(Action(rng.choice((rng.uniform(0, 2), rng.uniform(0, 100))), name, rng.randrange(runs)))
    return actions
