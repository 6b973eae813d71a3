"""A row's answers "not found" are counted apart from its errors, and its place among the ways to look for it is kept."""

from __future__ import annotations

from alembic import op

revision = "0203"
down_revision = "0202"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(
        "alter table job_items add column misses integer not null default 0, add column turned integer not null default 0"
    )
    run("reset role")
