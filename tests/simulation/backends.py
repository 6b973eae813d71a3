"""The two stores a schedule can run on, with what the invariants need to see of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.store import PgStore
from tests.simulation.memory_store import NEVER, MemoryStore
from tests.support.tally import ADD, FORGET, SCHEMA

if TYPE_CHECKING:
    from tests.simulation.world import World

GATES = UUID(int=0)
Changed = Iterator[tuple[str, SimpleNamespace]]


class MemoryBackend(MemoryStore):
    def __init__(self, world: World) -> None:
        super().__init__(world.clock, {ADD.name: add_to_tally, FORGET.name: forget_tally})
        self.dirty = False
        self._runs: set[UUID] = set()

    def has_changed(self) -> bool:
        return bool(self.touched)

    def changed(self) -> Changed:
        touched, self.touched = self.touched, set()
        self._runs = {each for each in touched if each in self.runs}
        for each in touched:
            lane = self.lanes.get(each)
            if lane is not None:
                self._runs.add(lane.run_id)
                yield "lane", SimpleNamespace(**lane.__dict__)
        if GATES in touched:
            for gate in self.gates.values():
                yield "gate", SimpleNamespace(**gate.__dict__)

    def changed_runs(self) -> Changed:
        for each in self._runs:
            run = self.runs[each]
            yield "run", SimpleNamespace(**run.__dict__, lines=list(self.history[each]))

    def steps_of(self, lane_id: UUID) -> list[tuple[int, int, str]]:
        return [(epoch, seq, row[0]) for (lane, epoch, seq), row in self.steps.items() if lane == lane_id]

    def tally_of(self, run_id: UUID, lane: str) -> list[tuple[UUID, int]]:
        return [(tenant, n) for tenant, run, key, n in self.tally if run == run_id and key == lane]

    def signals_of(self, run_id: UUID) -> list[tuple[int, str]]:
        wanted, told = str(run_id), [row for row in self.signals if row is not None]
        return [(payload["epoch"], name) for _, name, payload, _ in told if payload["run_id"] == wanted]

    def present(self) -> tuple[set[UUID], set[UUID]]:
        return set(self.runs), set(self.lanes)

    def rows_left(self, run_id: UUID) -> int:
        return sum(run == run_id for _, run, _, _ in self.tally)

    def oldest(self) -> dict[str, datetime | None]:
        signals = [row[3] for row in self.signals if row is not None]
        return {
            "step": min((row[2] for row in self.steps.values()), default=None),
            "repair": min((row[2] for row in self.repairs), default=None),
            "signal": min(signals, default=None),
        }

    def rows_of_nobody(self) -> list[str]:
        lanes = [key for key in self.steps if key[0] not in self.lanes]
        runs = [call for call in self.calls.values() if call.run_id not in self.runs]
        lines = [run_id for run_id, lines in self.history.items() if lines and run_id not in self.runs]
        orphans = [lane for lane in self.lanes.values() if lane.run_id not in self.runs]
        return [name for name, rows in (("step", lanes), ("call", runs), ("line", lines), ("lane", orphans)) if rows]

    def left_outside(self) -> list[Any]:
        return [call for call in self.calls.values() if call.leaves_asset and call.cleaned_at is None]


def add_to_tally(store: MemoryStore, lane: Any, params: Any) -> None:
    store.append(store.tally, (lane.tenant_id, lane.run_id, lane.key, params["n"]))


def forget_tally(store: MemoryStore, _: Any, params: Any) -> int:
    before, most = store.tally, params["most"]
    old = {id(row) for row in [row for row in before if row[1] == params["run_id"]][:most]}
    store.tally = [row for row in before if id(row) not in old]
    store._undo.append(lambda: setattr(store, "tally", before))
    return len(before) - len(store.tally)


# `now()` of the simulation: found before the real one because its schema comes first in the search path.
CLOCK = """
create schema sim;
create function sim.now() returns timestamptz language sql stable
    as 'select current_setting(''sim.now'')::timestamptz';
grant usage on schema sim to public
"""

SNAPSHOT = sa.text("""
select json_build_object(
    'lanes', (select coalesce(json_agg(json_build_array(id, run_id, tenant_id, kind, key, holds_run, status, epoch, seq,
        resend_no, cursor, next_due_at, cancel_at, deadline_at, steps, max_steps, claims, claim_token, lease_until, attempts,
        nullif(check_at, 'infinity'), last_error) order by id), '[]') from lane),
    'runs', (select coalesce(json_agg(json_build_array(id, tenant_id, kind, status, outcome, epoch, params,
        cancel_requested_at, paused_at, deadline_at, check_at, finished_at, leaving_since) order by id), '[]') from run),
    'gates', (select coalesce(json_agg(json_build_array(key, tenant_id, state, until, holder)), '[]') from gate),
    'lines', (select coalesce(json_agg(json_build_array(run_id, epoch, type) order by run_id, n), '[]') from history),
    'signals', (select coalesce(json_agg(json_build_array(payload ->> 'run_id', (payload ->> 'epoch')::int, name) order by id),
        '[]') from signal),
    'steps', (select coalesce(json_agg(json_build_array(lane_id, epoch, seq, outcome)), '[]') from step),
    'tally', (select coalesce(json_agg(json_build_array(tenant_id, run_id, lane, n)), '[]') from tally),
    'calls', (select coalesce(json_agg(json_build_array(run_id, epoch, key)), '[]') from remote_call
              where leaves_asset and cleaned_at is null),
    'unheard', (select count(*) from signal where dispatched_at is null) + (select count(*) from hearing))::text as rows
""")
LANE = [
    "id",
    "run_id",
    "tenant_id",
    "kind",
    "key",
    "holds_run",
    "status",
    "epoch",
    "seq",
    "resend_no",
    "cursor",
    "next_due_at",
    "cancel_at",
    "deadline_at",
    "steps",
    "max_steps",
    "claims",
    "claim_token",
    "lease_until",
    "attempts",
    "check_at",
    "last_error",
]
RUN = [
    "id",
    "tenant_id",
    "kind",
    "status",
    "outcome",
    "epoch",
    "params",
    "cancel_requested_at",
    "paused_at",
    "deadline_at",
    "check_at",
    "finished_at",
    "leaving_since",
]
GATE = ["key", "tenant_id", "state", "until", "holder"]
IDS = {"id", "run_id", "tenant_id", "claim_token", "holder"}
TIMES = {
    "check_at",
    "next_due_at",
    "cancel_at",
    "lease_until",
    "cancel_requested_at",
    "paused_at",
    "deadline_at",
    "finished_at",
    "leaving_since",
    "until",
}


class PgBackend(PgStore):
    """The product's own store on a real Postgres whose clock is the simulation's."""

    def __init__(self, world: World, engine: sa.Engine, owner: sa.Engine) -> None:
        super().__init__(engine)
        self._owner, self._owner_engine = db.autocommit(owner), owner
        self.dirty = False
        self._snapshot: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        self.unheard = 0
        with self._owner.connect() as connection:
            connection.exec_driver_sql(
                "; ".join(f"delete from {table}" for table in (
                    "tally", "run", "lane", "step", "history", "remote_call", "gate", "repair", "signal", "hearing"))
            )  # fmt: skip

        def tell_the_time(dbapi_connection: Any, *_: object) -> None:
            dbapi_connection.before_next("select set_config('sim.now', $1, false)", world.clock().isoformat())

        sa.event.listen(engine, "checkout", tell_the_time)
        self.forget = lambda: sa.event.remove(engine, "checkout", tell_the_time)

    def has_changed(self) -> bool:
        return self.dirty

    def changed(self) -> Changed:
        self.dirty = False
        self._snapshot = self._look()
        self.unheard = self._snapshot["unheard"]
        for lane in self._different("lanes"):
            yield "lane", _row(LANE, lane)
        for gate in self._different("gates"):
            yield "gate", _row(GATE, gate)

    def _look(self) -> dict[str, Any]:
        with direct.alone(self._owner_engine) as line:  # its plan is kept: it costs more than all that is read
            row = line.often(SNAPSHOT, {})
        assert row is not None
        snapshot: dict[str, Any] = orjson.loads(row["rows"])
        return snapshot

    def _different(self, table: str) -> list[list[Any]]:
        before, self._before[table] = self._before.get(table, []), self._snapshot[table]
        return [row for row in self._snapshot[table] if row not in before]

    def changed_runs(self) -> Changed:
        for run in self._snapshot.get("runs", ()):
            row = _row(RUN, run)
            row.lines = [(epoch, type_) for run_id, epoch, type_ in self._snapshot["lines"] if run_id == run[0]]
            yield "run", row

    def steps_of(self, lane_id: UUID) -> list[tuple[int, int, str]]:
        return [(epoch, seq, outcome) for lane, epoch, seq, outcome in self._snapshot["steps"] if lane == str(lane_id)]

    def tally_of(self, run_id: UUID, lane: str) -> list[tuple[UUID, int]]:
        return [
            (UUID(tenant), n) for tenant, run, key, n in self._snapshot["tally"] if run == str(run_id) and key == lane
        ]

    def signals_of(self, run_id: UUID) -> list[tuple[int, str]]:
        return [(epoch, name) for run, epoch, name in self._snapshot["signals"] if run == str(run_id)]

    def present(self) -> tuple[set[UUID], set[UUID]]:
        return self._ids("select id from run"), self._ids("select id from lane")

    def rows_left(self, run_id: UUID) -> int:
        with self._owner.connect() as connection:
            left = connection.execute(sa.text("select count(*) from tally where run_id = :id"), {"id": run_id})
            return int(left.scalar_one())

    def oldest(self) -> dict[str, datetime | None]:
        with self._owner.connect() as connection:
            return {
                table: connection.exec_driver_sql(f"select min(at) from {table}").scalar_one()
                for table in ("step", "repair", "signal")
            }

    def rows_of_nobody(self) -> list[str]:
        orphans = {
            "step": "select from step s where not exists (select from lane l where l.id = s.lane_id)",
            "call": "select from remote_call c where not exists (select from run r where r.id = c.run_id)",
            "line": "select from history h where not exists (select from run r where r.id = h.run_id)",
            "lane": "select from lane l where not exists (select from run r where r.id = l.run_id)",
        }
        with self._owner.connect() as connection:
            return [
                name
                for name, sql in orphans.items()
                if connection.exec_driver_sql(f"select exists ({sql})").scalar_one()
            ]

    def _ids(self, sql: str) -> set[UUID]:
        with self._owner.connect() as connection:
            return set(connection.exec_driver_sql(sql).scalars())

    def left_outside(self) -> list[Any]:
        calls = self._look()["calls"]
        return [SimpleNamespace(run_id=UUID(run_id), epoch=epoch, key=key) for run_id, epoch, key in calls]


def _row(names: list[str], values: list[Any]) -> SimpleNamespace:
    row = dict(zip(names, values, strict=True))
    for name in IDS & row.keys():
        row[name] = None if row[name] is None else UUID(row[name])
    for name in TIMES & row.keys():
        row[name] = None if row[name] is None else datetime.fromisoformat(row[name])
    if "check_at" in row and row["check_at"] is None:
        row["check_at"] = NEVER
    return SimpleNamespace(**row)


def prepare_database(superuser_url: str) -> None:
    """Give a migrated database the tally's table and the simulation's clock."""
    engine = db.connect_engine(superuser_url)
    name = sa.make_url(superuser_url).database
    with db.autocommit(engine).connect() as connection:
        connection.exec_driver_sql(SCHEMA)
        connection.exec_driver_sql(CLOCK)
        connection.exec_driver_sql(f"alter database {name} set search_path = sim, public, pg_catalog")
    engine.dispose()
