"""Pruning that keeps up: the ledger in leaves of a day that are emptied whole, indexes by age, and what waits its turn to go."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# 14 days of retention, the day being written, and a spare one.
LEAVES = 16
TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"
OWNER = "(select nullif(current_setting('app.owner', true), ''))"

# The leaves are nobody's to enter: every right and every policy is the ledger's as a whole.
OLD_LEDGER = """
alter table step set schema ledger;
alter table ledger.step rename to step_before;
revoke all on ledger.step_before from baton_worker, baton_api
"""

# A ring of days: no leaf is ever created or dropped while steps are committed, one is emptied. Deleting rows instead fell
# behind at a few steps a second, and an index that knows only the range of a page reads every page of a table whose pages
# were filled again.
LEDGER = """
create table public.step (
    lane_id uuid not null,
    epoch integer not null,
    seq bigint not null,
    tenant_id uuid not null,
    outcome text not null,
    rows integer not null default 0,
    ms integer not null default 0,
    at timestamptz not null default now()
) partition by list (({leaf}))
"""
DAY = f"((at at time zone 'UTC')::date - date '0001-01-01') % {LEAVES}"
LEAF = """
create table ledger.step_{n:02} partition of public.step (primary key (lane_id, epoch, seq)) for values in ({n});
create index on ledger.step_{n:02} (at)
"""

POLICIES = f"""
alter table step enable row level security;
alter table step force row level security;
create policy owner_all on step to baton_owner using (true) with check (true);
create policy worker_all on step to baton_worker using (true) with check (true);
create policy api_rows on step to baton_api
    using ({TENANT} and ({OWNER} is null or owns_run((select l.run_id from lane l where l.id = step.lane_id))))
    with check ({TENANT} and ({OWNER} is null or owns_run((select l.run_id from lane l where l.id = step.lane_id))));
grant select, insert, update, delete on step to baton_worker;
grant select on step to baton_api
"""

# Empties each leaf of which nothing is younger; answers how many rows that were, as far as the statistics know. The lock is
# on that leaf alone, where nobody writes any more, and is not waited for: a reader may be there, and the next sweep comes.
FORGET = """
create function forget_steps(before timestamptz) returns bigint
    language plpgsql security definer set search_path = pg_catalog set lock_timeout = '1s'
as $$
declare
    leaf regclass;
    has_old boolean;
    has_young boolean;
    forgotten bigint := 0;
begin
    for leaf in select inhrelid from pg_inherits where inhparent = 'public.step'::regclass order by inhrelid loop
        execute format('select exists (select from %1$s), exists (select from %1$s where at >= $1)', leaf)
            into has_old, has_young using before;
        continue when has_young or not has_old;
        begin
            execute format('lock table %s in access exclusive mode', leaf);
            execute format('select exists (select from %s where at >= $1)', leaf) into has_young using before;
            if not has_young then
                forgotten := forgotten + greatest(1, pg_stat_get_live_tuples(leaf));
                execute format('truncate %s', leaf);
            end if;
        exception when lock_not_available then
            null;
        end;
    end loop;
    return forgotten;
end
$$;
revoke all on function forget_steps(timestamptz) from public;
grant execute on function forget_steps(timestamptz) to baton_worker
"""

AGES = """
drop index repair_age, signal_age, answered_age, pulse_age;
create index repair_age on repair (at);
create index signal_age on signal (at);
create index answered_age on answered (at);
create index pulse_age on pulse (minute)
"""

# From `leaving_since` on a run cannot be retried: its rows leave in batches.
# An asset that could not be removed is tried again at `clean_at`, so that it does not stand before the others.
WAITING = """
alter table run add column leaving_since timestamptz;
alter table remote_call add column clean_at timestamptz;
alter table remote_call add column clean_tries integer not null default 0;
drop index remote_call_asset;
create index remote_call_asset on remote_call (clean_at nulls first, intended_at) where leaves_asset and cleaned_at is null
"""

# Side lanes that slept through a pause which a cancel or an ending had ended: nothing would ever have looked at them again.
WAKE_SLEEPERS = """
update lane l set resend_no = resend_no + 1, resends = 0, sent_at = null, check_at = now()
where l.status = 'active' and l.check_at = 'infinity'
  and not exists (select from run r where r.id = l.run_id and r.paused_at is not null)
"""

# The leaves of a table count as one.
EVERYWHERE = """
create or replace function everywhere(asked text)
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
            (select jsonb_agg(jsonb_build_object('name', t.name, 'bytes', t.bytes, 'rows', t.rows, 'dead_rows', t.dead_rows)
                              order by t.bytes desc, t.name)
             from (select coalesce(whole.relname, s.relname) as name, sum(pg_total_relation_size(s.relid))::bigint as bytes,
                          sum(s.n_live_tup)::bigint as rows, sum(s.n_dead_tup)::bigint as dead_rows
                   from pg_stat_user_tables s
                   join pg_class c on c.oid = s.relid and c.relkind = 'r'
                   left join pg_inherits i on i.inhrelid = s.relid
                   left join pg_class whole on whole.oid = i.inhparent
                   where s.schemaname in ('public', 'ledger')
                   group by 1) t)
        where exists (select from public.super_admin where subject = asked);
    end
"""


# An old ledger stays as it is: the leaf of everything before the day after tomorrow, emptied when all of it is old enough.
# Nothing is copied; its rows are read once, to see that they belong there.
BEFORE = "case when at < timestamptz '{until}' then -1 else {day} end"
KEEP_OLD_LEDGER = "alter table public.step attach partition ledger.step_before for values in (-1)"
UNTIL = "select to_char((now() at time zone 'UTC')::date + 2, 'YYYY-MM-DD') || ' 00:00:00+00'"


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("create schema ledger authorization baton_owner")
    run("set local role baton_owner")
    run(OLD_LEDGER)
    if run("select exists (select from ledger.step_before)").scalar_one():
        until = run(UNTIL).scalar_one()
        run(LEDGER.format(leaf=BEFORE.format(until=until, day=DAY)))
        run(KEEP_OLD_LEDGER)
    else:
        run(LEDGER.format(leaf=DAY))
        run("drop table ledger.step_before")
    for n in range(LEAVES):
        run(LEAF.format(n=n))
    run(POLICIES)
    run(FORGET)
    run(AGES)
    run(WAITING)
    run(WAKE_SLEEPERS)
    run(EVERYWHERE)
    run("reset role")
