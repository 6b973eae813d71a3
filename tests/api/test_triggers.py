"""Guards triggers and events at the front door: everything is checked when it is made, and nothing bad is kept."""

from __future__ import annotations

from typing import Any

import pytest

from shared.job_queue.triggers import api as triggers_api
from shared.job_queue.triggers.api import MOST_TRIGGERS
from shared.kernel.clock import new_id
from shared.kernel.signals import dispatch
from tests.api.test_triggers_docs import SYNC, define
from tests.support.door import Door, TenantHouse

EVENT: dict[str, Any] = {
    "label": "t", "trigger_type": "event", "event_name": "provider.folder.updated", "definition_key": "sync-dropbox",
    "payload_template": {"provider_id": "{{event.provider_id}}"},
}  # fmt: skip
SCHEDULE: dict[str, Any] = {
    "label": "t", "trigger_type": "schedule", "cron_expr": "0 2 * * *", "timezone": "UTC", "definition_key": "sync-dropbox",
    "payload_template": {"provider_id": str(new_id())},
}  # fmt: skip
DEEP: dict[str, Any] = {"a": 1}
for _ in range(20):
    DEEP = {"a": DEEP}


@pytest.fixture
def office(door: Door, acme: TenantHouse) -> TenantHouse:
    for table in ("trigger_firings", "job_triggers"):
        door.sql(f"delete from {table}")
    define(door, acme, SYNC)
    return acme


def add(door: Door, tenant: TenantHouse, body: dict[str, Any]) -> str:
    made = door.call(tenant.admin, "POST", "/jobs/triggers", body)
    assert made.status == 201, made
    return str(made.json()["id"])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({**SCHEDULE, "timezone": "Europe/Atlantis"}, "unknown_timezone"),
        ({**SCHEDULE, "timezone": "../../etc/passwd"}, "unknown_timezone"),
        ({**SCHEDULE, "cron_expr": "0 0 31 2 *"}, "bad_cron"),
        ({**SCHEDULE, "cron_expr": "* * * * * *"}, "bad_cron"),
        ({**SCHEDULE, "cron_expr": None}, "bad_trigger"),
        ({**SCHEDULE, "event_name": "a.b"}, "bad_trigger"),
        ({**SCHEDULE, "dedupe_window_seconds": 0}, "bad_trigger"),
        ({**SCHEDULE, "catch_up": "all", "overlap": "skip"}, "bad_trigger"),
        ({**SCHEDULE, "payload_template": {}}, "bad_template"),
        ({**SCHEDULE, "payload_template": {"provider_id": "nobody"}}, "bad_payload"),
        ({**SCHEDULE, "payload_template": {"provider_id": "{{schedule.fire_at}}"}}, "bad_payload"),
        ({**SCHEDULE, "payload_template": {"provider_id": "{{event.id}}"}}, "bad_template"),
        ({**EVENT, "cron_expr": "0 2 * * *"}, "bad_trigger"),
        ({**EVENT, "overlap": "skip"}, "bad_trigger"),
        ({**EVENT, "event_name": "Not A Name"}, "bad_event_name"),
        ({**EVENT, "event_filter": {"__class__": 1}}, "bad_filter"),
        ({**EVENT, "definition_key": "nothing"}, "unknown_definition"),
        ({**EVENT, "payload_template": {"provider_id": "{{event.__class__.__mro__}}"}}, "bad_template"),
        ({**EVENT, "payload_template": {"provider_id": "a {{event.b}}"}}, "bad_template"),
        ({**EVENT, "payload_template": {**EVENT["payload_template"], "nope": 1}}, "bad_template"),
        ({**EVENT, "payload_template": {**EVENT["payload_template"], "path_prefix": 1}}, "bad_payload"),
        ({**EVENT, "payload_template": {**EVENT["payload_template"], "path_prefix": "--x"}}, "bad_payload"),
        ({**EVENT, "payload_template": {**EVENT["payload_template"], "path_prefix": DEEP}}, "bad_template"),
        ({**EVENT, "payload_template": {**EVENT["payload_template"], "path_prefix": "x" * 20_000}}, "bad_template"),
        ({**EVENT, "payload_template": {"provider_id": ["{{event.a}}"] * 600}}, "bad_template"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(
    door: Door, office: TenantHouse, body: dict[str, Any], code: str
) -> None:
    answer = door.call(office.admin, "POST", "/jobs/triggers", body)
    assert (answer.status, answer.code) == (422, code), answer
    assert len(answer.body) < 1_000
    assert door.value("select count(*) from job_triggers") == 0


def test_a_limit_that_could_not_take_effect_is_refused_with_the_reason(door: Door, office: TenantHouse) -> None:
    """A due time counts as missed after 150 seconds. A trigger from before that had less keeps it, and can be changed."""
    refused = door.call(office.admin, "POST", "/jobs/triggers", {**SCHEDULE, "max_lateness_seconds": 149})
    assert (refused.status, refused.code) == (422, "invalid")
    assert "`max_lateness_seconds`: use at least 150. Due times are looked at every minute" in refused.json()["detail"]
    trigger = add(door, office, {**SCHEDULE, "max_lateness_seconds": 150})
    path = f"/jobs/triggers/{trigger}"
    door.sql("update job_triggers set max_lateness_seconds = 60 where id = :id", id=trigger)
    assert door.call(office.admin, "PATCH", path, {"max_lateness_seconds": 100}).status == 422
    assert door.call(office.admin, "PATCH", path, {"label": "other"}).status == 200


@pytest.mark.parametrize("word", ["$ref", "pattern", "patternProperties", "$dynamicRef"])
def test_a_schema_that_would_look_elsewhere_or_take_long_is_refused(door: Door, office: TenantHouse, word: str) -> None:
    value = {"^(a+)+$": {}} if word == "patternProperties" else "http://127.0.0.1:1/x"
    schema = {"type": "object", "additionalProperties": False, "properties": {"a": {word: value}}}
    asked = {"key": f"k-{new_id()}", "command": "sync-dropbox", "arg_schema": schema}
    answer = door.call(door.super_admin.choosing(office.id), "POST", "/admin/jobs/definitions", asked)
    assert (answer.status, answer.code) == (422, "bad_schema"), answer


def test_a_schedule_gets_the_tenants_timezone_and_keeps_it(door: Door, office: TenantHouse) -> None:
    assert door.call(office.admin, "PATCH", "/tenant", {"timezone": "Nowhere"}).code == "unknown_timezone"
    assert door.call(office.admin, "PATCH", "/tenant", {"timezone": "Asia/Tokyo"}).status == 200
    trigger = add(door, office, {**SCHEDULE, "timezone": None})
    assert door.call(office.admin, "PATCH", "/tenant", {"timezone": "UTC"}).status == 200
    seen = door.call(office.admin, "GET", f"/jobs/triggers/{trigger}").json()
    assert (seen["timezone"], seen["next_fire_at"][11:16]) == ("Asia/Tokyo", "17:00")


def test_a_change_is_checked_like_a_new_one_and_keeps_the_rest(door: Door, office: TenantHouse) -> None:
    trigger = add(door, office, SCHEDULE)
    path = f"/jobs/triggers/{trigger}"
    for bad in ({"cron_expr": "nope"}, {"timezone": "Nowhere"}, {"payload_template": {"x": 1}}, {"event_name": "a"}):
        assert door.call(office.admin, "PATCH", path, bad).status == 422, bad
    before = door.call(office.admin, "GET", path).json()
    assert door.call(office.admin, "PATCH", path, {"cron_expr": "30 4 * * *"}).status == 200
    after = door.call(office.admin, "GET", path).json()
    assert after["next_fire_at"][11:16] == "04:30"
    same = ("label", "definition_key", "payload_template", "catch_up", "timezone")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert door.call(office.admin, "PATCH", path, {"is_enabled": False}).status == 200
    assert door.call(office.admin, "GET", path).json()["next_fire_at"] is None
    assert door.call(office.admin, "GET", f"{path}/next").json()["times"] == []
    assert door.call(office.admin, "DELETE", path).status == 200
    assert door.call(office.admin, "GET", path).status == 404
    assert door.call(office.admin, "POST", f"{path}/run", {}).status == 404
    actions = door.sql("select action from audit where target = :t order by id", t=f"trigger:{trigger}")
    assert [row.action for row in actions] == ["trigger.create", "trigger.change", "trigger.change", "trigger.delete"]


@pytest.mark.parametrize("body", [EVENT, SCHEDULE])
def test_a_trigger_whose_job_was_deactivated_can_still_be_switched_off(
    door: Door, office: TenantHouse, body: dict[str, Any]
) -> None:
    path = f"/jobs/triggers/{add(door, office, body)}"
    door.sql("update job_definitions set is_active = false where key = 'sync-dropbox'")
    try:
        assert door.call(office.admin, "PATCH", path, {"label": "other"}).code == "inactive_definition"
        assert door.call(office.admin, "PATCH", path, {"is_enabled": False, "label": "off"}).status == 200
        seen = door.call(office.admin, "GET", path).json()
        assert (seen["is_enabled"], seen["label"], seen["next_fire_at"]) == (False, "off", None)
        assert seen["payload_template"] == body["payload_template"]
        assert door.call(office.admin, "PATCH", path, {"is_enabled": True}).code == "inactive_definition"
    finally:
        door.sql("update job_definitions set is_active = true where key = 'sync-dropbox'")
    assert door.call(office.admin, "PATCH", path, {"is_enabled": True}).status == 200


def test_a_change_of_something_else_loses_no_due_time(door: Door, office: TenantHouse) -> None:
    """Guards that a schedule that is due when somebody gives it another name is not put off until its next time."""
    trigger = add(door, office, SCHEDULE)
    path = f"/jobs/triggers/{trigger}"
    door.sql("update job_triggers set next_fire_at = '2026-01-01T02:00:00Z' where id = :id", id=trigger)
    assert door.call(office.admin, "PATCH", path, {"label": "other", "cron_expr": "0 2 * * *"}).status == 200
    assert door.call(office.admin, "GET", path).json()["next_fire_at"] == "2026-01-01T02:00:00Z"
    assert door.call(office.admin, "PATCH", path, {"timezone": "Europe/Madrid"}).status == 200
    assert door.call(office.admin, "GET", path).json()["next_fire_at"] > "2026-01-02"


@pytest.mark.parametrize("change", [{"is_enabled": False}, {"event_name": "list.created"}])
def test_what_a_trigger_has_not_heard_when_it_stops_listening_is_listed(
    door: Door, office: TenantHouse, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """Nobody has looked yet who wants the event: afterwards nobody would."""
    trigger, other = add(door, office, {**EVENT, "event_filter": {"folder": "/a"}}), add(door, office, EVENT)
    monkeypatch.setattr(triggers_api, "_tell_at_once", lambda *_: None)
    for folder in ("/a", "/b"):
        payload = {"provider_id": str(new_id()), "folder": folder}
        sent = {"name": EVENT["event_name"], "payload": payload}
        assert door.call(office.member, "POST", "/events", sent).status == 202
    path = f"/jobs/triggers/{trigger}"
    assert door.call(office.admin, "PATCH", path, {"label": "the same"}).status == 200
    assert door.call(office.admin, "GET", f"{path}/firings").json()["firings"] == []

    assert door.call(office.admin, "PATCH", path, change).status == 200

    (firing,) = door.call(office.admin, "GET", f"{path}/firings").json()["firings"]
    assert (firing["cause"], firing["status"], firing["reason"]) == ("event", "skipped", "switched_off")
    assert door.call(office.admin, "GET", f"/jobs/triggers/{other}/firings").json()["firings"] == []
    dispatch(door.worker_ports, door.kinds)
    assert len(door.call(office.admin, "GET", f"{path}/firings").json()["firings"]) == 1
    assert len(door.call(office.admin, "GET", f"/jobs/triggers/{other}/firings").json()["firings"]) == 2


def test_two_changes_at_once_are_not_one(door: Door, office: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards that whoever changes a trigger does not undo what somebody else changed meanwhile."""
    path = f"/jobs/triggers/{add(door, office, SCHEDULE)}"
    checked = triggers_api._checked
    others: list[int] = []

    def meanwhile(here: Any, row: Any, given: Any) -> Any:
        if not others:
            others.append(0)
            others[0] = door.call(office.admin, "PATCH", path, {"overlap": "skip"}).status
        return checked(here, row, given)

    monkeypatch.setattr(triggers_api, "_checked", meanwhile)
    late = door.call(office.admin, "PATCH", path, {"label": "late"})
    assert (others, late.status, late.code) == ([200], 409, "changed_meanwhile")
    found = door.call(office.admin, "GET", path).json()
    assert (found["label"], found["overlap"]) == ("t", "skip")


def test_an_event_is_one_event_however_often_it_is_sent(door: Door, office: TenantHouse) -> None:
    trigger = add(door, office, EVENT)
    body = {"id": str(new_id()), "name": EVENT["event_name"], "payload": {"provider_id": str(new_id())}}
    first = door.call(office.member, "POST", "/events", body)
    again = door.call(office.member, "POST", "/events", body)
    assert (first.status, first.json()["again"], again.status, again.json()["again"]) == (202, False, 202, True)
    other = door.call(office.member, "POST", "/events", {**body, "payload": {}})
    assert (other.status, other.code) == (409, "event_differs")
    (firing,) = door.call(office.admin, "GET", f"/jobs/triggers/{trigger}/firings").json()["firings"]
    assert firing["status"] == "started"
    job = door.call(office.admin, "GET", f"/jobs/{firing['run_id']}").json()
    assert (job["source"], job["payload"]) == ("event", body["payload"])


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"name": "run.succeeded"}, 422, "reserved_name"),
        ({"name": "job.done"}, 422, "reserved_name"),
        ({"name": "Bad Name"}, 422, None),
        ({"payload": {"a": "\x00"}}, 400, "unreadable"),
        ({"payload": {"a": "x" * 70_000}}, 413, "too_large"),
        ({"id": ""}, 422, None),
        ({"more": 1}, 422, None),
    ],
)
def test_a_bad_event_is_refused(
    door: Door, office: TenantHouse, change: dict[str, Any], status: int, code: str | None
) -> None:
    before = door.value("select count(*) from signal")
    answer = door.call(office.member, "POST", "/events", {"id": "e", "name": "list.created", "payload": {}, **change})
    assert answer.status == status, answer
    assert code is None or answer.code == code
    assert door.value("select count(*) from signal") == before


def test_whoever_sends_an_event_does_not_wait_for_all_who_listen(
    door: Door, office: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand triggers may: what does not fit into a few seconds is the dispatcher's."""
    for _ in range(3):
        add(door, office, EVENT)
    times = iter([0.0, 1.0, 5.0])
    monkeypatch.setattr(triggers_api, "stopwatch", lambda: lambda: next(times))
    sent = {"name": "provider.folder.updated", "payload": {"provider_id": str(new_id())}}
    assert door.call(office.admin, "POST", "/events", sent).status == 202
    assert door.value("select count(*) from trigger_firings where tenant_id = :t", t=office.id) == 2
    assert door.value("select count(*) from signal where tenant_id = :t and dispatched_at is null", t=office.id) == 1


def test_a_test_starts_nothing_and_says_what_is_wrong(door: Door, office: TenantHouse) -> None:
    trigger = add(door, office, {**EVENT, "event_filter": {"kind": "photo"}})
    jobs = door.value("select count(*) from run where kind = 'job'")
    path = f"/jobs/triggers/{trigger}/test"
    good = door.call(office.admin, "POST", path, {"event": {"provider_id": str(new_id()), "kind": "photo"}}).json()
    assert (good["matches"], good["problem"]) == (True, None)
    bad = door.call(office.admin, "POST", path, {"event": {}}).json()
    assert (bad["matches"], bad["payload"]) == (False, {})
    assert "provider_id" in bad["problem"]
    assert door.value("select count(*) from run where kind = 'job'") == jobs
    assert door.value("select count(*) from trigger_firings") == 0


def test_a_trigger_that_is_run_by_hand_starts_its_job_whatever_its_schedule_says(
    door: Door, office: TenantHouse
) -> None:
    trigger = add(door, office, {**SCHEDULE, "overlap": "skip"})
    for _ in range(2):
        ran = door.call(office.admin, "POST", f"/jobs/triggers/{trigger}/run", {}).json()
        assert ran["status"] == "started"
    refused = door.call(office.admin, "POST", f"/jobs/triggers/{trigger}/run", {"event": {}})
    assert refused.code == "not_an_event_trigger"
    (seen,) = door.call(office.admin, "GET", "/jobs/triggers").json()["triggers"]
    assert [each["status"] for each in seen["recent"]] == ["started", "started"]


def test_a_tenant_has_so_many_triggers_and_no_more(door: Door, office: TenantHouse) -> None:
    trigger = add(door, office, EVENT)
    columns = "tenant_id, label, trigger_type, event_name, definition_id"
    door.sql(
        f"""insert into job_triggers (id, {columns}) select gen_random_uuid(), {columns} from job_triggers,
            generate_series(2, :n) where id = cast(:id as uuid)""",
        id=trigger,
        n=MOST_TRIGGERS,
    )
    assert door.call(office.admin, "POST", "/jobs/triggers", EVENT).code == "too_many_triggers"
