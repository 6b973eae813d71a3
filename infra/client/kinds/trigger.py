"""`baton trigger` and `baton event`: what starts jobs by itself, when it is due next, and what came of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from infra.client import show
from infra.client.command import (
    Commands,
    client_of,
    command,
    created,
    did,
    group,
    pair,
    short,
    tell,
    with_id,
    with_limit,
)  # fmt: skip
from infra.client.http import Refusal

SUMMARY = ("id", "label", "on", "starts", "definition_key", "next_fire_at", "last")
FIRING = ("fire_at", "count", "cause", "status", "why", "run_id", "run_status")
THE_ID = "the trigger's ID"


def add_commands(commands: Commands) -> None:
    below = group(commands, "trigger", "start jobs by events and schedules")
    with_limit(command(below, "list", triggers, "list triggers"))
    made = command(below, "add", add, "start a job whenever something happens, or at set times")
    made.add_argument("definition", help="the job to start: the key of its definition")
    made.add_argument("--label", help="a name for people; default: what it waits for")
    made.add_argument("--on", metavar="EVENT", help="start it when this happens, for example provider.folder.updated")
    made.add_argument("--only-if", action="append", type=pair, metavar="PATH=VALUE", help="a value the event must have")
    made.add_argument("--cron", metavar="EXPR", help="start it at set times, for example '0 2 * * *'")
    made.add_argument("--timezone", help="of the schedule; default: the tenant's")
    made.add_argument(
        "--param", action="append", type=pair, metavar="NAME=VALUE", help="an argument; '{{event.a}}' works"
    )
    made.add_argument("--window", type=int, help="seconds in which events share a job (default: 300)")
    made.add_argument("--catch-up", choices=["skip", "once", "all"], help="what to do about missed times")
    made.add_argument("--overlap", choices=["skip", "queue"], help="when the job before hasn't ended")
    with_id(command(below, "show", shown, "show a trigger"), THE_ID, "trigger")
    with_id(
        with_limit(
            command(below, "firings", firings, "list the events and due times of a trigger, and the job of each")
        ),
        THE_ID,
        "trigger",
    )
    with_id(command(below, "next", coming, "show the next ten times"), THE_ID, "trigger")
    for name, do, text in (
        ("run", run_now, "start its job now"),
        ("test", tested, "show the payload of a sample event, and start nothing"),
    ):
        with_event = with_id(command(below, name, do, text), THE_ID, "trigger")
        with_event.add_argument("--event", metavar="JSON", help="the event, for triggers that wait for one")
    with_id(command(below, "on", switched_on, "switch a trigger on"), THE_ID, "trigger")
    with_id(command(below, "off", switched_off, "switch a trigger off"), THE_ID, "trigger")
    with_id(command(below, "delete", deleted, "delete a trigger"), THE_ID, "trigger")

    events = group(commands, "event", "report events, which triggers wait for")
    sent = command(events, "send", send, "send an event")
    sent.add_argument("name", help="what happened, for example list.created")
    sent.add_argument("--param", action="append", type=pair, metavar="NAME=VALUE", help="a value of it")
    sent.add_argument("--payload", metavar="JSON", help="all of it, in place of --param")
    sent.add_argument("--id", help="what tells it from others: sent twice, it counts once")
    with_limit(command(events, "list", listed, "list what happened, newest first"))


def triggers(options: argparse.Namespace) -> None:
    found = client_of(options).listing("/jobs/triggers", "triggers", options.limit)
    less = ("definition_key", "next_fire_at")
    tell(options, found, lambda told: show.table([_line(each) for each in told["triggers"]], *SUMMARY, optional=less))


def _line(trigger: Mapping[str, Any]) -> dict[str, Any]:
    recent = trigger["recent"]
    last = "" if not recent else recent[0]["reason"] or recent[0]["run_status"] or recent[0]["status"]
    starts = trigger["event_name"] or f"{trigger['cron_expr']} {trigger['timezone']}"
    return {**trigger, "on": "yes" if trigger["is_enabled"] else "no", "starts": starts, "last": last}


def add(options: argparse.Namespace) -> None:
    if (options.on is None) == (options.cron is None):
        raise Refusal("a trigger waits for one thing: give either --on EVENT or --cron EXPR")
    body = {
        "label": options.label or options.on or options.cron,
        "trigger_type": "schedule" if options.cron else "event",
        "event_name": options.on,
        "cron_expr": options.cron,
        "timezone": options.timezone,
        "definition_key": options.definition,
        "payload_template": _values(options.param),
        "event_filter": _values(options.only_if),
        "dedupe_window_seconds": options.window,
        "catch_up": options.catch_up,
        "overlap": options.overlap,
    }
    made = client_of(options).post("/jobs/triggers", {name: value for name, value in body.items() if value is not None})
    created(options, made, f"Added. Start its job now with `baton trigger run {short(made['id'])}`.")


def shown(options: argparse.Namespace) -> None:
    found = client_of(options).get(f"/jobs/triggers/{options.id}")

    def facts(told: Mapping[str, Any]) -> None:
        show.facts({name: value for name, value in _line(told).items() if name not in {"recent", "on", "starts"}})

    tell(options, found, facts)


def firings(options: argparse.Namespace) -> None:
    found = client_of(options).listing(f"/jobs/triggers/{options.id}/firings", "firings", options.limit)

    def table(told: Mapping[str, Any]) -> None:
        rows = [{**each, "why": each["reason"] or each["problem"]} for each in told["firings"]]
        show.table(rows, *FIRING, optional=("count", "cause"))

    tell(options, found, table)


def coming(options: argparse.Namespace) -> None:
    found = client_of(options).get(f"/jobs/triggers/{options.id}/next")
    tell(options, found, lambda told: print("\n".join(told["local"]) or "never: it is switched off"))


def run_now(options: argparse.Namespace) -> int:
    told = client_of(options).post(f"/jobs/triggers/{options.id}/run", _event(options.event))
    tell(options, told, lambda ran: print(ran["run_id"] or ran["problem"]))
    return 0 if told["run_id"] else 1


def tested(options: argparse.Namespace) -> int:
    found = client_of(options).post(f"/jobs/triggers/{options.id}/test", _event(options.event))

    def text(told: Mapping[str, Any]) -> None:
        print(json.dumps(told["payload"], indent=2))
        for said in ([] if told["matches"] else ["The event does not pass the filter."]) + [told["problem"]]:
            if said:
                print(said)

    tell(options, found, text)
    return 0 if found["matches"] and found["problem"] is None else 1


def _event(given: str | None) -> dict[str, Any]:
    return {} if given is None else {"event": _json(given)}


def switched_on(options: argparse.Namespace) -> None:
    _switch(options, is_on=True)


def switched_off(options: argparse.Namespace) -> None:
    _switch(options, is_on=False)


def _switch(options: argparse.Namespace, *, is_on: bool) -> None:
    done = client_of(options).patch(f"/jobs/triggers/{options.id}", {"is_enabled": is_on})
    did(options, done, f"Switched {'on' if is_on else 'off'} {short(options.id)}.")


def deleted(options: argparse.Namespace) -> None:
    did(options, client_of(options).delete(f"/jobs/triggers/{options.id}"), f"Deleted {short(options.id)}.")


def send(options: argparse.Namespace) -> None:
    body: dict[str, Any] = {"name": options.name, "payload": _json(options.payload) if options.payload else None}
    body["payload"] = body["payload"] or _values(options.param)
    body |= {"id": options.id} if options.id else {}
    done = client_of(options).post("/events", body)
    tell(options, done, lambda told: print(told["id"] + (" (already sent)" if told["again"] else "")))


def listed(options: argparse.Namespace) -> None:
    found = client_of(options).listing("/events", "events", options.limit)
    tell(options, found, lambda told: show.table(told["events"], "at", "name", "payload"))


def _values(given: list[tuple[str, str]] | None) -> dict[str, Any]:
    """Numbers, true, false, null and quoted texts as JSON has them; everything else is text."""
    return {name: _value(value) for name, value in given or ()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        raise Refusal(f"{text[:80]!r} is not valid JSON") from None
    if not isinstance(found, dict):
        raise Refusal('an event is a JSON object, for example \'{"folder": "/photos"}\'')
    return found
