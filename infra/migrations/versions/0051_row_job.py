"""Row jobs: files, what a job knows of its file, its items, and one row per call to a provider."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import TENANT

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None

TABLES = """
-- A place that was given out for one upload. The key is ours; nobody outside names one.
create table files (
    id uuid primary key,
    tenant_id uuid not null,
    name text not null,
    size bigint,
    version_id text,
    etag text,
    options jsonb not null default '{}',
    hold boolean not null default false,
    created_by text,
    ip_address inet,
    created_at timestamptz not null default now(),
    arrived_at timestamptz
);
create index files_of_tenant on files (tenant_id, created_at);

-- What a run keeps of its file. `read_bytes` and `read_rows` move with the very statement that writes the rows.
create table file_jobs (
    run_id uuid primary key,
    tenant_id uuid not null,
    file_id uuid not null unique references files (id),
    user_id text,
    ip_address inet,
    job_type text not null,
    slots smallint not null,
    dialect jsonb,
    columns jsonb,
    read_bytes bigint not null default 0,
    read_rows bigint not null default 0,
    batch_rows integer,
    read_at timestamptz,
    process_upto bigint,
    total_items bigint,
    processed_items bigint,
    failed_items bigint,
    counted_at timestamptz,
    deleted_at timestamptz,
    created_at timestamptz not null default now(),
    unique (run_id, tenant_id)
);
create index file_jobs_of_user on file_jobs (tenant_id, user_id, created_at);

-- `slot` is the lane that owns the row, so that two lanes never meet in one. A row's tenant is its job's: the key says so.
create table job_items (
    run_id uuid not null,
    row_no bigint not null,
    tenant_id uuid not null,
    user_id text,
    job_type text not null,
    slot smallint not null,
    status text not null check (status in ('PENDING', 'PROCESSING', 'DONE', 'ERROR', 'NOT_FOUND', 'SKIPPED')),
    input_json jsonb not null,
    normalized_json jsonb,
    result_json jsonb,
    price numeric,
    attempts integer not null default 0,
    last_error text,
    permanent boolean not null default false,
    due_at timestamptz not null,
    locked_by uuid,
    locked_at timestamptz,
    updated_at timestamptz not null,
    primary key (run_id, row_no),
    foreign key (run_id, tenant_id) references file_jobs (run_id, tenant_id)
) with (fillfactor = 80);
-- What a lane takes next. Rows that end leave it.
create index job_items_open on job_items (run_id, slot, due_at, row_no) where status in ('PENDING', 'PROCESSING');
-- Lists by job, and what is open of a person.
create index job_items_by_status on job_items (run_id, status, updated_at, row_no);
create index job_items_pending on job_items (tenant_id, user_id, updated_at, run_id, row_no)
    where status in ('PENDING', 'PROCESSING');

create table search_events (
    run_id uuid not null,
    tenant_id uuid not null,
    row_no bigint not null,
    attempt integer not null,
    strategy text not null,
    domain text not null,
    status text not null,
    ms integer not null,
    at timestamptz not null
);
create index search_events_of_item on search_events (run_id, row_no, attempt)
"""

OWNER = "(select nullif(current_setting('app.owner', true), ''))"


def walls(table: str, mine: str, worker: str, api: str) -> str:
    """Beside the tenant, somebody who sees only his own sees only the rows of his runs, or what he created."""
    return f"""
alter table {table} enable row level security;
alter table {table} force row level security;
create policy owner_all on {table} to baton_owner using (true) with check (true);
create policy tenant_only on {table} to baton_worker using ({TENANT}) with check ({TENANT});
create policy tenant_only_api on {table} to baton_api using ({TENANT}) with check ({TENANT});
create policy of_visible_runs on {table} as restrictive to baton_api using ({OWNER} is null or {mine});
grant {worker} on {table} to baton_worker;
grant {api} on {table} to baton_api;
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(walls("files", f"created_by = {OWNER}", "select, update, delete", "select, insert, update"))
    run(walls("file_jobs", f"user_id = {OWNER}", "select, insert, update, delete", "select, insert, update"))
    run(walls("job_items", "owns_run(run_id)", "select, insert, update, delete", "select, update"))
    run(walls("search_events", "owns_run(run_id)", "select, insert, delete", "select"))
    run("reset role")
