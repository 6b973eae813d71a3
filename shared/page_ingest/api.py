"""Page ingestion over HTTP: start one with typed parameters, and watch its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Body, Query
from pydantic import Field

from shared.kernel.api import runs
from shared.kernel.api.frame import creates, desk, operation
from shared.kernel.api.shapes import Cursor, Key, Limit, RunId, Told
from shared.kernel.auth import READS, STARTS
from shared.kernel.errors import NotFound
from shared.kernel.paging import USUAL_PAGE
from shared.page_ingest import coverage, decide, store
from shared.page_ingest.coverage import Standing
from shared.page_ingest.model import KIND, IngestParams
from shared.page_ingest.reader.api import router


class StartIngestion(IngestParams):
    label: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class Heat(Told):
    """What an equal share of a crawl's steps did: `ms` is their mean, `outcome` the worst of theirs."""

    steps: int
    rows: int
    ms: int
    outcome: str


class Partition(Told):
    """One crawl of one price range, in whole dollars: low <= price < high. `split`: its halves took over.

    `pages_expected`: as many as it takes if nothing moves upstream. `heat`: its steps in order; null: not asked for.
    """

    key: str
    lane_id: UUID
    low: int
    high: int
    crawl: int
    status: Literal["active", "done", "failed", "canceled"]
    offset: int
    counted: int | None
    duplicates: int
    split: bool
    clean: bool
    stuck: bool
    attempts: int
    last_error: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime
    pages_expected: int | None
    heat: list[Heat] | None


class Partitions(Told):
    partitions: list[Partition]
    next: str | None


class Phase(Told):
    """The lanes of one phase as one, `lane_id` being the one to look at. `left`: what is still to do; null: nobody counts it."""

    lane_id: UUID
    status: Literal["active", "done", "failed", "canceled"]
    steps: int
    attempts: int
    last_error: dict[str, Any] | None
    updated_at: datetime
    left: int | None


class Ingestion(Told):
    """Of each price range its last crawl counts. `split`: partitions that were cut; `drifted`: those crawled again.

    `counted` is the upstream's count of what was begun; null: nothing was. `walked` includes duplicates.
    """

    id: UUID
    source: str
    low: int
    high: int
    planned: bool
    partitions: int
    done: int
    failed: int
    stuck: int
    split: int
    drifted: int
    counted: int | None
    walked: int
    duplicates: int
    plan: Phase | None
    audit: Phase | None
    consolidate: Phase | None


class CoveredDay(Told):
    """`partly`: some of the band's prices stand better that day."""

    day: date
    state: Standing
    partly: bool


class Band(Told):
    """Prices that stand alike, in whole dollars: low <= price < high. Days without a run are left out.

    `complete_at`: when the run started that was the last to read all of it completely; null: none did in these days. `latest_run`:
    the newest one that asked for any of it.
    """

    low: int
    high: int
    complete_at: datetime | None
    latest_run: UUID | None
    latest_state: Standing
    days: list[CoveredDay]


class PriceRange(Told):
    low: int
    high: int


class Coverage(Told):
    """By the day, in UTC, on which a run started. `gaps`: prices that no run of these days has read completely."""

    since: date
    until: date
    bands: list[Band]
    gaps: list[PriceRange]


@operation(
    router, "POST", "/page-ingestions", STARTS, tag="page ingestion", answers=creates(runs.Started), refuses=[429]
)
def start_page_ingestion(asked: Annotated[StartIngestion, Body()], idempotency_key: Key = None) -> Response[str]:
    """Start to ingest a price range of a catalogue."""
    params = asked.model_dump(mode="json", exclude_none=True, exclude={"label"})
    request = b"page-ingestion:" + asked.model_dump_json().encode()
    return runs.start(desk(router), KIND, params, asked.label, idempotency_key, request)


@operation(router, "GET", "/page-ingestions/<run_id>", READS, tag="page ingestion")
def get_page_ingestion(run_id: RunId) -> Ingestion:
    """An ingestion as a whole: how many partitions are done, and how far its plan, audit and consolidation are."""
    row = desk(router).one(store.SUMMARY, run_id=run_id)
    if row is None:
        raise NotFound
    told = {name: row[name] for name in Ingestion.model_fields if name in row}
    told |= {name: _phase(lanes) for name, lanes in latest_phases(row["phases"]).items()}
    return Ingestion(**told, planned=any(lane["planned"] for lane in row["phases"]))


def latest_phases(lanes: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The lanes of the plan, of the last audit of the last epoch, and of the last consolidation."""
    found: dict[str, dict[tuple[int, ...], list[Mapping[str, Any]]]] = {"plan": {}, "audit": {}, "consolidate": {}}
    for lane in lanes:
        name, _, place = lane["key"].partition(":")
        which = tuple(int(number) for number in place.split(".")[:2] if number)
        found[name].setdefault(which, []).append(lane)
    return {name: each[max(each)] if each else [] for name, each in found.items()}


def _phase(lanes: Sequence[Mapping[str, Any]]) -> Phase | None:
    """A phase goes on while any lane of it does, and has failed with any that has."""
    if not lanes:
        return None
    first = min(lanes, key=lambda lane: ("active", "failed", "canceled", "done").index(lane["status"]))
    is_done = first["status"] == "done"
    left = [0 if is_done else lane["left"] for lane in lanes]
    return Phase(
        lane_id=first["lane_id"],
        status=first["status"],
        steps=sum(lane["steps"] for lane in lanes),
        attempts=max(lane["attempts"] for lane in lanes),
        last_error=first["last_error"],
        updated_at=max(lane["updated_at"] for lane in lanes),
        left=None if None in left else sum(left),
    )


@operation(router, "GET", "/page-ingestions/<run_id>/partitions", READS, tag="page ingestion")
def list_partitions(
    run_id: RunId,
    heat: Annotated[int, Query(ge=0, le=60, description="In how many equal shares to show the steps of each")] = 0,
    limit: Limit = USUAL_PAGE,
    cursor: Cursor = None,
) -> Partitions:
    """The partitions of an ingestion by price, each with how far it is."""
    here = desk(router)
    if here.one(store.IS_INGESTION, run_id=run_id) is None:
        raise NotFound
    pager = here.pager("partitions", {"run_id": run_id})
    place = pager.place(cursor)
    params = {"run_id": run_id, "most": limit + 1, **({} if place is None else {"after_key": place[0]})}
    if heat:
        params["heat"] = heat
    rows = here.all(store.list_partitions(after=place is not None, with_heat=heat > 0), **params)
    page = [_partition(row) for row in rows[:limit]]
    return Partitions(partitions=page, next=pager.cursor([page[-1].key]) if len(rows) > limit else None)


def _partition(row: Mapping[str, Any]) -> Partition:
    counted, page_size = row["counted"], row["page_size"]
    pages = None if counted is None or page_size is None else decide.pages_expected(counted, page_size)
    told = {name: value for name, value in row.items() if name != "page_size"}
    return Partition(**told, pages_expected=pages)


@operation(router, "GET", "/page-ingestion-coverage", READS, tag="page ingestion")
def get_coverage(days: Annotated[int, Query(ge=1, le=90, description="Today and the days before it")] = 28) -> Coverage:
    """Which prices of the catalogue were read on which day, by the newest ingestions, and where the gaps are."""
    here = desk(router)
    rows = here.all(store.coverage(own=bool(here.own())), days=days, **here.own())
    today = rows[0]["today"].date()
    runs_ = [row for row in rows if row["run_id"] is not None]
    since = today - timedelta(days=days - 1)
    if len(runs_) == store.MOST_READINGS:  # of the oldest day there may be more
        since = min(today, runs_[-1]["created_at"].date() + timedelta(days=1))
    said = [each for row in runs_ for each in coverage.readings(row) if each.day >= since]
    found = coverage.bands(said)
    return Coverage(
        since=since,
        until=today,
        bands=[_band(each) for each in found],
        gaps=[PriceRange(low=low, high=high) for low, high in coverage.gaps(found)],
    )


def _band(band: coverage.Band) -> Band:
    days = [CoveredDay(day=day, state=cell.standing, partly=cell.partly) for day, cell in sorted(band.cells.items())]
    latest = band.latest
    return Band(
        low=band.low,
        high=band.high,
        complete_at=band.complete_at,
        latest_run=latest.run_id if latest else None,
        latest_state=latest.standing if latest else Standing.NOT_READ,
        days=days,
    )
