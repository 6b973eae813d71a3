"""The list of open rows has better indexes by now."""

from __future__ import annotations

from alembic import op

revision = "0113"
down_revision = "0112"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run("drop index job_items_pending")
    run("reset role")
