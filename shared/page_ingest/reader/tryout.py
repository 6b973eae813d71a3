"""Try a source and estimate a run of it: the real requests and the real reading, and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import orjson

from shared.kernel.errors import Later, Permanent
from shared.page_ingest.decide import pages_expected
from shared.page_ingest.reader import answers, plan, walk
from shared.page_ingest.reader.client import OAUTH, Client
from shared.page_ingest.reader.model import Part, PlanCursor, ReadCursor
from shared.page_ingest.source.compile import Compiled, CompiledResource
from shared.page_ingest.source.model import Resource

PAGES = 3
ROWS_SHOWN = 5
MOST_COUNTS = 40  # of one list
USUAL_BEGIN = timedelta(days=31)
USUAL_REQUEST_S = 0.5
LANES_AT_ONCE = 5  # of the smallest size of database connections


def resource_of(compiled: Compiled, name: str | None) -> CompiledResource:
    known = {each.resource.name: each for each in compiled.resources}
    if name is not None and name not in known:
        raise Permanent(f"resource: {name} is unknown. Available: {', '.join(known)}", "bad_params")
    return known[name] if name is not None else compiled.resources[0]


def logged_in(client: Client) -> Client:
    if client.source.auth.way == "refresh_token":
        raise Permanent(
            "A source with a refresh token can't be tried: every login would replace the token.", "bad_params"
        )
    if client.source.auth.way in OAUTH and client.token is None:
        client.token = client.log_in().value
    return client


def first_part(
    client: Client, compiled: Compiled, resource: Resource, begin: str | None, to: str | None, now: datetime
) -> Part:
    """The newest window, the first value, or the first row of the parent."""
    parent = plan.parent_of(resource)
    if parent is not None:
        above = compiled.source.resources[parent]
        part = first_part(client, compiled, above, begin, to, now)
        cursor = ReadCursor(part=part, t=plan.said(now), scope="", limit=above.page.size)
        page = client.page(above, part, None, walk.request(above, cursor))
        kept = [row for row in page.rows if row.state in (answers.ROW, answers.GONE)]
        if not kept:
            raise Permanent(f"{parent} has no rows on its first page, so {resource.name} cannot be tried", "bad_params")
        assert resource.split is not None
        value = answers.at(orjson.loads(kept[0].body), resource.split.parent_key)
        if type(value) is not int and not (isinstance(value, str) and value):
            raise Permanent(
                f"A row of {parent} has no {resource.split.parent_key}, so its {resource.name} can't be read.",
                "bad_parent",
            )
        return {"resource": resource.name, "parent": value}
    until = now if to is None else min(now, plan.moment(to))
    return plan.roots(resource, begin or plan.said(until - USUAL_BEGIN), to, now)[-1]


def try_out(
    client: Client, compiled: Compiled, name: str | None, begin: str | None, to: str | None, now: datetime
) -> dict[str, Any]:
    """The first pages of a list, as a run would read them; fewer where the pace of the file allows no more for now."""
    each = resource_of(compiled, name)
    resource = each.resource
    logged_in(client)
    part = first_part(client, compiled, resource, begin, to, now)
    while resource.split is not None and resource.split.then is not None and "then" not in part:
        smaller = plan.divided(resource, part)
        if smaller is None:
            break
        part = smaller[-1]
    cursor = ReadCursor(part=part, t=plan.said(now), scope="", limit=resource.page.size)
    pages: list[dict[str, Any]] = []
    sample: list[answers.Row] = []
    unfit: list[str] = []
    counted: int | None = None
    for _ in range(PAGES):
        asked = walk.request(resource, cursor)
        try:
            page = client.page(resource, part, None, asked)
        except Later:
            if not pages:
                raise
            break
        cursor = walk.after_page(resource, cursor, page, asked, None)
        half = walk.doubted(resource, cursor, page)
        if half is not None:
            with suppress(Later):
                walk.hold_to_next(resource, cursor, client.page(resource, part, None, half))
        counted = page.count if page.count is not None else counted
        states = [row.state for row in page.rows]
        pages.append({"rows": len(states), **{state: states.count(state) for state in set(states)}})
        sample += [row for row in page.rows if row.state in (answers.ROW, answers.GONE)][: ROWS_SHOWN - len(sample)]
        unfit += [row.why for row in page.rows if row.why][: ROWS_SHOWN - len(unfit)]
        if cursor.ended:
            break
    names = [column.name for column in resource.columns]
    if resource.count is not None and resource.count.request is not None:
        with suppress(Later):
            counted, _ = client.count(resource, part, None)
    return {
        "resource": resource.name,
        "partition": {key: value for key, value in part.items() if key != "resource"},
        "claim": each.best.claim,
        "reason": each.best.reason,
        "requests": client.asked,
        "pages": pages,
        "ended": cursor.ended,
        "counted": counted,
        "unfit": unfit,
        "rows": [{"key": row.key, "columns": dict(zip(names, _plain(row.cols), strict=False))} for row in sample],
    }


def _plain(values: Any) -> list[Any]:
    return [
        None if value is None or isinstance(value, str | int | float | bool) is False else value for value in values
    ]


def estimate(
    client: Client, compiled: Compiled, begin: str | None, to: str | None, now: datetime, name: str | None = None
) -> dict[str, Any]:
    """Partitions, requests and minutes of a run; where counts are needed, at most some are asked for at the file's pace, and the rest guessed."""
    chosen = compiled.resources if name is None else [resource_of(compiled, name)]
    logged_in(client)
    told = [_estimated(client, each, begin, to, now) for each in chosen]
    requests = [each["requests"] for each in told]
    known = None if None in requests else sum(requests)
    return {"resources": told, "requests": known, "minutes": None if known is None else _minutes(compiled, known, told)}


def _estimated(
    client: Client, each: CompiledResource, begin: str | None, to: str | None, now: datetime
) -> dict[str, Any]:
    resource = each.resource
    said: dict[str, Any] = {"resource": resource.name, "claim": each.best.claim, "asked": 0}
    if plan.parent_of(resource) is not None:
        return {**said, "partitions": None, "rows": None, "requests": None, "exact": False}
    cursor = PlanCursor(todo=plan.roots(resource, begin, to, now), parts=[])
    rows: list[int] = []
    before = client.asked
    while cursor.todo and client.asked - before < MOST_COUNTS:
        if resource.count is None or resource.since is not None:
            cursor = plan.taken(cursor)
            continue
        assert cursor.todo is not None
        parts = len(cursor.parts)
        try:
            count, _ = client.count(resource, cursor.todo[0], None)
        except Later:
            break
        cursor = plan.probed(cursor, resource, count) if resource.split is not None else plan.taken(cursor)
        if len(cursor.parts) > parts:
            rows.append(count)
    found, left = len(cursor.parts), len(cursor.todo or ())
    exact = not left and len(rows) == found
    mean = sum(rows) / len(rows) if rows else None
    partitions = found + left
    if mean is None:
        return {
            **said,
            "asked": client.asked - before,
            "partitions": partitions,
            "rows": None,
            "requests": None,
            "exact": False,
        }
    size = resource.page.size or 100
    audit = 2 if each.best.claim == "complete" and resource.count is not None else 0
    planned = partitions if resource.split is not None and resource.split.most else 0
    requests = partitions * (pages_expected(round(mean), size) + audit) + planned
    return {
        **said, "asked": client.asked - before, "partitions": partitions, "rows": round(mean * partitions),
        "requests": requests, "exact": exact,
    }  # fmt: skip


def _minutes(compiled: Compiled, requests: int, told: Sequence[Mapping[str, Any]]) -> float:
    """At the file's pace, or at a usual one with a few lanes at once."""
    lanes = min(LANES_AT_ONCE, max(1, sum(each["partitions"] or 0 for each in told)))
    seconds = requests * USUAL_REQUEST_S / lanes
    pace = compiled.source.rate.pace
    if pace is not None:
        seconds = max(seconds, requests * pace.per / pace.requests)
    return round(seconds / 60, 1)
