"""A job's start and worker are those of its last attempt, also when nobody is at work on it: they were forgotten with its offer."""

from __future__ import annotations

from alembic import op

revision = "0205"
down_revision = "0204"
branch_labels = None
depends_on = None

JOBS = """
create or replace view jobs with (security_invoker = true) as
select r.id, r.tenant_id, l.class_id as definition_id, r.params ->> 'definition_key' as definition_key,
       case r.source when 'api' then 'manual' when 'event' then 'event' when 'schedule' then 'schedule' else 'system' end
           as source,
       r.source_ref,
       case when r.outcome = 'dead_letter' then 'dead_letter' when r.finished_at is not null then r.status
            when o.taken_at is not null then 'running' else 'queued' end as status,
       l.priority, r.params -> 'payload' as payload, l.dedupe_key, r.correlation_id,
       case when o.scheduled_for < 'infinity' then o.scheduled_for else l.next_due_at end as scheduled_for,
       r.created_at as queued_at, coalesce(o.taken_at, a.started_at) as started_at, r.finished_at,
       coalesce(a.attempts, 0) as attempt_count,
       (r.params ->> 'max_attempts')::integer as max_attempts, (r.params ->> 'version')::integer as version,
       l.lease_until as lease_expires_at, coalesce(o.worker, a.worker_id) as claimed_by_worker,
       coalesce(r.error, l.last_error) ->> 'message' as last_error, r.created_by, r.created_at, r.epoch,
       r.cancel_requested_at, r.paused_at, l.id as lane_id
from run r
join lane l on l.run_id = r.id
left join offer o on o.lane_id = l.id
left join lateral (
    select count(*)::integer as attempts, (array_agg(t.started_at order by t.attempt_no desc))[1] as started_at,
           (array_agg(t.worker_id order by t.attempt_no desc))[1] as worker_id
    from job_attempts t where t.job_id = r.id) a on true
where r.kind = 'job'
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(JOBS)
    run("reset role")
