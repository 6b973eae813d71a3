"""Where the time of one step goes: by layer, then function by function."""

from __future__ import annotations

import cProfile
import io
import pstats
from collections import Counter

from tests.bench.paths.step import product_side
from tests.bench.place import Place

STEPS = 300
LAYERS = {
    "/sqlalchemy/": "SQLAlchemy",
    "/pg8000/": "pg8000",
    "/kernel/flights.py": "our driver",
    "/kernel/": "relay",
    "/pydantic": "pydantic",
    "sendall": "waiting for the server",
    "recv_into": "waiting for the server",
}


def step(place: Place) -> str:
    side = product_side(place, STEPS)
    side.prepare()()
    act, profile = side.prepare(), cProfile.Profile()
    profile.runcall(act)
    text = io.StringIO()
    stats = pstats.Stats(profile, stream=text)
    stats.sort_stats("tottime").print_stats(30)
    return f"{_by_layer(stats)}\n{text.getvalue()}"


def _by_layer(stats: pstats.Stats) -> str:
    """Own time of the functions of each layer, under the profiler, in microseconds per step."""
    layers: Counter[str] = Counter()
    found: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]
    for (file, _, name), (_, _, own, _, _) in found.items():
        where = next((layer for mark, layer in LAYERS.items() if mark in f"{file}:{name}"), "Python itself")
        layers[where] += round(own / STEPS * 1e6)
    return "\n".join(f"{microseconds:8d} us  {layer}" for layer, microseconds in layers.most_common())
