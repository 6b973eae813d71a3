"""The hot paths of row jobs: a file into rows, a slice of rows taken and completed, rows into files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shared.row_job.model import Format
from tests.bench.figures import Figure
from tests.bench.paths import pace, row_exports, row_slices, rows
from tests.bench.place import Place


def parts(here: Place, *, quick: bool) -> Iterator[Callable[[], Sequence[Figure]]]:
    yield lambda: rows.measure(here, rows=500 if quick else 100_000, rounds=1 if quick else 5)
    if not quick:
        yield lambda: rows.measure(here, rows=1_000_000, rounds=1)
        yield lambda: rows.measure_dlt(here, rows=100_000, rounds=1)
    yield lambda: rows.measure_memory(here, (500, 1_000) if quick else (100_000, 1_000_000))
    yield lambda: row_slices.measure(few=8_000 if quick else 10_000, many=16_000 if quick else 5_000_000)
    yield lambda: row_exports.measure(here, rows=500 if quick else 100_000, rounds=1 if quick else 5)
    if not quick:
        yield lambda: row_exports.measure(here, rows=250_000, rounds=1, formats=[Format.XLSX])
        yield lambda: row_exports.measure(here, rows=1_000_000, rounds=1, formats=[Format.CSV])
    yield lambda: row_exports.measure_memory(here, (500, 1_000) if quick else (100_000, 1_000_000))
    yield lambda: pace.measure(seeds=1 if quick else 20)
