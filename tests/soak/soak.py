"""Virtual months on a real Postgres: rows come, work and leave at the same rate, so nothing may grow and nothing get dearer.

The product's own code runs against a database whose clock is ours: days pass in seconds and retention is a few of them.
Runs succeed, fail, time out, are canceled, paused and throttled; messages are lost and processes die; ticks and sweeps
come as they would. Vacuum comes once a day, where autovacuum would have come a thousand times.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, sql
from shared.kernel import run as runs
from shared.kernel.baton import read_baton
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.decide import Limits
from shared.kernel.errors import NotFound, Refused, Throttled, Transient
from shared.kernel.handle import handle_baton, handle_delayed
from shared.kernel.model import Turn
from shared.kernel.ports import Ports
from shared.kernel.queue_memory import MemoryQueue, QueueSettings
from shared.kernel.settings import Relay
from shared.kernel.store import PgStore
from shared.kernel.sweep import sweep
from shared.kernel.tick import roll_up, tick
from tests.simulation.backends import prepare_database
from tests.support.databases import ServerAdmin, as_user
from tests.support.plans import explain
from tests.support.tally import ADD, QuietWorld, tally_kind

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
DAY_S = 86_400.0
TENANT = UUID(int=0xA11CE)
FIFO, DELAY = "baton-tally.fifo", "baton-delay"
TABLES = ("run", "lane", "step", "history", "remote_call", "gate", "repair", "signal", "hearing", "pulse", "tally")
MOST = 1.3  # from the first tenth to the last
# Below this nothing is said: a page more or less.
FLOORS = {"bytes": 256 * 1024, "index bytes": 256 * 1024, "rows": 200, "buffers": 24}

SIZES = sa.text("""
select sum(pg_table_size(p.relid))::bigint as bytes, sum(pg_indexes_size(p.relid))::bigint as index_bytes
from (select relid from pg_partition_tree(cast(:name as regclass)) where isleaf
      union select cast(:name as regclass)) p
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    days: int
    runs_a_day: int
    ticks_a_day: int = 24
    sweeps: bool = True
    seed: int = 1
    retention: Mapping[str, int] = field(
        default_factory=lambda: {
            "step": 2, "pulse": 2, "repair": 2, "signal": 2, "hearing": 2, "answered": 2, "pace_decision": 2, "run": 3,
        }
    )  # fmt: skip

    @property
    def warm_up(self) -> int:
        """Until as much leaves as comes; the ledger leaves by whole days."""
        return max(self.retention.values()) + 3


Params = Mapping[str, Any]
Samples = dict[tuple[str, str], list[float]]


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    unit: str
    first: float
    last: float

    @property
    def ratio(self) -> float:
        floor = FLOORS[self.unit]
        return max(self.last, floor) / max(self.first, floor)

    @property
    def is_flat(self) -> bool:
        return self.ratio <= MOST


class Soak:
    def __init__(self, url: str, plan: Plan) -> None:
        self.plan, self.rng = plan, Random(plan.seed)
        self.now = 0.0
        self.worker, self.owner = db.connect_engine(as_user(url, "baton_worker")), db.connect_engine(url)
        self.keeper = db.connect_engine(url)  # on whose connection nothing comes before a statement
        for engine in (self.worker, self.owner):
            sa.event.listen(engine, "checkout", self._tell_the_time)
        queues = {
            FIFO: QueueSettings(fifo=True, visibility_s=360, dedup_scope="messageGroup"),
            DELAY: QueueSettings(fifo=False, visibility_s=60),
        }
        self.queue = MemoryQueue(queues, lambda: self.now, Random(plan.seed))
        self.kind = tally_kind(QuietWorld(self._visit), Limits(max_attempts=3), forgets=True)
        self.kinds = Catalogue(self.kind)
        self.store = PgStore(self.worker)
        relay = Relay(step_timeout_s=30, lease_s=40, asset_grace_s=0)
        self.ports = Ports(store=self.store, queue=self.queue, relay=relay)
        self.samples: Samples = defaultdict(list)

    def close(self) -> None:
        for engine in (self.worker, self.owner, self.keeper):
            engine.dispose()

    def clock(self) -> datetime:
        return BEGINNING + timedelta(seconds=self.now)

    def _tell_the_time(self, connection: Any, *_: object) -> None:
        connection.before_next("select set_config('sim.now', $1, false)", self.clock().isoformat())

    def _visit(self, turn: Turn, n: int) -> None:
        match self.rng.random():
            case chance if chance < 0.01:
                raise Throttled("upstream", 60.0)
            case chance if chance < 0.03:
                raise Transient("no answer")
            case chance if chance < 0.035:
                raise KeyError("a surprise")

    # A day.

    def run(self, said: Callable[[str], None]) -> list[Figure]:
        for day in range(self.plan.warm_up + self.plan.days):
            self._one_day(day)
            self._vacuum()
            if day >= self.plan.warm_up:
                self._measure()
            if day % 10 == 9:
                said(f"  day {day + 1} of {self.plan.warm_up + self.plan.days}")
        return list(self.figures())

    def _one_day(self, day: int) -> None:
        slots = self.plan.ticks_a_day
        for slot in range(slots):
            end = (day + (slot + 1) / slots) * DAY_S
            for _ in range(self._share(slot)):
                self._start()
            self._work_until(end)
            tick(self.ports, self.kinds)
            roll_up(self.ports, DAY_S / slots)
            if self.plan.sweeps and (slot + 1) % min(6, slots) == 0:
                sweep(self.ports, self.kinds, self.plan.retention)

    def _share(self, slot: int) -> int:
        whole, rest = divmod(self.plan.runs_a_day, self.plan.ticks_a_day)
        return whole + (slot < rest)

    def _start(self) -> None:
        params: dict[str, Any] = {
            "lanes": 2,
            "target": self.rng.choice((2, 4, 6)),
            "delays": self.rng.choice(((0,), (30,))),
        }
        if self.rng.random() < 0.2:
            params["gates"] = ["upstream"]
        if self.rng.random() < 0.1:
            params |= {"assets": ["l0"], "leaks": self.rng.random() < 0.5}
        if self.rng.random() < 0.05:
            params |= {"delays": (1000,), "time_limit_s": 600}
        run_id = runs.start_run(self.ports, self.kind, TENANT, params)
        chance = self.rng.random()
        try:
            if chance < 0.04:
                runs.cancel_run(self.ports, self.kind, TENANT, run_id)
            elif chance < 0.08:
                runs.pause_run(self.ports, TENANT, run_id)
                runs.resume_run(self.ports, TENANT, run_id)
        except (Refused, NotFound):
            pass

    def _work_until(self, end: float) -> None:
        while True:
            if self._deliver():
                self.now += 0.01
                continue
            times = [self.queue.next_change(FIFO), self.queue.next_change(DELAY)]
            later = [time for time in times if time is not None and self.now < time < end]
            if not later:
                self.now = max(self.now, end)
                return
            self.now = min(later)

    def _deliver(self) -> bool:
        found = False
        for queue in (FIFO, DELAY):
            for message in self.queue.receive(queue, 10):
                found = True
                chance = self.rng.random()
                if chance < 0.01:  # the process dies with the turn in its hands
                    self.store.claim(read_baton(message.body), new_id(), 40)
                    continue
                lost = chance < 0.02
                if queue == FIFO:
                    done = lost or handle_baton(self.ports, self.kind, message)
                else:
                    done = lost or handle_delayed(self.ports, message)
                if done:
                    self.queue.delete(queue, message.receipt)
        return found

    def _vacuum(self) -> None:
        with db.autocommit(self.keeper).connect() as connection:
            connection.exec_driver_sql(f"vacuum analyze {', '.join(TABLES)}")

    # What it costs.

    def _measure(self) -> None:
        with self.owner.connect() as connection:
            for table in TABLES:
                size = connection.execute(SIZES, {"name": table}).one()
                self.samples[table, "bytes"].append(float(size.bytes))
                self.samples[table, "index bytes"].append(float(size.index_bytes))
                rows = connection.exec_driver_sql(f"select count(*) from {table}").scalar_one()
                self.samples[table, "rows"].append(float(rows))
        for what, buffers in self._buffers():
            self.samples[what, "buffers"].append(float(buffers))

    def _buffers(self) -> Iterator[tuple[str, int]]:
        """As the worker runs them; all of it is rolled back."""
        run_id = runs.start_run(self.ports, self.kind, TENANT, {"lanes": 1, "target": 3, "delays": (600,)})
        with self.worker.connect() as connection, connection.begin() as transaction:
            db.set_tenant(connection, TENANT)
            lane_id = connection.execute(sa.text("select id from lane where run_id = :id"), {"id": run_id}).scalar_one()
            held = {"lane_id": lane_id, "epoch": 1, "seq": 0, "token": new_id()}
            claim = {**held, "kind": "tally", "lease": "40 s", "watch": "100 s"}
            yield "claim", explain(connection, sql.CLAIM, claim).buffers
            change = {
                "status": "active", "cursor": '{"n": 1}', "progress": 1, "attempts": 0, "error": None, "delay": "0 s",
                "sends": True, "look": "90 s", "outcome": "moved", "rows": 1, "ms": 1, "waits_for": None, "n": 0,
            }  # fmt: skip
            yield "commit", explain(connection, sql.commit_turn((ADD,)), {**held, **change}).buffers
            first: Params = {"most": 500, "at": "-infinity", "id": UUID(int=0), "began": None}
            due = {**first, "but_kinds": [], "but_delayed": False}
            looks: list[tuple[sa.TextClause, Params]] = [
                (sql.LOCK_DUE_LANES, due),
                (sql.DUE_RUNS, first),
                (sql.LOCK_NEW_SIGNALS, {"most": 200, "days": 14}),
            ]
            yield "tick", sum(explain(connection, text, params).buffers for text, params in looks)
            kept = {name: days for name, days in self.plan.retention.items() if name != "run"}
            prunes: list[tuple[sa.TextClause, Params]] = [
                (sql.PRUNE[name], {"days": days, "most": 1000}) for name, days in kept.items()
            ]
            prunes.append((sql.PRUNE_RUNS, {"with_rows": ["tally"], "days": self.plan.retention["run"], "most": 1000}))
            prunes.append((sql.FORGET_STEPS, {"days": self.plan.retention["step"]}))
            yield "prune", sum(explain(connection, text, params).buffers for text, params in prunes)
            transaction.rollback()

    def figures(self) -> Iterator[Figure]:
        for (what, unit), values in self.samples.items():
            share = max(1, len(values) // 10)
            yield Figure(what, unit, statistics.median(values[:share]), statistics.median(values[-share:]))


@contextmanager
def soak_on(admin: ServerAdmin, plan: Plan) -> Iterator[Soak]:
    url = admin.url(admin.create_from_template(admin.create_template()))
    prepare_database(url)
    soak = Soak(url, plan)
    try:
        yield soak
    finally:
        soak.close()
