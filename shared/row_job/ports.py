"""What row jobs need from outside: the bytes of a file, a provider that finds products, and hands to call it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self
from uuid import UUID

from shared.kernel.clock import Chance
from shared.kernel.control import Pace
from shared.kernel.errors import Permanent
from shared.kernel.files import Files as Results
from shared.kernel.files import S3Files
from shared.kernel.metrics import Meter, NoMeter
from shared.kernel.ports import Beside, at_once
from shared.row_job.decide import Answered
from shared.row_job.model import Item, RowJobParams, RowSettings, ScanParams, Status, Strategy, Which


class Files(Protocol):
    """Bytes of an upload at a pinned version. `read` answers fewer than asked only at the end of the file.

    Raises Transient, or Permanent when that version is not there (any more).
    """

    def read(self, key: str, version_id: str | None, offset: int, length: int) -> bytes: ...


class Changed(Exception):
    """A file is not what was listed (any more). It is left alone: the next scan sees it as it is then."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file that waits to be taken. `stamp` changes with its content: an ETag, or when it was written."""

    name: str
    size: int
    stamp: str


class Inbox(Protocol):
    """Where files wait. `bring` copies one into our bucket as far as the time lasts, and answers where to go on, or None when
    all of it is there; to bring a part again changes nothing. Raises Changed, Transient, Permanent."""

    def files(self) -> list[Listed]: ...
    def bring(self, file: Listed, key: str, place: dict[str, Any] | None, seconds: float) -> dict[str, Any] | None: ...


def no_inbox(tenant_id: UUID, scan: ScanParams) -> Inbox:  # noqa: ARG001 - as those that there are
    raise Permanent("This deployment has no such place for files.", "no_inbox")


class Search(Protocol):
    """One question to the provider. It never raises for what the provider says: the answer tells."""

    def find(self, item: Item, strategy: Strategy, retailers: Sequence[str], idempotency_key: str) -> Answered: ...


@dataclass(frozen=True, slots=True)
class Call:
    """What a call was made for, and the window that gave it its slot."""

    item: Item
    domain: str
    window_no: int


class Hands(Protocol):
    """Calls under way, and the clock that they are timed by."""

    def now(self) -> float: ...
    def submit(self, call: Callable[[], Answered], made_for: Call) -> None: ...
    def collect(self, timeout_s: float) -> list[tuple[Call, Answered]]: ...
    def pressure(self) -> float: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    files: Files
    search: Callable[[UUID, RowJobParams, Callable[[], float]], Search]
    hands: Callable[[int], Hands]
    pace: Pace
    reads: RowReads
    settings: RowSettings = field(default_factory=RowSettings)
    chance: Chance = field(default_factory=Chance)
    meter: Meter = field(default_factory=NoMeter)
    beside: Beside = at_once
    needs_connection: bool = False
    inbox: Callable[[UUID, ScanParams], Inbox] = no_inbox
    results: Results = field(default_factory=S3Files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the reading of a file is, and what is known of it."""

    key: str
    version_id: str | None
    size: int
    dialect: dict[str, object] | None
    columns: list[str] | None
    read_bytes: int
    read_rows: int
    read_done: bool
    pool_wait_ms: float = 0.0  # until there was a connection to ask with
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRows:
    """What is left of a lane's rows."""

    read_done: bool
    next_due_s: float | None  # of rows that may be taken
    held_back: bool  # rows beyond the canary
    elder: bool  # a lane before this one still owns the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportState:
    """An export and its job. `gen`: its newest snapshot; `open`: rows that change are kept for it."""

    job_id: UUID
    gen: int
    open: bool
    deleted: bool
    columns: list[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    export_id: UUID
    job_id: UUID
    gen: int


class RowReads(Protocol):
    def progress(self, tenant_id: UUID, run_id: UUID) -> Progress | None: ...
    def open_rows(self, tenant_id: UUID, run_id: UUID, slot: int, gen: int) -> OpenRows: ...
    def export(self, tenant_id: UUID, run_id: UUID) -> ExportState | None: ...

    def horizon(self) -> tuple[int, int]:
        """The oldest transaction that may still be at work, and the first that has not begun."""

    def copied(self, tenant_id: UUID, of: Snapshot, which: Which, after: int, upto: int) -> Iterator[list[bytes]]:
        """Rows as they were at the snapshot, in the order of the file, each a line of CSV."""

    def fixing(self, tenant_id: UUID, run_id: UUID, file_id: UUID) -> Progress | None: ...
    def fixable(self, tenant_id: UUID, run_id: UUID, row_nos: Sequence[int]) -> dict[int, FixRow]: ...
    def there(self, tenant_id: UUID, job_id: UUID, after: int, upto: int) -> int:
        """How many rows of a stretch are there."""

    def is_exporting(self, tenant_id: UUID, job_id: UUID) -> bool:
        """Whether a step may be writing a file of the job's rows now."""

    def exported(self, tenant_id: UUID, job_id: UUID) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FixRow:
    """A row as it is now, for whoever wants to change what it was read from."""

    row_no: int
    status: Status
    hash: str
    input: dict[str, Any]
