"""A job is enqueued by one statement, and written to fewer indexes."""

from __future__ import annotations

from alembic import op

revision = "0091"
down_revision = "0090"
branch_labels = None
depends_on = None

# Whoever remembers what a class says tells which version he knows, instead of reading it once more.
VERSION = """
alter table pull_class add column version integer not null default 1;
update pull_class c set version = d.version from job_definitions d where d.id = c.id
"""

PUT_DEFINITION = """
create or replace function put_job_definition(asked text, said jsonb) returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, public
    as $$
declare
    d public.job_definitions := jsonb_populate_record(null::public.job_definitions, said);
    on_lambda boolean := d.executor = 'lambda';
    pull_from text := d.queue || case when on_lambda then '@lambda' else '' end;
begin
    if not exists (select from public.super_admin where subject = asked) then
        return false;
    end if;
    insert into public.job_definitions as j (id, key, description, command, arg_schema, timeout_seconds, max_attempts, queue,
                                             executor, concurrency_limit, is_active, version)
    values (d.id, d.key, d.description, d.command, d.arg_schema, d.timeout_seconds, d.max_attempts, d.queue, d.executor,
            d.concurrency_limit, d.is_active, d.version)
    on conflict (key) do update
    set description = excluded.description, arg_schema = excluded.arg_schema, timeout_seconds = excluded.timeout_seconds,
        max_attempts = excluded.max_attempts, queue = excluded.queue, executor = excluded.executor,
        concurrency_limit = excluded.concurrency_limit, is_active = excluded.is_active, version = excluded.version,
        updated_at = now()
    where j.id = excluded.id and j.version = excluded.version - 1;
    if not found then
        return false;
    end if;
    insert into public.pull_queue (name) values (pull_from) on conflict (name) do nothing;
    insert into public.pull_class as c (id, queue, is_open, most_running, wakes, version)
    values (d.id, pull_from, d.is_active, d.concurrency_limit, on_lambda, d.version)
    on conflict (id) do update
    set queue = excluded.queue, is_open = excluded.is_open, most_running = excluded.most_running, wakes = excluded.wakes,
        version = excluded.version,
        running = case when c.most_running is not distinct from excluded.most_running then c.running end;
    insert into public.job_definition_versions (definition_id, version, body, changed_by)
    values (d.id, d.version, said, 'user:' || asked);
    return true;
end
$$
"""

# A run of one lane that is pulled: its row, its first line of history and its lane, whose offer follows by itself. The plans of
# a function are kept, also where a pooler lets no statement be prepared. Asked again with the same id it does nothing: whoever
# lost the first answer may. BT001: the class is not what the caller knows of it.
START_PULLED = """
create function start_pulled_run(
    p_id uuid, p_tenant uuid, p_kind text, p_label text, p_params jsonb, p_correlation text, p_time_limit_s integer,
    p_source text, p_source_ref text, p_created_by text, p_lane uuid, p_key text, p_cursor jsonb, p_delay interval,
    p_max_steps bigint, p_class uuid, p_version integer, p_priority integer, p_dedupe_key text) returns void
    language plpgsql volatile
    as $$
begin
    if p_version is not null then
        perform from pull_class c where c.id = p_class and c.version = p_version and c.is_open;
        if not found then
            raise exception 'the class has changed' using errcode = 'BT001';
        end if;
    end if;
    insert into run (id, tenant_id, kind, label, status, params, correlation_id, time_limit_s, deadline_at, check_at, source,
                     source_ref, created_by, created_at)
    values (p_id, p_tenant, p_kind, p_label, 'queued', p_params, p_correlation, p_time_limit_s,
            now() + make_interval(secs => p_time_limit_s), now() + least(interval '1 day', make_interval(secs => p_time_limit_s)),
            p_source, p_source_ref, p_created_by, now())
    on conflict (id) do nothing;
    if not found then
        return;
    end if;
    insert into history (run_id, n, tenant_id, epoch, type, data, at)
    values (p_id, 1, p_tenant, 1, 'accepted', '{"lanes": 1}', now());
    insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, max_steps, class_id,
                      priority, dedupe_key, created_at, updated_at)
    values (p_lane, p_id, p_tenant, p_kind, p_key, true, p_cursor, now() + p_delay, now(), 'infinity', p_max_steps, p_class,
            p_priority, p_dedupe_key, now(), now());
end
$$;
revoke all on function start_pulled_run from public;
grant execute on function start_pulled_run to baton_api, baton_worker
"""

# `run_list_kind_status` serves whoever asks for jobs by their status.
INDEXES = """
drop index run_jobs_status
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(VERSION)
    run(PUT_DEFINITION)
    run(START_PULLED)
    run(INDEXES)
    run("reset role")
