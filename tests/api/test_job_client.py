"""Guards `baton job`, `baton definition` and `baton workers` as one types them, against the real handler over real HTTP."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.cli import main as baton_main
from infra.client import show
from infra.client.http import Client, Refusal
from infra.client.kinds import job as command
from shared.kernel.auth import Role
from tests.api.test_client import Command
from tests.api.test_job_summary import KEY, add, define, see_worker, take
from tests.support.door import Door, TenantHouse
from tests.support.gateway import Gateway, served

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["model"],
    "properties": {"model": {"type": "string"}, "seconds": {"type": "number"}, "path_prefix": {"type": "string"}},
}  # fmt: skip


@pytest.fixture
def baton(
    door: Door, acme: TenantHouse, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    for name in ("BATON_URL", "BATON_TENANT"):
        monkeypatch.delenv(name, raising=False)
    for table in ("trigger_firings", "job_triggers", "job_attempts", "offer", "pull_line", "pull_tenant", "job_workers", "job_definition_versions",
                  "job_definitions", "pull_class", "pull_queue"):  # fmt: skip
        door.sql(f"delete from {table}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BATON_TOKEN", acme.machines[Role.ADMIN].token or "")
    gateway = Gateway(door)
    with served(gateway) as url:
        yield Command(gateway, url, tmp_path, capsys)


def tried(door: Door, tenant: TenantHouse, job_id: str, number: int, status: str, out: str, err: str = "") -> None:
    door.sql(
        """insert into job_attempts (job_id, attempt_no, tenant_id, worker_id, status, stdout_tail, stderr_tail, finished_at)
           values (:id, :n, :t, 'box:1', :status, :out, :err, case when :status = 'running' then null else now() end)
           on conflict (job_id, attempt_no) do update set status = excluded.status, stdout_tail = excluded.stdout_tail,
               finished_at = excluded.finished_at""",
        id=job_id, n=number, t=tenant.id, status=status, out=out, err=err,
    )  # fmt: skip


@pytest.mark.full
def test_a_job_is_added_shown_listed_canceled_and_retried(baton: Command, door: Door, acme: TenantHouse) -> None:
    define(door, acme, arg_schema=SCHEMA)

    job_id = baton(
        "job", "add", KEY, "--arg", "model=7", "--arg", "path-prefix=/a", "--arg", "seconds=1.5", "--priority", "5"
    ).strip()

    told = baton.json("job", "show", job_id)
    assert told["payload"] == {"model": "7", "path_prefix": "/a", "seconds": 1.5}, "the schema says what is text"
    assert told["priority"] == 5
    assert "No worker is running for the queue default" in baton("job", "show", job_id)
    assert [row["id"] for row in baton.json("job", "list", "--status", "queued")["jobs"]] == [job_id]
    assert KEY in baton("job", "list")
    assert "not been started yet. No worker is running" in baton("job", "logs", job_id, code=1)
    baton("job", "cancel", job_id, "--reason", "wrong folder")
    assert baton.json("job", "show", job_id)["status"] == "canceled"
    baton("job", "retry", job_id)
    assert baton.json("job", "show", job_id)["status"] == "queued"
    assert "1 queued, 0 running" in baton("job", "summary")


@pytest.mark.full
def test_what_is_wrong_is_said_with_what_to_do(baton: Command, door: Door, acme: TenantHouse) -> None:
    assert "none yet. A super admin can add one" in baton("definition", "show", "nope", code=1)
    define(door, acme, arg_schema=SCHEMA)
    assert f"job definition 'nope' not found. Available: {KEY}" in baton("job", "add", "nope", "--arg", "a=1", code=1)
    assert "has no argument 'modle'. Available: model, path_prefix, seconds" in baton(
        "job", "add", KEY, "--arg", "modle=x", code=1
    )
    assert "--payload is not valid JSON" in baton("job", "add", KEY, "--payload", "{", code=1)
    assert "model" in baton("job", "add", KEY, code=1), "what the schema asks for is named"
    assert "a value cannot start with '-'" in baton("job", "add", KEY, "--arg", "model=-rf", code=1)
    assert json.loads(baton("job", "add", KEY, "--json", code=1))["status"] == 422


def test_logs_are_followed_over_attempts_until_the_job_ends(
    baton: Command, door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(door, acme)
    see_worker(door)
    job_id = str(add(door, acme.admin))
    take(door)
    tried(door, acme, job_id, 1, "running", "one\n")

    def moves_on() -> Iterator[None]:
        tried(door, acme, job_id, 1, "failed", "one\ntwo\n")
        tried(door, acme, job_id, 2, "running", "again\n", "careful\n")
        yield
        tried(door, acme, job_id, 2, "succeeded", "again\ndone\n")
        door.sql(
            "update lane set status = 'done', claim_token = null, lease_until = null where run_id = :id", id=job_id
        )
        door.sql("update run set status = 'succeeded', outcome = 'done', finished_at = now() where id = :id", id=job_id)
        yield
        pytest.fail("it ended, and was asked for again")

    steps = moves_on()
    monkeypatch.setattr(show, "pause", lambda: next(steps))

    said = baton("job", "logs", job_id, "-f")

    out = said.splitlines()
    assert [line for line in out if not line.startswith("---")] == ["one", "two", "again", "done", "careful"]
    assert [line for line in out if line.startswith("---")] == [
        "--- attempt 1 on box:1", "--- attempt 2 on box:1", "--- succeeded",
    ]  # fmt: skip
    assert baton("job", "logs", job_id, "--attempt", "1").strip() == "one\ntwo"
    assert "not found" in baton("job", "logs", job_id, "--attempt", "9", code=1).lower()


def test_a_log_that_says_nothing_new_is_not_read_again_every_second(
    baton: Command, door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log has up to 128 KB, and a command may be silent for hours. One that repeats itself is heard all the same."""
    define(door, acme)
    see_worker(door)
    job_id = str(add(door, acme.admin))
    take(door)
    tried(door, acme, job_id, 1, "running", "x\n" * 1_100)
    reads: list[str] = []
    get = Client.get

    def counted(self: Client, path: str, **asked: Any) -> Any:
        reads.extend([path] if path.endswith("/attempts/1") else [])
        return get(self, path, **asked)

    def silent() -> Iterator[None]:
        for _ in range(9):
            yield
        assert len(reads) == 1
        tried(door, acme, job_id, 1, "running", "x\n" * 1_200)
        yield
        yield
        assert len(reads) == 2
        raise KeyboardInterrupt

    steps = silent()
    monkeypatch.setattr(Client, "get", counted)
    monkeypatch.setattr(show, "pause", lambda: next(steps))
    assert baton("job", "logs", job_id, "-f", code=130).count("x\n") == 1_200


def test_a_log_that_was_cut_goes_on_where_it_was() -> None:
    lines = [f"line {n}\n" for n in range(500)]
    assert command.added("", "a") == "a"
    assert command.added("".join(lines[:300]), "".join(lines[100:400])) == "".join(lines[300:400])
    assert command.added("".join(lines[:100]), "".join(lines[300:])).startswith("\n[some output was skipped]\nline 300")


def test_dead_letters_are_counted_before_they_are_retried(
    baton: Command, door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(door, acme)
    jobs = [add(door, acme.admin) for _ in range(2)]
    for job_id in jobs:
        door.sql("update lane set status = 'failed' where run_id = :id", id=job_id)
        door.sql(
            "update run set status = 'failed', outcome = 'dead_letter', finished_at = now() where id = :id", id=job_id
        )
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert "2 dead letters would be retried" in baton("job", "redrive", "--reason", "fixed", code=1)
    assert baton.json("job", "redrive", "--definition", "other", "--reason", "fixed") == {"done": 0}
    assert baton("job", "redrive", "--reason", "fixed", "--yes").strip() == "2 retried"
    assert {row["status"] for row in baton.json("job", "list")["jobs"]} == {"queued"}


@pytest.mark.full
def test_definitions_and_workers_are_for_super_admins_to_change(
    baton: Command, door: Door, acme: TenantHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    assert "super admin" in baton("definition", "add", "mine", code=1).lower()
    baton.gateway.people["sue@example.com"] = ("secret-pass", door.super_admin.subject or "")
    monkeypatch.delenv("BATON_TOKEN")
    monkeypatch.setenv("BATON_TENANT", str(acme.id))
    monkeypatch.setattr("sys.stdin", io.StringIO("secret-pass\n"))
    baton("login", "sue@example.com", "--password-stdin")

    baton("definition", "add", "mine", "--command", KEY, "--schema", str(file), "--timeout", "60", "--limit", "2")
    assert "nothing to change" in baton("definition", "edit", "mine", code=1)
    baton("definition", "edit", "mine", "--max-attempts", "5", "--deactivate")
    told = baton.json("definition", "show", "mine")
    assert (told["max_attempts"], told["is_active"], told["version"], told["concurrency_limit"]) == (5, False, 2, 2)
    shown = baton("definition", "show", "mine")
    assert "model" in shown
    assert "mine" in baton("definition", "list")
    assert "cannot be read" in baton("definition", "edit", "mine", "--schema", str(tmp_path / "none"), code=1)

    assert "neither a number nor none" in baton("job", "limit", "many", code=1)
    assert "At most 3 jobs" in baton("job", "limit", "3", "--reason", "Shares its workers")
    assert baton.json("job", "limit") == {"concurrency_limit": 3, "running": 0}
    assert "Removed the limit" in baton("job", "limit", "none")
    assert baton.json("job", "limit")["concurrency_limit"] is None

    assert "no worker was seen in the last week" in baton("workers")
    see_worker(door)
    see_worker(door, ago="10 min")
    said = baton("workers")
    assert "responding" in said
    assert "1 not seen for over a minute" in said
    assert baton_main(["--home", str(baton.home), "worker", "list"]) == 0


def test_a_schedule_that_is_no_time_is_refused(baton: Command, door: Door, acme: TenantHouse) -> None:
    define(door, acme)
    assert "scheduled_for" in baton("job", "add", KEY, "--at", "tomorrow", code=1)
    with pytest.raises(Refusal):
        command._schema("/nowhere/schema.json")
