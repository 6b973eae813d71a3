"""How fast the relay runs when nothing is real: schedules of the simulation in memory."""

from __future__ import annotations

import itertools
import logging
import statistics

from tests.bench.figures import Figure
from tests.bench.measure import Act, Side, race
from tests.simulation.backends import MemoryBackend
from tests.simulation.simulate import random_schedules, run_schedule


def measure(*, schedules: int, rounds: int) -> list[Figure]:
    def act() -> int:
        for name in itertools.islice(random_schedules(0), schedules):
            run_schedule(name, MemoryBackend)
        return schedules

    def prepare() -> Act:
        return act

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        found = race([Side("memory", prepare)], rounds)
    finally:
        logging.disable(before)
    rate = statistics.median(sample.rate for sample in found["memory"])
    return [Figure(name="simulated schedules in memory, one core", value=rate, unit="schedules/s")]
