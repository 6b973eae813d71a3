"""Guards `baton trigger` and `baton event`: as one types them, against the real handler over real HTTP."""

from __future__ import annotations

import pytest

from tests.api.test_client import Command, as_admin, baton
from tests.api.test_triggers_docs import define
from tests.support.door import Door, TenantHouse

__all__ = ["as_admin", "baton"]
SCHEMA = {
    "type": "object", "additionalProperties": False,
    "properties": {"what": {"type": "string"}, "n": {"type": "integer"}},
}  # fmt: skip


@pytest.fixture
def command(as_admin: Command, door: Door, acme: TenantHouse) -> Command:
    for table in ("trigger_firings", "job_triggers"):
        door.sql(f"delete from {table}")
    define(door, acme, {"key": "recompute-zeroshot-tags", "arg_schema": SCHEMA})
    return as_admin


@pytest.mark.full
def test_an_event_trigger_from_its_making_to_its_end(command: Command) -> None:
    trigger = command(
        "trigger", "add", "recompute-zeroshot-tags", "--on", "list.created", "--param", "what={{event.name}}",
        "--param", "n=3", "--only-if", "size=2",
    ).strip()  # fmt: skip
    event = '{"name": "x", "size": 2}'
    assert '"what": "x"' in command("trigger", "test", trigger, "--event", event)
    assert "filter" in command("trigger", "test", trigger, "--event", '{"name": "x"}', code=1)
    assert command("event", "send", "list.created", "--payload", event, "--id", "c1").strip() == "c1"
    assert "already sent" in command("event", "send", "list.created", "--payload", event, "--id", "c1")
    (firing,) = command.json("trigger", "firings", trigger)["firings"]
    assert (firing["status"], firing["cause"]) == ("started", "event")
    assert command.json("event", "list")["events"][0]["name"] == "list.created"
    assert "started" in command("trigger", "firings", trigger)
    assert "list.created" in command("trigger", "list")
    assert "Switched off" in command("trigger", "off", trigger)
    assert "Switched on" in command("trigger", "on", trigger)
    assert "Deleted" in command("trigger", "delete", trigger)
    assert command("trigger", "list").strip() == "Nothing to show."


def test_a_schedule_tells_when_it_is_due_and_can_be_run_now(command: Command) -> None:
    trigger = command(
        "trigger", "add", "recompute-zeroshot-tags", "--cron", "30 2 * * *", "--timezone", "Europe/Madrid"
    ).strip()
    times = command("trigger", "next", trigger).splitlines()
    assert len(times) == 10
    assert all("T02:30:00+0" in each or "T03:00:00+02:00" in each for each in times)
    assert len(command("trigger", "run", trigger).strip()) == 36
    assert "Europe/Madrid" in command("trigger", "show", trigger)
    assert "--on EVENT or --cron EXPR" in command("trigger", "add", "recompute-zeroshot-tags", code=1)
    assert "Nowhere" in command(
        "trigger", "add", "recompute-zeroshot-tags", "--cron", "@daily", "--timezone", "Nowhere", code=1
    )
