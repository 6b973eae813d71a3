"""Many short rounds, one side after the other in turn, so that a busy machine slows both sides alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bench.figures import Figure

Act = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Side:
    """`prepare` is not timed; what it answers is, and tells how many operations it did."""

    name: str
    prepare: Callable[[], Act]


@dataclass(frozen=True, slots=True)
class Sample:
    rate: float
    cpu_us: float


Rounds = dict[str, list[Sample]]


def race(sides: Sequence[Side], rounds: int) -> Rounds:
    """Run every side once per round, the last round's last first; one round before them warms up."""
    for side in sides:
        side.prepare()()
    gc.collect()
    gc.freeze()  # the modules of a whole test environment are no part of a step's garbage
    found: Rounds = {side.name: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 else reversed(sides):
            found[side.name].append(_sample(side))
    gc.unfreeze()
    return found


def _sample(side: Side) -> Sample:
    act = side.prepare()
    gc.collect()
    began, cpu_began = time.perf_counter(), time.process_time()
    done = act()
    took, cpu_took = time.perf_counter() - began, time.process_time() - cpu_began
    return Sample(done / took, cpu_took / done * 1e6)


def versus(name: str, unit: str, found: Rounds, ours: str, theirs: str, goal: str = "") -> Figure:
    """Our rate against theirs."""
    ratios = [a.rate / b.rate for a, b in zip(found[ours], found[theirs], strict=True)]
    return _figure(name, unit, [s.rate for s in found[ours]], [s.rate for s in found[theirs]], ratios, goal)


def client_cpu(name: str, found: Rounds, ours: str, theirs: str) -> Figure:
    """The processor time of this process per operation: it does not see the server, nor other people's load."""
    ratios = [a.cpu_us / b.cpu_us for a, b in zip(found[ours], found[theirs], strict=True)]
    return _figure(name, "us", [s.cpu_us for s in found[ours]], [s.cpu_us for s in found[theirs]], ratios, "")


def _figure(
    name: str, unit: str, ours: Sequence[float], theirs: Sequence[float], ratios: Sequence[float], goal: str
) -> Figure:
    return Figure(
        name=name,
        value=statistics.median(ours),
        unit=unit,
        against=statistics.median(theirs),
        ratio=statistics.median(ratios),
        goal=goal,
        spread=_quartiles(ratios),
    )


def _quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 3:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
