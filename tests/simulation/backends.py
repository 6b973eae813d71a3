"""The two stores a schedule can run on, with what the invariants need to see of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import sqlalchemy as sa

from shared.kernel import db
from shared.kernel.store import PgStore
from tests.simulation.memory_store import NEVER, MemoryStore
from tests.support.tally import ADD, SCHEMA

if TYPE_CHECKING:
    from tests.simulation.world import World

GATES = UUID(int=0)
Changed = Iterator[tuple[str, SimpleNamespace]]


class MemoryBackend(MemoryStore):
    def __init__(self, world: World) -> None:
        super().__init__(world.clock, {ADD.name: add_to_tally})
        self.dirty = False
        self._runs: set[UUID] = set()

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

    def left_outside(self) -> list[Any]:
        return [call for call in self.calls.values() if call.leaves_asset and call.cleaned_at is None]


def add_to_tally(store: MemoryStore, lane: Any, params: Any) -> None:
    store.append(store.tally, (lane.tenant_id, lane.run_id, lane.key, params["n"]))


# `now()` of the simulation: found before the real one because its schema comes first in the search path.
CLOCK = """
create schema sim;
create function sim.now() returns timestamptz language sql stable
    as 'select current_setting(''sim.now'')::timestamptz';
grant usage on schema sim to public
"""

SNAPSHOT = sa.text("""
select json_build_object(
    'lanes', (select coalesce(json_agg(json_build_array(id, run_id, tenant_id, key, holds_run, status, epoch, seq, resend_no,
        cursor, next_due_at, cancel_at, steps, claims, claim_token, lease_until, attempts, nullif(check_at, 'infinity'),
        last_error) order by id), '[]') from lane),
    'runs', (select coalesce(json_agg(json_build_array(id, tenant_id, status, outcome, epoch, params, cancel_requested_at,
        paused_at, deadline_at, check_at) order by id), '[]') from run),
    'gates', (select coalesce(json_agg(json_build_array(key, tenant_id, state, until, holder)), '[]') from gate),
    'lines', (select coalesce(json_agg(json_build_array(run_id, epoch, type) order by run_id, n), '[]') from history),
    'steps', (select coalesce(json_agg(json_build_array(lane_id, epoch, seq, outcome)), '[]') from step),
    'tally', (select coalesce(json_agg(json_build_array(tenant_id, run_id, lane, n)), '[]') from tally),
    'calls', (select coalesce(json_agg(json_build_array(run_id, epoch, key)), '[]') from remote_call
              where leaves_asset and cleaned_at is null),
    'unheard', (select count(*) from signal where dispatched_at is null) + (select count(*) from hearing))::text
""")
LANE = [
    "id",
    "run_id",
    "tenant_id",
    "key",
    "holds_run",
    "status",
    "epoch",
    "seq",
    "resend_no",
    "cursor",
    "next_due_at",
    "cancel_at",
    "steps",
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
    "status",
    "outcome",
    "epoch",
    "params",
    "cancel_requested_at",
    "paused_at",
    "deadline_at",
    "check_at",
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
    "until",
}


class PgBackend(PgStore):
    """The product's own store on a real Postgres whose clock is the simulation's."""

    def __init__(self, world: World, engine: sa.Engine, owner: sa.Engine) -> None:
        super().__init__(engine)
        self._owner = db.autocommit(owner)
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

    def changed(self) -> Changed:
        if not self.dirty:
            self._snapshot = {}
            return
        self.dirty = False
        with self._owner.connect() as connection:
            self._snapshot = orjson.loads(connection.execute(SNAPSHOT).scalar_one())
        self.unheard = self._snapshot["unheard"]
        for lane in self._different("lanes"):
            yield "lane", _row(LANE, lane)
        for gate in self._different("gates"):
            yield "gate", _row(GATE, gate)

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

    def left_outside(self) -> list[Any]:
        with self._owner.connect() as connection:
            calls = orjson.loads(connection.execute(SNAPSHOT).scalar_one())["calls"]
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
