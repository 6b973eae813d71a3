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
# Which queue has to be woken for it, if it is pulled by a function.
WAKES = "(select c.queue from pull_class c where c.id = class_id and c.wakes) as wakes"
_BATON = f"id, tenant_id, kind, epoch, seq, resend_no, class_id is not null as pulled, {WAKES}, {_DELAY}"
# The tick never looks at a pull lane: what was taken and not brought back is found by its offer.
_LOOK_NOW = "case when class_id is null then now() else 'infinity' end"
# How seldom a run is looked at that has neither a deadline nor trouble: its last lane settles it, nobody else needs to.
_SELDOM = "interval '1 day'"
_RUN = (
    "id, tenant_id, kind, status, outcome, epoch, params, correlation_id, cancel_requested_at, paused_at, "
    "time_limit_s, deadline_at, now() as now"
)

# Take a turn. The same token may ask twice: its first answer may be lost.
# The server keeps its plan, and those of a commit and an end. `status = 'active'` is the condition of an index: a plan that is made
# while the tables are nearly empty reads that whole index, and still does when they have grown. So they ask for what has not ended.
CLAIM = sa.text("""
update lane l
set claim_token = :token, lease_until = now() + cast(:lease as interval), resends = 0,
    claims = l.claims + (l.claim_token is distinct from :token)::int,
    check_at = least(l.check_at, now() + cast(:watch as interval))
from run r
where l.id = :lane_id and l.kind = :kind and l.epoch = :epoch and l.seq = :seq
  and l.status not in ('done', 'failed', 'canceled') and l.next_due_at <= now() + interval '1 s'
  and (l.claim_token is null or l.claim_token = :token or l.lease_until < now())
  and r.id = l.run_id and (r.paused_at is null or l.cancel_at is not null)
returning l.run_id, l.tenant_id, l.key, l.holds_run, l.resend_no, l.cursor, l.claims, l.attempts, l.steps, l.max_steps,
          l.cancel_at, l.deadline_at, r.status as run_status, r.epoch as run_epoch, r.params, r.correlation_id, now() as now,
          exists (select from gate g where g.state <> 'open' and (g.tenant_id = l.tenant_id or g.tenant_id is null)) as gated
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
# A cancel that comes during the step makes the next turn due at once; a step that knew of it waits as long as it says. So does
# a wake: the step may have looked before there was a reason to. `resends`, which every claim makes 0, tells of it, and stays.
_COMMIT_TURN = """
with turn as (
    update lane
    set seq = seq + 1, status = :status, cursor = coalesce(cast(:cursor as jsonb), cursor),
        steps = steps + :progress, attempts = :attempts, last_error = coalesce(cast(:error as jsonb), last_error),
        claims = 0, claim_token = null, lease_until = null, updated_at = now(), waits_for = :waits_for,
        next_due_at = case when {waits} then now() + cast(:delay as interval) else now() end,
        sent_at = case when cast(:sends as boolean) or not {waits} then now() end,
        check_at = {look}
    where id = :lane_id and epoch = :epoch and seq = :seq and claim_token = :token
      and status not in ('done', 'failed', 'canceled')
    returning id, run_id, tenant_id, kind, key, epoch, seq - 1 as seq, resend_no, {waits} as waits),
ledger as (
    insert into step (lane_id, epoch, seq, tenant_id, outcome, rows, ms, at)
    select id, epoch, seq, tenant_id, :outcome, :rows, :ms, now() from turn)"""

_LOOK = "least(check_at, now() + case when {waits} then cast(:look as interval) else interval '90 s' end)"


@lru_cache(maxsize=256)
def commit_turn(effects: tuple[Statement, ...], *, knows_cancel: bool = False, pulled: bool = False) -> sa.TextClause:
    """The commit together with a kind's own writes: one cached text per combination of statements."""
    waits = "true" if knows_cancel else "(cancel_at is null)" if pulled else "(cancel_at is null and resends = 0)"
    commit = _COMMIT_TURN.format(waits=waits, look="check_at" if pulled else _LOOK.format(waits=waits))
    writes = "".join(f",\neffect_{n} as ({effect.sql})" for n, effect in enumerate(effects))
    return sa.text(f"{commit}{writes}\nselect resend_no, waits from turn")


@lru_cache(maxsize=256)
def write_now(effect: Statement) -> sa.TextClause:
    """A kind's write before its commit: only while the turn is held. The lock makes whoever takes the lane over wait, or
    is made to wait by him and then finds the token gone."""
    what = "w.*" if effect.returns else "1 as written"
    rows = "left join written w on true" if effect.returns else ""
    return sa.text(f"""
with turn as (
    select id, run_id, tenant_id, kind, key, epoch, seq from lane
    where id = :lane_id and epoch = :epoch and seq = :seq and claim_token = :token and status = 'active'
    for no key update),
written as ({effect.sql})
select {what} from turn {rows}
""")


# Give a lane back whose step could not be committed. Whoever gives back is alive: only his own claim is uncounted.
RELEASE = sa.text("""
update lane set claim_token = null, lease_until = null, claims = claims - 1
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
# Never in the past: the tick that was refused must not find the lane again.
MARK_UNSENT = sa.text(f"""
update lane set sent_at = null,
                check_at = least(check_at, greatest(next_due_at - interval '120 s', now() + interval '1 s'))
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
        now() + least({_SELDOM}, make_interval(secs => cast(:time_limit_s as integer))),
        :source, :source_ref, :created_by, now())
returning {_RUN}
""")

# Run before lane: whoever needs both takes this lock first.
LOCK_RUN = sa.text(f"""
select {_RUN} from run where id = :run_id and tenant_id = :tenant_id for no key update
""")

INSERT_LANES = sa.text(f"""
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, cancel_at,
                  time_limit_s, deadline_at, max_steps, class_id, priority, dedupe_key, created_at, updated_at)
select new.id, r.id, r.tenant_id, r.kind, new.key, new.holds_run, new.cursor, now() + d.delay,
       case when d.delay <= interval '900 s' then now() end,
       case when new.class_id is not null then 'infinity' else
       least(now() + d.delay + case when d.delay <= interval '900 s' then interval '90 s' else interval '-120 s' end,
             now() + make_interval(secs => new.time_limit_s)) end,
       d.cancel_at, new.time_limit_s, now() + make_interval(secs => new.time_limit_s), new.max_steps,
       new.class_id, new.priority, new.dedupe_key, now(), now()
from run r
cross join jsonb_to_recordset(cast(:lanes as jsonb)) as new
    (id uuid, key text, holds_run boolean, cursor jsonb, delay_s double precision, time_limit_s integer, max_steps bigint,
     class_id uuid, priority integer, dedupe_key text)
cross join lateral (select case when new.holds_run then r.cancel_requested_at end as cancel_at,
    case when new.holds_run and r.cancel_requested_at is not null then interval '0'
         else make_interval(secs => new.delay_s) end as delay) d
where r.id = :run_id
returning {_BATON}
""")

# A run of one lane that is pulled: what the statements above write. Asked twice it is one run.
START_PULLED = sa.text("""
select start_pulled_run(
    cast(:id as uuid), cast(:tenant_id as uuid), :kind, cast(:label as text), cast(:params as jsonb),
    cast(:correlation_id as text), cast(:time_limit_s as integer), cast(:source as text), cast(:source_ref as text),
    cast(:created_by as text), cast(:lane_id as uuid), :key, cast(:cursor as jsonb), cast(:delay as interval),
    cast(:max_steps as bigint), cast(:class_id as uuid), cast(:version as integer), cast(:priority as integer),
    cast(:dedupe_key as text))
""")

# The same for many of one tenant and kind.
START_PULLED_MANY = sa.text("""
select start_pulled_runs(
    cast(:tenant_id as uuid), :kind, cast(:classes as uuid[]), cast(:versions as integer[]), cast(:runs as jsonb))
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

# A paused run's clock stands still.
_LOOK_LATER = f"least(case when paused_at is null then deadline_at end, now() + {_SELDOM})"
LOOK_AT_RUN_LATER = sa.text(f"update run set check_at = {_LOOK_LATER} where id = :run_id")
LOOK_AT_RUN_IN = sa.text(f"update run set check_at = now() + {_seconds('wait_s')} where id = :run_id")

ADD_AUDIT = sa.text("""
insert into audit (tenant_id, actor, action, target, before, after, reason)
values (:tenant_id, :actor, :action, :target, cast(:before as jsonb), cast(:after as jsonb), :reason)
""")
# What one person did to many things at once.
ADD_AUDITS = sa.text("""
insert into audit (tenant_id, actor, action, target, after, reason)
select :tenant_id, :actor, :action, unnest(cast(:targets as text[])), cast(:after as jsonb), :reason
""")

# Waits until no other start or retry of this tenant and kind is under way, and counts then.
ROOM = sa.text("select open, most from room_for_a_run(:kind, cast(:most as integer))")

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

# A phase that has begun is proof that the trouble before it is over.
SETTLE_FAILURES = sa.text("""
select count(*) from history
where run_id = :run_id and epoch = :epoch and type = 'settle_failed'
  and n > (select coalesce(max(n), 0) from history where run_id = :run_id and epoch = :epoch and type = 'phase')
""")

# That a run has begun to fail, or has recovered: once each, in turns, so often at most in an epoch. A run has recovered when
# none of its lanes fails any more.
MOST_EDGES = 50
ADD_EDGE = sa.text(f"""
insert into history (run_id, n, tenant_id, epoch, type, data, at)
select :run_id, coalesce(max(h.n), 0) + 1, :tenant_id, :epoch, cast(:type as text), cast(:data as jsonb), now()
from history h where h.run_id = :run_id
having coalesce((array_agg(h.type order by h.n desc) filter (where h.type in ('first_failure', 'recovered') and h.epoch = :epoch))[1], 'recovered') <> cast(:type as text)
   and count(*) filter (where h.type = cast(:type as text) and h.epoch = :epoch) < {MOST_EDGES}
   and (cast(:type as text) = 'first_failure' or not exists (
       select from lane l where l.run_id = :run_id and l.status = 'active' and l.holds_run and l.attempts > 0))
""")

ADD_SIGNAL = sa.text("""
insert into signal (tenant_id, name, payload, at) values (:tenant_id, :name, cast(:payload as jsonb), now())
""")

# The same event twice is one signal: whoever delivers it, EventBridge or S3, does so at least once.
ADD_SIGNAL_ONCE = sa.text("""
insert into signal (tenant_id, name, payload, event_id, at)
values (:tenant_id, :name, cast(:payload as jsonb), :event_id, now()) on conflict (tenant_id, event_id) do nothing
""")

# Signals that nobody was told of yet, oldest first. What is past its retention is told nobody any more.
LOCK_NEW_SIGNALS = sa.text("""
select id, name, at < now() - make_interval(days => :days) as too_old from signal where dispatched_at is null
order by id limit :most for update skip locked
""")

# Each listener gets a row of its own, so that one who fails holds up nobody. It is due from the signal's own time on:
# the oldest come first.
FAN_OUT = sa.text("""
with told as (
    update signal set dispatched_at = now() where id = any(cast(:signal_ids as bigint[]))
    returning id, tenant_id, at)
insert into hearing (signal_id, listener, tenant_id, at, due_at)
select t.id, h.listener, t.tenant_id, t.at, t.at
from told t join jsonb_to_recordset(cast(:heard_by as jsonb)) as h (signal_id bigint, listener text) on h.signal_id = t.id
""")

# What is to be heard next: of the tenant who waits longest, because it is heard in his name. A bounded look, however many
# wait behind. It is counted and put off before it is heard: whoever is killed by a listener must not begin with it again, and
# what came back once is heard alone, so that nobody else dies with it.
TAKE_HEARINGS = sa.text(f"""
with due as (
    select signal_id, listener, tenant_id, attempts, due_at from hearing where given_up_at is null and due_at <= now()
    order by due_at, signal_id, listener limit :window),
first as (select tenant_id, attempts > 0 as alone from due order by due_at, signal_id, listener limit 1),
mine as (
    select h.signal_id, h.listener
    from first f join due d on d.tenant_id = f.tenant_id and (f.alone or d.attempts = 0)
    join hearing h on h.signal_id = d.signal_id and h.listener = d.listener
    where h.given_up_at is null and h.due_at <= now()
    order by d.due_at, d.signal_id, d.listener limit (select case when alone then 1 else :most end from first)
    for update of h skip locked),
taken as (
    update hearing h set attempts = h.attempts + 1, due_at = now() + {_seconds("lease_s")}
    from mine m where h.signal_id = m.signal_id and h.listener = m.listener
    returning h.signal_id, h.listener, h.attempts)
select t.listener, t.attempts, s.id, s.tenant_id, s.name, s.payload, s.at
from taken t join signal s on s.id = t.signal_id order by s.at, s.id, t.listener
""")
_HELD_HEARINGS = """jsonb_to_recordset(cast(:hearings as jsonb)) as d (signal_id bigint, listener text, attempts integer)
where h.signal_id = d.signal_id and h.listener = d.listener and h.attempts = d.attempts"""
# In the transaction in which they are heard. Fewer than were taken: another tick has some of them by now.
NOTE_HEARD = sa.text(f"delete from hearing h using {_HELD_HEARINGS}")
# Nobody's failure: as if they had not been taken, but a little later.
GIVE_HEARINGS_BACK = sa.text(f"""
update hearing h set attempts = h.attempts - 1, due_at = now() + {_seconds("delay_s")} from {_HELD_HEARINGS}
""")
NOTE_UNHEARD = sa.text(f"""
update hearing
set error = cast(:error as jsonb), due_at = now() + coalesce({_seconds("delay_s")}, interval '0'),
    given_up_at = case when cast(:delay_s as double precision) is null then now() end
where signal_id = :signal_id and listener = :listener and attempts = :attempts
""")

# Answers how long ago the last one was.
BEAT = sa.text("""
with last as (select at from beat where name = :name)
insert into beat (name, at) values (:name, now()) on conflict (name) do update set at = excluded.at
returning extract(epoch from now() - (select at from last))::double precision
""")

# Everybody's, also of other databases: they share one limit. The view of sessions would hide those of other roles.
CONNECTIONS_USED = sa.text("""
select 100.0 * sum(numbackends) / (current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int)
       as percent
from pg_stat_database
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

# A pause ends with it, and took none of the run's time: its lanes have what was left to stop in.
REQUEST_CANCEL = sa.text(f"""
update run set cancel_requested_at = now(), paused_at = null,
               deadline_at = deadline_at + coalesce(now() - paused_at, interval '0'),
               check_at = case when paused_at is null then check_at
                               else least(deadline_at + (now() - paused_at), now() + {_SELDOM}) end
where id = :run_id and status in ('queued', 'running')
""")

# A statement of its own after the run's lock: a lane that a split made meanwhile must not be missed.
CANCEL_LANES = sa.text(f"""
update lane set cancel_at = now(), next_due_at = now(), resend_no = resend_no + 1, resends = 0, sent_at = null,
                check_at = {_LOOK_NOW}
where run_id = :run_id and status = 'active' and holds_run
returning {_BATON}
""")

# Nobody works on these: they end here and now. A take that is under way has its lane, and is found by the cancel.
END_UNCLAIMED = sa.text("""
update lane set status = 'canceled', cancel_at = now(), claims = 0, resends = 0, updated_at = now()
where run_id = :run_id and status = 'active' and holds_run and class_id is not null and claim_token is null
""")

PAUSE_RUN = sa.text("update run set paused_at = now() where id = :run_id and status in ('queued', 'running')")

RESUME_RUN = sa.text(f"""
with was as (select id, now() - paused_at as paused_for from run where id = :run_id)
update run set paused_at = null, deadline_at = deadline_at + was.paused_for,
               check_at = least(deadline_at + was.paused_for, now() + {_SELDOM})
from was where run.id = was.id
returning extract(epoch from was.paused_for)::double precision
""")

# For whatever ends a pause: the tick looks at no lane that it found paused. Lanes being canceled are awake already.
RESUME_LANES = sa.text(f"""
update lane set resend_no = resend_no + 1, resends = 0, sent_at = null, check_at = {_LOOK_NOW},
                deadline_at = deadline_at + {_seconds("paused_s")}
where run_id = :run_id and status = 'active' and cancel_at is null
returning {_BATON}
""")

REOPEN_RUN = sa.text(f"""
update run set status = 'running', epoch = epoch + 1, outcome = null, error = null, finished_at = null,
               cancel_requested_at = null, paused_at = null,
               deadline_at = now() + make_interval(secs => time_limit_s),
               check_at = now() + least({_SELDOM}, make_interval(secs => time_limit_s))
where id = :run_id and leaving_since is null
returning {_RUN}
""")

# What every new epoch of a lane begins with. resend_no goes on: an old copy may still block its group.
_NEW_EPOCH = f"""
    status = 'active', epoch = epoch + 1, resend_no = resend_no + 1, resends = 0, claims = 0, attempts = 0,
    claim_token = null, lease_until = null, cancel_at = null, next_due_at = now(), sent_at = null, check_at = {_LOOK_NOW},
    deadline_at = now() + make_interval(secs => time_limit_s), updated_at = now()"""
# What is pulled and has succeeded may be done again as a whole.
REOPEN_LANES = sa.text(f"""
update lane set {_NEW_EPOCH}, steps = 0
where run_id = :run_id and holds_run
  and (status in ('failed', 'canceled')
       or (class_id is not null and status = 'done' and (
           select true from lane f where f.run_id = :run_id and f.holds_run and f.status in ('failed', 'canceled')
           limit 1) is null))
returning {_BATON}
""")
# Not what a worker has pulled: its attempt has begun, and only its end, or its loss, says what became of it.
RESTART_LANE = sa.text(f"""
update lane set {_NEW_EPOCH}, steps = 0, cursor = coalesce(cast(:cursor as jsonb), cursor)
where id = :lane_id and (class_id is null or claim_token is null)
returning {_BATON}
""")
# Locked: a step that is about to end the lane waits for whoever restarts it, or has ended it before.
LANE_IS_OPEN = Statement(
    "relay.lane_is_open",
    "select id from lane where id = :lane_id and tenant_id = :tenant_id and status = 'active' for no key update",
)
WAKE_LANE = sa.text(f"""
update lane set next_due_at = now(), resend_no = resend_no + 1, resends = 0, sent_at = null, check_at = {_LOOK_NOW}
where id = :lane_id and status = 'active'
returning {_BATON}
""")
# So many at once; the others when their time comes. One that is at work goes on, and takes its next turn at once.
MOST_WOKEN = 200
WAKE_LANES = sa.text(f"""
with woken as (
    update lane set resend_no = resend_no + (claim_token is null)::int, resends = (claim_token is not null)::int,
                    next_due_at = case when claim_token is null then now() else next_due_at end,
                    sent_at = case when claim_token is not null then sent_at end,
                    check_at = case when claim_token is null then {_LOOK_NOW} else check_at end
    where id = any(array(
        select id from lane where run_id = :run_id and status = 'active' and holds_run
          and case when claim_token is not null then class_id is null
              else next_due_at > now() + interval '1 s' or (sent_at is null and class_id is null) end
        order by next_due_at, id limit {MOST_WOKEN}))
    returning {_BATON}, claim_token is null as is_free)
select * from woken where is_free
""")
LANE_RUN = sa.text("select run_id, holds_run from lane where id = :lane_id and tenant_id = :tenant_id")

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
       (select count(*) from wanted where not blocks) = (select count(*) from probed) as passed,
       coalesce((select array_agg(distinct key) from probed), array[]::text[]) as probes
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

# By hand, or because what closed it is over.
OPEN_GATE = sa.text("""
update gate set state = 'open', holder = null, until = now(), reason = null, updated_at = now()
where key = :key and tenant_id = :tenant_id
""")
# What waited for a gate that somebody opened is due now: so many at once, the others when their time comes. Lanes that
# somebody else is writing are skipped, as wherever batons are sent again.
WAKE_WAITING = sa.text(f"""
update lane set next_due_at = now(), resend_no = resend_no + 1, resends = 0, sent_at = null, check_at = now()
where id in (
    select l.id from run r join lane l on l.run_id = r.id and l.status = 'active' and l.holds_run
    where r.tenant_id = :tenant_id and r.status in ('queued', 'running') and r.paused_at is null
      and l.tenant_id = :tenant_id and l.waits_for = 'gate:' || :key and l.next_due_at > now() and l.claim_token is null
    order by l.next_due_at limit {MOST_WOKEN}
    for update of l skip locked)
returning {_BATON}
""")

# A tick goes through what was due when it began once, from the oldest on: never back, whatever became of a lane.
_IN_TURN = """check_at <= coalesce(cast(:began as timestamptz), now())
  and (check_at, id) > (cast(:at as timestamptz), cast(:id as uuid))"""
LOCK_DUE_LANES = sa.text(f"""
select id, check_at as at, now() as now from lane
where status = 'active' and {_IN_TURN}
  and kind <> all(cast(:but_kinds as text[])) and (not cast(:but_delayed as boolean) or least(next_due_at, deadline_at) <= now())
order by check_at, id limit :most
for update skip locked
""")
LOCK_LANE = sa.text("select id from lane where id = :lane_id and status = 'active' for update skip locked")
SET_LANE_ASIDE = sa.text("update lane set check_at = now() + interval '2 minutes' where id = :lane_id")


# Read after the lanes are locked: a run resumed meanwhile must not leave a lane parked for ever.
# One look-up per lane, not a join: the planner would read all runs for it.
# No time is beyond what Python can count with: one row that says infinity must not hold up its batch.
def _held(time: str) -> str:
    return f"case when {time} is not null then least(greatest({time}, '1970-01-01Z'), '9000-01-01Z') end as {time}"


FACTS = sa.text(f"""
select id as lane_id, tenant_id, kind, epoch, seq, resend_no, resends, {_held("next_due_at")}, {_held("sent_at")},
       {_held("lease_until")}, {_held("cancel_at")}, {_held("deadline_at")}, now() as now,
       (select r.paused_at is not null from run r where r.id = l.run_id) as run_paused
from lane l
where l.id = any(cast(:lane_ids as uuid[]))
order by l.check_at, l.id
""")

# How long the turns of a kind that are being worked on now waited to be taken: the evidence of a backlog.
# A lane that is held is looked at soon after its lease, so it is found where looks are due soon.
LONGEST_WAITS = sa.text(f"""
select kind, max(extract(epoch from lease_until - {_seconds("lease_s")} - greatest(sent_at, next_due_at)))::double precision
       as waited_s
from lane
where status = 'active' and check_at <= now() + {_seconds("watch_s")} and lease_until >= now()
  and kind = any(cast(:kinds as text[]))
group by kind
""")

APPLY_JUDGEMENTS = sa.text("""
update lane l
set resend_no = j.resend_no, resends = j.resends, sent_at = case when j.send then now() else l.sent_at end,
    next_due_at = case when j.due_now then now() else l.next_due_at end,
    claim_token = case when j.send then null else l.claim_token end,
    lease_until = case when j.send then null else l.lease_until end, check_at = j.check_at
from jsonb_to_recordset(cast(:judgements as jsonb)) as j
    (lane_id uuid, resend_no integer, resends integer, send boolean, due_now boolean, check_at timestamptz)
where l.id = j.lane_id
""")

# Written when the queue has taken the copy: what was refused is no repair, however often it is attempted.
NOTE_REPAIRS = sa.text("""
insert into repair (lane_id, tenant_id, why, at)
select lane_id, tenant_id, why, now()
from jsonb_to_recordset(cast(:repairs as jsonb)) as r (lane_id uuid, tenant_id uuid, why text)
""")

# Of the runs to look at, those that are at work within their time are put off here, all in one go; the others have to
# be moved, each in a transaction of its own. A run that somebody holds is being moved anyway.
DUE_RUNS = sa.text(f"""
with due as (
    select id, tenant_id, kind, check_at, not coalesce(paused_at is null and deadline_at <= now(), false)
           and exists (select from lane l where l.run_id = run.id and l.status = 'active' and l.holds_run) as at_work
    from run
    where status in ('queued', 'running') and {_IN_TURN}
    order by check_at, id limit :most),
put_off as (
    update run set check_at = {_LOOK_LATER}
    where id = any(array(
        select id from run where id = any(array(select id from due where at_work)) for no key update skip locked)))
select id, tenant_id, kind, check_at as at, at_work, now() as now from due order by check_at, id
""")

# A run that could not be moved makes room for those behind it.
SET_RUN_ASIDE = sa.text("""
update run set check_at = now() + interval '2 minutes' where id = :run_id and tenant_id = :tenant_id and check_at <= now()
""")

# Only the holder of the turn may write an intent, under the run's epoch: lanes born in a later epoch share it. A row that
# was there already is read, not written, unless what it left outside was cleaned up: then the call is a new one.
INTEND = sa.text("""
with held as (
    select run_id, tenant_id from lane
    where id = :lane_id and epoch = :epoch and seq = :seq and claim_token = :token and status = 'active'),
written as (
    insert into remote_call as c (run_id, epoch, key, tenant_id, kind, leaves_asset, intended_at)
    select run_id, :run_epoch, :key, tenant_id, :kind, :leaves_asset, now() from held
    on conflict (run_id, epoch, key) do update
    set intended_at = now(), confirmed_at = null, cleaned_at = null, remote_id = null, looks = 0, looked_at = null,
        clean_at = null, clean_tries = 0
    where c.cleaned_at is not null
    returning remote_id)
select true as fresh, false as confirmed, remote_id, 0::double precision as age_s, 0 as looks,
       null::double precision as looked_s
from written
union all
select false, c.confirmed_at is not null, c.remote_id, extract(epoch from now() - c.intended_at)::double precision, c.looks,
       extract(epoch from now() - c.looked_at)::double precision
from held h join remote_call c on c.run_id = h.run_id and c.epoch = :run_epoch and c.key = :key
where not exists (select from written)
""")

# A look that found nothing. The last one (0 looks) makes the next call an intent of its own.
NOTE_LOOK = sa.text("""
with held as (
    select run_id from lane
    where id = :lane_id and epoch = :epoch and seq = :seq and claim_token = :token and status = 'active')
update remote_call c
set looks = :looks, looked_at = case when :looks > 0 then now() end,
    intended_at = case when :looks > 0 then c.intended_at else now() end
from held h
where c.run_id = h.run_id and c.epoch = :run_epoch and c.key = :key and c.confirmed_at is null
""")

# A call that comes through after its clean-up is an asset again.
CONFIRM = sa.text("""
update remote_call set remote_id = :remote_id, confirmed_at = now(), cleaned_at = null
where run_id = :run_id and epoch = :epoch and key = :key and confirmed_at is null
""")

NOTE_CLEANED = sa.text("""
update remote_call set cleaned_at = now() where run_id = :run_id and epoch = :epoch and key = :key and cleaned_at is null
""")

# Written before the attempt: whoever is killed by an asset must not begin with it again. Of two sweeps one gets it.
PUT_OFF_CLEANING = sa.text("""
update remote_call
set clean_at = now() + least(interval '1 day', interval '1 minute' * power(2, least(clean_tries, 20))),
    clean_tries = clean_tries + 1
where run_id = :run_id and epoch = :epoch and key = :key and cleaned_at is null and (clean_at is null or clean_at <= now())
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

# Assets of runs that ended a while ago and that no clean-up lane is working on, but for those that were put off.
LEAKED_ASSETS = sa.text(f"""
select c.run_id, c.tenant_id, r.kind as run_kind, c.epoch, c.key, c.kind, c.remote_id, r.params
from remote_call c
join run r on r.id = c.run_id
where c.leaves_asset and c.cleaned_at is null and r.finished_at <= now() - {_seconds("grace_s")} and {_CALL_IS_OVER}
  and (c.clean_at is null or c.clean_at <= now())
  and not exists (select from lane l where l.run_id = c.run_id and l.status = 'active')
order by c.clean_at nulls first, c.intended_at, c.run_id, c.key
limit :most
""")

NOTE_DEAD_LETTER = sa.text("""
with noted as (
    update lane set last_error = cast(:error as jsonb)
    where id = :lane_id and kind = :kind and epoch = :epoch and seq = :seq and status = 'active'
    returning id, tenant_id)
insert into repair (lane_id, tenant_id, why, at) select id, tenant_id, 'dead_letter', now() from noted
""")


def _prune_by_age(table: str, at: str = "at") -> sa.TextClause:
    return sa.text(f"""
delete from {table} where ctid = any(array(
    select ctid from {table} where {at} < now() - make_interval(days => :days) order by {at} limit :most))
""")


# Whole days of the ledger at once.
FORGET_STEPS = sa.text("select forget_steps(now() - make_interval(days => :days))")

PRUNE = {
    # What is more than a day too old lies in a leaf with younger rows: nobody swept on the day when it could be emptied.
    "step": sa.text("""
delete from step s
using (select lane_id, epoch, seq, at from step where at < now() - make_interval(days => :days + 1) order by at limit :most) d
where s.lane_id = d.lane_id and s.epoch = d.epoch and s.seq = d.seq and s.at = d.at
"""),
    "repair": _prune_by_age("repair"),
    # With what was not heard of it: a hearing without its signal would be looked for by every tick, and never be found.
    "signal": sa.text("""
with old as (select id from signal where at < now() - make_interval(days => :days) order by at limit :most),
unheard as (delete from hearing h using old o where h.signal_id = o.id)
delete from signal s using old o where s.id = o.id
"""),
    "hearing": _prune_by_age("hearing"),
    "answered": _prune_by_age("answered"),
    "pulse": _prune_by_age("pulse", at="minute"),
    "pace_decision": _prune_by_age("pace_decision"),
}

# A run leaves with all that belongs to it, but not while a lane works or an asset is left outside. It may have a million
# rows: each execution takes so many of each table, and the run's own row goes when an earlier one has left nothing else.
# Where its kind has rows of its own, the run stays until they are gone. From the first on nobody can take it up again.
PRUNE_RUNS = sa.text("""
with old as (
    select id, tenant_id, kind, leaving_since from run r
    where finished_at < now() - make_interval(days => :days) and (leaving_since is null or check_at <= now())
      and not exists (select from lane l where l.run_id = r.id and l.status = 'active')
      and not exists (select from remote_call c where c.run_id = r.id and c.leaves_asset and c.cleaned_at is null)
    order by finished_at, id limit :most for update skip locked),
leaves as (
    update run set leaving_since = now(), check_at = now() where id in (select id from old where leaving_since is null)
    returning id),
lanes as materialized (
    select l.id from old o cross join lateral (select id from lane where run_id = o.id limit :most) l limit :most),
steps as (
    delete from step s
    using (select s.lane_id, s.epoch, s.seq from lanes l
           cross join lateral (select lane_id, epoch, seq from step where lane_id = l.id limit :most) s limit :most) d
    where s.lane_id = d.lane_id and s.epoch = d.epoch and s.seq = d.seq
    returning s.seq),
gone_lanes as (
    delete from lane where id in (
        select id from lanes l where (select true from step s where s.lane_id = l.id limit 1) is null)
    returning id),
calls as (
    delete from remote_call where ctid = any(array(
        select c.ctid from old o cross join lateral (select ctid from remote_call where run_id = o.id limit :most) c limit :most))
    returning run_id),
lines as (
    delete from history where ctid = any(array(
        select h.ctid from old o cross join lateral (select ctid from history where run_id = o.id limit :most) h limit :most))
    returning run_id),
empty as (
    select id, tenant_id, kind from old o
    where leaving_since is not null
      and not exists (select from lane where run_id = o.id) and not exists (select from remote_call where run_id = o.id)
      and not exists (select from history where run_id = o.id)),
gone as (
    delete from run where id in (select id from empty where kind <> all(cast(:with_rows as text[]))) returning id)
select (select count(*) from leaves) + (select count(*) from steps) + (select count(*) from gone_lanes)
           + (select count(*) from calls) + (select count(*) from lines) as rows,
       (select count(*) from gone) as runs,
       coalesce((select jsonb_agg(jsonb_build_array(id, tenant_id, kind) order by id) from empty
                 where kind = any(cast(:with_rows as text[]))), '[]') as with_rows
""")
FORGET_RUN = sa.text("delete from run where id = :run_id")
# A run whose kind could not prune its rows makes room for those behind it: as long again as it has been leaving already.
PUT_OFF_PRUNING = sa.text("""
update run set check_at = now() + least(interval '1 day', greatest(interval '10 minutes', now() - leaving_since))
where id = :run_id and tenant_id = :tenant_id
""")


# Pull delivery.

TAKE_OFFERS = sa.text("""
select * from take_offers(:queue, cast(:most as integer), cast(:token as uuid), cast(:lease as interval), :worker)
""")
# Told best first, as they were taken: whoever has one pair of hands works on them in this order.
TAKE_OWN_OFFERS = sa.text("""
select t.* from take_own_offers(:queue, cast(:most as integer), cast(:token as uuid), cast(:lease as interval), :worker) t
left join lane l on l.id = t.lane_id
order by l.priority, t.queued_at, t.lane_id
""")

# What a take left behind whose answer was lost. Behind the lock of the takes of its queue, which may still be under way.
LOCK_TAKES = sa.text("select pg_advisory_xact_lock(hashtextextended(:queue, 3))")
TAKEN = sa.text("""
select l.id as lane_id, l.run_id, l.tenant_id, l.kind, l.key, l.holds_run, l.epoch, l.seq, l.resend_no, l.cursor, l.claims,
       l.attempts, l.steps, l.max_steps, l.cancel_at, l.deadline_at, r.status as run_status, r.epoch as run_epoch, r.params,
       r.correlation_id, o.queued_at, now() as now
from offer o
cross join lateral (select * from lane l where l.id = o.lane_id and l.claim_token = cast(:token as uuid) limit 1) l
cross join lateral (select * from run r where r.id = l.run_id limit 1) r
where o.taken_at is not null and o.worker = :worker
order by o.priority, o.queued_at, o.lane_id
""")

# The lease moves, in place; no row: the turn is lost. A cancel or a pause is heard of here.
RENEW = sa.text("""
update lane l set lease_until = now() + cast(:lease as interval)
where l.id = any(cast(:lane_ids as uuid[])) and l.claim_token = any(cast(:tokens as uuid[])) and l.status = 'active'
returning l.id as lane_id, l.cancel_at, (select r.paused_at is not null from run r where r.id = l.run_id) as paused
""")

# What is being worked on is little, however much waits. A few at a time, from the last one on.
LOST_LANES = sa.text("""
select x.id, x.kind from (select lane_id from offer where taken_at is not null and lane_id > :after order by lane_id limit :window) o
cross join lateral (select l.id, l.kind, l.lease_until from lane l where l.id = o.lane_id limit 1) x
where x.lease_until < now() order by x.id
""")
TAKEN_AFTER = sa.text("""
select max(lane_id::text)::uuid as last, count(*) as n
from (select lane_id from offer where taken_at is not null and lane_id > :after order by lane_id limit :window) o
""")

# What functions should be woken for: the queues of theirs where something may be taken now, or soon. Not more than `most`
# each. Lines know where what is due begins; what comes later is read in the order of its time.
TO_WAKE = sa.text("""
select c.queue, 0::double precision as delay_s
from pull_class c
cross join lateral (
    select from pull_line l
    cross join lateral (
        select from offer o
        where o.class_id = l.class_id and o.tenant_id = l.tenant_id and o.priority = l.priority and o.queued_at >= l.head
          and o.due and o.taken_at is null
        order by o.class_id, o.tenant_id, o.priority, o.queued_at, o.lane_id limit :most) o
    where l.class_id = c.id and l.active limit :most) x
where c.wakes and c.is_open and (cast(:queue as text) is null or c.queue = cast(:queue as text))
union all
(select c.queue, greatest(0, extract(epoch from o.scheduled_for - now()))::double precision
 from (select class_id, scheduled_for from offer
       where not due and scheduled_for < 'infinity' and scheduled_for <= now() + cast(:within as interval)
       order by scheduled_for limit 1000) o
 join pull_class c on c.id = o.class_id and c.wakes and c.is_open
 where cast(:queue as text) is null or c.queue = cast(:queue as text)
 limit 100)
""")

# Says that somebody listens to these queues. Counts those where nobody was known to.
LISTEN_TO = sa.text("""
with known as (
    select name from pull_queue where name = any(cast(:queues as text[])) and listens_until > now()),
marked as (
    update pull_queue set listens_until = now() + make_interval(secs => :for_s) where name = any(cast(:queues as text[]))
    returning name)
select m.name from marked m where m.name not in (select name from known)
""")

# The tick takes over what its worker did not bring back, to commit that it was lost. Its worker can commit no more.
_PULLED = """l.id as lane_id, l.run_id, l.tenant_id, l.kind, l.key, l.holds_run, l.epoch, l.seq, l.resend_no, l.cursor,
          l.claims, l.attempts, l.steps, l.max_steps, l.cancel_at, l.deadline_at, r.status as run_status,
          r.epoch as run_epoch, r.params, r.correlation_id,
          (select o.queued_at from offer o where o.lane_id = l.id) as queued_at, now() as now"""
TAKE_OVER = sa.text(f"""
update lane l
set claim_token = :token, lease_until = now() + cast(:lease as interval)
from run r
where l.id = :lane_id and l.status = 'active' and l.class_id is not null and l.lease_until < now() and r.id = l.run_id
returning {_PULLED}
""")
HELD_TURN = sa.text(f"""
select {_PULLED} from lane l join run r on r.id = l.run_id
where l.run_id = :run_id and l.claim_token = :token and l.status = 'active' and l.class_id is not null
""")

# A commit that does not wait for the disk, and one that waits for itself and all before it, whatever they wrote.
NOT_YET_ON_DISK = sa.text("select set_config('synchronous_commit', 'off', true)")
ON_DISK = sa.text("select pg_logical_emit_message(true, 'baton', '')")
# For what joins a list with a table: a plan that was made while the table was small must not read it whole later.
AS_TENANT_ONE_BY_ONE = sa.text("""
select set_config('synchronous_commit', 'off', true), set_config('app.tenant', :tenant_id, true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)
""")

# Rides ahead of `end_turn`, whose snapshot is taken after the lock: it sees a cancel that was written meanwhile.
LOCK_THE_RUN = sa.text("select from run where id = :run_id for no key update")
# The same as a tenant, by a commit that does not wait for the disk. The settings are made before the run is looked for.
LOCK_THE_RUN_NOT_YET_ON_DISK = sa.text("""
select from (
    select set_config('synchronous_commit', 'off', true), set_config('app.tenant', :tenant_id, true),
           cast(:run_id as uuid) as id
    offset 0) s
cross join lateral (select from run r where r.id = s.id for no key update) r
""")
# In the order of their ids. A list is planned anew each time, by its length.
LOCK_RUNS = sa.text("""
select from run where id = any(cast(:run_ids as uuid[])) order by id for no key update
""")

# The last lane of a run ends, and the run with it: one statement. A lost turn writes nothing; a run that another lane holds
# goes on. Whoever failed after a cancel was asked for is canceled.
# For many at once every turn is its own compare-and-set: what is written for one comes from `asked`, and one that was lost
# is not in `turn`. No two of one run: neither would see that the other has ended.
_END_TURN = """
with {asked}turn as (
    update lane l
    set seq = l.seq + 1, status = case when {status} = 'failed' and l.cancel_at is not null then 'canceled' else {status} end,
        cursor = coalesce({cursor}, l.cursor), steps = l.steps + {progress}, attempts = {attempts},
        last_error = coalesce({error}, l.last_error), claims = 0, resends = 0, claim_token = null,
        lease_until = null, updated_at = now(), waits_for = null
    {of_asked}
    where l.id = {lane_id} and l.epoch = {epoch} and l.seq = {seq} and l.claim_token = {token}
      and l.status not in ('done', 'failed', 'canceled')
    returning l.id, l.run_id, l.tenant_id, l.kind, l.key, l.epoch, l.seq - 1 as seq, l.status{given}),
ledger as (
    insert into step (lane_id, epoch, seq, tenant_id, outcome, rows, ms, at)
    select t.id, t.epoch, t.seq, t.tenant_id, case when t.status = 'done' then {outcome} else t.status end, {rows}, {ms}, now()
    from turn t),
ended as (
    update run r
    set status = case when t.status = 'canceled' then 'canceled' else {run_status} end,
        outcome = case when t.status = 'canceled' then 'canceled' else {run_outcome} end,
        error = case when t.status = 'canceled' then null else {run_error} end,
        started_at = coalesce(r.started_at, now() - make_interval(secs => {ms} / 1000.0)), finished_at = now(), paused_at = null
    from turn t
    where r.id = {run} and r.status not in ('succeeded', 'failed', 'canceled')
      and (select true from lane o where o.run_id = t.run_id and o.status = 'active' and o.holds_run and o.id <> t.id
           limit 1) is null
    returning r.id, r.tenant_id, r.kind, r.epoch, r.status, r.outcome, r.error, t.id as lane_id),
told as (
    insert into history (run_id, n, tenant_id, epoch, type, data, at)
    select e.id, (select coalesce(max(h.n), 0) + 1 from history h where h.run_id = e.id), e.tenant_id, e.epoch, e.status,
           jsonb_strip_nulls(jsonb_build_object('outcome', e.outcome, 'error', e.error)), now()
    from ended e),
said as (
    insert into signal (tenant_id, name, payload, at)
    select tenant_id, 'run.' || status,
           jsonb_build_object('run_id', id, 'kind', kind, 'epoch', epoch, 'outcome', outcome), now()
    from ended)"""
_JSON = ("cursor", "error", "run_error")
_HELD = ("lane_id", "epoch", "seq", "token", "status", "cursor", "progress", "attempts", "error")
_TOLD = ("outcome", "rows", "ms", "run_status", "run_outcome", "run_error")
_ASKED = """asked as materialized (
    select * from jsonb_to_recordset(cast(:turns as jsonb)) as a (
        lane_id uuid, epoch integer, seq bigint, token uuid, status text, cursor jsonb, progress bigint, attempts integer,
        error jsonb, outcome text, rows integer, ms integer, run_status text, run_outcome text, run_error jsonb, given jsonb)),
"""
_END_ONE = _END_TURN.format(
    asked="",
    of_asked="",
    given="",
    run=":of_run",
    **{name: f"cast(:{name} as jsonb)" if name in _JSON else f":{name}" for name in (*_HELD, *_TOLD)},
)
_END_MANY = _END_TURN.format(
    asked=_ASKED,
    of_asked="from asked a",
    run="t.run_id",
    given=", a.given, " + ", ".join(f"a.{name}" for name in _TOLD),
    **{name: f"a.{name}" for name in _HELD},
    **{name: f"t.{name}" for name in _TOLD},
)


@lru_cache(maxsize=256)
def end_turn(effects: tuple[Statement, ...]) -> sa.TextClause:
    """The ending of a lane and of its run together with a kind's own writes."""
    writes = "".join(f",\neffect_{n} as ({effect.sql})" for n, effect in enumerate(effects))
    return sa.text(
        f"{_END_ONE}{writes}\nselect t.status as lane_status, (select e.status from ended e) as run_status from turn t"
    )


@lru_cache(maxsize=256)
def end_turns(effects: tuple[Statement, ...]) -> sa.TextClause:
    """The same for many. What became of each lane, and of its run if that ended too."""
    writes = "".join(f",\neffect_{n} as ({effect.many})" for n, effect in enumerate(effects))
    return sa.text(f"""{_END_MANY}{writes}
select coalesce((select jsonb_object_agg(id, status) from turn), '{{}}') as lanes,
       coalesce((select jsonb_object_agg(lane_id, status) from ended), '{{}}') as runs""")
