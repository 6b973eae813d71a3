"""Failures by cause: what each run failed of, and causes that are known and muted."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0150"
down_revision = "0140"
branch_labels = None
depends_on = None

TABLES = """
create table failure_mute (
    tenant_id uuid not null,
    kind text not null,
    fingerprint text not null,
    reason text not null,
    muted_by text not null,
    muted_at timestamptz not null default now(),
    until timestamptz not null,
    primary key (tenant_id, kind, fingerprint)
);
-- The fingerprint of what a run failed of: of the lane that it failed of, else its own. A column, because under row level
-- security no index on an expression of JSON is used; kept by triggers, because adding a generated one rewrites the table
-- while nobody can read it.
alter table run add column cause text;
create function cause_of_run() returns trigger language plpgsql as $$
begin
    new.cause := coalesce(new.error #>> '{cause,fingerprint}', new.error ->> 'fingerprint');
    return new;
end $$;
create trigger run_cause_first before insert on run for each row when (new.error is not null)
    execute function cause_of_run();
create trigger run_cause before update of error on run for each row when (new.error is distinct from old.error)
    execute function cause_of_run();
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(tenant_table("failure_mute", worker="", api="select, insert, update, delete"))
    run("reset role")
