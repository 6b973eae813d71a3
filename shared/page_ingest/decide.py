"""What each look at the catalogue leads to. Pure: no clock, no database, no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

from shared.kernel.model import Ending, Lane, LaneStatus, NewLane, NextPhase, Problem, Run, RunStatus, Settlement
from shared.page_ingest.model import (
    AllPartitions,
    AtLeast,
    AuditCursor,
    ConsolidateCursor,
    CrawlCursor,
    Critical,
    IngestParams,
    PlanCursor,
    crawl_lane,
)
from shared.page_ingest.ports import Page, PriceRange

PROBES_PER_STEP = 8
COUNTS_PER_STEP = 8
MOST_PARTITIONS = 5_000
OVERLAP = 3
CONFIRM_AFTER_S = 5.0
MOST_SHIFTS = 25


def prices(low: int, high: int) -> PriceRange:
    return PriceRange(low=low, high=high)


def split_point(low: int, high: int) -> int:
    """Where a range is halved: in the middle of the orders of magnitude, for most stones are cheap."""
    return min(high - 1, max(low + 1, math.isqrt(max(low, 1) * high)))


def probed(cursor: PlanCursor, low: int, high: int, count: int, most: int) -> PlanCursor:
    """A range with few enough records is a partition; a larger one is halved, unless it is one dollar wide."""
    rest = cursor.todo[1:]
    if count > most and high - low > 1:
        middle = split_point(low, high)
        return PlanCursor(todo=[(low, middle), (middle, high), *rest], parts=cursor.parts)
    return PlanCursor(todo=rest, parts=with_part(cursor.parts, low, high, count, most))


def with_part(
    parts: Sequence[tuple[int, int, int]], low: int, high: int, count: int, most: int
) -> list[tuple[int, int, int]]:
    """Neighbours that are small together become one: no price is left out, and no lane is made for nothing."""
    if parts and parts[-1][2] + count <= most:
        first, _, before = parts[-1]
        return [*parts[:-1], (first, high, before + count)]
    return [*parts, (low, high, count)]


def planned_lanes(cursor: PlanCursor, page_size: int) -> list[NewLane]:
    return [crawl_lane(low, high, page_size) for low, high, _ in cursor.parts]


def page_request(cursor: CrawlCursor, page_size: int | None) -> tuple[int, int]:
    """The offset and limit of the next page: it begins with the last stones seen."""
    limit = max(OVERLAP + 1, min(cursor.limit, page_size or cursor.limit))
    return max(0, cursor.offset - len(cursor.tail)), limit


def after_page(cursor: CrawlCursor, page: Page, asked_at: int) -> CrawlCursor:
    """Where the crawl stands after a page.

    A stone that vanished upstream moves the later ones back, and a page boundary then skips some. The page began with
    the last stones seen; if none of them is there, the crawl steps back by a page and reads on from there.
    """
    known = [place for place, each in enumerate(page.ids) if each in set(cursor.tail)]
    if cursor.tail and page.ids and not known and cursor.shifts < MOST_SHIFTS:
        back = max(0, asked_at - cursor.limit)
        return cursor.but(offset=back, tail=(), shifts=cursor.shifts + 1, empties=0)
    new = page.ids[known[-1] + 1 :] if known else page.ids
    moved = bool(known) and known[-1] + 1 != len(cursor.tail)
    return cursor.but(
        offset=asked_at + page.fetched,
        tail=(*cursor.tail, *page.ids)[-OVERLAP:] if not known else page.ids[-OVERLAP:],
        seen=cursor.seen + len(new),
        shifts=cursor.shifts + moved,
        empties=0 if new else cursor.empties + 1,
    )


def crawl_ended(cursor: CrawlCursor, count: int | None) -> bool:
    """A short page is not the end. The end is past the real count, or where nothing new came twice."""
    return (count is not None and cursor.offset >= count) or cursor.empties >= 2


def is_clean(cursor: CrawlCursor, count: int | None) -> bool:
    """Nothing moved while the crawl went through: what it saw is what was there."""
    return cursor.shifts == 0 and count is not None and count == cursor.counted == cursor.seen


def must_split(cursor: CrawlCursor, params: IngestParams) -> bool:
    """A partition that has grown far beyond its size is cut while it runs."""
    return cursor.seen > 2 * params.partition_records and cursor.high - cursor.low > 1


def halves(cursor: CrawlCursor, crawl: int) -> list[NewLane]:
    middle = split_point(cursor.low, cursor.high)
    return [
        crawl_lane(cursor.low, middle, cursor.limit, crawl),
        crawl_lane(middle, cursor.high, cursor.limit, crawl),
    ]


def recounted(cursor: AuditCursor, count: int) -> AuditCursor:
    """A partition drifted if its crawl was not clean, or if its count has changed since."""
    (low, high, counted, clean), *rest = cursor.todo
    drifted = [*cursor.drifted, (low, high)] if not clean or count != counted else cursor.drifted
    return AuditCursor(todo=rest, drifted=drifted)


def settle(run: Run, lanes: Sequence[Lane]) -> Settlement:
    """Plan, then crawl, then audit (and crawl again what drifted, a bounded number of times), then consolidate once."""
    params = IngestParams.model_validate(dict(run.params), strict=False)
    held = {lane.key: lane for lane in lanes if lane.holds_run}
    plan = held["plan"]
    if plan.status is not LaneStatus.DONE:
        return _failed("the catalogue could not be divided into partitions", plan)
    latest = latest_crawls(list(held.values()))
    problem = broken_policy(params, latest)
    if problem is not None:
        return Ending(RunStatus.FAILED, "partitions_failed", problem)
    prefix = f"audit:{run.epoch}."
    rounds = [lane for key, lane in sorted(held.items()) if key.startswith(prefix)]
    done = held.get(f"consolidate:{run.epoch}")
    if done is not None:
        if done.status is not LaneStatus.DONE:
            return _failed("the crawled rows could not be consolidated", done)
        return Ending(RunStatus.SUCCEEDED, _outcome(latest, rounds))
    if rounds and rounds[-1].status is not LaneStatus.DONE:
        return _failed("the partitions could not be counted again", rounds[-1])
    drifted = [tuple(pair) for pair in rounds[-1].cursor["drifted"]] if rounds else []
    if rounds and not drifted:
        return NextPhase([consolidate_lane(run.epoch, latest, drifted)])
    crawl = len(rounds) + 1
    pending = [lane for lane in latest if (lane.cursor["low"], lane.cursor["high"]) in drifted]
    if rounds and any(crawl_of(lane) < crawl for lane in pending):
        if len(rounds) > params.recrawls:
            return NextPhase([consolidate_lane(run.epoch, latest, drifted)])
        return NextPhase([crawl_lane(low, high, params.page_size, crawl) for low, high in drifted])
    return NextPhase([audit_lane(run.epoch, crawl, latest, only=drifted if rounds else None)])


def latest_crawls(lanes: Sequence[Lane]) -> list[Lane]:
    """The last crawl of each partition that was not cut into others."""
    latest: dict[tuple[int, int], Lane] = {}
    for lane in sorted((each for each in lanes if each.key.startswith("part:")), key=crawl_of):
        if not lane.cursor["split"]:
            latest[lane.cursor["low"], lane.cursor["high"]] = lane
    return [latest[prices] for prices in sorted(latest)]


def crawl_of(lane: Lane) -> int:
    return int(lane.key.partition("#")[2] or 1)


def broken_policy(params: IngestParams, parts: Sequence[Lane]) -> Problem | None:
    failed = [lane for lane in parts if lane.status is not LaneStatus.DONE]
    if not failed:
        return None
    named = ", ".join(lane.key for lane in failed[:5])
    match params.policy:
        case AllPartitions():
            return Problem("partitions_failed", f"{len(failed)} of {len(parts)} partitions failed: {named}")
        case AtLeast(percent=percent):
            reached = 100 * (len(parts) - len(failed)) / len(parts)
            enough = reached >= percent
            return (
                None
                if enough
                else Problem(
                    "too_few_partitions", f"{reached:.1f} % of the partitions succeeded, {percent} % are needed"
                )
            )
        case Critical(prices=prices):
            hit = [lane.key for lane in failed if any(lane.cursor["low"] <= p < lane.cursor["high"] for p in prices)]
            return (
                Problem("critical_partitions_failed", f"critical partitions failed: {', '.join(hit)}") if hit else None
            )
        case _:
            assert_never(params.policy)


def audit_lane(epoch: int, audit: int, parts: Sequence[Lane], only: Sequence[tuple[int, int]] | None) -> NewLane:
    todo = [
        (lane.cursor["low"], lane.cursor["high"], lane.cursor["counted"], lane.cursor["clean"])
        for lane in parts
        if lane.status is LaneStatus.DONE and (only is None or (lane.cursor["low"], lane.cursor["high"]) in only)
    ]
    return NewLane(key=f"audit:{epoch}.{audit:02d}", cursor=AuditCursor(todo=todo).to_json())


def consolidate_lane(epoch: int, parts: Sequence[Lane], drifted: Sequence[object]) -> NewLane:
    complete = not drifted and all(lane.status is LaneStatus.DONE for lane in parts)
    return NewLane(key=f"consolidate:{epoch}", cursor=ConsolidateCursor(complete=complete).to_json())


def _outcome(parts: Sequence[Lane], rounds: Sequence[Lane]) -> str:
    if any(lane.status is not LaneStatus.DONE for lane in parts):
        return "partial"
    return "drifted" if rounds and rounds[-1].cursor["drifted"] else "complete"


def _failed(what: str, lane: Lane) -> Ending:
    why = (lane.last_error or {}).get("message", "no reason was noted")
    return Ending(RunStatus.FAILED, "failed", Problem("phase_failed", f"{what}: {why}"))
