"""Is the proof awake? Break one rule of the relay at a time and see that the simulation or the races notice.

`python -m tests.mutants.run [name …]`. Every `*.patch` beside this file is a mutant; drop in another one and it is tried.
Its first lines say what is broken and, after `killed by:`, which proof must notice: `memory` or `postgres` (simulation,
perhaps with the one mode of schedules that shows it, as in `memory blackout`) or `races` (two connections).
A mutant that cannot run at all proves nothing and counts as an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.support.databases import scratch_server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PARTS = ("shared", "tests", "infra", "functions", "pyproject.toml")
SCHEDULES = {"memory": 6_000, "postgres": 2_000}


@dataclass(frozen=True, slots=True)
class Mutant:
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def killer(self) -> list[str]:
        for line in self.path.read_text().splitlines():
            if line.startswith("killed by:"):
                return line.removeprefix("killed by:").split()
        raise ValueError(f"{self.path.name} does not say what it is killed by")


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    killed: bool
    how: str
    took_s: float


def mutants(names: list[str]) -> list[Mutant]:
    found = [Mutant(path) for path in sorted(HERE.glob("*.patch"))]
    return [mutant for mutant in found if not names or mutant.name in names]


def apply(mutant: Mutant, folder: Path) -> None:
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / part)
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(mutant.path)],
        cwd=folder,
        check=True,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent), "GIT_DIR": "/dev/null"},
    )


def attempt(mutant: Mutant, database_url: str) -> Verdict:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"baton-{mutant.name}-") as temporary:
        folder = Path(temporary)
        apply(mutant, folder)
        proof, *mode = mutant.killer
        command = _races(mode) if proof == "races" else _simulation(proof, mode)
        env = {**os.environ, "DATABASE_URL": database_url, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    killed, how = _read(proof, done)
    return Verdict(mutant, killed, how, time.monotonic() - began)


def _simulation(store: str, mode: list[str]) -> list[str]:
    count = str(SCHEDULES[store])
    command = [sys.executable, "-m", "tests.simulation.simulate", "--store", store, "--schedules", count, "--jobs", "1"]
    return [*command, "--mode", *mode] if mode else command


def _races(mode: list[str]) -> list[str]:
    only = ["-k", " ".join(mode)] if mode else []
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/races", *only]


def _read(proof: str, done: subprocess.CompletedProcess[str]) -> tuple[bool, str]:
    if done.returncode == 0:
        return False, "SURVIVED"
    lines = (done.stderr + done.stdout).splitlines()
    wanted = "FAILED" if proof == "races" else "VIOLATION"
    named = [line for line in lines if line.startswith(wanted)]
    return (True, named[0]) if named else (False, "DID NOT RUN: " + " | ".join(lines[-3:]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutants to try; all without any")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    chosen = mutants(args.names)
    with scratch_server({"max_connections": "300"}) as server, ThreadPoolExecutor(args.jobs) as pool:
        verdicts = []
        for future in as_completed([pool.submit(attempt, mutant, server.url()) for mutant in chosen]):
            verdict = future.result()
            verdicts.append(verdict)
            word = "killed  " if verdict.killed else "ALIVE   "
            print(f"{word} {verdict.mutant.name:45s} {verdict.took_s:6.1f} s  {verdict.how[:110]}", flush=True)
    alive = [verdict for verdict in verdicts if not verdict.killed]
    print(f"{len(verdicts) - len(alive)} of {len(verdicts)} mutants killed")
    return 1 if alive or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
