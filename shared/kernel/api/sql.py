"""Every statement of the HTTP API. Row level security binds each to its tenant, and a member to his own runs."""

from __future__ import annotations

from functools import lru_cache

import sqlalchemy as sa

MEMBERSHIPS = sa.text("select tenant_id, tenant, role, is_super from memberships(:subject)")
MEMBERSHIP = sa.text("select tenant_id, tenant, role, is_super from membership(:subject, :tenant_id)")
USE_TOKEN = sa.text("select id, tenant_id, tenant, role from use_token(:hash)")
CURSOR_KEY = sa.text("select cursor_key() as key")

# How much of a run with very many lanes a list looks at.
MOST_LANES = 200

_STATUS = "case when r.paused_at is not null then 'paused' else r.status end as status"
_RUN = f"""r.id, r.kind, r.label, {_STATUS}, r.outcome, r.epoch, r.created_by, r.source, r.source_ref,
    r.created_at, r.started_at, r.finished_at, r.deadline_at, r.cancel_requested_at, r.error"""
# Of a run that goes on: how far it is, when it last moved, and the first lane that would tell why it waits.
_GOING = f"""
left join lateral (
    select count(*) as lanes, count(*) filter (where l.status <> 'active') as lanes_ended, max(l.updated_at) as moved_at,
           sum(l.steps)::bigint as steps, min(l.next_due_at) filter (where l.status = 'active') as next_due_at
    from (select * from lane where run_id = r.id and holds_run limit {MOST_LANES}) l) g on true
left join lateral (
    select w.code as why, w.sentence as why_sentence, w.until as why_until, w.held_by, w.action
    from (select id, next_due_at from lane where run_id = r.id and status = 'active' and holds_run
          limit {MOST_LANES}) l
    left join lateral why(l.id) w on true
    order by w.code is not null, l.next_due_at, l.id limit 1) w on r.finished_at is null"""
_WITH_GOING = "g.lanes, g.lanes_ended, g.moved_at, g.steps, g.next_due_at, w.why, w.why_sentence, w.why_until, w.held_by, w.action"

# Each filter by the name of its parameter. All combine with `and`.
FILTERS = {
    "kind": "r.kind = :kind",
    "status": "r.status = :status and r.paused_at is null",
    "paused": "r.paused_at is not null and r.status in ('queued', 'running')",
    "label": "r.label = :label",
    "source": "r.source = :source",
    "created_by": "r.created_by = :created_by",
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
select {_RUN}, {_WITH_GOING}
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
    l.deadline_at, l.last_error, l.created_at, l.updated_at"""


@lru_cache(maxsize=8)
def list_lanes(*, with_status: bool, after: bool) -> sa.TextClause:
    return sa.text(f"""
select {_LANE}, w.code as why, w.sentence as why_sentence, w.until as why_until, w.held_by, w.action
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
RUN_EXISTS = sa.text("select 1 as here from run where id = :run_id and tenant_id = :tenant_id")
LANE_EXISTS = sa.text("select run_id from lane where id = :lane_id and run_id = :run_id and tenant_id = :tenant_id")
REMOTE_CALLS = sa.text("""
select epoch, key, kind, remote_id, leaves_asset, intended_at, confirmed_at, cleaned_at from remote_call
where run_id = :run_id and tenant_id = :tenant_id order by intended_at desc, key limit :most
""")
OPEN_RUNS = sa.text("""
select (select count(*) from (select from run where tenant_id = :tenant_id and status in ('queued', 'running')
                              limit t.most_open_runs) r) >= t.most_open_runs as full, t.most_open_runs
from tenant t where t.id = :tenant_id
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
