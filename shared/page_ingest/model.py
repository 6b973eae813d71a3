"""The words of page ingestion: what a run is asked for, the lanes it goes through, what a lane remembers. No I/O."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.kernel.model import Json, NewLane, account_name
from shared.kernel.settings import Settings

KIND = "page_ingest"
SMALLEST_PAGE, USUAL_PAGE, LARGEST_PAGE = 4, 30, 50
HIGHEST_DOLLARS = 2**31 - 1  # a GraphQL Int
USUAL_TIME_LIMIT_S = 3 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRange:
    """Whole dollars, half open: low <= price < high. Ranges that share a border share no stone."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= HIGHEST_DOLLARS:
            raise ValueError(
                f"a price range needs 0 <= low < high <= {HIGHEST_DOLLARS}, not {self.low} and {self.high}"
            )

    def holds(self, price_cents: int) -> bool:
        return self.low * 100 <= price_cents < self.high * 100


class Item(NamedTuple):  # a page makes fifty of them
    """One offer of one stone. `body` is the item as it came, as JSON with sorted keys, but for what Postgres cannot store."""

    external_id: str
    offer_id: str
    price_cents: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One answer. The offset moves by `fetched`, whatever the range kept; `ids` are the stones of all that was fetched.

    `foreign` are those whose price is not even near the range: no neighbour lists them either, so nobody keeps them.
    """

    items: tuple[Item, ...]
    fetched: int
    ids: tuple[str, ...]
    foreign: frozenset[str] = frozenset()

    @property
    def kept(self) -> frozenset[str]:
        """The stones that belong to the range."""
        return frozenset(item.external_id for item in self.items)


class AllPartitions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    rule: Literal["all"] = "all"


class AtLeast(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    rule: Literal["at_least"]
    percent: Annotated[float, Field(gt=0, le=100)]


class Critical(BaseModel):
    """Partitions that hold any of these prices (whole dollars) must succeed; others may fail."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    rule: Literal["critical"]
    prices: Annotated[list[Annotated[int, Field(ge=0, le=HIGHEST_DOLLARS)]], Field(min_length=1, max_length=1000)]


Policy = Annotated[AllPartitions | AtLeast | Critical, Field(discriminator="rule")]


INGEST_PREFIX = "BATON_INGEST_"


class IngestSettings(Settings):
    """Of the deployment, for the built-in catalogue and for source files. With one page per step a crash costs a page, and no
    step takes longer than one; several pay where an upstream is fast and lists are long."""

    pages_per_step: Annotated[
        int,
        Field(
            ge=1,
            le=50,
            description="Pages that a step reads at most, within three seconds. Several pay where an upstream is fast and lists are long",
        ),
    ] = 1


class IngestParams(BaseModel):
    """What a run is asked for. Prices are whole dollars, half open: low <= price < high."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: Literal["nivoda"]
    low: Annotated[int, Field(ge=0, lt=HIGHEST_DOLLARS)]
    high: Annotated[int, Field(gt=0, le=HIGHEST_DOLLARS)]
    partition_records: Annotated[int, Field(ge=1, le=100_000)] = 2_000
    page_size: Annotated[int, Field(ge=SMALLEST_PAGE, le=LARGEST_PAGE)] = USUAL_PAGE
    policy: Policy = AllPartitions()
    recrawls: Annotated[int, Field(ge=0, le=5)] = 2
    time_limit_s: Annotated[int, Field(ge=60, le=30 * 86_400)] = USUAL_TIME_LIMIT_S
    # By whose account: the id or name of a connection of the tenant; its id from the start on. None: the deployment's.
    connection: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    @property
    def account(self) -> str:
        """What the steps of a tenant that use one account share what they know under."""
        return account_name(self.source, self.connection)

    @model_validator(mode="after")
    def the_range_is_not_empty(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"the price range is empty: low {self.low} must be below high {self.high}")
        return self

    @model_validator(mode="after")
    def critical_prices_are_in_the_range(self) -> Self:
        if isinstance(self.policy, Critical):
            outside = [price for price in self.policy.prices if not self.low <= price < self.high]
            if outside:
                raise ValueError(f"critical prices outside the range: {outside[:5]}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCursor:
    """What is left to probe, and the partitions found so far, in price order; `planned`: their lanes were made."""

    todo: Sequence[tuple[int, int]]
    parts: Sequence[tuple[int, int, int]] = ()
    planned: bool = False

    @classmethod
    def read(cls, cursor: Json) -> Self:
        parts = [tuple(p) for p in cursor["parts"]]
        return cls(todo=[tuple(r) for r in cursor["todo"]], parts=parts, planned=cursor["planned"])

    def to_json(self) -> Json:
        parts = [list(p) for p in self.parts]
        return {"todo": [list(r) for r in self.todo], "parts": parts, "planned": self.planned}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlCursor:
    """Where a crawl of one partition stands.

    `offset` rows have been walked through; `tail` are the last of them: the next page begins with these, so that rows
    that moved are noticed. `counted` is the upstream's count when the walk began, `received` how many rows have come
    since, `shifts` how often rows had moved, `misses` how often in a row the tail was not found, `empties` how often in a
    row nothing new came.

    `began` is the lane's seq at the walk's first page: a stone belongs to this walk if its row was written since. `edge`
    are marks of stones that the upstream lists here though they belong to the next partition (those at exactly `high`).
    `cuts` is how often this range was cut out of a larger one.
    """

    low: int
    high: int
    limit: int
    crawl: int = 1
    offset: int = 0
    tail: Sequence[str] = ()
    empties: int = 0
    misses: int = 0
    shifts: int = 0
    pages: int = 0
    received: int = 0
    duplicates: int = 0
    counted: int | None = None
    began: int = 0
    edge: Sequence[str] = ()
    cuts: int = 0
    split: bool = False
    clean: bool = False

    @classmethod
    def read(cls, cursor: Json) -> Self:
        return cls(**{**cursor, "tail": tuple(cursor["tail"]), "edge": tuple(cursor.get("edge", ()))})

    def to_json(self) -> Json:
        return {**asdict(self), "tail": list(self.tail), "edge": list(self.edge)}

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)

    @property
    def prices(self) -> PriceRange:
        return PriceRange(low=self.low, high=self.high)

    @property
    def key(self) -> str:
        return part_key(self.low, self.high, self.crawl)

    @property
    def from_the_start(self) -> Self:
        """The same crawl, not started yet: what a reset of a partition restarts its lane with."""
        return type(self)(low=self.low, high=self.high, limit=self.limit, crawl=self.crawl, cuts=self.cuts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """What a walk has seen on each side of a price, both sides including the stones at exactly that price.

    `prices` (in cents) are those of the walk's last rows, as far as they are the partition's own.
    """

    below: int
    above: int
    at: Sequence[str]
    prices: Mapping[str, int]

    @property
    def stones(self) -> int:
        return self.below + self.above - len(self.at)


def mark(external_id: str) -> str:
    """A stone in few characters. Two that look alike are counted as one: a crawl is then not clean, never wrongly clean."""
    return base64.b85encode(hashlib.blake2b(external_id.encode(), digest_size=5).digest()).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCursor:
    """Partitions still to be counted again (low, high, crawl, count of that crawl if it was clean), and those that drifted."""

    todo: Sequence[tuple[int, int, int, int | None]]
    drifted: Sequence[tuple[int, int, int]] = ()

    @classmethod
    def read(cls, cursor: Json) -> Self:
        return cls(todo=[tuple(t) for t in cursor["todo"]], drifted=[tuple(d) for d in cursor["drifted"]])

    def to_json(self) -> Json:
        return {"todo": [list(t) for t in self.todo], "drifted": [list(d) for d in self.drifted]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidateCursor:
    """`complete`: the run saw all there was; `drops`: some rows may be of crawls that a later one replaced.

    Rows up to `after` are consolidated; then those up to `gone_after` are judged.
    """

    complete: bool
    drops: bool = False
    after: str = ""
    gone_after: str = ""

    def to_json(self) -> Json:
        return asdict(self)

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


def part_key(low: int, high: int, crawl: int = 1) -> str:
    """The name of a partition's crawl; a later crawl of the same prices has a name of its own."""
    again = "" if crawl == 1 else f"#{crawl}"
    return f"part:{low:010d}-{high:010d}{again}"


def crawl_lane(cursor: CrawlCursor) -> NewLane:
    return NewLane(key=cursor.key, cursor=cursor.to_json())
