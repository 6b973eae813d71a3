"""Pull delivery: lanes that are offered instead of sent, and taken best first, in fair turns between tenants, within caps."""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0020"
branch_labels = None
depends_on = None

# A class says what its lanes have in common: the queue they wait in, how many may run at once, and whether any may be taken
# now. `running` is what a cap counts: every lane taken since it was last tidied, so never fewer than are being worked on. It
# is written by the take alone, in place, so that it costs the same after any number of endings and nothing at the ending.
# Null: not known; the next take that needs it reads the offers.
TABLES = """
alter table lane add column class_id uuid;
alter table lane add column priority integer;
alter table lane add column dedupe_key text;
alter table lane add check ((class_id is null) = (priority is null));

create table pull_queue (
    name text primary key,
    turn uuid not null default '00000000-0000-0000-0000-000000000000'
) with (fillfactor = 20);

create table pull_class (
    id uuid primary key,
    queue text not null references pull_queue (name),
    is_open boolean not null default true,
    most_running integer check (most_running between 1 and 10000),
    running uuid[]
) with (fillfactor = 50);
create index pull_class_queue on pull_class (queue);

create table pull_tenant (
    tenant_id uuid primary key,
    most_running integer check (most_running between 1 and 10000),
    running uuid[]
) with (fillfactor = 50);

-- The baton of a pull lane: one row for each that is active. It follows from the lane, by the trigger below; only `due` and
-- `taken_at` are set elsewhere. As long as it is there, so is its key: it is what dedupes.
create table offer (
    lane_id uuid primary key,
    run_id uuid not null,
    tenant_id uuid not null,
    class_id uuid not null,
    priority integer not null,
    queued_at timestamptz not null,
    scheduled_for timestamptz not null,
    due boolean not null,
    taken_at timestamptz,
    worker text,
    dedupe_key text,
    check (taken_at is null or due)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_scale_factor = 0,
        autovacuum_analyze_threshold = 5000);
create index offer_ready on offer (class_id, tenant_id, priority, queued_at, lane_id) where due and taken_at is null;
create index offer_later on offer (scheduled_for) where not due and scheduled_for < 'infinity';
create index offer_taken on offer (lane_id) where taken_at is not null;
create unique index offer_key on offer (tenant_id, dedupe_key) where dedupe_key is not null;

-- The offers of one class, tenant and priority. Every due offer lies in an active line, at or after its head: the take
-- starts behind the index entries that are dead already, and asks no line that is empty.
create table pull_line (
    class_id uuid not null,
    tenant_id uuid not null,
    priority integer not null,
    active boolean not null default true,
    head timestamptz not null,
    primary key (class_id, tenant_id, priority)
) with (fillfactor = 50);
create index pull_line_active on pull_line (class_id, tenant_id) where active
"""

TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"


# The worker sees all tenants here: a take chooses between them. What it takes is worked on as its tenant.
def policies(table: str) -> str:
    return f"""
alter table {table} enable row level security;
alter table {table} force row level security;
create policy owner_all on {table} to baton_owner using (true) with check (true);
create policy worker_all on {table} to baton_worker using (true) with check (true);
create policy api_tenant on {table} for select to baton_api using ({TENANT});
grant select, insert, update, delete on {table} to baton_worker;
grant select on {table} to baton_api
"""


GRANTS = """
grant select, insert, update on pull_queue, pull_class to baton_worker;
grant select on pull_queue, pull_class to baton_api
"""

# Whoever makes an offer due holds lock 2 of its tenant, shared, until his transaction ends; the take parks a line or raises
# its head only where it gets that lock alone, and looks after that: an offer on its way is never left behind.
# Whoever writes a lane waits for its offer, and the take, which begins at the offers, waits for no lane: no deadlock.
OFFER_LANE = """
create function offer_lane() returns trigger
    language plpgsql volatile security definer set search_path = pg_catalog, public
    set plan_cache_mode = force_generic_plan
    as $$
declare
    is_due boolean := new.next_due_at <= now();
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
    end if;
    return null;
end
$$;
revoke all on function offer_lane() from public;

create trigger lane_offered after insert on lane
    for each row when (new.class_id is not null) execute function offer_lane();
-- Not by a take, which marks its offers itself, nor by a renewal.
create trigger lane_offered_again after update on lane
    for each row when (
        new.class_id is not null
        and ((old.status, old.epoch, old.seq, old.resend_no, old.next_due_at)
                 is distinct from (new.status, new.epoch, new.seq, new.resend_no, new.next_due_at)
             or (old.claim_token is not null and new.claim_token is null)))
    execute function offer_lane()
"""

# Delays, retries and schedules become due here and nowhere else.
BECOME_DUE = """
create function offers_become_due(most integer) returns integer
    language plpgsql volatile
    set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
    as $$
declare
    ids uuid[];
    whose uuid[];
begin
    select array_agg(x.lane_id), array_agg(distinct x.tenant_id order by x.tenant_id) into ids, whose
    from (select lane_id, tenant_id from offer
          where not due and scheduled_for < 'infinity' and scheduled_for <= now()
          order by scheduled_for limit most for update skip locked) x;
    if ids is null then
        return 0;
    end if;
    perform pg_advisory_xact_lock_shared(hashtextextended(t::text, 2)) from unnest(whose) t;
    with ready as (
        update offer set due = true, queued_at = now() where lane_id = any(ids) returning class_id, tenant_id, priority)
    insert into pull_line as l (class_id, tenant_id, priority, head)
    select distinct r.class_id, r.tenant_id, r.priority, now() from ready r
    where (select true from pull_line x where x.class_id = r.class_id and x.tenant_id = r.tenant_id
             and x.priority = r.priority and x.active and x.head <= now()) is null
    order by 1, 2, 3
    on conflict (class_id, tenant_id, priority) do update set active = true, head = least(l.head, excluded.head);
    return cardinality(ids);
end
$$;
revoke all on function offers_become_due(integer) from public;
grant execute on function offers_become_due(integer) to baton_worker
"""

# The tenants of a queue stand in a ring, and its hand goes round: between two takes of a tenant with work that is due, each
# other tenant gets one. Inside a tenant the lower priority number comes first, then who was queued first.
# Locks: 3 (queue) makes the takes of one queue follow each other; 1 (tenant) the counts of one tenant's cap, waited for once
# and then only tried; 2 as above, only tried.
# A take for one tenant alone asks no other and leaves the hand where it is: the turns of the others are not touched.
# Each statement here sees what was committed before it began. The settings keep the plans that never read a whole table,
# whatever size the planner believes it to have.
TAKE = """
create function take_offers(
    p_queue text, p_most integer, p_token uuid, p_lease interval, p_worker text, p_tenant uuid default null)
    returns table (lane_id uuid, run_id uuid, tenant_id uuid, kind text, key text, holds_run boolean, epoch integer,
                   seq bigint, resend_no integer, cursor jsonb, claims integer, attempts integer, steps bigint,
                   max_steps bigint, cancel_at timestamptz, deadline_at timestamptz, run_status text, run_epoch integer,
                   params jsonb, correlation_id text, queued_at timestamptz, now timestamptz)
    language plpgsql volatile
    set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
    as $$
#variable_conflict use_column
declare
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
    began uuid; hand uuid; last_served uuid; t uuid; c record;
    wrapped boolean := false; waits boolean := true; limited boolean := false;
    cap integer; room integer; want integer; deep integer := 0;
    listed uuid[]; classes uuid[]; rooms integer[]; who uuid[]; free integer[]; counted uuid[];
    ids uuid[]; runs uuid[]; kinds uuid[]; held uuid[]; paused uuid[]; near uuid[];
    took uuid[] := '{}'; took_class uuid[] := '{}'; thin uuid[] := '{}';
begin
    perform offers_become_due(200);
    perform pg_advisory_xact_lock(hashtextextended(p_queue, 3));
    select q.turn into hand from pull_queue q where q.name = p_queue;
    for c in select k.id, k.most_running, k.running from pull_class k where k.queue = p_queue and k.is_open order by k.id loop
        room := null;
        if c.most_running is not null then
            limited := true;
            listed := c.running;
            if listed is null then
                listed := array(select o.lane_id from offer o where o.taken_at is not null and o.class_id = c.id);
                update pull_class k set running = listed where k.id = c.id;
            elsif cardinality(listed) + p_most > c.most_running then
                listed := array(select o.lane_id from offer o where o.lane_id = any(listed) and o.taken_at is not null);
                update pull_class k set running = listed where k.id = c.id and k.running is distinct from listed;
            end if;
            room := c.most_running - cardinality(listed);
            continue when room <= 0;
        end if;
        classes := classes || c.id;
        rooms := rooms || room;
    end loop;
    began := case when p_tenant is null then hand else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end;
    last_served := hand;
    while hand is not null and classes is not null and took = '{}' loop
        who := '{}'; free := '{}'; counted := '{}';
        while cardinality(who) < p_most loop                    -- the next tenants of the ring
            t := null;
            if p_tenant is not null then
                t := case when wrapped then null else p_tenant end;
                wrapped := true;
            else
                select l.tenant_id into t
                from unnest(classes) k cross join lateral (
                    select tenant_id from pull_line where class_id = k and active and tenant_id > hand
                    order by class_id, tenant_id limit 1) l
                order by 1 limit 1;
            end if;
            if t is null and not wrapped then
                wrapped := true; hand := nobody;
                continue;
            end if;
            if t is null or wrapped and t > began then
                hand := null;
                exit;
            end if;
            hand := t;
            select p.most_running into cap from pull_tenant p where p.tenant_id = t;
            if cap is not null then
                if waits then
                    waits := false;
                    perform pg_advisory_xact_lock(hashtextextended(t::text, 1));
                elsif not pg_try_advisory_xact_lock(hashtextextended(t::text, 1)) then
                    continue;
                end if;
                select p.running into listed from pull_tenant p where p.tenant_id = t;
                if listed is null then
                    listed := array(select o.lane_id from offer o where o.taken_at is not null and o.tenant_id = t);
                    update pull_tenant p set running = listed where p.tenant_id = t;
                elsif cardinality(listed) + p_most > cap then
                    listed := array(select o.lane_id from offer o where o.lane_id = any(listed) and o.taken_at is not null);
                    update pull_tenant p set running = listed where p.tenant_id = t and p.running is distinct from listed;
                end if;
                cap := cap - cardinality(listed);
                continue when cap <= 0;
                counted := counted || t;
            end if;
            who := who || t;
            free := free || cap;
        end loop;
        for n in 1 .. cardinality(who) loop                     -- the best offers of each
            want := least(free[n], p_most / cardinality(who) + (n <= p_most % cardinality(who))::int);
            ids := null;
            for attempt in 1 .. 3 loop
                select array_agg(x.lane_id), array_agg(x.run_id), array_agg(x.class_id) into ids, runs, kinds
                from (
                    select j.lane_id, j.run_id, j.class_id
                    from unnest(classes, rooms) k (id, room)
                    join pull_line l on l.class_id = k.id and l.tenant_id = who[n] and l.active
                    cross join lateral (
                        select o.lane_id, o.run_id, o.class_id, o.priority, o.queued_at from offer o
                        where o.class_id = l.class_id and o.tenant_id = l.tenant_id and o.priority = l.priority
                          and o.queued_at >= l.head and o.due and o.taken_at is null
                        order by o.class_id, o.tenant_id, o.priority, o.queued_at, o.lane_id
                        limit least(want, k.room) for update skip locked) j
                    order by j.priority, j.queued_at, j.lane_id limit want) x;
                exit when ids is null;
                -- a lane that somebody is writing is left alone; its offer will follow
                held := array(select l.id from lane l where l.id = any(ids) and l.status = 'active' and l.claim_token is null
                              for update skip locked);
                -- read after the lanes are locked: a resume that comes now waits, and offers them again
                paused := array(select r.id from run r where r.id = any(runs) and r.paused_at is not null);
                exit when paused = '{}';
                -- What is paused is set aside, a piece of every line at a time: the takes behind this one go on with it.
                near := array(
                    select j.lane_id from unnest(classes) k
                    join pull_line l on l.class_id = k and l.tenant_id = who[n] and l.active
                    cross join lateral (
                        select o.lane_id from offer o
                        where o.class_id = l.class_id and o.tenant_id = l.tenant_id and o.priority = l.priority
                          and o.queued_at >= l.head and o.due and o.taken_at is null
                        order by o.class_id, o.tenant_id, o.priority, o.queued_at, o.lane_id limit 500) j);
                held := array(select l.id from lane l where l.id = any(near) and l.status = 'active'
                              and l.claim_token is null for update skip locked);
                paused := array(select r.id from run r where r.paused_at is not null
                                and r.id = any(array(select l.run_id from lane l where l.id = any(held))));
                update offer o set due = false, scheduled_for = 'infinity'
                where o.lane_id = any(held) and o.run_id = any(paused);
                exit when not found;
                ids := null;
            end loop;
            if ids is null or cardinality(ids) < want or random() < cardinality(ids) / 100.0 then
                thin := thin || who[n];
            end if;
            continue when ids is null;
            -- A class with a limit gives no more than it has room for, over all tenants of this take.
            if limited then
                ids := array(select u.id from (
                    select i.id, i.class, row_number() over (partition by i.class order by i.at) as place
                    from unnest(ids, kinds) with ordinality i (id, class, at)) u
                    where u.place <= coalesce(rooms[array_position(classes, u.class)], u.place));
            end if;
            ids := array(select i from unnest(ids) i where i = any(held));
            continue when ids = '{}';
            took := took || ids;
            if cardinality(ids) >= deep then
                deep := cardinality(ids); last_served := who[n];
            end if;
            if who[n] = any(counted) then
                update pull_tenant p set running = p.running || ids where p.tenant_id = who[n];
            end if;
            if limited then
                select array_agg(o.class_id) into kinds from offer o where o.lane_id = any(ids);
                rooms := array(select r.room - (select count(*)::int from unnest(kinds) x where x = r.id)
                               from unnest(classes, rooms) with ordinality r (id, room, i) order by r.i);
                update pull_class k
                set running = k.running || array(select o.lane_id from offer o where o.lane_id = any(ids) and o.class_id = k.id)
                where k.id = any(kinds) and k.most_running is not null;
            end if;
        end loop;
    end loop;
    if took <> '{}' then
        update offer o set taken_at = now(), worker = p_worker where o.lane_id = any(took);
        if p_tenant is null and last_served <> began then
            update pull_queue q set turn = last_served where q.name = p_queue;
        end if;
        return query
            with won as (
                update lane l set claim_token = p_token, lease_until = now() + p_lease, claims = l.claims + 1, resends = 0
                where l.id = any(took)
                returning l.id, l.run_id, l.tenant_id, l.kind, l.key, l.holds_run, l.epoch, l.seq, l.resend_no, l.cursor,
                          l.claims, l.attempts, l.steps, l.max_steps, l.cancel_at, l.deadline_at)
            select w.*, r.status, r.epoch, r.params, r.correlation_id,
                   (select o.queued_at from offer o where o.lane_id = w.id), now()
            from won w
            cross join lateral (select r.status, r.epoch, r.params, r.correlation_id from run r where r.id = w.run_id limit 1) r;
    end if;
    foreach t in array thin loop                               -- raise heads, park lines that are empty
        continue when not pg_try_advisory_xact_lock(hashtextextended(t::text, 2));
        update pull_line l set active = f is not null, head = coalesce(f, l.head)
        from unnest(classes) k
        join pull_line m on m.class_id = k and m.tenant_id = t and m.active
        cross join lateral (select (
            select o.queued_at from offer o
            where o.class_id = k and o.tenant_id = t and o.priority = m.priority and o.queued_at >= m.head
              and o.due and o.taken_at is null
            order by o.class_id, o.tenant_id, o.priority, o.queued_at, o.lane_id limit 1) as f) x
        where l.class_id = k and l.tenant_id = t and l.priority = m.priority and f is distinct from m.head;
    end loop;
end
$$;
revoke all on function take_offers(text, integer, uuid, interval, text, uuid) from public;
grant execute on function take_offers(text, integer, uuid, interval, text, uuid) to baton_worker
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    for table in ("offer", "pull_line", "pull_tenant"):
        run(policies(table))
    run(GRANTS)
    run(OFFER_LANE)
    run(BECOME_DUE)
    run(TAKE)
    run("reset role")
