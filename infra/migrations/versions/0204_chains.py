"""Searches and sheets that have no next run are found by the tick.

The worker is bound to a tenant in these tables: the functions look across all of them, and tell no more than whose turn it is.
"""

from __future__ import annotations

from alembic import op

revision = "0204"
down_revision = "0203"
branch_labels = None
depends_on = None

CHAINS = """
create function searches_without_next(after_tenant uuid, most integer)
    returns table (tenant_id uuid, cycle boolean, sheets uuid[])
    language sql stable security definer set search_path = pg_catalog, public, pg_temp
    as $$
    select w.id, w.cycle, w.sheets from (
        select t.id,
               exists (select from query_state q where q.tenant_id = t.id and q.active)
               and not exists (select from search_cycle c join run r on r.id = c.run_id
                               where c.tenant_id = t.id and c.ended_at is null and r.status in ('queued', 'running')) as cycle,
               array(select s.id from search_sheet s
                     where s.tenant_id = t.id and s.active
                       and not exists (select from sheet_night n join run r on r.id = n.run_id
                                       where n.tenant_id = s.tenant_id and n.sheet_id = s.id and n.finished_at is null
                                         and r.status in ('queued', 'running'))) as sheets
        from tenant t where t.id > after_tenant) w
    where w.cycle or w.sheets <> '{}' order by w.id limit most
$$;
create function searches_not_fresh() returns bigint
    language sql stable security definer set search_path = pg_catalog, public, pg_temp
    as $$ select count(*) from query_state where active and fresh_at < now() $$;
revoke all on function searches_without_next(uuid, integer), searches_not_fresh() from public;
grant execute on function searches_without_next(uuid, integer), searches_not_fresh() to baton_worker;
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(CHAINS)
    run("reset role")
