"""Many short rounds, one side after the other in turn, so that a busy machine slows both sides alike."""

from __future__ import annotations

import gc
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.kernel.flights import Connection
from tests.bench.figures import Figure

Act = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Side:
    """`prepare` is not timed; what it answers is, and tells how many operations it did."""

    name: str
    prepare: Callable[[], Act]
    connection: Callable[[], Connection] | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    rate: float
    client_us: float
    server_us: float | None


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
    server_began = _server_s(side)
    began, client_began = time.perf_counter(), time.process_time()
    done = act()
    took, client = time.perf_counter() - began, time.process_time() - client_began
    server_ended = _server_s(side)
    server = None if server_began is None or server_ended is None else (server_ended - server_began) / done * 1e6
    return Sample(done / took, client / done * 1e6, server)


def _server_s(side: Side) -> float | None:
    """The processor time that this side's server process has used, where the system tells it."""
    if side.connection is None:
        return None
    pid, _ = struct.unpack("!ii", side.connection()._backend_key_data)
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return None


def versus(name: str, unit: str, found: Rounds, ours: str, theirs: str, goal: str = "") -> Figure:
    """Our rate against theirs."""
    ratios = [a.rate / b.rate for a, b in _paired(found, ours, theirs)]
    return _figure(name, unit, [s.rate for s in found[ours]], [s.rate for s in found[theirs]], ratios, goal)


def cpu(name: str, found: Rounds, ours: str, theirs: str) -> list[Figure]:
    """Processor time per operation, here and at the server: other people's load hardly shows in it."""
    here = _processor(f"{name}: CPU here", [(a.client_us, b.client_us) for a, b in _paired(found, ours, theirs)])
    both = [
        (a.client_us + a.server_us, b.client_us + b.server_us)
        for a, b in _paired(found, ours, theirs)
        if a.server_us is not None and b.server_us is not None
    ]
    return [here, _processor(f"{name}: CPU here and at the server", both)] if both else [here]


def _processor(name: str, pairs: Sequence[tuple[float, float]]) -> Figure:
    ours, theirs = zip(*pairs, strict=True)
    return _figure(name, "us", ours, theirs, [a / b for a, b in pairs], "")


def _paired(found: Rounds, ours: str, theirs: str) -> Iterator[tuple[Sample, Sample]]:
    return zip(found[ours], found[theirs], strict=True)


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
