"""What starts jobs by itself: triggers, each time one of them should have, and the timezone of a tenant."""

from __future__ import annotations

from alembic import op

revision = "0090"
down_revision = "0060"
branch_labels = None
depends_on = None

# `active_since`: what happened before it does not fire. `next_fire_at` is null for whatever is not due by itself.
TABLES = """
alter table tenant add column timezone text not null default 'UTC' check (length(timezone) between 1 and 64);

create table job_triggers (
    id uuid primary key,
    tenant_id uuid not null,
    label text not null,
    is_enabled boolean not null default true,
    trigger_type text not null check (trigger_type in ('event', 'schedule')),
    event_name text,
    event_filter jsonb not null default '{}',
    cron_expr text,
    timezone text,
    definition_id uuid not null references job_definitions (id) on delete restrict,
    payload_template jsonb not null default '{}',
    dedupe_window_seconds integer not null default 300 check (dedupe_window_seconds between 0 and 86400),
    catch_up text not null default 'once' check (catch_up in ('skip', 'once', 'all')),
    catch_up_most integer not null default 10 check (catch_up_most between 1 and 100),
    max_lateness_seconds integer not null default 86400 check (max_lateness_seconds between 60 and 604800),
    overlap text not null default 'queue' check (overlap in ('skip', 'queue')),
    active_since timestamptz not null default now(),
    next_fire_at timestamptz,
    problem text,
    created_by text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz,
    check (
        (trigger_type = 'event' and event_name is not null and cron_expr is null)
        or (trigger_type = 'schedule' and cron_expr is not null and timezone is not null and event_name is null)
    ),
    check (catch_up <> 'all' or overlap = 'queue'),
    check (next_fire_at is null or (trigger_type = 'schedule' and is_enabled and deleted_at is null))
) with (fillfactor = 80);
create index job_triggers_tenant on job_triggers (tenant_id, id) where deleted_at is null;
create index job_triggers_event on job_triggers (tenant_id, event_name)
    where trigger_type = 'event' and is_enabled and deleted_at is null;
create index job_triggers_due on job_triggers (next_fire_at, id) where next_fire_at is not null;

-- One row for each event that a trigger heard and each time that it was due; due times that were passed over in a row share
-- one, from `fire_at` to `through`. `key` tells whose jobs share: equal payloads of an event trigger, all of a schedule.
create table trigger_firings (
    trigger_id uuid not null references job_triggers (id),
    id uuid not null,
    tenant_id uuid not null,
    cause text not null check (cause in ('event', 'schedule', 'manual')),
    signal_id bigint check ((signal_id is not null) = (cause = 'event')),
    fire_at timestamptz not null,
    through timestamptz not null,
    due_count integer not null default 1 check (due_count > 0),
    key text not null default '',
    status text not null check (status in ('started', 'joined', 'waiting', 'skipped', 'refused')),
    reason text check ((reason is not null) = (status = 'skipped')),
    error jsonb check ((error is not null) = (status = 'refused')),
    payload jsonb check ((payload is not null) = (status = 'waiting')),
    run_id uuid,
    waits_for uuid check ((waits_for is not null) = (status = 'waiting')),
    joined_to uuid,
    chain integer not null default 0,
    at timestamptz not null default now(),
    primary key (trigger_id, id),
    check (run_id is not null or status <> 'started')
);
create unique index trigger_firings_due on trigger_firings (trigger_id, fire_at) where cause = 'schedule';
create unique index trigger_firings_event on trigger_firings (trigger_id, signal_id) where cause = 'event';
create index trigger_firings_last on trigger_firings (trigger_id, key, id) where status = 'started';
create index trigger_firings_waiting on trigger_firings (trigger_id, key, fire_at, id) where status = 'waiting';
create index trigger_firings_joined on trigger_firings (joined_to) where joined_to is not null and run_id is null;
create index trigger_firings_age on trigger_firings (at)
"""

TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"


# The tick finds what is due, and the dispatcher who wants a signal, of all tenants; each is then dealt with as its tenant.
def policies(table: str, worker: str, api: str) -> str:
    return f"""
alter table {table} enable row level security;
alter table {table} force row level security;
create policy owner_all on {table} to baton_owner using (true) with check (true);
create policy worker_all on {table} to baton_worker using (true) with check (true);
create policy api_tenant on {table} to baton_api using ({TENANT}) with check ({TENANT});
grant {worker} on {table} to baton_worker;
grant {api} on {table} to baton_api
"""


TIMEZONE = f"""
create policy api_timezone on tenant for update to baton_api
    using ({TENANT.removeprefix("tenant_")}) with check ({TENANT.removeprefix("tenant_")});
grant update (timezone) on tenant to baton_api
"""


# The API runs a trigger on request, and passes on at once what an event starts.
def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(policies("job_triggers", "select, update", "select, insert, update"))
    run(policies("trigger_firings", "select, insert, update, delete", "select, insert"))
    run(TIMEZONE)
    run("reset role")
