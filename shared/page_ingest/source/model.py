"""What a source file says, once it has been read: typed, frozen, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shared.page_ingest.source.lines import Path

Pointer = str  # a JSON Pointer, RFC 6901: "" is the whole answer


class Claim(StrEnum):
    """How much a run can prove."""

    COMPLETE = "complete"
    THROUGH = "through T"
    WALKED = "walked"
    DRIFTED = "drifted"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that is wrong with a file, and where."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.key}: {self.message}"


class Refused(ValueError):
    """The file is not a source. It has at least one fault."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """A span of the calendar: months are as long as they are, the rest is seconds."""

    text: str
    months: int
    seconds: int

    @property
    def usual_seconds(self) -> int:
        """To compare spans with: a month counts as 30 days."""
        return self.months * 30 * 86_400 + self.seconds

    @property
    def whole_days(self) -> bool:
        return self.seconds % 86_400 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """At most `requests` in `per` seconds."""

    text: str
    requests: int
    per: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """How a request shows who asks. `fields` are names within the connection's secret, never secrets."""

    way: str
    fields: Sequence[str] = ()
    name: str = ""
    url: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    left: str | None = None
    resets: str | None = None
    resets_as: str = "unix"
    reserve: int = 0
    pace: Pace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRule:
    status: Sequence[int]
    has: str | None
    where: str | None
    equals: str | int | bool | None
    means: str

    @property
    def says_more(self) -> bool:
        """Whether more than the status decides."""
        return self.has is not None or self.where is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question. `entries` are the query of a `get`, the body of a `post`, the variables of a `graphql`."""

    verb: str
    target: str
    entries: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """How one page leads to the next. `at` is where the link, URL, token or last key is found; `first` the first value."""

    style: str
    at: str = ""
    first: str | int | None = None
    size: int | None = None
    most: int | None = None
    more: Pointer | None = None
    end: Pointer | None = None
    order: tuple[str, Pointer] | None = None
    sorted_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Where a count comes from: the list's own answer, or a request of its own. `exact`: what must hold for it to prove anything."""

    at: Pointer
    request: Request | None
    exact: bool | Mapping[Pointer, str | int | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How the list is divided into partitions. `then` divides what is still too large for one."""

    way: str
    window: Duration | None = None
    format: str = "time"
    to_included: bool = False
    moves: bool | None = None
    numbers: tuple[int, int] | None = None
    values: Sequence[str | int] = ()
    parent: str = ""
    parent_key: Pointer = ""
    most: int | None = None
    then: Split | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    field: Pointer
    lookback: Duration
    lag: Duration | None = None
    format: str = "time"
    first: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """How a row is judged gone: `never`, `unseen`, `look` or `flag`; never more than `most` percent of the table at once."""

    way: str
    most: float = 5.0
    look: str = ""
    status: Sequence[int] = ()
    flag: Pointer = ""
    equals: str | int | bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: str
    pointer: Pointer


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    name: str
    request: Request
    page: Page
    rows: Pointer
    key: Sequence[Pointer] | None  # None: by the hash of the row
    keep_absent: Sequence[Pointer]
    keep_equal: Mapping[Pointer, str | int | bool]
    count: Count | None
    split: Split | None
    since: Since | None
    columns: Sequence[Column]
    gone: Gone
    contract: str

    @property
    def path(self) -> Path:
        return ("resources", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    name: str
    hosts: Sequence[str]
    auth: Auth
    settings: Mapping[str, str]
    headers: Mapping[str, str]
    rate: Rate
    errors: Sequence[ErrorRule]
    graphql: str | None
    resources: Mapping[str, Resource]
