"""The nightly sheet: which sheets there are, one row for each night, where each company stands, and what readers say of it."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0101"
down_revision = "0098"
branch_labels = None
depends_on = None

TABLES = """
create table search_sheet (
    id uuid primary key,
    tenant_id uuid not null,
    connection uuid not null,
    tab text not null,
    zone text not null,
    opens time not null,
    closes time not null,
    active boolean not null default true,
    created_by text,
    created_at timestamptz not null default now(),
    unique (tenant_id, connection, tab)
);

-- One sync of a sheet in one night: the key is the lock.
create table sheet_night (
    tenant_id uuid not null,
    sheet_id uuid not null,
    night date not null,
    run_id uuid not null,
    opens_at timestamptz not null,
    closes_at timestamptz not null,
    status text not null default 'waiting' check (status in ('waiting', 'running', 'synced', 'failed', 'missed', 'canceled')),
    rows_written integer not null default 0,
    rows_cleared integer not null default 0,
    feedback_read integer not null default 0,
    feedback_ignored integer not null default 0,
    problem jsonb,
    started_at timestamptz,
    finished_at timestamptz,
    primary key (tenant_id, sheet_id, night),
    check ((finished_at is null) = (status in ('waiting', 'running'))),
    check (opens_at < closes_at)
);
create unique index sheet_night_of_run on sheet_night (run_id);

-- Where each company stands in the sheet, as the last sync read and planned it. `company_id` is null: somebody else's row.
-- `gone`: the row is to be emptied.
create table sheet_row (
    tenant_id uuid not null,
    sheet_id uuid not null,
    row_no integer not null,
    company_id uuid,
    gone boolean not null default false,
    primary key (tenant_id, sheet_id, row_no)
);
create unique index sheet_row_company on sheet_row (tenant_id, sheet_id, company_id) where not gone;

create table company_feedback (
    tenant_id uuid not null,
    company_id uuid not null,
    feedback text not null check (feedback in ('relevant', 'irrelevant', 'blocked')),
    said_by text not null,
    said_at timestamptz not null default now(),
    primary key (tenant_id, company_id)
);
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(tenant_table("search_sheet", worker="select", api="select, insert, update"))
    run(tenant_table("sheet_night", api="select, insert, update"))
    run(tenant_table("sheet_row"))
    run(tenant_table("company_feedback", api="select, insert, update, delete"))
    run("reset role")
