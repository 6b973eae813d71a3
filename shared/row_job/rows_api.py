"""The rows of jobs over HTTP: the grid, what is pending, exports, and fixes of rows that failed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

import sqlalchemy as sa
from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Path, Query
from pydantic import Field

from shared.kernel.api import runs
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import BY_CURSOR, Never, Problem, creates, desk, operation
from shared.kernel.api.shapes import Asked, Cursor, Done, Instant, Key, Limit, RunId, Told, fitting
from shared.kernel.auth import MANAGES, READS, STARTS
from shared.kernel.clock import stopwatch
from shared.kernel.errors import NotFound, Permanent, StepError
from shared.kernel.files import S3Files
from shared.kernel.log import logger
from shared.kernel.paging import USUAL_PAGE
from shared.row_job import control, fix, grid, sheets, store, table
from shared.row_job.adapters.s3 import S3Files as Uploads
from shared.row_job.fixing import columns_of_sheet, header_of, key_column
from shared.row_job.model import EXPORT, KEPT_DAYS, KIND, OPEN, UPLOADS, Format, JobType, Status, Which

router = Router()  # type: ignore[no-untyped-call]
PENDING_COUNT = "pending_count"  # a metric
FLAG = "PENDING_DASHBOARD_ENABLED"
SLOW_MS = 500.0
COUNT_KEPT_S = 45.0
MOST_COUNTS = 1_000
ALWAYS, NEVER = "-infinity", "infinity"
NO_RUN = UUID(int=0)
PAGES: dict[str, str | Never] = {"pageSize": "limit", "after": "cursor", "page": BY_CURSOR}
_counts: dict[tuple[Any, ...], tuple[Any, int]] = {}

RowNo = Annotated[int, Path(ge=1, le=2**53, description="The row's number in the file")]
ExportId = Annotated[UUID, Path(description="The export's id")]
Statuses = Annotated[list[Status] | None, Query(max_length=6, description="Only rows in these states")]
OpenStatuses = Annotated[
    list[Literal[Status.PENDING, Status.PROCESSING]] | None,
    Query(max_length=2, description="Only rows in these states"),
]
From = Annotated[Instant | None, Query(description="Only rows that changed at this time or later")]
Before = Annotated[Instant | None, Query(description="Only rows that changed before this time")]


class InputSummary(Told):
    """What a row is about, in a few words. All of what it was read from is told by the row itself."""

    title: str | None
    brand: str | None
    sku: str | None


class RowItem(Told):
    """A row, by its number in the file. `cells` are those of the list's `columns`, exactly as in its files."""

    row_no: int
    status: Status
    attempts: int
    last_error: str | None
    permanent: bool
    locked_by: UUID | None
    locked_at: datetime | None
    updated_at: datetime
    input_summary: InputSummary
    cells: list[str]


class RowItems(Told):
    """`live`: rows move in this list while they are worked on. One that does may come twice, or not on any page."""

    columns: list[str]
    items: list[RowItem]
    next: str | None
    live: bool


class Offer(Told):
    attempt: int
    strategy: str
    domain: str
    status: str
    ms: int
    at: datetime


class RowDetail(Told):
    """All of a row: what it was read from, what was found, and each search. `hash`: of what it was read from, for a fix."""

    row_no: int
    status: Status
    attempts: int
    last_error: str | None
    permanent: bool
    locked_by: UUID | None
    locked_at: datetime | None
    updated_at: datetime
    due_at: datetime
    hash: str
    input: dict[str, Any]
    normalized: dict[str, Any] | None
    result: dict[str, Any] | None
    searches: list[Offer]


class Progress(Told):
    """As it was counted last."""

    processed: int
    total: int
    counted_at: datetime


class PendingItem(Told):
    """`queue_state`: of its job. `tenant`: only for super admins who look at all of them."""

    job_id: UUID
    row_no: int
    status: Status
    attempts: int
    locked_by: UUID | None
    locked_at: datetime | None
    updated_at: datetime
    job_type: str
    user_id: str | None
    input_summary: InputSummary
    job_name: str
    queue_state: Literal["QUEUED", "RUNNING", "PAUSED", "DONE", "FAILED"]
    progress: Progress | None
    tenant_id: UUID | None = None
    tenant: str | None = None


class PendingCount(Told):
    """`more`: there are at least so many. `age_s`: how long ago they were counted."""

    count: int
    more: bool
    age_s: float


class Pending(Told):
    """The list is live: rows leave it while it is read. A page may be empty although `next` says that more follow."""

    items: list[PendingItem]
    next: str | None
    live: bool
    pending_count: PendingCount | None


class ExportFile(Told):
    name: str
    rows: int
    bytes: int
    url: str | None


class Export(Told):
    """`taken_at`: the rows are as they were then. Links are given out until `expires_at`."""

    id: UUID
    status: Literal["preparing", "ready", "failed", "canceled", "expired"]
    format: Format
    rows: Which
    created_by: str | None
    created_at: datetime
    taken_at: datetime | None
    total: int | None
    written: int
    files: list[ExportFile]
    error: dict[str, Any] | None
    expires_at: datetime | None


class Exports(Told):
    exports: list[Export]


class Resubmit(Asked):
    file_id: UUID


class RowFix(Asked):
    """`hash`: as the row told it. `input`: cells by column; those that are not named stay as they are."""

    row_no: Annotated[int, Field(ge=1, le=2**53)]
    hash: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    input: Annotated[
        dict[str, Annotated[str, Field(max_length=table.LONGEST_CELL)]], Field(min_length=1, max_length=1_000)
    ]


class Fixes(Asked):
    rows: Annotated[list[RowFix], Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=500)] = ""


class Unmatched(Told):
    row: int | str
    code: str
    message: str


class Fixed(Told):
    """How many rows are worked on again, how many were not changed, and what did not match."""

    fixed: int
    unchanged: int
    unmatched: list[Unmatched]


class FixedFile(Told):
    """What became of a file of fixed rows. `examples`: of those that did not match, up to about a hundred."""

    file_id: UUID
    name: str
    created_by: str | None
    created_at: datetime
    finished_at: datetime | None
    fixed: int
    unchanged: int
    unmatched: int
    examples: list[Unmatched]


class FixedFiles(Told):
    fixes: list[FixedFile]


# The grid


@operation(
    router,
    "GET",
    "/row-jobs/<run_id>/items",
    READS,
    tag="row jobs",
    elsewhere={**PAGES, "status": "statuses"},
)
def list_row_items(
    run_id: RunId,
    statuses: Statuses = None,
    updated_from: From = None,
    updated_before: Before = None,
    sort: Annotated[
        Literal["updated_at", "-updated_at", "row_no", ""],
        Query(description="`row_no`: the order of the file; not with filters. Empty: by `updated_at`"),
    ] = "updated_at",
    limit: Limit = USUAL_PAGE,
    cursor: Cursor = None,
) -> RowItems:
    """The rows of a job, a page at a time: those that changed longest ago first, unless `sort` says otherwise."""
    here = desk(router)
    wanted, sort = sorted(set(statuses or Status)), sort or "updated_at"
    asked = {"run_id": str(run_id), "statuses": wanted, "from": updated_from, "before": updated_before, "sort": sort}
    pager = here.pager("row_items", asked)
    after = pager.place(cursor)
    if sort == "row_no" and (statuses or updated_from or updated_before):
        raise Problem(422, "bad_sort", "Rows in the order of the file can't be filtered. Sort by updated_at.")
    _of_job(here, run_id)
    # An end that no row can reach: the first page needs no statement of its own.
    at, row_no = after or ((ALWAYS, 0) if sort != "-updated_at" else (NEVER, 0))
    params = {"run_id": run_id, "after_row": int(row_no), "most": limit + 1}
    if sort == "row_no":
        rows = _listed(here, "row_items", store.ITEMS_IN_ORDER, params)
    else:
        params |= {"statuses": wanted, "after_at": at, **_between(updated_from, updated_before)}
        rows = _listed(here, "row_items", store.ITEMS[sort], params)
    items, last = _page(rows, limit)
    more = None if last is None else pager.cursor([last["updated_at"].isoformat(), last["row_no"]])
    return RowItems(columns=list(grid.HEADERS), items=items, next=more, live=sort != "row_no")


def _page(rows: Sequence[Mapping[str, Any]], limit: int) -> tuple[list[RowItem], Mapping[str, Any] | None]:
    """As many rows as an answer may hold, and the last of them if others follow."""
    items = fitting(_row_item(row) for row in rows[:limit])
    return items, rows[len(items) - 1] if len(rows) > len(items) else None


def _row_item(row: Mapping[str, Any]) -> RowItem:
    told = {name: row[name] for name in RowItem.model_fields if name in row and name != "cells"}
    return RowItem(**told, input_summary=_summary(row), cells=grid.encode(row["cells"], grid.HEADERS))


def _summary(row: Mapping[str, Any]) -> InputSummary:
    return InputSummary(title=row["title"], brand=row["brand"], sku=row["sku"])


def _between(first: datetime | None, before: datetime | None) -> dict[str, str]:
    return {
        "from_at": ALWAYS if first is None else first.isoformat(),
        "before_at": NEVER if before is None else before.isoformat(),
    }


def _listed(here: Desk, name: str, statement: sa.TextClause, params: Mapping[str, Any]) -> list[Any]:
    """The rows of a page; where it begins and ends is logged, and how long it took."""
    elapsed = stopwatch()
    rows = here.all(statement, **params)
    ms = elapsed() * 1000
    ends = [f"{row['updated_at'].isoformat()}|{row['row_no']}" for row in (rows[:1] + rows[-1:])]
    told = {"list": name, "rows": len(rows), "ms": round(ms, 1), "first": ends[:1], "last": ends[-1:]}
    told["items_sec"] = round(len(rows) / max(ms / 1000, 0.001))
    if ms >= SLOW_MS:
        logger.warning("a page of a list was slow", extra=told)
    else:
        logger.info("a page of a list", extra=told)
    return rows


@operation(router, "GET", "/row-jobs/<run_id>/items/<row_no>", READS, tag="row jobs")
def get_row_item(run_id: RunId, row_no: RowNo) -> RowDetail:
    """All of a row: what it was read from, what was found, and each search for it."""
    here = desk(router)
    _of_job(here, run_id)
    row = here.one(store.ITEM, run_id=run_id, row_no=row_no)
    if row is None:
        raise NotFound
    searches = here.all(store.SEARCHES, run_id=run_id, row_no=row_no)
    return RowDetail(**row, searches=[Offer(**each) for each in searches])


# What is pending


@operation(
    router,
    "GET",
    "/pending",
    READS,
    tag="row jobs",
    refuses=[403],
    elsewhere={**PAGES, "userId": "user_id", "jobType": "job_type", "jobId": "job_id"},
)
def list_pending(
    statuses: OpenStatuses = None,
    user_id: Annotated[Literal["me", "all"], Query(description="`all`: everybody's in the tenant, for admins")] = "me",
    tenants: Annotated[
        Literal["mine", "all"], Query(description="`all`: of every tenant, for super admins, with `user_id=all`")
    ] = "mine",
    job_type: Annotated[JobType | None, Query(description="Only rows of jobs of this type")] = None,
    job_id: Annotated[UUID | None, Query(description="Only rows of this job")] = None,
    updated_from: From = None,
    updated_before: Before = None,
    limit: Limit = USUAL_PAGE,
    cursor: Cursor = None,
) -> Pending:
    """Rows of all jobs that wait or are being worked on: those that changed longest ago first."""
    if off := pages_off(os.environ):
        raise Problem(404, "pending_off", " ".join(off.values()))
    here = desk(router)
    wanted: list[str] = sorted(set(statuses or OPEN))
    types = [job_type] if job_type else list(JobType)
    asked = {
        "statuses": wanted, "types": types, "user_id": user_id, "tenants": tenants, "job_id": job_id,
        "from": updated_from, "before": updated_before, "who": here.principal.actor,
    }  # fmt: skip
    pager = here.pager("pending", asked)
    at, run_id, row_no = pager.place(cursor) or (ALWAYS, NO_RUN, 0)
    params = {
        "statuses": wanted, "types": types, "after_at": at, "after_run": run_id, "after_row": int(row_no),
        **_between(updated_from, updated_before), "most": limit + 1,
    }  # fmt: skip
    rows = _pending(here, user_id, tenants, job_id, params)
    page, last = rows[:limit], rows[limit - 1] if len(rows) > limit else None
    # Rows of a job that was deleted are still being taken away: they are passed over here, so that no page searches for others.
    items = [_pending_item(row) for row in page if not row["gone"]]
    more = None if last is None else pager.cursor([last["updated_at"].isoformat(), str(last["run_id"]), last["row_no"]])
    count = None if tenants == "all" or job_id else _pending_count(here, user_id, wanted, types)
    return Pending(items=items, next=more, live=True, pending_count=count)


def pages_off(env: Mapping[str, str]) -> dict[str, str]:
    """The page of the console that isn't there without the flag, and why: it says what the API says."""
    if env.get(FLAG, "").lower() in ("true", "1"):
        return {}
    how = f"deploy with PendingDashboardEnabled=true ({FLAG})"
    return {f"{KIND}/pending": f"The list of pending rows is turned off. To turn it on, {how}."}


def _pending(
    here: Desk, user_id: str, tenants: str, job_id: UUID | None, params: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """One statement for each scope, and each needs its right. Nobody's scope follows from something that is missing."""
    if tenants == "all":
        if not here.principal.is_super or user_id != "all":
            raise Problem(403, "forbidden", "Only super admins see other tenants, with user_id=all.")
        if job_id is not None:
            raise Problem(422, "bad_scope", "job_id belongs to one tenant.")
        return _listed(
            here,
            "pending",
            store.PENDING_OF_ALL_TENANTS,
            {**params, "subject": here.principal.actor.removeprefix("user:")},
        )
    if user_id == "all":
        if not here.principal.may(MANAGES):
            raise Problem(403, "forbidden", "Only admins can see everyone's pending rows.")
        if job_id is not None:
            return _listed(here, "pending", store.PENDING_OF_JOB, {**params, "job_id": job_id})
        return _listed(here, "pending", store.PENDING_OF_TENANT, params)
    mine = {**params, "user_id": here.principal.actor}
    if job_id is not None:
        return _listed(here, "pending", store.PENDING_MINE_OF_JOB, {**mine, "job_id": job_id})
    return _listed(here, "pending", store.PENDING_MINE, mine)


def _pending_item(row: Mapping[str, Any]) -> PendingItem:
    told = {name: row[name] for name in PendingItem.model_fields if name in row}
    counts, progress = row["counts"], None
    if counts:
        processed = counts["total"] - counts["pending"] - counts["processing"]
        progress = Progress(processed=processed, total=counts["total"], counted_at=row["counted_at"])
    state = queue_state(row["run_status"], paused=row["paused"])
    return PendingItem(**told, job_id=row["run_id"], input_summary=_summary(row), queue_state=state, progress=progress)


def queue_state(status: str, *, paused: bool) -> Literal["QUEUED", "RUNNING", "PAUSED", "DONE", "FAILED"]:
    if status == "succeeded":
        return "DONE"
    if status in ("failed", "canceled"):
        return "FAILED"
    return "PAUSED" if paused else "QUEUED" if status == "queued" else "RUNNING"


def _pending_count(here: Desk, user_id: str, statuses: Sequence[str], types: Sequence[str]) -> PendingCount:
    """Counted at most every 45 seconds by a process, and never beyond 10,000."""
    mine = {"user_id": here.principal.actor} if user_id == "me" else {}
    key = (here.tenant_id, mine.get("user_id"), tuple(statuses), tuple(types))
    age, n = _counts.get(key, (None, 0))
    if age is None or age() > COUNT_KEPT_S:
        row = here.one(store.COUNT_MINE if mine else store.COUNT_OF_TENANT, statuses=statuses, types=types, **mine)
        assert row is not None
        age, n = stopwatch(), int(row["n"])
        if len(_counts) >= MOST_COUNTS:
            _counts.clear()
        _counts[key] = (age, n)
        here.ports.meter.count(PENDING_COUNT, min(n, store.MOST_COUNTED))
    return PendingCount(count=min(n, store.MOST_COUNTED), more=n > store.MOST_COUNTED, age_s=round(age(), 1))


# Exports


@operation(
    router,
    "POST",
    "/row-jobs/<run_id>/export",
    READS,
    tag="row jobs",
    answers=creates(runs.Started, or_finds=True),
    refuses=[409, 429],
)
def export_row_job(
    run_id: RunId,
    format: Annotated[Format, Query(description="What kind of file")] = Format.CSV,  # noqa: A002 - the name of the parameter
    rows: Annotated[
        Which, Query(description="`failed`: rows that failed, with what was wrong, to be fixed")
    ] = Which.ALL,
    idempotency_key: Key = None,
) -> Response[str]:
    """Write the rows of a job to a file, as they are at this time. Ask for the export until it is ready."""
    params = {EXPORT: str(run_id), "format": format, "rows": rows}
    request = f"export:{run_id}:{format}:{rows}".encode()
    return runs.start(desk(router), KIND, params, None, idempotency_key, request)


@operation(router, "GET", "/row-jobs/<run_id>/exports", READS, tag="row jobs")
def list_row_exports(run_id: RunId, limit: Limit = USUAL_PAGE) -> Exports:
    """The exports of a job, newest first."""
    here = desk(router)
    _of_job(here, run_id)
    found = here.all(store.LIST_EXPORTS, job_id=run_id, export_id=None, most=limit)
    return Exports(exports=[_export(row, linked=False) for row in found])


@operation(router, "GET", "/row-jobs/<run_id>/exports/<export_id>", READS, tag="row jobs")
def get_row_export(run_id: RunId, export_id: ExportId) -> Export:
    """An export: how far it is, and links to its files when it is ready."""
    row = desk(router).one(store.LIST_EXPORTS, job_id=run_id, export_id=export_id, most=1)
    if row is None:
        raise NotFound
    return _export(row, linked=True)


def _export(row: Mapping[str, Any], *, linked: bool) -> Export:
    status = {"succeeded": "ready", "failed": "failed", "canceled": "canceled"}.get(row["status"], "preparing")
    until = None if row["finished_at"] is None else row["finished_at"] + timedelta(days=KEPT_DAYS)
    left_s = 0 if until is None else int((until - row["now"]).total_seconds())
    if status == "ready" and left_s <= 0:
        status = "expired"
    files = row["files"] if status == "ready" else []
    names = [_name(row, number, len(files)) for number in range(1, len(files) + 1)]
    try:
        urls = [
            S3Files().link(each["key"], name, left_s) if linked else None
            for each, name in zip(files, names, strict=True)
        ]
    except StepError as error:
        raise Problem(503, "no_storage", str(error)) from None
    written = row["written"] if row["written"] is not None else (row["cursor"] or {}).get("written", 0)
    told = {name: row[name] for name in Export.model_fields if name in row}
    shown = [
        ExportFile(name=name, rows=each["rows"], bytes=each["bytes"], url=url)
        for each, name, url in zip(files, names, urls, strict=True)
    ]
    more = {"status": status, "total": row["upto"], "written": written, "files": shown, "expires_at": until}
    return Export(**{**told, **more})


def _name(row: Mapping[str, Any], number: int, of: int) -> str:
    """For the person's disk: what a header and every file system take."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", row["name"].rpartition(".")[0] or row["name"]).strip(".-")[:80] or "rows"
    what = "failed" if row["rows"] == Which.FAILED else "results"
    return f"{stem}-{what}{f'-{number}' if of > 1 else ''}.{row['format']}"


# Fixes


@operation(router, "POST", "/row-jobs/<run_id>/resubmit", STARTS, tag="row jobs", refuses=[409, 429])
def resubmit_row_job(run_id: RunId, asked: Annotated[Resubmit, Body()]) -> Done:
    """Bring fixed rows back: a file of failed rows that was downloaded, changed and uploaded. Only rows that match run again."""
    here = desk(router)
    _refuse_without_keys(here, asked.file_id)
    control.resubmit(here.ports, here.kinds[KIND], here.tenant_id, run_id, asked.file_id, here.by())
    return Done()


def _refuse_without_keys(here: Desk, file_id: UUID) -> None:
    """A file that cannot be one of ours is refused while its owner is there."""
    row = here.one(store.UPLOADED, file_id=file_id)
    if row is None or not row["arrived"]:
        return  # said where it is locked
    bucket = os.environ.get("BATON_BUCKET")
    if not bucket:
        raise Problem(503, "no_bucket", "This deployment has no bucket for uploads.")
    size = int(row["size"])
    try:
        fetch = partial(
            Uploads(bucket).read, UPLOADS.format(tenant_id=here.tenant_id, file_id=file_id), row["version_id"]
        )
        sample = fetch(0, min(size, table.SAMPLE_BYTES)) if size else b""
        is_sheet = sheets.is_one(sample)
        names = columns_of_sheet(fetch, size) if is_sheet else header_of(sample, whole=len(sample) >= size)[1]
        key_column(names)
    except table.BadFile as error:
        raise Problem(409, error.code, error.message) from None
    except Permanent as error:
        raise Problem(409, "not_readable", str(error)) from None
    except StepError as error:
        raise Problem(503, "no_storage", str(error)) from None


@operation(router, "GET", "/row-jobs/<run_id>/fixes", READS, tag="row jobs")
def list_row_fixes(run_id: RunId, limit: Limit = USUAL_PAGE) -> FixedFiles:
    """Files of fixed rows that were brought back, newest first: how many matched, and what did not."""
    here = desk(router)
    _of_job(here, run_id)
    return FixedFiles(fixes=[FixedFile(**row) for row in here.all(store.LIST_FIXES, run_id=run_id, most=limit)])


@operation(router, "POST", "/row-jobs/<run_id>/fix", STARTS, tag="row jobs", refuses=[409, 429])
def fix_row_items(run_id: RunId, asked: Annotated[Fixes, Body()]) -> Fixed:
    """Change what some rows were read from, and work on them again. Only rows that failed and are as they were told."""
    here = desk(router)
    fixes = [fix.Fix(each.row_no, each.hash, each.input) for each in asked.rows]
    judged = control.fix_rows(here.ports, here.kinds[KIND], here.tenant_id, run_id, fixes, here.by(asked.reason))
    unmatched = [Unmatched(**each) for each in judged.unmatched]
    return Fixed(fixed=len(judged.rows), unchanged=judged.unchanged, unmatched=unmatched)


def _of_job(here: Desk, run_id: UUID) -> None:
    if here.one(store.ACCOUNT, run_id=run_id) is None:
        raise NotFound
