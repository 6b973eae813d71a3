"""Plans of the worker that stay right while tables grow.

A kept plan was made when its tables were small. Then it costs the same to read all rows of a tenant by an index as to find one by its
key, and the planner may take the first: among many rows that one is a disaster. So the tenant of a policy is no reason to choose an
index.
"""

from __future__ import annotations

from alembic import op

revision = "0209"
down_revision = "0208"
branch_labels = None
depends_on = None

POLICIES = """
do $$
declare
    tenant constant text := '(tenant_id = ( SELECT (NULLIF(current_setting(''app.tenant''::text, true), ''''::text))::uuid AS "nullif"))';
    p record;
begin
    for p in select * from pg_policies where schemaname = 'public' and 'baton_worker' = any(roles) and qual = tenant loop
        if p.roles = array['baton_worker']::name[] then
            execute format('alter policy %I on %I using (%s is true)', p.policyname, p.tablename, tenant);
        else
            execute format('alter policy %I on %I to baton_api', p.policyname, p.tablename);
            execute format('create policy worker_tenant on %I to baton_worker using (%s is true) with check %s', p.tablename, tenant, tenant);
        end if;
    end loop;
end
$$
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(POLICIES)
    run("reset role")
