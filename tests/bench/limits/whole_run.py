"""The bare limit of a whole run of one lane: the relay's statements by hand. Never changed together with product code.

`one_by_one` sends them as the relay does, each in a flight of its own; `tightest` sends what may travel together.
"""

from __future__ import annotations

import uuid
from typing import Any

import orjson

from shared.kernel.flights import Connection
from tests.bench.limits import step
from tests.bench.limits.bare import SET_TENANT
from tests.bench.limits.bare import rows as ask

INSERT_RUN = """
insert into run (id, tenant_id, kind, status, params, check_at)
values ($1, $2, 'pages', 'queued', $3, now() + interval '1 hour') returning id, epoch, now()
"""
INSERT_LANE = """
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, max_steps)
values ($1, $2, $3, 'pages', 'l00000', true, '{"n": 0}', now(), now(), now() + interval '90 s', 1000000)
returning id, epoch, seq, resend_no
"""
HISTORY = """
insert into history (run_id, n, tenant_id, epoch, type, data)
select $1, coalesce(max(n), 0) + 1, $2, 1, $3, $4 from history where run_id = $1
"""
LOCK_RUN = "select id, status, epoch, params, now() from run where id = $1 and tenant_id = $2 for no key update"
MARK_RUNNING = "update run set status = 'running', started_at = now() where id = $1 and status = 'queued'"
HAS_OPEN = "select exists (select from lane where run_id = $1 and status = 'active' and holds_run)"
LANES = "select id, key, status, holds_run, epoch, cursor, last_error from lane where run_id = $1 order by key"
END_RUN = """
update run set status = 'succeeded', outcome = 'done', finished_at = now()
where id = $1 and status in ('queued', 'running')
"""
SIGNAL = "insert into signal (tenant_id, name, payload) values ($1, 'run.succeeded', $2)"

START = """
with run as (
    insert into run (id, tenant_id, kind, status, params, check_at)
    values ($1, $2, 'pages', 'queued', $3, now() + interval '1 hour') returning id, tenant_id),
line as (
    insert into history (run_id, n, tenant_id, epoch, type, data)
    select id, 1, tenant_id, 1, 'accepted', '{"lanes": 1}' from run)
insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, sent_at, check_at, max_steps)
select $4, id, tenant_id, 'pages', 'l00000', true, '{"n": 0}', now(), now(), now() + interval '90 s', 1000000 from run
returning id, epoch, seq, resend_no
"""
FIRST_STEP = f"""{step.TURN},
running as (
    update run set status = 'running', started_at = now() from turn where run.id = turn.run_id and run.status = 'queued'
    returning run.id, run.tenant_id),
line as (
    insert into history (run_id, n, tenant_id, epoch, type, data)
    select id, (select coalesce(max(n), 0) + 1 from history h where h.run_id = running.id), tenant_id, 1, 'running', '{{}}'
    from running)
select id, epoch, seq, resend_no from turn
"""
END = """
with ended as (
    update run set status = 'succeeded', outcome = 'done', finished_at = now()
    where id = $1 and status in ('queued', 'running')
      and not exists (select from lane where run_id = $1 and status = 'active' and holds_run)
    returning id, tenant_id),
line as (
    insert into history (run_id, n, tenant_id, epoch, type, data)
    select id, (select coalesce(max(n), 0) + 1 from history h where h.run_id = ended.id), tenant_id, 1, 'succeeded',
           '{"outcome": "done"}' from ended)
insert into signal (tenant_id, name, payload) select tenant_id, 'run.succeeded', $2 from ended
"""


class Run(step.Lane):
    """A run with one lane, from its start to its end."""

    def __init__(self, connection: Connection, tenant: uuid.UUID, size: int) -> None:
        super().__init__(connection, tenant, size)
        self._run = step.new_uuid()
        self._params = orjson.dumps({"rows": size}).decode()
        self._signal = orjson.dumps({"run_id": str(self._run), "kind": "pages", "outcome": "done"}).decode()

    def one_by_one(self, steps: int) -> None:
        self._start()
        self._first_step()
        for _ in range(steps - 2):
            self.step()
        self._last_step()

    def tightest(self, steps: int) -> None:
        """Start in one flight, the first step in three, the last in four."""
        ask(self._connection, START, self._run, self._tenant, self._params, self.id)
        self._first_step_tight()
        for _ in range(steps - 2):
            self.step()
        self._last_step_tight()

    def _start(self) -> None:
        self._begin()
        ask(self._connection, INSERT_RUN, self._run, self._tenant, self._params)
        self._line("accepted", '{"lanes": 1}')
        ask(self._connection, INSERT_LANE, self.id, self._run, self._tenant)
        self._commit()

    def _first_step(self) -> None:
        token, n = self.claim()
        self._begin()
        ask(self._connection, LOCK_RUN, self._run, self._tenant)
        self._write(step.COMMIT, token, n, "moved", "active")
        ask(self._connection, MARK_RUNNING, self._run)
        self._line("running", "{}")
        self._commit()

    def _last_step(self) -> None:
        token, n = self.claim()
        self._begin()
        ask(self._connection, LOCK_RUN, self._run, self._tenant)
        self._write(step.COMMIT, token, n, "done", "done")
        ask(self._connection, HAS_OPEN, self._run)
        ask(self._connection, LANES, self._run)
        ask(self._connection, END_RUN, self._run)
        self._line("succeeded", '{"outcome": "done"}')
        ask(self._connection, SIGNAL, self._tenant, self._signal)
        self._commit()

    def _first_step_tight(self) -> None:
        token, n = self.claim()
        self._begin()
        ask(self._connection, LOCK_RUN, self._run, self._tenant)
        values = self.commit_values(token, n, "moved", "active")
        ((_, _, self._seq, _),) = self._last_words(FIRST_STEP, *values)

    def _last_step_tight(self) -> None:
        token, n = self.claim()
        self._begin()
        ask(self._connection, LOCK_RUN, self._run, self._tenant)
        self._connection.before_next(step.COMMIT, *self.commit_values(token, n, "done", "done"))
        ask(self._connection, LANES, self._run)
        self._last_words(END, self._run, self._signal)

    def _write(self, statement: str, token: uuid.UUID, n: int, outcome: str, status: str) -> None:
        values = self.commit_values(token, n, outcome, status)
        ((_, _, self._seq, _),) = ask(self._connection, statement, *values)

    def _line(self, type_: str, data: str) -> None:
        ask(self._connection, HISTORY, self._run, self._tenant, type_, data)

    def _begin(self) -> None:
        """The driver sends `begin` and the tenant with the next statement."""
        self._connection.autocommit = False
        self._connection.before_next(SET_TENANT, self._tenant)

    def _commit(self) -> None:
        self._connection.commit()
        self._connection.autocommit = True

    def _last_words(self, statement: str, *values: Any) -> list[Any]:
        """A statement that guards itself, with the commit in the same flight."""
        from pg8000.core import DESCRIBE, EXECUTE_MSG, NULL_BYTE, PORTAL, SYNC_MSG, Context, i_pack

        describe = DESCRIBE + i_pack(len(PORTAL + NULL_BYTE) + 4) + PORTAL + NULL_BYTE
        connection, context = self._connection, Context(statement)
        said = connection._bound(statement, values) + describe + EXECUTE_MSG + connection._bound("commit") + EXECUTE_MSG
        connection._fly(said + SYNC_MSG, [context, Context("commit")])
        connection.autocommit = True
        found: list[Any] = context.rows or []
        return found
