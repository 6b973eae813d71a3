"""The words of saved searches: clients, parameters, windows, pages, what a lane remembers. No I/O."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from shared.kernel.model import Json, account_name
from shared.kernel.settings import Settings

KIND = "search"
LANE = "cycle"
NORM_VERSION = 1
PAGE_SIZE = 50
MAX_PAGES, MAX_OFFERS = 20, 1_000
DAY = timedelta(days=1)


class SearchConfig(Settings):
    """What a deployment may set, each within bounds."""

    cycle_gap_s: Annotated[
        int, Field(ge=60, le=86_400, description="Seconds from the start of a cycle to the start of the next")
    ] = 900
    overlap_hours: Annotated[
        int,
        Field(
            ge=48,
            le=30 * 24,
            description="Hours of the past that are read again: how late an offer may appear and still be found",
        ),
    ] = 48
    seed_days: Annotated[int, Field(ge=1, le=31, description="Days of history in one window")] = 7
    retries: Annotated[
        int,
        Field(
            ge=0, le=20, description="Retries of one execution, for all its pages together, and of one night of a sheet"
        ),
    ] = 3
    rate_limit_pause_s: Annotated[
        int,
        Field(
            ge=60, le=86_400, description="Seconds that a board is left alone after it said that the quota is used up"
        ),
    ] = 6 * 3_600
    refused_pause_s: Annotated[
        int,
        Field(
            ge=60,
            le=86_400,
            description="Seconds after a refused account before one request finds out whether access is back",
        ),
    ] = 86_400

    @property
    def overlap(self) -> timedelta:
        return timedelta(hours=self.overlap_hours)


class Status(StrEnum):
    IDLE = "IDLE"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


# As the trigger on `query_state` has them.
TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.IDLE: frozenset({Status.RUNNING}),
    Status.RUNNING: frozenset({Status.IDLE, Status.SUCCESS, Status.ERROR}),
    Status.SUCCESS: frozenset({Status.RUNNING}),
    Status.ERROR: frozenset({Status.RUNNING}),
}


class Stop(StrEnum):
    """Why an execution ended. Only the first moves the watermark."""

    EXHAUSTED = "window_exhausted"
    RATE_LIMITED = "rate_limited"
    CAP = "cap"
    ERROR = "error"
    CANCELED = "canceled"


class Purpose(StrEnum):
    HEAD = "head"
    SEED = "seed"
    BACKFILL = "backfill"


# --- clients and the parameters that identify a search

LONGEST_TEXT = 200


def _said(value: str) -> str:
    """In its one form it is kept and sent: blanks say nothing there, and one sign may become a whole sentence."""
    if not 0 < len(plain(value)) <= LONGEST_TEXT:
        raise ValueError("must have 1 to 200 characters that aren't blank")
    return value


Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT), AfterValidator(_said)]
Choices = Annotated[list[Text], Field(max_length=50)]


class Identity(BaseModel):
    """What makes a search this one and no other: no dates, no caps, no account."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class InfoJobsQuery(Identity):
    q: Text | None = None
    province: Choices = []
    category: Choices = []
    subcategory: Choices = []
    city: Text | None = None
    country: Text = "espana"
    teleworking: Choices = []
    salary_min: Annotated[int, Field(ge=0, le=10_000_000)] | None = None


class AdzunaQuery(Identity):
    what: Text | None = None
    where: Text | None = None
    category: Text | None = None
    country: Annotated[str, Field(pattern=r"^[A-Za-z]{2}$")] = "es"
    distance: Annotated[int, Field(ge=1, le=500)] | None = None
    salary_min: Annotated[int, Field(ge=0, le=10_000_000)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """`zone`: in which its days begin. `buckets`: how far back it can be asked, in days; further back is everything."""

    name: str
    title: str
    zone: str
    identity: type[Identity]
    buckets: Sequence[int]


CLIENTS: Mapping[str, ClientFacts] = {
    each.name: each
    for each in (
        ClientFacts(
            name="infojobs", title="InfoJobs", zone="Europe/Madrid", identity=InfoJobsQuery, buckets=(1, 7, 15)
        ),
        ClientFacts(
            name="adzuna", title="Adzuna", zone="UTC", identity=AdzunaQuery, buckets=tuple(range(1, 367))
        ),
    )
}  # fmt: skip


def canonical(client: str, params: Json) -> Json:
    """The identity parameters in their one form: order, case, Unicode spelling, blanks and defaults do not matter."""
    return _in_one_form(client, CLIENTS[client].identity.model_validate(dict(params)).model_dump())


def _in_one_form(client: str, given: Json) -> Json:
    usual = {name: plain(value) for name, value in CLIENTS[client].identity().model_dump().items()}
    named = {name: plain(value) for name, value in given.items()}
    return {name: value for name, value in sorted(named.items()) if value != usual.get(name)}


def plain(value: Any) -> Any:
    if isinstance(value, str):
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", value).casefold())
        return " ".join(folded.split())
    if isinstance(value, list):
        return sorted({plain(each) for each in value})
    return value


def query_key(client: str, params: Json, version: int = NORM_VERSION) -> str:
    """The same for the same search, for ever: what it is made of must not change without a new version."""
    told = json.dumps(canonical(client, params), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{client}\n{version}\n{told}".encode()).hexdigest()


def changes(client: str, before: Json, after: Json) -> list[dict[str, Any]]:
    """What a person is shown when parameters change: which, from what, to what. What was saved once need not be what may be
    saved today."""
    old, new = _in_one_form(client, before), canonical(client, after)
    return [
        {"parameter": name, "before": old.get(name), "after": new.get(name)}
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


class CycleParams(BaseModel):
    """A cycle is asked for nothing: what is due decides. `sheet`: not a cycle, but the next night of this sheet."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    sheet: Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")] | None = None


# --- what a client answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An offer of any client in one shape. `at` orders and dates it: when it was last updated there."""

    external_id: str
    title: str
    at: datetime
    published_at: datetime | None = None
    company: str | None = None  # the company's own id at the client; None: it is hidden
    company_name: str | None = None
    company_link: str | None = None
    location: str | None = None
    link: str | None = None
    salary: str | None = None
    payload: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A record that is JSON and no offer. `key` is its id at the client, or a hash of it."""

    key: str
    problem: str
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`total`: how many there are in all. `size`: of a full page. `is_last`: the client says that nothing follows."""

    offers: Sequence[Offer]
    bad: Sequence[Bad]
    total: int
    size: int
    is_last: bool

    @property
    def mark(self) -> str:
        """Equal for equal pages."""
        ids = sorted([each.external_id for each in self.offers] + [each.key for each in self.bad])
        return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16] if ids else ""


# --- windows and walks


@dataclass(frozen=True, slots=True)
class Window:
    """Instants from `lo` on, and before `hi`."""

    lo: datetime
    hi: datetime


WALK_TIMES = ("lo", "hi", "reached", "began_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """One window being read, newest first, page by page: what is kept if it is not read to its end.

    `reached`: everything in the window from there on was read; `began_at`: what of it an earlier execution had.
    `aligned`: the pages follow on what was read before.
    """

    purpose: str
    lo: datetime
    hi: datetime
    page: int = 1
    reached: datetime | None = None
    began_at: datetime | None = None
    aligned: bool = False
    total: int | None = None
    bucket: int | None = None
    mark: str = ""
    backs: int = 0

    @classmethod
    def read(cls, told: Json) -> Self:
        times = {name: datetime.fromisoformat(told[name]) for name in WALK_TIMES if told.get(name)}
        return cls(**{**told, **times})

    def to_json(self) -> dict[str, Any]:
        told = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        return {**told, **{name: told[name].isoformat() for name in WALK_TIMES if name in told}}

    def but(self, **new: Any) -> Self:
        return replace(self, **new)

    @property
    def window(self) -> Window:
        return Window(self.lo, self.hi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one execution is about, and what it has spent. `retries`: those of the pages before this one."""

    ingestion: str
    search: str
    name: str
    query_key: str
    client: str
    connection: str
    params: Json
    max_pages: int
    max_offers: int
    every_s: int
    walk: Walk
    backfill: str | None = None
    failures: int = 0  # in a row, before this one
    pages: int = 0
    offers: int = 0
    retries: int = 0

    @classmethod
    def read(cls, told: Json) -> Self:
        return cls(**{**told, "walk": Walk.read(told["walk"])})

    def to_json(self) -> dict[str, Any]:
        return {
            **{
                name: getattr(self, name)
                for name in self.__slots__
                if name != "walk" and getattr(self, name) is not None
            },
            "params": dict(self.params),
            "walk": self.walk.to_json(),
        }

    def but(self, **new: Any) -> Self:
        return replace(self, **new)

    @property
    def account(self) -> str:
        return account_name(self.client, self.connection)


class Phase(StrEnum):
    PICK = "pick"
    FETCH = "fetch"
    AGGREGATE = "aggregate"


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleCursor:
    """What the one lane of a cycle remembers."""

    phase: str = Phase.PICK
    epoch: int = 1
    begun: bool = False
    job: Json | None = None
    ingestion: str | None = None  # whose companies are being aggregated
    singles: int = 0  # companies that are still to be aggregated one by one

    @classmethod
    def read(cls, told: Json) -> Self:
        return cls(**told)

    def to_json(self) -> Json:
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}

    def but(self, **new: Any) -> Self:
        return replace(self, **new)


def company_id(tenant_id: UUID, client: str, external: str) -> UUID:
    """The same company gets the same id, whoever sees it first."""
    return UUID(bytes=hashlib.sha256(f"{tenant_id}\n{client}\n{external}".encode()).digest()[:16], version=5)
