"""All SQL of page ingestion."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.model import Effect, Statement, Turn
from shared.page_ingest.ports import Item, Token

# One statement for a page. Rows that did not change are not written; keys come sorted, so two lanes cannot deadlock.
UPSERT_PAGE = Statement(
    "page_ingest.upsert_page",
    """insert into raw_item as r (run_id, external_id, tenant_id, source, offer_id, price_cents, partition, page, hash, payload, seen_at)
       select turn.run_id, item ->> 'external_id', turn.tenant_id, :source, item ->> 'offer_id',
              (item ->> 'price_cents')::bigint, turn.key, turn.seq, item ->> 'hash', item -> 'payload', now()
       from turn, jsonb_array_elements(cast(:items as jsonb)) as item
       order by 2
       on conflict (run_id, external_id) do update
       set offer_id = excluded.offer_id, price_cents = excluded.price_cents, partition = excluded.partition,
           page = excluded.page, hash = excluded.hash, payload = excluded.payload, seen_at = excluded.seen_at
       where r.hash is distinct from excluded.hash""",
)

REMEMBER_PAGE_SIZE = Statement(
    "page_ingest.remember_page_size",
    """insert into upstream as u (tenant_id, source, page_size) select tenant_id, :upstream, :page_size from turn
       on conflict (tenant_id, source) do update set page_size = least(u.page_size, excluded.page_size)""",
)

# The newest run wins. `after` and `upto` are external ids of this run: a batch is a range of its primary key.
CONSOLIDATE = Statement(
    "page_ingest.consolidate",
    """insert into diamond as d (tenant_id, source, external_id, offer_id, price_cents, carats, shape, color, clarity, lab,
                                 certificate, availability, rest, source_run, source_run_at)
       select i.tenant_id, i.source, i.external_id, i.offer_id, i.price_cents,
              case when jsonb_typeof(c.c -> 'carats') = 'number' then (c.c ->> 'carats')::numeric end,
              c.c ->> 'shape', c.c ->> 'color', c.c ->> 'clarity', c.c ->> 'lab', c.c ->> 'certNumber',
              i.payload -> 'diamond' ->> 'availability', i.payload, i.run_id, run.created_at
       from turn
       join run on run.id = turn.run_id
       join raw_item i on i.run_id = turn.run_id and i.external_id > :after and i.external_id <= :upto
       cross join lateral (select i.payload -> 'diamond' -> 'certificate' as c) c
       order by i.external_id
       on conflict (tenant_id, source, external_id) do update
       set offer_id = excluded.offer_id, price_cents = excluded.price_cents, carats = excluded.carats, shape = excluded.shape,
           color = excluded.color, clarity = excluded.clarity, lab = excluded.lab, certificate = excluded.certificate,
           availability = excluded.availability, rest = excluded.rest, source_run = excluded.source_run,
           source_run_at = excluded.source_run_at, gone_at = null
       where (d.source_run_at, d.source_run) <= (excluded.source_run_at, excluded.source_run)""",
)

# A complete run knows what is not there any more. Nothing is deleted.
MARK_GONE = Statement(
    "page_ingest.mark_gone",
    """update diamond d set gone_at = now()
       from turn, run
       where run.id = turn.run_id and d.tenant_id = turn.tenant_id and d.source = :source and d.gone_at is null
         and d.price_cents >= :low_cents and d.price_cents < :high_cents
         and d.source_run <> turn.run_id and d.source_run_at <= run.created_at""",
)

BATCH_ENDS_AT = sa.text("""
select max(external_id) from (
    select external_id from raw_item where run_id = :run_id and external_id > :after order by external_id limit :most) batch
""")

# A token that holds for a while yet; or the right to fetch a new one; or neither, while somebody else fetches it.
TAKE_TOKEN = sa.text("""
with fresh as (
    select token from upstream where tenant_id = :tenant_id and source = :source and token_until > now() + interval '60 s'),
taken as (
    insert into upstream as u (tenant_id, source, refresher, refresh_until)
    select :tenant_id, :source, :refresher, now() + interval '30 s' where not exists (select from fresh)
    on conflict (tenant_id, source) do update set refresher = excluded.refresher, refresh_until = excluded.refresh_until
    where u.refresh_until is null or u.refresh_until < now()
    returning refresher)
select (select token from fresh) as token, exists (select from taken) as ours
""")
SAVE_TOKEN = sa.text("""
update upstream set token = :token, token_until = now() + make_interval(secs => cast(:lives_s as double precision)),
                    refresher = null, refresh_until = null
where tenant_id = :tenant_id and source = :source and refresher = :refresher
""")
FORGET_TOKEN = sa.text("""
update upstream set token = null, token_until = null where tenant_id = :tenant_id and source = :source and token = :token
""")
PAGE_SIZE = sa.text("select page_size from upstream where tenant_id = :tenant_id and source = :source")


class PageStore:
    """What steps read and write beside their commit. Every statement is bound to the tenant of the turn."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def take_token(self, turn: Turn, source: str) -> tuple[str | None, bool]:
        params = {"tenant_id": turn.tenant_id, "source": source, "refresher": turn.token}
        with direct.alone(self._engine, turn.tenant_id) as line:
            row = line.one(TAKE_TOKEN, params)
        assert row is not None
        return row["token"], row["ours"]

    def save_token(self, turn: Turn, source: str, token: Token) -> None:
        params = {"tenant_id": turn.tenant_id, "source": source, "refresher": turn.token}
        self._run(turn.tenant_id, SAVE_TOKEN, {**params, "token": token.value, "lives_s": token.expires_in_s})

    def forget_token(self, turn: Turn, source: str, token: str) -> None:
        self._run(turn.tenant_id, FORGET_TOKEN, {"tenant_id": turn.tenant_id, "source": source, "token": token})

    def page_size(self, turn: Turn, source: str) -> int | None:
        with direct.alone(self._engine, turn.tenant_id) as line:
            sizes = line.scalars(PAGE_SIZE, {"tenant_id": turn.tenant_id, "source": source})
        return sizes[0] if sizes else None

    def batch_ends_at(self, turn: Turn, after: str, most: int) -> str | None:
        with direct.alone(self._engine, turn.tenant_id) as line:
            found = line.scalars(BATCH_ENDS_AT, {"run_id": turn.run_id, "after": after, "most": most})
        return found[0] if found else None

    def _run(self, tenant_id: UUID, statement: sa.TextClause, params: dict[str, Any]) -> None:
        with direct.alone(self._engine, tenant_id) as line:
            line.run(statement, params)


def upsert_page(source: str, items: Iterable[Item]) -> tuple[Effect, int]:
    """The page's rows, each stone once (the last one counts), and how many they are."""
    rows = {item.external_id: _row(item) for item in items}
    return Effect(UPSERT_PAGE, {"source": source, "items": db.jsonb(list(rows.values()))}), len(rows)


def _row(item: Item) -> dict[str, Any]:
    body = orjson.dumps(item.payload, option=orjson.OPT_SORT_KEYS)
    return {
        "external_id": item.external_id,
        "offer_id": item.offer_id,
        "price_cents": item.price_cents,
        "hash": hashlib.sha256(body).hexdigest()[:32],
        "payload": item.payload,
    }
