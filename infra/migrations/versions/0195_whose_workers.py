"""Whose a worker is: one that came through the API is its tenant's, and nobody else's API sees it. Others are everybody's.

The release before writes rows without a tenant's id: the default says whose they are. Those that are there come again with
their next claim, a second later.
"""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import TENANT

revision = "0195"
down_revision = "0170"
branch_labels = None
depends_on = None

WHOSE = f"""
delete from job_workers where worker_id ~ '^(token|user):';
alter table job_workers add column tenant_id uuid default nullif(current_setting('app.tenant', true), '')::uuid;
alter table job_workers enable row level security;
alter table job_workers force row level security;
create policy owner_all on job_workers to baton_owner using (true) with check (true);
create policy worker_all on job_workers to baton_worker using (true) with check (true);
create policy tenant_or_nobody on job_workers for select to baton_api using ({TENANT} or tenant_id is null);
create policy tenant_adds on job_workers for insert to baton_api with check ({TENANT});
create policy tenant_changes on job_workers for update to baton_api using ({TENANT}) with check ({TENANT});

create function workers_everywhere(asked text) returns setof job_workers
    language sql stable security definer set search_path = pg_catalog, public, pg_temp
    as $$
select * from public.job_workers where exists (select from public.super_admin where subject = asked)
order by last_seen_at desc limit 500
$$;
revoke all on function workers_everywhere(text) from public;
grant execute on function workers_everywhere(text) to baton_api
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(WHOSE)
    run("reset role")
