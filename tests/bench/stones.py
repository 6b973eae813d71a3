"""The pages that page ingestion is measured with: stones of the upstream's stand-in, as its answers hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from infra.local.standins.nivoda_stones import Stock
from shared.kernel.answers import storable
from shared.page_ingest.model import Item

OVERLAP = 3  # a page begins with the last rows of the one before, as a crawl asks for them


@dataclass(frozen=True, slots=True)
class Offered:
    """An item of an answer that was read, but not yet made ready for its row: that belongs to what is measured."""

    external_id: str
    offer_id: str
    price_cents: int
    payload: Mapping[str, Any]

    def to_item(self) -> Item:
        body = storable(self.payload)
        return Item(external_id=self.external_id, offer_id=self.offer_id, price_cents=self.price_cents, body=body)


@lru_cache
def stone_pages(size: int, count: int) -> list[list[Offered]]:
    new = size - OVERLAP
    stones = Stock(0, stones=new * count + OVERLAP, low=200, high=20_000, clock=lambda: 0.0).stones
    items = [Offered(stone.id, stone.offer_id, stone.price_cents, stone.to_item()) for stone in stones]
    return [items[n * new : n * new + size] for n in range(count)]
