"""Why a job waits, and how deep the queue is: for its tenant, and for super admins over all tenants."""

from __future__ import annotations

from alembic import op

revision = "0038"
down_revision = "0034"
branch_labels = None
depends_on = None

# A lane that is pulled is not sent: while it is due and nobody has it, it waits for a worker.
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
        left join public.pull_class c on c.id = l.class_id
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
            where l.status = 'active' and l.sent_at is null and l.class_id is null
            union all
            select 8, 'inactive', 'On hold: its definition is inactive.', null, c.queue, null
            where l.status = 'active' and l.claim_token is null and not c.is_open
            union all
            select 9, 'queued', case when c.wakes then 'Waiting for a free function.' else 'Waiting for a worker in the queue ' || c.queue || '.' end,
                   null, c.queue, null
            where l.status = 'active' and l.claim_token is null and c.is_open
        ) as w (place, code, sentence, until, held_by, action)
        where l.id = asked
        order by w.place
        limit 1;
    end
"""

# A definition's limit counts the jobs of all tenants; one of them only learns whether it is reached.
CLASS_FULL = """
create function pull_class_full(asked uuid) returns boolean
    language sql stable security definer set search_path = pg_catalog, public
    set enable_seqscan = off
    begin atomic
        select c.most_running is not null and c.most_running <= case
            when c.running is null
                then (select count(*) from public.offer o where o.taken_at is not null and o.class_id = c.id)
            else (select count(*) from public.offer o where o.lane_id = any(c.running) and o.taken_at is not null) end
        from public.pull_class c where c.id = asked;
    end;
revoke all on function pull_class_full(uuid) from public;
grant execute on function pull_class_full(uuid) to baton_api
"""

# What waits and runs, by tenant and by queue. Bounded however much that is: of the lines with work so many are looked at, the
# hundred tenants that have waited longest are told, and of each line so many jobs are counted.
EVERYWHERE = """
create function jobs_everywhere(asked text) returns table (tenants jsonb, queues jsonb)
    language sql stable security definer set search_path = pg_catalog, public
    set enable_seqscan = off
    begin atomic
        with lines as materialized (
            select l.class_id, l.tenant_id, l.priority, l.head, f.queued_at
            from (select class_id, tenant_id, priority, head from public.pull_line where active limit 5000) l
            cross join lateral (
                select o.queued_at from public.offer o
                where o.class_id = l.class_id and o.tenant_id = l.tenant_id and o.priority = l.priority
                  and o.queued_at >= l.head and o.due and o.taken_at is null
                order by o.class_id, o.tenant_id, o.priority, o.queued_at, o.lane_id limit 1) f
            where exists (select from public.super_admin where subject = asked)),
        taken as materialized (
            select o.tenant_id, o.class_id from public.offer o
            where o.taken_at is not null and exists (select from public.super_admin where subject = asked) limit 10000),
        later as materialized (
            select o.tenant_id, o.class_id from public.offer o
            where not o.due and o.scheduled_for < 'infinity' and exists (select from public.super_admin where subject = asked)
            order by o.scheduled_for limit 10000),
        who as materialized (
            select w.tenant_id, min(w.queued_at) as oldest
            from (select tenant_id, queued_at from lines union all select tenant_id, null from taken
                  union all select tenant_id, null from later) w
            group by w.tenant_id order by min(w.queued_at), w.tenant_id limit 100),
        counted as materialized (
            select l.class_id, l.tenant_id, l.queued_at, n.n
            from lines l join who w on w.tenant_id = l.tenant_id
            cross join lateral (select count(*) as n from (
                select from public.offer o
                where o.class_id = l.class_id and o.tenant_id = l.tenant_id and o.priority = l.priority
                  and o.queued_at >= l.head and o.due and o.taken_at is null limit 1000) o) n)
        select
            (select coalesce(jsonb_agg(to_jsonb(t) order by t.oldest_queued_age_s desc nulls last, t.tenant_id), '[]') from (
                select w.tenant_id, (select name from public.tenant where id = w.tenant_id) as tenant,
                       coalesce((select sum(c.n) from counted c where c.tenant_id = w.tenant_id), 0) as queued,
                       exists (select from counted c where c.tenant_id = w.tenant_id and c.n = 1000) as more,
                       (select count(*) from later l where l.tenant_id = w.tenant_id) as scheduled,
                       (select count(*) from taken t where t.tenant_id = w.tenant_id) as running,
                       extract(epoch from now() - w.oldest)::double precision as oldest_queued_age_s
                from who w) t),
            (select coalesce(jsonb_agg(to_jsonb(q) order by q.name, q.executor), '[]') from (
                select split_part(p.name, '@', 1) as name,
                       case when p.name like '%@lambda' then 'lambda' else 'worker' end as executor,
                       (select count(*) from public.pull_class c where c.queue = p.name) as definitions,
                       coalesce((select sum(n.n) from counted n join public.pull_class c on c.id = n.class_id
                                 where c.queue = p.name), 0) as queued,
                       exists (select from counted n join public.pull_class c on c.id = n.class_id
                               where c.queue = p.name and n.n = 1000) as more,
                       (select count(*) from later t join public.pull_class c on c.id = t.class_id
                        where c.queue = p.name) as scheduled,
                       (select count(*) from taken t join public.pull_class c on c.id = t.class_id
                        where c.queue = p.name) as running,
                       (select count(*) from public.job_workers w
                        where p.name = any(w.queues) and w.last_seen_at >= now() - interval '60 s') as workers,
                       extract(epoch from now() - (
                           select min(l.queued_at) from lines l join public.pull_class c on c.id = l.class_id
                           where c.queue = p.name))::double precision as oldest_queued_age_s
                from public.pull_queue p order by p.name limit 200) q)
        where exists (select from public.super_admin where subject = asked);
    end;
revoke all on function jobs_everywhere(text) from public;
grant execute on function jobs_everywhere(text) to baton_api
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(WHY)
    run(CLASS_FULL)
    run(EVERYWHERE)
    run("reset role")
