"""What a deployment needs: signals by events from outside, a sign of life of the scheduled functions, and its health."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SCHEMA = """
-- Which event a signal came from, so that the same event twice is one signal; a signal from inside has none.
alter table signal add column event_id uuid;
create unique index signal_event on signal (event_id);

-- When each scheduled function last came to its end. It knows no tenant.
create table beat (
    name text primary key,
    at timestamptz not null
);
grant select, insert, update on beat to baton_worker;
grant select on beat to baton_api
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("grant select on public.alembic_version to baton_worker, baton_api")  # its owner is who migrates
    run("set local role baton_owner")
    run(SCHEMA)
    run("reset role")
