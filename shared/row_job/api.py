"""Row jobs over HTTP: a place to upload to, a look at the file, the job with its rows, and what can be done to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Path, Query
from pydantic import AliasChoices, BeforeValidator, Field

from shared.kernel import run as relay
from shared.kernel.api import runs
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Never, Problem, creates, desk, operation
from shared.kernel.api.shapes import Asked, Because, Done, Key, Limit, RunId, Told
from shared.kernel.auth import READS, STARTS
from shared.kernel.clock import new_id
from shared.kernel.db import jsonb
from shared.kernel.errors import NotFound, Permanent, StepError
from shared.kernel.paging import USUAL_PAGE
from shared.kernel.params import with_connection
from shared.row_job import control, images, sheets, store, table
from shared.row_job.adapters.s3 import LARGEST_UPLOAD, LINK_S, S3Files
from shared.row_job.fixing import new_line_of
from shared.row_job.model import (
    KIND,
    SCAN,
    TYPES,
    UPLOADS,
    UPSTREAM,
    JobType,
    Options,
    RowJobParams,
    Status,
    refuse_columns_of_images,
    type_of,
)
from shared.row_job.rows_api import queue_state

router = Router()  # type: ignore[no-untyped-call]
PREVIEWED = 200
FileId = Annotated[UUID, Path(description="The upload's id")]
ColumnOf = Annotated[str | None, Query(min_length=1, max_length=200, description="The column that holds it")]
Statuses = Annotated[list[Status], Field(max_length=6)]


class Upload(Options):
    """`hold`: the job is not started when the file arrives; look at the preview first, then start it."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    size: Annotated[int, Field(ge=1, le=LARGEST_UPLOAD)]
    hold: bool = False


class Place(Told):
    """Where to send the file: a form with these fields and the file as `file`, to this address, within an hour."""

    file_id: UUID
    url: str
    fields: dict[str, str]
    expires_in_s: int


class UploadState(Told):
    """An upload: whether the file has arrived, and its job if it has one."""

    file_id: UUID
    name: str
    size: int | None
    arrived: bool
    run_id: UUID | None


class PreviewRow(Told):
    row_no: int
    input: dict[str, Any]
    normalized: dict[str, str] | None
    problem: str | None


class Preview(Told):
    """How the file is read, and its first rows. `mapping`: which column is taken for what. `encoding`: `xlsx` for a spreadsheet."""

    job_type: JobType
    encoding: str
    delimiter: str
    columns: list[str]
    mapping: dict[str, str]
    rows: list[PreviewRow]
    problems: int


class StartRowJob(RowJobParams):
    label: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class ScanAsked(Options):
    """`s3`: files under the tenant's own prefix of the bucket. `ftp`: those of the server that the connection `server` names.
    `folder`: for local runs. The rest is for the jobs of what is found."""

    source: Literal["s3", "ftp", "folder"]
    server: Annotated[str, Field(min_length=1, max_length=100)] | None = None


class RowJob(Told):
    """`queue_state` says in one word how the job stands, `held_up` why no calls are made at the moment and what to do.
    Counters are as of `counted_at`: of a job with many rows they are some seconds old."""

    id: UUID
    name: str
    file_id: UUID
    user_id: str | None
    ip_address: str | None
    job_type: str
    queue_state: Literal["QUEUED", "RUNNING", "PAUSED", "DONE", "FAILED"]
    counted_at: datetime | None
    total_items: int
    processed_items: int
    failed_items: int
    pending: int
    processing: int
    done: int
    errors: int
    not_found: int
    skipped: int
    read_bytes: int
    size: int | None
    read_rows: int
    read_done: bool
    canary: int | None
    columns: list[str] | None
    last_heartbeat: datetime | None
    attempts: int | None
    last_error: dict[str, Any] | None
    held_up: str | None
    created_at: datetime
    finished_at: datetime | None


class KickedOff(Told):
    """How many lanes that waited look again now."""

    lanes: int


def _number(given: object) -> object:
    """`"2"` as the seed has it, where ids are text."""
    return int(given) if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 17 else given


RowNo = Annotated[int, BeforeValidator(_number), Field(ge=1, le=2**53)]


class ReprocessAsked(Asked):
    """`statuses`: only rows that ended so; without it, of a job those with errors and those not found, of named rows any.
    `permanent`: also rows that were refused for what is in them; without it, only those that are named."""

    scope: Literal["job", "items"] = "job"
    item_ids: Annotated[list[RowNo], Field(min_length=1, max_length=10_000)] | None = Field(
        default=None, validation_alias=AliasChoices("item_ids", "itemIds")
    )
    statuses: Statuses | None = None
    permanent: bool | None = None
    dry_run: bool = False
    reason: Annotated[str, Field(max_length=500)] = ""


class Reprocessed(Told):
    rows: int
    dry_run: bool


class PaceDecision(Told):
    domain: str
    at: datetime
    rate_before: float
    rate_after: float
    reason: str
    seen: dict[str, Any]


class PaceDecisions(Told):
    decisions: list[PaceDecision]


@operation(router, "POST", "/row-jobs/uploads", STARTS, tag="row jobs", answers=creates(Place))
def create_row_upload(asked: Annotated[Upload, Body()]) -> Response[str]:
    """A place to upload a file to: CSV, XLSX, an image, or a ZIP archive of images.

    When it arrives its job starts, unless `hold` is set.
    """
    here, file_id, files = desk(router), new_id(), _files()
    asked = asked.model_copy(update={"job_type": asked.job_type or type_of(asked.name) or JobType.CSV})
    refuse_columns_of_images(asked.job_type, asked.mapping)
    address = _source_ip()
    with here.begin() as (line, tx):
        asked = with_connection(tx, here.tenant_id, asked, UPSTREAM)
        options = asked.model_dump(mode="json", exclude_none=True, exclude={"name", "size", "hold"})
        line.run(
            store.ISSUE,
            {
                "file_id": file_id, "tenant_id": here.tenant_id, "name": asked.name, "options": jsonb(options),
                "hold": asked.hold, "created_by": here.principal.actor, "ip_address": address,
            },
        )  # fmt: skip
        here.audit(tx, "row_upload.create", f"file:{file_id}")
    given = files.place(UPLOADS.format(tenant_id=here.tenant_id, file_id=file_id), asked.size, content_type(asked))
    place = Place(file_id=file_id, url=given["url"], fields=given["fields"], expires_in_s=LINK_S)
    return Response(201, "application/json", place.model_dump_json())


def content_type(asked: Upload) -> str:
    known = TYPES[asked.job_type or JobType.CSV]
    return known.get(asked.name.lower().rpartition(".")[2], next(iter(known.values())))


@operation(router, "GET", "/row-jobs/uploads/<file_id>", READS, tag="row jobs")
def get_row_upload(file_id: FileId) -> UploadState:
    """An upload: whether the file has arrived."""
    row = desk(router).one(store.UPLOADED, file_id=file_id)
    if row is None:
        raise NotFound
    return UploadState(
        file_id=file_id, name=row["name"], size=row["size"], arrived=row["arrived"], run_id=row["run_id"]
    )


@operation(router, "GET", "/row-jobs/uploads/<file_id>/preview", READS, tag="row jobs", refuses=[409])
def preview_row_upload(
    file_id: FileId, title: ColumnOf = None, brand: ColumnOf = None, sku: ColumnOf = None
) -> Preview:
    """How an uploaded file would be read: its columns, what they are taken for, and its first 200 rows.

    `title`, `brand` and `sku` try another mapping; without them, it is the upload's own.
    """
    here = desk(router)
    row = here.one(store.UPLOADED, file_id=file_id)
    if row is None:
        raise NotFound
    tried = {name: column for name, column in (("title", title), ("brand", brand), ("sku", sku)) if column is not None}
    if not row["arrived"]:
        raise Problem(409, "not_uploaded", "The file hasn't been uploaded yet.")
    key = UPLOADS.format(tenant_id=here.tenant_id, file_id=file_id)
    size = int(row["size"])
    try:
        if row["options"].get("job_type") == JobType.IMAGE:
            refuse_columns_of_images(JobType.IMAGE, tried)
            return preview_of_images(partial(_files().read, key, row["version_id"]), size, row["name"])
        sample = _files().read(key, row["version_id"], 0, min(size, table.SAMPLE_BYTES)) if size else b""
        wanted = tried or row["options"].get("mapping")
        if sheets.is_one(sample):
            return preview_of_sheet(partial(_files().read, key, row["version_id"]), size, wanted)
        return preview_of(sample, size, wanted)
    except table.BadFile as error:
        raise Problem(409, error.code, error.message) from None
    except Permanent as error:
        raise Problem(409, "not_readable", str(error)) from None
    except StepError as error:
        raise Problem(503, "no_storage", str(error)) from None


def preview_of_images(fetch: images.Fetch, size: int, name: str) -> Preview:
    """As far as it is known without reading any image."""
    found = images.members(fetch, size, name)[:PREVIEWED]
    rows = [images.announced(number, member) for number, member in enumerate(found, 1)]
    shown = [
        PreviewRow(row_no=each.row_no, input=each.input, normalized=each.normalized, problem=each.problem)
        for each in rows
    ]
    problems = sum(each.problem is not None for each in rows)
    columns = ["name", "bytes"]
    return Preview(
        job_type=JobType.IMAGE, encoding="", delimiter="", columns=columns, mapping={"title": "name"}, rows=shown,
        problems=problems,
    )  # fmt: skip


def preview_of_sheet(fetch: images.Fetch, size: int, wanted: Mapping[str, str] | None) -> Preview:
    """As its CSV would be read."""
    lines = sheets.Sheet(fetch, size).first(PREVIEWED + 1)
    sample = table.BOM + b"".join(map(new_line_of, lines))
    return preview_of(sample, len(sample), wanted).model_copy(update={"encoding": "xlsx", "delimiter": ""})


def preview_of(sample: bytes, size: int, wanted: Mapping[str, str] | None) -> Preview:
    dialect = table.detect(sample)
    records, _ = table.records(sample[dialect.first :], dialect, PREVIEWED + 1, last=len(sample) >= size)
    if not records:
        raise table.BadFile("bad_header", "The first line is too long to hold the names of the columns.")
    names = table.columns(records[0], dialect)
    mapping = table.mapping_of(names, wanted)
    rows: list[table.Row] = []
    for record in records[1:]:
        row = table.row_of(len(rows) + 1, record, names, mapping, dialect)
        if row is not None:
            rows.append(row)
    shown = [
        PreviewRow(row_no=each.row_no, input=each.input, normalized=each.normalized, problem=each.problem)
        for each in rows
    ]
    return Preview(
        job_type=JobType.CSV, encoding=dialect.encoding, delimiter=dialect.delimiter, columns=names, mapping=mapping, rows=shown,
        problems=sum(each.problem is not None for each in rows),
    )  # fmt: skip


@operation(
    router,
    "POST",
    "/row-jobs",
    STARTS,
    tag="row jobs",
    answers=creates(runs.Started, or_finds=True),
    refuses=[409, 429],
)
def start_row_job(asked: Annotated[StartRowJob, Body()], idempotency_key: Key = None) -> Response[str]:
    """Start the job of an uploaded file. The same upload is the same job, however often it is started."""
    params = asked.model_dump(mode="json", exclude_none=True, exclude={"label"})
    request = b"row-job:" + asked.model_dump_json().encode()
    return runs.start(desk(router), KIND, params, asked.label, idempotency_key, request)


@operation(
    router,
    "POST",
    "/ingestion/scan",
    STARTS,
    tag="row jobs",
    answers=creates(runs.Started, or_finds=True),
    refuses=[409, 429],
)
def scan_for_files(asked: Annotated[ScanAsked, Body()], idempotency_key: Key = None) -> Response[str]:
    """Look where files wait, and take those that are as an earlier scan found them.

    Each becomes an upload with its own job; the same file is one job, however often it is seen.
    """
    if asked.source == "folder" and os.environ.get("BATON_STAGE") != "local":
        raise Problem(422, "no_inbox", "A folder can only be scanned where Baton runs on your own machine.")
    params = asked.model_dump(mode="json", exclude_none=True, exclude={"source"}) | {SCAN: asked.source}
    return runs.start(desk(router), KIND, params, None, idempotency_key, b"scan:" + asked.model_dump_json().encode())


@operation(router, "GET", "/row-jobs/<run_id>", READS, tag="row jobs")
def get_row_job(run_id: RunId) -> RowJob:
    """A row job: how far it has read its file, and how many of its rows are in which state."""
    row = desk(router).one(store.GET, run_id=run_id)
    if row is None:
        raise NotFound
    counts = row["counts"]
    told = {name: row[name] for name in RowJob.model_fields if name in row}
    told |= {name: counts[name] for name in ("pending", "processing", "done", "errors", "not_found", "skipped")}
    return RowJob(
        **told,
        queue_state=queue_state(row["status"], paused=row["paused"]),
        total_items=counts["total"],
        processed_items=counts["total"] - counts["pending"] - counts["processing"],
        failed_items=counts["errors"] + counts["not_found"],
        canary=row["process_upto"],
        last_error=row["error"],
    )


@operation(router, "GET", "/row-jobs/<run_id>/pace", READS, tag="row jobs")
def list_pace_decisions(run_id: RunId, limit: Limit = USUAL_PAGE) -> PaceDecisions:
    """How fast the provider was asked lately, newest first: each change of the rate, why, and what had been seen."""
    here = desk(router)
    row = here.one(store.ACCOUNT, run_id=run_id)
    if row is None:
        raise NotFound
    account = RowJobParams.model_validate(row["params"]).account
    rows = here.all(store.DECISIONS, account=account, most=limit)
    return PaceDecisions(decisions=[PaceDecision(**each) for each in rows])


@operation(
    router,
    "POST",
    "/row-jobs/<run_id>/kickoff",
    STARTS,
    tag="row jobs",
    refuses=[409],
    elsewhere={
        "durationMs": Never(
            "no_duration",
            "A job works by itself, in slices of BATON_ROWS_WORKER_TARGET_SLICE_MS. A kickoff only wakes what waits: leave it out.",
        )
    },
)
def kick_off_row_job(run_id: RunId, because: Annotated[Because, Body()]) -> KickedOff:
    """Let the lanes of a job that wait look again now. It never starts a second worker on the same rows."""
    here = desk(router)
    return KickedOff(lanes=control.kickoff(here.ports, here.tenant_id, run_id, here.by(because.reason)))


@operation(router, "POST", "/row-jobs/<run_id>/pause", STARTS, tag="row jobs", refuses=[409])
def pause_row_job(run_id: RunId, because: Annotated[Because, Body()]) -> Done:
    """Pause a job: the slices in hand end, and no other begins."""
    return runs.done(relay.pause_run, _of_job(run_id), run_id, because)


@operation(router, "POST", "/row-jobs/<run_id>/resume", STARTS, tag="row jobs", refuses=[409])
def resume_row_job(run_id: RunId, because: Annotated[Because, Body()]) -> Done:
    """Let a paused job go on."""
    return runs.done(relay.resume_run, _of_job(run_id), run_id, because)


@operation(router, "POST", "/row-jobs/<run_id>/promote", STARTS, tag="row jobs", refuses=[409])
def promote_row_job(run_id: RunId, because: Annotated[Because, Body()]) -> Done:
    """Work on all rows of a job that was held back at its canary."""
    return runs.done(control.promote, desk(router), run_id, because)


@operation(router, "POST", "/row-jobs/<run_id>/reprocess", STARTS, tag="row jobs", refuses=[409, 429])
def reprocess_row_job(run_id: RunId, asked: Annotated[ReprocessAsked, Body()]) -> Reprocessed:
    """Work on rows again, with fresh attempts: those that failed, or those that you name.

    Rows that were refused for what is in them are left out, unless you ask for them with `permanent`. With `dry_run` the rows are
    only counted.
    """
    if (asked.scope == "items") != (asked.item_ids is not None):
        raise Problem(422, "bad_scope", "`item_ids` belongs to the scope `items`, and to no other.")
    here = desk(router)
    wanted = control.Reprocess(
        row_nos=asked.item_ids, statuses=asked.statuses, permanent=asked.permanent, dry_run=asked.dry_run
    )
    rows = control.reprocess(here.ports, here.kinds[KIND], here.tenant_id, run_id, wanted, here.by(asked.reason))
    return Reprocessed(rows=rows, dry_run=asked.dry_run)


@operation(router, "DELETE", "/row-jobs/<run_id>", STARTS, tag="row jobs", refuses=[409])
def delete_row_job(run_id: RunId) -> Done:
    """Delete an ended job: it is gone at once, and its rows follow."""
    here = desk(router)
    control.delete(here.ports, here.kinds[KIND], here.tenant_id, run_id, here.by())
    return Done()


def _of_job(run_id: UUID) -> Desk:
    here = desk(router)
    if here.one(store.ACCOUNT, run_id=run_id) is None:
        raise NotFound
    return here


def _files() -> S3Files:
    bucket = os.environ.get("BATON_BUCKET")
    if not bucket:
        raise Problem(503, "no_bucket", "This deployment has no bucket for uploads.")
    return S3Files(bucket)


def _source_ip() -> str | None:
    context = router.current_event.raw_event.get("requestContext", {})
    return context.get("http", {}).get("sourceIp") or None
