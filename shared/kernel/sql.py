"""The relay's SQL: every statement with its one purpose. `store.py` runs them.

Only `now()` of the database decides. A parameter is always cast: a lone NULL has no type.
Columns that no index mentions are all that claim and commit write; `check_at` only ever moves earlier there.
"""

from __future__ import annotations

from functools import lru_cache

import sqlalchemy as sa

from shared.kernel.model import Statement


def _seconds(name: str) -> str:
    return f"make_interval(secs => cast(:{name} as double precision))"


# What is left of the wait for the current baton, never below zero.
_DELAY = "greatest(0, extract(epoch from next_due_at - now()))::double precision as delay_s"
_BATON = f"id, tenant_id, kind, epoch, seq, resend_no, {_DELAY}"
_RUN = (
    "id, tenant_id, kind, status, outcome, epoch, params, correlation_id, cancel_requested_at, paused_at, "
    "time_limit_s, deadline_at, now() as now"
)

# Take a turn. The same token may ask twice: its first answer may be lost.
CLAIM = sa.text("""
update lane l
set claim_token = :token, lease_until = now() + cast(:lease as interval), resends = 0,
    claims = l.claims + (l.claim_token is distinct from :token)::int,
    check_at = least(l.check_at, now() + cast(:watch as interval))
from run r
where l.id = :lane_id and l.kind = :kind and l.epoch = :epoch and l.seq = :seq and l.status = 'active'
  and l.next_due_at <= now() + interval '1 s'
  and (l.claim_token is null or l.claim_token = :token or l.lease_until < now())
  and r.id = l.run_id and (r.paused_at is null or l.cancel_at is not null)
returning l.run_id, l.tenant_id, l.key, l.holds_run, l.resend_no, l.cursor, l.claims, l.attempts, l.steps, l.max_steps,
          l.cancel_at, l.deadline_at, r.status as run_status, r.epoch as run_epoch, r.params, r.correlation_id, now() as now
""")

# Only a message that got no turn pays for the reason.
WHY_REFUSED = sa.text("""
select l.epoch, l.seq, l.status, l.next_due_at > now() + interval '1 s' as early, r.paused_at is not null as paused
from lane l
join run r on r.id = l.run_id
where l.id = :lane_id and l.kind = :kind
""")


# The one commit of a step. Everything selects from the guarded update: a lost turn writes nothing at all.
# Behind a pooler and inside a transaction it is planned anew each time, so what Python can work out is a parameter here:
# each expression costs microseconds.
_COMMIT_TURN = """
with turn as (
    update lane
    set seq = seq + 1, status = :status, cursor = coalesce(cast(:cursor as jsonb), cursor),
        steps = steps + :progress, attempts = :attempts, last_error = coalesce(cast(:error as jsonb), last_error),
        claims = 0, resends = 0, claim_token = null, lease_until = null, updated_at = now(), waits_for = :waits_for,
        next_due_at = case when cancel_at is null then now() + cast(:delay as interval) else now() end,
        sent_at = case when cast(:sends as boolean) or cancel_at is not null then now() end,
        check_at = least(check_at, now() + case when cancel_at is null then cast(:look as interval) else interval '90 s' end)
    where id = :lane_id and epoch = :epoch and seq = :seq and claim_token = :token and status = 'active'
    returning id, run_id, tenant_id, kind, key, epoch, seq - 1 as seq, resend_no, cancel_at),
ledger as (
    insert into step (lane_id, epoch, seq, tenant_id, outcome, rows, ms, at)
    select id, epoch, seq, tenant_id, :outcome, :rows, :ms, now() from turn)"""


@lru_cache(maxsize=256)
def commit_turn(effects: tuple[Statement, ...]) -> sa.TextClause:
    """The commit together with a kind's own writes: one cached text per combination of statements."""
    writes = "".join(f",\neffect_{n} as ({effect.sql})" for n, effect in enumerate(effects))
    return sa.text(f"{_COMMIT_TURN}{writes}\nselect resend_no, cancel_at is null as waits from turn")


# Give a lane back whose step could not be committed; its claim stays counted.
RELEASE = sa.text("""
update lane set claim_token = null, lease_until = null
where id = :lane_id and epoch = :epoch and seq = :seq and claim_token = :token
""")

LANE_STATE = sa.text(f"""
select status, claim_token, {_BATON} from lane where id = :lane_id
""")

# Lanes that somebody else is writing are skipped: whoever holds them knows better, and waiting here could deadlock.
_NAMED_BATONS = """
where id in (
    select l.id
    from jsonb_to_recordset(cast(:batons as jsonb)) as b (lane_id uuid, epoch integer, seq bigint, resend_no integer)
    join lane l on l.id = b.lane_id and l.epoch = b.epoch and l.seq = b.seq and l.resend_no = b.resend_no
    where l.status = 'active'
    for update of l skip locked)
"""
MARK_UNSENT = sa.text(f"""
update lane set sent_at = null, check_at = least(check_at, next_due_at - interval '120 s')
{_NAMED_BATONS}
""")
MARK_SENT = sa.text(f"""
update lane set sent_at = now()
{_NAMED_BATONS} and sent_at is null
""")

INSERT_RUN = sa.text(f"""
insert into run (id, tenant_id, kind, label, status, params, correlation_id, time_limit_s, deadline_at, check_at,
                 source, source_ref, created_by, created_at)
values (:id, :tenant_id, :kind, :label, 'queued', cast(:params as jsonb), :correlation_id, cast(:time_limit_s as integer),
        now() + make_interval(secs => cast(:time_limit_s as integer)),
        now() + least(interval '1 hour', make_interval(secs => cast(:time_limit_s as integer))),
        :source, :source_ref, :created_by, now())
returning {_RUN}
""")

# Run before lane: whoever needs both takes this lock first.
LOCK_RUN = sa.text(f"""
select {_RUN} from run where id = :run_id and tenant_id = :tenant_id for no key update
""")

INSERT_LANES = sa.text(f"""
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, cancel_at,
                  time_limit_s, deadline_at, max_steps, created_at, updated_at)
select new.id, r.id, r.tenant_id, r.kind, new.key, new.holds_run, new.cursor, now() + d.delay,
       case when d.delay <= interval '900 s' then now() end,
       now() + d.delay + case when d.delay <= interval '900 s' then interval '90 s' else interval '-120 s' end,
       d.cancel_at, new.time_limit_s, now() + make_interval(secs => new.time_limit_s), new.max_steps, now(), now()
from run r
cross join jsonb_to_recordset(cast(:lanes as jsonb)) as new
    (id uuid, key text, holds_run boolean, cursor jsonb, delay_s double precision, time_limit_s integer, max_steps bigint)
cross join lateral (select case when new.holds_run then r.cancel_requested_at end as cancel_at,
    case when new.holds_run and r.cancel_requested_at is not null then interval '0'
         else make_interval(secs => new.delay_s) end as delay) d
where r.id = :run_id
returning {_BATON}
""")

MARK_RUNNING = sa.text("""
update run set status = 'running', started_at = coalesce(started_at, now()) where id = :run_id and status = 'queued'
""")

HAS_OPEN_LANES = sa.text("""
select exists (select from lane where run_id = :run_id and status = 'active' and holds_run)
""")

LANES = sa.text("""
select id, key, status, holds_run, epoch, cursor, last_error from lane where run_id = :run_id order by key
""")

END_RUN = sa.text("""
update run set status = :status, outcome = :outcome, error = cast(:error as jsonb), finished_at = now(), paused_at = null
where id = :run_id and status in ('queued', 'running')
""")

FAIL_OPEN_LANES = sa.text("""
update lane set status = 'failed', last_error = cast(:error as jsonb), claim_token = null, lease_until = null,
                updated_at = now()
where run_id = :run_id and status = 'active' and holds_run
""")

LOOK_AT_RUN_LATER = sa.text("""
update run set check_at = case when paused_at is null then least(deadline_at, now() + interval '1 hour')
                               else now() + interval '1 hour' end
where id = :run_id
""")

ADD_AUDIT = sa.text("""
insert into audit (tenant_id, actor, action, target, before, after, reason)
values (:tenant_id, :actor, :action, :target, cast(:before as jsonb), cast(:after as jsonb), :reason)
""")

# A connection that is ready for use, by its id alone, and by its id or else its name.
CONNECTION = sa.text("""
select id, settings, secret_ref from connection
where id = :id and tenant_id = :tenant_id and provider = :provider and secret_ref is not null
""")
FIND_CONNECTION = sa.text("""
select id from connection
where tenant_id = :tenant_id and provider = :provider and secret_ref is not null
  and (id::text = :wanted or name = :wanted)
order by name = :wanted limit 1
""")

# Under the run's lock, so the numbers have no gaps and no race.
ADD_HISTORY = sa.text("""
insert into history (run_id, n, tenant_id, epoch, type, data, at)
select :run_id, coalesce(max(n), 0) + 1, :tenant_id, :epoch, :type, cast(:data as jsonb), now()
from history where run_id = :run_id
""")

ADD_SIGNAL = sa.text("""
insert into signal (tenant_id, name, payload, at) values (:tenant_id, :name, cast(:payload as jsonb), now())
""")

# The same event twice is one signal: whoever delivers it, EventBridge or S3, does so at least once.
ADD_SIGNAL_ONCE = sa.text("""
insert into signal (tenant_id, name, payload, event_id, at)
values (:tenant_id, :name, cast(:payload as jsonb), :event_id, now()) on conflict (tenant_id, event_id) do nothing
""")

# Answers how long ago the last one was.
BEAT = sa.text("""
with last as (select at from beat where name = :name)
insert into beat (name, at) values (:name, now()) on conflict (name) do update set at = excluded.at
returning extract(epoch from now() - (select at from last))::double precision
""")

# Whole minutes are counted again: a step is stamped when its transaction begins and seen when it is committed. More steps
# know better, so two ticks at once cannot take anything back, and a minute that is complete is not written again.
# Whose run it is is looked up per lane, not joined: the planner would read all lanes for it.
ROLL_UP = sa.text(f"""
insert into pulse as p (tenant_id, minute, created_by, steps, failed, rows)
select s.tenant_id, s.minute, s.created_by, sum(s.steps), sum(s.failed), sum(s.rows)
from (select tenant_id, date_trunc('minute', at) as minute, count(*) as steps,
             count(*) filter (where outcome in ('failed', 'retried')) as failed, sum(rows) as rows,
             coalesce((select r.created_by from lane l join run r on r.id = l.run_id where l.id = lane_id), '') as created_by
      from step
      where at >= date_trunc('minute', now() - {_seconds("window_s")})
      group by lane_id, tenant_id, date_trunc('minute', at)) s
group by s.tenant_id, s.minute, s.created_by
order by s.tenant_id, s.minute, s.created_by
on conflict (tenant_id, minute, created_by) do update
set steps = excluded.steps, failed = excluded.failed, rows = excluded.rows
where excluded.steps > p.steps
""")

HEALTH = sa.text("""
select (select version_num from public.alembic_version) as revision,
       (select extract(epoch from now() - at)::double precision from beat where name = 'tick') as tick_age_s
""")

REQUEST_CANCEL = sa.text("""
update run set cancel_requested_at = now(), paused_at = null where id = :run_id and status in ('queued', 'running')
""")

# A statement of its own after the run's lock: a lane that a split made meanwhile must not be missed.
CANCEL_LANES = sa.text(f"""
update lane set cancel_at = now(), next_due_at = now(), resend_no = resend_no + 1, resends = 0, sent_at = null,
                check_at = now()
where run_id = :run_id and status = 'active' and holds_run
returning {_BATON}
""")

PAUSE_RUN = sa.text("update run set paused_at = now() where id = :run_id and status in ('queued', 'running')")

RESUME_RUN = sa.text("""
with was as (select id, now() - paused_at as paused_for from run where id = :run_id)
update run set paused_at = null, deadline_at = deadline_at + was.paused_for,
               check_at = least(deadline_at + was.paused_for, now() + interval '1 hour')
from was where run.id = was.id
returning extract(epoch from was.paused_for)::double precision
""")

RESUME_LANES = sa.text(f"""
update lane set resend_no = resend_no + 1, resends = 0, sent_at = null, check_at = now(),
                deadline_at = deadline_at + {_seconds("paused_s")}
where run_id = :run_id and status = 'active'
returning {_BATON}
""")

REOPEN_RUN = sa.text(f"""
update run set status = 'running', epoch = epoch + 1, outcome = null, error = null, finished_at = null,
               cancel_requested_at = null, paused_at = null,
               deadline_at = now() + make_interval(secs => time_limit_s),
               check_at = now() + least(interval '1 hour', make_interval(secs => time_limit_s))
where id = :run_id
returning {_RUN}
""")

# What every new epoch of a lane begins with. resend_no goes on: an old copy may still block its group.
_NEW_EPOCH = """
    status = 'active', epoch = epoch + 1, resend_no = resend_no + 1, resends = 0, claims = 0, attempts = 0,
    claim_token = null, lease_until = null, cancel_at = null, next_due_at = now(), sent_at = null, check_at = now(),
    deadline_at = now() + make_interval(secs => time_limit_s), updated_at = now()"""
REOPEN_LANES = sa.text(f"""
update lane set {_NEW_EPOCH}, steps = 0
where run_id = :run_id and status in ('failed', 'canceled') and holds_run
returning {_BATON}
""")
RESTART_LANE = sa.text(f"""
update lane set {_NEW_EPOCH}, steps = 0, cursor = coalesce(cast(:cursor as jsonb), cursor)
where id = :lane_id
returning {_BATON}
""")
WAKE_LANE = sa.text(f"""
update lane set next_due_at = now(), resend_no = resend_no + 1, resends = 0, sent_at = null, check_at = now()
where id = :lane_id and status = 'active'
returning {_BATON}
""")
LANE_RUN = sa.text("select run_id from lane where id = :lane_id and tenant_id = :tenant_id")

# One look at all gates of a step. Closed ones whose time has come are taken as this turn's probe, or none is.
PASS_GATES = sa.text(f"""
with wanted as (
    select id, key, until > now() and not (state = 'probing' and holder = :token) as blocks, until
    from gate
    where key = any(cast(:keys as text[])) and (tenant_id = :tenant_id or tenant_id is null) and state <> 'open'),
probed as (
    update gate g set state = 'probing', holder = :token, until = now() + {_seconds("probe_s")}, updated_at = now()
    from wanted w
    where g.id = w.id and g.state <> 'open' and (g.until <= now() or g.holder = :token)
      and not exists (select from wanted where blocks)
    returning g.key)
select (select extract(epoch from max(until) - now())::double precision from wanted where blocks) as blocked_s,
       (select key from wanted where blocks order by until desc, key limit 1) as closed_by,
       (select count(*) from wanted where not blocks) as free,
       coalesce((select array_agg(key) from probed), array[]::text[]) as probes
""")

# A 429 seen by anyone: never sooner than what is known already, and no prober may open it after that.
CLOSE_GATE = sa.text(f"""
insert into gate as g (tenant_id, key, state, until, reason, updated_at)
values (cast(:tenant_id as uuid), :key, 'closed', now() + {_seconds("retry_after_s")}, :reason, now())
on conflict (key, coalesce(tenant_id, '00000000-0000-0000-0000-000000000000'))
do update set state = 'closed', holder = null, until = greatest(g.until, excluded.until), reason = excluded.reason,
              updated_at = now()
""")

_MY_PROBES = """
where key = any(cast(:keys as text[])) and (tenant_id = :tenant_id or tenant_id is null)
  and state = 'probing' and holder = :token
"""
OPEN_GATES = sa.text(f"""
update gate set state = 'open', holder = null, until = now(), reason = null, updated_at = now()
{_MY_PROBES}
""")
RECLOSE_GATES = sa.text(f"""
update gate set state = 'closed', holder = null, until = now() + {_seconds("for_s")}, updated_at = now()
{_MY_PROBES}
""")

LOCK_DUE_LANES = sa.text("""
select id from lane where status = 'active' and check_at <= now() order by check_at, id limit :most
for update skip locked
""")

# Read after the lanes are locked: a run resumed meanwhile must not leave a lane parked for ever.
# One look-up per lane, not a join: the planner would read all runs for it.
FACTS = sa.text("""
select l.id as lane_id, l.tenant_id, l.kind, l.epoch, l.seq, l.resend_no, l.resends, l.next_due_at, l.sent_at,
       l.lease_until, l.cancel_at, now() as now,
       (select r.paused_at is not null from run r where r.id = l.run_id) as run_paused
from lane l
where l.id = any(cast(:lane_ids as uuid[]))
order by l.check_at, l.id
""")

APPLY_JUDGEMENTS = sa.text("""
with judged as (
    select * from jsonb_to_recordset(cast(:judgements as jsonb)) as j
        (lane_id uuid, resend_no integer, resends integer, send boolean, check_at timestamptz, why text)),
mended as (
    update lane l
    set resend_no = j.resend_no, resends = j.resends, sent_at = case when j.send then now() else l.sent_at end,
        claim_token = case when j.send then null else l.claim_token end,
        lease_until = case when j.send then null else l.lease_until end, check_at = j.check_at
    from judged j
    where l.id = j.lane_id
    returning l.id, l.tenant_id, j.why)
insert into repair (lane_id, tenant_id, why, at)
select id, tenant_id, why, now() from mended where why is not null
""")

DUE_RUNS = sa.text("""
select id, tenant_id, kind from run where status in ('queued', 'running') and check_at <= now()
order by check_at, id limit :most
""")

# A run that could not be moved makes room for those behind it.
SET_RUN_ASIDE = sa.text("""
update run set check_at = now() + interval '2 minutes' where id = :run_id and tenant_id = :tenant_id and check_at <= now()
""")

# Only the holder of the turn may write an intent. A row that was there already is read, not written.
INTEND = sa.text("""
with held as (
    select run_id, epoch, tenant_id from lane
    where id = :lane_id and epoch = :epoch and seq = :seq and claim_token = :token and status = 'active'),
written as (
    insert into remote_call (run_id, epoch, key, tenant_id, kind, leaves_asset, intended_at)
    select run_id, epoch, :key, tenant_id, :kind, :leaves_asset, now() from held
    on conflict do nothing
    returning remote_id)
select true as fresh, false as confirmed, remote_id from written
union all
select false, c.confirmed_at is not null, c.remote_id
from held h join remote_call c on c.run_id = h.run_id and c.epoch = h.epoch and c.key = :key
""")

# A call that comes through after its clean-up is an asset again.
CONFIRM = sa.text("""
update remote_call set remote_id = :remote_id, confirmed_at = now(), cleaned_at = null
where run_id = :run_id and epoch = :epoch and key = :key and confirmed_at is null
""")

NOTE_CLEANED = sa.text("""
update remote_call set cleaned_at = now() where run_id = :run_id and epoch = :epoch and key = :key and cleaned_at is null
""")

# A call without an answer may still be under way for as long as a function can run: until then it cannot be cleaned.
_CALL_IS_OVER = "(c.confirmed_at is not null or c.intended_at < now() - interval '16 min')"

# What a clean-up lane may remove: only what was there when it was created. A retried run makes new assets meanwhile.
ASSETS = sa.text(f"""
select c.run_id, c.tenant_id, l.kind as run_kind, c.epoch, c.key, c.kind, c.remote_id
from lane l
join remote_call c on c.run_id = l.run_id and c.leaves_asset and c.cleaned_at is null and c.intended_at <= l.created_at
where l.id = :lane_id and {_CALL_IS_OVER}
order by c.epoch, c.key
""")

# Assets of runs that ended a while ago and that no clean-up lane is working on.
LEAKED_ASSETS = sa.text(f"""
select c.run_id, c.tenant_id, r.kind as run_kind, c.epoch, c.key, c.kind, c.remote_id
from remote_call c
join run r on r.id = c.run_id
where c.leaves_asset and c.cleaned_at is null and r.finished_at <= now() - {_seconds("grace_s")} and {_CALL_IS_OVER}
  and not exists (select from lane l where l.run_id = c.run_id and l.status = 'active')
order by c.intended_at, c.run_id, c.key
limit :most
""")

NOTE_DEAD_LETTER = sa.text("""
with noted as (
    update lane set last_error = cast(:error as jsonb)
    where id = :lane_id and kind = :kind and epoch = :epoch and seq = :seq and status = 'active'
    returning id, tenant_id)
insert into repair (lane_id, tenant_id, why, at) select id, tenant_id, 'dead_letter', now() from noted
""")


def _prune_by_age(table: str, also: str = "true", at: str = "at") -> sa.TextClause:
    return sa.text(f"""
delete from {table} where ctid = any(array(
    select ctid from {table} where {at} < now() - make_interval(days => :days) and {also} limit :most))
""")


PRUNE = {
    "step": _prune_by_age("step"),
    "repair": _prune_by_age("repair"),
    "signal": _prune_by_age("signal", "dispatched_at is not null"),
    "answered": _prune_by_age("answered"),
    "pulse": _prune_by_age("pulse", at="minute"),
}

# A run leaves with all that belongs to it, but not while a lane works or an asset is left outside. Where its kind has
# rows of its own, the run stays until they are gone: without lanes nobody can take it up again meanwhile.
PRUNE_RUNS = sa.text("""
with old as (
    select id, tenant_id, kind from run r
    where finished_at < now() - make_interval(days => :days)
      and not exists (select from lane l where l.run_id = r.id and l.status = 'active')
      and not exists (select from remote_call c where c.run_id = r.id and c.leaves_asset and c.cleaned_at is null)
    order by finished_at, id limit :most for update skip locked),
lanes as (delete from lane where run_id in (select id from old) returning id),
steps as (delete from step where lane_id in (select id from lanes)),
calls as (delete from remote_call where run_id in (select id from old)),
lines as (delete from history where run_id in (select id from old)),
gone as (delete from run where id in (select id from old where kind <> all(cast(:with_rows as text[]))))
select id, tenant_id, kind from old
""")
FORGET_RUN = sa.text("delete from run where id = :run_id")
