"""Guards what people see of the job queue: how it stands, why a job waits, and that nobody sees what is not theirs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from shared.job_queue import decide
from tests.support.door import Door, TenantHouse, Who

KEY = "sync-dropbox"


def define(door: Door, tenant: TenantHouse, key: str = KEY, **more: Any) -> UUID:
    body = {"key": key, "command": KEY, "executor": "worker", **more}
    made = door.call(door.super_admin.choosing(tenant.id), "POST", "/admin/jobs/definitions", body)
    assert made.status == 201, made
    return UUID(made.json()["id"])


def add(door: Door, who: Who, key: str = KEY, **more: Any) -> UUID:
    made = door.call(who, "POST", "/jobs", {"definition_key": key, **more})
    assert made.status == 201, made
    return UUID(made.json()["id"])


def take(door: Door, most: int = 1, queue: str = "default") -> list[UUID]:
    rows = door.sql(
        "select run_id from take_offers(:queue, :most, gen_random_uuid(), interval '60 s', 'host:1:abcd')",
        queue=queue, most=most,
    )  # fmt: skip
    return [row["run_id"] for row in rows]


def see_worker(door: Door, queues: str = "{default}", ago: str = "1 s") -> None:
    door.sql(
        f"""insert into job_workers (worker_id, hostname, queues, last_seen_at)
            values (gen_random_uuid()::text, 'host', '{queues}', now() - interval '{ago}')"""
    )


def in_a_month(door: Door) -> str:
    return str(door.value("select (now() + interval '30 days')::timestamptz").isoformat())


def why(door: Door, who: Who, job_id: UUID) -> Any:
    return door.call(who, "GET", f"/jobs/{job_id}").json()["why"]


def summary(door: Door, who: Who) -> Any:
    answer = door.call(who, "GET", "/jobs/summary")
    assert answer.status == 200, answer
    return answer.json()


@pytest.fixture(autouse=True)
def _empty(door: Door) -> None:
    for table in ("trigger_firings", "job_triggers", "job_attempts", "offer", "pull_line", "pull_tenant", "job_workers", "job_definition_versions",
                  "job_definitions", "pull_class", "pull_queue"):  # fmt: skip
        door.sql(f"delete from {table}")


def test_a_job_that_waits_says_what_would_have_to_change(door: Door, acme: TenantHouse) -> None:
    definition = define(door, acme, concurrency_limit=1)
    first, second = add(door, acme.admin), add(door, acme.admin)

    told = why(door, acme.admin, second)
    assert (told["code"], told["ahead"], told["workers"]) == ("no_worker", 1, 0)
    assert "baton worker --queues default" in told["sentence"]
    see_worker(door, "{other}")
    see_worker(door, ago="5 min")
    assert why(door, acme.admin, second)["code"] == "no_worker", "one is elsewhere, and one is not seen any more"

    see_worker(door)
    assert (why(door, acme.admin, first)["code"], why(door, acme.admin, first)["ahead"]) == ("next", 0)
    assert why(door, acme.admin, second)["sentence"] == "1 job is ahead of it."
    urgent = add(door, acme.admin, priority=1)
    assert [why(door, acme.admin, each)["ahead"] for each in (urgent, first, second)] == [0, 1, 2]

    assert take(door) == [urgent]
    assert why(door, acme.admin, urgent)["code"] == "at_work"
    assert why(door, acme.admin, first)["code"] == "definition_cap"
    door.sql("update pull_class set most_running = null where id = :id", id=definition)
    door.sql("insert into pull_tenant (tenant_id, most_running) values (:t, 1)", t=acme.id)
    assert why(door, acme.admin, first)["code"] == "tenant_cap"
    door.sql("update pull_class set is_open = false")
    assert why(door, acme.admin, first)["code"] == "inactive"
    assert door.call(acme.admin, "POST", f"/runs/{first}/pause", {}).status == 200
    assert why(door, acme.admin, first)["code"] == "paused"

    assert door.call(acme.admin, "POST", f"/jobs/{urgent}/cancel", {}).status == 200
    assert why(door, acme.admin, urgent)["code"] == "canceling"
    door.sql("update lane set lease_until = now() - interval '1 s', cancel_at = null where run_id = :id", id=urgent)
    door.sql("update run set cancel_requested_at = null where id = :id", id=urgent)
    assert why(door, acme.admin, urgent)["code"] == "worker_lost"


def test_what_is_for_later_says_when(door: Door, acme: TenantHouse) -> None:
    define(door, acme)
    later = add(door, acme.admin, scheduled_for=in_a_month(door))
    told = why(door, acme.admin, later)
    assert (told["code"], told["until"][:10], told["ahead"]) == ("scheduled", in_a_month(door)[:10], None)

    door.sql("""update lane set attempts = 2, last_error = '{"message": "It broke."}' where run_id = :id""", id=later)
    assert why(door, acme.admin, later)["sentence"] == "Attempt 2 failed: It broke."

    assert door.call(acme.admin, "POST", f"/jobs/{later}/cancel", {}).status == 200
    assert why(door, acme.admin, later) is None


def test_jobs_of_other_tenants_are_not_ahead(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    define(door, acme)
    add(door, globex.admin)
    mine = add(door, acme.admin)

    assert why(door, acme.admin, mine)["ahead"] == 0


def test_very_many_ahead_are_counted_up_to_a_bound() -> None:
    facts = dict.fromkeys(("taken_at", "paused", "wakes", "definition_full", "tenant_full", "attempts"))
    told = decide.why({**facts, "is_open": True, "due": True, "workers": 1, "ahead": 1_001})
    assert told == ("in_line", "More than 1,000 jobs are ahead of it.")


def test_a_waiting_job_is_queued_everywhere_and_never_overdue(door: Door, acme: TenantHouse) -> None:
    define(door, acme)
    job_id = add(door, acme.admin)
    door.sql("update lane set next_due_at = now() - interval '1 hour' where run_id = :id", id=job_id)

    run = door.call(acme.admin, "GET", f"/runs/{job_id}").json()
    now = door.call(acme.admin, "GET", "/now").json()
    system = door.call(acme.admin, "GET", "/system").json()
    assert (run["state"], run["why"]["code"]) == ("queued", "queued")
    assert (now["late"]["count"], [each["code"] for each in now["waiting"]]) == (0, ["queued"])
    assert (system["unsent"], system["oldest_due"]) == (0, None)

    door.sql("update lane set attempts = 1 where run_id = :id", id=job_id)
    assert door.call(acme.admin, "GET", f"/runs/{job_id}").json()["state"] == "retrying"
    door.sql("update pull_class set is_open = false")
    assert door.call(acme.admin, "GET", f"/runs/{job_id}").json()["state"] == "waiting"
    door.sql("update pull_class set is_open = true")
    take(door)
    assert door.call(acme.admin, "GET", "/now").json()["late"]["count"] == 0
    door.sql("update lane set lease_until = now() - interval '1 hour' where run_id = :id", id=job_id)
    assert door.call(acme.admin, "GET", "/now").json()["late"]["count"] == 1


def test_a_member_hears_of_no_job_but_their_own_how_long_it_waits(door: Door, acme: TenantHouse) -> None:
    define(door, acme)
    others = add(door, acme.admin)
    door.sql("update offer set queued_at = now() - interval '90 s' where run_id = :id", id=others)
    door.sql("update pull_line set head = now() - interval '2 h'")
    told = summary(door, acme.member)
    assert (told["queued"], told["oldest_queued_age_s"]) == (0, None)

    add(door, acme.member)
    told = summary(door, acme.member)
    assert (told["queued"], told["oldest_queued_age_s"] < 60) == (1, True)
    assert summary(door, acme.admin)["oldest_queued_age_s"] >= 90


def test_the_summary_counts_and_measures(door: Door, acme: TenantHouse) -> None:
    define(door, acme)
    assert summary(door, acme.admin)["queue_latency"] is None
    jobs = [add(door, acme.admin) for _ in range(6)]
    door.sql("update offer set queued_at = now() - interval '90 s' where run_id = :id", id=jobs[0])
    door.sql("update pull_line set head = now() - interval '2 h'")
    told = summary(door, acme.admin)
    assert (told["queued"], told["running"], told["per_minute"]["enqueued"]) == (6, 0, 0.1)
    assert 90 <= told["oldest_queued_age_s"] < 120

    assert take(door) == [jobs[0]]
    for job_id, status, outcome, tries in (
        (jobs[1], "succeeded", "done", ["failed", "succeeded"]),
        (jobs[2], "failed", "dead_letter", ["timeout", "failed", "failed"]),
        (jobs[3], "failed", "failed", ["failed"]),
        (jobs[4], "canceled", "canceled", []),
    ):
        door.sql("update lane set status = 'done', next_due_at = now() - interval '30 s' where run_id = :id", id=job_id)
        door.sql(
            "update run set status = :status, outcome = :outcome, finished_at = now() where id = :id",
            id=job_id, status=status, outcome=outcome,
        )  # fmt: skip
        began, ended = ("8 s", "0 s") if job_id == jobs[3] else ("20 s", "15 s")
        for number, tried in enumerate(tries, 1):
            door.sql(
                f"""insert into job_attempts (job_id, attempt_no, tenant_id, worker_id, status, started_at, finished_at)
                    values (:id, :n, :t, 'w', :status, now() - interval '{began}', now() - interval '{ended}')""",
                id=job_id, n=number, t=acme.id, status=tried,
            )  # fmt: skip
    told = summary(door, acme.admin)
    assert {name: told[name] for name in ("queued", "running", "succeeded", "failed", "dead_letter", "canceled")} == {
        "queued": 1, "running": 1, "succeeded": 1, "failed": 1, "dead_letter": 1, "canceled": 1,
    }  # fmt: skip
    assert {name: round(rate * 60) for name, rate in told["per_minute"].items()} == {
        "enqueued": 6, "succeeded": 1, "failed": 5, "retried": 3, "dead_letter": 1,
    }  # fmt: skip
    assert {name: round(value) for name, value in told["queue_latency"].items()} == {"p50": 10, "p95": 22}
    assert {name: round(value) for name, value in told["run_time"].items()} == {"p50": 5, "p95": 8}
    assert (told["more"], told["everywhere"]) == ([], None)


def test_a_member_counts_their_own_jobs(door: Door, acme: TenantHouse) -> None:
    define(door, acme)
    add(door, acme.member)
    add(door, acme.other)
    assert len(take(door, 2)) == 2
    add(door, acme.other)

    seen = [summary(door, who) for who in (acme.member, acme.other, acme.admin)]

    assert [(each["queued"], each["running"]) for each in seen] == [(0, 1), (1, 1), (1, 2)]


def test_a_super_admin_sees_how_deep_every_queue_is(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    define(door, acme)
    define(door, acme, "slow", queue="night")
    for _ in range(3):
        add(door, acme.admin)
    add(door, globex.admin, "slow")
    add(door, globex.admin, scheduled_for=in_a_month(door))
    assert len(take(door)) == 1
    see_worker(door)

    told = summary(door, door.super_admin.choosing(acme.id))["everywhere"]

    depth = {
        row["tenant_id"]: (row["queued"], row["scheduled"], row["running"], row["more"]) for row in told["tenants"]
    }
    assert depth == {str(acme.id): (2, 0, 1, False), str(globex.id): (1, 1, 0, False)}
    assert {row["name"]: (row["definitions"], row["queued"], row["running"], row["workers"]) for row in told["queues"]} == {
        "default": (1, 2, 1, 1), "night": (1, 1, 0, 0),
    }  # fmt: skip
    assert all(row["oldest_queued_age_s"] is not None for row in told["tenants"])
    assert summary(door, acme.admin)["everywhere"] is None
