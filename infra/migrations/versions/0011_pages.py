"""Tokens move into a table of the kernel; an account's page size grows back; a stone is gone after two complete runs."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TABLES = """
-- One token per account of a tenant, and who is fetching the next one. Never readable through the API.
create table account_token (
    tenant_id uuid not null,
    account text not null,
    token text,
    extra jsonb,
    token_until timestamptz,
    refresher uuid,
    refresh_until timestamptz,
    primary key (tenant_id, account)
);

-- Tokens are simply fetched again; their old columns stay for one release, because steps of the code before this still run
-- while it is deployed. `page_size` holds until `page_size_until`, then doubles every `page_size_hold_s`.
alter table upstream add column page_size_hold_s integer not null default 300;
update upstream set token = null, token_until = null;

-- The last complete run that looked at the stone's price and did not see it: the first of the two witnesses it takes.
alter table diamond add column missed_by uuid
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(tenant_table("account_token"))
    run("reset role")
