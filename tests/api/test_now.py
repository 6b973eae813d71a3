"""Guards the page that one keeps open: what is late, fails and waits, of the right runs and of nobody else's, in one look."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.migrations.head import newest_revision
from shared.kernel import db, direct
from shared.kernel.api import sql
from shared.kernel.auth import Role
from shared.kernel.clock import new_id
from shared.kernel.dead_letter import note_dead_letter
from shared.kernel.model import Problem
from shared.kernel.tick import roll_up, tick
from shared.row_job.steps import PROMOTION
from tests.support.door import Door, TenantHouse, Who

QUIET = {"waiting": [], "gates": [], "repairs": [], "moving": 0}


def now(door: Door, who: Who) -> Any:
    answer = door.call(who, "GET", "/now")
    assert answer.status == 200, answer.body
    return answer.json()


def system(door: Door, who: Who) -> Any:
    answer = door.call(who, "GET", "/system")
    assert answer.status == 200, answer.body
    return answer.json()


def set_lanes(door: Door, run_id: UUID, assignments: str) -> None:
    door.sql(f"update lane set {assignments} where run_id = :id", id=run_id)


def fail(door: Door, run_id: UUID, code: str, message: str, age: str = "1 minute") -> None:
    error = db.jsonb(Problem(code, message).to_json())
    door.sql(
        """update run set status = 'failed', error = cast(:e as jsonb), finished_at = now() - cast(:age as interval)
           where id = :id""",
        id=run_id, e=error, age=age,
    )  # fmt: skip
    set_lanes(door, run_id, "status = 'failed'")


def repaired(door: Door, run_id: UUID, why: str = "unsent", age: str = "1 minute") -> None:
    door.sql(
        """insert into repair (lane_id, tenant_id, why, at)
           select id, tenant_id, :why, now() - cast(:age as interval) from lane where run_id = :id""",
        id=run_id, why=why, age=age,
    )  # fmt: skip


# How things stand.


def test_on_a_quiet_day_there_is_nothing_but_an_hour_of_zeros(door: Door, acme: TenantHouse) -> None:
    told = now(door, acme.viewer)

    assert {name: told[name] for name in QUIET} == QUIET
    assert told["open"] == {"queued": 0, "running": 0, "paused": 0, "more": False}
    assert told["late"] == {"count": 0, "more": False, "runs": []}
    assert told["failing"] == {"count": 0, "more": False, "groups": []}
    minutes = [datetime.fromisoformat(each["minute"]) for each in told["throughput"]]
    last = datetime.fromisoformat(told["now"]).replace(second=0, microsecond=0) - timedelta(minutes=1)
    assert minutes == [last - timedelta(minutes=59 - n) for n in range(60)]
    assert {(each["steps"], each["failed"], each["rows"]) for each in told["throughput"]} == {(0, 0, 0)}


def test_it_is_one_look_at_the_database(door: Door, acme: TenantHouse) -> None:
    def flights() -> int:
        with door.engine.connect() as connection:
            return db.flights(connection)

    now(door, acme.member)
    before = flights()
    now(door, acme.member)

    assert flights() - before == 2, "who asks, and everything"


def test_open_runs_are_counted_and_those_that_committed_move(door: Door, acme: TenantHouse) -> None:
    door.start(acme)
    paused, at_work, ended, waits = (door.start(acme) for _ in range(4))
    door.step(at_work)
    assert door.claims(at_work)
    door.finish(ended)
    assert door.call(acme.member, "POST", f"/runs/{paused}/pause", {}).status == 200
    set_lanes(door, waits, "next_due_at = now() + interval '1 hour', waits_for = 'an answer'")

    told = now(door, acme.viewer)

    assert told["open"] == {"queued": 2, "running": 1, "paused": 1, "more": False}
    assert told["moving"] == 1, "a step that is due proves nothing"
    assert [(w["code"], w["runs"], w["action"], w["run_id"]) for w in told["waiting"]] == [
        ("due_later", 1, "wake", str(waits)),
        ("paused", 1, "resume", str(paused)),
    ]
    assert told["waiting"][0]["sentence"] == "Waiting for an answer."


def test_a_run_that_waits_and_has_just_moved_made_progress(door: Door, acme: TenantHouse) -> None:
    """A query that is asked every minute commits a step every minute, and waits all the time."""
    polled = door.start(acme)
    waits = "next_due_at = now() + interval '1 hour', waits_for = 'an answer'"
    set_lanes(door, polled, f"{waits}, steps = 3, updated_at = now() - interval '1 minute'")
    assert now(door, acme.viewer)["moving"] == 1

    set_lanes(door, polled, f"{waits}, steps = 3, updated_at = now() - interval '6 minutes'")
    assert now(door, acme.viewer)["moving"] == 0


def test_the_action_that_frees_what_waits_is_its_kinds_own(door: Door, acme: TenantHouse) -> None:
    """A canary that is woken looks again and waits again."""
    run_id = door.start(acme)
    door.sql("update run set kind = 'row_job' where id = :id", id=run_id)
    set_lanes(door, run_id, f"kind = 'row_job', next_due_at = now() + interval '1 hour', waits_for = '{PROMOTION}'")

    (waiting,) = now(door, acme.admin)["waiting"]
    (why,) = door.call(acme.admin, "GET", f"/runs/{run_id}/why").json()["reasons"]

    assert waiting["action"] == why["action"] == "promote"


def test_what_waits_for_something_else_is_a_line_of_its_own(door: Door, acme: TenantHouse) -> None:
    for what in ("an answer", "an answer", "the night"):
        set_lanes(door, door.start(acme), f"next_due_at = now() + interval '1 hour', waits_for = '{what}'")

    told = now(door, acme.viewer)

    assert [(w["code"], w["runs"], w["sentence"]) for w in told["waiting"]] == [
        ("due_later", 2, "Waiting for an answer."),
        ("due_later", 1, "Waiting for the night."),
    ]


def test_what_waits_for_the_same_is_one_line_and_tells_the_earliest_end(door: Door, acme: TenantHouse) -> None:
    gated = [door.start(acme) for _ in range(3)]
    door.sql(
        "insert into gate (tenant_id, key, state, until, reason) values (:t, 'api', 'closed', now() + interval '1 hour', 'busy')",
        t=acme.id,
    )
    for n, run_id in enumerate(gated):
        set_lanes(door, run_id, f"next_due_at = now() + interval '{n + 1} minutes', waits_for = 'gate:api'")
    for code in ("timeout", "timeout", "refused"):
        problem = db.jsonb(Problem(code, "no").to_json())
        set_lanes(
            door, door.start(acme), f"next_due_at = now() + interval '1 hour', attempts = 1, last_error = '{problem}'"
        )

    told = now(door, acme.admin)

    assert [(w["code"], w["held_by"], w["runs"]) for w in told["waiting"]] == [
        ("gate", "api", 3), ("retrying", "timeout", 2), ("retrying", "refused", 1),
    ]  # fmt: skip
    first = told["waiting"][0]
    assert (first["action"], first["run_id"]) == ("open_gate", str(gated[0]))
    until = door.value("select until from gate where tenant_id = :t", t=acme.id)
    assert datetime.fromisoformat(first["until"]) == until
    assert [(g["key"], g["state"], g["reason"]) for g in told["gates"]] == [("api", "closed", "busy")]


def test_a_run_with_one_lane_that_moves_does_not_wait(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme, lanes=3)
    door.sql("update lane set next_due_at = now() + interval '1 hour' where run_id = :id and key <> 'l1'", id=run_id)
    door.sql("update lane set sent_at = null where run_id = :id and key = 'l0'", id=run_id)

    told = now(door, acme.admin)

    assert (told["moving"], told["waiting"]) == (0, [])
    set_lanes(door, run_id, "steps = 1, updated_at = now() - interval '1 minute'")
    assert now(door, acme.admin)["moving"] == 1


@pytest.mark.parametrize(
    "lanes",
    [
        "steps = 0",
        "attempts = 1",
        "updated_at = now() - interval '6 minutes'",
        "next_due_at = now() - interval '3 minutes'",
    ],
    ids=["nothing yet", "only failed attempts", "long ago", "late"],
)
def test_only_a_recent_commit_proves_that_a_run_moves(door: Door, acme: TenantHouse, lanes: str) -> None:
    run_id = door.start(acme)
    set_lanes(door, run_id, "steps = 1, updated_at = now()")
    assert now(door, acme.admin)["moving"] == 1

    set_lanes(door, run_id, lanes)

    assert now(door, acme.admin)["moving"] == 0


@pytest.mark.parametrize(
    ("lanes", "run", "says"),
    [
        ("next_due_at = now() - interval '3 minutes'", "", "The next step is overdue"),
        ("claim_token = gen_random_uuid(), lease_until = now() - interval '3 minutes'", "", "didn't finish"),
        ("updated_at = now()", "deadline_at = now() - interval '1 s'", "Past its deadline"),
        ("next_due_at = now() - interval '1 minute'", "", None),
        ("next_due_at = now() - interval '3 minutes'", "paused_at = now()", None),
        ("updated_at = now()", "deadline_at = now() - interval '1 s', paused_at = now()", None),
        ("next_due_at = now() - interval '9 minutes', claim_token = gen_random_uuid(), lease_until = now() + interval '9 s'",
         "", None),
        ("claim_token = gen_random_uuid(), lease_until = now() - interval '1 minute'", "", None),
        ("next_due_at = now() - interval '3 minutes', status = 'done'", "", None),
    ],
    ids=["due", "lease over", "deadline", "just due", "paused", "paused past its deadline", "at work", "lease just over", "done"],
)  # fmt: skip
def test_what_is_late_and_what_is_not(door: Door, acme: TenantHouse, lanes: str, run: str, says: str | None) -> None:
    run_id = door.start(acme, lanes=2)
    door.sql(f"update lane set {lanes} where run_id = :id and key = 'l1'", id=run_id)
    door.sql(f"update run set label = 'mine'{run and ', ' + run} where id = :id", id=run_id)

    told = now(door, acme.member)

    assert told["late"]["count"] == len(told["late"]["runs"]) == (0 if says is None else 1)
    if says is not None:
        (late,) = told["late"]["runs"]
        assert (late["id"], late["kind"], late["label"], late["status"]) == (str(run_id), "tally", "mine", "queued")
        assert says in late["sentence"]
        assert told["moving"] == 0


def test_the_worst_come_first_and_ten_are_shown(door: Door, acme: TenantHouse) -> None:
    for n in range(12):
        set_lanes(door, door.start(acme), f"next_due_at = now() - interval '{10 + n} minutes'")

    late = now(door, acme.admin)["late"]

    since = [each["since"] for each in late["runs"]]
    assert (late["count"], len(since), since) == (12, 10, sorted(since))
    oldest = door.value("select min(next_due_at) from lane where tenant_id = :t", t=acme.id)
    assert datetime.fromisoformat(since[0]) == oldest


def test_failed_runs_of_one_cause_are_one_line(door: Door, acme: TenantHouse) -> None:
    runs = [door.start(acme) for _ in range(6)]
    for n, run_id in enumerate(runs[:3]):
        fail(door, run_id, "closed", f"shelf {n} of run {new_id()} is closed", f"{3 - n} hours")
    fail(door, runs[3], "endless", "pages do not end")
    fail(door, runs[4], "endless", "pages do not end", "25 hours")
    door.call(acme.member, "POST", f"/runs/{runs[5]}/cancel", {})
    door.finish(runs[5])

    failing = now(door, acme.viewer)["failing"]

    assert (failing["count"], failing["more"]) == (4, False)
    closed, endless = failing["groups"]
    assert (closed["code"], closed["kind"], closed["count"], closed["run_id"]) == ("closed", "tally", 3, str(runs[2]))
    assert closed["message"].startswith("shelf 2 of run")
    assert (endless["code"], endless["count"], endless["run_id"]) == ("endless", 1, str(runs[3]))
    listed = door.call(acme.viewer, "GET", "/runs", status="failed").json()["runs"]
    assert {run["fingerprint"] for run in listed} == {closed["fingerprint"], endless["fingerprint"]}


def test_the_real_end_of_a_run_and_of_its_lane_have_a_fingerprint(door: Door, acme: TenantHouse) -> None:
    runs = [door.start(acme, target=9, max_steps=most) for most in (2, 3)]
    for run_id in runs:
        door.finish(run_id)

    told = [door.call(acme.member, "GET", f"/runs/{run_id}").json() for run_id in runs]
    lanes = [door.call(acme.member, "GET", f"/runs/{run_id}/lanes").json()["lanes"][0] for run_id in runs]

    (group,) = now(door, acme.member)["failing"]["groups"]
    assert [(run["status"], run["fingerprint"]) for run in told] == [("failed", group["fingerprint"])] * 2
    assert [lane["fingerprint"] for lane in lanes] == [lanes[0]["last_error"]["fingerprint"]] * 2
    assert lanes[0]["last_error"]["message"] != lanes[1]["last_error"]["message"]


def test_throughput_is_what_the_tick_summed_up(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme, target=9)
    for _ in range(3):
        door.step(run_id)
    door.sql("update step set at = at - interval '5 minutes' where tenant_id = :t", t=acme.id)
    roll_up(door.worker_ports, None)

    told = now(door, acme.admin)["throughput"]

    moved = [(each["steps"], each["failed"], each["rows"]) for each in told if each["steps"]]
    assert [sum(column) for column in zip(*moved, strict=True)] == [3, 0, 3]


def test_the_latest_repairs_of_a_day_are_shown(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme)
    for n in range(11):
        repaired(door, run_id, f"r{n}", f"{n + 1} hours")
    repaired(door, run_id, "old", "25 hours")

    repairs = now(door, acme.admin)["repairs"]

    assert [repair["why"] for repair in repairs] == [f"r{n}" for n in range(10)]
    assert {(r["run_id"], r["lane_id"], r["lane_key"], r["kind"]) for r in repairs} == {
        (str(run_id), str(door.lane(run_id)["id"]), "l0", "tally")
    }


def test_more_than_are_looked_at_is_said(door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "MOST_OPEN", 2)
    monkeypatch.setattr(sql, "MOST_FAILED", 2)
    sql.now.cache_clear()
    try:
        runs = [door.start(acme) for _ in range(6)]
        for run_id in runs[:3]:
            fail(door, run_id, "x", "y")
        set_lanes(door, runs[3], "next_due_at = now() - interval '1 hour'")

        told = now(door, acme.admin)
    finally:
        sql.now.cache_clear()

    assert told["open"] == {"queued": 2, "running": 0, "paused": 0, "more": True}
    assert (told["late"]["count"], told["late"]["more"]) == (1, True), "the oldest are looked at"
    assert (told["failing"]["count"], told["failing"]["more"]) == (2, True)


# Whose.


def everything(door: Door, tenant: TenantHouse, by: Who) -> UUID:
    """A run for every part of the page."""
    failed, late, waits, paused = (door.start(tenant, by) for _ in range(4))
    door.step(waits)
    door.sql(
        "update step set at = at - interval '5 minutes' where tenant_id = :t and at > now() - interval '1 minute'",
        t=tenant.id,
    )
    fail(door, failed, "x", f"y of {by.actor}")
    set_lanes(door, late, "next_due_at = now() - interval '1 hour'")
    set_lanes(door, waits, "next_due_at = now() + interval '1 hour'")
    door.call(by, "POST", f"/runs/{paused}/pause", {})
    repaired(door, late)
    roll_up(door.worker_ports, None)
    return late


def test_a_member_sees_his_own_share_and_the_others_all(door: Door, acme: TenantHouse) -> None:
    everything(door, acme, acme.member)
    late = everything(door, acme, acme.other)

    def seen(who: Who) -> tuple[int, ...]:
        told = now(door, who)
        return (
            sum(told["open"][name] for name in ("queued", "running", "paused")), sum(w["runs"] for w in told["waiting"]),
            told["late"]["count"], told["failing"]["count"], sum(each["steps"] for each in told["throughput"]),
            len(told["repairs"]),
        )  # fmt: skip

    assert seen(acme.member) == seen(acme.other) == (3, 2, 1, 1, 1, 1)
    assert seen(acme.machines[Role.MEMBER]) == (0, 0, 0, 0, 0, 0)
    for who in (acme.viewer, acme.admin, door.super_admin.choosing(acme.id)):
        assert seen(who) == (6, 4, 2, 2, 2, 2)
    assert str(late) not in door.call(acme.member, "GET", "/now").body


def test_another_tenant_sees_nothing_of_it(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    everything(door, acme, acme.member)
    door.call(acme.admin, "POST", "/gates/mine/close", {"reason": "x", "for_s": 60})

    told = now(door, globex.admin)

    assert {name: told[name] for name in QUIET} == QUIET
    assert (told["late"]["count"], told["failing"]["count"]) == (0, 0)
    assert sum(each["steps"] for each in told["throughput"]) == 0
    assert (system(door, globex.admin)["repairs"]["count"], system(door, globex.admin)["oldest_due"]) == (0, None)


@pytest.mark.parametrize("which", ["member", "other", "nobody in particular", "another tenant"])
def test_the_pulse_is_walled_whatever_is_asked(door: Door, acme: TenantHouse, globex: TenantHouse, which: str) -> None:
    everything(door, acme, acme.member)
    tenant = globex if which == "another tenant" else acme
    owner = {"member": acme.member.actor, "other": acme.other.actor}.get(which)

    with direct.together(door.engine, tenant.id, owner) as line:
        (steps,) = line.scalars(sa.text("select coalesce(sum(steps), 0) from pulse"), {})

    assert steps == (1 if which in {"member", "nobody in particular"} else 0)


# The machinery.


def test_a_machinery_that_is_well_says_so(door: Door, acme: TenantHouse) -> None:
    door.worker_ports.store.beat("tick")
    door.worker_ports.store.beat("sweep")

    told = system(door, acme.admin)

    assert told["schema"] == newest_revision()
    assert 0 <= told["tick_age_s"] < 60
    assert 0 <= told["sweep_age_s"] < 60
    assert {name: told[name] for name in ("unsent", "oldest_due", "everywhere")} == {
        "unsent": 0, "oldest_due": None, "everywhere": None,
    }  # fmt: skip
    assert told["dead_letters"] == {"count": 0, "latest": []}
    assert told["repairs"] == {"count": 0, "by": [], "latest": []}


def test_what_is_not_sent_and_what_should_have_moved_is_told(door: Door, acme: TenantHouse) -> None:
    overdue = "next_due_at = now() - interval '10 minutes'"
    unsent, sent, paused, busy, later, taken = (door.start(acme) for _ in range(6))
    set_lanes(door, unsent, f"{overdue}, sent_at = null")
    set_lanes(door, sent, "next_due_at = now() - interval '20 minutes'")
    for run_id in (paused, busy):
        set_lanes(door, run_id, "next_due_at = now() - interval '1 hour', sent_at = null")
    door.sql("update run set paused_at = now() where id = :id", id=paused)
    set_lanes(door, busy, "claim_token = gen_random_uuid(), lease_until = now() + interval '1 minute'")
    set_lanes(door, later, "next_due_at = now() + interval '1 hour', sent_at = null")
    set_lanes(door, taken, "claim_token = gen_random_uuid(), lease_until = now() - interval '5 minutes'")

    told = system(door, acme.admin)

    assert told["unsent"] == 1
    oldest = door.value("select next_due_at from lane where run_id = :id", id=sent)
    assert datetime.fromisoformat(told["oldest_due"]) == oldest


def test_deliveries_that_were_given_up_are_shown_with_their_reason(
    door: Door, acme: TenantHouse, globex: TenantHouse
) -> None:
    """What happened stays; what should have followed of it did not."""
    for tenant, listener in ((acme, "search"), (acme, "job/T1"), (globex, "search")):
        door.sql(
            """with said as (insert into signal (tenant_id, name, payload, dispatched_at) values (:t, 'run.succeeded', '{}', now()) returning id)
               insert into hearing (signal_id, listener, tenant_id, at, due_at, attempts, error, given_up_at)
               select id, :listener, :t, now(), now(), 10, '{"code": "unexpected", "message": "KeyError: no"}',
                      case when :listener = 'search' then now() end from said""",
            t=tenant.id, listener=listener,
        )  # fmt: skip

    told = system(door, acme.admin)["unheard"]

    assert told["count"] == 1
    (unheard,) = told["latest"]
    assert (unheard["signal"], unheard["listener"], unheard["attempts"]) == ("run.succeeded", "search", 10)
    assert unheard["error"]["message"] == "KeyError: no"


def test_dead_letters_are_counted_and_what_the_tick_mended_too(door: Door, acme: TenantHouse) -> None:
    dead, unsent = door.start(acme), door.start(acme)
    note_dead_letter(door.worker_ports, door.baton(dead).to_json(), 10)
    note_dead_letter(door.worker_ports, door.baton(dead).to_json(), 10)
    set_lanes(door, unsent, "sent_at = null, next_due_at = now() - interval '5 minutes', check_at = '-infinity'")
    tick(door.worker_ports, door.kinds)
    door.sql(
        "update repair set at = at - interval '25 hours' where id = (select min(id) from repair where tenant_id = :t)",
        t=acme.id,
    )

    told = system(door, acme.admin)

    lane = {"run_id": str(dead), "lane_id": str(door.lane(dead)["id"]), "lane_key": "l0", "kind": "tally"}
    assert told["dead_letters"]["count"] == 1
    assert [{k: v for k, v in each.items() if k != "at"} for each in told["dead_letters"]["latest"]] == [lane]
    assert told["repairs"]["count"] == 2
    assert told["repairs"]["by"] == [{"why": "dead_letter", "count": 1}, {"why": "unsent", "count": 1}]
    assert [repair["why"] for repair in told["repairs"]["latest"]] == ["unsent", "dead_letter"]


def test_only_a_super_admin_looks_over_all_tenants(door: Door, acme: TenantHouse, globex: TenantHouse) -> None:
    door.start(globex)

    everywhere = system(door, door.super_admin.choosing(acme.id))["everywhere"]

    assert everywhere["tenants"] == door.value("select count(*) from tenant")
    assert everywhere["open_runs"] == door.value("select count(*) from run where finished_at is null")
    assert {"run", "lane", "step", "pulse"} <= {table["name"] for table in everywhere["tables"]}
    assert all(table["bytes"] > 0 for table in everywhere["tables"])
    for who in (acme.admin, acme.machines[Role.ADMIN]):
        assert system(door, who)["everywhere"] is None


@pytest.mark.parametrize("subject", ["nobody", "", None])
def test_the_look_over_all_tenants_asks_itself_who_asks(door: Door, acme: TenantHouse, subject: str | None) -> None:
    with direct.alone(door.engine, acme.id) as line:
        assert line.all(sa.text("select * from everywhere(:s)"), {"s": subject or acme.admin.subject}) == []
