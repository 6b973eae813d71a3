"""What page ingestion needs from outside: an upstream that answers pages of offers, tokens for it, and its own rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.kernel.errors import Transient
from shared.kernel.model import Turn
from shared.kernel.tokens import Token, TokenSource
from shared.page_ingest.model import CrawlCursor, Page, PriceRange, Walked


@dataclass(eq=False)
class PageTooBig(Transient):
    """The upstream could not answer a page of this size: ask for less."""

    code: str = "page_too_big"


class Upstream(Protocol):
    """The offers, oldest stones first. Whatever is not a proper answer raises a StepError, never an empty page."""

    def authenticate(self) -> Token: ...

    def count(self, token: str, prices: PriceRange) -> int:
        """How many offers pages of this range walk through: those at exactly `high` dollars too, though no page keeps them."""

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page: ...


class Memory(Protocol):
    """What steps read beside their commit; the store has it."""

    def page_size(self, turn: Turn, account: str) -> int | None:
        """The largest page that the account can bear for now; None: any."""

    def forget_page_size(self, turn: Turn, account: str) -> None:
        """It is about to change: what this process remembers of it does not hold."""

    def stones_walked(self, turn: Turn, cursor: CrawlCursor, ids: Sequence[str]) -> int:
        """How many different stones of its own range this walk has seen, together with these."""

    def walked(self, turn: Turn, cursor: CrawlCursor, at_cents: int) -> Walked: ...
    def batch_ends_at(self, turn: Turn, after: str, most: int) -> str | None: ...
    def gone_ends_at(self, turn: Turn, source: str, cents: tuple[int, int], after: str, most: int) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """`upstream` makes the client of a source for one step, bounded by the time that the step has left. `pages_per_step`: the most
    pages that a step reads."""

    upstream: Callable[[str, Turn, Callable[[], float]], Upstream]
    tokens: TokenSource
    store: Memory
    pages_per_step: int = 1
