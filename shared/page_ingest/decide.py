"""What each look at the catalogue leads to. Pure: no clock, no database, no network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import assert_never

from shared.kernel.model import Ending, Lane, LaneStatus, NewLane, NextPhase, Problem, Run, RunStatus, Settlement
from shared.page_ingest.model import (
    SMALLEST_PAGE,
    AllPartitions,
    AtLeast,
    AuditCursor,
    ConsolidateCursor,
    CrawlCursor,
    Critical,
    IngestParams,
    Page,
    PlanCursor,
    PriceRange,
    Walked,
    crawl_lane,
    mark,
)

PROBES_PER_STEP = 8
LONGEST_BURST_S = 3.0  # no page begins later in its step, where it may read several
LEAST_FOR_A_PAGE_S = 3.5
COUNTS_PER_STEP = 8
AUDIT_SHARE = 100  # partitions of one audit lane
MOST_PARTITIONS = 5_000
OVERLAP = 3
CONFIRM_AFTER_S = 5.0
MOST_SHIFTS = 25
SPARE_ROWS = 1_000
MOST_ROUNDS = 4  # how often a walk may receive what was counted when it began
MOST_EDGE = 2_000
MOST_CUTS = 6


# --- plan -------------------------------------------------------------------------------------------------------------


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
    return [crawl_lane(CrawlCursor(low=low, high=high, limit=page_size)) for low, high, _ in cursor.parts]


# --- crawl ------------------------------------------------------------------------------------------------------------


def overlap(limit: int) -> int:
    """With how many rows of the one before a page begins: a small page is not spent on them."""
    return min(OVERLAP, max(1, limit // 4))


def page_request(cursor: CrawlCursor, remembered: int | None) -> tuple[int, int]:
    """Offset and limit of the next page. It begins with the last rows seen, unless nothing new came last time."""
    limit = max(SMALLEST_PAGE, min(cursor.limit, remembered or cursor.limit))
    back = 0 if cursor.empties else min(len(cursor.tail), overlap(limit))
    return max(0, cursor.offset - back), limit


def pages_expected(counted: int, limit: int) -> int:
    """How many pages a crawl of so many records takes if nothing moves: each begins with the last rows of the one before,
    and the last one brings nothing new.
    """
    if not counted:
        return 1
    return 2 + math.ceil(max(0, counted - limit) / (limit - overlap(limit)))


def wants_count(cursor: CrawlCursor, page: Page, limit: int, params: IngestParams) -> bool:
    """Whether this page is a reason to ask how many records there are now."""
    return (
        page.fetched < limit
        or cursor.empties > 0
        or _walked_too_far(cursor, cursor.counted or 0)
        or _may_be_cut(cursor, params)
    )


def after_page(cursor: CrawlCursor, page: Page, asked_at: int, limit: int, count: int | None) -> CrawlCursor:
    """Where the crawl stands after a page.

    Rows that vanished upstream move the later ones back, and a page boundary would skip some. So a page begins with the
    last rows seen; if none of them is there, the crawl steps back, further each time, until it meets them again.
    """
    cursor = cursor.but(
        pages=cursor.pages + 1,
        received=cursor.received + page.fetched,
        duplicates=cursor.duplicates + page.fetched - len(set(page.ids)),
        edge=_with_edge(cursor.edge, page),
    )
    expected = cursor.tail[len(cursor.tail) - (cursor.offset - asked_at) :] if asked_at < cursor.offset else ()
    if not expected:
        return _after_unanchored_page(cursor, page, asked_at, count)
    known = [place for place, each in enumerate(page.ids) if each in expected]
    if known:
        return _after_known_page(cursor, page, asked_at, expected, page.ids[known[-1] + 1 :])
    shrunk = count is not None and count <= asked_at
    if not page.ids and not shrunk:
        return cursor.but(empties=cursor.empties + 1)
    if asked_at == 0 or cursor.shifts >= MOST_SHIFTS:
        return _after_unanchored_page(cursor.but(shifts=cursor.shifts + 1), page, asked_at, count)
    back_to = max(0, asked_at - (limit << cursor.misses))
    return cursor.but(offset=back_to + len(expected), misses=cursor.misses + 1, shifts=cursor.shifts + 1, empties=0)


def _with_edge(edge: Sequence[str], page: Page) -> Sequence[str]:
    """The marks of what is listed here and belongs to the next partition; of too many, some stay uncounted.

    Nor does what is foreign count as seen: a walk that was shown stones which nobody keeps is not clean.
    """
    if len(page.items) == page.fetched:
        return edge
    passed_over = page.kept | page.foreign
    return tuple(dict.fromkeys([*edge, *(mark(each) for each in page.ids if each not in passed_over)]))[:MOST_EDGE]


def _after_known_page(
    cursor: CrawlCursor, page: Page, asked_at: int, expected: Sequence[str], new: Sequence[str]
) -> CrawlCursor:
    reached = asked_at + page.fetched
    moved = any(here != there for here, there in zip(page.ids, expected, strict=False))
    cursor = cursor.but(misses=0, shifts=cursor.shifts + moved)
    if new or reached > cursor.offset:
        tail = page.ids if page.fetched >= OVERLAP else (*cursor.tail, *new)
        return cursor.but(offset=reached, tail=tuple(tail[-OVERLAP:]), empties=0)
    return cursor.but(offset=reached if moved else cursor.offset, empties=cursor.empties + 1)


def _after_unanchored_page(cursor: CrawlCursor, page: Page, asked_at: int, count: int | None) -> CrawlCursor:
    """The first page, one read again from the beginning, or one asked for right behind the last row."""
    if not page.ids:
        return cursor.but(empties=cursor.empties + 1)
    unsure = asked_at > 0 and count != cursor.counted
    tail = (*cursor.tail, *page.ids) if asked_at > 0 else page.ids
    return cursor.but(
        offset=asked_at + page.fetched,
        tail=tuple(tail[-OVERLAP:]),
        shifts=cursor.shifts + unsure,
        misses=0,
        empties=0,
    )


def crawl_ended(cursor: CrawlCursor, count: int | None) -> bool:
    """A short page is not the end. The end is where nothing new came and the real count is reached, or nothing new twice."""
    return cursor.empties >= 2 or (cursor.empties == 1 and count is not None and count <= cursor.offset)


def is_clean(cursor: CrawlCursor, count: int | None, stones: int) -> bool:
    """Whether the walk saw exactly what was there: so many different stones as were counted before and after.

    Rows that changed places between two pages leave the number of rows as it was, and one of them was never shown: only
    different stones count.
    """
    seen = stones + len(cursor.edge)
    return cursor.shifts == 0 and seen == cursor.offset == cursor.counted == count


def must_split(cursor: CrawlCursor, params: IngestParams, count: int | None) -> bool:
    """A partition that turns out far larger than planned is cut while it runs."""
    return count is not None and count - cursor.offset > params.page_size and _may_be_cut(cursor, params)


def _may_be_cut(cursor: CrawlCursor, params: IngestParams) -> bool:
    wide = cursor.high - cursor.low > 1 and cursor.cuts < MOST_CUTS
    return wide and cursor.offset > 2 * params.partition_records


def is_endless(cursor: CrawlCursor, count: int | None) -> bool:
    """An upstream whose pages never end, although it counts few records."""
    return count is not None and _walked_too_far(cursor, count)


def _walked_too_far(cursor: CrawlCursor, count: int) -> bool:
    return cursor.offset > 2 * count + SPARE_ROWS


def is_spent(cursor: CrawlCursor) -> bool:
    """Whether the walk received so much more than was counted when it began that it only runs after its list."""
    return cursor.received > MOST_ROUNDS * (cursor.counted or 0) + 2 * SPARE_ROWS


def halves(cursor: CrawlCursor, walked: Walked) -> tuple[CrawlCursor, CrawlCursor]:
    """The two partitions that a cut one becomes. Both lists are in the order of the whole one, so what it has walked
    through is how each of them begins; if that is in doubt, a half begins at its start.
    """
    middle = split_point(cursor.low, cursor.high)
    whole = CrawlCursor(low=cursor.low, high=cursor.high, limit=cursor.limit, crawl=cursor.crawl, cuts=cursor.cuts + 1)
    lower, upper = whole.but(high=middle), whole.but(low=middle)
    if cursor.shifts or cursor.empties or walked.stones + len(cursor.edge) != cursor.offset:
        return lower, upper
    price = {each: walked.prices.get(each, cursor.high * 100) for each in cursor.tail}
    return (
        _begun(
            lower, walked.below, [each for each in cursor.tail if price[each] <= middle * 100], map(mark, walked.at)
        ),
        _begun(
            upper,
            walked.above + len(cursor.edge),
            [each for each in cursor.tail if price[each] >= middle * 100],
            cursor.edge,
        ),
    )


def _begun(half: CrawlCursor, offset: int, tail: Sequence[str], edge: Iterable[str]) -> CrawlCursor:
    marks = tuple(edge)
    return half.but(offset=offset, tail=tuple(tail), edge=marks) if tail and len(marks) <= MOST_EDGE else half


# --- audit ------------------------------------------------------------------------------------------------------------


def recounted(cursor: AuditCursor, count: int) -> AuditCursor:
    """A partition drifted if its crawl was not clean, or if its count has changed since."""
    (low, high, crawl, counted), *rest = cursor.todo
    drifted = cursor.drifted if count == counted else [*cursor.drifted, (low, high, crawl)]
    return AuditCursor(todo=rest, drifted=drifted)


# --- the run as a whole -----------------------------------------------------------------------------------------------


def settle(run: Run, lanes: Sequence[Lane]) -> Settlement:
    """Plan, then crawl, then audit (and crawl again what drifted, a bounded number of times), then consolidate once."""
    params = IngestParams.model_validate(dict(run.params))
    held = {lane.key: lane for lane in lanes if lane.holds_run}
    if held["plan"].status is not LaneStatus.DONE:
        return _failed("the catalogue could not be divided into partitions", [held["plan"]])
    parts = latest_crawls(held.values())
    if (problem := broken_policy(params, parts)) is not None:
        return Ending(RunStatus.FAILED, "partitions_failed", problem)
    consolidation = held.get(f"consolidate:{run.epoch}")
    if consolidation is not None:
        return _ended(consolidation, parts)
    audits = _audits(run.epoch, held.values())
    if not audits:
        return NextPhase(audit_lanes(run.epoch, 1, parts))
    return _after_audit(run, params, list(held.values()), audits)


def _after_audit(run: Run, params: IngestParams, lanes: Sequence[Lane], audits: Sequence[Sequence[Lane]]) -> Settlement:
    parts = latest_crawls(lanes)
    last = audits[-1]
    if any(lane.status is not LaneStatus.DONE for lane in last):
        return _failed("the partitions could not be counted again", last)
    drifted = {tuple(each) for lane in last for each in lane.cursor["drifted"]}
    again = [lane for lane in parts if _crawl(lane) in drifted]
    if again and len(audits) <= params.recrawls:
        return NextPhase([_crawl_again(lane, params.page_size) for lane in again])
    if drifted and not again:
        return NextPhase(audit_lanes(run.epoch, len(audits) + 1, parts))
    complete = not drifted and all(lane.status is LaneStatus.DONE for lane in parts)
    cursor = ConsolidateCursor(complete=complete, drops=complete and any(map(_leaves_old_rows, lanes)))
    return NextPhase([NewLane(key=f"consolidate:{run.epoch}", cursor=cursor.to_json())])


def latest_crawls(lanes: Iterable[Lane]) -> list[Lane]:
    """The last crawl of each partition, without partitions that were cut into others."""
    latest: dict[tuple[int, int], Lane] = {}
    for lane in sorted((each for each in lanes if each.key.startswith("part:")), key=lambda each: _crawl(each)[2]):
        low, high, _ = _crawl(lane)
        latest[low, high] = lane
    return [latest[each] for each in sorted(latest) if not latest[each].cursor["split"]]


def _crawl(lane: Lane) -> tuple[int, int, int]:
    return lane.cursor["low"], lane.cursor["high"], lane.cursor["crawl"]


def _crawl_again(lane: Lane, page_size: int) -> NewLane:
    low, high, crawl = _crawl(lane)
    return crawl_lane(
        CrawlCursor(low=low, high=high, limit=page_size, crawl=crawl + 1, cuts=lane.cursor.get("cuts", 0))
    )


def _leaves_old_rows(lane: Lane) -> bool:
    """Whether rows may have been left behind that this crawl's successor, or its second beginning, did not see."""
    cursor = lane.cursor
    return lane.key.startswith("part:") and (cursor["crawl"] > 1 or cursor["split"] or cursor.get("began", 0) > 0)


def _audits(epoch: int, lanes: Iterable[Lane]) -> list[list[Lane]]:
    """The lanes of each audit of this epoch, in order."""
    rounds: dict[int, list[Lane]] = {}
    for lane in lanes:
        if lane.key.startswith(f"audit:{epoch}."):
            rounds.setdefault(int(lane.key.split(".")[1]), []).append(lane)
    return [rounds[each] for each in sorted(rounds)]


def broken_policy(params: IngestParams, parts: Sequence[Lane]) -> Problem | None:
    """Why the failed partitions are too many for the run to go on, if they are."""
    failed = [lane for lane in parts if lane.status is not LaneStatus.DONE]
    if not failed:
        return None
    match params.policy:
        case AllPartitions():
            return Problem("partitions_failed", f"{len(failed)} of {len(parts)} partitions failed {_why(failed)}")
        case AtLeast(percent=percent):
            reached = 100 * (len(parts) - len(failed)) / len(parts)
            too_few = f"{reached:.1f} % of the partitions succeeded, {percent:g} % are needed; failed {_why(failed)}"
            return Problem("too_few_partitions", too_few) if reached < percent else None
        case Critical(prices=critical):
            hit = [lane for lane in failed if any(lane.cursor["low"] <= p < lane.cursor["high"] for p in critical)]
            return Problem("critical_partitions_failed", f"critical partitions failed {_why(hit)}") if hit else None
        case _:
            assert_never(params.policy)


def audit_lanes(epoch: int, audit: int, parts: Sequence[Lane]) -> list[NewLane]:
    """Every partition is counted in every audit: a stone may have moved into one that was in order before."""
    todo = [
        (*_crawl(lane), lane.cursor["counted"] if lane.cursor["clean"] else None)
        for lane in parts
        if lane.status is LaneStatus.DONE
    ]
    shares = [todo[at : at + AUDIT_SHARE] for at in range(0, len(todo), AUDIT_SHARE)] or [[]]
    return [
        NewLane(key=f"audit:{epoch}.{audit}.{share}", cursor=AuditCursor(todo=each).to_json())
        for share, each in enumerate(shares)
    ]


def _ended(consolidation: Lane, parts: Sequence[Lane]) -> Ending:
    if consolidation.status is not LaneStatus.DONE:
        return _failed("the crawled rows could not be consolidated", [consolidation])
    if any(lane.status is not LaneStatus.DONE for lane in parts):
        return Ending(RunStatus.SUCCEEDED, "partial")
    return Ending(RunStatus.SUCCEEDED, "complete" if consolidation.cursor["complete"] else "drifted")


def _failed(what: str, lanes: Sequence[Lane]) -> Ending:
    why = next(iter(_causes(lanes)), "no reason was noted")
    return Ending(RunStatus.FAILED, "failed", Problem("phase_failed", f"{what}: {why}"))


def _why(failed: Sequence[Lane]) -> str:
    """Which partitions they are, as people name them, and what they failed of."""
    named = [f"${lane.cursor['low']:,}\N{EN DASH}${lane.cursor['high']:,}" for lane in failed[:5]]
    which = ", ".join([*named, *(["\N{HORIZONTAL ELLIPSIS}"] if len(failed) > 5 else [])])
    first, *others = _causes(failed) or ["no reason was noted"]
    more = f" (and {len(others)} other causes)" if others else ""
    return f"({which}): {first}{more}"


def _causes(lanes: Sequence[Lane]) -> list[str]:
    """Each reason once, the most frequent first."""
    said = Counter((lane.last_error or {}).get("message") for lane in lanes if lane.status is not LaneStatus.DONE)
    return [reason for reason, _ in said.most_common() if reason]
