"""Who may do what with triggers and events."""

from __future__ import annotations

from typing import Any

from shared.kernel.clock import new_id
from tests.support.cells import ADMINS, READERS, STARTERS, Cells, Named
from tests.support.door import Door, TenantHouse

KEY = "train-keyword-models"
NAME = "list.created"


def defined(door: Door, tenant: TenantHouse) -> None:
    made = door.call(door.super_admin.choosing(tenant.id), "POST", "/admin/jobs/definitions", {"key": KEY})
    assert made.status in {201, 409}, made


def a_schedule(door: Door, tenant: TenantHouse) -> Named:
    defined(door, tenant)
    made = door.call(tenant.admin, "POST", "/jobs/triggers", new_schedule())
    assert made.status == 201, made
    return {"trigger_id": made.json()["id"]}


def some_schedules(door: Door, tenant: TenantHouse) -> Named:
    return a_schedule(door, tenant) | a_schedule(door, tenant)


def a_fired_schedule(door: Door, tenant: TenantHouse) -> Named:
    trigger = a_schedule(door, tenant)
    for _ in range(3):
        ran = door.call(tenant.admin, "POST", f"/jobs/triggers/{trigger['trigger_id']}/run", {})
        assert ran.status == 200, ran
    return trigger


def some_events(door: Door, tenant: TenantHouse) -> Named:
    for _ in range(3):
        assert door.call(tenant.member, "POST", "/events", an_event()).status == 202
    return {}


def a_definition(door: Door, tenant: TenantHouse) -> Named:
    defined(door, tenant)
    return {}


def new_schedule() -> dict[str, Any]:
    return {"label": "nightly", "trigger_type": "schedule", "cron_expr": "0 2 * * *", "definition_key": KEY}


def an_event() -> dict[str, Any]:
    return {"id": str(new_id()), "name": NAME, "payload": {"n": 1}}


TRIGGER: dict[str, Any] = {"target": "trigger", "make": a_schedule, "names": ["trigger_id"], "roles": ADMINS}
CELLS = {
    "list_triggers": Cells(roles=ADMINS, make=some_schedules),
    "add_trigger": Cells(roles=ADMINS, make=a_definition, body=new_schedule, ok=201),
    "preview_schedule": Cells(roles=READERS, query={"cron_expr": "0 2 * * *"}),
    "get_trigger": Cells(**TRIGGER),
    "change_trigger": Cells(**TRIGGER, body={"label": "weekly", "cron_expr": "0 2 * * 0"}),
    "delete_trigger": Cells(**TRIGGER),
    "list_firings": Cells(**{**TRIGGER, "make": a_fired_schedule}),
    "next_fire_times": Cells(**TRIGGER),
    "run_trigger": Cells(**TRIGGER, body={}),
    "test_trigger": Cells(**TRIGGER, body={}),
    "send_event": Cells(roles=STARTERS, body=an_event, ok=202),
    "list_events": Cells(roles=ADMINS, make=some_events),
    "get_tenant": Cells(roles=READERS),
    "change_tenant": Cells(roles=ADMINS, body={"timezone": "Europe/Madrid"}),
}
