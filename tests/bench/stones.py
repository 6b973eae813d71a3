"""The pages that page ingestion is measured with: stones of the upstream's stand-in, as its adapter hands them on."""

from __future__ import annotations

from functools import lru_cache

from infra.local.standins.nivoda_stones import Stock
from shared.page_ingest.model import Item

OVERLAP = 3  # a page begins with the last rows of the one before, as a crawl asks for them


@lru_cache
def stone_pages(size: int, count: int) -> list[list[Item]]:
    new = size - OVERLAP
    stones = Stock(0, stones=new * count + OVERLAP, low=200, high=20_000, clock=lambda: 0.0).stones
    items = [
        Item(external_id=stone.id, offer_id=stone.offer_id, price_cents=stone.price_cents, payload=stone.to_item())
        for stone in stones
    ]
    return [items[n * new : n * new + size] for n in range(count)]
