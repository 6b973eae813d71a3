"""Guards that docs/jobs.md is true: its requests work in their order, from a command to a job that is retried; its commands
are parsed by what reads them, and no option is missing."""

from __future__ import annotations

import io
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from infra import worker
from shared.job_queue import decide
from shared.job_queue.adapters.commands import FILE, read_commands
from shared.job_queue.build import build_ports
from shared.job_queue.model import Finished
from shared.job_queue.steps import job_kind
from shared.kernel.clock import new_id
from shared.kernel.offers import PgOffers
from shared.kernel.step import do_turn
from tests.api import test_job_client
from tests.api.test_client import Command
from tests.api.test_job_summary import define
from tests.support.door import Door, TenantHouse
from tests.support.jobs import FakeRunner

ROOT = Path(__file__).parents[2]
baton = test_job_client.baton  # the fixture
PAGE = (ROOT / "docs" / "jobs.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def fails(door: Door) -> None:
    """Workers try it until its attempts are used up."""
    runner = FakeRunner()
    runner.ends = lambda *_: Finished(exit_code=1, stderr="the credentials are not valid")
    kind = job_kind(build_ports(door._worker, {}, runner=runner, worker_id="w1"))
    ports = replace(door.worker_ports, offers=PgOffers(door._worker))
    for _ in range(10):
        for turn in PgOffers(door._worker).take("default", 10, new_id(), 60, "w1"):
            do_turn(turn, kind, ports)
        door.sql("update lane set next_due_at = now() where class_id is not null and status = 'active'")


def set_aside(door: Door) -> None:
    """The definition of another test, which may be inactive by now."""
    door.sql(
        "update job_definitions set key = key || '-' || left(md5(random()::text), 8) where key = 'recompute-trained-tags'"
    )


def test_from_a_definition_to_a_retried_job(door: Door, acme: TenantHouse) -> None:
    set_aside(door)
    door.sql("update job_workers set last_seen_at = now() - interval '1 day'")  # of other tests
    job_id, answers = "", []
    for block in blocks("http"):
        line, _, body = block.partition("\n")
        method, _, path = line.replace("{job_id}", job_id).partition(" ")
        sent: Any = json.loads(body) if body.strip() else None
        if path.endswith("/attempts"):
            fails(door)
        who = door.super_admin.choosing(acme.id) if "/admin/" in path else acme.member
        answer = door.call(who, method, path, sent)
        assert answer.status in (200, 201), (block, answer.body)
        answers.append(answer.json())
        if (method, path) == ("POST", "/jobs"):
            job_id = answer.json()["id"]
    _, _, shown, summary, _, attempts, attempt, _, preview = answers
    assert (shown["status"], shown["why"]["code"]) == ("queued", "no_worker")
    assert summary["queued"] == 1
    assert told_fields("Field", "queued") == {*summary}
    assert told_fields("`why.code`") == {*get_args(decide.WhyCode)}
    assert [each["attempt_no"] for each in attempts["attempts"]] == [2, 1]
    assert (attempt["attempt_no"], attempt["status"]) == (2, "failed")
    assert "the credentials are not valid" in attempts["attempts"][0]["stderr_tail"]
    assert preview["count"] == 0  # it was retried just before
    assert door.call(acme.member, "GET", f"/jobs/{job_id}").json()["status"] == "queued"


def told_fields(head: str, among: str = "") -> set[str]:
    """The names in the first column of the table that begins so, and has a line for `among`."""
    tables = re.findall(r"^\| ([^|]+) \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
    found = [rows for title, rows in tables if title == head and f"`{among}" in rows]
    assert len(found) == 1
    return {name for row in found[0].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.full
def test_the_command_line_does_what_is_shown(
    baton: Command, door: Door, acme: TenantHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = json.loads(blocks("http")[0].partition("\n")[2])["arg_schema"]
    command = "recompute-trained-tags"
    define(door, acme, command, command=command, arg_schema=schema, max_attempts=1)
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    monkeypatch.chdir(tmp_path)
    lines = [re.sub(r"^job=\$\((.*)\)$", r"\1", line) for line in blocks("sh")[0].splitlines() if "baton " in line]
    everybody = [
        line
        for line in lines
        if "definition add" not in line and "definition edit" not in line and "workers" not in line
    ]
    super_admin = [line for line in lines if line not in everybody]
    job_id, said = "", {}
    for line in everybody:
        words = [
            word for word in shlex.split(line.replace('"$job"', job_id))[1:] if word != "--follow" or "logs" in line
        ]
        if words[:2] == ["job", "logs"]:
            fails(door)
        said[" ".join(words[:2])] = baton(*words, code=1 if words[:2] == ["job", "logs"] else 0)
        job_id = said["job add"].strip() if words[:2] == ["job", "add"] else job_id
    assert "path_prefix" in said["definition show"]
    assert job_id in said["job list"]
    assert "No worker is running" in said["job show"]
    assert "the credentials are not valid" in said["job logs"]
    assert baton.json("job", "show", job_id)["status"] == "queued", "it was retried"

    baton.gateway.people["sue@example.com"] = ("secret-pass", door.super_admin.subject or "")
    monkeypatch.delenv("BATON_TOKEN")
    monkeypatch.setenv("BATON_TENANT", str(acme.id))
    monkeypatch.setattr("sys.stdin", io.StringIO("secret-pass\n"))
    baton("login", "sue@example.com", "--password-stdin")
    set_aside(door)
    for line in super_admin:
        baton(*shlex.split(line)[1:])
    told = baton.json("definition", "show", "recompute-trained-tags")
    assert (told["is_active"], told["timeout_seconds"], told["concurrency_limit"]) == (False, 600, 4)
    set_aside(door)


def test_the_example_of_a_command_is_one(tmp_path: Path) -> None:
    (block,) = blocks("toml")
    (tmp_path / "commands.toml").write_text(block)
    (command,) = read_commands({"BATON_JOB_COMMANDS": str(tmp_path / "commands.toml")}).values()
    assert Path(command.argv[1]).parent == tmp_path
    assert command.key in read_commands({})
    assert (FILE.parent / "zoltag.py").exists()


def test_the_commands_are_understood_and_every_option_is_told() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if "baton worker " in line]
    assert len(lines) == 3
    for line in lines:
        words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]
        worker.parser().parse_args(words[2:])
    options = {name for action in worker.parser()._actions for name in action.option_strings if name.startswith("--")}
    assert options - {"--help"} == set(re.findall(r"^\| `(--[\w-]+)` \|", PAGE, re.MULTILINE))
