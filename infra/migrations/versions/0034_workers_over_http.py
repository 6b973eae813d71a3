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

# A take for one tenant alone asks no other and leaves the hand where it is: the turns of the others are not touched.
CHANGES = (
    ("p_worker text)", "p_worker text, p_tenant uuid DEFAULT NULL::uuid)"),
    (
        "            select l.tenant_id into t\n",
        ("            if p_tenant is not null then\n"
        "                t := case when wrapped then null else p_tenant end;\n"
        "                wrapped := true;\n"
        "            else\n"
        "            select l.tenant_id into t\n"),
    ),
    ("            order by 1 limit 1;\n            if t is null", "            order by 1 limit 1;\n            end if;\n            if t is null"),
    ("    began := hand;\n", "    began := case when p_tenant is null then hand else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end;\n"),
    ("        if last_served <> began then\n", "        if p_tenant is null and last_served <> began then\n"),
)  # fmt: skip

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
    text = run(f"select pg_get_functiondef('take_offers({SIGNATURE})'::regprocedure)").scalar_one()
    for old, new in CHANGES:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    run(f"drop function take_offers({SIGNATURE})")
    run(text)
    run(f"revoke all on function take_offers({SIGNATURE}, uuid) from public")
    run(f"grant execute on function take_offers({SIGNATURE}, uuid) to baton_worker")
    run(OWN)
    run("reset role")
