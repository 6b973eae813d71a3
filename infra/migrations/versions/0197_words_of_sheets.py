"""What each sheet's cell said of a company when it was last read: its old word is no news, whoever said something else since.

`feedback` may be null: somebody took it back, and a cell that still says it is no news either.
"""

from __future__ import annotations

from alembic import op

revision = "0197"
down_revision = "0196"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(
        "alter table company_feedback add column heard jsonb not null default '{}', alter column feedback drop not null"
    )
    run("reset role")
