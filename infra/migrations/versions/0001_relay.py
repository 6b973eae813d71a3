"""The relay: runs, lanes, steps, history, remote calls, gates, repairs, signals; the roles; row level security."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROLES = """
do $$
declare
    name text;
begin
    foreach name in array array['baton_owner', 'baton_worker', 'baton_api'] loop
        if not exists (select from pg_roles where rolname = name) then
            execute format('create role %I login nosuperuser nocreatedb nocreaterole', name);
        end if;
    end loop;
    if current_user <> 'baton_owner' then
        execute format('grant baton_owner to %I', current_user);
    end if;
end
$$;
grant usage, create on schema public to baton_owner;
grant usage on schema public to baton_worker, baton_api;
alter role baton_worker set statement_timeout = '60s';
alter role baton_worker set lock_timeout = '20s';
alter role baton_worker set idle_in_transaction_session_timeout = '60s';
alter role baton_api set statement_timeout = '25s';
alter role baton_api set lock_timeout = '10s';
alter role baton_api set idle_in_transaction_session_timeout = '30s'
"""

TABLES = """
create table run (
    id uuid primary key,
    tenant_id uuid not null,
    kind text not null,
    label text,
    status text not null check (status in ('queued', 'running', 'succeeded', 'failed', 'canceled')),
    outcome text,
    epoch integer not null default 1,
    params jsonb not null default '{}',
    correlation_id text,
    cancel_requested_at timestamptz,
    paused_at timestamptz,
    time_limit_s integer,
    deadline_at timestamptz,
    check_at timestamptz not null,
    error jsonb,
    source text,
    source_ref text,
    created_by text,
    created_at timestamptz not null default now(),
    started_at timestamptz,
    finished_at timestamptz,
    check ((status in ('succeeded', 'failed', 'canceled')) = (finished_at is not null)),
    check (paused_at is null or (finished_at is null and cancel_requested_at is null))
);
create index run_check on run (check_at, id) where status in ('queued', 'running');
create index run_finished on run (finished_at, id) where finished_at is not null;

-- The lane is its own outbox: it holds its one current baton (epoch, seq, resend_no, next_due_at).
-- claim and commit write columns that no index mentions (check_at only ever moves earlier there), so their updates are HOT.
create table lane (
    id uuid primary key,
    run_id uuid not null,
    tenant_id uuid not null,
    kind text not null,
    key text not null,
    holds_run boolean not null,
    status text not null default 'active' check (status in ('active', 'done', 'failed', 'canceled')),
    epoch integer not null default 1,
    seq bigint not null default 0,
    resend_no integer not null default 0,
    resends integer not null default 0,
    cursor jsonb not null,
    next_due_at timestamptz not null,
    sent_at timestamptz,
    check_at timestamptz not null,
    cancel_at timestamptz,
    time_limit_s integer,
    deadline_at timestamptz,
    steps bigint not null default 0,
    max_steps bigint not null,
    claims integer not null default 0,
    claim_token uuid,
    lease_until timestamptz,
    attempts integer not null default 0,
    last_error jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (run_id, key),
    check ((claim_token is null) = (lease_until is null)),
    check (status = 'active' or claim_token is null)
) with (fillfactor = 70);
create index lane_check on lane (check_at, id) where status = 'active';
create index lane_open on lane (run_id) where status = 'active' and holds_run;

create table step (
    lane_id uuid not null,
    epoch integer not null,
    seq bigint not null,
    tenant_id uuid not null,
    outcome text not null,
    rows integer not null default 0,
    ms integer not null default 0,
    at timestamptz not null default now(),
    primary key (lane_id, epoch, seq)
);
create index step_age on step using brin (at);

create table history (
    run_id uuid not null,
    n integer not null,
    tenant_id uuid not null,
    epoch integer not null,
    type text not null,
    data jsonb not null default '{}',
    at timestamptz not null default now(),
    primary key (run_id, n)
);
create unique index history_terminal on history (run_id, epoch) where type in ('succeeded', 'failed', 'canceled');

create table remote_call (
    run_id uuid not null,
    epoch integer not null,
    key text not null,
    tenant_id uuid not null,
    kind text not null,
    remote_id text,
    leaves_asset boolean not null,
    intended_at timestamptz not null default now(),
    confirmed_at timestamptz,
    cleaned_at timestamptz,
    detail jsonb not null default '{}',
    primary key (run_id, epoch, key)
);
create index remote_call_asset on remote_call (intended_at) where leaves_asset and cleaned_at is null;

create table gate (
    id bigint generated always as identity primary key,
    tenant_id uuid,
    key text not null,
    state text not null check (state in ('open', 'closed', 'probing')),
    until timestamptz not null,
    holder uuid,
    reason text,
    updated_at timestamptz not null default now(),
    check ((state = 'probing') = (holder is not null))
);
create unique index gate_key on gate (key, coalesce(tenant_id, '00000000-0000-0000-0000-000000000000'));

create table repair (
    id bigint generated always as identity primary key,
    lane_id uuid not null,
    tenant_id uuid not null,
    why text not null,
    at timestamptz not null default now()
);
create index repair_lane on repair (lane_id);
create index repair_age on repair using brin (at);

create table signal (
    id bigint generated always as identity primary key,
    tenant_id uuid not null,
    name text not null,
    payload jsonb not null,
    at timestamptz not null default now(),
    dispatched_at timestamptz
);
create index signal_waiting on signal (id) where dispatched_at is null;
create index signal_age on signal using brin (at)
"""

# The worker finds rows of all tenants only in these tables; on every other table it is bound to the tenant of its turn.
# A later migration that adds to this list says why; tests/integration/test_row_level_security.py holds the same list.
KERNEL_TABLES = ("run", "lane", "step", "history", "remote_call", "gate", "repair", "signal")

# A bare cast raises on a connection where an earlier transaction set the variable: it is then '' and not null.
TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"


def policies(table: str) -> str:
    readable = f"({TENANT} or tenant_id is null)" if table == "gate" else TENANT
    return f"""
alter table {table} enable row level security;
alter table {table} force row level security;
create policy owner_all on {table} to baton_owner using (true) with check (true);
create policy worker_all on {table} to baton_worker using (true) with check (true);
create policy api_reads on {table} for select to baton_api using ({readable});
create policy api_writes on {table} to baton_api using ({TENANT}) with check ({TENANT});
grant select, insert, update, delete on {table} to baton_worker;
grant select on {table} to baton_api
"""


GRANTS = """
grant insert, update on run, lane to baton_api;
grant insert on history, signal to baton_api
"""


def run_sql(script: str) -> None:
    op.get_bind().exec_driver_sql(script)


def upgrade() -> None:
    run_sql(ROLES)
    run_sql("set local role baton_owner")
    run_sql(TABLES)
    for table in KERNEL_TABLES:
        run_sql(policies(table))
    run_sql(GRANTS)
    run_sql("reset role")
