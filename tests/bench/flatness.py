"""Whether the hot statements stay flat: their pages with a thousand lanes, a million, and five million ended ones besides.

With nothing but a thousand lanes every table is a page or two and Postgres reads it whole, which no index can equal. So the
ratios stand against a thousand waiting lanes in a database that already holds a hundred thousand ended ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, sql
from shared.kernel.clock import new_id, stopwatch
from tests.bench import rows
from tests.bench.figures import Figure
from tests.bench.pages import UPSERT
from tests.bench.place import TENANT, Place, place

# Filling is not what is measured: no WAL to keep, no vacuum in between.
FILLING = {
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "16GB",
    "shared_buffers": "512MB",
    "maintenance_work_mem": "512MB",
    "autovacuum": "off",
}
LANES_PER_RUN = 100
STEPS, TICKS, TICK_BATCH = 15, 5, 200
FROM_THE_FIRST = {"most": TICK_BATCH, "at": "-infinity", "id": UUID(int=0), "began": None}
DUE_LANES = {**FROM_THE_FIRST, "but_kinds": [], "but_delayed": False}


@dataclass(frozen=True, slots=True)
class Size:
    waiting: int
    ended: int

    def __str__(self) -> str:
        return f"{self.waiting:,} waiting, {self.ended:,} ended lanes"


BASE = Size(1_000, 100_000)
SIZES = (Size(1_000, 0), BASE, Size(1_000_000, 100_000), Size(1_000_000, 5_000_000))
QUICK_BASE = Size(1_000, 1_000)
QUICK_SIZES = (Size(1_000, 0), QUICK_BASE, Size(2_000, 5_000))


def lane_id(era: int, number: int) -> UUID:
    """Ids grow with time, as the product's do."""
    return UUID(int=era << 80 | 7 << 76 | 2 << 62 | number)


def _sql_id(era: int, number: str) -> str:
    head = str(lane_id(era, 0))[:-12]
    return f"('{head}' || lpad(to_hex({number}), 12, '0'))::uuid"


WAITING_ERA, ENDED_ERA = 2, 1


def _fill_runs(era: int, first: int, last: int) -> str:
    ended = era == ENDED_ERA
    return f"""
insert into run (id, tenant_id, kind, status, check_at, finished_at)
select {_sql_id(era, "n")}, '{TENANT}', 'pages', '{"succeeded" if ended else "running"}', now() + interval '1 hour',
       {"now()" if ended else "null"}
from generate_series({first // LANES_PER_RUN}, {last // LANES_PER_RUN}) n
on conflict do nothing
"""


def _fill_lanes(era: int, first: int, last: int) -> str:
    """Every second waiting lane is overdue: the backlog after a lost queue."""
    ended = era == ENDED_ERA
    return f"""
insert into lane (id, run_id, tenant_id, kind, key, holds_run, status, cursor, next_due_at, sent_at, check_at, max_steps)
select {_sql_id(era, "n")}, {_sql_id(era, f"n / {LANES_PER_RUN}")}, '{TENANT}', 'pages', 'l' || n, true,
       '{"done" if ended else "active"}', '{{"n": 0}}', now() - interval '1 day', now() - interval '1 day',
       now() + case when n % 2 = 0 then interval '1 hour' else interval '-12 hours' end + n * interval '1 ms', 1000000
from generate_series({first}, {last}) n
"""


def measure(*, quick: bool = False) -> list[Figure]:
    """On a server of its own, which goes with all its data."""
    sizes, base = (QUICK_SIZES, QUICK_BASE) if quick else (SIZES, BASE)
    looks: dict[Size, dict[str, Cost]] = {}
    with place(FILLING) as here:
        watch = Watch(here)
        for size in sizes:
            watch.grow(size)
            looks[size] = watch.look()
    return [figure for size in sizes if size != base for figure in _figures(size, looks[size], looks[base])]


def _figures(size: Size, costs: Mapping[str, Cost], base: Mapping[str, Cost]) -> Iterator[Figure]:
    grown = size.ended > 0
    for name, cost in costs.items():
        ours, theirs = cost.pages, base[name].pages
        goal = "<= 1.3" if grown else ""
        yield Figure(
            name=f"{name}, pages: {size}", value=ours, unit="pages", against=theirs, ratio=ours / theirs, goal=goal
        )
        yield Figure(
            name=f"{name}, time: {size}", value=cost.ms, unit="ms", against=base[name].ms, ratio=cost.ms / base[name].ms
        )


@dataclass(frozen=True, slots=True)
class Cost:
    pages: float
    ms: float


MOVED = {
    "status": "active",
    "cursor": '{"n": 1}',
    "progress": 1,
    "attempts": 0,
    "error": None,
    "delay": "0 s",
    "sends": True,
    "look": "90 s",
    "outcome": "moved",
    "rows": 1,
    "ms": 1,
    "waits_for": None,
}


@dataclass(slots=True)
class Watch:
    """Looks at the statements of one growing database."""

    place: Place
    size: Size = Size(0, 0)
    _next: int = 1
    _looks: dict[str, list[Cost]] = field(default_factory=dict)

    def grow(self, size: Size) -> None:
        elapsed = stopwatch()
        for era, now, then in (
            (WAITING_ERA, self.size.waiting, size.waiting),
            (ENDED_ERA, self.size.ended, size.ended),
        ):
            if then > now:
                self.place.owner_runs(_fill_runs(era, now, then - 1), _fill_lanes(era, now, then - 1))
        self.place.owner_runs("vacuum analyze lane", "vacuum analyze run", "checkpoint")
        self.size = size
        print(f"  {size}: filled in {elapsed():.0f} s", flush=True)

    def look(self) -> dict[str, Cost]:
        """The median of some looks: a page split or a first visit is not the statement's own cost."""
        self._looks = {}
        for _ in range(STEPS):
            lane = self._some_lane()
            self._step(lane, "first ")  # `check_at` of a lane that slept long moves: its indexes are written
            self._step(lane, "")
            self._end(lane)
        for _ in range(TICKS):
            self._tick()
        return {
            name: Cost(statistics.median(c.pages for c in costs), statistics.median(c.ms for c in costs))
            for name, costs in self._looks.items()
        }

    def _some_lane(self) -> UUID:
        """Lanes that are not overdue, spread over the table."""
        self._next += 1
        return lane_id(WAITING_ERA, self._next * (self.size.waiting // 100) // 2 * 2 % self.size.waiting)

    def _step(self, lane: UUID, which: str) -> None:
        held = {"lane_id": lane, "epoch": 1, "seq": self._seq(lane), "token": new_id()}
        with self._autocommit() as connection:
            self._explain(
                connection, f"{which}claim", sql.CLAIM, {**held, "kind": "pages", "lease": "70 s", "watch": "130 s"}
            )
        with self._autocommit() as connection:
            db.set_tenant(connection, TENANT)
            page = db.jsonb(rows.page(self._next, 1))
            self._explain(connection, f"{which}commit", sql.commit_turn((UPSERT,)), {**held, **MOVED, "page": page})

    def _end(self, lane: UUID) -> None:
        run = lane_id(WAITING_ERA, (lane.int & 0xFFFFFFFF) // LANES_PER_RUN)
        with self._rolled_back() as connection:
            self._explain(connection, "lock run", sql.LOCK_RUN, {"run_id": run, "tenant_id": TENANT})
            self._explain(connection, "open lanes?", sql.HAS_OPEN_LANES, {"run_id": run})

    def _tick(self) -> None:
        with self._rolled_back() as connection:
            self._explain(connection, "tick: due lanes", sql.LOCK_DUE_LANES, DUE_LANES)
            lanes = [str(one) for one in connection.execute(sql.LOCK_DUE_LANES, DUE_LANES).scalars()]
            self._explain(connection, "tick: facts", sql.FACTS, {"lane_ids": lanes})
            self._explain(connection, "tick: judgements", sql.APPLY_JUDGEMENTS, {"judgements": _judgements(lanes)})
            self._explain(connection, "tick: due runs", sql.DUE_RUNS, FROM_THE_FIRST)

    def _seq(self, lane: UUID) -> int:
        with self._autocommit() as connection:
            return int(connection.execute(sa.text("select seq from lane where id = :id"), {"id": lane}).scalar_one())

    def _autocommit(self) -> sa.Connection:
        return db.autocommit(self.place.engine).connect()

    def _rolled_back(self) -> sa.Connection:
        return self.place.engine.connect()

    def _explain(
        self, connection: sa.Connection, name: str, statement: sa.TextClause, params: Mapping[str, Any]
    ) -> None:
        explained = sa.text(f"explain (analyze, buffers, format json) {statement.text}")
        (answer,) = connection.execute(explained, dict(params)).scalar_one()
        self._looks.setdefault(name, []).append(
            Cost(pages(answer["Plan"]), answer["Execution Time"] + answer["Planning Time"])
        )


def _judgements(lanes: Sequence[str]) -> str:
    judged = {"resend_no": 1, "resends": 1, "send": True, "due_now": False, "check_at": "2100-01-01T00:00:00Z"}
    return db.jsonb([{"lane_id": lane, **judged} for lane in lanes])


def pages(plan: Mapping[str, Any]) -> int:
    """All pages touched. A node counts what runs below it, but a writing CTE that nobody reads runs after the root."""
    nodes = list(_walk(plan))
    read = {node["CTE Name"] for node in nodes if node["Node Type"] == "CTE Scan"}
    unread = [n for n in nodes if n.get("Subplan Name", "").startswith("CTE ") and n["Subplan Name"][4:] not in read]
    return sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in (plan, *unread))


def _walk(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _walk(child)
