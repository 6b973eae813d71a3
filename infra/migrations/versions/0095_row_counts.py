"""How many rows of a job are in which state, as they were counted last: whoever asks need not count millions."""

from __future__ import annotations

from alembic import op

revision = "0095"
down_revision = "0091"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run("alter table file_jobs add column counts jsonb")
    run("reset role")
