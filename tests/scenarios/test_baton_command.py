"""The command `baton` as one types it: a cloud that is reused, mended, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.local import guard
from infra.local.cloud import Address, throwaway_home
from infra.local.deploy import ROOT
from infra.local.supervise import LOG, is_held

PATIENCE_S = 60.0


@pytest.fixture
def home() -> Iterator[Path]:
    with throwaway_home() as path:
        yield path
        baton(path, "down")


def baton(home: Path, *arguments: str, code: int | None = 0) -> str:
    command = [sys.executable, "-m", "infra.local.cli", "--home", str(home), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert code is None or done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def asked(home: Path, *arguments: str, code: int = 0) -> Any:
    return json.loads(baton(home, *arguments, "--json", code=code))


def test_what_needs_a_cloud_says_how_to_get_one(home: Path) -> None:
    for command in (("tick",), ("logs",), ("ingest",), ("watch",), ("reset",), ("invoke", "tick")):
        assert "`baton up`" in baton(home, *command, code=1)
    assert asked(home, "status", code=1) == {"up": False}


def test_a_cloud_is_reused_mended_and_gone_with_its_keeper(home: Path) -> None:
    first = asked(home, "up", "--stones=500")
    keeper = keeper_of(home)
    assert asked(home, "status")["up"]

    # A second `up` finds it.
    assert "nothing has changed" in baton(home, "up")
    assert keeper_of(home).pid == keeper.pid

    # Runs, as one types them.
    said = baton(home, "ingest", "--high=3000", "--watch")
    assert "succeeded (complete)" in said
    assert "there is no function nobody" in baton(home, "invoke", "nobody", code=1)
    assert "page_size: Input should be" in baton(home, "ingest", "--page-size=5000", code=1)
    assert "not JSON" in baton(home, "start", "page_ingest", "--params", "{", code=1)
    assert "there is no kind of work nothing" in baton(home, "start", "nothing", code=1)
    assert '"message":"turn"' in baton(home, "logs", "page_ingest")
    assert json.loads(baton(home, "tick"))["finished"]
    baton(home, "reset")
    assert "there is no run yet" in baton(home, "watch", code=1)

    # A part that dies is reported, and mended by `up` with the same database.
    (aws,) = [pid for pid in family(keeper.pid) if "ministack" in command_of(pid) and "guard.py" not in command_of(pid)]
    os.kill(aws, signal.SIGKILL)
    until(lambda: "aws has ended by itself" in (home / LOG).read_text())
    assert not asked(home, "status", code=1)["parts"]["aws"]["up"]
    mended = asked(home, "up", "--stones=500")
    assert mended["outputs"].keys() == first["outputs"].keys()
    assert asked(home, "status")["up"]

    # kill -9 of the keeper takes everything with it.
    everyone = family(keeper_of(home).pid)
    assert len(everyone) >= 4
    os.kill(keeper_of(home).pid, signal.SIGKILL)
    until(lambda: not any(map(is_alive, everyone)))
    assert not is_held(home)
    assert "nothing was up" in baton(home, "down")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_everything(home: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "infra.local.cli", "--home", str(home), "up", "--foreground", "--ephemeral"]
    with (home / "said").open("wb") as said:
        keeper = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
    until(lambda: Address.read(home) is not None)
    everyone = family(keeper.pid)

    keeper.send_signal(number)

    assert keeper.wait(30) == 0, (home / "said").read_text()
    until(lambda: not any(map(is_alive, everyone)))
    assert not list(home.glob("postgres/pgdata"))


def test_a_cloud_that_cannot_start_says_why_and_leaves_nothing(home: Path) -> None:
    with_a_file_in_the_way = home / "aws"
    with_a_file_in_the_way.write_text("not a folder")

    said = baton(home, "up", code=1)

    assert "did not start" in said
    assert not is_held(home)
    with_a_file_in_the_way.unlink()


# --- processes --------------------------------------------------------------------------------------------------------


def keeper_of(home: Path) -> Address:
    address = Address.read(home)
    assert address is not None
    return address


def family(pid: int) -> list[int]:
    """A process and all that came from it."""
    return [pid, *(found for child in guard.children(pid) for found in family(child))]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(true: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
