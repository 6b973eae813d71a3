"""Tenants, people, machine tokens, connections, audit, repeated requests; what a member sees; indexes of the lists."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLES = """
create table tenant (
    id uuid primary key,
    name text not null,
    most_open_runs integer not null default 1000 check (most_open_runs > 0),
    created_at timestamptz not null default now()
);

create table member (
    tenant_id uuid not null,
    subject text not null,
    role text not null check (role in ('viewer', 'member', 'admin', 'worker')),
    name text,
    added_by text not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, subject)
);
create index member_subject on member (subject);

-- Who may act in every tenant. Only the owner's commands write here.
create table super_admin (
    subject text primary key,
    created_at timestamptz not null default now()
);

-- Only the hash is kept: a token is shown once, when it is made.
create table machine_token (
    id uuid primary key,
    tenant_id uuid not null,
    name text not null,
    role text not null check (role in ('viewer', 'member', 'admin', 'worker')),
    hash bytea not null unique,
    created_by text not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz
);
create index machine_token_tenant on machine_token (tenant_id, id);

-- How a tenant's credentials for an upstream are known. The secret itself lives elsewhere.
create table connection (
    id uuid primary key,
    tenant_id uuid not null,
    provider text not null,
    name text not null,
    settings jsonb not null default '{}',
    secret_ref text,
    checked_at timestamptz,
    works boolean,
    check_says text,
    created_by text not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (tenant_id, provider, name)
);

create table audit (
    id bigint generated always as identity primary key,
    tenant_id uuid not null,
    at timestamptz not null default now(),
    actor text not null,
    action text not null,
    target text not null,
    before jsonb,
    after jsonb,
    reason text
);
create index audit_tenant on audit (tenant_id, id);

-- The answer to a request that creates something, for whoever sends it again.
create table answered (
    tenant_id uuid not null,
    actor text not null,
    key text not null,
    request_hash bytea not null,
    status integer,
    body text,
    at timestamptz not null default now(),
    primary key (tenant_id, actor, key)
);
create index answered_age on answered using brin (at);

-- What cursors are signed with: made here, so that every process of a deployment has the same and nobody chose it.
create table signing_key (
    is_only boolean primary key default true check (is_only),
    key bytea not null
);
insert into signing_key (key)
select sha256(string_agg(uuid_send(gen_random_uuid()), ''::bytea)) from generate_series(1, 4);

create index gate_tenant on gate (tenant_id, key);

-- The lists of runs, newest first, by whatever they are filtered.
create index run_list on run (tenant_id, created_at, id);
create index run_list_kind on run (tenant_id, kind, created_at, id);
create index run_list_status on run (tenant_id, status, created_at, id);
create index run_list_kind_status on run (tenant_id, kind, status, created_at, id);
create index run_list_label on run (tenant_id, label, created_at, id) where label is not null;
create index run_list_source on run (tenant_id, source, created_at, id) where source is not null;
create index run_list_owner on run (tenant_id, created_by, created_at, id) where created_by is not null;
create index run_list_finished on run (tenant_id, finished_at, id) where finished_at is not null
"""

TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"
# Set for somebody who sees only what is his own; everybody else has it empty.
OWNER = "(select nullif(current_setting('app.owner', true), ''))"

# A plain subquery might be hashed over all runs; a function is asked for the one run of a row that passed the tenant.
OWNS = f"""
create function owns_run(asked uuid) returns boolean language sql stable
    set search_path = pg_catalog, public
    begin atomic
        select exists (select from public.run where id = asked and created_by = {OWNER});
    end
"""
BELONG_TO_A_RUN = ("lane", "step", "history", "remote_call")


def bound(table: str, rights: str) -> str:
    """The API sees and writes only rows of its tenant; the worker too, where it must read them at all.

    But for `answered`: the sweep prunes it by age, of all tenants.
    """
    return f"""
alter table {table} enable row level security;
alter table {table} force row level security;
create policy owner_all on {table} to baton_owner using (true) with check (true);
create policy api_tenant on {table} to baton_api using ({TENANT}) with check ({TENANT});
create policy worker_tenant on {table} to baton_worker using ({"true" if table == "answered" else TENANT});
grant {rights} on {table} to baton_api
"""


OWN_RUNS = f"""
drop policy api_reads on run;
drop policy api_writes on run;
create policy api_runs on run to baton_api
    using ({TENANT} and ({OWNER} is null or created_by = {OWNER}))
    with check ({TENANT} and ({OWNER} is null or created_by = {OWNER}))
"""


def own_rows(table: str) -> str:
    run = "(select l.run_id from lane l where l.id = step.lane_id)" if table == "step" else "run_id"
    return f"""
drop policy api_reads on {table};
drop policy api_writes on {table};
create policy api_rows on {table} to baton_api
    using ({TENANT} and ({OWNER} is null or owns_run({run})))
    with check ({TENANT} and ({OWNER} is null or owns_run({run})))
"""


# Views read with their owner's eyes: what a member sees of them is said in them. Their columns stay as they were.
VIEWS = ("raw_diamonds_nivoda", "partition_progress", "run_metadata")


def own_view(name: str, definition: str) -> str:
    """The same view, of the runs of whoever sees only his own."""
    return f"""
create or replace view {name} with (security_barrier) as
select v.* from ({definition.strip().rstrip(";")}) v where {OWNER} is null or owns_run(v.run_id)
"""


# Look-ups before a tenant is known. They tell only what belongs to the one who asks, and run as the owner.
LOOK_UPS = """
create function memberships(asked text)
    returns table (tenant_id uuid, tenant text, role text, is_super boolean)
    language sql stable security definer set search_path = pg_catalog, public
    begin atomic
        select t.id, t.name, coalesce(m.role, 'admin'), s.subject is not null
        from public.tenant t
        left join public.member m on m.tenant_id = t.id and m.subject = asked
        left join public.super_admin s on s.subject = asked
        where m.subject is not null or s.subject is not null
        order by t.name, t.id
        limit 201;
    end;
create function membership(asked text, wanted uuid)
    returns table (tenant_id uuid, tenant text, role text, is_super boolean)
    language sql stable security definer set search_path = pg_catalog, public
    begin atomic
        select t.id, t.name, coalesce(m.role, 'admin'), s.subject is not null
        from public.tenant t
        left join public.member m on m.tenant_id = t.id and m.subject = asked
        left join public.super_admin s on s.subject = asked
        where t.id = wanted and (m.subject is not null or s.subject is not null);
    end;
create function use_token(asked bytea)
    returns table (id uuid, tenant_id uuid, tenant text, role text, name text)
    language sql security definer set search_path = pg_catalog, public
    begin atomic
        with used as (
            update public.machine_token set last_used_at = now()
            where hash = asked and (last_used_at is null or last_used_at < now() - interval '1 minute')
              and revoked_at is null and (expires_at is null or expires_at > now()))
        select k.id, k.tenant_id, t.name, k.role, k.name
        from public.machine_token k join public.tenant t on t.id = k.tenant_id
        where k.hash = asked and k.revoked_at is null and (k.expires_at is null or k.expires_at > now());
    end;
-- A gate that all tenants share, moved by hand; without seconds it is opened. Whether he may is asked here once more.
create function move_shared_gate(asked text, wanted text, closed_s double precision, why text) returns boolean
    language sql security definer set search_path = pg_catalog, public
    begin atomic
        with moved as (
            update public.gate set state = case when closed_s is null then 'open' else 'closed' end, holder = null,
                until = case when closed_s is null then now()
                             else greatest(until, now() + make_interval(secs => closed_s)) end,
                reason = case when closed_s is not null then why end, updated_at = now()
            where key = wanted and tenant_id is null and exists (select from public.super_admin where subject = asked)
            returning 1)
        select exists (select from moved);
    end;
-- How many runs of the transaction's tenant are open, counted up to `most`: a member's own would not be all of them.
create function open_runs(most integer) returns bigint
    language sql stable security definer set search_path = pg_catalog, public
    begin atomic
        select count(*) from (
            select from public.run
            where tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)
              and status in ('queued', 'running')
            limit most) r;
    end;
create function cursor_key() returns bytea
    language sql stable security definer set search_path = pg_catalog, public
    begin atomic
        select key from public.signing_key;
    end;
revoke all on function memberships(text), membership(text, uuid), use_token(bytea), cursor_key(),
    open_runs(integer), move_shared_gate(text, text, double precision, text) from public;
grant execute on function memberships(text), membership(text, uuid), use_token(bytea), cursor_key(),
    open_runs(integer), move_shared_gate(text, text, double precision, text) to baton_api
"""

# Why a lane takes no turn now: no row means that its message is on its way and would be taken. The conditions are those
# of the claim, in the order in which a person would ask.
WHY = """
create function why(asked uuid)
    returns table (code text, sentence text, until timestamptz, held_by text, action text)
    language sql stable set search_path = pg_catalog, public
    begin atomic
        select w.code, w.sentence, w.until, w.held_by, w.action
        from public.lane l
        join public.run r on r.id = l.run_id
        left join lateral (
            select g.key, g.until, g.reason from public.gate g
            where l.waits_for = 'gate:' || g.key and (g.tenant_id = l.tenant_id or g.tenant_id is null)
              and g.state <> 'open' and g.until > now()
            order by g.until desc limit 1) g on true
        cross join lateral (
            select 1, 'ended', 'The lane has ended: ' || l.status || '.', null::timestamptz, null::text,
                   case when r.finished_at is null then 'restart' else 'retry' end
            where l.status <> 'active'
            union all
            select 2, 'paused', 'The run is paused.', null, null, 'resume'
            where l.status = 'active' and r.paused_at is not null and l.cancel_at is null
            union all
            select 3, 'at_work', 'A step is being taken now.', l.lease_until, null, null
            where l.status = 'active' and l.claim_token is not null and l.lease_until >= now()
            union all
            select 4, 'gate', 'The gate ' || g.key || ' is closed' || coalesce(': ' || g.reason, '.'), g.until, g.key, 'open_gate'
            where l.status = 'active' and l.next_due_at > now() + interval '1 s' and g.key is not null
            union all
            select 5, 'retrying', 'Attempt ' || l.attempts || ' failed: ' || coalesce(l.last_error ->> 'message', 'unknown'),
                   l.next_due_at, l.last_error ->> 'code', 'wake'
            where l.status = 'active' and l.next_due_at > now() + interval '1 s' and l.attempts > 0
            union all
            select 6, 'due_later', coalesce('It waits for ' || l.waits_for || '.', 'Its next step is due later.'), l.next_due_at,
                   null, 'wake'
            where l.status = 'active' and l.next_due_at > now() + interval '1 s'
            union all
            select 7, 'unsent', 'Its message is not sent yet; the next tick sends it.', null, null, 'wake'
            where l.status = 'active' and l.sent_at is null
        ) as w (place, code, sentence, until, held_by, action)
        where l.id = asked
        order by w.place
        limit 1;
    end;
revoke all on function why(uuid) from public;
grant execute on function why(uuid) to baton_api, baton_worker
"""

UNREADABLE = """
alter table {table} enable row level security;
alter table {table} force row level security;
create policy owner_all on {table} to baton_owner using (true) with check (true)
"""

GRANTS = """
alter table tenant enable row level security;
alter table tenant force row level security;
create policy owner_all on tenant to baton_owner using (true) with check (true);
create policy api_tenant on tenant for select to baton_api
    using (id = (select nullif(current_setting('app.tenant', true), '')::uuid));
grant select on tenant to baton_api;
grant update on gate to baton_api;
grant insert on gate to baton_api;
grant select, delete on answered to baton_worker;
grant select on connection to baton_worker
"""

RIGHTS = {
    "member": "select, insert, update, delete",
    # Nobody who speaks for a tenant reads a hash; look-ups by it run as the owner.
    "machine_token": """select (id, tenant_id, name, role, created_by, created_at, expires_at, revoked_at, last_used_at),
        insert, update (revoked_at)""",
    "connection": "select, insert, update, delete",
    "audit": "select, insert",
    "answered": "select, insert, update",
}


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(OWNS)
    for table, rights in RIGHTS.items():
        run(bound(table, rights))
    for table in ("super_admin", "signing_key"):
        run(UNREADABLE.format(table=table))
    run(OWN_RUNS)
    for table in BELONG_TO_A_RUN:
        run(own_rows(table))
    for view in VIEWS:
        (definition,) = run(f"select pg_get_viewdef('{view}'::regclass)").one()
        run(own_view(view, definition))
    run(LOOK_UPS)
    run(WHY)
    run(GRANTS)
    run("reset role")
