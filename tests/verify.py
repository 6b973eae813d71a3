"""`make verify`: the long versions of every proof, one part after the other; `ARGS="schedules mutants"` runs some of them.

Each part says before it starts how long it takes on two idle cores, and after it how long it took. All parts run, whatever
fails; the summary at the end says which did.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PYTHON = (sys.executable, "-m")


@dataclass(frozen=True, slots=True)
class Part:
    minutes: int
    what: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


PARTS = {
    "check": Part(20, "what CI runs", ("make", "check")),
    "schedules": Part(
        45, "200,000 schedules in memory", (*PYTHON, "tests.simulation.simulate", "--store", "memory", "--schedules", "200000")
    ),
    "postgres": Part(
        10, "10,000 schedules on Postgres", (*PYTHON, "tests.simulation.simulate", "--store", "postgres", "--schedules", "10000")
    ),
    "jobs": Part(20, "10,000 schedules of jobs", (*PYTHON, "tests.simulation.jobs", "--schedules", "10000")),
    "long": Part(
        240, "10,000 schedules of each kind, all pairs of kills, sam deploy, the documents", (*PYTHON, "pytest", "-m", "long", "--ring=all")
    ),
    "sources": Part(
        20, "10,000 worlds of source files",
        (*PYTHON, "pytest", "-q", "-n", "0", "tests/unit/test_source_model.py"), {"BATON_MODEL_SEEDS": "10000"},
    ),
    "soak": Part(15, "120 virtual days", (*PYTHON, "tests.soak")),
    "mutants": Part(50, "every mutant", (*PYTHON, "tests.mutants.run")),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all without any")
    chosen = parser.parse_args(arguments).parts or list(PARTS)
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}. Available: {', '.join(PARTS)}")
    print(f"about {_hours(sum(PARTS[name].minutes for name in chosen))} on two idle cores:")
    for name in chosen:
        print(f"  {name:10s} {PARTS[name].minutes:4d} min  {PARTS[name].what}")
    ended: dict[str, tuple[int, float]] = {}
    for name in chosen:
        part = PARTS[name]
        print(f"\n== {name}: {part.what}, about {_hours(part.minutes)}", flush=True)
        started = time.monotonic()
        done = subprocess.run(part.command, check=False, env={**os.environ, **part.environment})
        ended[name] = done.returncode, time.monotonic() - started
    print()
    for name, (code, seconds) in ended.items():
        print(f"{'passed' if code == 0 else 'FAILED':6s}  {name:10s} {seconds / 60:6.1f} min")
    return max(code != 0 for code, _ in ended.values())


def _hours(minutes: int) -> str:
    return f"{minutes} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"


if __name__ == "__main__":
    sys.exit(main())
