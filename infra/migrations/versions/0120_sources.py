"""Sources: the rows of a run before they are moved into their tables, the quarantine, and how far each list was read."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0120"
down_revision = "0113"
branch_labels = None
depends_on = None

TABLES = """
-- What a run has seen. `state`: row, kept_out (by the file's `keep`), gone (as the row itself says), quarantined. `cols` are
-- the values of the file's columns. A row says which walk saw it last: partition and page.
create table source_raw (
    run_id uuid not null,
    resource text not null,
    key text collate "C" not null,
    tenant_id uuid not null,
    partition text not null,
    page bigint not null,
    state text not null check (state in ('row', 'kept_out', 'gone', 'quarantined')),
    hash text not null,
    payload jsonb not null,
    cols jsonb not null,
    seen_at timestamptz not null,
    primary key (run_id, resource, key)
);
create index source_raw_walk on source_raw (run_id, partition);

-- Rows that do not fit their columns, each once, as it came last. They leave when they fit, or with their run.
create table source_quarantine (
    id bigint generated always as identity primary key,
    tenant_id uuid not null,
    source text not null,
    connection text not null,
    resource text not null,
    key text collate "C" not null,
    run_id uuid not null,
    partition text not null,
    page bigint not null,
    why text not null,
    payload jsonb not null,
    at timestamptz not null,
    unique (tenant_id, source, connection, resource, key)
);
create index source_quarantine_run on source_quarantine (run_id);

-- Up to when every change of a list was read. `part`: the parent's key, or nothing. Another scope (file, settings) is another list.
create table source_mark (
    tenant_id uuid not null,
    source text not null,
    connection text not null,
    resource text not null,
    part text collate "C" not null,
    scope text not null,
    through timestamptz not null,
    run_id uuid not null,
    primary key (tenant_id, source, connection, resource, part)
);
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(tenant_table("source_raw", api="select"))
    run(tenant_table("source_quarantine", api="select"))
    run(tenant_table("source_mark", api="select"))
    # A refresh token that its upstream has changed is kept as a new version of the connection's secret.
    run("grant update (secret_ref, updated_at) on connection to baton_worker")
    run("reset role")
