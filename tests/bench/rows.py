"""The rows that a measured step writes, and the table they go to: the same for the product, the limits and the peers."""

from __future__ import annotations

import hashlib
from typing import Any

PAGE_ROWS = 30

SCHEMA = """
create table bench_row (
    tenant_id uuid not null,
    run_id uuid not null,
    external_id text not null,
    hash text not null,
    body jsonb not null,
    updated_at timestamptz not null default now(),
    primary key (run_id, external_id)
);
alter table bench_row enable row level security;
alter table bench_row force row level security;
create policy tenant_only on bench_row to baton_worker, baton_api
    using (tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid))
    with check (tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid));
create policy owner_all on bench_row to baton_owner using (true);
grant select, insert, update on bench_row to baton_worker
"""


def page(number: int, size: int = PAGE_ROWS) -> list[dict[str, Any]]:
    """Rows of about 400 bytes of JSON each."""
    return [_row(number * size + n) for n in range(size)]


def _row(number: int) -> dict[str, Any]:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return {
        "external_id": f"item-{number:08d}",
        "hash": digest[:32],
        "name": f"Article {number} of the catalogue",
        "price": {"amount": number % 10_000 / 100, "currency": "EUR"},
        "tags": ["alpha", "beta", digest[:8]],
        "available": number % 3 != 0,
        "text": digest * 3,
    }
