"""The decisions of saved searches. Pure: no clock, no database, no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from shared.kernel.errors import Transient
from shared.search.model import CLIENTS, DAY, PAGE_SIZE, Job, Page, SearchConfig, Stop, Walk, Window

FIRST_WAIT = timedelta(minutes=15)
LONGEST_WAIT = timedelta(hours=6)
EVERYTHING = 0  # the bucket without a bound
SPARE_PAGES = 10  # beyond the cap, for finding a place again


# --- windows


def local_midnight(day: date, zone: str) -> datetime:
    """When a day begins there. Where the clocks change at midnight, the first of its moments."""
    return datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC)


def head_window(now: datetime, watermark: datetime | None, config: SearchConfig) -> Window:
    """What is new, and as much before it as late data needs. After an outage that is all of the outage too."""
    return Window((now if watermark is None else watermark) - config.overlap, now)


def seed_window(cursor: datetime, floor: datetime, zone: str, config: SearchConfig) -> Window | None:
    """The next window back, cut where days begin at the client; None: history is complete."""
    if cursor <= floor:
        return None
    last = (cursor.astimezone(ZoneInfo(zone)) - timedelta(microseconds=1)).date()
    return Window(max(floor, local_midnight(last - timedelta(days=config.seed_days - 1), zone)), cursor)


def bucket_for(client: str, lo: datetime, now: datetime) -> int:
    """The smallest of the client's buckets that reaches back to `lo`, in days; 0: only everything does."""
    days = (now - lo) / DAY
    return next((each for each in CLIENTS[client].buckets if each >= days), EVERYTHING)


# --- a walk through the pages of one window


@dataclass(frozen=True, slots=True)
class Step:
    """Where a page leads. `stop`: the execution ends here; None: the next page of `walk` follows."""

    walk: Walk
    stop: Stop | None = None


def before_page(walk: Walk, bucket: int) -> Walk:
    """Totals of different buckets cannot be compared. The order is the same: newest first."""
    return walk if walk.bucket == bucket else walk.but(bucket=bucket, total=None)


def after_page(job: Job, page: Page) -> Step:
    """`job.pages` and `job.offers` count this page already."""
    walk, times = job.walk, [offer.at for offer in page.offers]
    if page.mark and page.mark == walk.mark:
        raise bad_answer(f"Page {walk.page} is the page before it again.")
    newest = max(times, default=None)
    if not walk.aligned and not _follows(walk, newest):
        return _or_capped(job, _back(walk, 2**walk.backs))
    if walk.total is not None and page.total < walk.total and walk.page > 1 and walk.aligned:
        # Offers have gone, so later ones moved up: some may have slipped past between two pages.
        return _or_capped(job, _back(walk, math.ceil((walk.total - page.total) / page.size), total=page.total))
    here = walk.but(aligned=True, total=page.total, mark=page.mark, reached=_reached(walk, times), backs=0)
    if (page.is_last and not _overfull(walk.page, page)) or (
        newest is not None and newest < walk.lo and _in_order(times)
    ):
        return Step(here, Stop.EXHAUSTED)
    return _or_capped(job, here.but(page=walk.page + 1))


def _overfull(number: int, page: Page) -> bool:
    """A full page beyond what is announced: whoever counts like that does not know which page is the last."""
    held = len(page.offers) + len(page.bad)
    return held >= page.size and (number - 1) * page.size + held > page.total


def _in_order(times: Sequence[datetime]) -> bool:
    """Newest first, or nearly so. A client that sorts by anything else has newer ones on any later page."""
    return all(later <= earlier + DAY for earlier, later in pairwise(times))


def _reached(walk: Walk, times: Sequence[datetime]) -> datetime | None:
    """How far back everything was read. A date that newer ones follow, on its page or the next, is nobody's place: after a
    pause, any page would seem to be the next one."""
    newest, oldest = None, None
    for at in reversed(times):
        newest = at if newest is None else max(newest, at)
        if newest - at <= DAY:
            oldest = at if oldest is None else min(oldest, at)
    if walk.reached is None or (newest is not None and newest - walk.reached > DAY):
        return oldest
    return walk.reached if oldest is None else min(oldest, walk.reached)


def _follows(walk: Walk, newest: datetime | None) -> bool:
    """Whether nothing can lie between this page and what was read before it. Of offers of one moment, any may."""
    if walk.page == 1 or newest is None:
        return walk.page == 1
    return newest >= walk.hi if walk.reached is None else newest > walk.reached


def _back(walk: Walk, pages: int, total: int | None = None) -> Walk:
    page = max(1, walk.page - max(1, pages))
    return walk.but(page=page, aligned=False, mark="", backs=min(walk.backs + 1, 10), total=total)


def _or_capped(job: Job, walk: Walk) -> Step:
    """A cap ends an execution once it has come further than the one before it: none is spent on finding its place alone.
    An upstream that never lets it find its place ends it too."""
    known = 0 if walk.began_at is None else 1  # the page that it began with
    capped = job.pages - known >= job.max_pages or job.offers - known * PAGE_SIZE >= job.max_offers
    advanced = walk.reached is not None and (walk.began_at is None or walk.reached < walk.began_at)
    lost = job.pages >= 2 * job.max_pages + SPARE_PAGES
    return Step(walk, Stop.CAP if lost or (capped and advanced) else None)


def again(walk: Walk) -> Walk:
    """The walk as it is resumed: pages have moved meanwhile, so it begins with one that it knows, and finds its place."""
    page = max(1, walk.page - 1)
    return walk.but(page=page, aligned=False, total=None, mark="", backs=0, began_at=walk.reached)


def check_page(page: Page, number: int) -> None:
    """What cannot be true is not believed: an error, never the end of a window."""
    held = len(page.offers) + len(page.bad)
    if not held and (number - 1) * page.size < page.total:
        raise bad_answer(f"Page {number} is empty, though {page.total} offers are announced.")
    if len(page.bad) >= 3 and not page.offers:
        raise bad_answer(
            f"None of the {held} records of page {number} is an offer as we know them: {page.bad[0].problem}"
        )


def bad_answer(message: str) -> Transient:
    return Transient(message, "bad_answer")


# --- retries and what follows


def may_retry(job: Job, attempts: int, config: SearchConfig) -> bool:
    """One budget for all pages of an execution; `attempts`: of this page, so far."""
    return job.retries + attempts < config.retries


def wait_after_failures(failures: int) -> timedelta:
    """A search that keeps failing is tried more seldom, and never given up."""
    return min(LONGEST_WAIT, FIRST_WAIT * (1 << min(max(failures - 1, 0), 10)))


def pause_s(asked_s: float | None, config: SearchConfig) -> float:
    """What the client asks for or our own rule, whichever is longer."""
    usual = float(config.rate_limit_pause_s)
    return usual if asked_s is None or not math.isfinite(asked_s) else max(usual, asked_s)


def estimate_pages(window: Window, now: datetime, per_day: float, client: str) -> tuple[int, int]:
    """Offers and requests that a backfill will take, by what was seen per day so far: newer ones are paged past first."""
    days = (window.hi - window.lo) / DAY
    bucket = bucket_for(client, window.lo, now)
    behind = (now - window.lo) / DAY if bucket == EVERYTHING else min((now - window.lo) / DAY, bucket)
    offers = math.ceil(days * per_day)
    return offers, max(1, math.ceil(behind * per_day / PAGE_SIZE))


# --- the night


def night_of(now: datetime, opens: time, closes: time, zone: str) -> tuple[date, datetime, datetime]:
    """The night window that is open or comes next: its local date, when it opens and when it closes.

    A time that the clocks skip comes as much later as they skip; one that they repeat is its first. A window that closes
    no later than it opens closes on the next day. One that would be over before it opens, because the clocks skip its
    opening and not its end, is open as long as on other nights.
    """
    day, over = now.astimezone(ZoneInfo(zone)).date(), DAY if closes <= opens else timedelta()
    for each in (day - DAY, day, day + DAY):
        begins, ends = _instant(each, opens, zone), _instant(each + over, closes, zone)
        if ends <= begins:
            ends = begins + (datetime.combine(each + over, closes) - datetime.combine(each, opens))
        if now < ends:
            return each, begins, ends
    raise AssertionError("a day has no end")  # pragma: no cover


def _instant(day: date, at: time, zone: str) -> datetime:
    return datetime.combine(day, at, ZoneInfo(zone)).astimezone(UTC)


def unexpected(error: Exception) -> Transient:
    return Transient(f"{type(error).__name__}: {error}"[:300], "unexpected")
