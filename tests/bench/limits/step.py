"""The bare limit of one step: claim, then one guarded commit with its page. Never changed together with product code."""

from __future__ import annotations

import uuid
from functools import lru_cache
from typing import Any

import orjson

from shared.kernel.flights import Connection
from tests.bench import rows
from tests.bench.limits.bare import SET_TENANT
from tests.bench.limits.bare import rows as ask
from tests.bench.limits.bare import rows_often as ask_often

CLAIM = """
update lane l
set claim_token = $1, lease_until = now() + interval '70 s', claims = l.claims + 1, resends = 0,
    check_at = least(l.check_at, now() + interval '130 s')
from run r
where l.id = $2 and l.epoch = $3 and l.seq = $4 and l.status = 'active' and l.next_due_at <= now() + interval '1 s'
  and (l.claim_token is null or l.lease_until < now())
  and r.id = l.run_id and (r.paused_at is null or l.cancel_at is not null)
returning l.run_id, l.tenant_id, l.cursor, l.claims, l.attempts, l.steps, l.max_steps, l.cancel_at, l.deadline_at,
          r.status, r.params, now()
"""

TURN = """
with turn as (
    update lane
    set seq = seq + 1, status = $10, cursor = $5, steps = steps + 1, attempts = 0, claims = 0, resends = 0,
        claim_token = null, lease_until = null, updated_at = now(), next_due_at = now(), sent_at = now(),
        check_at = least(check_at, now() + interval '90 s')
    where id = $1 and epoch = $2 and seq = $3 and claim_token = $4 and status = 'active'
    returning id, run_id, tenant_id, kind, epoch, seq, resend_no),
ledger as (
    insert into step (lane_id, epoch, seq, tenant_id, outcome, rows, ms)
    select id, epoch, seq - 1, tenant_id, $9, $6, $7 from turn),
page as (
    insert into bench_row as b (tenant_id, run_id, external_id, hash, body)
    select turn.tenant_id, turn.run_id, r ->> 'external_id', r ->> 'hash', r
    from turn, jsonb_array_elements($8::jsonb) as r
    order by r ->> 'external_id'
    on conflict (run_id, external_id)
    do update set hash = excluded.hash, body = excluded.body, updated_at = now()
    where b.hash is distinct from excluded.hash)
"""
COMMIT = f"{TURN} select id, epoch, seq, resend_no from turn"

NEW_RUN = """
with new as (
    insert into run (id, tenant_id, kind, status, params, check_at, started_at)
    values ($1, $2, 'pages', 'running', $3, now() + interval '1 hour', now())
    returning id, tenant_id, kind)
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, max_steps)
select $4, id, tenant_id, kind, 'l00000', true, '{"n": 0}', now(), now(), now() + interval '90 s', 1000000 from new
"""


class Lane:
    """One lane in the hands of a bare loop."""

    def __init__(self, connection: Connection, tenant: uuid.UUID, size: int = rows.PAGE_ROWS) -> None:
        self._connection = connection
        self._tenant = str(tenant)
        self._size = size
        self._seq = 0
        self.id = new_uuid()

    def create(self) -> None:
        params = orjson.dumps({"rows": self._size}).decode()
        ask(self._connection, NEW_RUN, new_uuid(), self._tenant, params, self.id)

    def step(self) -> None:
        """Two flights; the tenant rides in the second."""
        token, n = self.claim()
        self._connection.before_next(SET_TENANT, self._tenant)
        ((_, _, self._seq, _),) = ask_often(self._connection, COMMIT, *self.commit_values(token, n, "moved", "active"))

    def claim(self) -> tuple[uuid.UUID, int]:
        token = new_uuid()
        (row,) = ask_often(self._connection, CLAIM, token, self.id, 1, self._seq)
        return token, row[2]["n"]

    def commit_values(self, token: uuid.UUID, n: int, outcome: str, status: str) -> tuple[Any, ...]:
        cursor = orjson.dumps({"n": n + 1}).decode()
        page = orjson.dumps(_page(n, self._size)).decode()
        return (self.id, 1, self._seq, token, cursor, self._size, 0, page, outcome, status)


def new_uuid() -> uuid.UUID:
    return uuid.uuid4()  # noqa: TID251 - the limit shares no Python with the product


@lru_cache(maxsize=4096)
def _page(number: int, size: int) -> list[dict[str, Any]]:
    return rows.page(number, size)
