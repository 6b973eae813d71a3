"""Files that scans have seen, and the uploads that they became."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0098"
down_revision = "0095"
branch_labels = None
depends_on = None

# `first_run`: the scan that first saw the file as it is now. `file_id`: the upload that it became.
TABLE = """
create table scanned_files (
    tenant_id uuid not null,
    source text not null,
    name text not null,
    size bigint not null,
    stamp text not null,
    first_run uuid not null,
    seen_at timestamptz not null,
    file_id uuid,
    primary key (tenant_id, source, name)
);
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLE + tenant_table("scanned_files"))
    run("grant insert on files to baton_worker")
    run("reset role")
