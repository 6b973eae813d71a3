"""Measure the product against its bare limits and its peers: `python -m tests.bench [--quick] [--only KIND] [--flatness] [--profile]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bench import flatness, profiled
from tests.bench.figures import Figure, table, write
from tests.bench.paths import api, cold, hops, ingest, peers, refused, simulated, start, step, tick, whole_run
from tests.bench.place import Place, place
from tests.support.subject import brought

OUT = Path(".local/bench.json")
HONEST_DISK = {"fsync": "on", "full_page_writes": "on"}
Part = Callable[[], Sequence[Figure]]


def parts(here: Place, *, quick: bool) -> Iterator[Part]:
    """Each path of the relay; quick ones only prove that they can be measured."""
    rounds = 2 if quick else 31
    yield lambda: step.measure(here, steps=5 if quick else 50, rounds=rounds)
    yield lambda: whole_run.measure(here, runs=2 if quick else 8, rounds=rounds)
    yield lambda: refused.measure(here, messages=5 if quick else 100, rounds=rounds)
    yield lambda: start.measure(here, lanes=100 if quick else 1_000, rounds=rounds)
    yield lambda: tick.measure(here, lanes=1_000 if quick else 20_000, rounds=1 if quick else 5)
    for module in brought("bench"):
        yield from module.parts(here, quick=quick)
    yield lambda: api.measure(here, runs=200 if quick else 100_000, requests=2 if quick else 20, rounds=rounds)
    yield lambda: simulated.measure(schedules=5 if quick else 100, rounds=1 if quick else 5)
    yield lambda: cold.measure(rounds=2 if quick else 21)
    yield lambda: hops.measure(quick=quick)
    if peers.installed():
        yield lambda: peers.measure(here, steps=5 if quick else 50, rounds=2 if quick else 15)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smallest sizes: a smoke run, its figures mean nothing")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(_kinds()),
        metavar="KIND",
        help="only what this kind brings; may be repeated",
    )
    parser.add_argument("--flatness", action="store_true", help="also fill six million lanes (minutes, 5 GB of disk)")
    parser.add_argument("--profile", action="store_true", help="only show where the time of one step goes")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(arguments)
    if args.profile:
        with place() as here:
            print(profiled.step(here))
        return 0
    if args.only:
        figures = _of_kinds(args.only, quick=args.quick)
    else:
        figures = _measure(quick=args.quick, also_flatness=args.flatness)
    write(figures, args.out)
    print(f"\n{table(figures)}\n\n{args.out}")
    return 0


def _kinds() -> dict[str, Any]:
    return {module.__name__.split(".")[-2]: module for module in brought("bench")}


def _of_kinds(names: Sequence[str], *, quick: bool) -> list[Figure]:
    with place() as here:
        return [
            figure for name in names for part in _kinds()[name].parts(here, quick=quick) for figure in _shown(part())
        ]


def _measure(*, quick: bool, also_flatness: bool) -> list[Figure]:
    figures: list[Figure] = []
    with place() as here:
        for part in parts(here, quick=quick):
            figures += _shown(part())
    if not (peers.installed() and ingest.dlt_installed()):
        print("DBOS and dlt are not installed here: `make bench` measures them in an environment of its own")
    if not quick:
        with place(HONEST_DISK) as here:
            figures += _shown(step.measure(here, steps=50, rounds=11, label=", fsync on"))
    if also_flatness:
        figures += flatness.measure(quick=quick)
    return figures


def _shown(figures: Sequence[Figure]) -> Sequence[Figure]:
    for figure in figures:
        ratio = "" if figure.ratio is None else f"   ratio {figure.ratio:.2f}"
        print(f"  {figure.name}: {figure.value:,.3g} {figure.unit}{ratio}", flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
