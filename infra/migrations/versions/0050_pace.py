"""The pace at which an account's domain is asked: one row that all functions share, turns between tenants, and every decision."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import TENANT

revision = "0050"
down_revision = "0040"
branch_labels = None
depends_on = None

# Written many times a second and never grown: half of each page is left free, so that updates stay where they are.
# `tenant_id` is whose account it is; an account that all tenants share belongs to the id of nobody, all zeros.
TABLES = """
create table pace (
    tenant_id uuid not null,
    account text not null,
    domain text not null,
    rate double precision not null check (rate > 0),
    law jsonb,
    window_no bigint not null default 1,
    opened_at timestamptz not null default now(),
    sent integer not null default 0,
    ok integer not null default 0,
    throttled integer not null default 0,
    failed integer not null default 0,
    slow integer not null default 0,
    late_ok integer not null default 0,
    ln1 double precision not null default 0,
    ln2 double precision not null default 0,
    retry_after_s double precision not null default 0,
    next_slot_at timestamptz not null default now(),
    granted integer not null default 0,
    closed boolean not null default false,
    closed_until timestamptz not null default now(),
    prober uuid,
    trips integer not null default 0,
    primary key (tenant_id, account, domain)
) with (fillfactor = 50);

-- How many slots each tenant took of an account that all share; it decides whose turn it is, and nothing else.
create table pace_share (
    tenant_id uuid not null,
    account text not null,
    domain text not null,
    taker_id uuid not null,
    used double precision not null default 0,
    until timestamptz not null default now(),
    primary key (tenant_id, account, domain, taker_id)
) with (fillfactor = 50);

create table pace_decision (
    tenant_id uuid not null,
    account text not null,
    domain text not null,
    window_no bigint not null,
    at timestamptz not null default now(),
    rate_before double precision not null,
    rate_after double precision not null,
    reason text not null,
    seen jsonb not null,
    primary key (tenant_id, account, domain, window_no)
);
create index pace_decision_age on pace_decision (at)
"""

OWN_OR_SHARED = f"({TENANT} or tenant_id = '00000000-0000-0000-0000-000000000000')"


def policies(table: str, *, worker: str, api: str) -> str:
    return f"""
alter table {table} enable row level security;
alter table {table} force row level security;
create policy owner_all on {table} to baton_owner using (true) with check (true);
create policy own_or_shared on {table} to baton_worker using ({OWN_OR_SHARED}) with check ({OWN_OR_SHARED});
create policy tenant_only on {table} for select to baton_api using ({TENANT});
grant {worker} on {table} to baton_worker;
{api}"""


# The sweep removes old decisions of everybody, by their age.
PRUNED = """
create policy sweep_all on pace_decision for delete to baton_worker using (true);
create policy sweep_sees on pace_decision for select to baton_worker using (true)
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(policies("pace", worker="select, insert, update", api="grant select on pace to baton_api"))
    run(policies("pace_share", worker="select, insert, update", api=""))
    run(policies("pace_decision", worker="select, insert, delete", api="grant select on pace_decision to baton_api"))
    run(PRUNED)
    run("reset role")
