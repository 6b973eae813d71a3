"""Every statement of the HTTP API. Row level security binds each to its tenant, and a member to their own runs."""

from __future__ import annotations

from functools import lru_cache

import sqlalchemy as sa

from shared.kernel.api.state import OVERDUE, OVERDUE_SENTENCE, Standing

MEMBERSHIPS = sa.text("select tenant_id, tenant, role, is_super from memberships(:subject)")
MEMBERSHIP = sa.text("select tenant_id, tenant, role, is_super from membership(:subject, :tenant_id)")
INVITATIONS = sa.text("select tenant_id, tenant, role, invited_by from invitations(:subject)")
ANSWER_INVITATION = sa.text("select answer_invitation(:subject, :tenant_id, :accepts) as answered")
USE_TOKEN = sa.text("select id, tenant_id, tenant, role from use_token(:hash)")
CURSOR_KEY = sa.text("select cursor_key() as key")

# How much of a run with very many lanes a list looks at.
MOST_LANES = 200

_STANDING = f"""
case when l.claim_token is not null and l.lease_until >= now() then case when l.attempts > 0 then {Standing.FAILING:d} else {Standing.FREE:d} end
     when l.next_due_at > now() + interval '1 s' then {Standing.HELD:d}
     when l.class_id is not null and l.claim_token is null then case when l.attempts > 0 then {Standing.FAILING:d} else {Standing.HELD:d} end
     when coalesce(l.lease_until, l.next_due_at) < now() - interval '2 minutes' then {Standing.OVERDUE:d}
     when l.attempts > 0 then {Standing.FAILING:d}
     else {Standing.FREE:d} end"""
# The lane that moves first of the open lanes that `{lanes}` selects, and what is known of all of them.
_FIRST_LANE = f"""
select l.id, l.attempts, l.failing, l.moved_at, l.due_at, l.lost_at, l.last_error,
       case when l.standing = {Standing.FREE:d} and l.failing > 0 and l.failing * 2 >= l.open
                 and l.failed_at > coalesce(l.moved_at, '-infinity') then {Standing.UNTRIED:d} else l.standing end as standing
from (select l.*, {_STANDING} as standing, count(*) over () as open,
             count(*) filter (where l.attempts > 0) over () as failing,
             max(l.updated_at) filter (where l.attempts > 0) over () as failed_at,
             max(l.updated_at) filter (where l.attempts = 0 and l.steps > 0) over () as moved_at,
             min(l.next_due_at) filter (where l.claim_token is null and l.class_id is null
                                        and l.next_due_at < now() - interval '2 minutes') over () as due_at,
             min(l.lease_until) filter (where l.lease_until < now() - interval '2 minutes') over () as lost_at
      from ({{lanes}}) l) l
order by standing, l.sent_at is null, l.next_due_at, l.id limit 1"""
# Nothing holds the lane `l`, and nobody took its step: `why(l.id)` has no word for that.
_IS_LATE = (
    "w.code is null and l.status = 'active' and coalesce(l.lease_until, l.next_due_at) < now() - interval '2 minutes'"
)
_CODE = f"case when {_IS_LATE} then '{OVERDUE}' else w.code end"
_SENTENCE = f"case when {_IS_LATE} then '{OVERDUE_SENTENCE}' else w.sentence end"
_LANE_COLUMNS = """l.id, l.next_due_at, l.sent_at, l.claim_token, l.lease_until, l.attempts, l.steps, l.updated_at, l.class_id,
    l.last_error"""
# Why it waits, of the lane `f` and of `why(f.id)` as `w`. While its next attempt runs, the last error is still what there is to say.
_FAILS = f"f.standing = {Standing.FAILING:d} and coalesce(w.code, 'at_work') in ('at_work', 'unsent')"
_WHY = f"""
case when {_FAILS} then 'retrying' else w.code end as why,
case when {_FAILS} then 'Attempt ' || f.attempts || ' failed: ' || coalesce(f.last_error ->> 'message', 'unknown') else w.sentence end as why_sentence,
case when {_FAILS} then null else w.until end as why_until,
case when {_FAILS} then f.last_error ->> 'code' else w.held_by end as held_by,
case when {_FAILS} then null else w.action end as action"""

_STATUS = "case when r.paused_at is not null then 'paused' else r.status end as status"
_RUN = f"""r.id, r.kind, r.label, {_STATUS}, r.outcome, r.epoch, r.created_by, r.source, r.source_ref,
    r.created_at, r.started_at, r.finished_at, r.deadline_at, r.cancel_requested_at, r.error,
    r.cause as fingerprint, r.params ->> 'connection' as connection"""
# How far a run is, when it last moved, and of the lane that moves first why it waits.
_OPEN_LANES = f"select {_LANE_COLUMNS} from lane l where l.run_id = r.id and l.status = 'active' and l.holds_run limit {MOST_LANES}"
_GOING = f"""
left join lateral (
    select count(*) as lanes, count(*) filter (where l.status <> 'active') as lanes_ended,
           count(*) filter (where l.status = 'failed') as lanes_failed, max(l.updated_at) as moved_at,
           sum(l.steps)::bigint as steps, min(l.next_due_at) filter (where l.status = 'active') as next_due_at
    from (select * from lane where run_id = r.id and holds_run limit {MOST_LANES}) l) g on true
left join lateral ({_FIRST_LANE.format(lanes=_OPEN_LANES)}) f on r.finished_at is null
left join lateral why(f.id) w on true"""
_WITH_GOING = (
    f"g.lanes, g.lanes_ended, g.lanes_failed, g.moved_at, g.steps, g.next_due_at, f.standing, f.failing, {_WHY}"
)

# Each filter by the name of its parameter. All combine with `and`.
FILTERS = {
    "kind": "r.kind = :kind",
    "status": "r.status = :status and r.paused_at is null",
    "paused": "r.paused_at is not null and r.status in ('queued', 'running')",
    "fingerprint": "r.status = 'failed' and r.cause = :fingerprint",
    "id": "r.id = :id",
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


# Of a search for a part of a label or an id, so many runs are looked through for a page: it may be short, and have a next one.
SIFTED = 2_000
_SIFT = "(r.label ilike :q or r.id::text like :q)"
_NEWEST = "order by r.created_at desc, r.id desc"
_OPEN_STATUSES = ("queued", "running")


@lru_cache(maxsize=512)
def list_runs(filters: frozenset[str], *, after: bool) -> sa.TextClause:
    """A page of runs, newest first. Which filters are there decides the text; their values are parameters.

    With `q` there is always a row, of no run if none was found: it says how many were looked through, and up to which.
    """
    conditions = [FILTERS[name] for name in sorted(filters - {"q", "open"})]
    if after:
        conditions.append("(r.created_at, r.id) < (cast(:after_at as timestamptz), cast(:after_id as uuid))")

    def newest(columns: str, most: str, *more: str) -> str:
        where = " and ".join(["r.tenant_id = :tenant_id", *more, *conditions])
        return f"select {columns} from run r where {where} {_NEWEST} limit {most}"

    def found(columns: str, most: str) -> str:
        if "open" not in filters:
            return newest(columns, most)
        # One status at a time: together, no index gives them in order.
        queued, running = (
            newest(columns, most, f"r.status = '{each}'", "r.paused_at is null") for each in _OPEN_STATUSES
        )
        return f"select * from (({queued}) union all ({running})) r {_NEWEST} limit {most}"

    if "q" not in filters:
        return sa.text(f"""
select {_RUN}, {_WITH_GOING}, now() as now
from ({found("*", ":most")}) r
{_GOING}
{_NEWEST}
""")
    return sa.text(f"""
with seen as materialized ({found("r.id, r.label, r.created_at", str(SIFTED))})
select {_RUN}, {_WITH_GOING}, now() as now, s.sifted, s.last_at, s.last_id
from (select count(*) as sifted, min(r.created_at) as last_at, (array_agg(r.id order by r.created_at, r.id))[1] as last_id from seen r) s
left join lateral (
    select r.* from (select r.id from seen r where {_SIFT} {_NEWEST} limit :most) h
    join run r on r.id = h.id and r.tenant_id = :tenant_id offset 0) r on true
{_GOING}
{_NEWEST}
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
select {_LANE}, {_CODE} as why, {_SENTENCE} as why_sentence, w.until as why_until, w.held_by, w.action,
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
RUN_STATUS = sa.text(f"select {_STATUS}, r.kind from run r where r.id = :run_id and r.tenant_id = :tenant_id")
RUN_KIND = sa.text("select kind from run where id = :run_id and tenant_id = :tenant_id")
ONE_LANE = sa.text("""
select l.key, l.kind, l.cursor from lane l where l.id = :lane_id and l.run_id = :run_id and l.tenant_id = :tenant_id
""")
LANE_EXISTS = sa.text("select run_id from lane where id = :lane_id and run_id = :run_id and tenant_id = :tenant_id")
REMOTE_CALLS = sa.text("""
select epoch, key, kind, remote_id, leaves_asset, intended_at, confirmed_at, cleaned_at from remote_call
where run_id = :run_id and tenant_id = :tenant_id order by intended_at desc, key limit :most
""")
# Whoever comes second waits here for the first to commit, and then finds the first one's answer.
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
select subject, role, name, added_by, created_at, accepted_at from member
where tenant_id = :tenant_id {"and subject > :after_subject" if after else ""}
order by subject limit :most
""")


LOCK_ADMINS = sa.text("""
select subject from member where tenant_id = :tenant_id and role = 'admin' and accepted_at is not null
order by subject for update
""")
LOCK_MEMBER = sa.text("""
select role, name from member where tenant_id = :tenant_id and subject = :subject for update
""")
PUT_MEMBER = sa.text("""
insert into member (tenant_id, subject, role, name, added_by, accepted_at)
values (:tenant_id, :subject, :role, :name, :added_by, null)
on conflict (tenant_id, subject) do update set role = excluded.role, name = excluded.name
""")
GET_MEMBER = sa.text("""
select subject, role, name, added_by, created_at, accepted_at from member
where tenant_id = :tenant_id and subject = :subject
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
    f"A tenant can have {MOST_TOKENS} active tokens, and {MOST_KEPT_TOKENS} with those that ended in the last 90 days. "
    "Revoke some, or use one for longer."
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
# Nor by somebody whom they invited and who waits until they are gone. Who has accepted is a member of their own.
INVITED_BY = sa.text(f"""{_MADE_BY}
select subject from member
where tenant_id = :tenant_id and accepted_at is null
  and (added_by = :actor or added_by in (select 'token:' || id from made)) order by subject
""")
WITHDRAW_INVITED_BY = sa.text(f"""{_MADE_BY}
delete from member
where tenant_id = :tenant_id and accepted_at is null
  and (added_by = :actor or added_by in (select 'token:' || id from made))
returning subject
""")
# Held until the token is there: removing its maker waits for this, and finds the token.
HOLD_MEMBER = sa.text("""
select role from member where tenant_id = :tenant_id and subject = :id and accepted_at is not null for share
""")
HOLD_TOKEN = sa.text("""
select role from machine_token where tenant_id = :tenant_id and id = cast(:id as uuid) and revoked_at is null for share
""")


def _what_for(code: str, sentence: str) -> str:
    """What waits by its own wish waits for what its sentence says, and for that alone. The sentences of the others tell of one: an
    attempt, a limit."""
    return f"case when {code} = 'due_later' then {sentence} end"


# Why a run waits: its open lanes by reason. Beyond so many lanes the answer says that there are more.
MOST_REASONED = 1_000
WHY_RUN = sa.text(f"""
select count(*) as lanes, {_CODE} as code, min({_SENTENCE}) as sentence, min(w.until) as until, w.held_by, w.action
from (select l.id, l.status, l.lease_until, l.next_due_at from lane l where l.run_id = :run_id and l.tenant_id = :tenant_id and l.status = 'active'
      limit {MOST_REASONED}) l
left join lateral why(l.id) w on true
group by {_CODE}, w.held_by, w.action, {_what_for("w.code", "w.sentence")}
order by lanes desc, code, sentence
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
MOVE_SHARED_GATE = sa.text("""
select move_shared_gate(:subject, :key, cast(:closed_s as double precision), :reason) as moved
""")
# Acts on many runs. What an action would change; the relay decides it again, run by run.
ELIGIBLE = {
    "cancel": "r.status in ('queued', 'running') and r.cancel_requested_at is null",
    "pause": "r.status in ('queued', 'running') and r.cancel_requested_at is null and r.paused_at is null",
    "resume": "r.paused_at is not null",
    # Those whose last attempt failed and which wait for the next one: what waits for its time is not woken in bulk.
    "wake": """r.status = 'running' and r.paused_at is null and r.cancel_requested_at is null and exists (
        select from lane l where l.run_id = r.id and l.status = 'active' and l.holds_run and l.attempts > 0 and l.claim_token is null
          and l.next_due_at > now() + interval '1 s')""",
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
# Only about what was asked with: a secret or settings that were changed meanwhile have not been checked.
NOTE_CHECK = sa.text("""
update connection set works = :works, check_says = :says, checked_at = now()
where id = :id and tenant_id = :tenant_id and secret_ref = :secret_ref and updated_at = :updated_at
returning checked_at
""")

# What is going on now. Each answer is one statement, so its parts are of one moment. It begins at the runs that are open,
# oldest first, and looks at their lanes: so many runs, and so many lanes of all of them together, however many there are.
MOST_OPEN = 500
MOST_LANES_NOW = 5_000
MOST_FAILED = 500
MOST_REPAIRS = 10_000
MOST_UNHEARD = 1_000
LATEST_REPAIRS = 200  # of the tenant: a member finds their own among them
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
recursive hop (kind) as ({_HOP}),
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
    select {_LANE_COLUMNS} from lane l
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


def _failed(window: str, mine: str, most: int) -> str:
    """Failed runs of a while, newest first, each with what it failed of and whether that is muted."""
    return f"""
    select r.id, r.kind, r.label, r.finished_at, r.fingerprint, r.cause ->> 'code' as code, r.cause ->> 'message' as message,
           r.cause ->> 'lane' as lane_key, r.connection, m.muted_at, m.muted_by, m.reason as mute_reason, m.until as muted_until
    from (select r.id, r.kind, r.label, r.finished_at, r.cause as fingerprint, coalesce(r.error -> 'cause', r.error) as cause,
                 r.params ->> 'connection' as connection
          from run r
          where r.tenant_id = :tenant_id and r.status = 'failed' and r.finished_at > now() - interval '{window}' {mine}
          order by r.finished_at desc, r.id desc limit {most}) r
    left join failure_mute m on m.tenant_id = :tenant_id and m.kind = r.kind and m.fingerprint = r.fingerprint and m.until > now()"""


# Of failed runs `f` of one kind and fingerprint: the latest one's words, and which it is.
_LATEST = ", ".join(
    f"(array_agg(f.{each} order by f.finished_at desc, f.id))[1] as {name}"
    for each, name in (
        ("code", "code"),
        ("message", "message"),
        ("lane_key", "lane_key"),
        ("connection", "connection"),
        ("id", "run_id"),
    )
)
_CAUSE = f"fingerprint, kind, count(*) as count, min(finished_at) as first_at, max(finished_at) as last_at, {_LATEST}"

# Failures by cause. A bucket is six hours; the last one ends now.
MOST_FAILURES = 2_000
MOST_CAUSES = 100
BUCKETS, BUCKET_S = 28, 6 * 3600


@lru_cache(maxsize=2)
def failures(*, own: bool) -> sa.TextClause:
    """What failed in the last week, by kind and cause, with counts over time and one of them in full."""
    mine = "and r.created_by = :owner" if own else ""
    return sa.text(f"""
with failed as materialized ({_failed("7 days", mine, MOST_FAILURES + 1)}),
causes as (
    select {_CAUSE}, max(muted_at) as muted_at, max(muted_by) as muted_by, max(mute_reason) as mute_reason, max(muted_until) as muted_until,
           (select array_agg(coalesce(b.runs, 0) order by n) from generate_series(0, {BUCKETS - 1}) n left join (
                select {BUCKETS - 1} - floor(extract(epoch from now() - t) / {BUCKET_S})::integer as place, count(*) as runs
                from unnest(array_agg(f.finished_at)) t group by 1) b on b.place = n) as counts
    from failed f group by fingerprint, kind
    order by (max(muted_at) is not null), max(finished_at) desc limit {MOST_CAUSES})
select c.*, now() as now, (select count(*) from failed) as failed, l.seq as sample_step, l.cursor as sample_cursor, r.params as sample_params,
       r.label as sample_label
from causes c
left join run r on r.id = c.run_id and r.tenant_id = :tenant_id
left join lateral (select l.seq, l.cursor from lane l where l.run_id = c.run_id and l.key = c.lane_key and l.tenant_id = :tenant_id) l on true
order by (c.muted_at is not null), c.last_at desc
""")


MOST_MUTED = 200
# What has run out makes room. Again for the same cause: it is muted anew.
MUTE = sa.text("""
with over as (delete from failure_mute where tenant_id = :tenant_id and until <= now())
insert into failure_mute (tenant_id, kind, fingerprint, reason, muted_by, until)
select :tenant_id, :kind, :fingerprint, :reason, :actor, now() + make_interval(days => cast(:days as integer))
where (select count(*) from failure_mute where tenant_id = :tenant_id and until > now()
         and (kind, fingerprint) <> (:kind, :fingerprint)) < :most
on conflict (tenant_id, kind, fingerprint)
do update set reason = excluded.reason, muted_by = excluded.muted_by, muted_at = now(), until = excluded.until
""")
UNMUTE = sa.text("""
delete from failure_mute where tenant_id = :tenant_id and kind = :kind and fingerprint = :fingerprint and until > now()
""")

# The kinds that a tenant has runs of, by hopping along an index; of somebody who sees only their own, those of the newest.
_HOP = """
    (select r.kind from run r where r.tenant_id = :tenant_id order by r.kind limit 1)
    union all
    select (select r.kind from run r where r.tenant_id = :tenant_id and r.kind > h.kind order by r.kind limit 1)
    from hop h where h.kind is not null"""
USED_KINDS = sa.text(f"with recursive hop (kind) as ({_HOP}) select kind from hop where kind is not null")
OWN_KINDS = sa.text(f"""
select distinct kind from (
    select r.kind from run r where r.tenant_id = :tenant_id and r.created_by = :owner {_NEWEST} limit {MOST_OPEN}) r
""")

_AGE = "(select extract(epoch from now() - at)::double precision from beat where name = '{0}')"


@lru_cache(maxsize=2)
def now(*, own: bool) -> sa.TextClause:
    """How things stand, as one row.

    Of a run the lane that moves first tells why it waits, as in the list. What is late was due two minutes ago; a lease counts from its end, for until then a step is being taken. What waits in a queue of
    jobs is not late: its turn comes when a worker is free.
    """
    mine = "and r.created_by = :owner" if own else ""
    return sa.text(f"""
with {_open(mine)},
runs as materialized (
    select o.*, {_WHY}, f.standing, f.moved_at,
           least(f.due_at, f.lost_at, case when o.deadline_at < now() then o.deadline_at end) as late_since,
           case when o.deadline_at < now() then 'deadline' when f.lost_at is not null then 'lease' else 'due' end as late_by
    from open o
    left join lateral ({_FIRST_LANE.format(lanes=_LANES_NOW)}) f on true
    left join lateral why(f.id) w on true),
late as (select * from runs where late_since is not null and paused_at is null),
failed as materialized (
    select * from ({_failed("24 hours", mine, MOST_FAILED + 1)}) f where muted_at is null)
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
    (select coalesce(jsonb_agg(to_jsonb(s)), '[]') from (
        select status, standing, why, count(*) as runs from runs group by status, standing, why) s) as standings,
    (select min(created_at) from open) as oldest_open,
    (select count(*) from runs where late_since is null and moved_at > now() - interval '5 minutes') as moving,
    (select coalesce(jsonb_agg(to_jsonb(w) order by w.runs desc, w.code, w.held_by, w.sentence), '[]') from (
        select why as code, held_by, max(action) as action, count(*) as runs, min(why_until) as until,
               (array_agg(why_sentence order by created_at, id))[1] as sentence,
               (array_agg(id order by created_at, id))[1] as run_id,
               (array_agg(kind order by created_at, id))[1] as kind,
               (array_agg(label order by created_at, id))[1] as label
        from runs where why <> 'at_work'
        group by why, held_by, {_what_for("why", "why_sentence")}
        order by runs desc, code, held_by, sentence limit 20) w) as waiting,
    (select count(*) from late) as late,
    (select coalesce(jsonb_agg(to_jsonb(l) order by l.since, l.id), '[]') from (
        select id, kind, label, status, late_since as since, late_by from late order by late_since, id limit 10) l) as late_runs,
    (select count(*) from failed) as failed,
    (select coalesce(jsonb_agg(to_jsonb(f) order by f.count desc, f.last_at desc), '[]') from (
        select {_CAUSE} from failed f group by fingerprint, kind order by count desc, last_at desc limit 10) f) as failing,
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
    (select count(*) from (select from hearing where tenant_id = :tenant_id and given_up_at is not null
                           limit {MOST_UNHEARD}) h) as unheard,
    (select coalesce(jsonb_agg(to_jsonb(h) order by h.at desc), '[]') from (
        select h.given_up_at as at, h.listener, h.attempts, h.error, s.name as signal
        from hearing h join signal s on s.id = h.signal_id and s.tenant_id = h.tenant_id
        where h.tenant_id = :tenant_id and h.given_up_at is not null order by h.given_up_at desc limit 20) h) as latest_unheard,
    (select to_jsonb(e) from everywhere(:subject) e) as everywhere
""")
