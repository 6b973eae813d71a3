"""The front door: who adds the first person, whose rows a member sees, and into whose runs the API may write."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0007"
branch_labels = None
depends_on = None

# Who adds people, and can do nothing else: it enters no table, it may call one function.
ROLE = """
do $$
begin
    if not exists (select from pg_roles where rolname = 'baton_people') then
        create role baton_people login nosuperuser nocreatedb nocreaterole;
    end if;
end
$$;
grant usage on schema public to baton_people;
alter role baton_people set statement_timeout = '25s';
alter role baton_people set lock_timeout = '10s';
alter role baton_people set idle_in_transaction_session_timeout = '30s'
"""

ADD_PERSON = """
create function add_person(tenant_name text, new_tenant uuid, who text, as_role text, called text, is_super boolean)
    returns uuid
    language sql security definer set search_path = pg_catalog, public
    begin atomic
        with found as (
            select id from public.tenant where name = tenant_name order by created_at, id limit 1),
        made as (
            insert into public.tenant (id, name) select new_tenant, tenant_name where not exists (select from found)
            on conflict (id) do nothing returning id),
        here as (
            select coalesce((select id from found), (select id from made), new_tenant) as id),
        person as (
            insert into public.member (tenant_id, subject, role, name, added_by)
            select id, who, as_role, called, 'owner' from here
            on conflict (tenant_id, subject) do update set role = excluded.role, name = excluded.name),
        everywhere as (
            insert into public.super_admin (subject) select who where is_super on conflict do nothing),
        told as (
            insert into public.audit (tenant_id, actor, action, target, after)
            select id, 'owner', 'member.put', 'member:' || who,
                   jsonb_build_object('role', as_role, 'name', called, 'super_admin', is_super) from here)
        select id from here;
    end;
revoke all on function add_person(text, uuid, text, text, text, boolean) from public;
grant execute on function add_person(text, uuid, text, text, text, boolean) to baton_people
"""

TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"
OWNER = "(select nullif(current_setting('app.owner', true), ''))"

# A row of a run belongs to the tenant of that run: the tenant's id in the row alone is only what the writer says.
RUN_IS_HERE = f"""
create function run_is_here(asked uuid) returns boolean language sql stable
    set search_path = pg_catalog, public
    begin atomic
        select exists (select from public.run
                       where id = asked and {TENANT} and ({OWNER} is null or created_by = {OWNER}));
    end
"""
WRITTEN_BY_THE_API = ("lane", "history")


def only_into_own_runs(table: str) -> str:
    return f"""
drop policy api_rows on {table};
create policy api_rows on {table} to baton_api
    using ({TENANT} and ({OWNER} is null or owns_run(run_id)))
    with check ({TENANT} and run_is_here(run_id))
"""


# What an ingestion fetched is its run's, also where it is read without the run.
OF_A_RUN = {"raw_item": "run_id", "diamond": "source_run"}


def own_rows(table: str, run: str) -> str:
    return f"""
drop policy tenant_only on {table};
create policy worker_tenant on {table} to baton_worker using ({TENANT}) with check ({TENANT});
create policy api_rows on {table} to baton_api
    using ({TENANT} and ({OWNER} is null or owns_run({run})))
    with check ({TENANT} and ({OWNER} is null or owns_run({run})))
"""


SIGNALS = """
-- One tenant's event must not swallow another's that has, or was given, the same id.
create unique index signal_event_of_tenant on signal (tenant_id, event_id);
drop index signal_event;
-- Tokens that ended long ago give way to new ones, and no others.
grant delete on machine_token to baton_api;
create policy api_deletes_what_ended on machine_token as restrictive for delete to baton_api
    using (least(revoked_at, expires_at) < now() - interval '90 days')
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run(ROLE)
    run("set local role baton_owner")
    run(ADD_PERSON)
    run(RUN_IS_HERE)
    for table in WRITTEN_BY_THE_API:
        run(only_into_own_runs(table))
    for table, column in OF_A_RUN.items():
        run(own_rows(table, column))
    run(SIGNALS)
    run("reset role")
