"""Every statement of the HTTP API. Row level security binds each to its tenant, and a member to his own runs."""

from __future__ import annotations

from functools import lru_cache

import sqlalchemy as sa

from shared.kernel.api.state import STANDING
from shared.kernel.sql import WAKES

MEMBERSHIPS = sa.text("select tenant_id, tenant, role, is_super from memberships(:subject)")
MEMBERSHIP = sa.text("select tenant_id, tenant, role, is_super from membership(:subject, :tenant_id)")
USE_TOKEN = sa.text("select id, tenant_id, tenant, role from use_token(:hash)")
CURSOR_KEY = sa.text("select cursor_key() as key")

# How much of a run with very many lanes a list looks at.
MOST_LANES = 200

_STATUS = "case when r.paused_at is not null then 'paused' else r.status end as status"
_RUN = f"""r.id, r.kind, r.label, {_STATUS}, r.outcome, r.epoch, r.created_by, r.source, r.source_ref,
    r.created_at, r.started_at, r.finished_at, r.deadline_at, r.cancel_requested_at, r.error,
    r.error ->> 'fingerprint' as fingerprint"""
# Of a run that goes on: how far it is, when it last moved, and the first lane that would tell why it waits.
_GOING = f"""
left join lateral (
    select count(*) as lanes, count(*) filter (where l.status <> 'active') as lanes_ended, max(l.updated_at) as moved_at,
           sum(l.steps)::bigint as steps, min(l.next_due_at) filter (where l.status = 'active') as next_due_at
    from (select * from lane where run_id = r.id and holds_run limit {MOST_LANES}) l) g on true
left join lateral (
    select w.code as why, w.sentence as why_sentence, w.until as why_until, w.held_by, w.action, {STANDING} as standing
    from (select id, next_due_at, lease_until, attempts from lane where run_id = r.id and status = 'active' and holds_run
          limit {MOST_LANES}) l
    left join lateral why(l.id) w on true
    order by standing, l.next_due_at, l.id limit 1) w on r.finished_at is null"""
_WITH_GOING = "g.lanes, g.lanes_ended, g.moved_at, g.steps, g.next_due_at, w.why, w.why_sentence, w.why_until, w.held_by, w.action, w.standing"

# Each filter by the name of its parameter. All combine with `and`.
FILTERS = {
    "kind": "r.kind = :kind",
    "status": "r.status = :status and r.paused_at is null",
    "paused": "r.paused_at is not null and r.status in ('queued', 'running')",
    "outcome": "r.outcome = :outcome",
    "label": "r.label = :label",
    "source": "r.source = :source",
    "created_by": "r.created_by = :created_by",
    "owner": "r.created_by = :owner",  # row level security says the same, but no index can follow it there
    "created_from": "r.created_at >= cast(:created_from as timestamptz)",
    "created_before": "r.created_at < cast(:created_before as timestamptz)",
    "finished_from": "r.finished_at >= cast(:finished_from as timestamptz)",
    "finished_before": "r.finished_at < cast(:finished_before as timestamptz)",
}


@lru_cache(maxsize=512)
def list_runs(filters: frozenset[str], *, after: bool) -> sa.TextClause:
    """A page of runs, newest first. Which filters are there decides the text; their values are parameters."""
    conditions = [FILTERS[name] for name in sorted(filters)]
    if after:
        conditions.append("(r.created_at, r.id) < (cast(:after_at as timestamptz), cast(:after_id as uuid))")
    return sa.text(f"""
select {_RUN}, {_WITH_GOING}, now() as now
from (select * from run r where {" and ".join(["r.tenant_id = :tenant_id", *conditions])}
      order by r.created_at desc, r.id desc limit :most) r
{_GOING}
order by r.created_at desc, r.id desc
""")


ONE_RUN = sa.text(f"""
select {_RUN}, r.params, r.correlation_id, {_WITH_GOING}, now() as now
from run r
{_GOING}
where r.id = :run_id and r.tenant_id = :tenant_id
""")

_LANE = """l.id, l.key, l.holds_run, l.status, l.epoch, l.seq, l.steps, l.max_steps, l.attempts, l.claims, l.next_due_at,
    l.deadline_at, l.last_error, l.last_error ->> 'fingerprint' as fingerprint, l.created_at, l.updated_at"""
# The last steps of a lane, oldest first; of all lanes of a page together so many.
MOST_STEPS_SHOWN = 3_000
_RIBBON = """(
    select coalesce(jsonb_agg(to_jsonb(s) order by s.epoch, s.seq), '[]') from (
        select epoch, seq, outcome, rows, ms, at from step where lane_id = l.id and tenant_id = :tenant_id
        order by epoch desc, seq desc limit :ribbon) s)"""


@lru_cache(maxsize=8)
def list_lanes(*, with_status: bool, after: bool, with_ribbon: bool = False) -> sa.TextClause:
    return sa.text(f"""
select {_LANE}, w.code as why, w.sentence as why_sentence, w.until as why_until, w.held_by, w.action,
       {_RIBBON if with_ribbon else "null"} as ribbon
from (select * from lane l
      where l.run_id = :run_id and l.tenant_id = :tenant_id
        {"and l.status = :status" if with_status else ""} {"and l.key > :after_key" if after else ""}
      order by l.key limit :most) l
left join lateral why(l.id) w on l.status = 'active'
order by l.key
""")


@lru_cache(maxsize=2)
def list_steps(*, after: bool) -> sa.TextClause:
    """The ledger of a lane, newest first; steps past their retention are gone."""
    return sa.text(f"""
select s.epoch, s.seq, s.outcome, s.rows, s.ms, s.at
from step s
where s.lane_id = :lane_id and s.tenant_id = :tenant_id
  {"and (s.epoch, s.seq) < (cast(:after_epoch as integer), cast(:after_seq as bigint))" if after else ""}
order by s.epoch desc, s.seq desc limit :most
""")


HISTORY = sa.text("""
select n, epoch, type, data, at from history
where run_id = :run_id and tenant_id = :tenant_id and n > :after order by n limit :most
""")
HISTORY_LINE = sa.text("select n from history where run_id = :run_id and tenant_id = :tenant_id and n = :n")
RUN_STATUS = sa.text(f"select {_STATUS} from run r where r.id = :run_id and r.tenant_id = :tenant_id")
RUN_KIND = sa.text("select kind from run where id = :run_id and tenant_id = :tenant_id")
LANE_EXISTS = sa.text("select run_id from lane where id = :lane_id and run_id = :run_id and tenant_id = :tenant_id")
REMOTE_CALLS = sa.text("""
select epoch, key, kind, remote_id, leaves_asset, intended_at, confirmed_at, cleaned_at from remote_call
where run_id = :run_id and tenant_id = :tenant_id order by intended_at desc, key limit :most
""")
# Whoever comes second waits here for the first to commit, and then finds his answer.
CLAIM_KEY = sa.text("""
insert into answered (tenant_id, actor, key, request_hash) values (:tenant_id, :actor, :key, :request_hash)
on conflict (tenant_id, actor, key) do nothing
""")
ANSWERED = sa.text("""
select request_hash, status, body from answered where tenant_id = :tenant_id and actor = :actor and key = :key
""")
KEEP_ANSWER = sa.text("""
update answered set status = :status, body = :body
where tenant_id = :tenant_id and actor = :actor and key = :key
""")


@lru_cache(maxsize=2)
def list_audit(*, after: bool) -> sa.TextClause:
    return sa.text(f"""
select id, at, actor, action, target, before, after, reason from audit
where tenant_id = :tenant_id {"and id < :after_id" if after else ""}
order by id desc limit :most
""")


# People. A list is in the order of an index that begins with the tenant.
@lru_cache(maxsize=2)
def list_members(*, after: bool) -> sa.TextClause:
    return sa.text(f"""
select subject, role, name, added_by, created_at from member
where tenant_id = :tenant_id {"and subject > :after_subject" if after else ""}
order by subject limit :most
""")


LOCK_ADMINS = sa.text("""
select subject from member where tenant_id = :tenant_id and role = 'admin' order by subject for update
""")
LOCK_MEMBER = sa.text("""
select role, name from member where tenant_id = :tenant_id and subject = :subject for update
""")
PUT_MEMBER = sa.text("""
insert into member (tenant_id, subject, role, name, added_by) values (:tenant_id, :subject, :role, :name, :added_by)
on conflict (tenant_id, subject) do update set role = excluded.role, name = excluded.name
""")
GET_MEMBER = sa.text("""
select subject, role, name, added_by, created_at from member where tenant_id = :tenant_id and subject = :subject
""")
# Counted up to the cap and no further. Two at once may both find the last place free: it is a cap, not a promise.
MOST_MEMBERS = 1_000
SOME_MEMBERS = sa.text("select from member where tenant_id = :tenant_id limit :most")
REMOVE_MEMBER = sa.text("delete from member where tenant_id = :tenant_id and subject = :subject")

MOST_TOKENS = 200


@lru_cache(maxsize=2)
def list_tokens(*, after: bool) -> sa.TextClause:
    return sa.text(f"""
select id, name, role, created_by, created_at, expires_at, revoked_at, last_used_at from machine_token
where tenant_id = :tenant_id {"and id < cast(:after_id as uuid)" if after else ""}
order by id desc limit :most
""")


# Of those that ended the list keeps some too, for a while.
MOST_KEPT_TOKENS = 1_000
TOO_MANY_TOKENS = (
    f"A tenant has {MOST_TOKENS} tokens in use at most, and {MOST_KEPT_TOKENS} with those that ended within 90 days: "
    "revoke some, or keep using one for longer."
)
_ENDED_LONG_AGO = "coalesce(least(revoked_at, expires_at) < now() - interval '90 days', false)"
MAKE_TOKEN = sa.text(f"""
with forgotten as (delete from machine_token where tenant_id = :tenant_id and {_ENDED_LONG_AGO})
insert into machine_token (id, tenant_id, name, role, hash, created_by, expires_at)
select :id, :tenant_id, :name, :role, :hash, :created_by, now() + make_interval(days => cast(:days as integer))
where (select count(*) from machine_token
       where tenant_id = :tenant_id and revoked_at is null and (expires_at is null or expires_at > now())) < :most
  and (select count(*) from machine_token where tenant_id = :tenant_id and not {_ENDED_LONG_AGO}) < :most_kept
""")
REVOKE_TOKEN = sa.text("""
update machine_token set revoked_at = coalesce(revoked_at, now()) where id = :id and tenant_id = :tenant_id
returning revoked_at = now() as just_now
""")

# The tokens that somebody made, and those that were made with them: whoever goes must not come back by one of them. A revoked
# token is walked through, because what it made may still be in use.
_MADE_BY = """
with recursive made (id) as (
    select id from machine_token where tenant_id = :tenant_id and created_by = :actor
    union
    select t.id from machine_token t join made on t.created_by = 'token:' || made.id where t.tenant_id = :tenant_id)
"""
TOKENS_MADE_BY = sa.text(f"""{_MADE_BY}
select t.id, t.name, t.role, t.created_by, t.created_at, t.expires_at, t.revoked_at, t.last_used_at
from machine_token t join made using (id)
where t.tenant_id = :tenant_id and t.revoked_at is null and (t.expires_at is null or t.expires_at > now()) order by t.id desc
""")
REVOKE_MADE_BY = sa.text(f"""{_MADE_BY}
update machine_token t set revoked_at = now() from made
where t.id = made.id and t.tenant_id = :tenant_id and t.revoked_at is null
returning t.id
""")
# Held until the token is there: removing its maker waits for this, and finds the token.
HOLD_MEMBER = sa.text("select role from member where tenant_id = :tenant_id and subject = :id for share")
HOLD_TOKEN = sa.text("""
select role from machine_token where tenant_id = :tenant_id and id = cast(:id as uuid) and revoked_at is null for share
""")

# Why a run waits: its open lanes by reason. Beyond so many lanes the answer says that there are more.
MOST_REASONED = 1_000
WHY_RUN = sa.text(f"""
select count(*) as lanes, w.code, min(w.sentence) as sentence, min(w.until) as until, w.held_by, w.action
from (select l.id from lane l where l.run_id = :run_id and l.tenant_id = :tenant_id and l.status = 'active'
      limit {MOST_REASONED}) l
left join lateral why(l.id) w on true
group by w.code, w.held_by, w.action
order by lanes desc, w.code
""")


# Gates: the tenant's own, and those that all tenants share.
_GATE = """key, tenant_id is null as is_shared,
    case when state = 'closed' and until <= now() then 'half_open' else state end as state,
    case when state <> 'open' then until end as until, reason, updated_at"""


@lru_cache(maxsize=2)
def list_gates(*, after: bool) -> sa.TextClause:
    return sa.text(f"""
select {_GATE}
from gate
where (tenant_id = :tenant_id or tenant_id is null)
  {"and (key, tenant_id is null) > (:after_key, cast(:after_shared as boolean))" if after else ""}
order by key, tenant_id is null limit :most
""")


GATE = sa.text("""
select tenant_id is null as is_shared, state, until, reason from gate
where key = :key and (tenant_id = :tenant_id or tenant_id is null) and (tenant_id is null) = :is_shared
""")
MOST_GATES = 200
SOME_GATES = sa.text("select from gate where tenant_id = :tenant_id limit :most")
OPEN_GATE = sa.text("""
update gate set state = 'open', holder = null, until = now(), reason = null, updated_at = now()
where key = :key and tenant_id = :tenant_id
""")
MOVE_SHARED_GATE = sa.text("""
select move_shared_gate(:subject, :key, cast(:closed_s as double precision), :reason) as moved
""")
# What waited for a gate that somebody opened is due now: so many at once, the others when their time comes. Lanes that
# somebody else is writing are skipped, as wherever batons are sent again.
MOST_WOKEN = 200
WAKE_WAITING = sa.text(f"""
update lane set next_due_at = now(), resend_no = resend_no + 1, resends = 0, sent_at = null, check_at = now()
where id in (
    select l.id from run r join lane l on l.run_id = r.id and l.status = 'active' and l.holds_run
    where r.tenant_id = :tenant_id and r.status in ('queued', 'running') and r.paused_at is null
      and l.tenant_id = :tenant_id and l.waits_for = 'gate:' || :key and l.next_due_at > now() and l.claim_token is null
    order by l.next_due_at limit {MOST_WOKEN}
    for update of l skip locked)
returning id, tenant_id, kind, epoch, seq, resend_no, class_id is not null as pulled, {WAKES},
          0::double precision as delay_s
""")

# Acts on many runs. What an action would change; the relay decides it again, run by run.
ELIGIBLE = {
    "cancel": "r.status in ('queued', 'running') and r.cancel_requested_at is null",
    "pause": "r.status in ('queued', 'running') and r.cancel_requested_at is null and r.paused_at is null",
    "resume": "r.paused_at is not null",
    "retry": "r.status in ('failed', 'canceled')",  # one that succeeded has nothing left to do again
}
MOST_BULK = 10_000


@lru_cache(maxsize=512)
def bulk(filters: frozenset[str], action: str, *, after: bool, count: bool) -> sa.TextClause:
    """The runs that an action on many would change, newest first, none newer than the preview; or how many they are."""
    conditions = ["r.tenant_id = :tenant_id", ELIGIBLE[action], *(FILTERS[name] for name in sorted(filters))]
    conditions.append("r.created_at <= cast(:upto as timestamptz)" if not count or after else "r.created_at <= now()")
    if after:
        conditions.append("(r.created_at, r.id) < (cast(:after_at as timestamptz), cast(:after_id as uuid))")
    found = f"""
select r.id, r.kind, r.created_at from run r where {" and ".join(conditions)}
order by r.created_at desc, r.id desc limit :most"""
    return sa.text(f"select count(*) as runs, now() as now from ({found}) r" if count else found)


MOST_CONNECTIONS = 100
_CONNECTION = """id, provider, name, settings, secret_ref is not null as ready, works, check_says, checked_at, created_by,
    created_at, updated_at"""
ONE_CONNECTION = sa.text(f"select {_CONNECTION} from connection where id = :id and tenant_id = :tenant_id")
ONE_CONNECTION_WITH_REF = sa.text(
    f"select {_CONNECTION}, secret_ref from connection where id = :id and tenant_id = :tenant_id"
)


@lru_cache(maxsize=4)
def list_connections(*, of_provider: bool, after: bool) -> sa.TextClause:
    return sa.text(f"""
select {_CONNECTION} from connection
where tenant_id = :tenant_id {"and provider = :provider" if of_provider else ""}
  {"and id < cast(:after_id as uuid)" if after else ""}
order by id desc limit :most
""")


# A name is reserved before its secret is kept; who comes second finds the first one's row.
RESERVE_CONNECTION = sa.text("""
insert into connection (id, tenant_id, provider, name, created_by)
select :id, :tenant_id, :provider, :name, :created_by
where (select count(*) from connection where tenant_id = :tenant_id) < :most
on conflict (tenant_id, provider, name) do nothing
""")
NAMED_CONNECTION = sa.text("""
select id, secret_ref is not null as ready from connection
where tenant_id = :tenant_id and provider = :provider and name = :name
""")
FINISH_CONNECTION = sa.text("""
update connection set settings = cast(:settings as jsonb), secret_ref = :secret_ref, created_by = :created_by,
    updated_at = now()
where id = :id and tenant_id = :tenant_id and secret_ref is null
""")
CHANGE_CONNECTION = sa.text("""
update connection set name = :name, settings = cast(:settings as jsonb),
    secret_ref = coalesce(cast(:secret_ref as text), secret_ref), works = null, check_says = null, checked_at = null,
    updated_at = now()
where id = :id and tenant_id = :tenant_id
""")
RETIRE_CONNECTION = sa.text("""
update connection set secret_ref = null, updated_at = now() where id = :id and tenant_id = :tenant_id
""")
DELETE_CONNECTION = sa.text("""
delete from connection where id = :id and tenant_id = :tenant_id and secret_ref is null
""")
# Only about what was asked with: a secret that was changed meanwhile has not been checked.
NOTE_CHECK = sa.text("""
update connection set works = :works, check_says = :says, checked_at = now()
where id = :id and tenant_id = :tenant_id and secret_ref = :secret_ref
returning checked_at
""")

# What is going on now. Each answer is one statement, so its parts are of one moment. It begins at the runs that are open,
# oldest first, and looks at their lanes: so many runs, and so many lanes of all of them together, however many there are.
MOST_OPEN = 500
MOST_LANES_NOW = 5_000
MOST_FAILED = 500
MOST_REPAIRS = 10_000
LATEST_REPAIRS = 200  # of the tenant: a member finds his own among them
MOST_UNSENT = 1_000


def _open(own: str) -> str:
    """The oldest open runs, an equal share of each kind: a full queue of one must not hide the others.

    The tenant's kinds are found by hopping along an index. One status at a time: together, no index gives them in order.
    Whoever sees only their own runs has an index of those, by age alone: of them simply the oldest are looked at.
    """
    seen = f"select r.id, r.kind, r.label, {_STATUS}, r.paused_at, r.deadline_at, r.created_at from run r"
    if own:
        mine = [
            f"({seen} where r.tenant_id = :tenant_id and r.status = '{status}' {own} "
            f"order by r.created_at, r.id limit {MOST_OPEN + 1})"
            for status in ("queued", "running")
        ]
        return f"""
share as materialized (select {MOST_OPEN} as most),
found as materialized (
    select f.*, row_number() over (order by f.created_at, f.id) as place from ({" union all ".join(mine)}) f),
open as materialized (
    select id, kind, label, status, paused_at, deadline_at, created_at from found
    where place <= (select most from share))"""
    return f"""
recursive hop (kind) as (
    (select r.kind from run r where r.tenant_id = :tenant_id order by r.kind limit 1)
    union all
    select (select r.kind from run r where r.tenant_id = :tenant_id and r.kind > h.kind order by r.kind limit 1)
    from hop h where h.kind is not null),
kinds as materialized (select kind from hop where kind is not null),
share as materialized (select {MOST_OPEN} / greatest(count(*), 1) as most from kinds),
found as materialized (
    select f.*, row_number() over (partition by f.kind order by f.created_at, f.id) as place
    from kinds k
    cross join (values ('queued'), ('running')) s (status)
    cross join lateral (
        {seen} where r.tenant_id = :tenant_id and r.kind = k.kind and r.status = s.status
        order by r.created_at, r.id limit (select most + 1 from share)) f),
open as materialized (
    select id, kind, label, status, paused_at, deadline_at, created_at from found
    where place <= (select most from share))"""


# The lanes that were looked at of the run `o`.
_LANES_NOW = f"""
    select l.id, l.next_due_at, l.sent_at, l.claim_token, l.lease_until, l.attempts, l.steps, l.updated_at, l.class_id from lane l
    where l.run_id = o.id and l.status = 'active' and l.holds_run
    limit (select {MOST_LANES_NOW} / greatest(count(*), 1) from open)"""
_A_DAY = "at > now() - interval '24 hours'"


def _repairs(most: int, which: str = "true") -> str:
    """The latest repairs whose lane may be seen."""
    return f"""
    select coalesce(jsonb_agg(to_jsonb(p) order by p.at desc), '[]') from (
        select p.at, p.why, l.run_id, p.lane_id, l.key as lane_key, l.kind
        from (select at, why, lane_id from repair where tenant_id = :tenant_id and {_A_DAY} and {which}
              order by at desc limit {LATEST_REPAIRS}) p
        cross join lateral (select * from lane where id = p.lane_id and tenant_id = :tenant_id offset 0) l
        order by p.at desc limit {most}) p"""


_AGE = "(select extract(epoch from now() - at)::double precision from beat where name = '{0}')"


@lru_cache(maxsize=2)
def now(*, own: bool) -> sa.TextClause:
    """How things stand, as one row.

    Of a run the lane that is due first tells why it waits: of those that are due, one whose message is sent. What is late
    was due two minutes ago; a lease counts from its end, for until then a step is being taken. What waits in a queue of
    jobs is not late: its turn comes when a worker is free.
    """
    mine = "and r.created_by = :owner" if own else ""
    return sa.text(f"""
with {_open(mine)},
runs as materialized (
    select o.*, w.code, w.sentence, w.until, w.held_by, w.action, l.moved_at,
           least(l.due_at, l.lease_until, case when o.deadline_at < now() then o.deadline_at end) as late_since,
           case when o.deadline_at < now() then 'deadline' when l.lease_until is not null then 'lease' else 'due' end as late_by
    from open o
    left join lateral (
        select (array_agg(l.id order by l.next_due_at > now() + interval '1 s', l.sent_at is null, l.next_due_at, l.id))[1] as id,
               min(l.next_due_at) filter (where l.claim_token is null and l.class_id is null
                                          and l.next_due_at < now() - interval '2 minutes') as due_at,
               min(l.lease_until) filter (where l.lease_until < now() - interval '2 minutes') as lease_until,
               max(l.updated_at) filter (where l.steps > 0 and l.attempts = 0) as moved_at
        from ({_LANES_NOW}) l) l on true
    left join lateral why(l.id) w on true),
late as (select * from runs where late_since is not null and paused_at is null),
failed as materialized (
    select r.id, r.kind, r.error, r.finished_at from run r
    where r.tenant_id = :tenant_id and r.status = 'failed' and r.finished_at > now() - interval '24 hours' {mine}
    order by r.finished_at desc, r.id desc limit {MOST_FAILED + 1}),
newest as (select * from failed order by finished_at desc, id desc limit {MOST_FAILED})
select
    now() as now,
    {_AGE.format("tick")} as tick_age_s,
    (select jsonb_build_object('queued', count(*) filter (where status = 'queued'),
            'running', count(*) filter (where status = 'running'), 'paused', count(*) filter (where status = 'paused'),
            'more', (select count(*) from found) > (select count(*) from open)) from open) as open,
    (select coalesce(jsonb_agg(to_jsonb(k) order by k.kind), '[]') from (
        select f.kind, count(*) filter (where f.status = 'queued') as queued,
               count(*) filter (where f.status = 'running') as running, count(*) filter (where f.status = 'paused') as paused,
               bool_or(f.place > (select most from share)) as more
        from found f group by f.kind) k) as kinds,
    (select count(*) from runs where (code is null or code = 'at_work') and late_since is null
        and moved_at > now() - interval '5 minutes') as moving,
    (select coalesce(jsonb_agg(to_jsonb(w) order by w.runs desc, w.code, w.held_by), '[]') from (
        select code, held_by, action, count(*) as runs, min(until) as until,
               (array_agg(sentence order by created_at, id))[1] as sentence,
               (array_agg(id order by created_at, id))[1] as run_id
        from runs where code <> 'at_work'
        group by code, held_by, action order by runs desc, code, held_by limit 20) w) as waiting,
    (select count(*) from late) as late,
    (select coalesce(jsonb_agg(to_jsonb(l) order by l.since, l.id), '[]') from (
        select id, kind, label, status, late_since as since, late_by from late order by late_since, id limit 10) l) as late_runs,
    (select count(*) from failed) as failed,
    (select coalesce(jsonb_agg(to_jsonb(f) order by f.count desc, f.last_at desc), '[]') from (
        select error ->> 'fingerprint' as fingerprint, kind, count(*) as count, max(finished_at) as last_at,
               (array_agg(error ->> 'code' order by finished_at desc, id))[1] as code,
               (array_agg(error ->> 'message' order by finished_at desc, id))[1] as message,
               (array_agg(id order by finished_at desc, id))[1] as run_id
        from newest group by error ->> 'fingerprint', kind order by count desc, last_at desc limit 10) f) as failing,
    (select jsonb_agg(jsonb_build_object('minute', m.minute, 'steps', coalesce(p.steps, 0), 'failed', coalesce(p.failed, 0),
            'rows', coalesce(p.rows, 0)) order by m.minute)
     from generate_series(date_trunc('minute', now()) - interval '60 minutes',
                          date_trunc('minute', now()) - interval '1 minute', interval '1 minute') m (minute)
     left join (select minute, sum(steps) as steps, sum(failed) as failed, sum(rows) as rows from pulse
                where tenant_id = :tenant_id and minute >= date_trunc('minute', now()) - interval '60 minutes' {"and created_by = :owner" if own else ""}
                group by minute) p on p.minute = m.minute) as throughput,
    (select coalesce(jsonb_agg(to_jsonb(g) order by g.key, g.is_shared), '[]') from (
        select {_GATE} from gate where (tenant_id = :tenant_id or tenant_id is null) and state <> 'open'
        order by key, tenant_id is null limit 20) g) as gates,
    ({_repairs(10)}) as repairs
""")


# For those who look after the tenant; of all tenants only for a super admin, which the function asks itself.
SYSTEM = sa.text(f"""
with {_open("")},
due as materialized (
    select l.sent_at, case when l.claim_token is null then l.next_due_at else l.lease_until end as at
    from open o
    cross join lateral ({_LANES_NOW}) l
    where o.paused_at is null and l.next_due_at < now() and (l.lease_until is null or l.lease_until < now())
      and (l.class_id is null or l.claim_token is not null))
select
    now() as now,
    (select version_num from public.alembic_version) as schema,
    {_AGE.format("tick")} as tick_age_s,
    {_AGE.format("sweep")} as sweep_age_s,
    (select least(count(*), {MOST_UNSENT}) from due where sent_at is null and at < now() - interval '1 minute') as unsent,
    (select min(at) from due) as oldest_due,
    (select count(*) from (select from repair where tenant_id = :tenant_id and why = 'dead_letter' and {_A_DAY}
                           limit {MOST_REPAIRS}) d) as dead_letters,
    ({_repairs(20, "why = 'dead_letter'")}) as latest_dead_letters,
    (select coalesce(jsonb_agg(to_jsonb(b) order by b.count desc, b.why), '[]') from (
        select why, count(*) as count from (
            select why from repair where tenant_id = :tenant_id and {_A_DAY} order by at desc limit {MOST_REPAIRS}) r
        group by why) b) as repairs_by,
    ({_repairs(20)}) as latest_repairs,
    (select to_jsonb(e) from everywhere(:subject) e) as everywhere
""")
