"""Jobs per second: enqueue one and run a command that does nothing, beside the same rows written by hand and beside PgQueuer
and Procrastinate, where `make bench` has them; all on one server that waits for its disk."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from uuid import UUID

import orjson
import sqlalchemy as sa

from infra.local.binaries import bin_directory, server_account
from shared.job_queue.build import build_ports
from shared.job_queue.steps import job_kind
from shared.job_queue.worker import Worker
from shared.kernel import db
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.metrics import Metric, NoMeter
from shared.kernel.model import By, Taking, Turn
from shared.kernel.offers import PgOffers
from shared.kernel.run import start_run, start_runs
from shared.kernel.signals import dispatch
from shared.kernel.step import Looked, commit_together, look
from shared.kernel.store import PgStore
from tests.bench.figures import Figure
from tests.bench.limits import events as limit_of_events
from tests.bench.limits import jobs as limit
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.place import TENANT, Place, place
from tests.kinds.job import crowd, flat, peers
from tests.kinds.job.peers import DEFINITION, HONEST_DISK, PgQueuer, define
from tests.support.databases import as_user
from tests.support.jobs import FakeRunner

PARAMS = orjson.dumps({"definition_key": "noop", "payload": {}, "max_attempts": 3, "version": 1}).decode()


def parts(here: Place, *, quick: bool) -> Iterator[Callable[[], Sequence[Figure]]]:
    yield lambda: measure(jobs=5 if quick else 40, rounds=2 if quick else 15)
    yield lambda: batches(jobs=10 if quick else 100, rounds=2 if quick else 7)
    if peers.installed("PgQueuer"):
        yield lambda: crowd.four_workers(jobs=5 if quick else 100, rounds=1 if quick else 7)
        yield lambda: crowd.latency(jobs=5 if quick else 150)
    yield lambda: flat.measure(flat.QUICK if quick else flat.SIZES)
    yield lambda: events(events=5 if quick else 100, rounds=2 if quick else 11)


def measure(*, jobs: int, rounds: int) -> list[Figure]:
    with place(HONEST_DISK) as here, ExitStack() as stack:
        define(here)
        sides = [
            Side("product", _product(here, jobs), here.product_connection),
            Side("limit", _limit(here, jobs), lambda: here.limit_with_plans),
        ]
        if peers.installed("PgQueuer"):
            sides.append(Side("PgQueuer", _peer(PgQueuer(peers.database(here), stack).one_by_one, jobs)))
        if peers.installed("Procrastinate"):
            sides.append(Side("Procrastinate", _peer(peers.procrastinate(here, stack), jobs)))
        found = race(sides, rounds)
        written = _written(here, _product(here, 1)(), 20 * jobs)
        peers.check_all_succeeded(here)
    goals = {"limit": "0.7", "PgQueuer": "1.25", "Procrastinate": "2"}
    name = "a job, enqueued and run one at a time"
    figures = [
        versus(f"{name}, against {side.name}", "jobs/s", found, "product", side.name, goals[side.name])
        for side in sides[1:]
    ]
    return [*figures, *cpu(name, found, "product", "limit"), *written]


def batches(*, jobs: int, rounds: int) -> list[Figure]:
    """Enqueued in one go and worked off."""
    with place(HONEST_DISK) as here, ExitStack() as stack:
        define(here)
        sides = [
            Side("product", _batch(here, jobs, stack)),
            Side("limit", _limit_batch(here, jobs), lambda: here.limit_with_plans),
        ]
        if peers.installed("PgQueuer"):
            sides.append(Side("PgQueuer's worker", _peer(PgQueuer(peers.database(here), stack).by_worker, jobs)))
        found = race(sides, rounds)
        peers.check_all_succeeded(here)
    goals = {"limit": "0.7", "PgQueuer's worker": "1.0"}
    name = f"jobs in batches of {jobs}, against"
    return [
        versus(f"{name} {side.name}", "jobs/s", found, "product", side.name, goals[side.name]) for side in sides[1:]
    ]


WRITTEN = """
select (select sum(n_tup_ins) from pg_stat_user_tables) as inserted, (select sum(n_tup_upd) from pg_stat_user_tables) as updated,
       (select sum(n_tup_hot_upd) from pg_stat_user_tables) as hot, (select sum(n_tup_del) from pg_stat_user_tables) as deleted,
       pg_current_wal_insert_lsn() - '0/0'::pg_lsn as wal
"""
WHERE = "select setting, pg_current_wal_flush_lsn()::text from pg_settings where name = 'data_directory'"


def _written(here: Place, act: Act, jobs: int) -> list[Figure]:
    """What one job writes, counted by the server."""

    def look() -> tuple[dict[str, float], str, str]:
        here.product_connection().execute_simple("select pg_stat_force_next_flush()")
        with here.owner.connect() as connection:
            row = connection.execute(sa.text(WRITTEN)).one()
            folder, place = connection.execute(sa.text(WHERE)).one()
        return {name: float(value) for name, value in row._mapping.items()}, folder, place

    before, folder, began = look()
    for _ in range(jobs):
        act()
    after, _, ended = look()
    each = {name: (after[name] - before[name]) / jobs for name in after}
    told = [("rows inserted", each["inserted"]), ("rows updated", each["updated"]), ("of these in place", each["hot"]),
            ("rows deleted", each["deleted"]), ("index entries", _entries(folder, began, ended) / jobs)]  # fmt: skip
    figures = [Figure(name=f"a job: {name}", value=value, unit="") for name, value in told]
    return [*figures, Figure(name="a job: WAL", value=each["wal"], unit="bytes")]


def _entries(folder: str, began: str, ended: str) -> int:
    """One record for each entry that is written to a B-tree."""
    dump = [
        str(bin_directory(server_account()) / "pg_waldump"),
        "-p",
        f"{folder}/pg_wal",
        "-r",
        "Btree",
        "-s",
        began,
        "-e",
        ended,
    ]
    found = subprocess.run(dump, capture_output=True, text=True, check=False).stdout
    return sum("INSERT" in line or "SPLIT" in line for line in found.splitlines())


class _Ends(NoMeter):
    """Knows when so many runs have ended: counted after their commit."""

    def __init__(self) -> None:
        self._left, self._lock, self.all_done = 0, threading.Lock(), threading.Event()

    def expect(self, runs: int) -> None:
        self._left = runs
        self.all_done.clear()

    def count(self, metric: str, value: float = 1, /, **_: str) -> None:
        if metric == Metric.RUN_ENDED:
            with self._lock:
                self._left -= int(value)
                if self._left == 0:
                    self.all_done.set()


def _batch(here: Place, jobs: int, stack: ExitStack) -> Callable[[], Act]:
    """By a worker that has room for all of them."""
    engine = db.connect_engine(as_user(here.url, "baton_worker"), pool_size=4)
    stack.callback(engine.dispose)
    kind, ends = job_kind(build_ports(engine, {}, runner=FakeRunner(), worker_id="w")), _Ends()
    ports = replace(here.ports, store=PgStore(engine), offers=PgOffers(engine), meter=ends)
    worker = Worker(engine, ports, Catalogue(kind), "w", ["default"], concurrency=jobs)
    thread = threading.Thread(target=worker.run)
    thread.start()
    stack.callback(thread.join)
    stack.callback(worker.ask_to_stop)
    asked = [{"definition_key": "noop"}] * jobs

    def act() -> int:
        ends.expect(jobs)
        start_runs(here.ports, kind, TENANT, asked, By(source="api"))
        assert ends.all_done.wait(60)
        return jobs

    return lambda: act


def _limit_batch(here: Place, jobs: int) -> Callable[[], Act]:
    """In a queue of its own: the worker must not find them."""
    definition = new_id()
    by_hand = orjson.dumps({**DEFINITION, "id": str(definition), "key": "by-hand", "queue": "by-hand"}).decode()
    here.owner_runs(f"select put_job_definition('ada', '{by_hand}')")

    def act() -> int:
        limit.enqueue(here.limit_with_plans, TENANT, definition, PARAMS, jobs)
        assert limit.run_some(here.limit_with_plans, TENANT, definition, jobs) == jobs
        return jobs

    return lambda: act


ANY_FOLDER = {**DEFINITION, "id": str(new_id()), "key": "folder", "arg_schema": {
    "type": "object", "properties": {"folder": {"type": "string"}}, "additionalProperties": False,
}}  # fmt: skip


def events(*, events: int, rounds: int) -> list[Figure]:
    """From an event that was accepted to its job, beside bare inserts of the same rows; each accepted by itself, and safe
    on its disk before the next one comes."""
    with place(HONEST_DISK) as here:
        return _events(here, events, rounds)


def _events(here: Place, events: int, rounds: int) -> list[Figure]:
    said, trigger = orjson.dumps(ANY_FOLDER).decode(), new_id()
    here.owner_runs(
        "insert into super_admin (subject) values ('ada') on conflict do nothing",
        f"select put_job_definition('ada', '{said}')",
        f"""insert into job_triggers (id, tenant_id, label, trigger_type, event_name, definition_id, payload_template)
            values ('{trigger}', '{TENANT}', 't', 'event', 'provider.folder.updated', '{ANY_FOLDER["id"]}',
                    '{{"folder": "{{{{event.folder}}}}"}}')""",
    )
    kind = job_kind(build_ports(here.engine, {}, runner=FakeRunner(), worker_id="w"))
    ports, kinds = replace(here.ports, offers=PgOffers(here.engine)), Catalogue(kind)

    def product() -> int:
        for _ in range(events):
            ports.store.add_signal_once(new_id(), TENANT, "provider.folder.updated", {"folder": str(new_id())})
        dispatch(ports, kinds)
        return events

    def bare() -> int:
        for _ in range(events):
            payload = orjson.dumps({"folder": str(new_id())}).decode()
            limit_of_events.one(here.limit, TENANT, UUID(str(ANY_FOLDER["id"])), trigger, payload, PARAMS)
        return events

    sides = [Side("product", lambda: product, here.product_connection), Side("limit", lambda: bare, here.bare_connection)]  # fmt: skip
    found = race(sides, rounds)
    with here.owner.connect() as connection:
        (waiting,) = connection.execute(sa.text("select count(*) from signal where dispatched_at is null")).one()
        (fired,) = connection.execute(sa.text("select count(*) from trigger_firings where status = 'started'")).one()
    assert waiting == 0
    assert fired >= 2 * rounds * events, "every event has started its job"
    name = "events from accepted to enqueued"
    return [versus(f"{name}, against bare inserts", "events/s", found, "product", "limit", "0.5"), *cpu(name, found, "product", "limit")]  # fmt: skip


def _product(here: Place, jobs: int) -> Callable[[], Act]:
    """As a worker does it: the end of one job takes the next."""
    kind = job_kind(build_ports(here.engine, {}, runner=FakeRunner(), worker_id="w"))
    offers = PgOffers(here.engine)
    ports = replace(here.ports, offers=offers)
    held: list[Turn] = []

    def act() -> int:
        for _ in range(jobs):
            start_run(ports, kind, TENANT, {"definition_key": "noop"}, By(source="api"))
            if not held:
                held.extend(offers.take("default", 1, new_id(), 60, "w"))
                continue
            taking = Taking("default", 60, "w", new_id())
            looked = look(held.pop(), kind, ports)
            assert isinstance(looked, Looked)
            commit_together([looked], ports, taking)
            held.extend(taking.taken)
        return jobs

    return lambda: act


def _limit(here: Place, jobs: int) -> Callable[[], Act]:
    definition = UUID(DEFINITION["id"])  # type: ignore[arg-type]

    def prepare() -> Act:
        here.owner_runs(  # what the other side has in hand is not for this one
            "update offer set due = false, scheduled_for = 'infinity' where taken_at is null"
        )

        def act() -> int:
            for _ in range(jobs):
                limit.enqueue(here.limit_with_plans, TENANT, definition, PARAMS, 1)
                assert limit.run_some(here.limit_with_plans, TENANT, definition, 1) == 1
            return jobs

        return act

    return prepare


def _peer(run: Callable[[int], None], jobs: int) -> Callable[[], Act]:
    def act() -> int:
        run(jobs)
        return jobs

    return lambda: act
