"""Remote queries: what is in the remote system and nobody knows. Gates: whether a tenant has any that is not open."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0040"
down_revision = "0038"
branch_labels = None
depends_on = None

# Most of the time no gate is closed, and then a claim finds that out here, for a page read from a nearly empty index.
GATES = "create index gate_shut on gate (tenant_id) where state <> 'open'"

TABLES = """
-- When an account was last looked through for things with our prefix.
create table query_look (
    tenant_id uuid not null,
    account text not null,
    looked_at timestamptz not null,
    primary key (tenant_id, account)
);

-- What was found there and belongs to no run: listed, never removed. Another deployment or tenant may use the same account.
create table query_stray (
    tenant_id uuid not null,
    account text not null,
    kind text not null check (kind in ('data_extension', 'query_definition')),
    key text not null,
    first_seen_at timestamptz not null,
    last_seen_at timestamptz not null,
    primary key (tenant_id, account, kind, key)
)
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(GATES)
    run(TABLES)
    run(tenant_table("query_look"))
    run(tenant_table("query_stray", api="select"))
    run("reset role")
