"""The notes of example_kind."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Not unique by (run_id, n): a step that was committed twice must show, and the proof looks for it.
TABLES = """
create table example_kind_note (
    tenant_id uuid not null,
    run_id uuid not null,
    n integer not null,
    body text not null,
    at timestamptz not null default now()
);
create index example_kind_note_of_run on example_kind_note (run_id, n)
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(tenant_table("example_kind_note", worker="select, insert, delete", api="select"))
    run("reset role")
