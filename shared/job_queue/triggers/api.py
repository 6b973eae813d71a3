"""Triggers and events over HTTP. Triggers are for a tenant's admins; whoever may start work may send events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Path, Query
from pydantic import AfterValidator, Field

from shared.job_queue.model import KIND
from shared.job_queue.triggers import store
from shared.job_queue.triggers.fire import Firing, fire, tell
from shared.job_queue.triggers.model import (
    LONGEST_LATENESS_S,
    LONGEST_WINDOW_S,
    MOST_CAUGHT_UP,
    ON_TIME_S,
    USUAL_LATENESS_S,
    USUAL_MOST_CAUGHT_UP,
    USUAL_WINDOW_S,
    CatchUp,
    Cause,
    FiringStatus,
    Overlap,
    Trigger,
    TriggerType,
)
from shared.job_queue.triggers.template import render
from shared.kernel import sql as kernel_sql
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, creates, desk, operation
from shared.kernel.api.shapes import Asked, Changes, Cursor, Done, Key, Limit, Short, Told
from shared.kernel.auth import MANAGES, READS, STARTS
from shared.kernel.clock import new_id, stopwatch
from shared.kernel.db import jsonb
from shared.kernel.deliver import deliver
from shared.kernel.direct import Line
from shared.kernel.errors import NotFound, Refused
from shared.kernel.intake import DEEPEST_PAYLOAD, LARGEST_PAYLOAD, NAMESPACE
from shared.kernel.log import logger
from shared.kernel.model import BEFORE_ALL, Signal
from shared.kernel.paging import USUAL_PAGE
from shared.kernel.redact import redact_json
from shared.kernel.signals import AT_ONCE_S, reserved
from shared.kernel.storable import unstorable
from shared.kernel.store import PgStore, PgTx

router = Router()  # type: ignore[no-untyped-call]
TriggerId = Annotated[UUID, Path(description="The trigger's id")]
MOST_TRIGGERS = 1_000  # of a tenant
MOST_UNTOLD = 1_000  # events; a tick tells of all there are
RECENT = 20
NEXT = 10
AFTER_ALL = UUID(int=2**128 - 1)
Text = Annotated[str, Field(min_length=1, max_length=200)]
Zone = Annotated[str, Field(min_length=1, max_length=64)]
Cron = Annotated[str, Field(min_length=1, max_length=100)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Window = Annotated[int, Field(ge=0, le=LONGEST_WINDOW_S)]


def _takes_effect(seconds: int) -> int:
    if seconds < ON_TIME_S:
        raise ValueError(
            f"use at least {ON_TIME_S}. Due times are looked at every minute: only what is later than that was missed."
        )
    return seconds


Lateness = Annotated[
    int, Field(le=LONGEST_LATENESS_S, json_schema_extra={"minimum": ON_TIME_S}), AfterValidator(_takes_effect)
]
Most = Annotated[int, Field(ge=1, le=MOST_CAUGHT_UP)]
Values = Annotated[dict[str, Any], Field(max_length=500)]


class Recent(Told):
    """`count`: how many due times in a row this stands for."""

    status: str
    reason: str | None
    fire_at: datetime
    count: int
    run_id: UUID | None
    run_status: str | None


class SeenTrigger(Told):
    """`problem`: why a schedule has stopped by itself. `recent`: its last firings, newest first."""

    id: UUID
    label: str
    trigger_type: TriggerType
    is_enabled: bool
    event_name: str | None
    event_filter: dict[str, Any]
    cron_expr: str | None
    timezone: str | None
    definition_key: str
    payload_template: dict[str, Any]
    dedupe_window_seconds: int
    catch_up: CatchUp
    catch_up_most: int
    max_lateness_seconds: int
    overlap: Overlap
    next_fire_at: datetime | None
    problem: str | None
    created_by: str | None
    created_at: datetime
    updated_at: datetime
    recent: list[Recent]


class Triggers(Told):
    triggers: list[SeenTrigger]
    timezone: str
    next: str | None


class AddTrigger(Asked):
    """A schedule without a timezone has the tenant's."""

    label: Text
    trigger_type: TriggerType
    is_enabled: bool = True
    event_name: Name | None = None
    event_filter: Values = Field(default_factory=dict)
    cron_expr: Cron | None = None
    timezone: Zone | None = None
    definition_key: Short
    payload_template: Values = Field(default_factory=dict)
    dedupe_window_seconds: Window = USUAL_WINDOW_S
    catch_up: CatchUp = "once"
    catch_up_most: Most = USUAL_MOST_CAUGHT_UP
    max_lateness_seconds: Lateness = USUAL_LATENESS_S
    overlap: Overlap = "queue"


class ChangeTrigger(Changes):
    """What is left out stays as it is. Its type cannot be changed."""

    label: Text | None = None
    is_enabled: bool | None = None
    event_name: Name | None = None
    event_filter: Values | None = None
    cron_expr: Cron | None = None
    timezone: Zone | None = None
    definition_key: Short | None = None
    payload_template: Values | None = None
    dedupe_window_seconds: Window | None = None
    catch_up: CatchUp | None = None
    catch_up_most: Most | None = None
    max_lateness_seconds: Lateness | None = None
    overlap: Overlap | None = None


class Created(Told):
    id: UUID


class SampleEvent(Asked):
    """What `{{event.…}}` looks into; only for event triggers."""

    event: Values | None = None


class Tested(Told):
    """`matches`: whether the event passes the filter. `problem`: why no job would be added."""

    matches: bool
    payload: dict[str, Any] | None
    problem: str | None


class RanNow(Told):
    status: FiringStatus
    run_id: UUID | None
    problem: str | None


class Times(Told):
    """In UTC, and as the clock in the schedule's timezone shows them."""

    timezone: str
    times: list[datetime]
    local: list[str]


class SeenFiring(Told):
    """`count` due times from `fire_at` to `through`, if they were skipped in a row."""

    id: UUID
    cause: Literal["event", "schedule", "manual"]
    event: int | None
    fire_at: datetime
    through: datetime
    count: int
    status: FiringStatus
    reason: str | None
    problem: str | None
    run_id: UUID | None
    run_status: str | None
    at: datetime


class Firings(Told):
    firings: list[SeenFiring]
    next: str | None


class SendEvent(Asked):
    """`id`: whatever tells this event from others; the same one again changes nothing."""

    id: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,99}$")]
    payload: dict[str, Any] = Field(default_factory=dict)


class Accepted(Told):
    """`again`: it was accepted before."""

    id: str
    again: bool


class SeenEvent(Told):
    """`dispatched`: every trigger that listens has been told, or is about to be."""

    id: int
    name: str
    payload: dict[str, Any]
    at: datetime
    dispatched: bool


class Events(Told):
    events: list[SeenEvent]
    next: str | None


class Settings(Told):
    timezone: str


class ChangeSettings(Asked):
    timezone: Zone


@operation(router, "GET", "/jobs/triggers", MANAGES, tag="triggers")
def list_triggers(limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Triggers:
    """What starts jobs by itself, oldest first, with the last firings of each."""
    here = desk(router)
    pager = here.pager("triggers", {})
    place = pager.place(cursor)
    rows = here.all(store.LIST, after=BEFORE_ALL if place is None else place[0], most=limit + 1)
    last = rows[limit - 1] if len(rows) > limit else None
    return Triggers(
        triggers=_seen(here, rows[:limit]),
        timezone=_timezone(here),
        next=None if last is None else pager.cursor([str(last["id"])]),
    )


@operation(router, "POST", "/jobs/triggers", MANAGES, tag="triggers", answers=creates(Created), refuses=[429])
def add_trigger(asked: Annotated[AddTrigger, Body()], idempotency_key: Key = None) -> Response[str]:
    """Start a job whenever something happens, or at set times. Everything is checked now, not when it fires."""
    here, request = desk(router), b"trigger:" + asked.model_dump_json().encode()
    if (kept := here.answered(idempotency_key, request)) is not None:
        return Response(kept.status, "application/json", kept.body)
    row = {**asked.model_dump(), "id": new_id(), "tenant_id": here.tenant_id, "created_by": here.principal.actor}
    if asked.trigger_type == "schedule" and asked.timezone is None:
        row["timezone"] = _timezone(here)
    row, body = _checked(here, row, asked.model_dump(exclude_unset=True)), jsonb({"id": row["id"]})
    with here.begin() as (line, tx):
        if (kept := here.once(line, idempotency_key, request)) is not None:
            return Response(kept.status, "application/json", kept.body)
        (counted,) = line.all(store.COUNT, {"tenant_id": here.tenant_id})
        if counted["n"] >= MOST_TRIGGERS:
            raise Problem(429, "too_many_triggers", f"This tenant has {MOST_TRIGGERS} triggers. Delete some first.")
        line.run(store.ADD, row)
        here.audit(tx, "trigger.create", f"trigger:{row['id']}", after=_told(row))
        here.keep(line, idempotency_key, 201, body)
    return Response(201, "application/json", body)


@operation(router, "GET", "/jobs/triggers/preview", READS, tag="triggers")
def preview_schedule(cron_expr: Annotated[Cron, Query()], timezone: Annotated[Zone | None, Query()] = None) -> Times:
    """The next ten times that a schedule would be due."""
    here = desk(router)
    return _times(here, cron_expr, timezone or _timezone(here))


@operation(router, "GET", "/jobs/triggers/<trigger_id>", MANAGES, tag="triggers")
def get_trigger(trigger_id: TriggerId) -> SeenTrigger:
    """A trigger, with its last firings."""
    here = desk(router)
    return _seen(here, [_found(here, trigger_id)])[0]


@operation(router, "PATCH", "/jobs/triggers/<trigger_id>", MANAGES, tag="triggers", refuses=[409])
def change_trigger(trigger_id: TriggerId, asked: Annotated[ChangeTrigger, Body()]) -> Done:
    """Change a trigger. A schedule with new times starts from now. An event trigger that is switched on reacts to new events only."""
    here = desk(router)
    before = _found(here, trigger_id)
    given = asked.model_dump(exclude_unset=True)
    row = {**before, **given, "tenant_id": here.tenant_id}
    # What cannot work any more, because its job was changed or deactivated, can still be switched off.
    stops = not row["is_enabled"] and given.keys() <= {"label", "is_enabled"}
    row = _as_kept(row, _known_definition(here, row["definition_key"])) if stops else _checked(here, row, given)
    with here.begin() as (line, tx):
        found = line.one(store.ONE_LOCKED, {"trigger_id": trigger_id, "tenant_id": here.tenant_id})
        if found is None:
            raise NotFound
        if found["updated_at"] != before["updated_at"]:
            raise Problem(409, "changed_meanwhile", "Somebody else changed this trigger at the same time. Look again.")
        stops_listening = not row["is_enabled"] or row["event_name"] != before["event_name"]
        unheard = _unheard(here, line, tx, trigger_id) if stops_listening else []
        line.run(store.CHANGE, {name: row[name] for name in _CHANGED})
        if unheard:
            tell(tx, here.ports, here.kinds[KIND], str(trigger_id), unheard)  # it lists them as switched off
        here.audit(tx, "trigger.change", f"trigger:{trigger_id}", before=_told(before), after=_told(row))
    return Done()


def _unheard(here: Desk, line: Line, tx: PgTx, trigger_id: UUID) -> list[Signal]:
    """What was accepted while the trigger listens and nobody has looked yet who does."""
    untold = line.all(store.UNTOLD, {"tenant_id": here.tenant_id, "most": MOST_UNTOLD})
    if not untold:
        return []
    found = tx.read(store.SUBSCRIBED, {"signal_ids": [str(each["id"]) for each in untold]})
    wanted = {each["signal_id"] for each in found if each["subscriber"] == str(trigger_id)}
    names = ("name", "payload", "at")
    return [
        Signal(each["id"], here.tenant_id, *(each[name] for name in names)) for each in untold if each["id"] in wanted
    ]


@operation(router, "DELETE", "/jobs/triggers/<trigger_id>", MANAGES, tag="triggers")
def delete_trigger(trigger_id: TriggerId) -> Done:
    """Delete a trigger. Jobs that it has started go on; its history is kept for 90 days."""
    here = desk(router)
    before = _found(here, trigger_id)
    with here.begin() as (line, tx):
        if not line.run(store.DELETE, {"id": trigger_id, "tenant_id": here.tenant_id}):
            raise NotFound
        here.audit(tx, "trigger.delete", f"trigger:{trigger_id}", before=_told(before))
    return Done()


@operation(router, "GET", "/jobs/triggers/<trigger_id>/firings", MANAGES, tag="triggers")
def list_firings(trigger_id: TriggerId, limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Firings:
    """Each event and due time of a trigger, newest first: the job it started, or why it started none."""
    here = desk(router)
    _found(here, trigger_id)
    pager = here.pager("firings", {"trigger_id": trigger_id})
    place = pager.place(cursor)
    before = AFTER_ALL if place is None else place[0]
    rows = here.all(store.FIRINGS, trigger_id=trigger_id, before=before, most=limit + 1)
    last = rows[limit - 1] if len(rows) > limit else None
    return Firings(
        firings=[_firing(row) for row in rows[:limit]],
        next=None if last is None else pager.cursor([str(last["id"])]),
    )


@operation(router, "GET", "/jobs/triggers/<trigger_id>/next", MANAGES, tag="triggers", refuses=[409])
def next_fire_times(trigger_id: TriggerId) -> Times:
    """The next ten times that a schedule is due."""
    here = desk(router)
    row = _found(here, trigger_id)
    if row["trigger_type"] != "schedule":
        raise Problem(409, "not_a_schedule", "This trigger waits for an event; it is never due by itself.")
    if not row["is_enabled"]:
        return Times(timezone=row["timezone"], times=[], local=[])
    return _times(here, row["cron_expr"], row["timezone"])


@operation(router, "POST", "/jobs/triggers/<trigger_id>/run", MANAGES, tag="triggers")
def run_trigger(trigger_id: TriggerId, asked: Annotated[SampleEvent, Body()], idempotency_key: Key = None) -> RanNow:
    """Start the trigger's job now, whatever its schedule or its window says."""
    here, request = desk(router), f"trigger-run:{trigger_id}:{asked.model_dump_json()}".encode()
    with here.begin() as (line, tx):
        if (kept := here.once(line, idempotency_key, request)) is not None:
            return RanNow.model_validate_json(kept.body)
        rows = tx.read(store.LOCK_TRIGGER, {"id": trigger_id, "tenant_id": here.tenant_id})
        if not rows:
            raise NotFound
        trigger, now = store.trigger_of(rows[0]), rows[0]["now"]
        firing = Firing(
            trigger=trigger, cause="manual", about=_about(trigger, asked, now), fire_at=now, now=now,
            actor=here.principal.actor,
        )  # fmt: skip
        fired = fire(tx, here.ports, here.kinds[KIND], firing)
        assert fired is not None
        here.audit(tx, "trigger.run", f"trigger:{trigger_id}", after={"run_id": fired.run_id and str(fired.run_id)})
        problem = None if fired.problem is None else fired.problem.message
        ran = RanNow(status=fired.status, run_id=fired.run_id, problem=problem)
        here.keep(line, idempotency_key, 200, ran.model_dump_json())
    deliver(here.ports, fired.dues)
    return ran


@operation(router, "POST", "/jobs/triggers/<trigger_id>/test", MANAGES, tag="triggers")
def test_trigger(trigger_id: TriggerId, asked: Annotated[SampleEvent, Body()]) -> Tested:
    """The payload that a sample event would give. Nothing is started and nothing is kept."""
    from shared.job_queue.adapters.schemas import validate  # noqa: PLC0415 - as in shared/job_queue/api.py
    from shared.job_queue.decide import checked_payload  # noqa: PLC0415
    from shared.job_queue.triggers.template import fits  # noqa: PLC0415

    here = desk(router)
    row = _found(here, trigger_id)
    trigger = store.trigger_of(row)
    about = _about(trigger, asked, _now(here))
    matches = about.event is None or fits(trigger.event_filter, about.event)
    payload: dict[str, Any] | None = None
    try:
        payload = render(trigger.payload_template, about)
        checked_payload(payload)
        validate(_definition(here, trigger.definition_key)["arg_schema"], payload)
    except Refused as refused:
        return Tested(matches=matches, payload=payload, problem=refused.message)
    return Tested(matches=matches, payload=payload, problem=None)


@operation(
    router, "POST", "/events", STARTS, tag="events", refuses=[409],
    answers={202: {"description": "Accepted", "content": {"application/json": {"model": Accepted}}}},
)  # fmt: skip
def send_event(asked: Annotated[SendEvent, Body()]) -> Response[str]:
    """Tell that something happened. It is kept before anything else is done; triggers that listen to it start their jobs."""
    here = desk(router)
    ours = reserved(here.kinds)
    if asked.name.startswith(ours):
        raise Problem(422, "reserved_name", f"name: names that start with {', '.join(ours)} are Baton's own.")
    if problem := unstorable(asked.payload, DEEPEST_PAYLOAD):
        raise Problem(422, "bad_event", f"payload: {problem}")
    if len(jsonb(asked.payload)) > LARGEST_PAYLOAD:
        raise Problem(413, "too_large", f"payload: at most {LARGEST_PAYLOAD // 1024} KB. Store it and send its place.")
    said = asked.id or str(new_id())
    event_id = uuid5(NAMESPACE, f"api\n{said}")
    row = {"tenant_id": here.tenant_id, "event_id": event_id, "name": asked.name, "payload": jsonb(asked.payload)}
    with here.begin() as (line, _):
        fresh = line.run(kernel_sql.ADD_SIGNAL_ONCE, row) == 1
        kept = line.one(store.EVENT, {"tenant_id": here.tenant_id, "event_id": event_id})
    if kept is None or (kept["name"], kept["payload"]) != (asked.name, asked.payload):
        raise Problem(409, "event_differs", f"id: another event was sent with the id {said!r}. Use a new id.")
    if fresh:
        _tell_at_once(here, Signal(kept["id"], here.tenant_id, kept["name"], kept["payload"], kept["at"]))
    return Response(202, "application/json", jsonb({"id": said, "again": not fresh}))


def _tell_at_once(here: Desk, signal: Signal) -> None:
    """Nobody waits for the next tick. The event is kept: what fails here, or takes longer than its sender should wait, the
    dispatcher does, and what is done is not done again."""
    ports = replace(here.ports, store=PgStore(here.engine))  # a member sees only their own runs; a trigger sees all
    elapsed_s = stopwatch()
    for row in here.all(store.WANTS, name=signal.name, at=signal.at):
        if elapsed_s() >= AT_ONCE_S:
            return
        try:
            with ports.store.begin(here.tenant_id) as tx:
                dues = tell(tx, ports, here.kinds[KIND], row["id"], [signal])
            deliver(ports, dues)
        except Exception:
            logger.exception("a trigger could not be told at once", extra={"trigger": row["id"], "signal": signal.id})


@operation(router, "GET", "/events", MANAGES, tag="events")
def list_events(limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Events:
    """What happened, newest first: events that were sent, and what Baton itself says."""
    here = desk(router)
    pager = here.pager("events", {})
    place = pager.place(cursor)
    rows = here.all(store.EVENTS, before=2**63 - 1 if place is None else place[0], most=limit + 1)
    names = ("id", "name", "payload", "at", "dispatched")
    page = [
        SeenEvent(**{**{name: row[name] for name in names}, "payload": redact_json(row["payload"])}) for row in rows
    ]
    return Events(events=page[:limit], next=pager.cursor([page[limit - 1].id]) if len(rows) > limit else None)


@operation(router, "GET", "/tenant", READS, tag="people")
def get_tenant() -> Settings:
    """The tenant's settings."""
    return Settings(timezone=_timezone(desk(router)))


@operation(router, "PATCH", "/tenant", MANAGES, tag="people")
def change_tenant(asked: Annotated[ChangeSettings, Body()]) -> Done:
    """Change the timezone that new schedules get. Those that exist keep theirs."""
    from shared.job_queue.triggers.cron import read_zone  # noqa: PLC0415 - only schedules need zones

    here = desk(router)
    read_zone(asked.timezone)
    before = _timezone(here)
    with here.begin() as (line, tx):
        line.run(store.SET_TIMEZONE, {"tenant_id": here.tenant_id, "timezone": asked.timezone})
        here.audit(tx, "tenant.change", "tenant", before={"timezone": before}, after={"timezone": asked.timezone})
    return Done()


_CHANGED = (
    "id", "tenant_id", "label", "is_enabled", "event_name", "event_filter", "cron_expr", "timezone", "definition_id",
    "payload_template", "dedupe_window_seconds", "catch_up", "catch_up_most", "max_lateness_seconds", "overlap",
    "next_fire_at",
)  # fmt: skip


def _checked(here: Desk, row: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it may be written; Refused or a Problem, by its field, if it may not."""
    from shared.job_queue.adapters.schemas import validate  # noqa: PLC0415 - no other route needs jsonschema
    from shared.job_queue.triggers import checks  # noqa: PLC0415 - nor cronsim

    now = _now(here)
    checks.check_kind_of_trigger(row, given)
    next_fire_at = checks.first_fire_at(row, now)
    definition = _definition(here, row["definition_key"])
    checks.check_payload_template(row["payload_template"], row["trigger_type"], definition["arg_schema"], now, validate)
    for name in ("payload_template", "event_filter"):
        if problem := unstorable(row[name], DEEPEST_PAYLOAD):
            raise Refused("bad_template", f"{name}: {problem}")
    return _as_kept(row, definition, next_fire_at)


def _as_kept(
    row: Mapping[str, Any], definition: Mapping[str, Any], next_fire_at: datetime | None = None
) -> dict[str, Any]:
    return {
        **row,
        "definition_id": definition["id"],
        "next_fire_at": next_fire_at,
        "payload_template": jsonb(row["payload_template"]),
        "event_filter": jsonb(row["event_filter"]),
    }


def _known_definition(here: Desk, key: str) -> Mapping[str, Any]:
    found = here.one(store.DEFINITION, key=key)
    if found is None:
        raise Refused("unknown_definition", f"definition_key: job definition {key[:80]!r} not found.")
    return found


def _definition(here: Desk, key: str) -> Mapping[str, Any]:
    found = _known_definition(here, key)
    if not found["is_active"]:
        raise Refused("inactive_definition", f"definition_key: {found['key']!r} is inactive.")
    return found


def _about(trigger: Trigger, asked: SampleEvent, now: datetime) -> Cause:
    if trigger.trigger_type == "event":
        return Cause(event=asked.event or {})
    if asked.event is not None:
        raise Problem(422, "not_an_event_trigger", "event: this trigger is a schedule and takes none.")
    return Cause(schedule={"fire_at": now.isoformat(), "trigger_id": str(trigger.id)})


def _found(here: Desk, trigger_id: UUID) -> Mapping[str, Any]:
    row = here.one(store.ONE, trigger_id=trigger_id)
    if row is None:
        raise NotFound
    return row


def _seen(here: Desk, rows: list[Mapping[str, Any]]) -> list[SeenTrigger]:
    recent: dict[UUID, list[Recent]] = defaultdict(list)
    ids = [str(row["id"]) for row in rows]
    for each in here.all(store.RECENT, trigger_ids=ids, most=RECENT) if ids else ():
        shown = {name: each[name] for name in ("status", "reason", "fire_at", "run_id", "run_status")}
        recent[each["trigger_id"]].append(Recent(**shown, count=each["due_count"]))
    names = SeenTrigger.model_fields.keys() - {"recent"}
    return [SeenTrigger(**{name: row[name] for name in names}, recent=recent[row["id"]]) for row in rows]


def _firing(row: Mapping[str, Any]) -> SeenFiring:
    same = ("id", "cause", "fire_at", "through", "status", "reason", "run_id", "run_status", "at")
    problem = None if row["error"] is None else row["error"]["message"]
    shown = {name: row[name] for name in same}
    return SeenFiring(**shown, event=row["signal_id"], count=row["due_count"], problem=problem)


def _times(here: Desk, cron_expr: str, timezone: str) -> Times:
    from shared.job_queue.triggers.checks import next_times  # noqa: PLC0415 - only these routes need cronsim
    from shared.job_queue.triggers.cron import read_zone  # noqa: PLC0415

    times, zone = next_times(cron_expr, timezone, _now(here), NEXT), read_zone(timezone)
    return Times(timezone=timezone, times=times, local=[at.astimezone(zone).isoformat() for at in times])


def _timezone(here: Desk) -> str:
    row = here.one(store.TIMEZONE)
    return "UTC" if row is None else str(row["timezone"])


def _now(here: Desk) -> datetime:
    row = here.one(store.NOW)
    assert row is not None
    now: datetime = row["now"]
    return now


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the audit keeps."""
    kept = ("label", "trigger_type", "is_enabled", "event_name", "cron_expr", "timezone", "definition_key")
    return {name: row[name] for name in kept}
