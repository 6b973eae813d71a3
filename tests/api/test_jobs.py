"""Guards jobs over HTTP: bad input gets its code and leaves nothing, workers without a database work for their own tenant, and
dead letters are redriven as they were counted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.job_queue.ports import JobMetric
from shared.job_queue.steps import Jobs
from shared.job_queue.store import MOST_WORKERS
from shared.kernel import db, run
from shared.kernel.auth import Role
from shared.kernel.clock import new_id
from shared.kernel.metrics import NoMeter
from shared.kernel.metrics_emf import EmfMeter
from shared.kernel.offers import PgOffers
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
    asked = {"key": key, "command": "sync-dropbox", "queue": queue, "arg_schema": SCHEMA, "executor": "worker", **said}
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
        ({"priority": True}, 422, "invalid"),
        ({"priority": "60"}, 422, "invalid"),
        ({"priority": 60.0}, 422, "invalid"),
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


def test_many_are_added_at_once_and_each_has_its_answer(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme)
    there = add(door, acme, key, dedupe_key="there")
    asked = [
        {"definition_key": key},
        {"definition_key": key, "payload": {"nobody": 1}},
        {"definition_key": key, "dedupe_key": "there"},
        {"definition_key": "nobody-has-this"},
        {"definition_key": key, "dedupe_key": "new"},
        {"definition_key": key, "priority": "first"},
        {"definition_key": key, "dedupe_key": "new"},
        {"definition_key": key, "priority": 1},
        {},
    ]

    answer = door.call(acme.member, "POST", "/jobs/batch", {"jobs": asked})

    assert answer.status == 200, answer
    jobs = answer.json()["jobs"]
    assert [each["code"] for each in jobs] == [
        None, "bad_payload", None, "unknown_definition", None, "bad_params", None, "bad_priority", "bad_params",
    ]  # fmt: skip
    assert jobs[8]["detail"] == "`definition_key` is required."
    assert [each["found"] for each in jobs] == [False, False, True, False, False, False, True, False, False]
    assert (jobs[2]["id"], jobs[6]["id"]) == (there, jobs[4]["id"])
    added = [each["id"] for each in jobs if each["id"] and not each["found"]]
    assert len(added) == 2
    assert [seen(door, acme, each)["status"] for each in added] == ["queued"] * 2
    assert door.value("select count(*) from run where label = :key", key=key) == 3
    told = "select target from audit where tenant_id = :t and action = 'run.start' and target = any(:some)"
    assert {row.target for row in door.sql(told, t=acme.id, some=[f"run:{each}" for each in added])} == {
        f"run:{each}" for each in added
    }


def test_many_are_added_once_per_idempotency_key(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme)
    body, once = {"jobs": [{"definition_key": key}] * 3}, {"Idempotency-Key": str(new_id())}

    first = door.call(acme.member, "POST", "/jobs/batch", body, headers=once)
    again = door.call(acme.member, "POST", "/jobs/batch", body, headers=once)

    assert first.json() == again.json()
    assert door.value("select count(*) from run where label = :key", key=key) == 3
    other = door.call(acme.member, "POST", "/jobs/batch", {"jobs": body["jobs"][:1]}, headers=once)
    assert (other.status, other.json()["code"]) == (422, "key_reused")


@pytest.mark.parametrize("jobs", [[], [{"definition_key": "x"}] * 1_001, "x", None])
def test_not_none_and_not_too_many_at_once(door: Door, acme: TenantHouse, jobs: Any) -> None:
    assert door.call(acme.member, "POST", "/jobs/batch", {"jobs": jobs}).status == 422


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
        ({"command": "recompute-trained-tags", "executor": "lambda", "timeout_seconds": 841}, "too_long_for_lambda"),
        ({"arg_schema": {"$ref": "https://example.com"}}, "bad_schema"),
        ({"arg_schema": {"type": "object"}}, "bad_schema"),
        ({"arg_schema": {**SCHEMA, "properties": [1]}}, "bad_schema"),
        ({"arg_schema": {**SCHEMA, "properties": {"runs": {"items": {"x-baton-resolves": "run"}}}}}, "bad_schema"),
        ({"arg_schema": {**SCHEMA, "allOf": [{"properties": {"run": {"x-baton-resolves": "run"}}}]}}, "bad_schema"),
        ({"timeout_seconds": True}, "invalid"),
        ({"max_attempts": "3"}, "invalid"),
    ],
)
def test_a_bad_definition_is_refused(door: Door, acme: TenantHouse, asked: dict[str, Any], code: str) -> None:
    body = {"key": f"d-{str(new_id())[-12:]}", "command": "sync-dropbox", **asked}
    answer = door.call(door.super_admin.choosing(acme.id), "POST", "/admin/jobs/definitions", body)
    assert (answer.status, answer.code) == (422, code)


@pytest.mark.parametrize("name", ["arg_schema", "timeout_seconds", "max_attempts", "queue", "is_active", "description"])
def test_a_definition_is_not_emptied_by_null(door: Door, acme: TenantHouse, name: str) -> None:
    """Guards that null is no value: a schema of null would let in nothing more, and no time-out is none."""
    key = define(door, acme)
    definition = door.value("select id from job_definitions where key = :key", key=key)
    before = door.sql("select * from job_definitions where key = :key", key=key)
    path = f"/admin/jobs/definitions/{definition}"
    answer = door.call(door.super_admin.choosing(acme.id), "PATCH", path, {name: None})
    assert (answer.status, answer.code) == (422, "invalid")
    assert door.sql("select * from job_definitions where key = :key", key=key) == before


def test_the_executor_follows_from_the_time(door: Door, acme: TenantHouse) -> None:
    of = {"command": "recompute-trained-tags", "executor": None}
    short, long = define(door, acme, timeout_seconds=840, **of), define(door, acme, timeout_seconds=841, **of)
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


def test_claims_come_by_priority_and_then_by_age(door: Door, acme: TenantHouse) -> None:
    """Within one answer, and from one claim to the next; jobs of one batch in the order in which they were given."""
    key = define(door, acme)
    asked = [{"definition_key": key, "priority": n} for n in [300] * 3 + [60] * 15]
    made = [each["id"] for each in door.call(acme.member, "POST", "/jobs/batch", {"jobs": asked}).json()["jobs"]]
    first, last, late = (add(door, acme, key, priority=n) for n in (50, 400, 60))

    claimed = [job["id"] for most in (3, 8, 10) for job in claim(door, acme, key, most)]
    assert claimed == [first, *made[3:], late, *made[:3], last]


def test_a_tenants_jobs_at_once_are_limited_by_a_super_admin(door: Door, acme: TenantHouse) -> None:
    key, path = define(door, acme), "/admin/jobs/limit"
    operator = door.super_admin.choosing(acme.id)
    for _ in range(4):
        add(door, acme, key)
    assert door.call(acme.admin, "PUT", path, {"concurrency_limit": 9}).status == 403
    assert door.call(operator, "PUT", path, {"concurrency_limit": 0}).status == 422
    assert door.call(operator, "PUT", path, {"concurrency_limit": None}).status == 200
    (running,) = claim(door, acme, key)
    others = door.call(acme.admin, "GET", path).json()["running"] - 1  # what other tests left at work

    for most, more in ((others + 2, 1), (others + 1, 0), (others + 3, 1)):
        body = {"concurrency_limit": most, "reason": "Shares its workers"}
        assert door.call(operator, "PUT", path, body).status == 200
        assert len(claim(door, acme, key, 10)) == more
    assert door.call(acme.admin, "GET", path).json() == {"concurrency_limit": others + 3, "running": others + 3}
    assert tell(door, acme, "complete", running).status == 200
    assert len(claim(door, acme, key, 10)) == 1
    assert door.call(operator, "PUT", path, {"concurrency_limit": None}).status == 200
    newest, before = door.call(acme.admin, "GET", "/audit", limit=2).json()["lines"]
    assert (newest["action"], newest["before"]) == ("job_limit.put", {"concurrency_limit": others + 3})
    assert (before["reason"], before["after"]) == ("Shares its workers", {"concurrency_limit": others + 3})


def test_the_database_asks_who_sets_a_limit(door: Door, acme: TenantHouse) -> None:
    for subject, written in ((acme.admin.subject, False), (door.super_admin.subject, True)):
        answer = door.sql(
            "select set_config('app.tenant', :t, true), put_job_limit(:subject, null) as written",
            t=str(acme.id), subject=subject,
        )  # fmt: skip
        assert answer[0]["written"] is written


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


def test_a_heartbeat_takes_nothing_back(door: Door, acme: TenantHouse) -> None:
    """Guards that what a heartbeat leaves out stays as it was told before."""
    key = define(door, acme)
    job_id = add(door, acme, key)
    (job,) = claim(door, acme, key)
    tell(door, acme, "heartbeat", job, pid=7, stdout_tail="out", stderr_tail="err")
    tell(door, acme, "heartbeat", job, stdout_tail="more")
    (told,) = door.call(acme.viewer, "GET", f"/jobs/{job_id}/attempts").json()["attempts"]
    assert (told["pid"], told["stdout_tail"], told["stderr_tail"]) == (7, "more", "err")


def test_no_worker_cancels_what_nobody_has_canceled(door: Door, acme: TenantHouse) -> None:
    """Guards that a worker says how an attempt ended, and that the end of a job is for its people to ask for."""
    key = define(door, acme)
    job_id = add(door, acme, key)
    (job,) = claim(door, acme, key)
    assert tell(door, acme, "fail", job, reason="canceled").code == "not_canceled"
    assert tell(door, acme, "fail", job, reason="timeout", exit_code=0).code == "bad_exit_code"
    assert seen(door, acme, job_id)["status"] == "running"
    assert tell(door, acme, "complete", job).status == 200


def test_a_worker_that_comes_again_is_seen_for_the_queues_it_names_now(door: Door, acme: TenantHouse) -> None:
    """Guards that a worker that was started again for another queue is not waited for at the old one."""
    old, new = define(door, acme), define(door, acme)
    claim(door, acme, old)
    claim(door, acme, new)
    assert [seen(door, acme, add(door, acme, key))["why"]["workers"] for key in (old, new)] == [0, 1]


def test_a_claim_tells_what_it_took_though_one_could_not_be_begun(
    door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards that a job in a worker's hands is known to it, and that one that could not be begun is put back at no cost."""
    key = define(door, acme, max_attempts=1)
    jobs = [add(door, acme, key) for _ in range(3)]
    begin = Jobs.begin

    def fails_once(self: Jobs, turn: Any) -> int:
        if str(turn.run_id) == jobs[1]:
            raise ConnectionRefusedError
        return begin(self, turn)

    monkeypatch.setattr(Jobs, "begin", fails_once)
    assert [job["id"] for job in claim(door, acme, key, most=3)] == [jobs[0], jobs[2]]
    monkeypatch.undo()
    assert [job["id"] for job in claim(door, acme, key, most=3)] == [jobs[1]]


def test_an_end_that_could_not_be_written_is_told_again(
    door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards that a job stays with the worker that ran it until its end is written: given to another, it would run again."""
    key = define(door, acme, max_attempts=1)
    job_id = add(door, acme, key)
    (job,) = claim(door, acme, key)

    def nobody_listens(*_: Any) -> Any:
        raise ConnectionRefusedError

    with monkeypatch.context() as away:
        away.setattr(PgOffers, "end", nobody_listens)
        assert tell(door, acme, "complete", job).status == 503
    assert claim(door, acme, key) == []
    assert tell(door, acme, "complete", job).status == 200
    assert (seen(door, acme, job_id)["status"], seen(door, acme, job_id)["attempt_count"]) == ("succeeded", 1)


def test_a_job_at_work_is_not_begun_anew_behind_its_workers_back(door: Door, acme: TenantHouse) -> None:
    """Its attempt would be nobody's: never ended, or ended by what another worker says."""
    key = define(door, acme)
    job_id = add(door, acme, key)
    (job,) = claim(door, acme, key)
    assert tell(door, acme, "heartbeat", job, stdout_tail="half of it").status == 200
    lane = door.lane(UUID(job_id))["id"]

    refused = door.call(acme.admin, "POST", f"/runs/{job_id}/lanes/{lane}/restart", {"reason": "again"})

    assert (refused.status, refused.code) == (409, "at_work")
    assert claim(door, acme, key) == []
    assert tell(door, acme, "complete", job).status == 200
    attempts = door.call(acme.viewer, "GET", f"/jobs/{job_id}/attempts").json()["attempts"]
    assert [(each["attempt_no"], each["status"]) for each in attempts] == [(1, "succeeded")]


def test_a_claim_whose_answer_was_lost_is_answered_again(door: Door, acme: TenantHouse) -> None:
    """Guards that a lost answer costs a job no attempt: whoever asks again is told what they have, and takes more only if
    they have nothing."""
    key = define(door, acme, max_attempts=1)
    jobs = [add(door, acme, key) for _ in range(3)]
    queues = [queue_of(door, key), "another"]

    def asks(worker: str, claim_id: Any, *, again: bool) -> list[str]:
        body = {"worker_id": worker, "queues": queues, "most": 2, "claim_id": claim_id, "again": again}
        answer = door.call(acme.worker, "POST", "/worker/jobs/claim", body)
        assert answer.status == 200, answer
        assert all(job["claim_token"] == claim_id and job["attempt_no"] == 1 for job in answer.json()["jobs"])
        return sorted(job["id"] for job in answer.json()["jobs"])

    lost, never, other = (str(new_id()) for _ in range(3))
    assert asks("a", lost, again=False) == asks("a", lost, again=True) == sorted(jobs[:2])
    assert asks("a", lost, again=False) == sorted(jobs[:2])  # a copy that somebody on the way has sent
    assert asks("b", lost, again=True) == [jobs[2]]  # another worker's claim is not told
    assert asks("a", never, again=True) == asks("a", other, again=False) == []
    bare = {"worker_id": "nobody", "queues": queues, "again": True}
    assert door.call(acme.worker, "POST", "/worker/jobs/claim", bare).status == 422
    assert door.value("select count(*) from job_workers where hostname = 'nobody'") == 0, "refused, and nothing written"


def test_a_busy_worker_over_http_is_there_by_its_heartbeats_until_it_signs_off(
    door: Door, acme: TenantHouse, globex: TenantHouse
) -> None:
    """It asks for nothing more while it has all that it can take; its queue has a worker all the same."""
    key = define(door, acme)
    running, waiting = add(door, acme, key), add(door, acme, key)
    (job,) = claim(door, acme, key)

    def listed() -> list[Any]:
        told = door.call(door.super_admin.choosing(acme.id), "GET", "/admin/jobs/workers").json()["workers"]
        return [each for each in told if queue_of(door, key) in each["queues"]]

    door.sql("update job_workers set last_seen_at = last_seen_at - interval '90 s' where hostname = 'far'")
    assert [(each["stale"], each["running_count"]) for each in listed()] == [(True, 1)]
    assert seen(door, acme, waiting)["why"]["workers"] == 0

    assert tell(door, acme, "heartbeat", job).status == 200

    assert [(each["hostname"], each["stale"], each["running_count"]) for each in listed()] == [("far", False, 1)]
    assert seen(door, acme, waiting)["why"]["workers"] == 1
    tell(door, acme, "complete", job)
    assert [each["running_count"] for each in listed()] == [0]
    assert seen(door, acme, running)["claimed_by_worker"].endswith("/far:1")
    assert door.call(globex.worker, "POST", "/worker/sign-off", {"worker_id": "far:1"}).status == 200
    assert len(listed()) == 1, "another tenant's has the same name"
    assert door.call(acme.worker, "POST", "/worker/sign-off", {"worker_id": "far:1"}).status == 200
    assert listed() == []


def test_a_claim_that_was_held_up_on_the_way_takes_nothing(door: Door, acme: TenantHouse) -> None:
    """Somebody on the way sends it late, when all that it took has ended: nobody would hear of what it takes now."""
    key = define(door, acme, max_attempts=1)
    first, second, third = (add(door, acme, key) for _ in range(3))
    queues = [queue_of(door, key), "another"]

    def asks(claim_no: int | None, claim_id: str, *, again: bool = False) -> list[str]:
        body = {"worker_id": "far:1", "queues": queues, "claim_id": claim_id, "claim_no": claim_no, "again": again}
        answer = door.call(acme.worker, "POST", "/worker/jobs/claim", body)
        assert answer.status == 200, answer
        for job in answer.json()["jobs"]:
            held[job["id"]] = job
        return [job["id"] for job in answer.json()["jobs"]]

    held: dict[str, Any] = {}
    one, two = str(new_id()), str(new_id())
    assert asks(1, one) == asks(1, one, again=True) == [first]
    tell(door, acme, "complete", held[first])
    assert asks(1, one) == [], "answered already"
    assert asks(2, two) == [second]
    assert (asks(1, one), asks(1, one, again=True)) == ([], []), "overtaken"
    assert asks(2, two) == [second], "what it holds it is still told"
    assert seen(door, acme, third)["attempt_count"] == 0
    assert asks(3, str(new_id())) == [third]

    bare = {"worker_id": "far:1", "queues": queues, "claim_no": 4}
    assert door.call(acme.worker, "POST", "/worker/jobs/claim", bare).status == 422


def test_a_job_whose_command_a_worker_does_not_know_is_kept_for_another_at_no_cost(
    door: Door, acme: TenantHouse
) -> None:
    """Guards that built-in commands, which need the database, lose no attempts to workers that cannot run them; and that what
    such a worker can run is not held up by them."""
    key = define(door, acme, max_attempts=1)
    job_id = add(door, acme, key)
    body = {"worker_id": "far:1", "queues": [queue_of(door, key)], "most": 2}
    narrow = door.call(acme.worker, "POST", "/worker/jobs/claim", {**body, "commands": ["recompute-trained-tags"]})
    assert (narrow.status, narrow.json()["jobs"]) == (200, [])
    told = seen(door, acme, job_id)
    assert (told["status"], told["attempt_count"], told["why"]["code"]) == ("queued", 0, "scheduled")
    door.sql("update lane set next_due_at = now() where run_id = :id", id=job_id)
    knowing = door.call(acme.worker, "POST", "/worker/jobs/claim", {**body, "commands": ["sync-dropbox"]})
    assert [job["id"] for job in knowing.json()["jobs"]] == [job_id]


def test_workers_of_a_tenant_are_nobody_elses_to_see(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    """Guards that the API's own role finds a tenant's workers, and those of all tenants, and nobody else's."""
    key = define(door, acme)
    for tenant in (acme, globex):
        claim(door, tenant, key)
    queue = queue_of(door, key)
    door.sql(
        "insert into job_workers (worker_id, hostname, queues) values ('h:1', 'h', array[:queue]) on conflict do nothing",
        queue=queue,
    )
    own = "select worker_id from job_workers where :queue = any(queues) order by worker_id"
    with door.engine.begin() as connection:
        assert connection.execute(sa.text(own), {"queue": queue}).scalars().all() == ["h:1"]
        db.set_tenant(connection, acme.id)
        told = connection.execute(sa.text(own), {"queue": queue}).scalars().all()
        assert [each.rpartition("/")[2] for each in told] == ["h:1", "far:1"]
        theirs = connection.execute(
            sa.text("update job_workers set running_count = 9 where worker_id = 'h:1' or tenant_id = :t"),
            {"t": globex.id},
        )
        assert theirs.rowcount == 0
    everywhere = door.call(door.super_admin.choosing(acme.id), "GET", "/admin/jobs/workers").json()["workers"]
    assert len([each for each in everywhere if queue in each["queues"]]) == 3
    with door.engine.begin() as connection:
        assert connection.execute(sa.text("select count(*) from workers_everywhere('nobody')")).scalar_one() == 0


def test_a_worker_elsewhere_hears_of_a_cancel(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme)
    job_id = add(door, acme, key)
    (job,) = claim(door, acme, key)
    assert door.call(acme.member, "POST", f"/jobs/{job_id}/cancel", {}).status == 200
    assert tell(door, acme, "heartbeat", job).json() == {"word": "cancel"}
    assert tell(door, acme, "fail", job, reason="canceled").status == 200
    assert seen(door, acme, job_id)["status"] == "canceled"


def test_what_a_command_did_counts_though_it_was_canceled_meanwhile(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme)
    job_id = add(door, acme, key)
    (job,) = claim(door, acme, key)
    assert door.call(acme.member, "POST", f"/jobs/{job_id}/cancel", {"reason": "x"}).status == 200

    assert tell(door, acme, "complete", job).status == 200
    assert seen(door, acme, job_id)["status"] == "succeeded"


def test_a_worker_takes_nothing_of_another_tenant(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    key = define(door, acme)
    theirs, mine = add(door, globex, key), add(door, acme, key)
    assert [job["id"] for job in claim(door, acme, key, most=10)] == [mine]
    assert seen(door, globex, theirs)["status"] == "queued"


def test_a_worker_of_another_tenant_is_nobody_to_wait_for(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    key = define(door, acme)
    claim(door, acme, key)
    door.call(
        acme.machines[Role.WORKER], "POST", "/worker/jobs/claim", {"worker_id": "m", "queues": [queue_of(door, key)]}
    )

    def why(tenant: TenantHouse) -> tuple[str, int]:
        told = seen(door, tenant, add(door, tenant, key))["why"]
        return told["code"], told["workers"]

    assert (why(acme), why(globex)) == (("next", 2), ("no_worker", 0))


def test_a_worker_with_a_new_name_every_time_fills_no_table(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    key = define(door, acme)
    claim(door, globex, key)
    claim(door, acme, key)
    door.sql(
        """insert into job_workers (worker_id, hostname, queues, tenant_id, last_seen_at)
           select 'old:' || n, 'gone', array['elsewhere'], :tenant, now() - make_interval(mins => n)
           from generate_series(1, :most) as n""",
        tenant=acme.id, most=MOST_WORKERS - 1,
    )  # fmt: skip
    for name in ("one", "two", "two"):
        body = {"worker_id": name, "queues": [queue_of(door, key)]}
        assert door.call(acme.worker, "POST", "/worker/jobs/claim", body).status == 200

    count = "select count(*) from job_workers where tenant_id = :tenant"
    assert door.value(count, tenant=acme.id) == MOST_WORKERS
    left = [row.worker_id for row in door.sql("select worker_id from job_workers where hostname = 'gone'")]
    assert set(left) == {f"old:{n}" for n in range(1, MOST_WORKERS - 2)}, (
        "those that were not seen for longest made room"
    )
    told = seen(door, acme, add(door, acme, key))["why"]
    assert (told["code"], told["workers"]) == ("next", 3), "and all that work are seen"
    assert door.value(count, tenant=globex.id) == 1


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


@pytest.mark.parametrize("route", ["/jobs", "/jobs/batch", "/runs"])
def test_a_job_with_the_same_key_that_is_retried_meanwhile_is_found(
    door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    """Nobody had the key when it was looked for, and somebody when it was written. Only what was added is counted."""
    key = define(door, acme)
    counted: list[str] = []
    monkeypatch.setattr(NoMeter, "count", lambda _, metric, *__, **___: counted.append(metric))
    first = add(door, acme, key, dedupe_key="k")
    door.call(acme.member, "POST", f"/jobs/{first}/cancel", {"reason": "x"})
    looked = Jobs._active
    looks = 0

    def look_and_then(self: Jobs, *asked: Any) -> Any:
        nonlocal looks
        found = looked(self, *asked)
        looks += 1
        if looks == 1:
            run.retry_run(door.worker_ports, door.kinds["job"], acme.id, UUID(first))
        return found

    monkeypatch.setattr(Jobs, "_active", look_and_then)
    asked: dict[str, Any] = {"definition_key": key, "dedupe_key": "k"}
    body = {"/jobs/batch": {"jobs": [asked]}, "/runs": {"kind": "job", "params": asked}}.get(route, asked)
    answer = door.call(acme.member, "POST", route, body)
    assert (answer.status, looks, counted.count(JobMetric.ENQUEUED)) == (200, 2, 1)
    told = answer.json()
    assert (told["jobs"][0] if route == "/jobs/batch" else told)["id"] == first


def test_a_run_is_looked_up_by_any_spelling_of_its_id_when_a_job_runs(door: Door, acme: TenantHouse) -> None:
    """As when it was added: what was taken for an id then is no error of the database now."""
    key = define(door, acme)
    one = add(door, acme, key)
    add(door, acme, key, payload={"run": f"urn:uuid:{one}"})
    assert [job["payload"] for job in claim(door, acme, key, 2)] == [{}, {"run": f"urn:uuid:{one}"}]


def test_a_schema_of_older_rules_keeps_nobody_from_switching_its_definition_off(door: Door, acme: TenantHouse) -> None:
    key = define(door, acme)
    made = door.value("select id from job_definitions where key = :key", key=key)
    older = '{"type": "object", "properties": {"a": {"format": "json-pointer"}}, "additionalProperties": false}'
    door.sql("update job_definitions set arg_schema = cast(:s as jsonb) where id = :id", s=older, id=made)
    path, somebody = f"/admin/jobs/definitions/{made}", door.super_admin.choosing(acme.id)
    assert door.call(somebody, "PATCH", path, {"is_active": False}).status == 200
    changed = door.call(somebody, "PATCH", path, {"arg_schema": json.loads(older)})
    assert (changed.status, changed.code) == (422, "bad_schema")


def test_a_claim_that_is_answered_again_has_its_whole_lease(door: Door, acme: TenantHouse) -> None:
    """The worker counts from its second request: with what was left of the first lease, another one would have the job soon."""
    key = define(door, acme)
    job = add(door, acme, key)
    asked = {"worker_id": "far:1", "queues": [queue_of(door, key)], "claim_id": str(new_id()), "lease_seconds": 600}
    door.call(acme.worker, "POST", "/worker/jobs/claim", asked)
    door.sql("update lane set lease_until = now() + interval '5 s' where run_id = :id", id=job)
    (told,) = door.call(acme.worker, "POST", "/worker/jobs/claim", {**asked, "again": True}).json()["jobs"]
    assert told["id"] == job
    assert door.value("select lease_until > now() + interval '500 s' from lane where run_id = :id", id=job)


def test_a_person_who_works_for_two_tenants_is_a_worker_of_each(
    door: Door, acme: TenantHouse, globex: TenantHouse
) -> None:
    """By whatever name they go: neither tenant's line is the other's to write."""
    door.join(acme.worker, globex, Role.WORKER)
    key = define(door, acme)
    body = {"worker_id": "laptop", "queues": [queue_of(door, key)]}
    claims = [door.call(acme.worker.choosing(t.id), "POST", "/worker/jobs/claim", body) for t in (acme, globex)]
    assert [each.status for each in claims] == [200, 200]
    seen_by = "select count(*) from job_workers where tenant_id = :t and hostname = 'laptop'"
    assert [door.value(seen_by, t=each.id) for each in (acme, globex)] == [1, 1]


def test_what_the_api_counts_leaves_it_by_the_meter_that_ships(
    door: Door, acme: TenantHouse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alarm for failed runs was blind to those that workers over HTTP report; *pending* was never drawn."""

    def written() -> dict[str, Any]:
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]
        assert {line["_aws"]["CloudWatchMetrics"][0]["Namespace"] for line in lines} <= {"Baton/test", "Baton"}
        return {name: line[name] for line in lines for name in line if name != "_aws"}

    monkeypatch.setenv("PENDING_DASHBOARD_ENABLED", "true")
    monkeypatch.setattr(door.front, "ports", replace(door.ports, meter=EmfMeter("Baton/test")))
    key = define(door, acme, max_attempts=1)
    add(door, acme, key)
    (job,) = claim(door, acme, key)
    written()

    tell(door, acme, "fail", job, exit_code=1)
    assert written()["RunsFailed"] == [1.0]

    assert door.call(acme.member, "GET", "/pending").status == 200
    assert written()["pending_count"] == [0]
    assert door.call(acme.member, "GET", "/jobs").status == 200
    assert written() == {}


def test_a_command_that_only_starts_a_run_is_for_lambda_whatever_its_time_out(door: Door, acme: TenantHouse) -> None:
    """A worker would have to be there for something that takes no time."""
    body = {"key": f"d-{new_id()}", "command": "searches.cycle", "arg_schema": {}, "timeout_seconds": 86_400}
    made = door.call(door.super_admin.choosing(acme.id), "POST", "/admin/jobs/definitions", body)

    assert made.status == 201, made
    assert door.value("select executor from job_definitions where key = :key", key=body["key"]) == "lambda"
