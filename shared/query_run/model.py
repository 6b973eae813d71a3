"""The words of a remote query: what is asked for, what the remote system says, what a lane remembers. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from shared.kernel.model import Json, account_name, idempotency_key
from shared.kernel.redact import redact
from shared.kernel.settings import Settings

KIND = "query_run"
DOMAIN = ".marketingcloudapis.com"
SUBDOMAIN = r"^[0-9a-z-]{3,63}$"
UPSTREAM = "mce"
KEY_PREFIX = "BTN_"  # 4 + 32 characters: the most that a CustomerKey may have
LONGEST_SQL = 64_000
LONGEST_TEXT = 4_000
MOST_COLUMNS = 1_000
LONGEST_NAME = 128
LONGEST_STATUS = 100


class PollConfig(Settings):
    """The constants of polling, under the names that its design gave them, each within bounds."""

    ordered = (
        ("initial_delay_ms", "max_delay_ms"), ("rowset_ready_initial_delay_ms", "rowset_ready_max_delay_ms"),
        ("late_watch_interval_s", "late_watch_s"),
    )  # fmt: skip

    initial_delay_ms: Annotated[int, Field(ge=100, le=60_000, description="Milliseconds before the first poll")] = 2_000
    max_delay_ms: Annotated[int, Field(ge=100, le=600_000, description="The longest time between two polls")] = 30_000
    backoff_multiplier: Annotated[
        float, Field(ge=1, le=10, description="How much longer each wait is than the one before")
    ] = 2
    jitter_range: Annotated[float, Field(ge=0, le=1, description="How far waits are spread: 0.4 is ±20 %")] = 0.4
    max_poll_count: Annotated[int, Field(ge=1, le=10_000, description="Polls after which a run has timed out")] = 120
    max_duration_ms: Annotated[
        int, Field(ge=1_000, le=86_400_000, description="Milliseconds after which a run has timed out")
    ] = 29 * 60 * 1000
    completed_date_trigger_min_runtime_ms: Annotated[
        int, Field(ge=1, le=86_400_000, description="Before this runtime a completed date is not believed")
    ] = 5_000
    stuck_threshold_ms: Annotated[
        int,
        Field(
            ge=1,
            le=86_400_000,
            description="After so long without a new sign of a query, another API of Marketing Cloud is asked",
        ),
    ] = 3 * 60 * 1000
    not_running_confirmations: Annotated[
        int, Field(ge=1, le=10, description="How often “not running” must be seen before it counts")
    ] = 2
    not_running_confirmation_min_gap_ms: Annotated[
        int, Field(ge=1, le=86_400_000, description="The least time between two of those")
    ] = 15_000
    not_running_min_runtime_ms: Annotated[
        int,
        Field(
            ge=1, le=86_400_000, description="Before this runtime, “not running” counts only once it was seen running"
        ),
    ] = 20_000
    rowset_ready_max_attempts: Annotated[
        int, Field(ge=2, le=50, description="Reads of the result before it counts as not ready")
    ] = 6
    rowset_ready_initial_delay_ms: Annotated[
        int, Field(ge=1, le=86_400_000, description="Milliseconds before the second of those reads")
    ] = 1_500
    rowset_ready_max_delay_ms: Annotated[
        int, Field(ge=1, le=86_400_000, description="The longest time between two of them")
    ] = 8_000
    rowset_settle_ms: Annotated[
        int,
        Field(
            ge=1,
            le=86_400_000,
            description="Milliseconds between two reads that must show the same: what was written may arrive seconds later",
        ),
    ] = 8_000
    row_probe_min_runtime_ms: Annotated[
        int, Field(ge=1, le=86_400_000, description="Before this runtime nobody looks for rows")
    ] = 5_000
    row_probe_min_interval_ms: Annotated[
        int, Field(ge=1, le=86_400_000, description="The least time between two looks for rows")
    ] = 15_000
    row_probe_page_size: Annotated[int, Field(ge=1, le=2_500, description="Rows that such a look asks for")] = 1
    fast_path: Annotated[
        bool, Field(description="On: the first visible row makes a run ready, though more may come")
    ] = False
    late_adoption: Annotated[
        bool, Field(description="Whether a run that timed out is watched, and its result adopted when it comes")
    ] = True
    late_watch_interval_s: Annotated[
        int, Field(ge=60, le=86_400, description="Seconds between two looks at such a run")
    ] = 900
    late_watch_s: Annotated[int, Field(ge=60, le=7 * 86_400, description="Seconds for which it is watched")] = 6 * 3_600
    results_kept_s: Annotated[int, Field(ge=60, le=30 * 86_400, description="Seconds for which a result is kept")] = (
        86_400
    )
    max_in_flight: Annotated[int, Field(ge=1, le=10_000, description="Queries of a tenant at work at once")] = 50
    # How long a clean-up waits for a query to stop by itself.
    drain_s: Annotated[
        int, Field(ge=60, le=7 * 86_400, description="Seconds that a clean-up waits for a query to stop by itself")
    ] = 3_600
    look_around_s: Annotated[
        int,
        Field(
            ge=60, le=30 * 86_400, description="Seconds between two looks through an account for what belongs to no run"
        ),
    ] = 86_400


class Column(BaseModel):
    """A column of the result."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    type: Literal["Text", "Number", "Decimal", "Date", "Boolean", "EmailAddress", "Phone", "Locale"] = "Text"
    max_length: Annotated[int, Field(ge=1, le=LONGEST_TEXT)] | None = None

    @field_validator("name")
    @classmethod
    def it_can_be_sent(cls, name: str) -> str:
        if not sendable(name):
            raise ValueError("a column's name must not contain control characters")
        return name


class QueryParams(BaseModel):
    """What a run is asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sql_text: Annotated[str, Field(min_length=1, max_length=LONGEST_SQL)] = Field(
        validation_alias=AliasChoices("sql_text", "sqlText")
    )
    mid: Annotated[str, Field(pattern=r"^[0-9]{1,12}$")]
    eid: Annotated[str, Field(pattern=r"^[0-9]{1,12}$")] | None = None
    snippet_name: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, validation_alias=AliasChoices("snippet_name", "snippetName")
    )
    # The id or name of a connection of the tenant; its id from the start on. None: the deployment's own account.
    connection: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    # What the result looks like. None: as the validation says, or else the names of the select list as text.
    columns: Annotated[list[Column], Field(min_length=1, max_length=MOST_COLUMNS)] | None = None

    @field_validator("sql_text")
    @classmethod
    def it_can_be_sent(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("the query is empty")
        if not sendable(text):
            raise ValueError("the query must not contain control characters other than tabs and line breaks")
        return text

    @field_validator("columns")
    @classmethod
    def no_column_twice(cls, columns: list[Column] | None) -> list[Column] | None:
        names = [column.name.casefold() for column in columns or ()]
        if len(set(names)) < len(names):
            raise ValueError("two columns have the same name")
        return columns

    @property
    def account(self) -> str:
        """By which account, the key of its rate limit gate."""
        return account_name(UPSTREAM, self.connection)

    @property
    def token_account(self) -> str:
        """A token is good for one business unit."""
        return f"{self.account}@{self.mid}"


def sendable(text: str) -> bool:
    """Whether XML 1.0 and jsonb both have every character of it."""
    return not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", text)


def customer_key(run_id: UUID, epoch: int, what: str) -> str:
    """The same for every attempt of one run's epoch, and for nobody else."""
    return KEY_PREFIX + idempotency_key(run_id, epoch, what)


# What the remote system says. What could not be understood raises: it is unknown, never one of these.


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """`columns`: None if the answer does not tell."""

    valid: bool
    message: str = ""
    columns: Sequence[Column] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityStatus:
    """What SOAP says of a task. `status` is trimmed and lower-cased, empty if it says none; texts are kept short."""

    status: str = ""
    error_msg: str = ""
    completed: bool = False  # CompletedDate is set: by itself it proves nothing

    @classmethod
    def read(cls, status: str | None, error_msg: str | None, completed_date: str | None) -> Self:
        return cls(
            status=(status or "").strip().lower()[:LONGEST_STATUS],
            error_msg=redact((error_msg or "").strip()),
            completed=bool((completed_date or "").strip()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rowset:
    """One page of rows. `count` is how many rows there are in all."""

    count: int
    rows: Sequence[Mapping[str, str | None]]
    mark: str  # equal for equal answers


class Phase(StrEnum):
    ADMIT = "admit"
    TARGET = "target"
    DEFINITION = "definition"
    START = "start"
    POLL = "poll"
    VERIFY = "verify"


def _values(cursor: Any) -> dict[str, Any]:
    """Not `asdict`: it copies every value, in every step."""
    return {name: getattr(cursor, name) for name in cursor.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCursor:
    """What the lane of a query remembers, all of it: messages carry nothing.

    Times are the database's. `epoch` is the run's: a retried run starts anew, with assets of its own.
    """

    phase: str = Phase.ADMIT
    epoch: int = 1
    target_key: str = ""
    target_id: str = ""
    query_key: str = ""
    query_definition_id: str | None = None
    task_id: str | None = None
    poll_started_at: datetime | None = None
    poll_count: int = 0
    refusals: int = 0  # looks in a row in which something was refused
    rest_checks: int = 0
    seen_running: bool = False
    not_running_confirmations: int = 0
    not_running_at: datetime | None = None
    row_probe_attempts: int = 0
    row_probe_at: datetime | None = None
    partial_available: bool = False
    last_status: str | None = None
    signal_at: datetime | None = None  # when SOAP last said something new
    stuck_fallbacks: int = 0
    rowset_ready_attempts: int = 0
    rowset_mark: str | None = None
    rowset_at: datetime | None = None  # when it was first read so
    rows: int | None = None
    fast: bool = False
    starts: int = 0  # two or more: an earlier one was not answered and left no trace
    waits: int = 0  # for a place among the queries in flight
    warning: str | None = None
    complains: bool = False  # SOAP's last word of the query was an error message
    adopted: bool = False

    @classmethod
    def read(cls, cursor: Json) -> Self:
        times = {name: datetime.fromisoformat(text) for name in TIMES if (text := cursor.get(name)) is not None}
        return cls(**{**cursor, **times})

    def to_json(self) -> Json:
        told = {name: value for name, value in _values(self).items() if value is not None}
        return {**told, **{name: told[name].isoformat() for name in TIMES if name in told}}

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def runtime(self, now: datetime) -> timedelta:
        return now - (self.poll_started_at or now)


TIMES = ("poll_started_at", "not_running_at", "row_probe_at", "rowset_at", "signal_at")


EXPORT = "export"
EXPORT_PAGE = 2_500  # four times a power of five


def export_lane(epoch: int) -> str:
    return f"{EXPORT}/{epoch}"


def export_epoch(lane: str) -> int:
    """Whose result it writes. The run may be at a later epoch by now."""
    return int(lane.removeprefix(f"{EXPORT}/"))


def export_key(tenant_id: UUID, run_id: UUID, epoch: int) -> str:
    """Where the file of a result is. The bucket removes what is below `exports/` after a week, whatever happens to us."""
    return f"exports/{tenant_id}/query-runs/{run_id}-{epoch}.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCursor:
    """How far the file of a result is written: pages that were read, parts that were sent, and what is not enough for one.

    `rows`: None if nobody has counted them yet, as on the fast path.
    """

    target_key: str
    columns: list[str]
    rows: int | None
    until: datetime
    page: int = 1
    size: int = EXPORT_PAGE  # of a page; wide rows need smaller ones
    parts: list[str] = field(default_factory=list)
    upload: str | None = None
    tail: str | None = None  # where the rows are that wait for the next part

    @classmethod
    def read(cls, cursor: Json) -> Self:
        return cls(**{**cursor, "until": datetime.fromisoformat(cursor["until"])})

    def to_json(self) -> Json:
        return {**_values(self), "until": self.until.isoformat()}

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def afresh(self) -> Self:
        return self.but(page=1, parts=[], upload=None, tail=None)

    def smaller(self) -> Self:
        """The same place with pages of a fifth."""
        return self.but(page=(self.page - 1) * 5 + 1, size=self.size // 5)

    @property
    def rows_read(self) -> int:
        return min((self.page - 1) * self.size, self.rows or 0)


class CleanPhase(StrEnum):
    WATCH = "watch"  # it timed out, but may still finish
    DRAIN = "drain"  # until it does not run any more
    QUERY = "query"
    RESULTS = "results"  # until they expire
    TARGET = "target"
    REST = "rest"  # calls that may still have been under way when the run ended


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanCursor:
    """What the clean-up lane of one epoch remembers: whether results are kept, and until when it is patient.

    `started`: the query may be running. `unsure`: a call may have been under way when the run ended.
    """

    phase: str
    query: Json
    keeps_results: bool = False
    started: bool = False
    unsure: bool = False
    since: datetime | None = None
    looks: int = 0

    @classmethod
    def read(cls, cursor: Json) -> Self:
        since = cursor.get("since")
        return cls(**{**cursor, "since": None if since is None else datetime.fromisoformat(since)})

    def to_json(self) -> Json:
        return {**_values(self), "since": None if self.since is None else self.since.isoformat()}

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)
