"""What a sheet said of a company before somebody said something else over the API: its old word is no news the next night.

Only the release before reads it; 0197 keeps the same for each sheet. To be dropped with the next contraction.
"""

from __future__ import annotations

from alembic import op

revision = "0196"
down_revision = "0195"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run("alter table company_feedback add column in_sheet text")
    run("reset role")
