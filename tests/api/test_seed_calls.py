"""The calls of the seeds as they are written there: each works, or is refused with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from shared.kernel.clock import new_id
from tests.kinds.row_job.cells import rowed
from tests.support.door import Door, TenantHouse


@pytest.fixture
def rows(door: Door, acme: TenantHouse) -> str:
    run_id = door.start(acme)
    rowed(door, acme, run_id)
    return str(run_id)


def calls(door: Door, acme: TenantHouse, method: str, path: str, body: Any = None, **query: Any) -> Any:
    return door.call(acme.admin, method, path, body, **query)


@pytest.mark.parametrize("action", ["pause", "kickoff"])
def test_who_has_nothing_to_say_sends_no_body(door: Door, acme: TenantHouse, rows: str, action: str) -> None:
    assert calls(door, acme, "POST", f"/row-jobs/{rows}/{action}").status == 200


def test_actions_on_runs_need_no_body(door: Door, acme: TenantHouse) -> None:
    run_id = door.start(acme)

    told = [
        calls(door, acme, "POST", f"/runs/{run_id}/{action}").status for action in ("pause", "resume", "wake", "cancel")
    ]

    assert told == [200] * 4


def test_a_body_that_is_needed_is_missed_by_name(door: Door, acme: TenantHouse) -> None:
    refused = calls(door, acme, "POST", "/jobs")

    assert refused.status == 422
    assert "definition_key" in refused.json()["detail"]


def test_a_kickoff_of_a_certain_length_is_refused_with_its_reason(door: Door, acme: TenantHouse, rows: str) -> None:
    refused = calls(door, acme, "POST", f"/row-jobs/{rows}/kickoff", durationMs=5000)

    assert (refused.status, refused.code) == (422, "no_duration")
    assert "only wakes what waits: leave it out" in refused.json()["detail"]


@pytest.mark.parametrize("ids", [["2"], [2]])
@pytest.mark.parametrize("name", ["itemIds", "item_ids"])
def test_rows_are_named_by_text_or_by_number(
    door: Door, acme: TenantHouse, rows: str, name: str, ids: list[Any]
) -> None:
    asked = {"scope": "items", name: ids, "dry_run": True}
    assert calls(door, acme, "POST", f"/row-jobs/{rows}/reprocess", asked).status in (200, 409)
    assert calls(door, acme, "POST", f"/row-jobs/{rows}/reprocess", {**asked, name: ["two"]}).status == 422


def test_pages_of_rows_are_asked_for_by_cursor_and_the_refusal_says_so(
    door: Door, acme: TenantHouse, rows: str
) -> None:
    refused = calls(door, acme, "GET", f"/row-jobs/{rows}/items", page=2, pageSize=50)

    assert refused.status == 422
    assert "Unknown query parameter `page`, `pageSize`. Available: cursor, limit," in refused.json()["detail"]


def test_a_filter_that_says_nothing_filters_nothing(
    door: Door, acme: TenantHouse, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENDING_DASHBOARD_ENABLED", "true")
    assert calls(door, acme, "GET", "/pending", jobType="").status == 200
    assert calls(door, acme, "GET", "/pending", jobType="pdf").status == 422


def test_a_job_is_answered_with_what_it_is(door: Door, acme: TenantHouse) -> None:
    key = f"d-{new_id()}"
    body = {"key": key, "command": "recompute-trained-tags", "arg_schema": {}}
    made = door.call(door.super_admin.choosing(acme.id), "POST", "/admin/jobs/definitions", body)
    assert made.status == 201, made

    first = calls(door, acme, "POST", "/jobs", {"definition_key": key, "dedupe_key": "k"})
    again = calls(door, acme, "POST", "/jobs", {"definition_key": key, "dedupe_key": "k"})

    told = first.json()
    assert (first.status, again.status) == (201, 200)
    assert told == again.json()
    assert told.keys() == {"id", "tenant_id", "status", "definition_key", "queued_at"}
    assert (told["tenant_id"], told["status"], told["definition_key"]) == (str(acme.id), "queued", key)
