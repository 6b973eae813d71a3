"""Guards jobs over HTTP: bad input gets its code and leaves nothing, workers without a database work for their own tenant, and
dead letters are redriven as they were counted."""

from __future__ import annotations

from typing import Any

import pytest

from shared.kernel.clock import new_id
from tests.support.door import Answer, Door, TenantHouse

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "provider_id": {"type": "string", "format": "uuid"},
        "path_prefix": {"type": "string"},
        "run": {"type": "string", "x-baton-resolves": "run"},
    },
}


def define(door: Door, acme: TenantHouse, **said: Any) -> str:
    key = f"d-{str(new_id())[-12:]}"
    queue = f"q-{str(new_id())[-12:]}"
    asked = {"key": key, "command": "sync-dropbox", "queue": queue, "arg_schema": SCHEMA, **said}
    made = door.call(door.super_admin.choosing(acme.id), "POST", "/admin/jobs/definitions", asked)
    assert made.status == 201, made
    return key


def add(door: Door, acme: TenantHouse, key: str, **asked: Any) -> str:
    made = door.call(acme.member, "POST", "/jobs", {"definition_key": key, **asked})
    assert made.status == 201, made
    return str(made.json()["id"])


def queue_of(door: Door, key: str) -> str:
    return str(door.value("select queue from job_definitions where key = :key", key=key))


def claim(door: Door, acme: TenantHouse, key: str, most: int = 1) -> list[Any]:
    body = {"worker_id": "far:1", "queues": [queue_of(door, key)], "most": most}
    answer = door.call(acme.worker, "POST", "/worker/jobs/claim", body)
    assert answer.status == 200, answer
    return list(answer.json()["jobs"])


def tell(door: Door, acme: TenantHouse, what: str, job: Any, **said: Any) -> Answer:
    path = f"/worker/jobs/{job['id']}/{what}"
    return door.call(acme.worker, "POST", path, {"claim_token": job["claim_token"], **said})


def seen(door: Door, acme: TenantHouse, job_id: str) -> Any:
    return door.call(acme.viewer, "GET", f"/jobs/{job_id}").json()


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"definition_key": "nobody-has-this"}, 422, "unknown_definition"),
        ({"payload": {"nobody": 1}}, 422, "bad_payload"),
        ({"payload": {"provider_id": "--help; rm -rf /"}}, 422, "bad_payload"),
        ({"payload": {"path_prefix": "--config=/etc/passwd"}}, 422, "bad_payload"),
        ({"payload": {"path_prefix": "x" * 70_000}}, 422, "payload_too_large"),
        ({"payload": {"run": str(new_id())}}, 422, "bad_payload"),
        ({"priority": 10}, 422, "bad_priority"),
        ({"priority": -1}, 422, "bad_priority"),
        ({"scheduled_for": "2099-01-01T00:00:00Z"}, 422, "bad_schedule"),
        ({"dedupe_key": "x" * 201}, 422, None),
        ({"manages": True}, 422, None),
    ],
)
def test_bad_input_gets_its_code_and_adds_nothing(
    door: Door, acme: TenantHouse, asked: dict[str, Any], status: int, code: str | None
) -> None:
    body = {"definition_key": define(door, acme), **asked}
    answer = door.call(acme.member, "POST", "/jobs", body)
    assert answer.status == status, answer
    assert code is None or answer.code == code
    assert door.value("select count(*) from run where tenant_id = :t", t=acme.id) == 0


def test_the_general_route_asks_for_the_role_too(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme)
    for params in ({"priority": 0}, {"priority": 0, "manages": True}):
        body = {"kind": "job", "params": {"definition_key": key, **params}}
        assert door.call(acme.member, "POST", "/runs", body).status == 422
    admins = door.call(acme.admin, "POST", "/runs", {"kind": "job", "params": {"definition_key": key, "priority": 0}})
    assert admins.status == 201


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"command": "rm"}, "unknown_command"),
        ({"executor": "lambda", "timeout_seconds": 841}, "too_long_for_lambda"),
        ({"arg_schema": {"$ref": "https://example.com"}}, "bad_schema"),
        ({"arg_schema": {"type": "object"}}, "bad_schema"),
    ],
)
def test_a_bad_definition_is_refused(door: Door, acme: TenantHouse, asked: dict[str, Any], code: str) -> None:
    body = {"key": f"d-{str(new_id())[-12:]}", "command": "sync-dropbox", **asked}
    answer = door.call(door.super_admin.choosing(acme.id), "POST", "/admin/jobs/definitions", body)
    assert (answer.status, answer.code) == (422, code)


def test_the_executor_follows_from_the_time(door: Door, acme: TenantHouse) -> None:
    short, long = define(door, acme, timeout_seconds=840), define(door, acme, timeout_seconds=841)
    rows = {row.key: row.executor for row in door.sql("select key, executor from job_definitions")}
    assert (rows[short], rows[long]) == ("lambda", "worker")


def test_what_is_inactive_cannot_be_added(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme)
    found = door.value("select id from job_definitions where key = :key", key=key)
    off = door.call(
        door.super_admin.choosing(acme.id), "PATCH", f"/admin/jobs/definitions/{found}", {"is_active": False}
    )
    assert off.status == 200
    answer = door.call(acme.member, "POST", "/jobs", {"definition_key": key})
    assert (answer.status, answer.code) == (422, "inactive_definition")


# --- workers without a database ---


def test_a_worker_elsewhere_takes_a_job_and_completes_it(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme)
    job_id = add(door, acme, key, payload={"path_prefix": "/a"})

    (job,) = claim(door, acme, key)
    assert (job["id"], job["payload"], job["attempt_no"]) == (job_id, {"path_prefix": "/a"}, 1)
    assert job["tenant_id"] == str(acme.id)
    assert claim(door, acme, key) == []
    beat = tell(door, acme, "heartbeat", job, pid=7, stdout_tail="halfway password=hunter22\n")
    assert (beat.status, beat.json()) == (200, {"word": "go_on"})
    (running,) = door.call(acme.viewer, "GET", f"/jobs/{job_id}/attempts").json()["attempts"]
    assert (running["status"], "hunter22" in running["stdout_tail"]) == ("running", False)
    assert tell(door, acme, "complete", job, stdout_tail="done\n").status == 200
    assert seen(door, acme, job_id)["status"] == "succeeded"
    assert tell(door, acme, "complete", job).code == "not_yours"
    assert tell(door, acme, "heartbeat", job).code == "not_yours"


def test_a_failure_told_by_a_worker_is_tried_again_and_numbered_on(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme, max_attempts=2)
    job_id = add(door, acme, key)
    ends: list[dict[str, Any]] = [{"exit_code": 3}, {"reason": "timeout"}]
    for n, said in enumerate(ends, start=1):
        (job,) = claim(door, acme, key)
        assert job["attempt_no"] == n
        assert tell(door, acme, "fail", job, **said).status == 200
        door.sql("update lane set next_due_at = now() where run_id = :id and status = 'active'", id=job_id)
    assert seen(door, acme, job_id)["status"] == "dead_letter"
    assert [row.status for row in door.sql("select status from job_attempts where job_id = :id order by attempt_no", id=job_id)] == [
        "failed", "timeout",
    ]  # fmt: skip
    assert tell(door, acme, "fail", job, reason="exit").code == "bad_exit_code"


def test_a_worker_elsewhere_hears_of_a_cancel(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme)
    job_id = add(door, acme, key)
    (job,) = claim(door, acme, key)
    assert door.call(acme.member, "POST", f"/jobs/{job_id}/cancel", {}).status == 200
    assert tell(door, acme, "heartbeat", job).json() == {"word": "cancel"}
    assert tell(door, acme, "fail", job, reason="canceled").status == 200
    assert seen(door, acme, job_id)["status"] == "canceled"


def test_a_worker_takes_nothing_of_another_tenant(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    key = define(door, acme)
    theirs, mine = add(door, globex, key), add(door, acme, key)
    assert [job["id"] for job in claim(door, acme, key, most=10)] == [mine]
    assert seen(door, globex, theirs)["status"] == "queued"


def test_a_job_whose_worker_stopped_is_put_back_at_no_cost(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme, max_attempts=1)
    job_id = add(door, acme, key)
    (job,) = claim(door, acme, key)
    assert tell(door, acme, "fail", job, reason="stopped").status == 200
    assert seen(door, acme, job_id)["status"] == "queued"


# --- again ---


def test_any_ended_job_can_be_retried(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme)
    job_id = add(door, acme, key)
    (job,) = claim(door, acme, key)
    tell(door, acme, "complete", job)
    assert door.call(acme.member, "POST", f"/jobs/{job_id}/retry", {}).status == 200
    (again,) = claim(door, acme, key)
    assert (again["id"], again["attempt_no"]) == (job_id, 2)


def test_dead_letters_are_redriven_as_they_were_counted(door: Door, acme: TenantHouse) -> None:
    key, other = define(door, acme, max_attempts=1), define(door, acme, max_attempts=1)
    for each in (key, key, other):
        add(door, acme, each)
        (job,) = claim(door, acme, each)
        tell(door, acme, "fail", job, exit_code=1)
    canceled = add(door, acme, key)
    door.call(acme.member, "POST", f"/jobs/{canceled}/cancel", {})
    asked = {
        "filter": {"kind": "job", "outcome": "dead_letter", "label": key}, "action": "retry", "reason": "fixed",
    }  # fmt: skip
    preview = door.call(acme.member, "POST", "/runs/bulk", {**asked, "mode": "preview"}).json()
    assert preview["count"] == 2
    done = door.call(acme.member, "POST", "/runs/bulk", {**asked, "mode": "apply", "token": preview["next"]}).json()
    assert (done["done"], done["left"], done["refused"]) == (2, 0, {})
    statuses = [job["status"] for job in door.call(acme.member, "GET", "/jobs").json()["jobs"]]
    assert sorted(statuses) == ["canceled", "dead_letter", "queued", "queued"]
