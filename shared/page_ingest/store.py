"""All SQL of page ingestion."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import orjson
import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.model import Effect, Statement, Turn
from shared.page_ingest.ports import Item, Known, Token

# One statement for a page. Rows that did not change are not written; keys come sorted, so two lanes cannot deadlock.
UPSERT_PAGE = Statement(
    "page_ingest.upsert_page",
    """insert into raw_item as r (run_id, external_id, tenant_id, source, offer_id, price_cents, partition, page, hash, payload, seen_at)
       select turn.run_id, item ->> 0, turn.tenant_id, :source, item ->> 1, (item ->> 2)::bigint, turn.key, turn.seq,
              item ->> 3, item -> 4, now()
       from turn, jsonb_array_elements(cast(:items as jsonb)) as item
       order by 2
       on conflict (run_id, external_id) do update
       set offer_id = excluded.offer_id, price_cents = excluded.price_cents, partition = excluded.partition,
           page = excluded.page, hash = excluded.hash, payload = excluded.payload, seen_at = excluded.seen_at
       where r.hash is distinct from excluded.hash""",
)

REMEMBER_PAGE_SIZE = Statement(
    "page_ingest.remember_page_size",
    """insert into upstream as u (tenant_id, source, page_size, page_size_until)
       select tenant_id, :upstream, :page_size, now() + interval '1 day' from turn
       on conflict (tenant_id, source) do update
       set page_size = case when u.page_size_until > now() then least(u.page_size, excluded.page_size)
                            else excluded.page_size end,
           page_size_until = excluded.page_size_until""",
)

# The newest run that says anything of a stone wins. A batch is a range of this run's external ids.
# A run that comes late must not bring back what a newer complete run has looked for and not seen.
CONSOLIDATE = Statement(
    "page_ingest.consolidate",
    """with newer as materialized (
           select n.id, n.params ->> 'source' as source, (n.params ->> 'low')::bigint * 100 as low_cents,
                  (n.params ->> 'high')::bigint * 100 as high_cents
           from turn
           join run on run.id = turn.run_id
           join run n on n.tenant_id = turn.tenant_id and n.kind = turn.kind and (n.created_at, n.id) > (run.created_at, run.id)
           where exists (select from lane c where c.run_id = n.id and c.key like 'consolidate:%'
                                              and (c.cursor ->> 'complete')::boolean))
       insert into diamond as d (tenant_id, source, external_id, offer_id, price_cents, carats, shape, color, clarity, lab,
                                 certificate, availability, rest, source_run, said_by, said_at, gone_at)
       select i.tenant_id, i.source, i.external_id, i.offer_id, i.price_cents,
              case when jsonb_typeof(c.c -> 'carats') = 'number' then (c.c ->> 'carats')::numeric end,
              c.c ->> 'shape', c.c ->> 'color', c.c ->> 'clarity', c.c ->> 'lab', c.c ->> 'certNumber',
              i.payload -> 'diamond' ->> 'availability', i.payload, i.run_id, i.run_id, run.created_at,
              (select now() from newer n
               where n.source = i.source and i.price_cents >= n.low_cents and i.price_cents < n.high_cents
                 and not exists (select from raw_item x where x.run_id = n.id and x.external_id = i.external_id)
               limit 1)
       from turn
       join run on run.id = turn.run_id
       join raw_item i on i.run_id = turn.run_id and i.external_id > :after and i.external_id <= :upto
       cross join lateral (select i.payload -> 'diamond' -> 'certificate' as c) c
       order by i.external_id
       on conflict (tenant_id, source, external_id) do update
       set offer_id = excluded.offer_id, price_cents = excluded.price_cents, carats = excluded.carats, shape = excluded.shape,
           color = excluded.color, clarity = excluded.clarity, lab = excluded.lab, certificate = excluded.certificate,
           availability = excluded.availability, rest = excluded.rest, source_run = excluded.source_run,
           said_by = excluded.said_by, said_at = excluded.said_at, gone_at = excluded.gone_at
       where (d.said_at, d.said_by) <= (excluded.said_at, excluded.said_by)""",
)

# A complete run knows what is not there any more. Nothing is deleted.
_UNSEEN = """d.source = :source and d.gone_at is null and d.price_cents >= :low_cents and d.price_cents < :high_cents
         and d.external_id > :gone_after and d.source_run <> run.id and (d.said_at, d.said_by) < (run.created_at, run.id)"""
MARK_GONE = Statement(
    "page_ingest.mark_gone",
    f"""update diamond d set gone_at = now(), said_by = run.id, said_at = run.created_at
       from turn join run on run.id = turn.run_id
       where d.tenant_id = turn.tenant_id and d.external_id <= :gone_upto and {_UNSEEN}""",  # noqa: S608 - our own words
)
GONE_ENDS_AT = sa.text(f"""
select max(external_id) from (
    select d.external_id from run join diamond d on d.tenant_id = run.tenant_id
    where run.id = :run_id and {_UNSEEN}
    order by d.external_id limit :most) batch
""")  # noqa: S608 - our own words

BATCH_ENDS_AT = sa.text("""
select max(external_id) from (
    select external_id from raw_item where run_id = :run_id and external_id > :after order by external_id limit :most) batch
""")

# What a run leaves behind besides its lanes. Diamonds belong to no run: they stay.
PRUNE = Statement(
    "page_ingest.prune",
    """delete from raw_item where ctid = any(array(
           select ctid from raw_item where run_id = :run_id order by external_id limit :most))""",
)

# A token that holds; or the right to fetch a new one; or neither, while somebody else fetches it.
LOOK_UP = sa.text("""
with known as (
    select case when token_until > now() then token end as token,
           case when page_size_until > now() then page_size end as page_size
    from upstream where tenant_id = :tenant_id and source = :source),
taken as (
    insert into upstream as u (tenant_id, source, refresher, refresh_until)
    select :tenant_id, :source, :refresher, now() + interval '30 s'
    where not exists (select from known where token is not null)
    on conflict (tenant_id, source) do update set refresher = excluded.refresher, refresh_until = excluded.refresh_until
    where (u.refresh_until is null or u.refresh_until < now()) and (u.token_until is null or u.token_until <= now())
    returning refresher)
select (select token from known) as token, (select page_size from known) as page_size, exists (select from taken) as ours
""")
# A token is given up a little before its end: a step that begins with it must be able to end with it.
SAVE_TOKEN = sa.text("""
update upstream set token = :token, refresher = null, refresh_until = null,
    token_until = now() + make_interval(secs => cast(:lives_s as double precision) - least(60, cast(:lives_s as double precision) / 2))
where tenant_id = :tenant_id and source = :source and refresher = :refresher
""")
GIVE_UP_TOKEN = sa.text("""
update upstream set refresher = null, refresh_until = null
where tenant_id = :tenant_id and source = :source and refresher = :refresher
""")
FORGET_TOKEN = sa.text("""
update upstream set token = null, token_until = null where tenant_id = :tenant_id and source = :source and token = :token
""")

IS_INGESTION = sa.text("select id from run where id = :run_id and tenant_id = :tenant_id and kind = 'page_ingest'")


# An ingestion as a whole. Of each price range the last crawl counts, and none that was cut into others; the lanes that are
# no crawls come with what is left in their cursors.
SUMMARY = sa.text("""
with crawls as materialized (select * from partition_progress where run_id = :run_id),
parts as materialized (
    select * from (select distinct on (min_price, max_price) * from crawls order by min_price, max_price, crawl desc) c
    where not c.split)
select r.id, r.params ->> 'source' as source, (r.params ->> 'low')::bigint as low, (r.params ->> 'high')::bigint as high,
       p.*,
       (select count(*) from crawls where split) as split,
       (select count(distinct (min_price, max_price)) from crawls where crawl > 1) as drifted,
       (select coalesce(jsonb_agg(to_jsonb(l) order by l.key), '[]') from (
           select key, id as lane_id, status, steps, attempts, last_error, updated_at,
                  (cursor ->> 'planned')::boolean as planned, jsonb_array_length(cursor -> 'todo') as left
           from lane
           where run_id = r.id and tenant_id = :tenant_id and (key = 'plan' or key like 'audit:%' or key like 'consolidate:%')) l)
           as phases
from run r
cross join lateral (
    select count(*) as partitions, count(*) filter (where completed) as done,
           count(*) filter (where status = 'failed') as failed, count(*) filter (where stuck) as stuck,
           sum(total_records)::bigint as counted, coalesce(sum(next_offset), 0)::bigint as walked,
           coalesce(sum(duplicates), 0)::bigint as duplicates
    from parts) p
where r.id = :run_id and r.tenant_id = :tenant_id and r.kind = 'page_ingest'
""")

# The steps of a crawl in order, in equal shares; of very many the last. The worst outcome of a share is the first of these.
MOST_HEAT = 1_000
_WORST = "array['failed', 'retried', 'throttled', 'canceled', 'waited', 'moved', 'done']"
_HEAT = f"""(
    select coalesce(jsonb_agg(to_jsonb(h) - 'share' order by h.share), '[]') from (
        select s.share, count(*) as steps, sum(s.rows) as rows, round(avg(s.ms)) as ms,
               ({_WORST})[min(array_position({_WORST}, s.outcome))] as outcome
        from (select ntile(cast(:heat as integer)) over (order by epoch, seq) as share, rows, ms, outcome from (
                  select epoch, seq, rows, ms, outcome from step where lane_id = l.id and tenant_id = :tenant_id
                  order by epoch desc, seq desc limit {MOST_HEAT}) last) s
        group by s.share) h)"""  # noqa: S608 - our own words


@lru_cache(maxsize=4)
def list_partitions(*, after: bool, with_heat: bool = False) -> sa.TextClause:
    """A page of a run's partitions by their keys, which are in the order of prices.

    Lane by lane: asked for all at once, the view would look at every partition of the run before it sorts them.
    """
    further = "and key > :after_key" if after else ""
    return sa.text(f"""
select p.partition_id as key, p.lane_id, p.min_price as low, p.max_price as high, p.crawl, p.status,
       p.next_offset as offset, p.total_records as counted, p.duplicates, p.split, p.clean, p.stuck, p.attempts, p.last_error,
       p.created_at, p.updated_at, l.page_size, {_HEAT if with_heat else "null"} as heat
from (select id, key, (cursor ->> 'limit')::integer as page_size from lane where run_id = :run_id and tenant_id = :tenant_id and key like 'part:%' {further}
      order by key limit :most) l
cross join lateral (select * from partition_progress v where v.lane_id = l.id offset 0) p
order by p.partition_id
""")  # noqa: S608 - put together from our own constants


class PageStore:
    """What steps read and write beside their commit. Every statement is bound to the tenant of the turn."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def look_up(self, turn: Turn, account: str) -> Known:
        with direct.alone(self._engine, turn.tenant_id) as line:
            row = line.one(LOOK_UP, _refresher(turn, account))
        assert row is not None
        return Known(**row)

    def save_token(self, turn: Turn, account: str, token: Token) -> None:
        self._run(turn, SAVE_TOKEN, {**_refresher(turn, account), "token": token.value, "lives_s": token.expires_in_s})

    def give_up_token(self, turn: Turn, account: str) -> None:
        self._run(turn, GIVE_UP_TOKEN, _refresher(turn, account))

    def forget_token(self, turn: Turn, account: str, token: str) -> None:
        self._run(turn, FORGET_TOKEN, {"tenant_id": turn.tenant_id, "source": account, "token": token})

    def batch_ends_at(self, turn: Turn, after: str, most: int) -> str | None:
        return self._text(turn, BATCH_ENDS_AT, {"run_id": turn.run_id, "after": after, "most": most})

    def gone_ends_at(self, turn: Turn, source: str, cents: tuple[int, int], after: str, most: int) -> str | None:
        return self._text(turn, GONE_ENDS_AT, {"run_id": turn.run_id, "most": most, **_gone(source, cents, after)})

    def _text(self, turn: Turn, statement: sa.TextClause, params: dict[str, Any]) -> str | None:
        with direct.alone(self._engine, turn.tenant_id) as line:
            found: str | None = line.scalars(statement, params)[0]
        return found

    def _run(self, turn: Turn, statement: sa.TextClause, params: dict[str, Any]) -> None:
        with direct.alone(self._engine, turn.tenant_id) as line:
            line.run(statement, params)


def _refresher(turn: Turn, account: str) -> dict[str, Any]:
    return {"tenant_id": turn.tenant_id, "source": account, "refresher": turn.token}


def _gone(source: str, cents: tuple[int, int], after: str) -> dict[str, Any]:
    return {"source": source, "low_cents": cents[0], "high_cents": cents[1], "gone_after": after}


def mark_gone(source: str, cents: tuple[int, int], after: str, upto: str) -> Effect:
    return Effect(MARK_GONE, {**_gone(source, cents, after), "gone_upto": upto})


def upsert_page(source: str, items: Iterable[Item]) -> tuple[Effect, int]:
    """The page's rows, each stone once (the last one counts), and how many they are."""
    rows = {item.external_id: _row(item) for item in items}
    return Effect(UPSERT_PAGE, {"source": source, "items": db.jsonb(list(rows.values()))}), len(rows)


def _row(item: Item) -> tuple[str, str, int, str, orjson.Fragment]:
    """The columns in the order of the statement; the payload is encoded once, for its hash and for the row."""
    body = orjson.dumps(item.payload, option=orjson.OPT_SORT_KEYS)
    return (
        item.external_id,
        item.offer_id,
        item.price_cents,
        hashlib.sha256(body).hexdigest()[:32],
        orjson.Fragment(body),
    )
