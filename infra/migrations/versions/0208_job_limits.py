"""How many jobs of a tenant may run at once is set by a super admin, through the API."""

from __future__ import annotations

from alembic import op

revision = "0208"
down_revision = "0207"
branch_labels = None
depends_on = None

# The cap protects other tenants, so no policy lets the API write it: the database asks itself whether a super admin asks. The lock
# is that of a take within a cap: a list that is counted anew must not lose what such a take is adding to it.
PUT_LIMIT = """
create function put_job_limit(asked text, most integer) returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, public, pg_temp
    as $$
declare
    t uuid := nullif(current_setting('app.tenant', true), '')::uuid;
begin
    if t is null or not exists (select from public.super_admin where subject = asked) then
        return false;
    end if;
    perform pg_advisory_xact_lock(hashtextextended(t::text, 1));
    insert into public.pull_tenant (tenant_id, most_running) values (t, most)
    on conflict (tenant_id) do update set most_running = excluded.most_running, running = null;
    return true;
end
$$;
revoke all on function put_job_limit(text, integer) from public;
grant execute on function put_job_limit(text, integer) to baton_api
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(PUT_LIMIT)
    run("reset role")
