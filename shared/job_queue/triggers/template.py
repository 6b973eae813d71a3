"""Payload templates: a value that is `{{event.a.b}}` and nothing else becomes what is found there, with its type.

There is no expression language on purpose: nothing is evaluated, called or put together, so nothing can be injected, and
what comes out is no larger than what went in. Whatever comes out is then validated like any other payload.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from shared.job_queue.model import LARGEST_PAYLOAD
from shared.job_queue.triggers.model import Cause, TriggerType
from shared.kernel.errors import Refused

LARGEST_TEMPLATE = 16 * 1024
DEEPEST_TEMPLATE = 8
DEEPEST_PATH = 16
MOST_VALUES = 500
SEGMENT = r"(?:[A-Za-z][A-Za-z0-9_-]{0,63}|_[A-Za-z0-9][A-Za-z0-9_-]{0,62}|[0-9]{1,4})"
PLACE = re.compile(rf"\{{\{{ ?(event|schedule)((?:\.{SEGMENT}){{1,{DEEPEST_PATH}}}) ?\}}\}}")
PATH = re.compile(rf"{SEGMENT}(?:\.{SEGMENT}){{0,{DEEPEST_PATH - 1}}}")
OF_SCHEDULE = ("fire_at", "trigger_id")
MISSING = object()


def check_template(template: Mapping[str, Any], trigger_type: TriggerType) -> None:
    """Everything that can be said about a template before anything has happened."""
    for n, (where, value, depth) in enumerate(_walk(template), start=1):
        if n > MOST_VALUES or depth > DEEPEST_TEMPLATE:
            raise Refused(
                "bad_template",
                f"payload_template: at most {MOST_VALUES} values, nested at most {DEEPEST_TEMPLATE} levels deep.",
            )
        if isinstance(value, str) and "{{" in value:
            _check_place(where, value, trigger_type)
    if len(orjson.dumps(template)) > LARGEST_TEMPLATE:
        raise Refused("bad_template", f"payload_template: at most {LARGEST_TEMPLATE // 1024} KB.")


def _check_place(where: str, value: str, trigger_type: TriggerType) -> None:
    found = PLACE.fullmatch(value)
    if found is None:
        raise Refused(
            "bad_template",
            f"payload_template.{where}: a placeholder is the whole value, as {{{{event.folder.path}}}}: "
            f"names joined by dots, at most {DEEPEST_PATH}.",
        )
    if found[1] != trigger_type:
        raise Refused(
            "bad_template", f"payload_template.{where}: {found[1]} is not available in {a_trigger(trigger_type)}."
        )
    if found[1] == "schedule" and found[2].removeprefix(".") not in OF_SCHEDULE:
        known = " and ".join(f"schedule.{name}" for name in OF_SCHEDULE)
        raise Refused("bad_template", f"payload_template.{where}: a schedule has {known}.")


def a_trigger(trigger_type: TriggerType) -> str:
    return "an event trigger" if trigger_type == "event" else "a schedule trigger"


def render(template: Mapping[str, Any], cause: Cause) -> dict[str, Any]:
    """The payload. A path that leads nowhere leaves its argument out; whether it may be missing is for the schema to say."""
    payload: dict[str, Any] = {}
    # What a placeholder brings in is counted before it is put together: a hundred copies of a large event are refused early.
    room = LARGEST_PAYLOAD
    for name, value in template.items():
        rendered = _render(name, value, cause)
        if rendered is MISSING:
            continue
        room -= len(orjson.dumps(rendered)) + len(name)
        if room < 0:
            raise Refused("payload_too_large", f"payload: at most {LARGEST_PAYLOAD // 1024} KB.")
        payload[name] = rendered
    return payload


def _render(where: str, value: Any, cause: Cause) -> Any:
    if isinstance(value, str):
        found = PLACE.fullmatch(value)
        return value if found is None else look_up(getattr(cause, found[1]), found[2].removeprefix("."))
    if isinstance(value, Mapping):
        rendered = {name: _render(f"{where}.{name}", each, cause) for name, each in value.items()}
        return {name: each for name, each in rendered.items() if each is not MISSING}
    if isinstance(value, list):
        parts = [_render(f"{where}[{n}]", each, cause) for n, each in enumerate(value)]
        if any(each is MISSING for each in parts):
            raise Refused("missing_value", f"payload.{where}: the event lacks a value for this list.")
        return parts
    return value


def look_up(root: Any, path: str) -> Any:
    """The value at a path of names and positions; only what JSON has inside: no attribute of anything is ever asked."""
    value = root
    for segment in path.split("."):
        if isinstance(value, dict) and segment in value:
            value = value[segment]
        elif isinstance(value, list) and segment.isdecimal() and int(segment) < len(value):
            value = value[int(segment)]
        else:
            return MISSING
    return value


def check_filter(wanted: Mapping[str, Any]) -> None:
    if len(wanted) > 10 or len(orjson.dumps(wanted)) > 2_000:
        raise Refused("bad_filter", "event_filter: at most 10 paths and 2 KB.")
    for path, value in wanted.items():
        if not PATH.fullmatch(path):
            raise Refused("bad_filter", f"event_filter: {path[:80]!r} is not a path, as folder.path.")
        if not isinstance(value, str | int | float | bool | None):
            raise Refused("bad_filter", f"event_filter.{path}: must be a text, a number, true, false or null.")


def fits(wanted: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Whether an event has each of these values. True is not 1 here, and 1 is 1.0, as in JSON."""
    for path, value in wanted.items():
        found = look_up(event, path)
        if found is MISSING or isinstance(found, bool) != isinstance(value, bool) or found != value:
            return False
    return True


def literals(template: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are written out, without any placeholder inside: these can be validated beforehand."""
    return {
        name: value
        for name, value in template.items()
        if not any(isinstance(each, str) and PLACE.fullmatch(each) for _, each, _ in _walk({"": value}))
    }


def _walk(template: Mapping[str, Any]) -> Iterator[tuple[str, Any, int]]:
    """Every value with its place and depth. Not recursive: it may be deep."""
    left: list[tuple[str, Any, int]] = [(str(name), value, 1) for name, value in template.items()]
    while left:
        where, value, depth = left.pop()
        yield where, value, depth
        if isinstance(value, Mapping):
            left.extend((f"{where}.{name}"[:200], each, depth + 1) for name, each in value.items())
        elif isinstance(value, list):
            left.extend((f"{where}[{n}]"[:200], each, depth + 1) for n, each in enumerate(value))
