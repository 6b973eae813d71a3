"""How a list is divided into partitions: by the calendar, by listed values, and by halves where there is too much. Pure."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from shared.kernel.errors import Permanent
from shared.page_ingest.reader import fill
from shared.page_ingest.reader.model import Part, PlanCursor
from shared.page_ingest.reader.words import instant
from shared.page_ingest.source.model import Duration, Resource, Split
from shared.page_ingest.source.read import MOST_PARTITIONS

PARENTS_A_LANE = 200


def generations(resources: Mapping[str, Resource], chosen: Sequence[str]) -> list[list[Resource]]:
    """Resources by how many parents are above them. Whoever is chosen brings its parents along."""
    deep: dict[str, int] = {}
    for name in chosen:
        line = [name]
        while (parent := parent_of(resources[line[-1]])) is not None:
            line.append(parent)
        deep |= {each: depth for depth, each in enumerate(reversed(line))}
    most = max(deep.values())
    return [[resources[name] for name in resources if deep.get(name) == depth] for depth in range(most + 1)]


def parent_of(resource: Resource) -> str | None:
    return resource.split.parent if resource.split is not None and resource.split.way == "parent" else None


def roots(resource: Resource, begin: str | None, end: str | None, t: datetime) -> list[Part]:
    """The partitions of a resource before anything is counted; those of a parent's rows are made elsewhere."""
    name, split = {"resource": resource.name}, resource.split
    if split is None:
        return [name]
    match split.way:
        case "window":
            return [{**name, **span} for span in windows(split, begin, end, t)]
        case "numbers":
            assert split.numbers is not None
            return [{**name, "low": split.numbers[0], "high": split.numbers[1]}]
        case "values":
            return [{**name, "at": at, "value": value} for at, value in enumerate(split.values)]
        case _:
            return []


def windows(split: Split, begin: str | None, end: str | None, t: datetime) -> list[dict[str, str]]:
    """From `begin` to `end`, and never later than the run's own start: what comes after it is of the next run."""
    assert split.window is not None
    if begin is None:
        raise Permanent("from: This list is read in windows of time. Say where to start.", "bad_params")
    last = min(t, moment(end)) if end is not None else t
    at, last = _floor(moment(begin), split), _floor(last, split)
    if at >= last:
        raise Permanent(
            f"There is nothing to read between {begin} and {said(last)}. Choose an earlier from or a later to.",
            "bad_params",
        )
    found = []
    while at < last:
        after = min(last, _plus(at, split.window))
        found.append({"from": said(at), "to": said(after)})
        at = after
        if len(found) > MOST_PARTITIONS:
            raise Permanent(
                f"This would take more than {MOST_PARTITIONS:,} windows. Choose a later from or an earlier to.",
                "too_many_partitions",
            )
    return found


def moment(text: str) -> datetime:
    try:
        return instant(text)
    except (ValueError, OverflowError):
        raise Permanent(
            f"{text[:40]} is not a day or a time: write 2025-01-31 or 2025-01-31T12:00:00Z", "bad_params"
        ) from None


def said(at: datetime) -> str:
    return str(fill.said(at, "time"))


def _floor(at: datetime, split: Split) -> datetime:
    at = at.replace(microsecond=0)
    return at.replace(hour=0, minute=0, second=0) if split.format == "date" else at


def _plus(at: datetime, span: Duration) -> datetime:
    months = at.month - 1 + span.months
    year, month = at.year + months // 12, months % 12 + 1
    if year > 9_000:
        raise Permanent("The windows go beyond the year 9000. Choose an earlier to.", "bad_params")
    moved = at.replace(year=year, month=month, day=min(at.day, monthrange(year, month)[1]))
    return moved + timedelta(seconds=span.seconds)


# --- halves -----------------------------------------------------------------------------------------------------------


def most_of(split: Split, part: Part) -> int | None:
    """How many rows are too many for this partition."""
    if "then" in part and split.then is not None and split.then.most is not None:
        return split.then.most
    return split.most


def is_counted(resource: Resource, part: Part) -> bool:
    """Whether the plan has to know how many rows a partition has."""
    split = resource.split
    return (
        split is not None
        and resource.count is not None
        and most_of(split, part) is not None
        and divided(resource, part) is not None
    )


def divided(resource: Resource, part: Part) -> list[Part] | None:
    """The smaller partitions that this one could become; None: it cannot be smaller."""
    split = resource.split
    assert split is not None
    if "low" in part:
        low, high = part["low"], part["high"]
        middle = (low + high) // 2
        return None if high - low < 2 else [{**part, "high": middle}, {**part, "low": middle}]
    if "from" in part and "then" not in part:
        at, to = instant(part["from"]), instant(part["to"])
        unit = 86_400 if split.format == "date" else 1
        halves = int((to - at).total_seconds()) // unit // 2
        if halves >= 1:
            middle_at = said(at + timedelta(seconds=halves * unit))
            return [{**part, "to": middle_at}, {**part, "from": middle_at}]
    inner = split.then
    if inner is None or "then" in part:
        return None
    if inner.way == "values":
        return [{**part, "then": True, "at": at, "value": value} for at, value in enumerate(inner.values)]
    assert inner.numbers is not None
    return [{**part, "then": True, "low": inner.numbers[0], "high": inner.numbers[1]}]


def undivided(part: Part) -> Part | None:
    """What a partition was before `then` divided it; None: it was not."""
    if "then" not in part:
        return None
    words = ("then", "low", "high", "at", "value") if "from" in part else ("then", "low", "high")
    return {name: value for name, value in part.items() if name not in words}


def probed(cursor: PlanCursor, resource: Resource, count: int) -> PlanCursor:
    """A partition with few enough rows stays as it is; a larger one is divided."""
    assert cursor.todo is not None
    assert resource.split is not None
    part, *rest = cursor.todo
    smaller = divided(resource, part)
    most = most_of(resource.split, part)
    if most is None or count <= most or smaller is None:
        return bounded(cursor.but(todo=rest, parts=[*cursor.parts, part]))
    return bounded(cursor.but(todo=[*smaller, *rest]))


def taken(cursor: PlanCursor) -> PlanCursor:
    assert cursor.todo is not None
    part, *rest = cursor.todo
    return bounded(cursor.but(todo=rest, parts=[*cursor.parts, part]))


def bounded(cursor: PlanCursor) -> PlanCursor:
    if len(cursor.parts) + len(cursor.todo or ()) > MOST_PARTITIONS:
        raise Permanent(
            f"This would take more than {MOST_PARTITIONS:,} partitions. Choose a later from or an earlier to.",
            "too_many_partitions",
        )
    return cursor


def slices(resource: Resource, ends: Sequence[str]) -> list[Part]:
    """The rows of a parent, many to a lane; `ends` are the last keys of each share."""
    begins = ["", *ends][: len(ends)]
    return [
        {"resource": resource.name, "slice": [after, upto], "n": n}
        for n, (after, upto) in enumerate(zip(begins, ends, strict=True))
    ]


def mark_scope(scope: str, begin: str | None, to: str | None) -> str:
    """The scope of a watermark of lists that are read in windows: whoever reads others as well has not read these before."""
    return sha256(f"{scope} {begin} {to}".encode()).hexdigest()[:24]


def covered(parts: Sequence[Part]) -> list[Any] | None:
    """The span of the windows, for who judges what was not seen in it."""
    spans = [(part["from"], part["to"]) for part in parts if "from" in part]
    return [min(span[0] for span in spans), max(span[1] for span in spans)] if spans else None
