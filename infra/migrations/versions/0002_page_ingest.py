"""Page ingestion: raw items per run, the consolidated diamonds, what is known of an upstream, and the views to watch it."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TENANT = "tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid)"

TABLES = """
create table raw_item (
    run_id uuid not null,
    external_id text not null,
    tenant_id uuid not null,
    source text not null,
    offer_id text not null,
    price_cents bigint not null,
    partition text not null,
    page bigint not null,
    hash text not null,
    payload jsonb not null,
    seen_at timestamptz not null,
    primary key (run_id, external_id)
);
create index raw_item_price on raw_item (run_id, price_cents);

create table diamond (
    tenant_id uuid not null,
    source text not null,
    external_id text not null,
    offer_id text not null,
    price_cents bigint not null,
    carats numeric,
    shape text,
    color text,
    clarity text,
    lab text,
    certificate text,
    availability text,
    rest jsonb not null,
    source_run uuid not null,
    -- the newest run that said anything of the stone: that it is there, or that it is gone
    said_by uuid not null,
    said_at timestamptz not null,
    gone_at timestamptz,
    primary key (tenant_id, source, external_id)
);
create index diamond_present on diamond (tenant_id, source, price_cents) where gone_at is null;

-- What the steps of a tenant know together about an upstream: its token, who is fetching a new one, how much it can bear.
create table upstream (
    tenant_id uuid not null,
    source text not null,
    token text,
    token_until timestamptz,
    refresher uuid,
    refresh_until timestamptz,
    page_size integer,
    page_size_until timestamptz,
    primary key (tenant_id, source)
)
"""

TENANT_TABLES = ("raw_item", "diamond", "upstream")


def policies(table: str) -> str:
    return f"""
alter table {table} enable row level security;
alter table {table} force row level security;
create policy owner_all on {table} to baton_owner using (true) with check (true);
create policy tenant_only on {table} to baton_worker, baton_api using ({TENANT}) with check ({TENANT});
grant select, insert, update, delete on {table} to baton_worker
"""


# A view reads with its owner's eyes, so each one names the tenant itself.
VIEWS = f"""
grant select on raw_item, diamond to baton_api;

create view raw_diamonds_nivoda with (security_barrier) as
select run_id, external_id as supplier_stone_id, offer_id as nivoda_stone_id, payload as raw_payload, hash as source_hash,
       partition as partition_id, page, price_cents, seen_at as updated_at, tenant_id
from raw_item where source = 'nivoda' and {TENANT};

create view partition_progress with (security_barrier) as
select l.run_id, l.key as partition_id, (l.cursor ->> 'offset')::bigint as next_offset, l.status = 'done' as completed,
       l.status, (l.cursor ->> 'low')::bigint as min_price, (l.cursor ->> 'high')::bigint as max_price,
       (l.cursor ->> 'crawl')::integer as crawl, (l.cursor ->> 'split')::boolean as split,
       (l.cursor ->> 'clean')::boolean as clean, (l.cursor ->> 'counted')::bigint as total_records,
       (l.cursor ->> 'duplicates')::bigint as duplicates, l.attempts, l.last_error, p.pace_s,
       l.status = 'active' and not exists (select from run r where r.id = l.run_id and r.paused_at is not null)
           and now() - greatest(l.updated_at, l.next_due_at) > make_interval(secs => greatest(120, 10 * p.pace_s)) as stuck,
       l.id as lane_id, l.created_at, l.updated_at, l.tenant_id
from lane l
cross join lateral (
    select extract(epoch from l.updated_at - l.created_at)::double precision / greatest(l.steps, 1) as pace_s) p
where l.kind = 'page_ingest' and l.key like 'part:%' and {TENANT.replace("tenant_id", "l.tenant_id")};

create view worker_runs with (security_barrier) as
select p.lane_id as id, p.run_id, p.partition_id,
       case p.status when 'active' then 'running' when 'done' then 'completed' else p.status end as status,
       (select count(*) from raw_item i where i.run_id = p.run_id and i.price_cents >= p.min_price * 100
                                          and i.price_cents < p.max_price * 100) as records_processed,
       p.last_error ->> 'message' as error_message, p.created_at as started_at,
       case when p.status <> 'active' then p.updated_at end as completed_at, p.tenant_id
from partition_progress p;

create view run_metadata with (security_barrier) as
select r.id as run_id, r.status, r.outcome, r.params, r.created_at as started_at, r.finished_at as completed_at,
       count(p.partition_id) as expected_workers, count(p.partition_id) filter (where p.completed) as completed_workers,
       count(p.partition_id) filter (where p.status = 'failed') as failed_workers, r.tenant_id
from run r
left join lateral (
    select distinct on (min_price, max_price) * from partition_progress each where each.run_id = r.id
    order by min_price, max_price, crawl desc) p on not p.split
where r.kind = 'page_ingest' and {TENANT.replace("tenant_id", "r.tenant_id")}
group by r.id;

grant select on raw_diamonds_nivoda, partition_progress, worker_runs, run_metadata to baton_api, baton_worker
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    for table in TENANT_TABLES:
        run(policies(table))
    run(VIEWS.replace("%", "%%"))
    run("reset role")
