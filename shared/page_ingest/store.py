"""All SQL of page ingestion."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.model import Effect, Statement, Turn
from shared.page_ingest.model import LARGEST_PAGE, CrawlCursor, Item, Walked

PAGE_SIZE_KEPT_S = 10
MOST_KEPT = 1_000

# One statement for a page. A row says which walk saw the stone last (partition and page); what this walk has seen before
# is not written again unless it changed. Keys come sorted, so two lanes cannot deadlock.
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
       where r.hash <> excluded.hash or r.partition <> excluded.partition or r.page < :began""",
)

# The rows of one walk. Only by their price is there an index.
_OF_THE_WALK = """run_id = :run_id and price_cents >= :low_cents and price_cents < :high_cents and partition = :key and page >= :began"""
STONES_WALKED = sa.text(f"""
select count(*) from (select external_id from raw_item where {_OF_THE_WALK} union select jsonb_array_elements_text(cast(:ids as jsonb))) w
""")  # noqa: S608 - our own words
WALKED = sa.text(f"""
select count(*) filter (where price_cents <= :at_cents) as below, count(*) filter (where price_cents >= :at_cents) as above,
       coalesce(array_agg(external_id) filter (where price_cents = :at_cents), array[]::text[]) as at,
       coalesce(jsonb_object_agg(external_id, price_cents) filter (where external_id = any(cast(:tail as text[]))), '{{}}') as prices
from raw_item where {_OF_THE_WALK}
""")  # noqa: S608 - our own words
# A cut partition hands what it has walked through on to its halves; a half that begins at its start gets nothing.
HAND_ON = Statement(
    "page_ingest.hand_on",
    """update raw_item i set partition = case when i.price_cents < :middle_cents then :lower else :upper end, page = 0
       from turn
       where i.run_id = turn.run_id and i.price_cents >= :low_cents and i.price_cents < :high_cents and i.partition = turn.key
         and i.page >= :began
         and case when i.price_cents < :middle_cents then cast(:lower as text) else cast(:upper as text) end is not null""",
)

# How much an account can bear, as long as that is known; then twice as much, and again, until it is no limit any more. An
# account that fails at growing is left alone for twice as long, up to a day.
PAGE_SIZE = sa.text("""
select case when page_size_until > now() then page_size
            else page_size * 2 ^ least(10, 1 + floor(extract(epoch from now() - page_size_until) / page_size_hold_s)) end::integer
from upstream where tenant_id = :tenant_id and source = :account and page_size is not null
""")
_HOLD_S = """case when u.page_size_until > now() then u.page_size_hold_s
                when u.page_size_until > now() - interval '1 day' then least(86400, 2 * u.page_size_hold_s) else 300 end"""
REMEMBER_PAGE_SIZE = Statement(
    "page_ingest.remember_page_size",
    f"""insert into upstream as u (tenant_id, source, page_size, page_size_until)
       select tenant_id, :upstream, :page_size, now() + interval '300 s' from turn
       on conflict (tenant_id, source) do update
       set page_size = case when u.page_size_until > now() then least(u.page_size, excluded.page_size)
                            else excluded.page_size end,
           page_size_hold_s = {_HOLD_S}, page_size_until = now() + make_interval(secs => {_HOLD_S})""",  # noqa: S608 - our own words
)

# In a complete run each partition has one last walk that saw all there was. A row that this walk did not write is of a stone
# that an earlier crawl of the same run saw and that is not there any more.
_LAST_WALKS = """last_walk as materialized (
           select distinct on (low, high) key, split, began
           from (select l.key, (l.cursor ->> 'low')::bigint as low, (l.cursor ->> 'high')::bigint as high,
                        (l.cursor ->> 'crawl')::integer as crawl, (l.cursor ->> 'split')::boolean as split,
                        coalesce((l.cursor ->> 'began')::bigint, 0) as began
                 from turn join lane l on l.run_id = turn.run_id and l.key like 'part:%') p
           order by low, high, crawl desc)"""
_SEEN_LAST = "exists (select from last_walk w where w.key = i.partition and not w.split and i.page >= w.began)"
DROP_OLD_ROWS = Statement(
    "page_ingest.drop_old_rows",
    f"""with {_LAST_WALKS}
       delete from raw_item i using turn
       where i.run_id = turn.run_id and i.external_id > :drop_after and i.external_id <= :drop_upto and not {_SEEN_LAST}""",  # noqa: S608 - our own words
)


# The newest run that says anything of a stone wins. A batch is a range of this run's external ids.
# A run that comes late must not bring back what newer complete runs have looked for and not seen: gone is what two of them,
# one after the other, did not see, as below. A run that is retried sees stones of today: who looked before that says nothing of them,
# and what it has seen since the run that had the last word ended is newer than that.
def _consolidate(name: str, *, drops: bool) -> Statement:
    return Statement(
        name,
        f"""with {_LAST_WALKS + "," if drops else ""} newer as materialized (
           select n.* from turn
           cross join lateral (select id, created_at from run where id = turn.run_id offset 0) mine
           cross join lateral (
               select n.id, n.created_at, n.finished_at, n.params ->> 'source' as source, (n.params ->> 'low')::bigint * 100 as low_cents,
                      (n.params ->> 'high')::bigint * 100 as high_cents
               from run n
               where n.tenant_id = turn.tenant_id and n.kind = turn.kind and (n.created_at, n.id) > (mine.created_at, mine.id)
               order by n.created_at, n.id offset 0) n
           where exists (select from lane c where c.run_id = n.id and c.key like 'consolidate:%'
                                              and (c.cursor ->> 'complete')::boolean))
       insert into diamond as d (tenant_id, source, external_id, offer_id, price_cents, carats, shape, color, clarity, lab,
                                 certificate, availability, rest, source_run, said_by, said_at, missed_by, gone_at)
       select i.tenant_id, i.source, i.external_id, i.offer_id, i.price_cents,
              case when jsonb_typeof(c.c -> 'carats') = 'number' then (c.c ->> 'carats')::numeric end,
              c.c ->> 'shape', c.c ->> 'color', c.c ->> 'clarity', c.c ->> 'lab', c.c ->> 'certNumber',
              i.payload -> 'diamond' ->> 'availability', i.payload, i.run_id, i.run_id, greatest(run.created_at, s.at),
              m.by[1], case when m.twice then now() end
       from turn
       join run on run.id = turn.run_id
       join raw_item i on i.run_id = turn.run_id and i.external_id > :after and i.external_id <= :upto
       cross join lateral (select i.payload -> 'diamond' -> 'certificate' as c) c
       cross join lateral (
           select array_agg(n.id order by n.created_at desc) as by, max(n.created_at) > min(n.finished_at) as twice from newer n
           where n.source = i.source and i.price_cents >= n.low_cents and i.price_cents < n.high_cents
             and n.created_at > i.seen_at
             and not exists (select from raw_item x where x.run_id = n.id and x.external_id = i.external_id)) m
       left join lateral (
           select case when o.said_by = run.id then o.said_at when w.finished_at < i.seen_at then i.seen_at end as at
           from diamond o left join run w on w.id = o.said_by
           where run.epoch > 1 and o.tenant_id = i.tenant_id and o.source = i.source and o.external_id = i.external_id
           offset 0) s on true
       {f"where {_SEEN_LAST}" if drops else ""}
       order by i.external_id
       on conflict (tenant_id, source, external_id) do update
       set offer_id = excluded.offer_id, price_cents = excluded.price_cents, carats = excluded.carats, shape = excluded.shape,
           color = excluded.color, clarity = excluded.clarity, lab = excluded.lab, certificate = excluded.certificate,
           availability = excluded.availability, rest = excluded.rest, source_run = excluded.source_run,
           said_by = excluded.said_by, said_at = excluded.said_at, missed_by = excluded.missed_by, gone_at = excluded.gone_at
       where (d.said_at, d.said_by) <= (excluded.said_at, excluded.said_by)""",  # noqa: S608 - our own words
        keeps_plan=False,
    )


CONSOLIDATE = _consolidate("page_ingest.consolidate", drops=False)
CONSOLIDATE_LAST = _consolidate("page_ingest.consolidate_last", drops=True)

# What a complete run looked for and did not see. One run may be wrong (a stone can leave and another come while it looks),
# so the first one is noted and the second one decides, if it began after the first: of two at once, both may have looked at
# the same wrong moment. Nothing is deleted.
_UNSEEN = """d.source = :source and d.gone_at is null and d.price_cents >= :low_cents and d.price_cents < :high_cents
         and d.external_id > :gone_after and d.missed_by is distinct from run.id
         and ((d.said_at, d.said_by) < (run.created_at, run.id) or (run.epoch > 1 and d.source_run = run.id and not exists (
                  select from raw_item x where x.run_id = run.id and x.external_id = d.external_id)))"""
MARK_GONE = Statement(
    "page_ingest.mark_gone",
    f"""update diamond d
       set gone_at = case when d.missed_by is not null and not exists (
                              select from run w where w.id = d.missed_by and (w.finished_at is null or w.finished_at >= run.created_at))
                          then now() end,
           missed_by = run.id, said_by = run.id, said_at = run.created_at
       from turn join run on run.id = turn.run_id
       where d.tenant_id = turn.tenant_id and d.external_id <= :gone_upto and {_UNSEEN}""",  # noqa: S608 - our own words
)
GONE_ENDS_AT = sa.text(f"""
with run as materialized (select id, tenant_id, epoch, created_at from run where id = :run_id)
select max(external_id) from (
    select d.external_id from run join diamond d on d.tenant_id = run.tenant_id
    where {_UNSEEN}
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

IS_INGESTION = sa.text(
    "select id from run where id = :run_id and tenant_id = :tenant_id and kind = 'page_ingest' and params ->> 'source' = 'nivoda'"
)


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
where r.id = :run_id and r.tenant_id = :tenant_id and r.kind = 'page_ingest' and r.params ->> 'source' = 'nivoda'
""")

# How far runs are in rows: of each partition its last crawl, and none that was cut into others. What a failed one has not read has
# failed; before a partition has counted, the plan's count stands for all. Many partitions are too much to read for a list, and in
# a list only what is still open is of interest.
MOST_READ = 500
ROWS = Statement(
    "page_ingest.rows",
    f"""select r.id as run_id, p.done, p.failed,
           case when p.uncounted = 0 then p.known when p.planned is not null then greatest(p.known, p.planned) end as total
       from run r
       cross join lateral (
           select max(lanes) as lanes, coalesce(sum(read), 0)::bigint as done,
                  coalesce(sum(greatest(0, counted - read)) filter (where status = 'failed'), 0)::bigint as failed,
                  coalesce(sum(case status when 'done' then read else greatest(counted, read) end), 0)::bigint as known, count(*) filter (where counted is null) as uncounted,
                  (select sum((each ->> 2)::bigint) from lane l, jsonb_array_elements(l.cursor -> 'parts') each
                   where l.run_id = r.id and l.tenant_id = :tenant_id and l.key = 'plan')::bigint as planned
           from (select distinct on (name) status, count(*) over () as lanes, cursor -> 'split' = 'true' as split,
                        (cursor ->> 'counted')::bigint as counted,
                        coalesce(cursor ->> 'offset', cursor ->> 'received', '0')::bigint as read
                 from (select regexp_replace(key, '#\\d+$', '') as name, status, cursor from lane
                       where run_id = r.id and tenant_id = :tenant_id and key like 'part%'
                       limit {MOST_READ + 1}) l
                 order by name, (cursor ->> 'crawl')::integer desc) last
           where split is not true) p
       where r.id = any(cast(:run_ids as uuid[])) and r.tenant_id = :tenant_id and p.lanes between 1 and {MOST_READ}
         and (r.finished_at is null or cardinality(cast(:run_ids as uuid[])) = 1)""",  # noqa: S608 - our own words
)

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


# What the newest ingestions say about their price ranges. `missing`: of a partial one, what its partitions that failed leave out.
MOST_READINGS = 200


@lru_cache(maxsize=2)
def coverage(*, own: bool) -> sa.TextClause:
    """At least one row, which then says nothing but the time."""
    mine = "and created_by = :owner" if own else ""
    return sa.text(f"""
select n.today, r.id as run_id, r.status, r.outcome, r.low, r.high, r.created_at,
       case when r.outcome = 'partial' then (
           select jsonb_agg(jsonb_build_array(lower(m), upper(m)) order by lower(m)) from unnest((
               select range_agg(int8range(low, high)) from (
                   select distinct on (low, high) low, high, split, status from (
                       select (cursor ->> 'low')::bigint as low, (cursor ->> 'high')::bigint as high, status,
                              (cursor ->> 'crawl')::integer as crawl, (cursor ->> 'split')::boolean as split
                       from lane where run_id = r.id and tenant_id = :tenant_id and key like 'part:%') p
                   order by low, high, crawl desc) last
               where not split and status <> 'done')) m) end as missing
from (select date_trunc('day', now() at time zone 'utc') at time zone 'utc' as today) n
left join lateral (
    select id, status, outcome, (params ->> 'low')::bigint as low, (params ->> 'high')::bigint as high, created_at from run
    where tenant_id = :tenant_id and kind = 'page_ingest' and params ->> 'source' = 'nivoda' {mine}
      and created_at >= n.today - make_interval(days => cast(:days as integer) - 1)
    order by created_at desc, id desc limit {MOST_READINGS}) r on true
order by r.created_at desc, r.id desc
""")  # noqa: S608 - put together from our own constants


class PageStore:
    """What steps read beside their commit. Every statement is bound to the tenant of the turn."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._page_sizes: dict[tuple[UUID, str], tuple[int | None, datetime]] = {}

    def page_size(self, turn: Turn, account: str) -> int | None:
        """Remembered for some seconds, so that not every page asks for it."""
        size, until = self._page_sizes.get((turn.tenant_id, account), (None, None))
        if until is not None and turn.now < until:
            return size
        with direct.alone(self._engine, turn.tenant_id) as line:
            found = line.scalars(PAGE_SIZE, {"tenant_id": turn.tenant_id, "account": account})
        size = found[0] if found and found[0] < LARGEST_PAGE else None
        if len(self._page_sizes) >= MOST_KEPT:
            self._page_sizes.clear()
        self._page_sizes[turn.tenant_id, account] = (size, turn.now + timedelta(seconds=PAGE_SIZE_KEPT_S))
        return size

    def forget_page_size(self, turn: Turn, account: str) -> None:
        self._page_sizes.pop((turn.tenant_id, account), None)

    def stones_walked(self, turn: Turn, cursor: CrawlCursor, ids: Sequence[str]) -> int:
        with direct.alone(self._engine, turn.tenant_id) as line:
            found = line.scalars(STONES_WALKED, {**_walk(turn, cursor), "ids": db.jsonb(ids)})
        return int(found[0])

    def walked(self, turn: Turn, cursor: CrawlCursor, at_cents: int) -> Walked:
        params = {**_walk(turn, cursor), "at_cents": at_cents, "tail": list(cursor.tail)}
        with direct.alone(self._engine, turn.tenant_id) as line:
            row = line.one(WALKED, params)
        assert row is not None
        return Walked(**row)

    def batch_ends_at(self, turn: Turn, after: str, most: int) -> str | None:
        return self._text(turn, BATCH_ENDS_AT, {"run_id": turn.run_id, "after": after, "most": most})

    def gone_ends_at(self, turn: Turn, source: str, cents: tuple[int, int], after: str, most: int) -> str | None:
        return self._text(turn, GONE_ENDS_AT, {"run_id": turn.run_id, "most": most, **_gone(source, cents, after)})

    def _text(self, turn: Turn, statement: sa.TextClause, params: dict[str, Any]) -> str | None:
        with direct.alone(self._engine, turn.tenant_id) as line:
            line.ahead(direct.IN_ORDER, {})
            found: str | None = line.scalars(statement, params)[0]
        return found


def _walk(turn: Turn, cursor: CrawlCursor) -> dict[str, Any]:
    return {
        "run_id": turn.run_id,
        "low_cents": cursor.low * 100,
        "high_cents": cursor.high * 100,
        "key": turn.key,
        "began": cursor.began,
    }


def _gone(source: str, cents: tuple[int, int], after: str) -> dict[str, Any]:
    return {"source": source, "low_cents": cents[0], "high_cents": cents[1], "gone_after": after}


def consolidate(after: str, upto: str, *, drops: bool) -> list[Effect]:
    """A batch of the run's rows; with `drops`, those that the last walk of their partition did not see are left out."""
    batch = {"after": after, "upto": upto}
    if not drops:
        return [Effect(CONSOLIDATE, batch)]
    return [Effect(CONSOLIDATE_LAST, batch), Effect(DROP_OLD_ROWS, {"drop_after": after, "drop_upto": upto})]


def mark_gone(source: str, cents: tuple[int, int], after: str, upto: str) -> Effect:
    return Effect(MARK_GONE, {**_gone(source, cents, after), "gone_upto": upto})


def hand_on(whole: CrawlCursor, lower: CrawlCursor, upper: CrawlCursor) -> Effect:
    """What the whole partition has walked through belongs to those of its halves that go on from there."""
    return Effect(
        HAND_ON,
        {
            "low_cents": whole.low * 100,
            "high_cents": whole.high * 100,
            "middle_cents": upper.low * 100,
            "began": whole.began,
            "lower": lower.key if lower.offset else None,
            "upper": upper.key if upper.offset else None,
        },
    )


def upsert_page(source: str, items: Iterable[Item], began: int = 0) -> Effect:
    """The rows of a step, each stone once. `began`: the walk's first step."""
    return Effect(UPSERT_PAGE, {"source": source, "items": db.jsonb([_row(item) for item in items]), "began": began})


def _row(item: Item) -> tuple[str, str, int, str, orjson.Fragment]:
    """The columns in the order of the statement."""
    hashed = hashlib.sha256(item.body).hexdigest()[:32]
    return (item.external_id, item.offer_id, item.price_cents, hashed, orjson.Fragment(item.body))
