"""Why a lane is rate-limited names the account as people know it: by its connection's name, not by its ID."""

from __future__ import annotations

from alembic import op

revision = "0198"
down_revision = "0197"
branch_labels = None
depends_on = None

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
        left join public.connection a on a.tenant_id = l.tenant_id
            and a.id = case when g.key ~ ':[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then right(g.key, 36)::uuid end
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
            select 4, 'gate', 'Rate-limited by ' || coalesce(left(g.key, -37) || ' (' || a.name || ')', g.key) || coalesce(': ' || g.reason, '.'), g.until, g.key, 'open_gate'
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


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(WHY)
    run("reset role")
