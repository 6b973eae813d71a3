"""The bare limit of one page of a saved search: claim, then one guarded commit with its offers, companies and counters.

Never changed together with product code (see README.md).
"""

from __future__ import annotations

import hashlib
import unicodedata
import uuid
from collections.abc import Sequence
from typing import Any

import orjson

from shared.kernel.flights import Connection
from tests.bench.limits.bare import SET_TENANT
from tests.bench.limits.bare import rows as ask
from tests.bench.limits.bare import rows_often as ask_often
from tests.bench.limits.step import CLAIM, NEW_RUN, new_uuid

COMMIT = """
with turn as (
    update lane
    set seq = seq + 1, cursor = $5, steps = steps + 1, attempts = 0, claims = 0, resends = 0, claim_token = null,
        lease_until = null, updated_at = now(), next_due_at = now(), sent_at = now(),
        check_at = least(check_at, now() + interval '90 s')
    where id = $1 and epoch = $2 and seq = $3 and claim_token = $4 and status = 'active'
    returning id, run_id, tenant_id, kind, epoch, seq, resend_no),
ledger as (
    insert into step (lane_id, epoch, seq, tenant_id, outcome, rows, ms)
    select id, epoch, seq - 1, tenant_id, 'moved', 50, 0 from turn),
found as (
    insert into offers as o (tenant_id, client, external_id, company_id, title, location, link, salary, published_at,
                             updated_at, fingerprint, found_by, hash, payload, first_seen_at, seen_at)
    select turn.tenant_id, 'infojobs', i ->> 0, (i ->> 1)::uuid, i ->> 2, i ->> 3, i ->> 4, i ->> 5, (i ->> 6)::timestamptz,
           (i ->> 7)::timestamptz, i ->> 8, array[$7::text], i ->> 9, i -> 10, now(), now()
    from turn, jsonb_array_elements($6::jsonb) as i order by 3
    on conflict (tenant_id, client, external_id) do update
    set company_id = excluded.company_id, title = excluded.title, location = excluded.location, link = excluded.link,
        salary = excluded.salary, published_at = excluded.published_at, updated_at = excluded.updated_at,
        fingerprint = excluded.fingerprint, hash = excluded.hash, payload = excluded.payload, seen_at = excluded.seen_at,
        found_by = case when o.found_by @> excluded.found_by then o.found_by else o.found_by || excluded.found_by end
    where o.updated_at <= excluded.updated_at
      and (o.hash <> excluded.hash or not o.found_by @> excluded.found_by or o.seen_at < now() - interval '12 hours')),
behind as (
    insert into companies as c (tenant_id, id, client, external_id, name, link, first_seen_at, last_seen_at)
    select turn.tenant_id, (i ->> 0)::uuid, 'infojobs', i ->> 1, i ->> 2, i ->> 3, now(), now()
    from turn, jsonb_array_elements($8::jsonb) as i order by 2
    on conflict (tenant_id, id) do update
    set name = excluded.name, link = coalesce(excluded.link, c.link), last_seen_at = excluded.last_seen_at, dirty = true),
drained as (
    update search_quarantine z set resolved_at = now(), resolution = 'read', replay_at = null from turn
    where z.tenant_id = turn.tenant_id and z.client = 'infojobs' and z.resolved_at is null and z.key = any($10::text[])),
counted as (
    update ingestion_runs i set pages_fetched = i.pages_fetched + 1, offers_fetched = i.offers_fetched + 50,
           requests_count = i.requests_count + 1
    from turn where i.id = $9)
select id, epoch, seq, resend_no from turn
"""
NEW_EXECUTION = """
insert into ingestion_runs (id, tenant_id, run_id, search_id, query_key, client, purpose, window_from, window_to)
values ($1, $2, $1, $1, $3, 'infojobs', 'head', now(), now())
"""


class Lane:
    """One search in the hands of a bare loop."""

    def __init__(self, connection: Connection, tenant: uuid.UUID, key: str) -> None:
        self._connection, self._tenant, self._key = connection, tenant, key
        self._seq, self.id, self._execution = 0, new_uuid(), new_uuid()

    def create(self, cursor: Any) -> None:
        self._cursor = orjson.dumps(cursor).decode()
        ask(self._connection, NEW_RUN, new_uuid(), str(self._tenant), "{}", self.id)
        self._connection.before_next(SET_TENANT, str(self._tenant))
        ask(self._connection, NEW_EXECUTION, self._execution, str(self._tenant), str(self._execution))

    def step(self, offers: Sequence[Any]) -> None:
        """Two flights; the tenant rides in the second."""
        token = new_uuid()
        ask_often(self._connection, CLAIM, token, self.id, 1, self._seq)
        rows = [_row(self._tenant, offer) for offer in offers]
        companies = {offer.company: (row[1], offer.company, offer.company_name, None) for offer, row in zip(offers, rows, strict=True)}  # fmt: skip
        self._connection.before_next(SET_TENANT, str(self._tenant))
        ((_, _, self._seq, _),) = ask_often(
            self._connection, COMMIT, self.id, 1, self._seq, token, self._cursor, orjson.dumps(rows).decode(), self._key,
            orjson.dumps(list(companies.values())).decode(), self._execution, [offer.external_id for offer in offers],
        )  # fmt: skip


def _row(tenant: uuid.UUID, offer: Any) -> list[Any]:
    company = str(
        uuid.UUID(bytes=hashlib.sha256(f"{tenant}\ninfojobs\n{offer.company}".encode()).digest()[:16], version=5)
    )
    words = "\n".join((company, _plain(offer.title), _plain(offer.location or "")))
    return [
        offer.external_id, company, offer.title, offer.location, offer.link, offer.salary, None, offer.at.isoformat(),
        hashlib.sha256(words.encode()).hexdigest()[:32], hashlib.sha256(orjson.dumps(offer.payload)).hexdigest()[:32],
        offer.payload,
    ]  # fmt: skip


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
