"""What a lane waits for, in the words of the step that made it wait."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run("alter table lane add column waits_for text")
    run("reset role")
