"""Names, parameters and settings of row jobs. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from shared.kernel.errors import Refused
from shared.kernel.settings import Settings

KIND = "row_job"
INGEST, ERASE, SCAN, TAKE, EXPORT, UNKEEP, FIX = "ingest", "erase", "scan", "take", "export", "unkeep", "fix"
UPSTREAM = "product_search"
UPLOADS = "uploads/{tenant_id}/rows/{file_id}"
INBOX = "inbox/{tenant_id}/"
EXPORTS = "exports/{tenant_id}/row-jobs/{export_id}-{gen}-{number}.{format}"
SHEET = "exports/{tenant_id}/row-jobs/sheet-{file_id}.csv"  # a spreadsheet, as it is read
KEPT_DAYS = 7  # as the bucket keeps what is below `exports/`
FTP = "ftp"
FIELDS = ("title", "brand", "sku")
ANYWHERE = "any"  # the domain of a search that names no retailer


def account_of(connection: str | None) -> str:
    return f"{UPSTREAM}:{connection}" if connection else UPSTREAM


class Status(StrEnum):
    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    DONE = "DONE"
    ERROR = "ERROR"
    NOT_FOUND = "NOT_FOUND"
    SKIPPED = "SKIPPED"


ENDED = frozenset({Status.DONE, Status.ERROR, Status.NOT_FOUND, Status.SKIPPED})
OPEN = (Status.PENDING, Status.PROCESSING)
FAILED = (Status.ERROR, Status.NOT_FOUND, Status.SKIPPED)  # what a person can fix


class Strategy(StrEnum):
    EXACT_SKU = "exact_sku"
    BRAND_TITLE = "brand_title"
    TITLE_ONLY = "title_only"
    RELAXED = "relaxed"


class WayPoint(StrEnum):
    """Where a process may die on a file's way in or out, for the tests that make it."""

    SEEN = "row_job.seen"
    BROUGHT = "row_job.brought"
    SNAPSHOT = "row_job.snapshot"
    EXPORTED = "row_job.exported"
    PICTURED = "row_job.pictured"


class RowMetric(StrEnum):
    """Under the names that people know them by."""

    INGEST_MS = "ingest_ms"
    ITEMS_SEC = "items_sec"
    ERROR_RATE = "error_rate"
    NOT_FOUND_RATE = "not_found_rate"
    DB_LATENCY = "db_latency_ewma"
    POOL_WAIT_MS = "pool_wait_ms"
    THROTTLE_RATE = "api_throttle_rate"
    QUEUE_DEPTH = "queue_depth"


class JobType(StrEnum):
    CSV = "csv"  # rows of a table: a spreadsheet is written down as CSV and read as such
    IMAGE = "image"


TYPES = {
    JobType.CSV: {
        "csv": "text/csv", "tsv": "text/csv", "txt": "text/csv",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    },
    JobType.IMAGE: {
        "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
        "bmp": "image/bmp", "zip": "application/zip",
    },
}  # fmt: skip


def type_of(name: str) -> JobType | None:
    """What becomes of a file, by the end of its name."""
    end = name.lower().rpartition(".")[2]
    return next((each for each, ends in TYPES.items() if end in ends), None)


Domain = Annotated[str, Field(pattern=r"^[a-z0-9.-]{1,100}$")]
Column = Annotated[str, Field(min_length=1, max_length=200)]


class Options(BaseModel):
    """What a person may choose for a file. `mapping`: which column holds the title, the brand and the sku."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    connection: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    mapping: dict[Annotated[str, Field(pattern="^(title|brand|sku)$")], Column] | None = None
    retailers: Annotated[list[Domain], Field(max_length=20)] = []
    locale: Annotated[str, Field(pattern=r"^[a-z]{2}-[A-Z]{2}$")] = "en-US"
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    canary: Annotated[int, Field(ge=1, le=10_000)] | None = None
    job_type: Annotated[JobType, Field(strict=False)] | None = None


def refuse_columns_of_images(job_type: JobType | None, mapping: Mapping[str, str] | None) -> None:
    if job_type == JobType.IMAGE and mapping:
        raise Refused("no_columns", "Images have no columns: `mapping`, `title`, `brand` and `sku` are for CSV files.")


class RowJobParams(Options):
    file_id: Annotated[UUID, Field(strict=False)]

    @property
    def account(self) -> str:
        return account_of(self.connection)


class ScanParams(Options):
    """Where to look for files. `server`: the connection to an FTP server. The rest is for the jobs of what is found."""

    scan: Literal["s3", "ftp", "folder"]
    server: Annotated[str, Field(min_length=1, max_length=100)] | None = None

    @property
    def source(self) -> str:
        return f"{self.scan}:{self.server}" if self.server else self.scan


class Format(StrEnum):
    CSV = "csv"
    XLSX = "xlsx"


class Which(StrEnum):
    """Which rows an export has: all with their results, or those that failed, with what they were read from."""

    ALL = "all"
    FAILED = "failed"


class ExportParams(BaseModel):
    """`export`: the job whose rows are written to a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    export: Annotated[UUID, Field(strict=False)]
    format: Annotated[Format, Field(strict=False)] = Format.CSV
    rows: Annotated[Which, Field(strict=False)] = Which.ALL


class RowSettings(Settings):
    """The bounds of the pipeline, and the provider's knobs. Within them the work tunes itself."""

    ordered = (
        ("ingest_min_rows", "ingest_max_rows"), ("db_p50_ms", "db_p95_ms"), ("claim_min", "claim_max"),
        ("provider_min_rate", "provider_first_rate"), ("provider_first_rate", "provider_max_rate"),
    )  # fmt: skip

    ingest_min_rows: Annotated[int, Field(ge=1, le=10_000, description="Rows that are written at once, at least")] = 64
    ingest_max_rows: Annotated[int, Field(ge=1, le=50_000, description="Rows that are written at once, at most")] = (
        2_048
    )
    ingest_max_batch_bytes: Annotated[
        int, Field(ge=10_000, le=16_000_000, description="Bytes of the file that are read for that")
    ] = 1_000_000
    db_p50_ms: Annotated[
        int, Field(ge=10, le=10_000, description="How long a write should take: batches grow up to it")
    ] = 500
    db_p95_ms: Annotated[int, Field(ge=10, le=60_000, description="A write that takes longer halves the batch")] = 2_000
    worker_target_slice_ms: Annotated[
        int,
        Field(ge=500, le=60_000, description="How long a slice works on rows; always within the function's time-out"),
    ] = 5_000
    claim_min: Annotated[int, Field(ge=1, le=1_000, description="Rows that a slice takes, at least")] = 4
    claim_max: Annotated[int, Field(ge=1, le=10_000, description="Rows that a slice takes, at most")] = 500
    safety_factor: Annotated[float, Field(gt=0, le=1, description="The part of a slice that its rows should fill")] = (
        0.7
    )
    max_attempts_error: Annotated[int, Field(ge=1, le=50, description="Errors that end a row")] = 5
    max_attempts_not_found: Annotated[
        int | None,
        Field(
            ge=1,
            le=50,
            description="Answers “not found” that end a row; without it, each way to look for the row is tried once",
        ),
    ] = None
    slots: Annotated[int, Field(ge=1, le=64, description="Lanes of a job")] = 4
    threads: Annotated[int, Field(ge=1, le=64, description="Calls at once in each lane")] = 16
    most_in_flight: Annotated[int, Field(ge=1, le=100_000, description="Rows of a job at work at once")] = 2_000
    tenant_most_in_flight: Annotated[
        int, Field(ge=1, le=1_000_000, description="Rows of a tenant at work at once, shared by the lanes of its jobs")
    ] = 5_000
    provider_first_rate: Annotated[
        float, Field(gt=0, le=1_000, description="Calls a second to a domain that was never called")
    ] = 1.0
    provider_min_rate: Annotated[float, Field(gt=0, le=1_000, description="Calls a second to a domain, at least")] = 0.1
    provider_max_rate: Annotated[float, Field(gt=0, le=10_000, description="Calls a second to a domain, at most")] = (
        500.0
    )
    provider_timeout_ms: Annotated[int, Field(ge=100, le=60_000, description="The longest call")] = 25_000
    export_xlsx_rows: Annotated[
        int, Field(ge=1, le=1_048_575, description="Rows of an XLSX file; more go to the next file")
    ] = 250_000
    provider_url: str | None = None
    folder: str | None = None


class Item(BaseModel):
    """One claimed row, as a lane works on it. `misses`: how many of its attempts were answered "not found"; `turned`: how many
    ever were, which outlives a new beginning of its attempts. `was_left`: by somebody who died."""

    model_config = ConfigDict(frozen=True)

    row_no: int
    attempts: int
    misses: int = 0
    turned: int = 0
    normalized: dict[str, Any]
    last_error: str | None = None
    was_left: bool = False


class Found(BaseModel):
    """One offer of a provider, as it is shown and exported."""

    model_config = ConfigDict(frozen=True)

    title: Annotated[str, Field(max_length=2_000)]
    brand: Annotated[str, Field(max_length=500)] | None = None
    sku: Annotated[str, Field(max_length=200)] | None = None
    price: Annotated[str, Field(pattern=r"^-?[0-9]{1,12}(\.[0-9]{1,4})?$")] | None = None
    currency: Annotated[str, Field(max_length=10)] | None = None
    url: Annotated[str, Field(max_length=4_000)] | None = None
    retailer: Annotated[str, Field(max_length=300)] | None = None
    domain: Annotated[str, Field(max_length=300)] | None = None
    score: float | None = None
    in_stock: bool | None = None
