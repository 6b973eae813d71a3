"""Guards that the checks of the template use the sam that deploys it."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

from tests.support.template import ROOT


@pytest.fixture(scope="session")
def sam() -> Path:
    """The folder of sam's own environment, made by the same target that `make build` uses."""
    home = ROOT / ".local" / "sam-venv"
    (ROOT / ".local").mkdir(exist_ok=True)
    with (ROOT / ".local" / "sam-venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the test processes makes it, the others wait
        made = subprocess.run(["make", "-s", ".local/sam-venv/.ready"], cwd=ROOT, capture_output=True, check=False)
    assert made.returncode == 0, made.stderr.decode()
    return home / "bin"
