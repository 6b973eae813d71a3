"""The statements of jobs, each with its one purpose."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

import sqlalchemy as sa

from shared.job_queue.model import MOST_AHEAD, Definition
from shared.kernel import direct, sql
from shared.kernel.clock import read_id
from shared.kernel.direct import Row
from shared.kernel.model import Statement, Turn
from shared.kernel.store import held

_DEFINITION = """id, key, description, command, arg_schema, timeout_seconds, max_attempts, queue, executor, concurrency_limit,
       is_active, version"""

# Jobs of one key are enqueued one after the other: whoever waited finds the first one, in a statement of its own. Who has
# several waits in the order of their names, so that no two wait for each other.
LOCK_KEYS = Statement(
    "job.lock_keys",
    """select pg_advisory_xact_lock(hashtextextended(cast(:tenant_id as text) || k, 14))
       from (select k from unnest(cast(:keys as text[])) k order by k offset 0) k""",
)
FIND_KEYS = Statement(
    "job.find_keys",
    """select run_id, dedupe_key from offer
       where tenant_id = cast(:tenant_id as uuid) and dedupe_key = any(cast(:keys as text[]))""",
)
FIND_DEFINITIONS = Statement(
    "job.find_definitions", f"select {_DEFINITION} from job_definitions where key = any(cast(:keys as text[]))"
)
NOW = Statement("job.now", "select now() as now")
RUN_EXISTS = Statement(
    "job.run_exists", "select 1 as found from run where tenant_id = cast(:tenant_id as uuid) and id = cast(:id as uuid)"
)

# Numbers go on for ever, whatever epoch it is. One whose end nobody could write is gone on with. Only for whoever still holds
# the turn.
NEXT_ATTEMPT = sa.text("""
select coalesce((select a.attempt_no + (a.status <> 'running')::int from job_attempts a where a.job_id = l.run_id
                 order by a.attempt_no desc limit 1), 1) as attempt_no
from lane l
where l.id = :lane_id and l.epoch = :epoch and l.seq = :seq and l.claim_token = :token and l.status = 'active'
  and l.lease_until > now()
""")
# The attempt that runs, or a new one: most end before anybody could have looked, and are written once, at their end.
_ATTEMPT_NO = "coalesce(last.attempt_no + (last.status <> 'running')::int, 1)"
_OF_TURN = """from turn t
       left join lateral (
           select x.attempt_no, x.status from job_attempts x where x.job_id = t.run_id order by x.attempt_no desc limit 1)
           last on true
       left join lateral (select o.worker, o.taken_at from offer o where o.lane_id = t.id limit 1) o on true"""
# Who takes a job again whose last attempt nobody could end goes on with its number, and not with its log.
_WHOSE = """worker_id = excluded.worker_id, started_at = excluded.started_at,
           stdout_tail = case when a.started_at = excluded.started_at then coalesce(excluded.stdout_tail, a.stdout_tail)
                              else excluded.stdout_tail end,
           stderr_tail = case when a.started_at = excluded.started_at then coalesce(excluded.stderr_tail, a.stderr_tail)
                              else excluded.stderr_tail end"""
TAILS = Statement(
    "job.tails",
    f"""insert into job_attempts as a (job_id, attempt_no, tenant_id, worker_id, started_at, status, pid, stdout_tail,
                                      stderr_tail)
       select t.run_id, {_ATTEMPT_NO}, t.tenant_id, coalesce(o.worker, 'unknown'), coalesce(o.taken_at, now()), 'running',
              cast(:pid as integer), cast(:stdout as text), cast(:stderr as text)
       {_OF_TURN}
       on conflict (job_id, attempt_no) do update
       set pid = coalesce(excluded.pid, a.pid), {_WHOSE}""",
)


# Ends the attempt that runs; a worker that was lost before it could begin one has had one all the same.
def _end_attempt(given: Callable[[str, str], str]) -> str:
    return f"""insert into job_attempts as a (job_id, attempt_no, tenant_id, worker_id, started_at, finished_at, exit_code, status,
                                      stdout_tail, stderr_tail, error_text)
       select t.run_id, {_ATTEMPT_NO}, t.tenant_id, coalesce(o.worker, {given("attempt_worker", "text")}),
              coalesce(o.taken_at, now()), now(), {given("exit_code", "integer")}, {given("attempt_status", "text")},
              {given("stdout", "text")}, {given("stderr", "text")}, {given("attempt_error", "text")}
       {_OF_TURN}
       on conflict (job_id, attempt_no) do update
       set finished_at = now(), exit_code = excluded.exit_code, status = excluded.status, error_text = excluded.error_text,
           {_WHOSE}"""


END_ATTEMPT = Statement(
    "job.end_attempt",
    _end_attempt(lambda name, type_: f"cast(:{name} as {type_})"),
    many=_end_attempt(lambda name, type_: f"cast(t.given ->> '{name}' as {type_})"),
)

SEE_WORKER = sa.text("""
insert into job_workers as w (worker_id, hostname, version, queues, last_seen_at, running_count)
values (:worker_id, :hostname, :version, cast(:queues as text[]), now(), :running_count)
on conflict (worker_id) do update
set last_seen_at = now(), running_count = excluded.running_count, queues = excluded.queues, version = excluded.version
""")
# Over HTTP a worker calls itself what it likes, and a container has another name with every start. A tenant has so many lines at
# most; then a new one takes the place of the one that was not seen for the longest time.
# `is_new`: whether its claim comes after all that it has sent before. One that was held up on the way, and overtaken, does not.
MOST_WORKERS = 500
_CLAIM_NO = "jsonb_build_object('claim_no', cast(:claim_no as bigint))"
SEEN_WORKER = sa.text(f"""
with known as (
    select exists (select from job_workers k where k.worker_id = :worker_id)
        or (select count(*) from (select from job_workers k where k.tenant_id = :tenant_id limit {MOST_WORKERS}) k) < {MOST_WORKERS}
        as has_room),
replaced as (
    update job_workers w set worker_id = :worker_id, hostname = :hostname, queues = cast(:queues as text[]), started_at = now(),
                             last_seen_at = now(), running_count = 0, version = '', metadata = {_CLAIM_NO}
    from known where not known.has_room and w.worker_id = (
        select k.worker_id from job_workers k where k.tenant_id = :tenant_id
        order by k.last_seen_at limit 1 for update skip locked)
    returning w.worker_id),
seen as (
    insert into job_workers as w (worker_id, hostname, queues, last_seen_at, metadata)
    select :worker_id, :hostname, cast(:queues as text[]), now(), {_CLAIM_NO} from known where known.has_room
    on conflict (worker_id) do update
    set last_seen_at = now(), running_count = 0, queues = excluded.queues, metadata = excluded.metadata
    where cast(:claim_no as bigint) is null or coalesce((w.metadata ->> 'claim_no')::bigint, 0) < :claim_no
    returning w.worker_id)
select not known.has_room or exists (select from seen) as is_new from known
""")
# A worker that has all it can take asks for no more: that it keeps what it has says that it is there.
SEEN_AT_WORK = sa.text("""
update job_workers set last_seen_at = now()
where worker_id = (select o.worker from offer o where o.lane_id = :lane_id) and last_seen_at < now() - interval '5 s'
returning worker_id
""")
FORGET_WORKER = sa.text("delete from job_workers where worker_id = :worker_id returning worker_id")
# A worker that ends takes its line along; one that was killed leaves it.
PRUNE_WORKERS = Statement(
    "job.prune_workers",
    """delete from job_workers where ctid = any(array(
           select ctid from job_workers where last_seen_at < now() - interval '7 days' limit :most))""",
)
PRUNE_ATTEMPTS = Statement(
    "job.prune",
    """delete from job_attempts where ctid = any(array(
           select ctid from job_attempts where job_id = cast(:run_id as uuid) limit cast(:most as integer)))""",
)

ONE_DEFINITION = sa.text(f"select {_DEFINITION} from job_definitions where id = :id")
PUT_DEFINITION = sa.text("select put_job_definition(:subject, cast(:definition as jsonb)) as written")
PUT_LIMIT = sa.text("select put_job_limit(:subject, :most) as written")
LIMIT = sa.text("""
select (select p.most_running from pull_tenant p where p.tenant_id = :tenant_id) as concurrency_limit,
       (select count(*) from offer o where o.tenant_id = :tenant_id and o.taken_at is not null) as running
""")
LIST_DEFINITIONS = sa.text(f"""
select {_DEFINITION}, created_at, updated_at from job_definitions order by key limit 1000
""")

_JOB = """id, tenant_id, definition_id, definition_key, version, source, source_ref, status, priority, payload, dedupe_key,
       scheduled_for, queued_at, started_at, finished_at, attempt_count, max_attempts, claimed_by_worker, last_error,
       created_by, cancel_requested_at, correlation_id"""
ADDED = sa.text("""
select cast(tenant_id as text) as tenant_id, status, definition_key, to_jsonb(queued_at) #>> '{}' as queued_at
from jobs where id = :run_id and tenant_id = :tenant_id
""")
ONE_JOB = sa.text(f"select {_JOB} from jobs where id = :job_id and tenant_id = :tenant_id")
# The view's status is more than the run's: what it must be there is asked first, so that the index is used.
_STATUS = {
    "queued": "r.status in ('queued', 'running') and o.taken_at is null",
    "running": "r.status in ('queued', 'running') and o.taken_at is not null",
    "succeeded": "r.status = 'succeeded'",
    # As a case, which the planner knows nothing about: it would take the two for rare together, and read and sort all failed.
    "failed": "r.status = 'failed' and case r.outcome when 'dead_letter' then false else true end",
    "dead_letter": "r.status = 'failed' and case r.outcome when 'dead_letter' then true else false end",
    "canceled": "r.status = 'canceled'",
}


# Of somebody who sees only their own: row level security says the same, but no index can follow it there.
_OWN = "r.created_by = :owner"


def list_jobs(status: str | None, *, own: bool, source: bool, since: bool, until: bool, after: bool) -> sa.TextClause:
    """A page, newest first."""
    wheres = ["r.kind = 'job'", "r.tenant_id = :tenant_id"]
    wheres += [_OWN] if own else []
    wheres += [_STATUS[status]] if status else []
    wheres += ["coalesce(r.source, '') = any(cast(:sources as text[]))"] if source else []
    wheres += ["r.created_at >= :created_after"] if since else []
    wheres += ["r.created_at < :created_before"] if until else []
    wheres += ["(r.created_at, r.id) < (cast(:after_at as timestamptz), cast(:after_id as uuid))"] if after else []
    return _page(tuple(wheres), asks_offers=status in {"queued", "running"})


def _page(wheres: tuple[str, ...], *, asks_offers: bool) -> sa.TextClause:
    offers = "join lane l on l.run_id = r.id left join offer o on o.lane_id = l.id" if asks_offers else ""
    return sa.text(f"""
select {_JOB} from jobs where id = any(array(
    select r.id from run r {offers}
    where {" and ".join(wheres)} order by r.created_at desc, r.id desc limit :most))
order by queued_at desc, id desc
""")


# A page of them whole would be larger than an answer may be.
_ATTEMPT = "attempt_no, worker_id, pid, started_at, finished_at, exit_code, status, error_text"
ATTEMPT = sa.text(f"""
select {_ATTEMPT}, stdout_tail, stderr_tail
from job_attempts where job_id = :job_id and tenant_id = :tenant_id and attempt_no = :attempt_no
""")
ATTEMPTS = sa.text(f"""
select {_ATTEMPT}, right(stdout_tail, 2000) as stdout_tail, right(stderr_tail, 2000) as stderr_tail
from job_attempts where job_id = :job_id and tenant_id = :tenant_id and attempt_no < :before
order by attempt_no desc limit :most
""")
# How the queue stands, as one row. Everything is counted up to a bound: it must not cost more the more there is. The rates are
# of the last hour, or of the newest so many jobs if there were more.
MOST_COUNTED = 10_000
MOST_SAMPLED = 500
# Since when the job has waited that has waited longest: lines know where what is due begins. Of one person's own it is looked for
# among the oldest.
_OLDEST = """
     select min(f.queued_at)
     from pull_class c
     join pull_line l on l.class_id = c.id and l.tenant_id = :tenant_id and l.active
     cross join lateral (
         select o.queued_at from offer o
         where o.class_id = l.class_id and o.tenant_id = l.tenant_id and o.priority = l.priority and o.queued_at >= l.head
           and o.due and o.taken_at is null
         order by o.class_id, o.tenant_id, o.priority, o.queued_at, o.lane_id limit 1) f"""
_OLDEST_OWN = f"""
     select min(o.queued_at)
     from (values ('queued'), ('running')) s (status)
     cross join lateral (
         select r.id from run r where r.tenant_id = :tenant_id and r.kind = 'job' and r.status = s.status and {_OWN}
         order by r.created_at, r.id limit {MOST_SAMPLED}) r
     join lane l on l.run_id = r.id
     join offer o on o.lane_id = l.id and o.due and o.taken_at is null"""


@lru_cache(maxsize=2)
def summary(*, own: bool) -> sa.TextClause:
    mine, oldest = (f"and {_OWN}", _OLDEST_OWN) if own else ("", _OLDEST)
    return sa.text(f"""
with counts as (
    select s.status, c.n, c.dead from (values ('queued'), ('running'), ('succeeded'), ('failed'), ('canceled')) s (status)
    cross join lateral (
        select count(*) as n, count(*) filter (where r.outcome = 'dead_letter') as dead from (
            select r.outcome from run r where r.tenant_id = :tenant_id and r.kind = 'job' and r.status = s.status {mine}
            order by r.created_at desc, r.id desc limit {MOST_COUNTED + 1}) r) c),
made as materialized (
    select r.created_at from run r
    where r.tenant_id = :tenant_id and r.kind = 'job' and r.created_at > now() - interval '1 hour' {mine}
    order by r.created_at desc limit {MOST_SAMPLED}),
ended as materialized (
    select r.id, r.status, r.outcome, r.finished_at from run r
    where r.tenant_id = :tenant_id and r.kind = 'job' and r.finished_at > now() - interval '1 hour' {mine}
    order by r.finished_at desc limit {MOST_SAMPLED}),
tried as materialized (
    select e.status, e.outcome, a.failed, a.retried, extract(epoch from a.ended - a.began) as run_s,
           greatest(0, extract(epoch from a.began - l.next_due_at)) as queue_s
    from ended e
    cross join lateral (select next_due_at from lane where run_id = e.id limit 1) l
    cross join lateral (
        select count(*) filter (where status in ('failed', 'timeout')) as failed,
               count(*) filter (where attempt_no > 1) as retried,
               (array_agg(started_at order by attempt_no desc))[1] as began,
               (array_agg(finished_at order by attempt_no desc))[1] as ended
        from job_attempts where job_id = e.id and started_at > now() - interval '1 hour') a)
select
    (select jsonb_object_agg(status, n) || jsonb_build_object('dead_letter', sum(dead)) from counts) as counts,
    (select count(*) from offer o join run r on r.id = o.run_id
     where o.tenant_id = :tenant_id and o.taken_at is not null) as taken,
    extract(epoch from now() - ({oldest}))::double precision as oldest_s,
    (select jsonb_build_object(
        'enqueued', count(*),
        'window_s', case when count(*) = {MOST_SAMPLED} then greatest(1, extract(epoch from now() - min(created_at)))
                         else 3600 end) from made) as made,
    (select case when count(*) = {MOST_SAMPLED} then greatest(1, extract(epoch from now() - min(finished_at))) else 3600
            end::double precision from ended) as ended_window_s,
    (select jsonb_build_object(
        'succeeded', count(*) filter (where status = 'succeeded'),
        'failed', coalesce(sum(failed), 0),
        'retried', coalesce(sum(retried), 0),
        'dead_letter', count(*) filter (where outcome = 'dead_letter'),
        'queue_s', percentile_disc(array[0.5, 0.95]) within group (order by queue_s),
        'run_s', percentile_disc(array[0.5, 0.95]) within group (order by run_s)) from tried) as ended,
    (select to_jsonb(e) from jobs_everywhere(:subject) e) as everywhere
""")


# Why one job waits. Ahead of it are the tenant's own: between tenants turns decide.
WHY = sa.text(f"""
select r.paused_at is not null as paused, r.cancel_requested_at is not null as canceling, l.attempts,
       l.last_error ->> 'message' as last_error, l.lease_until < now() as lost, c.queue, c.is_open, c.wakes,
       o.due, o.scheduled_for, o.taken_at, o.worker, pull_class_full(c.id) as definition_full, c.most_running as definition_cap,
       p.most_running as tenant_cap,
       coalesce(p.most_running <= (
           select count(*) from offer t where t.tenant_id = :tenant_id and t.taken_at is not null), false) as tenant_full,
       (select count(*) from job_workers w
        where c.queue = any(w.queues) and w.last_seen_at >= now() - interval '60 s'
          and (w.tenant_id = :tenant_id or w.tenant_id is null)) as workers,
       (select count(*) from (
           select from pull_class k
           join pull_line n on n.class_id = k.id and n.tenant_id = o.tenant_id and n.active and n.priority <= o.priority
           cross join lateral (
               select from offer a
               where a.class_id = n.class_id and a.tenant_id = n.tenant_id and a.priority = n.priority
                 and a.queued_at >= n.head and a.due and a.taken_at is null
                 and (n.priority < o.priority or (a.queued_at, a.lane_id) < (o.queued_at, o.lane_id))
               order by a.class_id, a.tenant_id, a.priority, a.queued_at, a.lane_id limit {MOST_AHEAD + 1}) a
           where k.queue = c.queue and k.is_open and o.due
           limit {MOST_AHEAD + 1}) x) as ahead
from lane l
join run r on r.id = l.run_id
join offer o on o.lane_id = l.id
join pull_class c on c.id = l.class_id
left join pull_tenant p on p.tenant_id = l.tenant_id
where l.run_id = :job_id and l.tenant_id = :tenant_id
""")
WORKERS = sa.text("""
select worker_id, hostname, version, queues, started_at, last_seen_at, running_count,
       last_seen_at < now() - interval '60 s' as stale
from workers_everywhere(:subject)
""")


def definition_of(row: Row) -> Definition:
    return Definition(**{name: row[name] for name in Definition.__slots__})


class JobReader:
    """What a step reads beside its commit, as its tenant."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def next_attempt(self, turn: Turn) -> int | None:
        with direct.alone(self._engine, turn.tenant_id) as line:
            rows = line.all(NEXT_ATTEMPT, held(turn))
        return rows[0]["attempt_no"] if rows else None

    def exists(self, tenant_id: UUID, what: str, which: str) -> bool:
        """By the same reading of an id as when the job was added."""
        statement, params = sql.FIND_CONNECTION, {"wanted": which, "provider": what.partition(":")[2]}
        if what == "run":
            run_id = read_id(which)
            if run_id is None:
                return False
            statement, params = _RUN_EXISTS, {"id": str(run_id)}
        with direct.alone(self._engine, tenant_id) as line:
            return bool(line.all(statement, {"tenant_id": tenant_id, **params}))


_RUN_EXISTS = sa.text(RUN_EXISTS.sql)
