"""The hot path of sources: whole lists of three shapes, against dlt's rest_api."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.bench.figures import Figure
from tests.bench.paths import sources
from tests.bench.place import Place


def parts(here: Place, *, quick: bool) -> Iterator[Callable[[], Sequence[Figure]]]:
    yield lambda: sources.measure(here, rows=2_000 if quick else 100_000, rounds=1 if quick else 3)
