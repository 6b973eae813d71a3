"""The bare limit of reading runs over HTTP: who asks, his rows, and those as JSON. Never changed together with product code."""

from __future__ import annotations

from uuid import UUID

import orjson

from shared.kernel.flights import Connection
from tests.bench.limits.bare import SET_TENANT
from tests.bench.limits.bare import rows as ask

WHO = "select tenant_id, tenant, role, is_super from memberships($1)"
RUN = """r.id, r.kind, r.label, case when r.paused_at is not null then 'paused' else r.status end, r.outcome, r.epoch,
    r.created_by, r.source, r.source_ref, r.created_at, r.started_at, r.finished_at, r.deadline_at, r.cancel_requested_at,
    r.error, g.*, w.*"""
GOING = """
left join lateral (
    select count(*), count(*) filter (where l.status <> 'active'), max(l.updated_at), sum(l.steps)::bigint,
           min(l.next_due_at) filter (where l.status = 'active')
    from (select * from lane where run_id = r.id and holds_run limit 200) l) g on true
left join lateral (
    select w.code, w.sentence, w.until, w.held_by, w.action
    from (select id, next_due_at from lane where run_id = r.id and status = 'active' and holds_run limit 200) l
    left join lateral why(l.id) w on true
    order by w.code is not null, l.next_due_at, l.id limit 1) w on r.finished_at is null"""
PAGE = f"""
select {RUN} from (
    select * from run where tenant_id = $1 order by created_at desc, id desc limit $2) r {GOING}
order by r.created_at desc, r.id desc"""
ONE = f"select {RUN}, r.params, r.correlation_id, now() from run r {GOING} where r.id = $1 and r.tenant_id = $2"
CALLS = """
select epoch, key, kind, remote_id, leaves_asset, intended_at, confirmed_at, cleaned_at from remote_call
where run_id = $1 and tenant_id = $2 order by intended_at desc, key limit 200"""


def page(connection: Connection, subject: str, size: int) -> bytes:
    tenant = _tenant_of(connection, subject)
    connection.before_next(SET_TENANT, str(tenant))
    return _json(ask(connection, PAGE, tenant, size + 1)[:size])


def one(connection: Connection, subject: str, run_id: UUID) -> bytes:
    tenant = _tenant_of(connection, subject)
    connection.before_next(SET_TENANT, str(tenant))
    (run,) = ask(connection, ONE, run_id, tenant)
    connection.before_next(SET_TENANT, str(tenant))
    return _json([run, *ask(connection, CALLS, run_id, tenant)])


def _tenant_of(connection: Connection, subject: str) -> UUID:
    ((tenant, *_),) = ask(connection, WHO, subject)
    return UUID(str(tenant))


def _json(rows: list[object]) -> bytes:
    return orjson.dumps(rows, default=str)
