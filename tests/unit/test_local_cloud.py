"""The local cloud's own rules: what is packed, how rows are compared, how progress is told."""

from __future__ import annotations

import io
import json
import shutil
import socket
import stat
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.local import kept_secrets
from infra.local.child import HOST, free_port
from infra.local.cloud import PORTS, last_ports, stage_parameters
from infra.local.demo import differences
from infra.local.deploy import ROOT, package
from infra.local.progress import Lines, label, state
from infra.local.runs import Progress
from infra.local.standins.nivoda_stones import Stock, Stone
from infra.sam.artifact import SOURCES as CODE
from tests.support.vaults import mocked_vault


def row(stone: Stone, **changes: Any) -> dict[str, Any]:
    rest = stone.rest
    return {
        "external_id": stone.id, "offer_id": stone.offer_id, "price_cents": stone.price_cents,
        "carats": Decimal(str(stone.carats)), "shape": stone.shape, "color": rest["color"], "clarity": rest["clarity"],
        "lab": rest["lab"], "certificate": rest["certNumber"], "availability": stone.availability, **changes,
    }  # fmt: skip


@pytest.fixture
def stones() -> tuple[Stone, ...]:
    return Stock(1, 20, 200, 20_000, lambda: 0.0).stones


def test_the_same_rows_do_not_differ(stones: tuple[Stone, ...]) -> None:
    assert differences(stones, [row(stone) for stone in stones]) == []


def test_every_difference_is_found(stones: tuple[Stone, ...]) -> None:
    first, second, third, *others = stones
    rows = [row(second, price_cents=1), row(third), row(third), *map(row, others), row(first, external_id="x")]

    found = [line.partition(":")[0] for line in differences(stones, rows)]

    assert sorted(found) == sorted([second.id, "missing", "not in the catalogue", "twice"])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in CODE:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


@pytest.mark.full
def test_the_same_files_make_the_same_package(project: Path) -> None:
    before = package(project)
    for path in project.rglob("*.py"):
        path.touch()
    (project / "functions" / "__pycache__").mkdir(exist_ok=True)
    (project / "functions" / "__pycache__" / "old.cpython-311.pyc").write_bytes(b"old")

    assert package(project) == before == package()


@pytest.mark.full
def test_a_package_is_code_and_nothing_else_and_it_runs(project: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(io.BytesIO(package(project))).namelist()
    assert {name.split("/")[0] for name in names} == {"functions", "shared", "infra", "sources"}
    assert not [name for name in names if "local" in name or name.startswith("tests")]

    zipfile.ZipFile(io.BytesIO(package(project))).extractall(tmp_path / "task")
    command = [sys.executable, "-v", "-c", "import shared.kernel.step"]
    done = subprocess.run(command, cwd=tmp_path / "task", capture_output=True, text=True, check=True)
    compiled = tmp_path / "task" / "shared" / "kernel" / "__pycache__" / f"step.{sys.implementation.cache_tag}.pyc"
    assert f"code object from '{compiled}'" in done.stderr


def test_the_local_stage_is_the_one_of_samconfig() -> None:
    parameters = stage_parameters()

    assert parameters["Stage"] == "local"
    assert int(parameters["VisibilitySeconds"]) >= 6 * int(parameters["StepTimeoutSeconds"])
    assert int(parameters["LeaseSeconds"]) > int(parameters["StepTimeoutSeconds"])


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("plan", "plan"),
        ("part:0000000200-0000005150", "$200 to $5,150"),
        ("part:0000000200-0000005150#2", "$200 to $5,150 (crawl 2)"),
        ("audit:1.1.0", "audit"),
    ],
)
def test_a_lane_is_called_by_its_prices(key: str, said: str) -> None:
    assert label(key) == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "queued"),
        ({"status": "done"}, "done"),
        ({"at_work": True, "claims": 1}, "running"),
        ({"at_work": True, "claims": 2}, "taken over"),
        ({"at_work": False, "claims": 1}, "its process was killed"),
        ({"due_in_s": 30.2}, "due in 30 s"),
    ],
)
def test_a_lane_says_what_it_waits_for(changes: dict[str, Any], said: str) -> None:
    assert state(lane(**changes)) == said


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end() -> None:
    out = io.StringIO()
    lines = Lines(Console(file=out))

    for _ in range(5):
        lines.show(Progress(run={"status": "running"}, lanes=[lane()], rows=7))
    lines.show(Progress(run={"status": "succeeded"}, lanes=[lane(status="done")], rows=9))

    first, last = out.getvalue().splitlines()
    assert first == "run running: 7 rows, lanes: 1 active; plan queued"
    assert last == "run succeeded: 9 rows, lanes: 1 done"


def lane(**changes: Any) -> dict[str, Any]:
    usual = {
        "key": "plan",
        "status": "active",
        "at_work": None,
        "claims": 0,
        "due_in_s": 0.0,
        "done": None,
        "total": None,
    }
    return usual | changes


# --- what outlives a restart


@pytest.mark.full
def test_secrets_of_connections_come_back_under_the_version_that_the_database_names(tmp_path: Path) -> None:
    name = f"{kept_secrets.OURS}tenant/connection"
    with mocked_vault() as vault:
        vault.create_secret(Name=name, SecretString='{"password": "old"}')
        version = vault.put_secret_value(SecretId=name, SecretString='{"password": "new"}')["VersionId"]
        vault.create_secret(Name="someone/elses", SecretString="x")
        kept_secrets.save(vault, tmp_path)
    assert stat.S_IMODE((tmp_path / kept_secrets.FILE).stat().st_mode) == 0o600

    with mocked_vault() as vault:
        assert kept_secrets.restore(vault, tmp_path) == 1
        found = vault.get_secret_value(SecretId=name, VersionId=version)
        assert found["SecretString"] == '{"password": "new"}'
        assert [each["Name"] for each in vault.list_secrets()["SecretList"]] == [name]
        vault.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)
        kept_secrets.save(vault, tmp_path)
    with mocked_vault() as vault:
        assert kept_secrets.restore(vault, tmp_path) == 0, "what was deleted stays deleted"


def test_a_cloud_listens_where_it_did_unless_somebody_else_does_now(tmp_path: Path) -> None:
    free = free_port()
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        ports = {"aws": free, "nivoda": taken.getsockname()[1]}
        (tmp_path / PORTS).write_text(json.dumps(ports))

        assert last_ports(tmp_path) == {"aws": free}
    (tmp_path / PORTS).write_text("{")
    assert last_ports(tmp_path) == {}
