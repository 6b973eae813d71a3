"""The words of reading a source: what a run is asked for, and what its lanes remember. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from shared.kernel.model import Json, NewLane, account_name
from shared.page_ingest.model import USUAL_TIME_LIMIT_S, AllPartitions, AtLeast
from shared.page_ingest.reader.words import Moment, Name

Part = Mapping[str, Any]  # `resource`, and what of it: from and to, low and high, value, slice


class SourceParams(BaseModel):
    """What a run of a source is asked for. `from` and `to` bound what is read of lists that are cut into windows."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True, serialize_by_alias=True)

    source: Name
    resources: Annotated[list[Name], Field(min_length=1, max_length=50)] | None = None
    begin: Annotated[Moment | None, Field(alias="from")] = None
    to: Moment | None = None
    # Every row, although a run before this one got as far as a watermark.
    full: bool = False
    tighten: Annotated[dict[str, str | int], Field(max_length=100)] = {}
    policy: Annotated[AllPartitions | AtLeast, Field(discriminator="rule")] = AllPartitions()
    recrawls: Annotated[int, Field(ge=0, le=5)] = 2
    time_limit_s: Annotated[int, Field(ge=60, le=30 * 86_400)] = USUAL_TIME_LIMIT_S
    connection: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    # Rows of the quarantine are tried again instead, and nothing is asked.
    replay: bool = False
    # What the file meant when the run began. A run goes on with that, or not at all.
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None

    @property
    def account(self) -> str:
        return account_name(self.source, self.connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCursor:
    """`t`: when the run began to look; `scope`: which file and which settings it is about. `marks`: the watermarks in use."""

    t: str | None = None
    scope: str = ""
    generation: int = 0
    todo: Sequence[Part] | None = None  # None: not begun
    parts: Sequence[Part] = ()
    marks: Mapping[str, str] = field(default_factory=dict)
    planned: bool = False
    # Of a later generation: how many readings of each list above it had ended by then. Runs that began before have none.
    above: Mapping[str, int] | None = None
    # Of the first plan: what the file says that is needed to judge the run, so that nobody has to read it again for that.
    shape: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, cursor: Json) -> Self:
        return cls(**cursor)

    def to_json(self) -> Json:
        return asdict(self)

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCursor:
    """Where the reading of one partition stands.

    `place` leads to the next page: a number, a token, a key, or a link without its host and secret. `walk` is the cursor of a
    list by offset. `loop` remembers one earlier place, always further apart: whoever comes back to it goes in circles.
    `counted` and `exact` are the upstream's count when the walk began. `ok`: the walk came to its end; `clean`: and saw as
    many different rows as were counted before and after. `why`: what is in the way of that.
    """

    part: Part
    t: str
    scope: str
    since: str | None = None
    limit: int | None = None
    crawl: int = 1
    began: int = 0
    place: str | int | None = None
    walk: Mapping[str, Any] | None = None
    loop: Sequence[Any] = ()
    mark: str = ""  # of the keys of the last page
    last: Any = None
    pages: int = 0
    received: int = 0
    empties: int = 0
    shifts: int = 0
    restarts: int = 0
    counted: int | None = None
    exact: bool = False
    quarantined: int = 0
    # A question that a page led to and that had to wait: `count` or `half`. It is asked before the page.
    owes: str | None = None
    known: Sequence[Any] | None = None  # what was counted then, and whether exactly
    numbered: bool = False  # links count pages
    sure: bool = False  # half a page names a next one
    parent: str | None = None  # of a slice: the parent that is being read, and how many were
    parents: int = 0
    received_before: int = 0  # of a slice: the rows of the parents that were read
    ended: bool = False
    ok: bool = False
    clean: bool = False
    why: str | None = None

    @classmethod
    def read(cls, cursor: Json) -> Self:
        return cls(**cursor)

    def to_json(self) -> Json:
        return asdict(self)

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)

    @property
    def resource(self) -> str:
        return str(self.part["resource"])

    @property
    def key(self) -> str:
        return part_key(self.part, self.crawl)

    def from_the_start(self, **changes: Any) -> Self:
        """The same partition, not begun."""
        fresh = type(self)(
            part=self.part, t=self.t, scope=self.scope, since=self.since, limit=self.limit, crawl=self.crawl
        )
        return replace(fresh, restarts=self.restarts, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCursor:
    """Partitions still to be counted again, each with the count of its walk if that was clean; and the keys of those that drifted."""

    scope: str
    todo: Sequence[tuple[str, Part, str | None, int | None]]
    drifted: Sequence[str] = ()

    @classmethod
    def read(cls, cursor: Json) -> Self:
        return cls(scope=cursor["scope"], todo=[tuple(each) for each in cursor["todo"]], drifted=cursor["drifted"])

    def to_json(self) -> Json:
        return {"scope": self.scope, "todo": [list(each) for each in self.todo], "drifted": list(self.drifted)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidateCursor:
    """One resource of a run: what it may claim and why, and how far its rows are moved into their table.

    `mark`: the scope of its watermark, if that is a narrower one. `full`: the walk did not begin at a watermark. `stage`: rows, then gone, then looked (rows are looked up one by one).
    """

    resource: str
    scope: str
    claim: str
    reason: str
    t: str
    full: bool
    mark: str | None = None
    drops: bool = False
    covers: Sequence[str] | None = None  # the span of the windows that were read
    stage: str = "rows"
    after: str = ""
    moved: int = 0
    gone: int = 0
    alive: int = 0
    fuse: str | None = None

    @classmethod
    def read(cls, cursor: Json) -> Self:
        return cls(**cursor)

    def to_json(self) -> Json:
        return asdict(self)

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


def part_name(part: Part) -> str:
    """The same for the same part in every run; of windows, in the order of time."""
    said = []
    if "from" in part:
        said.append(f"{part['from']}/{part['to']}")
    if "slice" in part:
        said.append(f"s{part['n']:05d}")
    if "at" in part:
        said.append(f"v{part['at']:05d}")
    if "low" in part:
        said.append(f"{part['low']:016d}-{part['high']:016d}")
    return "+".join(said) or "all"


def part_key(part: Part, crawl: int = 1) -> str:
    again = "" if crawl == 1 else f"#{crawl}"
    return f"part/{part['resource']}/{part_name(part)}{again}"


def read_lane(cursor: ReadCursor) -> NewLane:
    return NewLane(key=cursor.key, cursor=cursor.to_json())
