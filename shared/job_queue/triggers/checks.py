"""What a trigger must be to be kept: everything that can be known before it fires is checked when it is made or changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from shared.job_queue.decide import checked_payload
from shared.job_queue.triggers.cron import read_schedule
from shared.job_queue.triggers.model import Cause, TriggerType
from shared.job_queue.triggers.template import a_trigger, check_filter, check_template, literals, render
from shared.kernel.errors import Refused

EVENT_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,99}\Z")
OF_SCHEDULES = ("cron_expr", "timezone", "catch_up", "catch_up_most", "max_lateness_seconds", "overlap")
OF_EVENTS = ("event_name", "event_filter", "dedupe_window_seconds")
Validate = Callable[[Mapping[str, Any], Mapping[str, Any]], None]


def check_kind_of_trigger(row: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """An event trigger has a name, and a schedule has a time; neither is given the other's settings, which would do nothing."""
    kind: TriggerType = row["trigger_type"]
    own, others = (OF_EVENTS, OF_SCHEDULES) if kind == "event" else (OF_SCHEDULES, OF_EVENTS)
    if not row[own[0]]:
        raise Refused("bad_trigger", f"{own[0]}: {a_trigger(kind)} needs it.")
    for name in others:
        if given.get(name) not in (None, {}):
            raise Refused("bad_trigger", f"{name}: not available in {a_trigger(kind)}.")
    if row["catch_up"] == "all" and row["overlap"] == "skip":
        raise Refused("bad_trigger", "overlap: catch_up all runs missed times one after the other. Use overlap queue.")


def check_event_name(name: str) -> None:
    if not EVENT_NAME.match(name):
        raise Refused("bad_event_name", "event_name: use a-z, 0-9, '.', '_' and '-', as provider.folder.updated.")


def first_fire_at(row: Mapping[str, Any], now: datetime) -> datetime | None:
    """When a schedule is due next; None for whatever is not due by itself."""
    if row["trigger_type"] == "event":
        check_event_name(row["event_name"])
        check_filter(row["event_filter"])
        return None
    schedule = read_schedule(row["cron_expr"], row["timezone"], now)
    return schedule.next(now) if row["is_enabled"] else None


def next_times(cron_expr: str, timezone: str, now: datetime, most: int) -> list[datetime]:
    found: list[datetime] = []
    for at in read_schedule(cron_expr, timezone, now).after(now):
        found.append(at)
        if len(found) == most:
            break
    return found


def check_payload_template(
    template: Mapping[str, Any], trigger_type: TriggerType, schema: Mapping[str, Any], now: datetime, validate: Validate
) -> None:
    """Against the schema of the job: arguments that it does not know, that it needs, and values that are written out."""
    check_template(template, trigger_type)
    known: Mapping[str, Any] = schema.get("properties", {})
    for name in template:
        if name not in known:
            allowed = f"Available: {', '.join(sorted(known))}." if known else "It takes none."
            raise Refused("bad_template", f"payload_template.{str(name)[:80]}: the job has no such argument. {allowed}")
    required: Sequence[str] = schema.get("required", ())
    for name in required:
        if name not in template:
            raise Refused("bad_template", f"payload_template: the job needs the argument {name!r}.")
    if trigger_type == "schedule":
        # All of it is known but for the time.
        about = {"fire_at": now.isoformat(), "trigger_id": "00000000-0000-7000-8000-000000000000"}
        payload = render(template, Cause(schedule=about))
        checked_payload(payload)
        validate(schema, payload)
        return
    written = literals(template)
    checked_payload(written)
    validate({**schema, "required": [name for name in required if name in written]}, written)
