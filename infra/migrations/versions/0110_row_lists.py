"""Lists of rows that are flat for every filter, exports with a snapshot of their own, and fixes of rows that failed."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import tenant_table

revision = "0110"
down_revision = "0102"
branch_labels = None
depends_on = None

OWNER = "(select nullif(current_setting('app.owner', true), ''))"

# An export is a run of its own; `gen` counts its snapshots, and `upto` is the last row of the newest.
# While one is open, whoever changes a row first keeps it as it was: the export reads that instead.
TABLES = """
create table row_exports (
    run_id uuid primary key,
    tenant_id uuid not null,
    job_id uuid not null,
    format text not null,
    rows text not null,
    created_by text,
    gen integer not null default 0,
    open boolean not null default false,
    taken_at timestamptz,
    upto bigint,
    written bigint,
    files jsonb not null default '[]',
    created_at timestamptz not null,
    finished_at timestamptz
);
create index row_exports_open on row_exports (job_id) where open;
create index row_exports_of_job on row_exports (tenant_id, job_id, created_at);

create table export_kept (
    export_id uuid not null,
    gen integer not null,
    row_no bigint not null,
    tenant_id uuid not null,
    status text not null,
    input_json jsonb not null,
    normalized_json jsonb,
    result_json jsonb,
    attempts integer not null,
    last_error text,
    updated_at timestamptz not null,
    primary key (export_id, gen, row_no)
);

-- A file with rows that were fixed, for a job that there is already.
create table row_fixes (
    file_id uuid primary key references files (id),
    run_id uuid not null,
    tenant_id uuid not null,
    created_by text,
    fixed bigint not null default 0,
    unchanged bigint not null default 0,
    unmatched bigint not null default 0,
    examples jsonb not null default '[]',
    created_at timestamptz not null,
    finished_at timestamptz
);
create index row_fixes_of_job on row_fixes (run_id, created_at);
"""

# Its queries see what is committed when they run, and they run after the rows were changed: whoever does not see an export
# that is open has its transaction id by then, and the export waits for all that had one when it was opened.
KEEP = """
create function keep_for_exports() returns trigger
    language plpgsql security definer set search_path = pg_catalog, public as $$
begin
    insert into public.export_kept (export_id, gen, row_no, tenant_id, status, input_json, normalized_json, result_json, attempts,
                                    last_error, updated_at)
    select e.run_id, e.gen, o.row_no, o.tenant_id, o.status, o.input_json, o.normalized_json, o.result_json, o.attempts, o.last_error,
           o.updated_at
    from public.row_exports e join old_rows o on o.run_id = e.job_id and o.row_no <= e.upto
    where e.open
    on conflict do nothing;
    return null;
end $$;
revoke all on function keep_for_exports() from public;
create trigger keep_for_exports after update on job_items referencing old table as old_rows
    for each statement execute function keep_for_exports();
"""


# What is open in every tenant, for a super admin; for anybody else, nothing. Each tenant's stretch is merged as those of a list
# are, so a page costs the same wherever it begins.
OF_ALL_TENANTS = """
create function pending_of_all_tenants(asked text, types text[], statuses text[], after_at timestamptz, after_run uuid,
                                       after_row bigint, from_at timestamptz, before_at timestamptz, most integer)
    returns table (tenant_id uuid, tenant text, run_id uuid, row_no bigint, updated_at timestamptz, status text, attempts integer,
                   locked_by uuid, locked_at timestamptz, job_type text, user_id text, title text, brand text, sku text, job_name text,
                   run_status text, paused boolean, counts jsonb, counted_at timestamptz, gone boolean)
    language sql stable security definer set search_path = pg_catalog, public as $$
    with keys as (
        select k.updated_at, k.run_id, k.row_no, t.id, t.name
        from public.tenant t cross join unnest(types) y (job_type) cross join unnest(statuses) s (status)
        cross join lateral (
            select i.updated_at, i.run_id, i.row_no from public.job_items i
            where i.tenant_id = t.id and i.job_type = y.job_type and i.status = s.status and i.status in ('PENDING', 'PROCESSING')
              and (i.updated_at, i.run_id, i.row_no) > (after_at, after_run, after_row)
              and i.updated_at >= from_at and i.updated_at < before_at
            order by i.updated_at, i.run_id, i.row_no limit most) k
        where exists (select from public.super_admin where subject = asked)
        order by k.updated_at, k.run_id, k.row_no limit most)
    select k.id, k.name, i.run_id, i.row_no, i.updated_at, i.status, i.attempts, i.locked_by, i.locked_at, i.job_type, i.user_id,
           i.normalized_json ->> 'title', i.normalized_json ->> 'brand', i.normalized_json ->> 'sku', f.name, r.status,
           r.paused_at is not null, j.counts, j.counted_at, j.deleted_at is not null
    from keys k join public.job_items i on i.run_id = k.run_id and i.row_no = k.row_no
    join public.file_jobs j on j.run_id = i.run_id join public.files f on f.id = j.file_id join public.run r on r.id = i.run_id
    order by k.updated_at, k.run_id, k.row_no
    $$;
revoke all on function pending_of_all_tenants from public;
grant execute on function pending_of_all_tenants to baton_api;
"""


def of_visible(table: str, mine: str) -> str:
    """Somebody who sees only his own sees only what he asked for, and what belongs to his runs."""
    return f"create policy of_visible_runs on {table} as restrictive to baton_api using ({OWNER} is null or {mine});"


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(tenant_table("row_exports", api="select, insert"))
    run(tenant_table("export_kept"))
    run(tenant_table("row_fixes", api="select, insert"))
    run(of_visible("row_exports", f"created_by = {OWNER}"))
    run(of_visible("row_fixes", "owns_run(run_id)"))
    run(KEEP)
    run(OF_ALL_TENANTS)
    run("reset role")
