"""Folder sync: where each folder's listing is, and what is in it."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None

TABLES = """
-- `cursor`: where the provider goes on; null: from the beginning. `listing`: everything is being listed, and what is of an
-- older generation when that ends is not there any more. `run_id`: who reads it now.
create table folder (
    tenant_id uuid not null,
    connection uuid not null,
    path text not null,
    cursor text,
    generation integer not null default 1,
    listing boolean not null default true,
    run_id uuid,
    synced_at timestamptz,
    primary key (tenant_id, connection, path)
);
create index folder_of_run on folder (run_id) where run_id is not null;

create table folder_entry (
    tenant_id uuid not null,
    connection uuid not null,
    path text not null,
    name text not null,
    is_folder boolean not null,
    file_id text,
    rev text,
    size bigint,
    hash text,
    generation integer not null,
    seen_at timestamptz not null default now(),
    primary key (tenant_id, connection, path, name)
);
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(tenant_table("folder", api="select, insert, update"))
    run(tenant_table("folder_entry", api="select"))
    run("reset role")
