"""The hot paths of page ingestion: a page's rows, and a whole catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tests.bench.figures import Figure
from tests.bench.paths import ingest, upsert
from tests.bench.place import Place


def parts(here: Place, *, quick: bool) -> Iterator[Callable[[], Sequence[Figure]]]:
    rounds = 2 if quick else 31
    yield lambda: upsert.measure(here, size=30, count=2 if quick else 60, rounds=rounds, also_rows=True)
    yield lambda: upsert.measure(here, size=1_000, count=1 if quick else 2, rounds=rounds, also_rows=False)
    yield lambda: ingest.measure(here, stones=200 if quick else 5_000, rounds=1 if quick else 9)
