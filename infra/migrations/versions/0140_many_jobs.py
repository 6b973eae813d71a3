"""Many jobs are enqueued by one statement, and what is offered together is written together."""

from __future__ import annotations

from alembic import op

revision = "0140"
down_revision = "0131"
branch_labels = None
depends_on = None

# What `offer_lane` does for one lane, for all that a statement makes: new lanes have no offer yet. Lanes that are not pulled
# cost it one look. The lock, and who is told, are as there.
OFFER_LANES = """
create function offer_lanes() returns trigger
    language plpgsql volatile security definer set search_path = pg_catalog, public
    as $$
declare
    heard_in text;
begin
    insert into public.offer (lane_id, run_id, tenant_id, class_id, priority, queued_at, scheduled_for, due, dedupe_key)
    select id, run_id, tenant_id, class_id, priority, now(), next_due_at, next_due_at <= now(), dedupe_key
    from made where class_id is not null;
    if not found then
        return null;
    end if;
    perform pg_advisory_xact_lock_shared(hashtextextended(m.tenant_id::text, 2))
    from (select distinct tenant_id from made where class_id is not null and next_due_at <= now() order by 1) m;
    if not found then
        return null;
    end if;
    insert into public.pull_line as l (class_id, tenant_id, priority, head)
    select m.class_id, m.tenant_id, m.priority, now()
    from (select distinct class_id, tenant_id, priority from made
          where class_id is not null and next_due_at <= now() order by 1, 2, 3) m
    where (select true from public.pull_line x
           where x.class_id = m.class_id and x.tenant_id = m.tenant_id and x.priority = m.priority
             and x.active and x.head <= now()) is null
    on conflict (class_id, tenant_id, priority) do update set active = true, head = least(l.head, excluded.head);
    for heard_in in
        select q.name from public.pull_queue q
        where q.listens_until > now() and q.name = any(array(
            select c.queue from public.pull_class c where c.id = any(array(
                select m.class_id from made m where m.class_id is not null and m.next_due_at <= now()))))
    loop
        perform pg_notify('baton_offers', heard_in);
    end loop;
    return null;
end
$$;
revoke all on function offer_lanes() from public;

drop trigger lane_offered on lane;
create trigger lane_offered after insert on lane
    referencing new table as made for each statement execute function offer_lanes()
"""

# `start_pulled_run` for many of one tenant and kind. Asked again with the same ids it does nothing. BT001: as there.
# The runs first, in a statement of their own: who may write a lane is asked of its run.
START_MANY = """
create function start_pulled_runs(
    p_tenant uuid, p_kind text, p_classes uuid[], p_versions integer[], p_runs jsonb) returns void
    language plpgsql volatile
    as $$
declare
    made uuid[];
begin
    perform from unnest(p_classes, p_versions) k (id, version)
    where (select true from pull_class c where c.id = k.id and c.version = k.version and c.is_open) is null;
    if found then
        raise exception 'a class has changed' using errcode = 'BT001';
    end if;
    with new as (
        insert into run (id, tenant_id, kind, label, status, params, correlation_id, time_limit_s, deadline_at, check_at,
                         source, source_ref, created_by, created_at)
        select id, p_tenant, p_kind, label, 'queued', params, correlation_id, time_limit_s,
               now() + make_interval(secs => time_limit_s),
               now() + least(interval '1 day', make_interval(secs => time_limit_s)), source, source_ref, created_by, now()
        from jsonb_to_recordset(p_runs) as a (
            id uuid, label text, params jsonb, correlation_id text, time_limit_s integer, source text, source_ref text,
            created_by text)
        on conflict (id) do nothing
        returning id)
    select array_agg(id) into made from new;
    insert into history (run_id, n, tenant_id, epoch, type, data, at)
    select id, 1, p_tenant, 1, 'accepted', '{"lanes": 1}', now() from unnest(made) m (id);
    insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, max_steps, class_id,
                      priority, dedupe_key, created_at, updated_at)
    select a.lane_id, a.id, p_tenant, p_kind, a.key, true, a.cursor, now() + make_interval(secs => a.delay_s), now(),
           'infinity', a.max_steps, a.class_id, a.priority, a.dedupe_key, now(), now()
    from unnest(made) m (id)
    join jsonb_to_recordset(p_runs) as a (
        id uuid, lane_id uuid, key text, cursor jsonb, delay_s double precision, max_steps bigint, class_id uuid,
        priority integer, dedupe_key text) on a.id = m.id;
end
$$;
revoke all on function start_pulled_runs from public;
grant execute on function start_pulled_runs to baton_api, baton_worker
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(OFFER_LANES)
    run(START_MANY)
    run("reset role")
