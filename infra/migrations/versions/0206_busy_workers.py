"""How much workers have in hand is counted by what they took, and one that came through the API can sign off."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import TENANT

revision = "0206"
down_revision = "0205"
branch_labels = None
depends_on = None

WORKERS = f"""
create policy tenant_forgets on job_workers for delete to baton_api using ({TENANT});
grant delete on job_workers to baton_api;

create or replace function workers_everywhere(asked text) returns setof job_workers
    language sql stable security definer set search_path = pg_catalog, public, pg_temp
    as $$
select w.worker_id, w.hostname, w.version, w.queues, w.started_at, w.last_seen_at, coalesce(b.jobs, 0)::integer, w.metadata, w.tenant_id
from public.job_workers w
left join (select o.worker, count(*) as jobs from public.offer o where o.taken_at is not null group by o.worker) b on b.worker = w.worker_id
where exists (select from public.super_admin where subject = asked)
order by w.last_seen_at desc limit 500
$$
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(WORKERS)
    run("reset role")
