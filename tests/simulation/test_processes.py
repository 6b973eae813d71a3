"""Guards that no worker of `simulate` and no server of a worker outlives the process that somebody ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

PATIENCE_S = 300.0


def command_of(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children(pid: int) -> set[int]:
    """All processes below this one."""
    parents = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z":
            parents[int(each.parent.name)] = int(fields[1])
    found, level = set(), {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


def wait_until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("store", "end"), [("memory", signal.SIGTERM), ("memory", signal.SIGKILL), ("postgres", signal.SIGKILL)]
)
def test_workers_and_their_servers_end_with_the_simulation(
    store: str, end: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)  # each worker starts a server of its own
    command = [sys.executable, "-m", "tests.simulation.simulate", "--store", store, "--schedules", "1000000"]
    simulation = subprocess.Popen([*command, "--jobs", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wanted = "guard.py" if store == "postgres" else "spawn_main"
        wait_until(
            lambda: sum(wanted in command_of(pid) for pid in children(simulation.pid)) >= 2, "the workers never started"
        )
        below = children(simulation.pid)
        simulation.send_signal(end)
        simulation.wait(PATIENCE_S)
    finally:
        simulation.kill()

    wait_until(lambda: not any(map(command_of, below)), f"still there: {[*map(command_of, below)]}")
