"""Remote queries: what their runs keep, the places of those in flight, and the view that shows them under known names."""

from __future__ import annotations

from alembic import op

from infra.migrations.tenancy import TENANT, tenant_table

revision = "0020"
down_revision = "0011"
branch_labels = None
depends_on = None

TABLES = """
-- What a run keeps beside its lane: what the result looks like, who says so, and until when it may be read.
create table query_run (
    run_id uuid primary key,
    tenant_id uuid not null,
    columns jsonb,
    columns_from text,
    note text,
    target_key text,
    row_count bigint,
    results_expire_at timestamptz
);

-- A tenant's queries in flight, each in a place of its own: there are never more than there are places.
create table query_slot (
    tenant_id uuid not null,
    slot integer not null,
    run_id uuid not null unique,
    primary key (tenant_id, slot)
)
"""

# A view reads with its owner's eyes, so it names the tenant itself. What polling knows is read from the lane: no poll
# writes a second row.
VIEW = f"""
create view shell_query_runs with (security_barrier) as
select r.id, r.tenant_id, r.params ->> 'mid' as mid, r.params ->> 'eid' as eid, r.params ->> 'connection' as connection,
       r.params ->> 'sql_text' as sql_text, r.params ->> 'snippet_name' as snippet_name,
       case r.status when 'succeeded' then 'ready' else r.status end as status, r.outcome,
       l.cursor ->> 'task_id' as task_id, l.cursor ->> 'query_definition_id' as query_definition_id,
       (l.cursor ->> 'poll_started_at')::timestamptz as poll_started_at,
       coalesce((l.cursor ->> 'poll_count')::integer, 0) as poll_count, l.cursor as state,
       coalesce((l.cursor ->> 'partial_available')::boolean, false) as partial_available, l.cursor ->> 'warning' as warning,
       q.columns, q.columns_from, q.note, q.row_count, q.target_key, q.results_expire_at,
       coalesce(q.results_expire_at <= now(), false) as results_expired,
       r.error, r.error ->> 'message' as error_message, r.created_by as user_id, r.created_at, r.finished_at as completed_at
from run r
join query_run q on q.run_id = r.id
left join lane l on l.run_id = r.id and l.key = 'query'
where r.kind = 'query_run' and {TENANT.replace("tenant_id", "r.tenant_id")};

grant select on shell_query_runs to baton_api, baton_worker
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(TABLES)
    run(tenant_table("query_run", api="select, insert, update"))
    run(tenant_table("query_slot", api="select, delete"))
    run(VIEW.replace("%", "%%"))
    run("reset role")
