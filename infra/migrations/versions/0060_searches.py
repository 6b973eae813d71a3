"""Saved searches: the registry, the state of each query, executions, offers and companies, what was quarantined, cycles."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0060"
down_revision = "0051"
branch_labels = None
depends_on = None

TABLES = """
-- What a person saved. Other parameters are another query: it gets a state of its own, with a clean history.
create table saved_search (
    id uuid primary key,
    tenant_id uuid not null,
    name text not null,
    client text not null,
    connection uuid not null,
    params jsonb not null,
    query_key text not null,
    max_pages integer not null check (max_pages between 1 and 1000),
    max_offers integer not null check (max_offers between 1 and 100000),
    every_s integer not null check (every_s between 3600 and 2678400),
    fresh_within_s integer not null,
    seed_floor timestamptz not null,
    paused_at timestamptz,
    created_by text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (tenant_id, query_key),
    unique (tenant_id, name)
);

-- `covered`: what was read to its end. The watermark, the floor and the place of seeding are three things, not one.
-- `next_due_at`: when the head is due; `history_due_at`: when history or a backfill is; null: nothing is left of it.
-- `resume`: by purpose, the windows that were not read to their end, and where they go on; and about on which page the
-- next window of history begins.
create table query_state (
    tenant_id uuid not null,
    query_key text not null,
    search_id uuid not null,
    client text not null,
    account text not null,
    zone text not null,
    active boolean not null default true,
    status text not null default 'IDLE' check (status in ('IDLE', 'RUNNING', 'SUCCESS', 'ERROR')),
    last_run_at timestamptz,
    last_success_at timestamptz,
    last_error_at timestamptz,
    last_processed_date date generated always as ((seed_cursor at time zone zone)::date) stored,
    consecutive_failures integer not null default 0,
    covered tstzmultirange not null default '{}',
    high_watermark timestamptz,
    seed_floor timestamptz not null,
    seed_cursor timestamptz,
    next_due_at timestamptz not null default now(),
    history_due_at timestamptz,
    fresh_at timestamptz not null,
    resume jsonb not null default '{}',
    problem jsonb,
    metadata jsonb not null default '{}',
    primary key (tenant_id, query_key)
);
create index query_state_oldest on query_state (tenant_id, last_success_at nulls first, query_key) where active;
create index query_state_due on query_state (tenant_id, next_due_at) where active;
create index query_state_history on query_state (tenant_id, last_success_at nulls first, query_key)
    where active and history_due_at is not null;
create index query_state_fresh on query_state (tenant_id, fresh_at) where active;
create index query_state_search on query_state (tenant_id, search_id);

create table search_backfill (
    id uuid primary key,
    tenant_id uuid not null,
    search_id uuid not null,
    query_key text not null,
    lo timestamptz not null,
    hi timestamptz not null,
    resume jsonb,
    created_by text,
    created_at timestamptz not null default now(),
    finished_at timestamptz,
    check (lo < hi)
);
create index search_backfill_open on search_backfill (tenant_id, query_key, created_at) where finished_at is null;
create index search_backfill_search on search_backfill (tenant_id, search_id, created_at);

-- One row per execution of one window. `run_id`: the cycle it was part of.
create table ingestion_runs (
    id uuid primary key,
    tenant_id uuid not null,
    run_id uuid not null,
    search_id uuid not null,
    query_key text not null,
    client text not null,
    purpose text not null check (purpose in ('head', 'seed', 'backfill')),
    window_from timestamptz not null,
    window_to timestamptz not null,
    status text not null default 'running' check (status in ('running', 'success', 'failure', 'stopped')),
    stop_reason text check (stop_reason in ('window_exhausted', 'rate_limited', 'cap', 'error', 'canceled')),
    started_at timestamptz not null default now(),
    finished_at timestamptz,
    pages_fetched integer not null default 0,
    offers_fetched integer not null default 0,
    requests_count integer not null default 0,
    http_429_count integer not null default 0,
    errors_count integer not null default 0,
    companies_aggregated integer not null default 0,
    companies_failed integer not null default 0,
    problem jsonb,
    check ((finished_at is null) = (stop_reason is null)),
    unique (run_id, query_key, purpose)
);
create index ingestion_runs_of_search on ingestion_runs (tenant_id, search_id, started_at, id);

create table companies (
    tenant_id uuid not null,
    id uuid not null,
    client text not null,
    external_id text not null,
    name text not null,
    link text,
    open_offers integer not null default 0,
    first_seen_at timestamptz not null default now(),
    last_seen_at timestamptz not null default now(),
    dirty boolean not null default true,
    aggregation_failed_at timestamptz,
    primary key (tenant_id, id)
);
create index companies_dirty on companies (tenant_id, id) where dirty;
create index companies_listed on companies (tenant_id, first_seen_at, id);

-- `fingerprint`: the same company, title and place; the later ones of those are reposts of the first.
create table offers (
    tenant_id uuid not null,
    client text not null,
    external_id text not null,
    company_id uuid,
    title text not null,
    location text,
    link text,
    salary text,
    published_at timestamptz,
    updated_at timestamptz not null,
    fingerprint text not null,
    repost_of text,
    found_by text[] not null,
    hash text not null,
    payload jsonb not null,
    first_seen_at timestamptz not null default now(),
    seen_at timestamptz not null default now(),
    primary key (tenant_id, client, external_id)
);
create index offers_of_company on offers (tenant_id, company_id, fingerprint);
create index offers_listed on offers (tenant_id, updated_at, external_id);
create index offers_found on offers using gin (found_by);

-- Records that were no offers as we know them. A window is clean when none of its records is open here.
create table search_quarantine (
    id uuid primary key,
    tenant_id uuid not null,
    client text not null,
    key text not null,
    search_id uuid not null,
    query_key text not null,
    window_from timestamptz not null,
    window_to timestamptz not null,
    problem text not null,
    payload jsonb not null,
    times integer not null default 1,
    first_seen_at timestamptz not null default now(),
    seen_at timestamptz not null default now(),
    replay_at timestamptz,
    resolved_at timestamptz,
    resolution text check (resolution in ('replayed', 'accepted', 'read')),
    check ((resolved_at is null) = (resolution is null)),
    unique (tenant_id, client, key, query_key)
);
create index search_quarantine_open on search_quarantine (tenant_id, search_id, first_seen_at, id) where resolved_at is null;
create index search_quarantine_replay on search_quarantine (tenant_id, replay_at) where replay_at is not null;

-- Only one cycle of a tenant at a time: the index is the lock.
create table search_cycle (
    run_id uuid primary key,
    tenant_id uuid not null,
    started_at timestamptz not null default now(),
    begins_at timestamptz not null default now(),
    ended_at timestamptz
);
create unique index search_cycle_open on search_cycle (tenant_id) where ended_at is null;
create index search_cycle_latest on search_cycle (tenant_id, begins_at);
"""

# Whoever writes it: a state that does not follow from the one before is refused.
TRANSITIONS = """
create function check_query_state() returns trigger language plpgsql as $$
begin
    if new.status <> old.status and not (
        (old.status in ('IDLE', 'SUCCESS', 'ERROR') and new.status = 'RUNNING')
        or (old.status = 'RUNNING' and new.status in ('IDLE', 'SUCCESS', 'ERROR'))) then
        raise exception using message = format('a query that is %s cannot become %s', old.status, new.status), errcode = 'check_violation';
    end if;
    if new.high_watermark < old.high_watermark then
        raise exception 'a watermark never goes back' using errcode = 'check_violation';
    end if;
    return new;
end
$$;
create trigger query_state_transitions before update on query_state for each row execute function check_query_state()
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(TRANSITIONS)
    run(tenant_table("saved_search", worker="select", api="select, insert, update, delete"))
    run(tenant_table("query_state", api="select, insert, update"))
    run(tenant_table("search_backfill", worker="select, update", api="select, insert"))
    run(tenant_table("ingestion_runs", api="select, update"))
    run(tenant_table("companies", api="select"))
    run(tenant_table("offers", api="select"))
    run(tenant_table("search_quarantine", api="select, update"))
    run(tenant_table("search_cycle", api="select, insert, update"))
    run("reset role")
