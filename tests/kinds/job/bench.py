"""Jobs per second: enqueue one and run a command that does nothing, beside the same rows written by hand and beside PgQueuer
and Procrastinate, where `make bench` has them; all on one server that waits for its disk."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
import sqlalchemy as sa

from shared.job_queue.build import build_ports
from shared.job_queue.steps import job_kind
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.model import By, Turn
from shared.kernel.offers import PgOffers, Taking, TakingOffers
from shared.kernel.run import start_run
from shared.kernel.signals import dispatch
from shared.kernel.step import do_turn
from tests.bench.figures import Figure
from tests.bench.limits import events as limit_of_events
from tests.bench.limits import jobs as limit
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.place import TENANT, Place, place
from tests.support.jobs import FakeRunner

HONEST_DISK = {"fsync": "on", "full_page_writes": "on"}
DEFINITION = {
    "id": str(new_id()), "key": "noop", "command": "recompute-trained-tags", "description": "", "timeout_seconds": 60,
    "arg_schema": {"type": "object", "properties": {}, "additionalProperties": False}, "max_attempts": 3,
    "queue": "default", "executor": "worker", "concurrency_limit": None, "is_active": True, "version": 1,
}  # fmt: skip
PARAMS = orjson.dumps({"definition_key": "noop", "payload": {}, "max_attempts": 3, "version": 1}).decode()


def parts(here: Place, *, quick: bool) -> Iterator[Callable[[], Sequence[Figure]]]:
    yield lambda: measure(jobs=5 if quick else 40, rounds=2 if quick else 15)
    yield lambda: events(events=5 if quick else 100, rounds=2 if quick else 11)


def measure(*, jobs: int, rounds: int) -> list[Figure]:
    with place(HONEST_DISK) as here, ExitStack() as stack:
        said = orjson.dumps(DEFINITION).decode()
        here.owner_runs(
            "insert into super_admin (subject) values ('ada')", f"select put_job_definition('ada', '{said}')"
        )
        sides = [
            Side("product", _product(here, jobs), here.product_connection),
            Side("limit", _limit(here, jobs), lambda: here.limit_with_plans),
        ]
        sides += [
            Side(name, _peer(run, jobs))
            for name, make in (("PgQueuer", _pgqueuer), ("Procrastinate", _procrastinate))
            if importlib.util.find_spec(name.lower()) is not None
            for run in [make(here, stack)]
        ]
        found = race(sides, rounds)
    goals = {"limit": "0.7", "PgQueuer": "1.25", "Procrastinate": "2"}
    name = "a job, enqueued and run one at a time"
    figures = [
        versus(f"{name}, against {side.name}", "jobs/s", found, "product", side.name, goals[side.name])
        for side in sides[1:]
    ]
    return [*figures, *cpu(name, found, "product", "limit")]


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
            taking = Taking("default", 60, "w", new_id)
            do_turn(held.pop(), kind, replace(ports, offers=TakingOffers(here.engine, taking)))
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


def _database(here: Place) -> str:
    return here.admin.url(here.admin.create_from_template("template1")).replace("+pg8000", "")


def _pgqueuer(here: Place, stack: ExitStack) -> Callable[[int], None]:
    """Its own queries, one after the other, without its worker."""
    asyncpg: Any = importlib.import_module("asyncpg")
    db: Any = importlib.import_module("pgqueuer.db")
    queries: Any = importlib.import_module("pgqueuer.adapters.persistence.queries")
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    connection = loop.run_until_complete(asyncpg.connect(_database(here)))
    stack.callback(lambda: loop.run_until_complete(connection.close()))
    asked = queries.Queries(db.AsyncpgDriver(connection))
    loop.run_until_complete(asked.install())
    entry = {"noop": queries.EntrypointExecutionParameter(concurrency_limit=0)}
    manager, patience = new_id(), timedelta(seconds=60)

    async def some(jobs: int) -> None:
        for _ in range(jobs):
            await asked.enqueue("noop", b"x")
            (job,) = await asked.dequeue(1, entry, manager, None, patience)
            await asked.log_jobs([(job, "successful", None)])

    return lambda jobs: loop.run_until_complete(some(jobs))


def _procrastinate(here: Place, stack: ExitStack) -> Callable[[int], None]:
    """Deferred one by one and run by its own worker until nothing is left."""
    procrastinate: Any = importlib.import_module("procrastinate")
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=_database(here)))

    @app.task(queue="bench")  # type: ignore[untyped-decorator]
    async def noop() -> None:
        """Do nothing."""

    async def open_it() -> None:
        await app.open_async()
        await app.schema_manager.apply_schema_async()

    loop.run_until_complete(open_it())
    stack.callback(lambda: loop.run_until_complete(app.close_async()))

    async def some(jobs: int) -> None:
        for _ in range(jobs):
            await noop.defer_async()
        await app.run_worker_async(
            queues=["bench"], wait=False, concurrency=1, install_signal_handlers=False, listen_notify=False
        )

    return lambda jobs: loop.run_until_complete(some(jobs))
