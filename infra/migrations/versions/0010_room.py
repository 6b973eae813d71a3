"""Room for more kinds of work: who hears a signal, a cap on open runs per kind that two starts cannot pass, looks for a lost call."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLES = """
-- What one listener has not heard yet; it leaves with the transaction in which it is heard. One that was given up stays to
-- be seen until its retention ends.
create table hearing (
    signal_id bigint not null,
    listener text not null,
    tenant_id uuid not null,
    at timestamptz not null,
    due_at timestamptz not null,
    attempts integer not null default 0,
    error jsonb,
    given_up_at timestamptz,
    primary key (signal_id, listener)
);
create index hearing_due on hearing (due_at, signal_id, listener) where given_up_at is null;
create index hearing_age on hearing (at);

-- Looks for the trace of a call whose answer was lost.
alter table remote_call add column looks integer not null default 0;
alter table remote_call add column looked_at timestamptz
"""

TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"

# The worker finds rows of all tenants here: the tick asks who waits longest. What is heard is written as that tenant.
POLICIES = f"""
alter table hearing enable row level security;
alter table hearing force row level security;
create policy owner_all on hearing to baton_owner using (true) with check (true);
create policy worker_all on hearing to baton_worker using (true) with check (true);
create policy api_tenant on hearing for select to baton_api using ({TENANT});
grant select, insert, update, delete on hearing to baton_worker;
grant select on hearing to baton_api
"""

# How many runs of a kind the transaction's tenant has open, counted up to the cap. Whoever asks holds the place until his
# transaction ends, so that two starts, or a start and a retry, cannot both take the last one. In a volatile function each
# statement sees what was committed before it: the count is made after the wait.
ROOM = """
create function room_for_a_run(asked text, cap integer) returns table (open integer, most integer)
    language plpgsql volatile security definer set search_path = pg_catalog, public
    as $$
declare
    whose uuid := nullif(current_setting('app.tenant', true), '')::uuid;
begin
    if current_setting('transaction_read_only')::boolean then
        -- A server that was demoted: said now, while nothing was done yet, whoever asks goes to its successor.
        raise read_only_sql_transaction;
    end if;
    perform pg_advisory_xact_lock(hashtextextended(whose::text || asked, 10));
    most := coalesce(cap, (select t.most_open_runs from public.tenant t where t.id = whose), 1000);
    select count(*) into open from (
        select from public.run r where r.tenant_id = whose and r.kind = asked and r.status = 'queued' limit most) q;
    if open < most then
        select open + count(*) into open from (
            select from public.run r where r.tenant_id = whose and r.kind = asked and r.status = 'running'
            limit most - open) q;
    end if;
    return next;
end
$$;
revoke all on function room_for_a_run(text, integer) from public;
grant execute on function room_for_a_run(text, integer) to baton_api, baton_worker;
drop function open_runs(integer)
"""


# As it was, but a lane that does not hold its run can be restarted after the run's end.
WHY = """
create or replace function why(asked uuid)
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
                   case when r.finished_at is null or not l.holds_run then 'restart' else 'retry' end
            where l.status <> 'active'
            union all
            select 2, 'paused', 'The run is paused.', null, null, 'resume'
            where l.status = 'active' and r.paused_at is not null and l.cancel_at is null
            union all
            select 3, 'at_work', 'A step is running now.', l.lease_until, null, null
            where l.status = 'active' and l.claim_token is not null and l.lease_until >= now()
            union all
            select 4, 'gate', 'Rate-limited by ' || g.key || coalesce(': ' || g.reason, '.'), g.until, g.key, 'open_gate'
            where l.status = 'active' and l.next_due_at > now() + interval '1 s' and g.key is not null
            union all
            select 5, 'retrying', 'Attempt ' || l.attempts || ' failed: ' || coalesce(l.last_error ->> 'message', 'unknown'),
                   l.next_due_at, l.last_error ->> 'code', 'wake'
            where l.status = 'active' and l.next_due_at > now() + interval '1 s' and l.attempts > 0
            union all
            select 6, 'due_later', coalesce('Waiting for ' || l.waits_for || '.', 'The next step is scheduled for later.'), l.next_due_at,
                   null, 'wake'
            where l.status = 'active' and l.next_due_at > now() + interval '1 s'
            union all
            select 7, 'unsent', 'The message for the next step isn''t sent yet; it is sent automatically.', null, null, 'wake'
            where l.status = 'active' and l.sent_at is null
        ) as w (place, code, sentence, until, held_by, action)
        where l.id = asked
        order by w.place
        limit 1;
    end
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(POLICIES)
    run(ROOM)
    run(WHY)
    run("reset role")
