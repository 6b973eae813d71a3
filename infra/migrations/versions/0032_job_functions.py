"""Jobs on Lambda: what functions run waits in a queue of its own, whose takers have to be woken."""

from __future__ import annotations

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

# A queue of jobs is two pull queues: its name for workers, and `<name>@lambda` for functions. Each has its own turns.
WAKES = """
alter table pull_class add column wakes boolean not null default false
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
    insert into public.pull_class as c (id, queue, is_open, most_running, wakes)
    values (d.id, pull_from, d.is_active, d.concurrency_limit, on_lambda)
    on conflict (id) do update
    set queue = excluded.queue, is_open = excluded.is_open, most_running = excluded.most_running, wakes = excluded.wakes,
        running = case when c.most_running is not distinct from excluded.most_running then c.running end;
    insert into public.job_definition_versions (definition_id, version, body, changed_by)
    values (d.id, d.version, said, 'user:' || asked);
    return true;
end
$$
"""


def upgrade() -> None:
    run = op.get_bind().exec_driver_sql
    run("set local role baton_owner")
    run(WAKES)
    run("""
insert into pull_queue (name) select distinct queue || '@lambda' from job_definitions where executor = 'lambda'
on conflict (name) do nothing;
update pull_class c set queue = d.queue || '@lambda', wakes = true
from job_definitions d where d.id = c.id and d.executor = 'lambda'
""")
    run(PUT_DEFINITION)
    run("reset role")
