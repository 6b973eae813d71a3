"""An event by hand: one statement to accept it, one for all rows of the job that it starts; the rows and triggers are the
product's. Never changed together with product code (see README.md)."""

from __future__ import annotations

from uuid import UUID

from shared.kernel.clock import new_id
from shared.kernel.flights import Connection
from tests.bench.limits.bare import SET_TENANT

ACCEPT = """
insert into signal (tenant_id, name, payload, event_id, at, dispatched_at)
values ($1::uuid, 'provider.folder.updated', $2::jsonb, $3::uuid, now(), now())
on conflict (tenant_id, event_id) do nothing returning id
"""
START = """
with r as (
    insert into run (id, tenant_id, kind, label, status, params, check_at, source, source_ref, created_at)
    values ($1::uuid, $2::uuid, 'job', 'noop', 'queued', $3::jsonb, now() + interval '1 day', 'event', 'trigger', now())),
h as (
    insert into history (run_id, n, tenant_id, epoch, type, data, at)
    values ($1::uuid, 1, $2::uuid, 1, 'accepted', '{"lanes": 1}', now())),
f as (
    insert into trigger_firings (trigger_id, id, tenant_id, cause, signal_id, fire_at, through, key, status, run_id)
    values ($5::uuid, $1::uuid, $2::uuid, 'event', $6::bigint, now(), now(), $1::text, 'started', $1::uuid))
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, max_steps, class_id,
                  priority, created_at, updated_at)
values ($1::uuid, $1::uuid, $2::uuid, 'job', 'run', true, '{}', now(), now(), 'infinity', 100000, $4::uuid, 100, now(), now())
"""


def one(connection: Connection, tenant: UUID, class_id: UUID, trigger: UUID, payload: str, params: str) -> None:
    connection.before_next(SET_TENANT, str(tenant))
    ((signal,),) = connection.execute_often(ACCEPT, [tenant, payload, new_id()]).rows
    connection.before_next(SET_TENANT, str(tenant))
    connection.execute_often(START, [new_id(), tenant, params, class_id, trigger, signal])
