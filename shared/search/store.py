"""All SQL of saved searches. What a step writes selects from `turn`: a step that lost its turn writes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa

from shared.kernel import direct
from shared.kernel.answers import storable
from shared.kernel.model import Effect, Json, Problem, Statement, Turn
from shared.search.model import Bad, Job, Offer, Purpose, Stop, Walk, company_id, plain

# --- cycles

# How many offers a cycle has read. How many there will be, nobody says.
OFFERS_READ = Statement(
    "search.offers_read",
    """select run_id, sum(offers_fetched)::bigint as done, 0 as failed, null::bigint as total from ingestion_runs
       where run_id = any(cast(:run_ids as uuid[])) and tenant_id = :tenant_id group by run_id""",
)

# The index on open cycles is the lock: nothing comes back if one is open.
OPEN_CYCLE = Statement(
    "search.open_cycle",
    """insert into search_cycle (run_id, tenant_id, started_at, begins_at)
       values (:run_id, :tenant_id, now(), now() + make_interval(secs => cast(:delay_s as double precision)))
       on conflict (tenant_id) where ended_at is null do nothing""",
)
THE_OPEN_CYCLE = Statement(
    "search.the_open_cycle", "select run_id from search_cycle where tenant_id = :tenant_id and ended_at is null"
)
# Of a run that has ended: a cycle or a night that is still open, because its `on_end` never succeeded.
LEFT_OPEN = Statement(
    "search.left_open",
    """select r.id from run r where r.id = cast(:run_id as uuid) and r.status in ('succeeded', 'failed', 'canceled')
         and (exists (select from search_cycle c where c.run_id = r.id and c.ended_at is null)
              or exists (select from sheet_night n where n.run_id = r.id and n.finished_at is null))""",
)
# Of all tenants: whose searches have no cycle that is open, and which of their sheets no night.
WITHOUT_NEXT = Statement(
    "search.without_next",
    "select tenant_id, cycle, sheets from searches_without_next(cast(:after as uuid), cast(:most as integer))",
)
NOT_FRESH = Statement("search.not_fresh", "select searches_not_fresh() as searches")
# How long until the next cycle may begin: a gap after the last one's beginning, and something must be due. A client whose
# gate is closed is due when it opens.
NEXT_CYCLE = Statement(
    "search.next_cycle",
    """select greatest(0, extract(epoch from greatest(l.gap_ends, d.due_at) - now()))::double precision as delay_s,
              d.due_at is not null as wanted
       from (select max(least(begins_at, ended_at)) + make_interval(secs => cast(:gap_s as double precision)) as gap_ends
             from (select begins_at, ended_at from search_cycle where tenant_id = :tenant_id order by begins_at desc limit 10) c) l
       cross join (
           select min(greatest(least(q.next_due_at, q.history_due_at), g.until)) as due_at
           from query_state q
           left join gate g on g.tenant_id = q.tenant_id and g.key = q.account and g.state <> 'open' and g.until > now()
           where q.tenant_id = :tenant_id and q.active) d""",
)
# The cycle that waits to begin is the newest: the one before it counts. (Some may have been canceled before they began.)
TOO_EARLY = sa.text("""
select greatest(0, extract(epoch from max(least(begins_at, ended_at)) + make_interval(secs => cast(:gap_s as double precision)) - now()))::double precision
from (select begins_at, ended_at from search_cycle where tenant_id = :tenant_id and run_id <> :run_id order by begins_at desc limit 10) c
""")
# A run that is retried takes its place again, if no other cycle has it.
RETAKE_CYCLE = Statement(
    "search.retake_cycle",
    """update search_cycle c set ended_at = null, begins_at = now() from turn
       where c.run_id = turn.run_id
         and not exists (select from search_cycle o where o.tenant_id = turn.tenant_id and o.ended_at is null
                                                      and o.run_id <> turn.run_id)
       returning c.run_id""",
    returns=True,
)
END_CYCLE = Statement("search.end_cycle", "update search_cycle set ended_at = now() where run_id = :run_id")
BEGIN_CYCLE = Statement(
    "search.begin_cycle", "update search_cycle c set begins_at = now() from turn where c.run_id = turn.run_id"
)
# Whatever a cycle left in the middle when it ended: by a cancel, or by processes that died again and again.
END_EXECUTIONS = Statement(
    "search.end_executions",
    """with ended as (
           update ingestion_runs set finished_at = now(), stop_reason = :stop_reason, status = :run_status,
                                     problem = cast(:problem as jsonb)
           where run_id = :run_id and finished_at is null returning tenant_id, query_key)
       update query_state q
       set status = :state, problem = cast(:problem as jsonb),
           last_error_at = case when cast(:state as text) = 'ERROR' then now() else q.last_error_at end,
           consecutive_failures = q.consecutive_failures + case when cast(:state as text) = 'ERROR' then 1 else 0 end
       from ended e where q.tenant_id = e.tenant_id and q.query_key = e.query_key and q.status = 'RUNNING'""",
)
PRUNE = Statement(
    "search.prune",
    """with gone as (delete from ingestion_runs where ctid = any(array(
           select ctid from ingestion_runs where run_id = :run_id limit :most)) returning 1),
       cycle as (delete from search_cycle where run_id = :run_id and ended_at is not null returning 1)
       select 1 from gone""",
)

# --- what is next

# Scalar subqueries on purpose: they are asked for one search after the other, in the order of the index, until one passes.
# As a join, Postgres would rather look at all of them first.
_OPEN = """not coalesce((select true from gate g where g.key = q.account and (g.tenant_id = q.tenant_id or g.tenant_id is null)
                         and g.state <> 'open' and g.until > now() limit 1), false)"""
_NOT_YET = """not coalesce((select true from ingestion_runs i where i.run_id = :run_id and i.query_key = q.query_key
                         and i.purpose {} limit 1), false)"""
# Heads first, the oldest success first; then history, one window of each search in a cycle.
NEXT_JOB = sa.text(f"""
with head as (
    select q.*, 'head' as purpose from query_state q
    where q.tenant_id = :tenant_id and q.active and q.next_due_at <= now() and {_OPEN} and {_NOT_YET.format("= 'head'")}
    order by q.last_success_at nulls first, q.query_key limit 1),
history as (
    select q.*, 'history' as purpose from query_state q
    where q.tenant_id = :tenant_id and q.active and q.history_due_at <= now() and q.high_watermark is not null
      and {_OPEN} and {_NOT_YET.format("<> 'head'")} and not exists (select from head)
    order by q.last_success_at nulls first, q.query_key limit 1)
select q.search_id, s.name, q.client, s.connection, s.params, s.max_pages, s.max_offers, s.every_s, q.query_key, q.zone,
       q.purpose, q.high_watermark, q.seed_cursor, q.seed_floor, q.resume, q.consecutive_failures,
       b.id as backfill_id, b.lo as backfill_lo, b.hi as backfill_hi, b.resume as backfill_resume
from (select * from head union all select * from history) q
join saved_search s on s.id = q.search_id
left join lateral (
    select * from search_backfill b
    where q.purpose = 'history' and b.tenant_id = :tenant_id and b.query_key = q.query_key and b.finished_at is null
    order by b.created_at, b.id limit 1) b on true
""")  # noqa: S608 - our own words
REPLAYS = sa.text("""
select id, client, key, search_id, query_key, payload from search_quarantine
where tenant_id = :tenant_id and replay_at is not null order by replay_at, id limit :most
""")
DIRTY = sa.text("select id from companies where tenant_id = :tenant_id and dirty order by id limit :most")

# --- an execution

BEGIN = Statement(
    "search.begin",
    """update query_state q set status = 'RUNNING', last_run_at = now() from turn
       where q.tenant_id = turn.tenant_id and q.query_key = :query_key""",
)
BEGIN_RUN = Statement(
    "search.begin_run",
    """insert into ingestion_runs (id, tenant_id, run_id, search_id, query_key, client, purpose, window_from, window_to, started_at)
       select cast(:ingestion as uuid), tenant_id, run_id, cast(:search_id as uuid), :query_key, :client, :purpose,
              cast(:lo as timestamptz), cast(:hi as timestamptz), now() from turn""",
)
# Counters of one step, and its end where it is one.
PROGRESS = Statement(
    "search.progress",
    """update ingestion_runs i
       set pages_fetched = i.pages_fetched + cast(:pages as integer), offers_fetched = i.offers_fetched + cast(:offers as integer),
           requests_count = i.requests_count + cast(:requests as integer), http_429_count = i.http_429_count + cast(:throttles as integer),
           errors_count = i.errors_count + cast(:errors as integer), stop_reason = cast(:stop_reason as text),
           finished_at = case when cast(:stop_reason as text) is not null then now() end,
           status = case cast(:stop_reason as text) when 'window_exhausted' then 'success' when 'error' then 'failure'
                         else case when cast(:stop_reason as text) is null then 'running' else 'stopped' end end,
           problem = cast(:run_problem as jsonb)
       from turn where i.id = cast(:ingestion as uuid)""",
)
# The one way a window becomes covered. Only a head moves the watermark, only seeding its place; a backfill moves neither.
# Its search may have been deleted meanwhile: what was read is read all the same, and nothing stays RUNNING.
EXHAUSTED = Statement(
    "search.exhausted",
    """update query_state q
       set status = 'SUCCESS', last_success_at = now(), consecutive_failures = 0, problem = null,
           covered = q.covered + tstzmultirange(tstzrange(cast(:lo as timestamptz), cast(:hi as timestamptz))),
           resume = (q.resume - cast(:purpose as text))
               || case when :purpose = 'seed' or (:purpose = 'head' and q.seed_cursor is null)
                       then jsonb_build_object('hint', cast(:last_page as integer)) else '{}' end,
           high_watermark = case when :purpose = 'head' then greatest(q.high_watermark, cast(:hi as timestamptz))
                                 else q.high_watermark end,
           fresh_at = case when :purpose = 'head' then greatest(q.fresh_at, cast(:hi as timestamptz) + f.fresh) else q.fresh_at end,
           next_due_at = case when :purpose = 'head' then cast(:hi as timestamptz) + make_interval(secs => cast(:every_s as double precision))
                              else q.next_due_at end,
           seed_cursor = case when :purpose = 'backfill' then q.seed_cursor
                              else least(q.seed_cursor, cast(:lo as timestamptz)) end,
           history_due_at = case
               when case when :purpose = 'backfill' then q.seed_cursor else least(q.seed_cursor, cast(:lo as timestamptz)) end > q.seed_floor
                    or exists (select from search_backfill b where b.tenant_id = q.tenant_id and b.query_key = q.query_key
                                 and b.finished_at is null and b.id is distinct from cast(:backfill_id as uuid))
               then case when :purpose = 'head' then coalesce(q.history_due_at, now()) else now() end end
       from turn left join lateral (
           select make_interval(secs => s.fresh_within_s) as fresh from saved_search s
           join query_state k on k.search_id = s.id where k.tenant_id = turn.tenant_id and k.query_key = :query_key) f on true
       where q.tenant_id = turn.tenant_id and q.query_key = :query_key""",
)
END_BACKFILL = Statement(
    "search.end_backfill",
    """update search_backfill b set finished_at = now(), resume = null from turn where b.id = cast(:backfill_id as uuid)""",
)
# Not read to its end: it is due again and goes on where it is. Nothing is covered.
STOPPED = Statement(
    "search.stopped",
    """update query_state q
       set status = :state, problem = cast(:problem as jsonb),
           resume = case when :purpose = 'backfill' then q.resume
                         else q.resume || jsonb_build_object(cast(:purpose as text), cast(:walk as jsonb)) end,
           last_error_at = case when cast(:state as text) = 'ERROR' then now() else q.last_error_at end,
           consecutive_failures = q.consecutive_failures + case when cast(:state as text) = 'ERROR' then 1 else 0 end,
           next_due_at = case when :purpose = 'head' then now() + make_interval(secs => cast(:wait_s as double precision))
                              else q.next_due_at end,
           history_due_at = case when :purpose = 'head' then q.history_due_at
                                 else now() + make_interval(secs => cast(:wait_s as double precision)) end
       from turn where q.tenant_id = turn.tenant_id and q.query_key = :query_key""",
)
HISTORY_DONE = Statement(
    "search.history_done",
    """update query_state q set history_due_at = null from turn
       where q.tenant_id = turn.tenant_id and q.query_key = :query_key""",
)
KEEP_BACKFILL = Statement(
    "search.keep_backfill",
    "update search_backfill b set resume = cast(:walk as jsonb) from turn where b.id = cast(:backfill_id as uuid)",
)

# --- a page

# One statement for the offers of a page. An unchanged one is written again only to say that it is still there. What an old
# page says of an offer does not undo what a newer one said; but a date that has not come yet is nobody's newest word. That an
# offer is there, and which search has found it, is true whatever its date.
_SAID = (
    "company_id",
    "title",
    "location",
    "link",
    "salary",
    "published_at",
    "updated_at",
    "fingerprint",
    "hash",
    "payload",
)
_NEWER = "(o.updated_at <= excluded.updated_at or o.updated_at > now())"
UPSERT_OFFERS = Statement(
    "search.upsert_offers",
    f"""insert into offers as o (tenant_id, client, external_id, company_id, title, location, link, salary, published_at,
                                updated_at, fingerprint, found_by, hash, payload, first_seen_at, seen_at)
       select turn.tenant_id, :client, i ->> 0, (i ->> 1)::uuid, i ->> 2, i ->> 3, i ->> 4, i ->> 5, (i ->> 6)::timestamptz,
              (i ->> 7)::timestamptz, i ->> 8, array[cast(:found_by as text)], i ->> 9, i -> 10, now(), now()
       from turn, jsonb_array_elements(cast(:offers_json as jsonb)) as i
       order by 3
       on conflict (tenant_id, client, external_id) do update
       set {", ".join(f"{name} = case when {_NEWER} then excluded.{name} else o.{name} end" for name in _SAID)},
           repost_of = case when {_NEWER} and o.company_id is distinct from excluded.company_id then null else o.repost_of end,
           seen_at = excluded.seen_at,
           found_by = case when o.found_by @> excluded.found_by then o.found_by else o.found_by || excluded.found_by end
       where (o.hash <> excluded.hash and {_NEWER})
          or not o.found_by @> excluded.found_by or o.seen_at < now() - interval '12 hours'""",  # noqa: S608 - our own words
)
# Whose offers are somebody else's by now, or nobody's: the company itself is not seen again, and its figures must be made anew.
# Those that this page names are marked as they are written.
BEREFT = Statement(
    "search.bereft",
    """update companies c set dirty = true
       from (select turn.tenant_id, o.company_id from turn, jsonb_array_elements(cast(:offers_json as jsonb)) as i
             cross join lateral (select company_id from offers o
                                 where o.tenant_id = turn.tenant_id and o.client = :client and o.external_id = i ->> 0 offset 0) o
             where o.company_id is distinct from (i ->> 1)::uuid offset 0) b
       where c.tenant_id = b.tenant_id and c.id = b.company_id and not c.dirty
         and c.id::text <> all(cast(:named as text[]))""",
)
UPSERT_COMPANIES = Statement(
    "search.upsert_companies",
    """insert into companies as c (tenant_id, id, client, external_id, name, link, first_seen_at, last_seen_at)
       select turn.tenant_id, (i ->> 0)::uuid, :client, i ->> 1, i ->> 2, i ->> 3, now(), now()
       from turn, jsonb_array_elements(cast(:companies_json as jsonb)) as i
       order by 2
       on conflict (tenant_id, id) do update
       set name = excluded.name, link = coalesce(excluded.link, c.link), last_seen_at = excluded.last_seen_at, dirty = true""",
)
QUARANTINE = Statement(
    "search.quarantine",
    """insert into search_quarantine as z (id, tenant_id, client, key, search_id, query_key, window_from, window_to, problem,
                                          payload, first_seen_at, seen_at)
       select gen_random_uuid(), turn.tenant_id, :client, i ->> 0, cast(:search_id as uuid), :found_by,
              cast(:lo as timestamptz), cast(:hi as timestamptz), i ->> 1, i -> 2, now(), now()
       from turn, jsonb_array_elements(cast(:bad_json as jsonb)) as i
       order by 4
       on conflict (tenant_id, client, key, query_key) do update
       set problem = excluded.problem, seen_at = excluded.seen_at, times = z.times + 1,
           window_from = least(z.window_from, excluded.window_from), window_to = greatest(z.window_to, excluded.window_to),
           resolved_at = case when z.payload = excluded.payload then z.resolved_at end,
           resolution = case when z.payload = excluded.payload then z.resolution end,
           payload = excluded.payload""",
)
# What was quarantined and has come as a proper offer since is no question any more, to the search that it has come to:
# the offers of another one are still without it.
DRAIN = Statement(
    "search.drain",
    """update search_quarantine z set resolved_at = now(), resolution = 'read', replay_at = null from turn
       where z.tenant_id = turn.tenant_id and z.client = :client and z.query_key = :found_by and z.resolved_at is null
         and z.key = any(array(select jsonb_array_elements_text(cast(:ids as jsonb))))""",
)
REPLAYED = Statement(
    "search.replayed",
    """update search_quarantine z set replay_at = null, problem = coalesce(i.problem, z.problem),
              resolved_at = case when i.problem is null then now() end,
              resolution = case when i.problem is null then 'replayed' end
       from turn, jsonb_to_recordset(cast(:replayed as jsonb)) as i(id uuid, problem text)
       where z.tenant_id = turn.tenant_id and z.id = i.id and z.resolved_at is null""",
)

# --- companies

_OPEN_DAYS = 30
# Reposts and figures of some companies, from their offers alone: the same however often it is done.
_THEIRS = """select o.tenant_id, o.client, o.external_id, o.company_id, o.seen_at,
                  first_value(o.external_id) over (partition by o.company_id, o.client, o.fingerprint
                      order by coalesce(o.published_at, o.updated_at), o.external_id) as first_id
           from turn join offers o on o.tenant_id = turn.tenant_id and o.company_id = any(cast(:company_ids as uuid[]))"""
MARK_REPOSTS = Statement(
    "search.mark_reposts",
    f"""update offers o set repost_of = nullif(t.first_id, t.external_id) from ({_THEIRS}) t
       where o.tenant_id = t.tenant_id and o.client = t.client and o.external_id = t.external_id
         and o.repost_of is distinct from nullif(t.first_id, t.external_id)""",  # noqa: S608 - our own words
    keeps_plan=False,
)
AGGREGATE = Statement(
    "search.aggregate",
    f"""update companies c
       set open_offers = coalesce(f.open_offers, 0), dirty = false, aggregation_failed_at = null
       from turn cross join unnest(cast(:company_ids as uuid[])) as w(id)
       left join (select t.company_id,
                         count(*) filter (where t.first_id = t.external_id and t.seen_at > now() - interval '{_OPEN_DAYS} days') as open_offers
                  from ({_THEIRS}) t group by t.company_id) f on f.company_id = w.id
       where c.tenant_id = turn.tenant_id and c.id = w.id""",  # noqa: S608 - our own words
    keeps_plan=False,
)
# Who was not seen for so long has nothing open any more. Nobody else would say so: figures are made when a company is seen.
# A bounded batch; the next cycle goes on.
UNSEEN = Statement(
    "search.unseen",
    f"""update companies c set open_offers = 0 from turn
       where c.tenant_id = turn.tenant_id and c.id = any(array(
           select u.id from companies u join turn t on t.tenant_id = u.tenant_id
           where u.open_offers > 0 and u.last_seen_at < now() - interval '{_OPEN_DAYS} days' limit 1000))""",  # noqa: S608 - our own words
    keeps_plan=False,
)
SET_ASIDE = Statement(
    "search.set_aside",
    """update companies c set dirty = false, aggregation_failed_at = now() from turn
       where c.tenant_id = turn.tenant_id and c.id = any(cast(:company_ids as uuid[]))""",
    keeps_plan=False,
)
AGGREGATED = Statement(
    "search.aggregated",
    """update ingestion_runs i set companies_aggregated = i.companies_aggregated + cast(:aggregated as integer),
              companies_failed = i.companies_failed + cast(:failed as integer)
       from turn where i.id = cast(:ingestion as uuid)""",
)


def merged(*effects: Effect) -> list[Effect]:
    """Effects of one commit share their parameters: each name travels once, and means the same to all."""
    known: dict[str, Any] = {}
    found = []
    for effect in effects:
        if any(known[name] != value for name, value in effect.params.items() if name in known):
            raise ValueError(
                f"{effect.statement.name} means something else by {sorted(known.keys() & effect.params.keys())}"
            )
        found.append(Effect(effect.statement, {k: v for k, v in effect.params.items() if k not in known}))
        known |= effect.params
    return found


def begin(job: Job) -> list[Effect]:
    told = {
        "ingestion": job.ingestion, "search_id": job.search, "client": job.client, "purpose": job.walk.purpose,
        "lo": job.walk.lo, "hi": job.walk.hi,
    }  # fmt: skip
    return [Effect(BEGIN, {"query_key": job.query_key}), Effect(BEGIN_RUN, told)]


def upserts(tenant_id: UUID, client: str, query_key: str, offers: Sequence[Offer]) -> list[Effect]:
    """Each offer once; the last one counts."""
    found = {offer.external_id: offer for offer in offers}
    if not found:
        return []
    known = {offer.company: offer for offer in found.values() if offer.company is not None}
    ids = {name: str(company_id(tenant_id, client, name)) for name in known}
    rows = [_offer_row(offer, None if offer.company is None else ids[offer.company]) for offer in found.values()]
    effects = [
        Effect(UPSERT_OFFERS, {"client": client, "found_by": query_key, "offers_json": rows_json(rows)}),
        Effect(BEREFT, {"named": list(ids.values())}),
    ]
    if known:
        companies = [[ids[name], name, offer.company_name, offer.company_link] for name, offer in known.items()]
        effects.append(Effect(UPSERT_COMPANIES, {"client": client, "companies_json": rows_json(companies)}))
    return effects


def rows_json(rows: Sequence[Sequence[Any]]) -> str:
    """One by one: what is to be mended in one of them costs the others nothing."""
    return f"[{b','.join(storable(row) for row in rows).decode()}]"


def page(tenant_id: UUID, job: Job, offers: Sequence[Offer], bad: Sequence[Bad]) -> list[Effect]:
    effects = upserts(tenant_id, job.client, job.query_key, offers)
    ids = {offer.external_id for offer in offers}
    wrong = {each.key: each for each in bad if each.key not in ids}
    if wrong:
        rows = [[each.key, each.problem, each.payload] for each in wrong.values()]
        told = {
            "client": job.client, "found_by": job.query_key, "search_id": job.search, "lo": job.walk.lo, "hi": job.walk.hi,
            "bad_json": rows_json(rows),
        }  # fmt: skip
        effects.append(Effect(QUARANTINE, told))
    if ids:
        drained = {"client": job.client, "found_by": job.query_key, "ids": as_json(sorted(ids))}
        effects.append(Effect(DRAIN, drained))
    return effects


def aggregate(company_ids: Sequence[UUID]) -> list[Effect]:
    told = {"company_ids": [str(each) for each in company_ids]}
    return [Effect(MARK_REPOSTS, told), Effect(AGGREGATE, told)]


def set_aside(company_ids: Sequence[UUID]) -> list[Effect]:
    return [Effect(SET_ASIDE, {"company_ids": [str(each) for each in company_ids]})]


def history_done(query_key: str) -> Effect:
    return Effect(HISTORY_DONE, {"query_key": query_key})


def _offer_row(offer: Offer, company: str | None) -> list[Any]:
    fingerprint = hashlib.sha256(
        "\n".join((company or offer.external_id, plain(offer.title), plain(offer.location or ""))).encode()
    ).hexdigest()[:32]
    hash_ = hashlib.sha256(storable(dict(offer.payload))).hexdigest()[:32]
    return [
        offer.external_id, company, offer.title, offer.location, offer.link, offer.salary, _iso(offer.published_at),
        _iso(offer.at), fingerprint, hash_, dict(offer.payload),
    ]  # fmt: skip


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one step adds to the counters of its execution."""

    pages: int = 0
    offers: int = 0
    requests: int = 0
    throttles: int = 0
    errors: int = 0


def progress(job: Job, spent: Spent, stop: Stop | None = None, problem: Problem | None = None) -> Effect:
    told = {
        **asdict(spent),
        "ingestion": job.ingestion,
        "stop_reason": None if stop is None else str(stop),
        "run_problem": _problem(problem),
    }
    return Effect(PROGRESS, told)


def exhausted(job: Job) -> list[Effect]:
    told = {
        "query_key": job.query_key, "purpose": job.walk.purpose, "lo": job.walk.lo, "hi": job.walk.hi,
        "every_s": job.every_s, "backfill_id": job.backfill, "last_page": job.walk.page,
    }  # fmt: skip
    ended = [Effect(END_BACKFILL, {"backfill_id": job.backfill})] if job.backfill is not None else []
    return [Effect(EXHAUSTED, told), *ended]


def stopped(job: Job, walk: Walk, state: str, problem: Problem | None, wait_s: float) -> list[Effect]:
    told = {
        "query_key": job.query_key, "purpose": walk.purpose, "state": state, "problem": _problem(problem),
        "walk": as_json(walk.to_json()), "wait_s": wait_s,
    }  # fmt: skip
    kept = (
        [Effect(KEEP_BACKFILL, {"backfill_id": job.backfill, "walk": as_json(walk.to_json())})]
        if walk.purpose == Purpose.BACKFILL
        else []
    )
    return [Effect(STOPPED, told), *kept]


def _problem(problem: Problem | None) -> str | None:
    return None if problem is None else as_json(problem.to_json())


def as_json(value: Any) -> str:
    return orjson.dumps(value).decode()


class SearchStore:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def next_job(self, turn: Turn) -> Json | None:
        with direct.alone(self._engine, turn.tenant_id) as line:
            return line.one(NEXT_JOB, {"tenant_id": turn.tenant_id, "run_id": turn.run_id})

    def too_early_s(self, turn: Turn, gap_s: float) -> float:
        with direct.alone(self._engine, turn.tenant_id) as line:
            (wait_s,) = line.scalars(TOO_EARLY, {"tenant_id": turn.tenant_id, "run_id": turn.run_id, "gap_s": gap_s})
        return wait_s or 0.0

    def replays(self, turn: Turn, most: int) -> list[Any]:
        with direct.alone(self._engine, turn.tenant_id) as line:
            return line.all(REPLAYS, {"tenant_id": turn.tenant_id, "most": most})

    def dirty_companies(self, turn: Turn, most: int) -> list[UUID]:
        with direct.alone(self._engine, turn.tenant_id) as line:
            return line.scalars(DIRTY, {"tenant_id": turn.tenant_id, "most": most})


# --- what the API asks

SAVE = sa.text("""
insert into saved_search (id, tenant_id, name, client, connection, params, query_key, max_pages, max_offers, every_s,
                          fresh_within_s, seed_floor, created_by, created_at, updated_at)
select cast(:id as uuid), cast(:tenant_id as uuid), :name, :client, cast(:connection as uuid), cast(:params as jsonb), :query_key,
       cast(:max_pages as integer), cast(:max_offers as integer), cast(:every_s as integer), cast(:fresh_within_s as integer),
       cast(:floor as timestamptz), :created_by, now(), now()
where (select count(*) from saved_search where tenant_id = :tenant_id) < cast(:most as integer)
on conflict do nothing returning id
""")
HAS_MOST = sa.text("""
select 1 as one where (select count(*) from saved_search where tenant_id = :tenant_id) >= cast(:most as integer)
""")
NEW_STATE = sa.text("""
insert into query_state as q (tenant_id, query_key, search_id, client, account, zone, active, seed_floor, next_due_at, fresh_at)
select s.tenant_id, s.query_key, s.id, s.client, :account, :zone, s.paused_at is null, s.seed_floor, now(),
       now() + make_interval(secs => s.fresh_within_s)
from saved_search s where s.id = :id and s.tenant_id = :tenant_id
on conflict (tenant_id, query_key) do update
set search_id = excluded.search_id, account = excluded.account, active = excluded.active, next_due_at = excluded.next_due_at,
    seed_floor = excluded.seed_floor, fresh_at = greatest(q.fresh_at, excluded.fresh_at),
    history_due_at = case when q.seed_cursor > excluded.seed_floor then now() end
""")
# What the query has in quarantine is its search's, also if that was deleted and saved again.
ADOPT = sa.text("""
update search_quarantine z set search_id = s.id from saved_search s
where s.id = :id and s.tenant_id = :tenant_id and z.tenant_id = s.tenant_id and z.query_key = s.query_key and z.search_id <> s.id
""")
ONE_SAVED = sa.text("select connection from saved_search where id = :id and tenant_id = :tenant_id")
KEY_TAKEN = sa.text("select id from saved_search where tenant_id = :tenant_id and query_key = :query_key and id <> :id")
# What is not given stays: somebody else may have changed it since we looked.
CHANGE = sa.text("""
update saved_search set params = coalesce(cast(:params as jsonb), params),
       query_key = case when cast(:params as jsonb) is null then query_key else :query_key end,
       connection = coalesce(cast(:connection as uuid), connection), seed_floor = coalesce(cast(:seed_floor as timestamptz), seed_floor),
       max_pages = coalesce(cast(:max_pages as integer), max_pages), max_offers = coalesce(cast(:max_offers as integer), max_offers),
       every_s = coalesce(cast(:every_s as integer), every_s),
       fresh_within_s = coalesce(cast(:fresh_within_s as integer), fresh_within_s), updated_at = now()
where id = :id and tenant_id = :tenant_id
""")
DEACTIVATE = sa.text("update query_state set active = false where tenant_id = :tenant_id and search_id = :id")
ACTIVATE = sa.text("""
update query_state q set active = cast(:active as boolean) from saved_search s
where q.tenant_id = :tenant_id and s.id = :id and s.tenant_id = :tenant_id and q.query_key = s.query_key
""")
PAUSE = sa.text("""
update saved_search set paused_at = case when cast(:paused as boolean) then coalesce(paused_at, now()) end, updated_at = now()
where id = :id and tenant_id = :tenant_id
""")
DELETE = sa.text("delete from saved_search where id = :id and tenant_id = :tenant_id")
START_BACKFILL = sa.text("""
insert into search_backfill (id, tenant_id, search_id, query_key, lo, hi, created_by, created_at)
select cast(:backfill_id as uuid), s.tenant_id, s.id, s.query_key, cast(:lo as timestamptz), cast(:hi as timestamptz), :created_by, now()
from saved_search s where s.id = :id and s.tenant_id = :tenant_id
""")
HISTORY_DUE = sa.text("""
update query_state q set history_due_at = now() from saved_search s
where s.id = :id and s.tenant_id = :tenant_id and q.tenant_id = s.tenant_id and q.query_key = s.query_key
""")
DUE_NOW = sa.text("""
update query_state q set next_due_at = least(q.next_due_at, now()) from saved_search s
where s.id = :id and s.tenant_id = :tenant_id and q.tenant_id = s.tenant_id and q.query_key = s.query_key
""")
CLIENT_DUE = sa.text("""
update query_state set next_due_at = now()
where tenant_id = :tenant_id and client = :client and active and status = 'ERROR' and next_due_at > now()
""")
REPLAY = sa.text("""
update search_quarantine set replay_at = now()
where tenant_id = :tenant_id and search_id = :id and id = :record_id and resolved_at is null
""")
ACCEPT = sa.text("""
update search_quarantine set resolved_at = now(), resolution = 'accepted', replay_at = null
where tenant_id = :tenant_id and search_id = :id and id = :record_id and resolved_at is null
""")
WAITING_LANE = sa.text("""
select l.id from lane l where l.run_id = :run_id and l.tenant_id = :tenant_id and l.status = 'active' and l.steps = 0
""")

NOW = sa.text("select now() as now")
_RANGES = """coalesce((select jsonb_agg(jsonb_build_object('start', lower(r), 'end', upper(r)) order by lower(r))
                       from unnest({}) as r where not isempty(r)), '[]')"""
_ONE = f"""
select s.id, s.name, s.client, s.connection, s.params, s.query_key, s.max_pages, s.max_offers, s.every_s, s.fresh_within_s, s.created_at,
       s.paused_at is not null as paused, q.fresh_at >= now() as fresh, q.zone, q.status, q.last_run_at, q.last_success_at,
       q.last_error_at, q.last_processed_date, q.consecutive_failures, q.high_watermark, q.seed_floor, q.seed_cursor,
       q.next_due_at, g.until as held_until, g.reason as held_because, q.history_due_at is not null as history_open, q.problem,
       {_RANGES.format("q.covered")} as covered,
       {_RANGES.format("tstzmultirange(tstzrange(q.seed_floor, greatest(q.seed_floor, q.high_watermark))) - q.covered")} as gaps,
       {_RANGES.format("u.unclean")} as unclean, u.in_quarantine
from saved_search s
join query_state q on q.tenant_id = s.tenant_id and q.query_key = s.query_key
left join gate g on g.tenant_id = q.tenant_id and g.key = q.account and g.state <> 'open' and g.until > now()
cross join lateral (
    select coalesce(range_agg(tstzrange(z.window_from, z.window_to)), '{{}}') as unclean, count(*)::integer as in_quarantine
    from search_quarantine z
    where z.tenant_id = s.tenant_id and z.search_id = s.id and z.query_key = s.query_key and z.resolved_at is null) u
where s.tenant_id = :tenant_id"""  # noqa: S608 - our own words
ONE = sa.text(f"{_ONE} and s.id = :id")
LIST = sa.text(f"{_ONE} and s.name > :after order by s.name limit :most")
EXECUTIONS = sa.text("""
select id, run_id, query_key, purpose, window_from, window_to, status, stop_reason, started_at, finished_at, pages_fetched,
       offers_fetched, requests_count, http_429_count, errors_count, companies_aggregated, companies_failed, problem
from ingestion_runs
where tenant_id = :tenant_id and search_id = :id
  and (cast(:at as timestamptz) is null or (started_at, id) < (cast(:at as timestamptz), cast(:after_id as uuid)))
order by started_at desc, id desc limit :most
""")
QUARANTINED = sa.text("""
select id, key, problem, payload, times, window_from, window_to, first_seen_at, seen_at, replay_at from search_quarantine
where tenant_id = :tenant_id and search_id = :id and query_key = :query_key and resolved_at is null
  and (cast(:at as timestamptz) is null or (first_seen_at, id) > (cast(:at as timestamptz), cast(:after_id as uuid)))
order by first_seen_at, id limit :most
""")
FOUND = sa.text("""
select o.external_id, o.client, o.title, o.company_id, c.name as company, o.location, o.link, o.salary, o.published_at,
       o.updated_at, o.repost_of
from offers o left join companies c on c.tenant_id = o.tenant_id and c.id = o.company_id
where o.tenant_id = :tenant_id and o.found_by @> array[cast(:query_key as text)]
  and (cast(:at as timestamptz) is null or (o.updated_at, o.external_id) < (cast(:at as timestamptz), :after_id))
order by o.updated_at desc, o.external_id desc limit :most
""")
COMPANIES = sa.text("""
select c.id, c.client, c.name, c.link, c.open_offers, c.first_seen_at, c.last_seen_at, f.feedback
from companies c left join company_feedback f on f.tenant_id = c.tenant_id and f.company_id = c.id
where c.tenant_id = :tenant_id
  and (cast(:at as timestamptz) is null or (c.first_seen_at, c.id) > (cast(:at as timestamptz), cast(:after_id as uuid)))
order by c.first_seen_at, c.id limit :most
""")
CLIENTS = sa.text("""
select q.client, count(*)::integer as searches, max(g.until) as paused_until, max(g.reason) as reason
from query_state q
left join gate g on g.tenant_id = q.tenant_id and g.key = q.account and g.state <> 'open' and g.until > now()
where q.tenant_id = :tenant_id and q.active group by q.client
""")
# Somebody paused the board. Nothing else closes a gate for so long.
PAUSED_BY_HAND = sa.text("""
select g.reason from query_state q join gate g on g.tenant_id = q.tenant_id and g.key = q.account
where q.tenant_id = :tenant_id and q.client = :client and g.state <> 'open' and g.until > now() + interval '1 year' limit 1
""")
ACCOUNTS = sa.text("select distinct account from query_state where tenant_id = :tenant_id and client = :client")
SEEN = sa.text("""
select now() as now, q.covered @> tstzrange(cast(:lo as timestamptz), cast(:hi as timestamptz)) as covered,
       coalesce((select sum(i.offers_fetched) / nullif(sum(extract(epoch from i.window_to - i.window_from)) / 86400, 0)
                 from (select * from ingestion_runs i where i.tenant_id = q.tenant_id and i.search_id = q.search_id
                         and i.stop_reason = 'window_exhausted' order by i.started_at desc limit 20) i), 50) as per_day
from saved_search s join query_state q on q.tenant_id = s.tenant_id and q.query_key = s.query_key
where s.tenant_id = :tenant_id and s.id = :id
""")
