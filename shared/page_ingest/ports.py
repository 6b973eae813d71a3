"""What the ingestion of a catalogue needs from outside: an upstream that answers pages of offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shared.kernel.errors import Transient
from shared.kernel.model import Turn

HIGHEST_DOLLARS = 2**31 - 1  # a GraphQL Int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One offer of one stone. The payload is the item as it came, save what Postgres cannot store."""

    external_id: str
    offer_id: str
    price_cents: int
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One answer. The offset moves by `fetched`, whatever the range kept; `ids` are the stones of all that was fetched."""

    items: tuple[Item, ...]
    fetched: int
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Token:
    value: str = field(repr=False)
    expires_in_s: int


@dataclass(eq=False)
class PageTooBig(Transient):
    """The upstream could not answer a page of this size: ask for less."""

    code: str = "page_too_big"


@dataclass(eq=False)
class TokenExpired(Transient):
    """The upstream does not accept the token (any more): authenticate again."""

    code: str = "token_expired"


class Upstream(Protocol):
    """The catalogue, oldest stones first. Whatever is not a proper answer raises a StepError, never an empty page."""

    def authenticate(self) -> Token: ...

    def count(self, token: str, prices: PriceRange) -> int:
        """How many offers pages of this range walk through: those at exactly `high` dollars too, though no page keeps them."""

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the tenant's steps know together of an upstream; `ours`: the right to fetch a new token."""

    token: str | None = field(repr=False)
    ours: bool
    page_size: int | None


class Memory(Protocol):
    """What steps read and write beside their commit; the store has it. Tokens and page sizes belong to an account."""

    def look_up(self, turn: Turn, account: str) -> Known: ...
    def save_token(self, turn: Turn, account: str, token: Token) -> None: ...
    def give_up_token(self, turn: Turn, account: str) -> None: ...
    def forget_token(self, turn: Turn, account: str, token: str) -> None: ...
    def batch_ends_at(self, turn: Turn, after: str, most: int) -> str | None: ...
    def gone_ends_at(self, turn: Turn, source: str, cents: tuple[int, int], after: str, most: int) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """`upstream` makes the client of a source for one step, bounded by the time that the step has left."""

    upstream: Callable[[str, Turn, Callable[[], float]], Upstream]
    store: Memory
