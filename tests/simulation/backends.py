"""The two stores a schedule can run on, with what the invariants need to see of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.store import PgStore
from tests.simulation.memory_store import NEVER, MemoryStore
from tests.simulation.thrift import tell_the_time
from tests.support.tally import ADD, FORGET, SCHEMA

if TYPE_CHECKING:
    from tests.simulation.world import World

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
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

# All that the invariants look at and was written since the snapshot `known` (everything for none), in one answer; no rows if
# nobody has written. How many there are tells whether any were deleted. A function, because the server keeps the plans of what
# is in it and begins none of them in vain. Each table is asked once, and of the ledger only the days that a schedule may last:
# what it costs to ask is nearly all that it costs.
LOOK = """
create function sim.is_new(written xid, known pg_snapshot) returns boolean language sql immutable
    as 'select known is null or not pg_visible_in_snapshot(written::text::xid8, known)';
create view sim.steps as {steps};
create function sim.look(known pg_snapshot, out seen text, out rows text) language plpgsql as $$
begin
seen := pg_current_snapshot();
if seen is not distinct from known::text then return; end if;
rows := json_build_object(
    'lanes', (select json_build_array(count(*), json_agg(json_build_array(id, run_id, tenant_id, kind, key, holds_run, status,
        epoch, seq, resend_no, resends, cursor, next_due_at, cancel_at, deadline_at, steps, max_steps, claims, claim_token, lease_until,
        attempts, nullif(check_at, 'infinity'), last_error) order by id) filter (where sim.is_new(xmin, known))) from lane),
    'runs', (select json_build_array(count(*), json_agg(json_build_array(id, tenant_id, kind, status, outcome, epoch, params,
        cancel_requested_at, paused_at, deadline_at, check_at, finished_at, leaving_since) order by id)
        filter (where sim.is_new(xmin, known))) from run),
    'gates', (select json_build_array(count(*), json_agg(json_build_array(key, tenant_id, state, until, holder))
        filter (where sim.is_new(xmin, known))) from gate),
    'lines', (select json_build_array(count(*), json_agg(json_build_array(run_id, n, epoch, type) order by run_id, n)
        filter (where sim.is_new(xmin, known))) from history),
    'signals', (select json_build_array(count(*), json_agg(json_build_array(id, payload ->> 'run_id',
        (payload ->> 'epoch')::int, name) order by id) filter (where sim.is_new(xmin, known)),
        count(*) filter (where dispatched_at is null)) from signal),
    'steps', (select json_build_array(count(*), json_agg(json_build_array(leaf, place, lane_id, epoch, seq, outcome))
        filter (where sim.is_new(written, known))) from sim.steps),
    'tally', (select json_build_array(count(*), json_agg(json_build_array(ctid, tenant_id, run_id, lane, n))
        filter (where sim.is_new(xmin, known))) from tally),
    'hearings', (select count(*) from hearing));
end $$
"""
STEPS = "select tableoid as leaf, ctid as place, xmin as written, lane_id, epoch, seq, outcome from ledger.step_{:02}"
LEAVES, DAYS = 16, 4
SEE = sa.text("select seen, rows from sim.look(cast(:known as pg_snapshot))")
# By how many of its values a row is known. Where a step and a count are written is no matter of theirs: both may be there twice.
KEYS = {"lanes": 1, "runs": 1, "gates": 2, "lines": 2, "signals": 1, "steps": 2, "tally": 1}
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
    "resends",
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
        self._known: str | None = None
        self._rows: dict[str, dict[tuple[Any, ...], list[Any]]] = {table: {} for table in KEYS}
        self._touched: set[str] = set()
        self.unheard = 0
        with self._owner.connect() as connection:
            connection.exec_driver_sql(
                "; ".join(f"delete from {table}" for table in (
                    "tally", "run", "lane", "step", "history", "remote_call", "gate", "repair", "signal", "hearing"))
            )  # fmt: skip

        tell_the_time(engine, lambda: world.clock().isoformat())
        self.forget = lambda: tell_the_time(engine, None)

    def has_changed(self) -> bool:
        return self.dirty

    def changed(self) -> Changed:
        self.dirty = False
        new = self._look()
        lanes = new["lanes"]
        self._touched = (
            {run[0] for run in new["runs"]} | {lane[1] for lane in lanes} | {line[0] for line in new["lines"]}
        )
        for lane in lanes:
            yield "lane", _row(LANE, lane)
        for gate in new["gates"]:
            yield "gate", _row(GATE, gate)

    def _look(self) -> dict[str, list[list[Any]]]:
        """What is not as it was at the last look, table by table."""
        told = self._told(self._known)
        if told is None:
            return {table: [] for table in KEYS}
        before, found = self._rows, {table: _keyed(table, told) for table in KEYS}
        if any(told[table][0] != len(before[table].keys() | found[table].keys()) for table in KEYS):
            told = self._told(None)  # some were deleted
            assert told is not None
            before, found = {table: {} for table in KEYS}, {table: _keyed(table, told) for table in KEYS}
        self.unheard = told["signals"][2] + told["hearings"]
        new = {table: [row for key, row in found[table].items() if row != self._rows[table].get(key)] for table in KEYS}
        self._rows = {table: before[table] | found[table] if found[table] else before[table] for table in KEYS}
        return new

    def _told(self, known: str | None) -> dict[str, Any] | None:
        """None: nobody has written since."""
        with direct.alone(self._owner_engine) as line:
            seen = line.often(SEE, {"known": known})
        assert seen is not None
        self._known = seen["seen"]
        return None if seen["rows"] is None else orjson.loads(seen["rows"])

    def changed_runs(self) -> Changed:
        for run_id in sorted(self._touched):
            run = self._rows["runs"].get((run_id,))
            if run is not None:
                row = _row(RUN, run)
                row.lines = [(epoch, type_) for of, _, epoch, type_ in self._rows["lines"].values() if of == run_id]
                yield "run", row

    def steps_of(self, lane_id: UUID) -> list[tuple[int, int, str]]:
        wanted, steps = str(lane_id), self._rows["steps"].values()
        return [(epoch, seq, outcome) for *_, lane, epoch, seq, outcome in steps if lane == wanted]

    def tally_of(self, run_id: UUID, lane: str) -> list[tuple[UUID, int]]:
        wanted, rows = str(run_id), self._rows["tally"].values()
        return [(UUID(tenant), n) for _, tenant, run, key, n in rows if run == wanted and key == lane]

    def signals_of(self, run_id: UUID) -> list[tuple[int, str]]:
        wanted, signals = str(run_id), self._rows["signals"].values()
        return [(epoch, name) for _, run, epoch, name in signals if run == wanted]

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
        with self._owner.connect() as connection:
            left = "select run_id, epoch, key from remote_call where leaves_asset and cleaned_at is null"
            return list(connection.exec_driver_sql(left).all())


def _keyed(table: str, told: dict[str, Any]) -> dict[tuple[Any, ...], list[Any]]:
    return {tuple(row[: KEYS[table]]): row for row in told[table][1] or ()}


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
        days = [(BEGINNING.date() - date(1, 1, 1)).days + n for n in range(DAYS)]
        steps = " union all ".join(STEPS.format(day % LEAVES) for day in days)
        connection.exec_driver_sql(LOOK.replace("{steps}", steps))
        connection.exec_driver_sql(f"alter database {name} set search_path = sim, public, pg_catalog")
    engine.dispose()
