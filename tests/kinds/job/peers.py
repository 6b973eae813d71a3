"""What jobs are measured on, and PgQueuer and Procrastinate on the same server, where `make bench` has them."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import orjson

from shared.kernel.clock import new_id
from tests.bench.place import Place

HONEST_DISK = {"fsync": "on", "full_page_writes": "on"}
DEFINITION = {
    "id": str(new_id()), "key": "noop", "command": "train-keyword-models", "description": "", "timeout_seconds": 60,
    "arg_schema": {"type": "object", "properties": {}, "additionalProperties": False}, "max_attempts": 3,
    "queue": "default", "executor": "worker", "concurrency_limit": None, "is_active": True, "version": 1,
}  # fmt: skip


def define(here: Place) -> None:
    said = orjson.dumps(DEFINITION).decode()
    here.owner_runs("insert into super_admin (subject) values ('ada')", f"select put_job_definition('ada', '{said}')")


def check_all_succeeded(here: Place) -> None:
    """A job that failed at once would be measured as a quick one."""
    with here.owner.connect() as connection:
        found = connection.exec_driver_sql("select status, count(*) from run where finished_at is not null group by 1")
        assert {status for status, _ in found} == {"succeeded"}


def installed(name: str) -> bool:
    return importlib.util.find_spec(name.lower()) is not None


def database(here: Place) -> str:
    return here.admin.url(here.admin.create_from_template("template1")).replace("+pg8000", "")


class PgQueuer:
    """Its own queries on a connection of its own, or its worker."""

    def __init__(self, url: str, stack: ExitStack, *, install: bool = True) -> None:
        asyncpg: Any = importlib.import_module("asyncpg")
        db: Any = importlib.import_module("pgqueuer.db")
        self._queries: Any = importlib.import_module("pgqueuer.adapters.persistence.queries")
        self.loop = asyncio.new_event_loop()
        stack.callback(self.loop.close)
        connection = self.loop.run_until_complete(asyncpg.connect(url))
        stack.callback(lambda: self.loop.run_until_complete(connection.close()))
        self.driver = db.AsyncpgDriver(connection)
        self.asked = self._queries.Queries(self.driver)
        self.connection = connection
        if install:
            self.loop.run_until_complete(self.asked.install())

    def one_by_one(self, jobs: int) -> None:
        """Its queries, one after the other, without its worker."""
        entry = {"noop": self._queries.EntrypointExecutionParameter(concurrency_limit=0)}
        manager, patience = new_id(), timedelta(seconds=60)

        async def some() -> None:
            for done in range(jobs):
                await self.asked.enqueue("noop", b"x")
                taken: list[Any] = []
                while not taken:  # another worker may have had it
                    taken = await self.asked.dequeue(1, entry, manager, None, patience)
                    if not taken and done + 1 == jobs:
                        break
                if taken:
                    await self.asked.log_jobs([(taken[0], "successful", None)])

        self.loop.run_until_complete(some())

    def worker(self, heard: Callable[[], None] = lambda: None) -> Any:
        core: Any = importlib.import_module("pgqueuer.qm")
        manager = core.QueueManager(self.asked)

        @manager.entrypoint("noop")  # type: ignore[untyped-decorator]
        async def noop(_: Any) -> None:
            heard()

        return manager

    def by_worker(self, jobs: int) -> None:
        """Enqueued in one go and worked off by its worker, in batches of as many."""
        types: Any = importlib.import_module("pgqueuer.types")
        mode = types.QueueExecutionMode.drain

        async def some() -> None:
            await self.asked.enqueue(["noop"] * jobs, [b"x"] * jobs, [0] * jobs)
            await self.worker().run(dequeue_timeout=timedelta(seconds=1), batch_size=jobs, mode=mode)

        self.loop.run_until_complete(some())


def procrastinate(here: Place, stack: ExitStack) -> Callable[[int], None]:
    """Deferred one by one and run by its own worker until nothing is left."""
    procrastinate: Any = importlib.import_module("procrastinate")
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=database(here)))

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
