"""The job queue: definitions with their versions, attempts with their logs, workers; `jobs` is a view of runs that are pulled."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

# A definition's row in `pull_class` has its id: what waits, what a limit counts, and whether any of it may be taken now.
TABLES = """
create table job_definitions (
    id uuid primary key,
    key text not null unique,
    description text not null default '',
    command text not null,
    arg_schema jsonb not null default '{}',
    timeout_seconds integer not null default 3600 check (timeout_seconds between 1 and 604800),
    max_attempts integer not null default 3 check (max_attempts between 1 and 100),
    queue text not null,
    executor text not null check (executor in ('lambda', 'worker')),
    concurrency_limit integer check (concurrency_limit between 1 and 10000),
    is_active boolean not null default true,
    version integer not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create table job_definition_versions (
    definition_id uuid not null references job_definitions (id),
    version integer not null,
    body jsonb not null,
    changed_by text,
    at timestamptz not null default now(),
    primary key (definition_id, version)
);

create table job_attempts (
    job_id uuid not null,
    attempt_no integer not null,
    tenant_id uuid not null,
    worker_id text not null,
    pid integer,
    started_at timestamptz not null default now(),
    finished_at timestamptz,
    exit_code integer,
    status text not null check (status in ('running', 'succeeded', 'failed', 'timeout', 'canceled')),
    stdout_tail text,
    stderr_tail text,
    error_text text,
    primary key (job_id, attempt_no)
);

create table job_workers (
    worker_id text primary key,
    hostname text not null,
    version text not null default '',
    queues text[] not null default array[]::text[],
    started_at timestamptz not null default now(),
    last_seen_at timestamptz not null default now(),
    running_count integer not null default 0,
    metadata jsonb not null default '{}'
);

create index run_jobs_status on run (tenant_id, status, created_at, id) where kind = 'job';

-- What a job is to people: its run, its lane, and the offer while it is active. Row level security is that of the tables.
create view jobs with (security_invoker = true) as
select r.id, r.tenant_id, l.class_id as definition_id, r.params ->> 'definition_key' as definition_key,
       case r.source when 'api' then 'manual' when 'event' then 'event' when 'schedule' then 'schedule' else 'system' end
           as source,
       r.source_ref,
       case when r.outcome = 'dead_letter' then 'dead_letter' when r.finished_at is not null then r.status
            when o.taken_at is not null then 'running' else 'queued' end as status,
       l.priority, r.params -> 'payload' as payload, l.dedupe_key, r.correlation_id,
       case when o.scheduled_for < 'infinity' then o.scheduled_for else l.next_due_at end as scheduled_for,
       r.created_at as queued_at, coalesce(o.taken_at, r.started_at) as started_at, r.finished_at,
       (select count(*) from job_attempts a where a.job_id = r.id)::integer as attempt_count,
       (r.params ->> 'max_attempts')::integer as max_attempts, (r.params ->> 'version')::integer as version,
       l.lease_until as lease_expires_at, o.worker as claimed_by_worker,
       coalesce(r.error, l.last_error) ->> 'message' as last_error, r.created_by, r.created_at, r.epoch,
       r.cancel_requested_at, r.paused_at, l.id as lane_id
from run r
join lane l on l.run_id = r.id
left join offer o on o.lane_id = l.id
where r.kind = 'job'
"""

GRANTS = """
grant select on job_definitions, job_definition_versions to baton_api;
grant select on job_definitions to baton_worker;
grant select, insert, update, delete on job_workers to baton_worker;
grant select on job_workers to baton_api;
grant select on jobs to baton_api, baton_worker;
create policy of_visible_runs on job_attempts as restrictive for select to baton_api
    using (exists (select from run r where r.id = job_id))
"""

# Definitions belong to no tenant, so no policy lets the API write them: the database asks itself whether a super admin asks.
# A limit that changes is counted anew. Answers whether it was written: not, if the key is another definition's.
PUT_DEFINITION = """
create function put_job_definition(asked text, said jsonb) returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, public
    as $$
declare
    d public.job_definitions := jsonb_populate_record(null::public.job_definitions, said);
begin
    if not exists (select from public.super_admin where subject = asked) then
        return false;
    end if;
    insert into public.job_definitions as j (id, key, description, command, arg_schema, timeout_seconds, max_attempts, queue,
                                             executor, concurrency_limit, is_active, version)
    values (d.id, d.key, d.description, d.command, d.arg_schema, d.timeout_seconds, d.max_attempts, d.queue, d.executor,
            d.concurrency_limit, d.is_active, d.version)
    on conflict (key) do update
    set description = excluded.description, arg_schema = excluded.arg_schema, timeout_seconds = excluded.timeout_seconds,
        max_attempts = excluded.max_attempts, queue = excluded.queue, executor = excluded.executor,
        concurrency_limit = excluded.concurrency_limit, is_active = excluded.is_active, version = excluded.version,
        updated_at = now()
    where j.id = excluded.id and j.version = excluded.version - 1;
    if not found then
        return false;
    end if;
    insert into public.pull_queue (name) values (d.queue) on conflict (name) do nothing;
    insert into public.pull_class as c (id, queue, is_open, most_running)
    values (d.id, d.queue, d.is_active, d.concurrency_limit)
    on conflict (id) do update
    set queue = excluded.queue, is_open = excluded.is_open, most_running = excluded.most_running,
        running = case when c.most_running is not distinct from excluded.most_running then c.running end;
    insert into public.job_definition_versions (definition_id, version, body, changed_by)
    values (d.id, d.version, said, 'user:' || asked);
    return true;
end
$$;
revoke all on function put_job_definition(text, jsonb) from public;
grant execute on function put_job_definition(text, jsonb) to baton_api
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(tenant_table("job_attempts", api="select"))
    run(GRANTS)
    run(PUT_DEFINITION)
    run("reset role")
