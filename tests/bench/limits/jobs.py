"""A job by hand: one statement to enqueue, one to take, one to finish; the rows and triggers are the product's. Never changed
together with product code (see README.md)."""

from __future__ import annotations

from uuid import UUID

from shared.kernel.clock import new_id
from shared.kernel.flights import Connection
from tests.bench.limits.bare import SET_TENANT

ENQUEUE = """
with new as (select unnest($1::uuid[]) as id),
r as (
    insert into run (id, tenant_id, kind, label, status, params, check_at, source, created_at)
    select id, $2::uuid, 'job', 'noop', 'queued', $3::jsonb, now() + interval '1 day', 'api', now() from new returning id),
h as (
    insert into history (run_id, n, tenant_id, epoch, type, data, at)
    select id, 1, $2::uuid, 1, 'accepted', '{"lanes": 1}', now() from new)
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, max_steps, class_id,
                  priority, created_at, updated_at)
select id, id, $2::uuid, 'job', 'run', true, '{}', now(), now(), 'infinity', 100000, $4::uuid, 100, now(), now() from new
"""
TAKE = """
with best as (
    select lane_id from offer where class_id = $1::uuid and tenant_id = $2::uuid and priority = 100 and due and taken_at is null
    order by class_id, tenant_id, priority, queued_at, lane_id limit $3::integer for update skip locked),
o as (update offer set taken_at = now(), worker = 'w' where lane_id = any(array(select lane_id from best)))
update lane set claim_token = $4::uuid, lease_until = now() + interval '60 s', claims = claims + 1
where id = any(array(select lane_id from best)) returning id, run_id
"""
FINISH = """
with l as (
    update lane set seq = seq + 1, status = 'done', claim_token = null, lease_until = null, claims = 0, updated_at = now()
    where id = any($1::uuid[]) and claim_token = $2::uuid and status = 'active' returning id, run_id, tenant_id, epoch, seq - 1 as seq),
s as (
    insert into step (lane_id, epoch, seq, tenant_id, outcome, rows, ms, at)
    select id, epoch, seq, tenant_id, 'done', 0, 1, now() from l),
r as (
    update run set status = 'succeeded', outcome = 'done', started_at = now(), finished_at = now()
    where id = any(array(select run_id from l)) returning id, tenant_id, epoch),
h as (
    insert into history (run_id, n, tenant_id, epoch, type, data, at)
    select id, 2, tenant_id, epoch, 'succeeded', '{"outcome": "done"}', now() from r),
g as (
    insert into signal (tenant_id, name, payload, at)
    select tenant_id, 'run.succeeded', jsonb_build_object('run_id', id, 'kind', 'job', 'epoch', epoch, 'outcome', 'done'), now()
    from r)
insert into job_attempts (job_id, attempt_no, tenant_id, worker_id, started_at, finished_at, exit_code, status)
select run_id, 1, tenant_id, 'w', now(), now(), 0, 'succeeded' from l
"""


def enqueue(connection: Connection, tenant: UUID, class_id: UUID, params: str, jobs: int) -> None:
    connection.before_next(SET_TENANT, str(tenant))
    connection.execute_often(ENQUEUE, [[str(new_id()) for _ in range(jobs)], tenant, params, class_id])


def run_some(connection: Connection, tenant: UUID, class_id: UUID, most: int) -> int:
    """Take and finish at once; how many."""
    token = new_id()
    connection.before_next(SET_TENANT, str(tenant))
    taken = connection.execute_often(TAKE, [class_id, tenant, most, token]).rows
    if taken:
        connection.before_next(SET_TENANT, str(tenant))
        connection.execute_often(FINISH, [[str(row[0]) for row in taken], token])
    return len(taken)
