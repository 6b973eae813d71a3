"""What failed before 0150 gets its cause: in a revision of its own, because altering a table locks everybody out until the commit."""

from __future__ import annotations

from alembic import op

revision = "0200"
down_revision = "0199"
branch_labels = None
depends_on = None

FILL = """
update run set cause = coalesce(error #>> '{cause,fingerprint}', error ->> 'fingerprint')
where status = 'failed' and cause is null
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(FILL)
    run("reset role")
