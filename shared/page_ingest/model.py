"""The words of page ingestion: what a run is asked for, the lanes it goes through, what a lane remembers. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.kernel.model import Json, NewLane
from shared.page_ingest.ports import HIGHEST_DOLLARS, PriceRange

KIND = "page_ingest"
LARGEST_PAGE = 50


class AllPartitions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    rule: Literal["all"] = "all"


class AtLeast(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    rule: Literal["at_least"]
    percent: Annotated[float, Field(gt=0, le=100)]


class Critical(BaseModel):
    """Partitions that hold any of these prices (whole dollars) must succeed; others may fail."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rule: Literal["critical"]
    prices: Annotated[list[Annotated[int, Field(ge=0, le=HIGHEST_DOLLARS)]], Field(min_length=1, max_length=1000)]


Policy = Annotated[AllPartitions | AtLeast | Critical, Field(discriminator="rule")]


class IngestParams(BaseModel):
    """What a run is asked for. Prices are whole dollars, half open: low <= price < high."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: Literal["nivoda"]
    low: Annotated[int, Field(ge=0, lt=HIGHEST_DOLLARS)]
    high: Annotated[int, Field(gt=0, le=HIGHEST_DOLLARS)]
    partition_records: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    page_size: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = LARGEST_PAGE
    policy: Policy = AllPartitions()
    recrawls: Annotated[int, Field(ge=0, le=5)] = 2
    time_limit_s: Annotated[int, Field(ge=60, le=30 * 86_400)] | None = None

    @model_validator(mode="after")
    def the_range_is_not_empty(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"the price range is empty: low {self.low} must be below high {self.high}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCursor:
    """What is left to probe, and the partitions found so far, in price order."""

    todo: Sequence[tuple[int, int]]
    parts: Sequence[tuple[int, int, int]] = ()

    @classmethod
    def read(cls, cursor: Json) -> Self:
        return cls(todo=[tuple(r) for r in cursor["todo"]], parts=[tuple(p) for p in cursor["parts"]])

    def to_json(self) -> Json:
        return {"todo": [list(r) for r in self.todo], "parts": [list(p) for p in self.parts]}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlCursor:
    """Where a crawl of one partition stands.

    `tail` are the last stones seen: the next page begins with them, so that rows that moved are noticed.
    `counted` is the upstream's count when the crawl began, `seen` how many stones it has met since.
    """

    low: int
    high: int
    limit: int
    offset: int = 0
    tail: Sequence[str] = ()
    empties: int = 0
    counted: int | None = None
    seen: int = 0
    shifts: int = 0
    split: bool = False
    clean: bool = False

    @classmethod
    def read(cls, cursor: Json) -> Self:
        return cls(**{**cursor, "tail": tuple(cursor["tail"])})

    def to_json(self) -> Json:
        return {**asdict(self), "tail": list(self.tail)}

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)

    @property
    def prices(self) -> PriceRange:
        return PriceRange(low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCursor:
    """Partitions still to be counted again, and those that drifted."""

    todo: Sequence[tuple[int, int, int | None, bool]]
    drifted: Sequence[tuple[int, int]] = ()

    @classmethod
    def read(cls, cursor: Json) -> Self:
        return cls(todo=[tuple(t) for t in cursor["todo"]], drifted=[tuple(d) for d in cursor["drifted"]])

    def to_json(self) -> Json:
        return {"todo": [list(t) for t in self.todo], "drifted": [list(d) for d in self.drifted]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidateCursor:
    after: str = ""
    gone: bool = False
    complete: bool = True
    marked: int = field(default=0)

    def to_json(self) -> Json:
        return asdict(self)


def part_key(low: int, high: int, crawl: int = 1) -> str:
    """The name of a partition's crawl; a later crawl of the same prices has a name of its own."""
    again = "" if crawl == 1 else f"#{crawl}"
    return f"part:{low:010d}-{high:010d}{again}"


def crawl_lane(low: int, high: int, page_size: int, crawl: int = 1) -> NewLane:
    return NewLane(key=part_key(low, high, crawl), cursor=CrawlCursor(low=low, high=high, limit=page_size).to_json())
