"""`baton up` with another server in the place of a stand-in, with settings, and with nobody who reads what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.cloud import Address, throwaway_home
from infra.local.deploy import ROOT
from infra.local.runs import environment_of
from infra.local.standins.nivoda import NivodaStandIn
from infra.local.standins.nivoda_faults import Operation
from infra.local.supervise import end

pytestmark = pytest.mark.full
SETTINGS = "BATON_INGEST_PAGES_PER_STEP=3,BATON_ROWS_SLOTS=2"


@pytest.fixture
def home() -> Iterator[Path]:
    with throwaway_home() as home:
        yield home
        end(home)


def baton(home: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "infra.local.cli", "--home", str(home), *arguments]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(home / "config"), **(env or {})}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def up_with_nobody_who_reads(home: Path, *arguments: str, **env: str) -> str:
    """It answers what was complained of."""
    command = [sys.executable, "-m", "infra.local.cli", "--home", str(home), "up", "--stones=50", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()  # as `head -1` does
        complaints = process.stderr.read()
        assert process.wait(300) == 0, complaints
    return complaints


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            "--upstream=elsewhere=http://127.0.0.1:1",
            "Unknown upstream 'elsewhere'. Available: nivoda, mce, infojobs, adzuna, google_sheets, dropbox, sources, product_search.",
        ),
        ("--upstream=nivoda=http://example.com", "https://"),
        ("--upstream=nivoda=https://u:p@example.com", "must not carry credentials"),
        ("--upstream=nivoda", "expected NAME=URL"),
        ("--settings=BATON_ROWS_SLOT=8", "unknown setting BATON_ROWS_SLOT (did you mean BATON_ROWS_SLOTS?)."),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(home: Path, asked: str, said: str) -> None:
    done = baton(home, "up", asked)

    assert done.returncode
    assert said in done.stderr
    assert Address.read(home) is None


def test_another_server_stands_in_the_stand_ins_place_and_a_set_variable_is_not_ignored_in_silence(home: Path) -> None:
    with NivodaStandIn(3, stones=60) as theirs:
        theirs.password = "their-own"
        url = theirs.start()
        given = {"BATON_NIVODA_PASSWORD": "their-own", "BATON_SETTINGS": SETTINGS}
        complaints = up_with_nobody_who_reads(home, "--upstream", f"nivoda={url}", **given)
        again = baton(home, "up", env={"BATON_NIVODA_BASE_URL": "https://example.com"})
        moved = baton(home, "up", "--upstream", "nivoda=https://example.com")
        other = baton(home, "up", "--settings", "BATON_INGEST_PAGES_PER_STEP=2")
        address = Address.read(home)

        ended = baton(home, "ingest", "--watch")

        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert theirs.calls[Operation.PAGE] > 0

    assert "Traceback" not in complaints
    assert "warning: BATON_NIVODA_BASE_URL is set" in again.stderr
    assert "--upstream nivoda=$BATON_NIVODA_BASE_URL" in again.stderr
    assert "`baton down`" in moved.stderr
    assert "up with other settings. Run `baton down`" in other.stderr
    assert address is not None
    assert {environment_of(address, name)["BATON_SETTINGS"] for name in ("page_ingest", "tick", "migrate")} == {
        SETTINGS
    }
