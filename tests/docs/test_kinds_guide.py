"""Guards that docs/kinds.md is true: its kinds run, `make kind` makes one that keeps every promise, its commands work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.new_kind import Refused, new_kind
from shared.kernel import run as runs
from tests.support.databases import ServerAdmin
from tests.support.rig import FIFO, LEASE_S, TENANT, Rig, make_rig, rig, rig_database

__all__ = ["make_rig", "rig", "rig_database"]

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "kinds.md").read_text()
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.pyc")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


# --- the code of the guide


@pytest.fixture(scope="module")
def guide() -> dict[str, Any]:
    """Every name that the guide's code defines, block after block."""
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "docs/kinds.md", "exec", dont_inherit=True), names)
    return names


def test_the_first_kind_of_the_guide_runs(rig: Rig, guide: dict[str, Any]) -> None:
    rig.kind = replace(guide["COUNT"], name="tally")  # the rig's queue has this name

    run_id = runs.start_run(rig.ports, rig.kind, TENANT, {"target": 3})

    assert rig.run_to_end(run_id, within_s=600) == "succeeded"
    assert rig.tallied(run_id, "a") == rig.tallied(run_id, "b") == [0, 1, 2]


class SlowPrinter:
    """Closed at first, then busy for a while; loses the answer to its first order."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        self.orders = self.asked = self.opened = 0

    def is_open(self) -> bool:
        self.opened += 1
        return self.opened > 1

    def submit(self, key: str) -> str:
        self.orders += 1
        self.jobs[key] = f"job-{self.orders}"
        if self.orders == 1:
            raise ConnectionResetError
        return self.jobs[key]

    def find(self, key: str) -> str | None:
        return self.jobs.get(key)

    def is_done(self, job: str) -> bool:
        self.asked += 1
        return self.asked > 2

    def delete(self, key: str) -> None:
        self.jobs.pop(key, None)


def test_the_second_kind_of_the_guide_does_what_is_said_of_it(rig: Rig, guide: dict[str, Any]) -> None:
    with rig.owner.connect() as connection:
        connection.exec_driver_sql("drop table if exists letter")
        connection.exec_driver_sql(guide["SCHEMA"])
    printer = SlowPrinter()
    rig.kind = guide["letter_kind"](printer)
    rig.ports = replace(rig.ports, relay=rig.ports.relay.model_copy(update={"fifo_queue": FIFO, "lease_s": LEASE_S}))

    run_id = runs.start_run(rig.ports, rig.kind, TENANT, {"ref": "a-1"})
    rig.pass_time(60)
    assert rig.lane(run_id, "print")["waits_for"] == "the printer to open"
    assert rig.run_to_end(run_id, within_s=7_200) == "succeeded"
    rig.pass_time(120)

    assert (printer.orders, printer.jobs) == (1, {})
    assert runs.start_run(rig.ports, rig.kind, TENANT, {"ref": "a-1"}) == run_id
    (row,) = rig.rows("select printing_since from letter where run_id = :id", id=run_id)
    assert row["printing_since"] is not None
    assert len(rig.rows("select 1 from signal where name = 'letter.printed'")) == 1

    with rig.ports.store.begin(TENANT) as tx:
        tx.add_signal(TENANT, "order.paid", {"order": "b-2"})
    rig.pass_time(7_200)
    (heard,) = rig.rows("select r.status, r.source from run r join letter l on l.run_id = r.id where l.ref = 'b-2'")
    assert (heard["status"], heard["source"]) == ("succeeded", "event")


# --- make kind


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "make kind NAME=water_meter"),
        ("WaterMeter", "lower-case"),
        ("water-meter", "lower-case"),
        ("../water", "lower-case"),
        ("water__meter", "lower-case"),
        ("class", "lower-case"),
        ("w" * 41, "40 characters"),
        ("page_ingest_dead", "-dead"),
        ("page_ingest", "shared/page_ingest exists"),
        ("tick", "functions/tick exists"),
        ("errand", "tests/kinds/errand exists"),
        ("delay", "DelayQueue in template.yaml exists"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, why: str) -> None:
    with pytest.raises(Refused, match=re.escape(why)):
        new_kind(name, ROOT)


def test_a_database_that_is_too_small_for_one_more_kind_is_named(copy: Path) -> None:
    template = copy / "template.yaml"
    before = template.read_text()
    template.write_text(before.replace("    '45': {", "    '25': {}\n    '45': {").replace("['45'", "['25', '45'"))
    samconfig = copy / "samconfig.toml"
    kept = samconfig.read_text()
    try:
        assert "'25'" not in new_kind("water_meter", copy)[Path("template.yaml")]
        samconfig.write_text(kept.replace("DatabaseConnections=45", "DatabaseConnections=25"))
        with pytest.raises(Refused, match="25 database connections are too few"):
            new_kind("water_meter", copy)
    finally:
        template.write_text(before)
        samconfig.write_text(kept)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The repository's files in another place."""
    place = tmp_path_factory.mktemp("copy") / "baton"
    shutil.copytree(ROOT, place, ignore=LEFT_OUT)
    yield place
    shutil.rmtree(place)


def tell(copy: Path, server: ServerAdmin, *command: str) -> str:
    environment = {**os.environ, "DATABASE_URL": server.url("postgres"), "PYTHONPATH": str(copy)}
    told = subprocess.run(
        [sys.executable, "-m", *command], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout[-5_000:] + told.stderr[-5_000:]
    return told.stdout


@pytest.mark.full
def test_a_new_kind_keeps_every_promise_as_it_is_made(copy: Path, postgres_server: ServerAdmin) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "infra.new_kind", "tick"], cwd=copy, capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "The name tick is taken: functions/tick exists. Choose another one.\n"

    assert "shared/water_meter/steps.py" in tell(copy, postgres_server, "infra.new_kind", "water_meter")

    tell(copy, postgres_server, "ruff", "check", "--no-cache", "shared", "functions", "infra", "tests/kinds")
    tell(
        copy, postgres_server, "ruff", "format", "--no-cache", "--check", "shared", "functions", "infra", "tests/kinds"
    )
    told = tell(
        copy, postgres_server, "pytest", "-q", "-p", "no:cacheprovider", "-n", "0",
        "tests/template/test_rules.py::test_the_template_keeps_the_rule",
        "tests/template/test_checks.py::test_localstack_gets_the_queues_of_the_template",
        "tests/contract/test_migrate.py::test_the_newest_revision_is_the_one_that_alembic_finds",
        "tests/contract/test_events.py::test_every_function_has_an_event_and_every_event_a_function",
        "tests/contract/test_events.py::test_a_function_takes_its_event[water_meter]",
    )  # fmt: skip
    assert re.search(r"\d+ passed", told), told
    told = tell(copy, postgres_server, "tests.simulation.subjects", "water_meter", "--schedules", "30")
    assert "RunEnded.succeeded" in told, told


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_the_commands_of_the_guide_work_in_order(tmp_path: Path) -> None:
    """In a copy with an environment of its own, from `make kind` to a run in the local cloud."""
    copy = tmp_path / "baton"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    _environment(copy)
    script = "set -ex\n" + "\n".join(blocks("sh"))
    environment = {key: value for key, value in os.environ.items() if key not in {"DATABASE_URL", "VIRTUAL_ENV"}}
    environment["XDG_CONFIG_HOME"] = str(tmp_path)
    try:
        told = subprocess.run(
            ["sh", "-c", script], cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        subprocess.run(["make", "down"], cwd=copy, env=environment, capture_output=True, check=False)

    assert told.returncode == 0, told.stdout[-5_000:] + told.stderr[-5_000:]
    assert told.stdout.count("succeeded") >= 2, told.stdout


def _environment(copy: Path) -> None:
    """What `make setup` makes, from the environment of this process: the same packages, and the copy's own `baton`."""
    made = copy / ".venv"
    (made / "bin").mkdir(parents=True)
    for part in Path(sys.prefix).iterdir():
        if part.name != "bin":
            (made / part.name).symlink_to(part)
    for part in (Path(sys.prefix) / "bin").iterdir():
        if part.name != "baton":
            (made / "bin" / part.name).symlink_to(part)
    baton = made / "bin" / "baton"
    baton.write_text(
        f'#!{made}/bin/python\nimport sys\nsys.path.insert(0, "{copy}")\nfrom infra.cli import main\nsys.exit(main())\n'
    )
    baton.chmod(0o755)
    (made / ".ready").unlink(missing_ok=True)
    (made / ".ready").touch()
