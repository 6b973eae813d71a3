"""The bare limit of writing one page of raw items, and the same rows one by one. Never changed together with product code.

Of the forms tried at 30 and at 1,000 rows, `one_statement` was the fastest: columns as parallel lists, the payloads as one
JSON array. Behind it came one array of records (jsonb_array_elements, jsonb_to_recordset, json_to_recordset), text arrays
through unnest, VALUES with five parameters a row, COPY into a temporary table, and lists encoded by the driver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

import orjson

from shared.kernel.flights import Connection
from tests.bench.limits.bare import SET_TENANT
from tests.bench.limits.bare import rows as ask

INSERT = """
insert into raw_item as r (run_id, tenant_id, source, partition, page, seen_at, external_id, offer_id, price_cents, hash, payload)
"""
ON_CONFLICT = """
on conflict (run_id, external_id) do update
set offer_id = excluded.offer_id, price_cents = excluded.price_cents, partition = excluded.partition, page = excluded.page,
    hash = excluded.hash, payload = excluded.payload, seen_at = excluded.seen_at
where r.hash is distinct from excluded.hash
"""
# The columns come sorted by external_id: two pages that share rows lock them in the same order.
ONE_STATEMENT = f"""{INSERT}
select $1::uuid, $2::uuid, $3, $4, $5::bigint, now(), x.* from rows from (
    unnest(string_to_array($6, ',')), unnest(string_to_array($7, ',')), unnest($8::bigint[]),
    unnest(string_to_array($9, ',')), jsonb_array_elements($10::jsonb)) as x
{ON_CONFLICT}"""
ONE_ROW = f"{INSERT} values ($1, $2, $3, $4, $5, now(), $6, $7, $8, $9, $10) {ON_CONFLICT}"


class Stone(Protocol):
    @property
    def external_id(self) -> str: ...
    @property
    def offer_id(self) -> str: ...
    @property
    def price_cents(self) -> int: ...
    @property
    def payload(self) -> Any: ...


class Pages:
    """The pages of one partition of one run."""

    def __init__(self, connection: Connection, run: UUID, tenant: UUID) -> None:
        self._connection = connection
        self._tenant = str(tenant)
        self._fixed = (str(run), self._tenant, "nivoda", "part")

    def one_statement(self, number: int, page: Sequence[Stone]) -> None:
        """One flight; the tenant rides along."""
        stones = sorted(page, key=lambda stone: stone.external_id)
        bodies = [_body(stone) for stone in stones]
        columns = (
            ",".join([stone.external_id for stone in stones]),
            ",".join([stone.offer_id for stone in stones]),
            "{" + ",".join([str(stone.price_cents) for stone in stones]) + "}",
            ",".join([_hash(body) for body in bodies]),
            (b"[" + b",".join(bodies) + b"]").decode(),
        )
        self._connection.before_next(SET_TENANT, self._tenant)
        ask(self._connection, ONE_STATEMENT, *self._fixed, number, *columns)

    def row_by_row(self, number: int, page: Sequence[Stone]) -> None:
        """A flight and a transaction for each row."""
        for stone in page:
            body = _body(stone)
            values = (stone.external_id, stone.offer_id, stone.price_cents, _hash(body), body.decode())
            self._connection.before_next(SET_TENANT, self._tenant)
            ask(self._connection, ONE_ROW, *self._fixed, number, *values)


def _body(stone: Stone) -> bytes:
    return orjson.dumps(stone.payload, option=orjson.OPT_SORT_KEYS)


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]
