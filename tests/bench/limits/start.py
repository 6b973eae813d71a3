"""The bare limit of a start: the run and its lanes from one parameter. Never changed together with product code."""

from __future__ import annotations

import uuid

import orjson

from shared.kernel.flights import Connection
from tests.bench.limits.bare import rows as ask
from tests.bench.limits.step import new_uuid

START = """
with run as (
    insert into run (id, tenant_id, kind, status, params, check_at)
    values ($1, $2, 'pages', 'queued', $3, now() + interval '1 hour') returning id, tenant_id),
line as (
    insert into history (run_id, n, tenant_id, epoch, type) select id, 1, tenant_id, 1, 'accepted' from run)
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, max_steps)
select (l ->> 'id')::uuid, run.id, run.tenant_id, 'pages', l ->> 'key', true, l -> 'cursor', now(), now(),
       now() + interval '90 s', 1000000
from run, jsonb_array_elements($4::jsonb) l
"""


def start(connection: Connection, tenant: uuid.UUID, lanes: int) -> None:
    new = [{"id": str(new_uuid()), "key": f"l{n:05d}", "cursor": {"n": 0}} for n in range(lanes)]
    ask(connection, START, new_uuid(), tenant, "{}", orjson.dumps(new).decode())
