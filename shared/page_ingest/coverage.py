"""Which prices were read on which day, as a map for people: its bands are as wide as what is known about them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import reduce
from itertools import pairwise
from typing import Any
from uuid import UUID

MOST_BANDS = 24
MOST_MISSING = 20  # price ranges that one run left out; of more, all from the last of them on count as left out


class Standing(StrEnum):
    """How well a day's runs know a price, the best first. Nothing is judged gone by a run that is not complete."""

    COMPLETE = "complete"
    READ = "read"
    RUNNING = "running"
    FAILED = "failed"
    NOT_READ = "not_read"


RANK = {standing: place for place, standing in enumerate(Standing)}


@dataclass(frozen=True, slots=True)
class Reading:
    """What one run says about a price range, as of when it started."""

    run_id: UUID
    low: int
    high: int
    standing: Standing
    at: datetime

    @property
    def day(self) -> date:
        return self.at.astimezone(UTC).date()


@dataclass(frozen=True, slots=True)
class Cell:
    """`partly`: some prices of the band stand better."""

    standing: Standing
    partly: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """`complete_at`: since when all its prices were complete, null: not in these days. `latest`: the newest run that read any."""

    low: int
    high: int
    cells: Mapping[date, Cell] = field(default_factory=dict)
    complete_at: datetime | None = None
    latest: Reading | None = None


def readings(row: Mapping[str, Any]) -> list[Reading]:
    """What a run says: a partial one has read all but what it left out; one that was canceled says nothing."""

    def said(low: int, high: int, standing: Standing) -> Reading:
        return Reading(row["run_id"], low, high, standing, row["created_at"])

    low, high = row["low"], row["high"]
    match row["status"], row["outcome"]:
        case "succeeded", "complete":
            return [said(low, high, Standing.COMPLETE)]
        case "succeeded", _:
            missing = _few(row["missing"] or [], high)
            edges = [low, *(edge for each in missing for edge in each), high]
            read = [
                said(a, b, Standing.READ) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b
            ]  # between what is missing
            return read + [said(a, b, Standing.FAILED) for a, b in missing]
        case "failed", _:
            return [said(low, high, Standing.FAILED)]
        case "canceled", _:
            return []
        case _:
            return [said(low, high, Standing.RUNNING)]


def _few(missing: Sequence[Sequence[int]], high: int) -> list[tuple[int, int]]:
    ranges = [(a, b) for a, b in missing]
    return ranges if len(ranges) <= MOST_MISSING else [*ranges[: MOST_MISSING - 1], (ranges[MOST_MISSING - 1][0], high)]


def bands(said: Sequence[Reading], most: int = MOST_BANDS) -> list[Band]:
    """From the lowest price that any run asked for to the highest, cut where what is known changes."""
    edges = sorted({edge for each in said for edge in (each.low, each.high)})
    of_band: list[list[Reading]] = [[] for _ in edges[1:]]
    for each in said:
        for place in range(bisect_left(edges, each.low), bisect_left(edges, each.high)):
            of_band[place].append(each)
    found = [_band(low, high, known) for (low, high), known in zip(pairwise(edges), of_band, strict=True)]
    found = reduce(_with_alike, found, [])
    while len(found) > 2 * most:
        found = [reduce(joined, found[place : place + 2]) for place in range(0, len(found), 2)]
    while len(found) > most:
        place = min(range(len(found) - 1), key=lambda n: found[n + 1].high / max(1, found[n].low))
        found[place : place + 2] = [joined(found[place], found[place + 1])]
    return found


def _band(low: int, high: int, known: Iterable[Reading]) -> Band:
    cells: dict[date, Cell] = {}
    newest_first = sorted(known, key=lambda each: (each.at, each.run_id), reverse=True)
    for each in newest_first:
        best = cells.get(each.day)
        if best is None or RANK[each.standing] < RANK[best.standing]:
            cells[each.day] = Cell(each.standing)
    complete = (each.at for each in newest_first if each.standing is Standing.COMPLETE)
    return Band(low, high, cells, next(complete, None), newest_first[0] if newest_first else None)


def _with_alike(before: list[Band], band: Band) -> list[Band]:
    """Neighbours that look the same are one."""
    if before and before[-1].cells == band.cells:
        return [*before[:-1], joined(before[-1], band)]
    return [*before, band]


def joined(one: Band, other: Band) -> Band:
    """Both as one, which is only as good as the worse of them."""
    cells = {
        day: _worse(one.cells.get(day), other.cells.get(day)) for day in sorted({*one.cells, *other.cells})
    }  # fmt: skip
    known = [each.complete_at for each in (one, other)]
    latest = max((each.latest for each in (one, other) if each.latest), key=lambda each: each.at, default=None)
    return replace(
        one,
        high=other.high,
        cells=cells,
        latest=latest,
        complete_at=None if None in known else min(filter(None, known)),
    )


def _worse(one: Cell | None, other: Cell | None) -> Cell:
    one, other = one or Cell(Standing.NOT_READ), other or Cell(Standing.NOT_READ)
    if one.standing is other.standing:
        return Cell(one.standing, one.partly or other.partly)
    return Cell(max(one.standing, other.standing, key=RANK.__getitem__), partly=True)


def gaps(found: Sequence[Band]) -> list[tuple[int, int]]:
    """The prices that no run of these days has read completely."""
    ranges: list[tuple[int, int]] = []
    for each in found:
        if each.complete_at is not None:
            continue
        if ranges and ranges[-1][1] == each.low:
            ranges[-1] = (ranges[-1][0], each.high)
        else:
            ranges.append((each.low, each.high))
    return ranges
