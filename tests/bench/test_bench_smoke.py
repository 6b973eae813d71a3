"""Guards that `make bench` can be run at any time: every path works in its smallest size. Nothing here is timed."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.bench.__main__ import main


@pytest.mark.long  # a minute of both cores for what is no promise
def test_the_quick_bench_measures_every_path_and_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"

    assert main(["--quick", "--flatness", "--out", str(out)]) == 0

    figures = orjson.loads(out.read_bytes())
    assert all(figure.keys() == {"name", "value", "unit", "against", "ratio"} for figure in figures)
    assert all(isinstance(figure["value"], (int, float)) and figure["value"] > 0 for figure in figures)
    assert all((figure["ratio"] is None) or figure["against"] is not None for figure in figures)
    assert len({figure["name"] for figure in figures}) == len(figures)
    printed = capsys.readouterr().out
    for path in (
        "one step",
        "a run of",
        "a stale message",
        "start of a run",
        "overdue lanes",
        "a page of 30 rows",
        "a page of 1,000 rows",
        "flights per page",
        "a whole ingestion",
        "flights per poll",
        "a poll of a remote query",
        "worker-seconds of a query",
        "rows exported as CSV",
        "rows exported as XLSX",
        "peak memory of exporting",
        "GET /runs, 50 of",
        "GET /runs/{id}: our share of the latency",
        "schedules",
        "claim, pages",
        "cold start",
        "artifact",
        "hops through the local cloud",
    ):
        assert any(path in figure["name"] for figure in figures), path
        assert path in printed
