"""Invitations: whoever is added to a tenant is a member of it once they have accepted. Who was one before stays one."""

from __future__ import annotations

from alembic import op

revision = "0130"
down_revision = "0121"
branch_labels = None
depends_on = None

# The default is for the release before, which knows no invitations, and for rows that are there. Nobody who speaks for a
# tenant accepts in somebody's place: of a member's row they may change the role and the name.
MEMBER = """
alter table member add column accepted_at timestamptz default now();
revoke update on member from baton_api;
grant update (role, name) on member to baton_api
"""

LOOK_UPS = """
create or replace function memberships(asked text)
    returns table (tenant_id uuid, tenant text, role text, is_super boolean)
    language sql stable security definer set search_path = pg_catalog, public
    begin atomic
        select t.id, t.name, coalesce(m.role, 'admin'), s.subject is not null
        from public.tenant t
        left join public.member m on m.tenant_id = t.id and m.subject = asked and m.accepted_at is not null
        left join public.super_admin s on s.subject = asked
        where m.subject is not null or s.subject is not null
        order by t.name, t.id
        limit 201;
    end;
create or replace function membership(asked text, wanted uuid)
    returns table (tenant_id uuid, tenant text, role text, is_super boolean)
    language sql stable security definer set search_path = pg_catalog, public
    begin atomic
        select t.id, t.name, coalesce(m.role, 'admin'), s.subject is not null
        from public.tenant t
        left join public.member m on m.tenant_id = t.id and m.subject = asked and m.accepted_at is not null
        left join public.super_admin s on s.subject = asked
        where t.id = wanted and (m.subject is not null or s.subject is not null);
    end;
create function invitations(asked text)
    returns table (tenant_id uuid, tenant text, role text, invited_by text)
    language sql stable security definer set search_path = pg_catalog, public
    begin atomic
        select t.id, t.name, m.role, m.added_by
        from public.member m join public.tenant t on t.id = m.tenant_id
        where m.subject = asked and m.accepted_at is null
        order by m.created_at, t.id
        limit 201;
    end;
-- Whether there was an invitation. Only the person's own subject is ever asked for: the API takes it from their token.
create function answer_invitation(asked text, wanted uuid, accepts boolean) returns boolean
    language sql security definer set search_path = pg_catalog, public
    begin atomic
        with taken as (
            update public.member set accepted_at = now()
            where accepts and subject = asked and tenant_id = wanted and accepted_at is null returning tenant_id),
        declined as (
            delete from public.member
            where not accepts and subject = asked and tenant_id = wanted and accepted_at is null returning tenant_id),
        told as (
            insert into public.audit (tenant_id, actor, action, target)
            select tenant_id, 'user:' || asked, case when accepts then 'member.accept' else 'member.decline' end, 'member:' || asked
            from (select tenant_id from taken union all select tenant_id from declined) a)
        select exists (select from taken) or exists (select from declined);
    end;
revoke all on function invitations(text), answer_invitation(text, uuid, boolean) from public;
grant execute on function invitations(text), answer_invitation(text, uuid, boolean) to baton_api
"""

# Whoever deploys speaks for the people of their own user pool.
ADD_PERSON = """
create or replace function add_person(tenant_name text, new_tenant uuid, who text, as_role text, called text, is_super boolean)
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
            insert into public.member as m (tenant_id, subject, role, name, added_by, accepted_at)
            select id, who, as_role, called, 'owner', now() from here
            on conflict (tenant_id, subject) do update
            set role = excluded.role, name = excluded.name, accepted_at = coalesce(m.accepted_at, excluded.accepted_at)),
        everywhere as (
            insert into public.super_admin (subject) select who where is_super on conflict do nothing),
        told as (
            insert into public.audit (tenant_id, actor, action, target, after)
            select id, 'owner', 'member.put', 'member:' || who,
                   jsonb_build_object('role', as_role, 'name', called, 'super_admin', is_super) from here)
        select id from here;
    end
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(MEMBER)
    run(LOOK_UPS)
    run(ADD_PERSON)
    run("reset role")
