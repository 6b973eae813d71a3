"""The command `baton` as one types it: a cloud that is reused, mended, and never left behind."""

from __future__ import annotations

import io
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

from infra.cli import main
from infra.local import guard
from infra.local.cloud import Address, throwaway_home
from infra.local.deploy import ROOT
from infra.local.supervise import LOG, end, is_held

pytestmark = pytest.mark.full

PATIENCE_S = 300.0


class Command:
    """`baton` on a home of its own."""

    def __init__(self, home: Path, said: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._said = said

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._said.readouterr()
        ended_with = main(["--home", str(self.home), *arguments])
        said = "".join(self._said.readouterr())
        assert ended_with == code, f"{arguments}: {said}"
        return said

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))


@pytest.fixture
def baton(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    with throwaway_home() as home:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))  # whoever runs the tests may be logged in somewhere
        yield Command(home, capsys)
        end(home)


def test_what_needs_a_cloud_says_how_to_get_one(baton: Command) -> None:
    for command in (("tick",), ("logs",), ("ingest",), ("watch",), ("reset",), ("invoke", "tick")):
        assert "`baton up`" in baton(*command, code=1)
    assert baton.json("status", code=1) == {"up": False}


def give(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What is read from standard input next."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text + "\n"))


def test_a_cloud_is_reused_mended_and_gone_with_its_keeper(baton: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    first = baton.json("up", "--stones=500")
    keeper = keeper_of(baton.home)
    assert baton.json("status")["up"]

    # A second `up` finds it.
    assert "nothing has changed" in baton("up")
    assert keeper_of(baton.home).pid == keeper.pid

    # Runs, as one types them.
    said = baton("ingest", "--high=3000", "--watch")
    assert "succeeded (complete)" in said
    assert "unknown function 'nobody'" in baton("invoke", "nobody", code=1)
    assert "`page_size` must be" in baton("ingest", "--page-size=5000", code=1)
    assert "not valid JSON" in baton("start", "page_ingest", "--params", "{", code=1)
    assert "Unknown kind 'nothing'" in baton("start", "nothing", code=1)
    run_id = baton.json("runs")["runs"][0]["id"]
    lines = baton("logs", "page_ingest", "--run", run_id[:30]).splitlines()
    assert len([line for line in lines if '"message":"turn"' in line and f'"run":"{run_id}"' in line]) > 5
    assert baton("logs", "--run", "ffffffff") == ""
    assert json.loads(baton("tick"))["finished"]
    # A person, an account of the tenant's own, and a machine: through the gateway and its authorizer.
    give(monkeypatch, "Correct-horse-12")
    ann = baton.json("user", "add", "ann@example.com", "--role=admin", "--tenant=acme", "--password-stdin")
    give(monkeypatch, "Correct-horse-12")
    assert "Logged in" in baton("login", "ann@example.com", "--password-stdin")
    assert baton.json("me")["actor"] == f"user:{ann['subject']}"
    assert baton.json("runs")["runs"] == []  # those above are another tenant's
    give(monkeypatch, '{"password": "stand-in-password"}')
    baton("connection", "add", "nivoda", "main", "--set=username=buyer@example.com")
    assert "Connected" in baton("connection", "check", "main")
    assert "succeeded (complete)" in baton("ingest", "--high=1000", "--connection=main", "--watch")
    monkeypatch.setenv("BATON_TOKEN", baton("token", "add", "ci", "--role=viewer").strip())
    assert len(baton.json("runs")["runs"]) == 1
    assert "needs the role" in baton("ingest", code=1)
    monkeypatch.setenv("BATON_TOKEN", "baton_nobody")
    assert "in BATON_TOKEN is wrong, expired or revoked" in baton("runs", code=1)
    monkeypatch.delenv("BATON_TOKEN")

    baton("reset")
    assert "there are no runs yet" in baton("watch", code=1)

    # A part that dies is reported, and mended by `up` with the same database.
    aws = [pid for pid in family(keeper.pid) if command_of(pid).endswith("-m infra.local.guarded_ministack")][
        -1
    ]  # the first is its guard
    os.kill(aws, signal.SIGKILL)
    until(lambda: "aws has ended by itself" in (baton.home / LOG).read_text())
    assert not baton.json("status", code=1)["parts"]["aws"]["up"]
    mended = baton.json("up", "--stones=500")
    assert mended["outputs"].keys() == first["outputs"].keys()
    assert mended["endpoint"] == first["endpoint"], "it listens where it did"
    assert mended["outputs"]["ApiUrl"] == first["outputs"]["ApiUrl"]
    assert baton("status", "--pid", "aws").strip().isdecimal()
    assert baton("status", "--address", "api").strip() == mended["outputs"]["ApiUrl"]
    assert "Available: supervisor, postgres, aws" in baton("local", "status", "--pid", "nobody", code=1)
    assert baton.json("status")["up"]

    # kill -9 of the keeper takes everything with it.
    everyone = family(keeper_of(baton.home).pid)
    assert len(everyone) >= 4
    os.kill(keeper_of(baton.home).pid, signal.SIGKILL)
    until(lambda: not any(map(is_alive, everyone)))
    assert not is_held(baton.home)
    assert "Nothing was running" in baton("down")


def test_ctrl_c_ends_everything(baton: Command) -> None:
    home, elsewhere = baton.home, "http://127.0.0.1:9"
    command = [sys.executable, "-m", "infra.local.cli", "--home", str(home), "up", "--foreground", "--ephemeral"]
    command.append(f"--upstream=nivoda={elsewhere}")
    with (home / "said").open("wb") as said:
        keeper = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
    until(lambda: Address.read(home) is not None)
    everyone = family(keeper.pid)
    until(lambda: elsewhere in (home / "said").read_text())  # whose upstream it is, is said

    keeper.send_signal(signal.SIGINT)

    assert keeper.wait(300) == 0, (home / "said").read_text()
    until(lambda: not any(map(is_alive, everyone)))
    assert not list(home.glob("postgres/pgdata"))


def test_a_cloud_that_cannot_start_says_why_and_leaves_nothing(baton: Command) -> None:
    with_a_file_in_the_way = baton.home / "aws"
    with_a_file_in_the_way.write_text("not a folder")

    said = baton("up", code=1)

    assert "did not start" in said
    assert not is_held(baton.home)
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
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
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
