"""Measure the product against its bare limits and its peers: `python -m tests.bench [--quick] [--only PART] [--profile]`."""

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


# How long a part takes, in minutes, on two idle cores.
MINUTES = {
    "step": 2, "whole_run": 2, "refused": 1, "start": 2, "tick": 2, "api": 4, "simulated": 1, "cold": 2, "hops": 1, "peers": 3,
    "fsync": 1, "flatness": 15,
}  # fmt: skip
MINUTES_OF_A_KIND = 6


def parts(here: Place, *, quick: bool) -> Iterator[tuple[str, Part]]:
    """Each path of the relay and of each kind; quick ones only prove that they can be measured."""
    rounds = 2 if quick else 31
    yield "step", lambda: step.measure(here, steps=5 if quick else 50, rounds=rounds)
    yield "whole_run", lambda: whole_run.measure(here, runs=2 if quick else 8, rounds=rounds)
    yield "refused", lambda: refused.measure(here, messages=5 if quick else 100, rounds=rounds)
    yield "start", lambda: start.measure(here, lanes=100 if quick else 1_000, rounds=rounds)
    yield "tick", lambda: tick.measure(here, lanes=1_000 if quick else 20_000, rounds=1 if quick else 5)
    for name, module in _kinds().items():
        yield from ((name, part) for part in module.parts(here, quick=quick))
    yield "api", lambda: api.measure(here, runs=200 if quick else 100_000, requests=2 if quick else 20, rounds=rounds)
    yield "simulated", lambda: simulated.measure(schedules=5 if quick else 100, rounds=1 if quick else 5)
    yield "cold", lambda: cold.measure(rounds=2 if quick else 21)
    yield "hops", lambda: hops.measure(quick=quick)
    if peers.installed():
        yield "peers", lambda: peers.measure(here, steps=5 if quick else 50, rounds=2 if quick else 15)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smallest sizes: a smoke run, its figures mean nothing")
    names = [*MINUTES, *sorted(_kinds())]
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="PART",
        help=f"only this part; may be repeated: {', '.join(names)}",
    )
    parser.add_argument("--profile", action="store_true", help="only show where the time of one step goes")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(arguments)
    if args.profile:
        with place() as here:
            print(profiled.step(here))
        return 0
    chosen = args.only or names
    if not args.quick:
        minutes = sum(MINUTES.get(name, MINUTES_OF_A_KIND) for name in chosen)
        print(f"about {minutes} minutes on two idle cores: {', '.join(chosen)}", flush=True)
    figures = _measure(chosen, quick=args.quick)
    write(figures, args.out)
    print(f"\n{table(figures)}\n\n{args.out}")
    return 0


def _kinds() -> dict[str, Any]:
    return {module.__name__.split(".")[-2]: module for module in brought("bench")}


def _measure(chosen: Sequence[str], *, quick: bool) -> list[Figure]:
    figures: list[Figure] = []
    with place() as here:
        for name, part in parts(here, quick=quick):
            if name in chosen:
                figures += _shown(part())
    if not (peers.installed() and ingest.dlt_installed()):
        print("DBOS and dlt are not installed here: `make bench` measures them in an environment of its own")
    if "fsync" in chosen and not quick:
        with place(HONEST_DISK) as here:
            figures += _shown(step.measure(here, steps=50, rounds=11, label=", fsync on"))
    if "flatness" in chosen and not quick:
        figures += flatness.measure(quick=quick)
    return figures


def _shown(figures: Sequence[Figure]) -> Sequence[Figure]:
    for figure in figures:
        ratio = "" if figure.ratio is None else f"   ratio {figure.ratio:.2f}"
        print(f"  {figure.name}: {figure.value:,.3g} {figure.unit}{ratio}", flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
