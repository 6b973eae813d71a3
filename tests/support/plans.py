"""Guards the cost of the hot statements: fills a database to any size, then counts what each statement touches there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct, sql
from shared.kernel.clock import new_id
from shared.kernel.decide import judge
from shared.kernel.model import Statement
from shared.kernel.store import PgTx
from tests.support.house import ALICE

ROWS_PER_STEP = 30
ADD_MANY = Statement(
    "tally.add_many",
    """insert into tally (tenant_id, run_id, lane, n)
       select tenant_id, run_id, key, n from turn cross join generate_series(1, cast(:many as integer)) n""",
)

# Ids that lie in the order of their making, as the product's do; a run has the number of its first lane.
_ID = "(lpad(to_hex({n}), 12, '0') || '{kind}' || substr(md5({n}::text), 1, 16))::uuid"
_RUN_ID, _LANE_ID = _ID.format(n="{0}", kind="7001"), _ID.format(n="{0}", kind="7002")

FILL_RUNS = f"""
insert into run (id, tenant_id, kind, status, epoch, params, check_at, started_at, finished_at)
select {_RUN_ID.format("n")}, :tenant, 'tally', :status, 1, '{{"target": 1000}}', now() + interval '1 hour', now(),
       case when :status = 'succeeded' then now() end
from generate_series(cast(:first as bigint), cast(:last as bigint), cast(:per_run as bigint)) n
"""
FILL_LANES = f"""
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, seq, cursor, next_due_at, sent_at, check_at,
                  max_steps)
select {_LANE_ID.format("n")}, {_RUN_ID.format("(n - mod(n - :first, :per_run))")}, :tenant, 'tally', 'l' || mod(n - :first, :per_run), true, :status,
       1, '{{"n": 1}}', now() + interval '10 minutes', now(), now() + interval '1 hour' + n * interval '1 ms', 1000
from generate_series(cast(:first as bigint), cast(:last as bigint)) n
"""
FILL_STEPS = f"""
insert into step (lane_id, epoch, seq, tenant_id, outcome)
select {_LANE_ID.format("n")}, 1, 0, :tenant, 'moved'
from generate_series(cast(:first as bigint), cast(:last as bigint)) n
"""
MAKE_LANES_DUE = """
update lane set next_due_at = now(), sent_at = null, check_at = now() - interval '1 minute'
where id in (select id from lane where status = 'active' order by id limit :due)
"""
MAKE_RUNS_DUE = """
update run set check_at = now() - interval '1 minute'
where id in (select id from run where status = 'running' order by id limit :due)
"""
THE_WIDE_RUN = """
select run_id from lane where key = 'l' || cast(:wide as integer) - 1
"""
A_WAITING_LANE = """
select id, run_id from lane where status = 'active' and sent_at is not null order by id desc limit 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many lanes a database holds; the due ones are among the active."""

    active: int
    ended: int
    due: int = 100
    lanes_per_run: int = 2
    wide: int = 5_000  # ended lanes of one run that is still open


@dataclass(frozen=True, slots=True)
class Cost:
    """What one execution touched."""

    buffers: int
    ms: float
    scanned: frozenset[str]  # tables read from end to end
    indexes: frozenset[str] = frozenset()  # that were searched


class Filler:
    """Grows a database that has the tally's table; can be called again with larger sizes."""

    def __init__(self, superuser_url: str, *, analyses: bool = True) -> None:
        self._engine = db.connect_engine(superuser_url, application_name="filler")
        self._analyses = analyses
        self._active = self._ended = 0
        self._next = 0
        self._due = 0
        self._wide = False

    def grow(self, sizes: Sizes) -> None:
        with self._engine.begin() as connection:
            self._add(connection, sizes.ended - self._ended, sizes.lanes_per_run, "succeeded", "done")
            self._add(connection, sizes.active - self._active, sizes.lanes_per_run, "running", "active")
            self._ended, self._active = sizes.ended, sizes.active
            self._add_wide_run(connection, sizes.wide)
            self._make_due(connection, sizes.due)
        if self._analyses:
            self.tidy()

    def tidy(self) -> None:
        with db.autocommit(self._engine).connect() as connection:
            for table in ("lane", "run", "step", "tally"):
                connection.exec_driver_sql(f"vacuum analyze {table}")

    def close(self) -> None:
        self._engine.dispose()

    def _add_wide_run(self, connection: sa.Connection, lanes: int) -> None:
        """Once: a run whose many lanes have all ended, just before the last one out looks around."""
        if self._wide:
            return
        self._wide = True
        self._add(connection, lanes, lanes, "running", "done")

    def _make_due(self, connection: sa.Connection, due: int) -> None:
        """Once: rows that are updated again would lie elsewhere, and the comparison with them."""
        if self._due == due:
            return
        self._due = due
        for statement in (MAKE_LANES_DUE, MAKE_RUNS_DUE):
            connection.execute(sa.text(statement), {"due": due})

    def _add(self, connection: sa.Connection, count: int, per_run: int, run_status: str, lane_status: str) -> None:
        if count <= 0:
            return
        first, last = self._next, self._next + count - 1
        params = {"tenant": ALICE, "per_run": per_run, "first": first, "last": last, "status": lane_status}
        connection.execute(sa.text(FILL_RUNS), {**params, "status": run_status})
        connection.execute(sa.text(FILL_LANES), params)
        connection.execute(sa.text(FILL_STEPS), {"tenant": ALICE, "first": first, "last": last})
        self._next = last + 1


def measure(worker: sa.Engine, sizes: Sizes) -> dict[str, Cost]:
    """The cost of each hot statement, as the worker runs it. Everything is rolled back."""
    costs: dict[str, Cost] = {}
    for part in (_a_step, _a_tick, _an_ending):
        with worker.connect() as connection, connection.begin() as transaction:
            db.set_tenant(connection, ALICE)
            costs |= dict(part(connection, sizes))
            transaction.rollback()
    return costs


Measured = Iterator[tuple[str, Cost]]


def _a_step(connection: sa.Connection, sizes: Sizes) -> Measured:
    lane_id, _ = _a_waiting_lane(connection)
    connection.execute(sa.text("update lane set next_due_at = now() where id = :id"), {"id": lane_id})
    held = {"lane_id": lane_id, "epoch": 1, "seq": 1, "token": new_id()}
    yield "claim", explain(connection, sql.CLAIM, {**held, "kind": "tally", "lease": "70 s", "watch": "130 s"})
    change = {
        "status": "active", "cursor": '{"n": 2}', "progress": 1, "attempts": 0, "error": None, "delay": "0 s", "sends": True, "look": "90 s",
        "outcome": "moved", "rows": ROWS_PER_STEP, "ms": 1, "waits_for": None, "many": ROWS_PER_STEP,
    }  # fmt: skip
    yield "commit", explain(connection, sql.commit_turn((ADD_MANY,)), {**held, **change})
    batons = db.jsonb([{"lane_id": str(lane_id), "epoch": 1, "seq": 2, "resend_no": 0}])
    yield "mark_unsent", explain(connection, sql.MARK_UNSENT, {"batons": batons})


def _a_tick(connection: sa.Connection, sizes: Sizes) -> Measured:
    tx = PgTx(direct.Line(connection.connection.dbapi_connection))  # type: ignore[arg-type]
    first = {"most": sizes.due, "at": "-infinity", "id": UUID(int=0), "began": None}
    yield "lock_due_lanes", explain(connection, sql.LOCK_DUE_LANES, {**first, "but_kinds": [], "but_delayed": False})
    lane_ids = [place.id for place in tx.lock_due_lanes(sizes.due)]
    assert len(lane_ids) == sizes.due, "as many lanes are due as were made due"
    yield "facts", explain(connection, sql.FACTS, {"lane_ids": [str(lane_id) for lane_id in lane_ids]})
    judgements = [judge(facts) for facts in tx.facts(lane_ids)]
    assert all(judgement.send for judgement in judgements)
    rows = [
        {
            "lane_id": str(judgement.lane.lane_id),
            "resend_no": judgement.resend_no,
            "resends": judgement.resends,
            "send": True,
            "due_now": False,
            "check_at": judgement.check_at and judgement.check_at.isoformat(),
        }
        for judgement in judgements
    ]
    yield "apply_judgements", explain(connection, sql.APPLY_JUDGEMENTS, {"judgements": db.jsonb(rows)})
    yield "due_runs", explain(connection, sql.DUE_RUNS, first)
    waits = {"kinds": ["tally"], "lease_s": 70, "watch_s": 130}
    yield "longest_waits", explain(connection, sql.LONGEST_WAITS, waits)


def _an_ending(connection: sa.Connection, sizes: Sizes) -> Measured:
    _, run_id = _a_waiting_lane(connection)
    yield "lock_run", explain(connection, sql.LOCK_RUN, {"run_id": run_id, "tenant_id": ALICE})
    yield "has_open_lanes", explain(connection, sql.HAS_OPEN_LANES, {"run_id": run_id})
    wide = connection.execute(sa.text(THE_WIDE_RUN), {"wide": sizes.wide}).scalar_one()
    yield "last_lane_out", explain(connection, sql.HAS_OPEN_LANES, {"run_id": wide})
    yield "lanes", explain(connection, sql.LANES, {"run_id": run_id})
    yield "cancel_lanes", explain(connection, sql.CANCEL_LANES, {"run_id": run_id})


def _a_waiting_lane(connection: sa.Connection) -> tuple[UUID, UUID]:
    lane_id, run_id = connection.execute(sa.text(A_WAITING_LANE)).one()
    return lane_id, run_id


def explain(connection: sa.Connection, statement: sa.TextClause, params: Mapping[str, Any]) -> Cost:
    """Run a statement and count. Planning is not counted: it depends on what the session has seen before."""
    explained = sa.text(f"explain (analyze, buffers, timing off, format json) {statement.text}")
    (answer,) = connection.execute(explained, params).scalar_one()
    return counted(answer)


def counted(answer: Mapping[str, Any]) -> Cost:
    """What `explain` answered."""
    nodes = list(_nodes(answer["Plan"]))
    # A CTE's work shows twice: at its own root and in the scan that first pulls from it. One that writes and that
    # nobody reads shows at its own root alone.
    roots = [node for node in nodes if node.get("Subplan Name", "").startswith("CTE ")]
    scans = [node for node in nodes if node["Node Type"] == "CTE Scan"]
    buffers = _touched(answer["Plan"]) + sum(map(_touched, roots)) - sum(map(_touched, scans))
    scanned = frozenset(node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan")
    indexes = frozenset(node["Index Name"] for node in nodes if "Index Name" in node)
    return Cost(buffers, answer["Execution Time"], scanned, indexes)


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _touched(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])
