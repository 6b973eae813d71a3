"""Postgres alone: batons of the kinds that are pushed may travel through a table, and whoever listens hears of new work."""

from __future__ import annotations

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

# What a queue of AWS would hold: ids of lanes, and no tenant's data. A message that was received is hidden for a while.
MESSAGES = """
create table message (
    id bigint generated always as identity primary key,
    queue text not null,
    body text not null,
    dedup_id text,
    visible_at timestamptz not null,
    receipt uuid,
    receive_count integer not null default 0,
    sent_at timestamptz not null default now()
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index message_visible on message (queue, visible_at);
create unique index message_dedup on message (queue, dedup_id) where dedup_id is not null;
grant select, insert, update, delete on message to baton_worker;
grant insert on message to baton_api;
grant select (queue, dedup_id) on message to baton_api;
alter table pull_queue add column listens_until timestamptz not null default '-infinity'
"""

# A notification is one more lock for every commit, so there is none unless a worker of the queue says that it listens.
OFFER_LANE = """
create or replace function offer_lane() returns trigger
    language plpgsql volatile security definer set search_path = pg_catalog, public
    set plan_cache_mode = force_generic_plan
    as $$
declare
    is_due boolean := new.next_due_at <= now();
    heard_in text;
begin
    if new.status <> 'active' then
        delete from public.offer where lane_id = new.id;
        return null;
    end if;
    if new.claim_token is not null then
        return null;  -- it is being worked on, and stays taken
    end if;
    if is_due then
        perform pg_advisory_xact_lock_shared(hashtextextended(new.tenant_id::text, 2));
    end if;
    insert into public.offer (lane_id, run_id, tenant_id, class_id, priority, queued_at, scheduled_for, due, dedupe_key)
    values (new.id, new.run_id, new.tenant_id, new.class_id, new.priority, now(), new.next_due_at, is_due, new.dedupe_key)
    on conflict (lane_id) do update
    set queued_at = excluded.queued_at, scheduled_for = excluded.scheduled_for, due = excluded.due, taken_at = null,
        worker = null;
    if is_due then
        insert into public.pull_line as l (class_id, tenant_id, priority, head)
        select new.class_id, new.tenant_id, new.priority, now()
        where (select true from public.pull_line x
               where x.class_id = new.class_id and x.tenant_id = new.tenant_id and x.priority = new.priority
                 and x.active and x.head <= now()) is null
        on conflict (class_id, tenant_id, priority) do update set active = true, head = least(l.head, excluded.head);
        select q.name into heard_in from public.pull_class c join public.pull_queue q on q.name = c.queue
        where c.id = new.class_id and q.listens_until > now();
        if heard_in is not null then
            perform pg_notify('baton_offers', heard_in);
        end if;
    end if;
    return null;
end
$$
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(MESSAGES)
    run(OFFER_LANE)
    run("reset role")
