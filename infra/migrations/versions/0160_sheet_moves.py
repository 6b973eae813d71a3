"""Rows of a sheet that a sync has given to a company, beside those in which it found one."""

from __future__ import annotations

from alembic import op

revision = "0160"
down_revision = "0151"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run("alter table sheet_row add column placed boolean not null default false")
    run("reset role")
