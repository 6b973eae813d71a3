"""A cold start: what a function's process imports before its first message, in fresh processes, and what is shipped."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from infra.local.deploy import ROOT, package
from tests.bench.figures import Figure

GOAL = "<= 1.25"
IMPORT = "import time; began = time.process_time(); import {module}; print(time.process_time() - began)"
PRODUCT, LIMIT = "functions.page_ingest.app", "tests.bench.limits.imports"
ENVIRONMENT = {
    "DATABASE_URL": "postgresql://baton_worker@203.0.113.1/baton",  # nobody is asked before the first message
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
}
ARTIFACT = ROOT / ".local" / "artifact"


def measure(*, rounds: int) -> list[Figure]:
    _import(PRODUCT), _import(LIMIT)  # whoever comes first compiles
    pairs = [(_import(PRODUCT), _import(LIMIT)) for _ in range(rounds)]
    ours, theirs = zip(*pairs, strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    cold = Figure(
        name="a cold start: import of a step's function, against its libraries alone",
        value=statistics.median(ours) * 1000,
        unit="ms of CPU",
        against=statistics.median(theirs) * 1000,
        ratio=ratio,
        goal=GOAL,
    )
    own = Figure(name="an artifact: our own code, zipped", value=len(package()) / 1e3, unit="kB")
    return [cold, own, *_shipped()]


def _import(module: str) -> float:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | ENVIRONMENT
    command = [sys.executable, "-c", IMPORT.format(module=module)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _shipped() -> list[Figure]:
    """What `make build` made, if it was called: dependencies and bytecode too."""
    built = sorted(path for path in ARTIFACT.glob("*") if path.is_dir()) if ARTIFACT.is_dir() else []
    return [
        Figure(name=f"an artifact for {path.name}, unpacked", value=_bytes(path) / 1e6, unit="MB") for path in built
    ]


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
