"""The statements of triggers, each with its one purpose."""

from __future__ import annotations

import sqlalchemy as sa

from shared.job_queue.triggers.model import Trigger
from shared.kernel.model import Statement
from shared.kernel.ports import Row

# Jobs of a trigger that are looked at for one that goes on: of its own, and of those that were run by hand. They have keys of their
# own, so that no number of the one hides the other.
LAST_ONES = 10
LAST_BY_HAND = 100
BY_HAND = "by hand/"
_TRIGGER = """t.id, t.tenant_id, t.label, t.trigger_type, t.is_enabled, t.event_name, t.event_filter, t.cron_expr, t.timezone,
       d.key as definition_key, t.payload_template, t.dedupe_window_seconds, t.catch_up, t.max_lateness_seconds,
       t.catch_up_most, t.overlap, t.next_fire_at"""

# Who wants a signal: triggers of its tenant and name that were there, and switched on, when it was written. The end of a run
# is also an event of its kind: `run.failed` of a job is `job.failed`. A kind that says so itself, in the same transaction, has
# said it: nobody hears of one end twice.
SUBSCRIBED = Statement(
    "trigger.subscribed",
    """select s.id as signal_id, cast(t.id as text) as subscriber
       from signal s
       join job_triggers t on t.tenant_id = s.tenant_id and t.trigger_type = 'event' and t.is_enabled
        and t.deleted_at is null and t.active_since <= s.at
        and t.event_name in (s.name, case when s.name like 'run.%' then (s.payload ->> 'kind') || substr(s.name, 4) end)
        and (t.event_name = s.name
             or not exists (select from signal o where o.at = s.at and o.tenant_id = s.tenant_id and o.name = t.event_name
                              and o.payload ->> 'run_id' = s.payload ->> 'run_id'))
       where s.id = any(cast(:signal_ids as bigint[]))""",
)

# Everybody who lets a trigger fire holds its row: the last job is read after that, in a statement of its own.
LOCK_TRIGGER = Statement(
    "trigger.lock",
    f"""select {_TRIGGER}, t.active_since, now() as now from job_triggers t join job_definitions d on d.id = t.definition_id
        where t.id = cast(:id as uuid) and t.tenant_id = cast(:tenant_id as uuid) and t.deleted_at is null
        for no key update of t""",
)
# A schedule that another tick is at is left to it.
LOCK_DUE = Statement(
    "trigger.lock_due",
    f"""select {_TRIGGER}, now() as now from job_triggers t join job_definitions d on d.id = t.definition_id
        where t.id = cast(:id as uuid) and t.tenant_id = cast(:tenant_id as uuid) and t.next_fire_at <= now()
        for no key update of t skip locked""",
)
DUE = Statement(
    "trigger.due",
    """select id, tenant_id, next_fire_at from job_triggers
       where next_fire_at <= now() and (next_fire_at, id) > (cast(:at as timestamptz), cast(:after as uuid))
       order by next_fire_at, id limit :most""",
)
ADVANCE = Statement(
    "trigger.advance",
    """update job_triggers set next_fire_at = cast(:next_at as timestamptz), problem = cast(:problem as text)
       where id = cast(:id as uuid)""",
)

# The newest job of a trigger for each key that is asked for: running, if somebody has taken it. And what waits for its end.
# One that was started by hand, or had to wait, may have ended before an older one: as long as any of the last ones goes on,
# that one counts, and before it one that nobody has begun. A job of another definition, to which the trigger pointed before, does
# not do what an event asks for now; a schedule waits for it all the same.
LAST_JOBS = Statement(
    "trigger.last_jobs",
    f"""select q.n, exists (select from trigger_firings x where x.trigger_id = cast(:id as uuid) and x.cause = cast(:cause as text)
                           and ((x.cause = 'event' and x.signal_id = q.signal_id)
                                or (x.cause = 'schedule' and x.fire_at = q.fire_at))) as done,
              j.run_id, j.state, j.began_window_at, w.id as waiting_id, w.count as waiting
       from jsonb_to_recordset(cast(:asked as jsonb)) as q (n integer, key text, signal_id bigint, fire_at timestamptz)
       left join lateral (
           select r.id as run_id, s.state, coalesce(r.started_at, r.created_at) as began_window_at
           from (values (q.key, {LAST_ONES}), ('{BY_HAND}' || q.key, {LAST_BY_HAND})) as k (key, most)
           cross join lateral (
                 select x.run_id from trigger_firings x
                 where x.trigger_id = cast(:id as uuid) and x.key = k.key and x.status = 'started'
                 order by x.id desc limit k.most) f
           join run r on r.id = f.run_id
            and (cast(:cause as text) <> 'event' or r.params ->> 'definition_key' = cast(:definition_key as text))
           join lane l on l.run_id = r.id left join offer o on o.lane_id = l.id
           cross join lateral (select case when r.finished_at is not null then 'ended'
                                           when o.taken_at is not null then 'running' else 'waiting' end as state) s
           order by s.state = 'ended', s.state = 'running', began_window_at desc
           limit 1) j on true
       left join lateral (
           select (array_agg(x.id order by x.fire_at, x.id))[1] as id, count(*) as count from trigger_firings x
           where x.trigger_id = cast(:id as uuid) and x.key = q.key and x.status = 'waiting') w on true
       order by q.n""",
)
NOTE = Statement(
    "trigger.note",
    """insert into trigger_firings (trigger_id, id, tenant_id, cause, signal_id, fire_at, through, due_count, key, status, reason,
                                    error, payload, run_id, waits_for, joined_to, chain)
       select f.trigger_id, f.id, f.tenant_id, f.cause, f.signal_id, f.fire_at, coalesce(f.through, f.fire_at),
              coalesce(f.due_count, 1), coalesce(f.key, ''), f.status, f.reason, f.error, f.payload, f.run_id, f.waits_for,
              f.joined_to, coalesce(f.chain, 0)
       from jsonb_to_recordset(cast(:firings as jsonb)) as f (
           trigger_id uuid, id uuid, tenant_id uuid, cause text, signal_id bigint, fire_at timestamptz, through timestamptz,
           due_count integer, key text, status text, reason text, error jsonb, payload jsonb, run_id uuid, waits_for uuid,
           joined_to uuid, chain integer)""",
)

# One of each trigger and key whose turn has come: the job that it waits for has ended, or is gone.
RELEASABLE = Statement(
    "trigger.releasable",
    """select f.trigger_id, f.id, f.tenant_id from trigger_firings f
       where f.status = 'waiting' and (f.trigger_id, f.id) > (cast(:after_trigger as uuid), cast(:after as uuid))
         and not exists (select from run r where r.id = f.waits_for and r.finished_at is null)
       order by f.trigger_id, f.id limit :most""",
)
WAITING = Statement(
    "trigger.waiting",
    """select id, cause, signal_id, fire_at, key, payload, chain from trigger_firings
       where trigger_id = cast(:trigger_id as uuid) and id = cast(:id as uuid) and status = 'waiting'""",
)
# What has waited, and whatever joined it: if it is refused, no job does theirs either.
RELEASE = Statement(
    "trigger.release",
    """update trigger_firings
       set status = case when id = cast(:id as uuid) or cast(:status as text) = 'refused' then cast(:status as text) else status end,
           run_id = cast(:run_id as uuid), error = cast(:error as jsonb),
           payload = null, waits_for = null
       where trigger_id = cast(:trigger_id as uuid) and (id = cast(:id as uuid) or joined_to = cast(:id as uuid))""",
)
WAIT_ON = Statement(
    "trigger.wait_on",
    """update trigger_firings set waits_for = cast(:run_id as uuid)
       where trigger_id = cast(:trigger_id as uuid) and id = cast(:id as uuid) and status = 'waiting'""",
)
PRUNE = Statement(
    "trigger.prune",
    """delete from trigger_firings where ctid = any(array(
           select ctid from trigger_firings where at < now() - make_interval(days => :days) and status <> 'waiting'
           limit :most))""",
)
# What a template may see of runs that have ended, and which firings started them, or the jobs that did. Only Baton's own word of
# a run counts, under whatever name its kind says it: an event from outside has an id of its own, and may name any run.
RUNS = Statement(
    "trigger.runs",
    """select a.signal_id, r.kind, r.label, r.params ->> 'definition_key' as definition_key,
              case r.source when 'job' then j.source_ref else r.source_ref end as source_ref
       from unnest(cast(:signal_ids as bigint[]), cast(:run_ids as uuid[])) as a (signal_id, run_id)
       join signal s on s.id = a.signal_id and s.event_id is null
       join run r on r.id = a.run_id and r.tenant_id = cast(:tenant_id as uuid)
       left join run j on j.tenant_id = r.tenant_id
        and j.id = case r.source when 'job' then cast(r.source_ref as uuid) end""",
)
CHAINS = Statement(
    "trigger.chains",
    """select f.trigger_id, f.id, f.chain
       from unnest(cast(:trigger_ids as uuid[]), cast(:ids as uuid[])) as a (trigger_id, id)
       join trigger_firings f on f.trigger_id = a.trigger_id and f.id = a.id""",
)


def trigger_of(row: Row) -> Trigger:
    return Trigger(**{name: row[name] for name in Trigger.__slots__})


# Over HTTP.

NOW = sa.text("select now() as now")
TIMEZONE = sa.text("select timezone from tenant where id = :tenant_id")
SET_TIMEZONE = sa.text("update tenant set timezone = :timezone where id = :tenant_id")
COUNT = sa.text("select count(*) as n from job_triggers where tenant_id = :tenant_id and deleted_at is null")
_SEEN = f"{_TRIGGER}, t.active_since, t.problem, t.created_by, t.created_at, t.updated_at"
ONE = sa.text(f"""
select {_SEEN} from job_triggers t join job_definitions d on d.id = t.definition_id
where t.id = :trigger_id and t.tenant_id = :tenant_id and t.deleted_at is null
""")
ONE_LOCKED = sa.text(f"{ONE.text} for no key update of t")
LIST = sa.text(f"""
select {_SEEN} from job_triggers t join job_definitions d on d.id = t.definition_id
where t.tenant_id = :tenant_id and t.deleted_at is null and t.id > cast(:after as uuid)
order by t.id limit :most
""")
# The last few of each trigger, for the history beside it; an index gives them, however many there are.
RECENT = sa.text("""
select t.id as trigger_id, f.status, f.reason, f.fire_at, f.due_count, f.run_id,
       (select r.status from run r where r.id = f.run_id) as run_status
from unnest(cast(:trigger_ids as uuid[])) as t (id)
cross join lateral (select * from trigger_firings x where x.trigger_id = t.id order by x.id desc limit :most) f
order by t.id, f.id desc
""")
DEFINITION = sa.text("select id, key, arg_schema, is_active from job_definitions where key = :key")
ADD = sa.text("""
insert into job_triggers (id, tenant_id, label, is_enabled, trigger_type, event_name, event_filter, cron_expr, timezone,
                          definition_id, payload_template, dedupe_window_seconds, catch_up, catch_up_most,
                          max_lateness_seconds, overlap, next_fire_at, created_by)
values (:id, :tenant_id, :label, :is_enabled, :trigger_type, :event_name, cast(:event_filter as jsonb), :cron_expr, :timezone,
        :definition_id, cast(:payload_template as jsonb), :dedupe_window_seconds, :catch_up, :catch_up_most,
        :max_lateness_seconds, :overlap, :next_fire_at, :created_by)
""")
# What happens before it is switched on, or given another name to listen to, does not fire it.
CHANGE = sa.text("""
update job_triggers
set label = :label, is_enabled = :is_enabled, event_name = :event_name, event_filter = cast(:event_filter as jsonb),
    cron_expr = :cron_expr, timezone = :timezone, definition_id = :definition_id,
    payload_template = cast(:payload_template as jsonb), dedupe_window_seconds = :dedupe_window_seconds, catch_up = :catch_up,
    catch_up_most = :catch_up_most, max_lateness_seconds = :max_lateness_seconds, overlap = :overlap,
    next_fire_at = case when is_enabled and cast(:is_enabled as boolean) and cron_expr is not distinct from :cron_expr
                             and timezone is not distinct from :timezone and problem is null then next_fire_at
                        else :next_fire_at end,
    problem = null, updated_at = now(),
    active_since = case when is_enabled and event_name is not distinct from :event_name then active_since else now() end
where id = :id and tenant_id = :tenant_id
""")
DELETE = sa.text("""
update job_triggers set deleted_at = now(), is_enabled = false, next_fire_at = null, updated_at = now()
where id = :id and tenant_id = :tenant_id and deleted_at is null
""")
FIRINGS = sa.text("""
select f.id, f.cause, f.signal_id, f.fire_at, f.through, f.due_count, f.status, f.reason, f.error, f.run_id, f.at,
       (select r.status from run r where r.id = f.run_id) as run_status
from trigger_firings f
where f.trigger_id = :trigger_id and f.tenant_id = :tenant_id and f.id < cast(:before as uuid)
order by f.id desc limit :most
""")
EVENTS = sa.text("""
select s.id, s.event_id, s.name, s.payload, s.at, s.dispatched_at is not null as dispatched
from signal s where s.tenant_id = :tenant_id and s.id < :before order by s.id desc limit :most
""")
EVENT = sa.text("select id, name, payload, at from signal where tenant_id = :tenant_id and event_id = :event_id")
WANTS = sa.text("""
select cast(id as text) as id from job_triggers
where tenant_id = :tenant_id and event_name = :name and trigger_type = 'event' and is_enabled and deleted_at is null
  and active_since <= cast(:at as timestamptz)
""")
# What nobody has been told of yet. (What comes in this very moment is too new for a trigger that is changed now.)
UNTOLD = sa.text("""
select id, name, payload, at from signal
where tenant_id = :tenant_id and dispatched_at is null and at < now() order by id limit :most
""")
