"""Workers without a database: they take the jobs of their own tenant, through the API."""

from __future__ import annotations

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

SIGNATURE = "text, integer, uuid, interval, text"
RETURNS = """table (lane_id uuid, run_id uuid, tenant_id uuid, kind text, key text, holds_run boolean, epoch integer,
                   seq bigint, resend_no integer, cursor jsonb, claims integer, attempts integer, steps bigint,
                   max_steps bigint, cancel_at timestamptz, deadline_at timestamptz, run_status text, run_epoch integer,
                   params jsonb, correlation_id text, queued_at timestamptz, now timestamptz)"""

OWN = f"""
create function take_own_offers(p_queue text, p_most integer, p_token uuid, p_lease interval, p_worker text)
    returns {RETURNS}
    language sql volatile security definer set search_path = pg_catalog, public
    as $$
select * from public.take_offers(p_queue, p_most, p_token, p_lease, p_worker,
                                 nullif(current_setting('app.tenant', true), '')::uuid)
where nullif(current_setting('app.tenant', true), '') is not null
$$;
revoke all on function take_own_offers({SIGNATURE}) from public;
grant execute on function take_own_offers({SIGNATURE}) to baton_api;
grant insert on step to baton_api;
grant insert, update on job_attempts, job_workers to baton_api
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(OWN)
    run("reset role")
