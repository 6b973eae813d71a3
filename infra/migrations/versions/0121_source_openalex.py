"""Source openalex: its tables.

Written by `baton source migration` from sha256:57c4ecbe75426988f18c2f94ed192fe253a22787fd80dbffbb1e8bad0eae7fc1.
"""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0121"
down_revision = "0120"
branch_labels = None
depends_on = None

TABLES = """
create table openalex_works (
    tenant_id uuid not null,
    connection text not null,
    source_key text collate "C" not null,
    "title" text,
    "published" date,
    "cited_by" bigint,
    rest jsonb not null,
    hash text not null,
    run_id uuid not null,
    partition text not null,
    page bigint not null,
    said_by uuid not null,
    said_at timestamptz not null,
    missed_by uuid,
    gone_at timestamptz,
    primary key (tenant_id, connection, source_key)
);
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(tenant_table("openalex_works", worker="select, insert, update", api="select"))
    run("reset role")
