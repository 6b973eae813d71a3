"""What is going on now: the pulse of a tenant by the minute, indexes for what failed and what was mended, and one look over all tenants."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES = """
-- What the steps of a minute did, by whose runs they were ('': nobody's in particular). The tick sums the ledger up, so a
-- page that asks for the last hour reads minutes, not steps, and no step writes a row that others write too.
create table pulse (
    tenant_id uuid not null,
    minute timestamptz not null,
    created_by text not null,
    steps bigint not null,
    failed bigint not null,
    rows bigint not null,
    primary key (tenant_id, minute, created_by)
);
create index pulse_age on pulse using brin (minute);

-- The tick reads the newest steps every minute. Pages that no vacuum has summarized yet would all be read each time.
alter index step_age set (autosummarize = on);

create index repair_latest on repair (tenant_id, at);
create index repair_dead_letter on repair (tenant_id, at) where why = 'dead_letter';
create index run_failed on run (tenant_id, finished_at, id) where status = 'failed';
create index run_failed_owner on run (tenant_id, created_by, finished_at, id) where status = 'failed'
"""

TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"
OWNER = "(select nullif(current_setting('app.owner', true), ''))"

# The worker finds rows of all tenants here, as in the kernel's other tables: one statement sums up everybody's steps.
POLICIES = f"""
alter table pulse enable row level security;
alter table pulse force row level security;
create policy owner_all on pulse to baton_owner using (true) with check (true);
create policy worker_all on pulse to baton_worker using (true) with check (true);
create policy api_rows on pulse to baton_api
    using ({TENANT} and ({OWNER} is null or created_by = {OWNER}))
    with check ({TENANT} and ({OWNER} is null or created_by = {OWNER}));
grant select, insert, update, delete on pulse to baton_worker;
grant select on pulse to baton_api
"""

# For a super admin alone, which it asks itself: anybody else gets no row. Figures and names of tables, nobody's rows; what
# could be many is counted up to a bound.
EVERYWHERE = """
create function everywhere(asked text)
    returns table (tenants bigint, open_runs bigint, unsent bigint, signals_waiting bigint, tables jsonb)
    language sql stable security definer set search_path = pg_catalog, public
    begin atomic
        select
            (select count(*) from (select from public.tenant limit 100000) t),
            (select count(*) from (select from public.run where status in ('queued', 'running') limit 100000) r),
            (select count(*)
             from (select sent_at, next_due_at from public.lane where status = 'active' and check_at <= now()
                   order by check_at limit 10000) l
             where l.sent_at is null and l.next_due_at < now() - interval '1 minute'),
            (select count(*) from (select from public.signal where dispatched_at is null limit 100000) s),
            (select jsonb_agg(jsonb_build_object('name', t.relname, 'bytes', pg_total_relation_size(t.relid),
                                                 'rows', t.n_live_tup, 'dead_rows', t.n_dead_tup)
                              order by pg_total_relation_size(t.relid) desc, t.relname)
             from pg_stat_user_tables t where t.schemaname = 'public')
        where exists (select from public.super_admin where subject = asked);
    end;
revoke all on function everywhere(text) from public;
grant execute on function everywhere(text) to baton_api
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(POLICIES)
    run(EVERYWHERE)
    run("reset role")
