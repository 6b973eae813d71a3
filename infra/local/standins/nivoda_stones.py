"""The stand-in's diamonds: made from a seed, changed on demand, and every change remembered so that tests know the truth."""

from __future__ import annotations

import bisect
import math
import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

SHAPES = ("ROUND", "OVAL", "EMERALD", "CUSHION", "ASSCHER", "RADIANT", "MARQUISE", "PEAR", "PRINCESS", "HEART")
COLORS = tuple("DEFGHIJK")
CLARITIES = ("FL", "IF", "VVS1", "VVS2", "VS1", "VS2", "SI1", "SI2")
GRADES = ("EX", "VG", "GD")
LABS = ("GIA", "IGI", "HRD")
EPOCH = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stone:
    id: str
    offer_id: str
    price_cents: int
    created: int  # minutes since EPOCH; no two stones share one
    labgrown: bool
    availability: str
    carats: float
    shape: str
    rest: dict[str, str] = field(hash=False)

    @property
    def created_at(self) -> str:
        return (EPOCH + timedelta(minutes=self.created)).isoformat()

    def to_item(self) -> dict[str, Any]:
        """The stone as an item of `diamonds_by_query`, with every field that can be asked for."""
        certificate = {
            "id": f"{self.id}-certificate",
            "shape": self.shape,
            "carats": self.carats,
            "labgrown": self.labgrown,
            **self.rest,
        }
        diamond = {
            "id": self.id,
            "availability": self.availability,
            "supplierStockId": f"S{self.created}",
            "image": None,
            "video": None,
            "certificate": certificate,
        }
        return {"id": self.offer_id, "price": self.price_cents, "discount": None, "diamond": diamond}


class Happening(StrEnum):
    INSERTED = "inserted"
    DELETED = "deleted"
    REPRICED = "repriced"


@dataclass(frozen=True, slots=True)
class Change:
    at: float
    what: Happening
    stone_id: str
    price_before: int | None
    price_after: int | None


@dataclass(slots=True)
class _Life:
    born: float
    died: float | None
    prices: list[tuple[float, int]]  # each since when

    def outlived(self, moment: float) -> bool:
        return self.died is None or self.died > moment

    def over_before(self, moment: float) -> bool:
        return self.died is not None and self.died < moment


class Stock:
    """Safe to use from any thread. Times are those of the clock that it was given."""

    def __init__(self, seed: int, stones: int, low: int, high: int, clock: Callable[[], float]) -> None:
        self.low, self.high = low, high
        self.history: list[Change] = []
        self._random = random.Random(f"catalogue {seed}")  # noqa: S311 - repeatable, not secret
        self._clock = clock
        self._lock = threading.RLock()
        self._stones: list[Stone] = []  # oldest first
        self._lives: dict[str, _Life] = {}
        self._matches: dict[tuple[float, float], list[Stone]] = {}
        for number in range(stones):
            self._add(self._made(number, None), -math.inf)

    @property
    def stones(self) -> tuple[Stone, ...]:
        with self._lock:
            return tuple(self._stones)

    def between(self, low_cents: float, high_cents: float) -> list[Stone]:
        """The stones of a price range, both ends included, oldest first."""
        with self._lock:
            if (low_cents, high_cents) not in self._matches:
                self._matches[low_cents, high_cents] = [
                    stone for stone in self._stones if low_cents <= stone.price_cents <= high_cents
                ]
            return self._matches[low_cents, high_cents]

    # --- changes

    def insert(self, *, price_cents: int | None = None, oldest: bool = False) -> str:
        """A new stone, as the newest or (which moves every offset) as the oldest."""
        with self._lock:
            created = 0
            if self._stones:
                created = self._stones[0].created - 1 if oldest else self._stones[-1].created + 1
            stone, now = self._made(created, price_cents), self._clock()
            self._add(stone, now)
            self.history.append(Change(now, Happening.INSERTED, stone.id, None, stone.price_cents))
            return stone.id

    def delete(self, stone_id: str | None = None) -> str | None:
        """Take away this stone, or any; None if there is none left."""
        with self._lock:
            at = self._position(stone_id)
            if at is None:
                return None
            stone, now = self._stones.pop(at), self._clock()
            self._matches.clear()
            self._lives[stone.id].died = now
            self.history.append(Change(now, Happening.DELETED, stone.id, stone.price_cents, None))
            return stone.id

    def reprice(self, stone_id: str | None = None, price_cents: int | None = None) -> str | None:
        """Give this stone, or any, this price, or any."""
        with self._lock:
            at = self._position(stone_id)
            if at is None:
                return None
            before, now = self._stones[at], self._clock()
            after = replace(before, price_cents=self._price() if price_cents is None else price_cents)
            self._stones[at] = after
            self._matches.clear()
            self._lives[after.id].prices.append((now, after.price_cents))
            self.history.append(Change(now, Happening.REPRICED, after.id, before.price_cents, after.price_cents))
            return after.id

    def swap(self, one: int, other: int) -> None:
        """Two stones change places in the list; whatever was first made is not first listed any more."""
        with self._lock:
            stones = self._stones
            first, second = stones[one], stones[other]
            stones[one] = replace(second, created=first.created)
            stones[other] = replace(first, created=second.created)
            self._matches.clear()

    def shift(self, *, deletes: int = 0, inserts: int = 0, reprices: int = 0) -> None:
        """So many changes of each sort, to stones that chance picks."""
        with self._lock:
            for _ in range(deletes):
                self.delete()
            for _ in range(inserts):
                self.insert()
            for _ in range(reprices):
                self.reprice()

    # --- the truth

    def held_throughout(self, since: float, until: float = math.inf) -> frozenset[str]:
        """The stones that were there all the time: what a crawl from `since` to `until` must have found."""
        with self._lock:
            return frozenset(key for key, life in self._lives.items() if life.born < since and life.outlived(until))

    def unchanged_throughout(self, since: float, until: float = math.inf) -> frozenset[str]:
        """Those of them that kept their price, and so their place in every range."""
        with self._lock:
            return frozenset(key for key in self.held_throughout(since, until) if not self._repriced(key, since, until))

    def ever_held(self, since: float, until: float = math.inf) -> frozenset[str]:
        """The stones that were there for a moment at least: a crawl cannot have found others."""
        with self._lock:
            return frozenset(
                key for key, life in self._lives.items() if life.born <= until and not life.over_before(since)
            )

    def prices_held(self, stone_id: str, since: float, until: float = math.inf) -> frozenset[int]:
        """Every price that the stone had in that time."""
        with self._lock:
            prices = self._lives[stone_id].prices
            ends = [at for at, _ in prices[1:]] + [math.inf]
            return frozenset(
                price for (at, price), end in zip(prices, ends, strict=True) if at <= until and end >= since
            )

    def _repriced(self, stone_id: str, since: float, until: float) -> bool:
        return any(since <= at <= until for at, _ in self._lives[stone_id].prices[1:])

    # --- making

    def _position(self, stone_id: str | None) -> int | None:
        if stone_id is None:
            return self._random.randrange(len(self._stones)) if self._stones else None
        return next((at for at, stone in enumerate(self._stones) if stone.id == stone_id), None)

    def _add(self, stone: Stone, born: float) -> None:
        bisect.insort(self._stones, stone, key=lambda each: each.created)
        self._matches.clear()
        self._lives[stone.id] = _Life(born, None, [(born, stone.price_cents)])

    def _made(self, created: int, price_cents: int | None) -> Stone:
        chance = self._random
        return Stone(
            id=str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            offer_id=f"DIAMOND/{uuid.UUID(int=chance.getrandbits(128), version=4)}",
            price_cents=self._price() if price_cents is None else price_cents,
            created=created,
            labgrown=chance.random() < 0.3,
            availability="AVAILABLE" if chance.random() < 0.9 else "ON_HOLD",
            carats=round(chance.uniform(0.3, 5.0), 2),
            shape=chance.choice(SHAPES),
            rest={
                "lab": chance.choice(LABS),
                "certNumber": str(chance.randrange(10**9, 10**10)),
                "color": chance.choice(COLORS),
                "clarity": chance.choice(CLARITIES),
                **{grade: chance.choice(GRADES) for grade in ("cut", "polish", "symmetry")},
            },
        )

    def _price(self) -> int:
        """Often a whole dollar or a round hundred, where the borders of price ranges lie."""
        chance = self._random
        roundness = chance.choice((1, 1, 50, 100, 10_000))
        cents = chance.randrange(self.low * 100, self.high * 100)
        return max(cents // roundness * roundness, self.low * 100)
