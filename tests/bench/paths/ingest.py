"""A whole ingestion, from its start to its end: plan, crawl, audit, consolidate; real statements, the queue in memory.

The upstream is the Nivoda stand-in in a process of its own, asked over HTTP through the real adapter: its answers are
timed alone as well, so that it shows whose time a page is. Beside it dlt loads the same pages into the same server.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from uuid import UUID

import sqlalchemy as sa
import urllib3

from shared.kernel import db
from shared.kernel.handle import handle_baton
from shared.kernel.http import Pool, new_pool
from shared.kernel.model import Turn
from shared.kernel.queue_memory import MemoryQueue, QueueSettings
from shared.kernel.run import start_run
from shared.kernel.store import PgStore
from shared.kernel.tokens import Token, Tokens
from shared.page_ingest.adapters.nivoda import PATH, Nivoda, Question
from shared.page_ingest.model import Page, PriceRange
from shared.page_ingest.ports import Ports as IngestPorts
from shared.page_ingest.steps import page_ingest
from shared.page_ingest.store import PageStore
from tests.bench.figures import Figure
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.place import TENANT, Place
from tests.support.databases import as_user

LOW, HIGH, PAGE_SIZE = 200, 20_000, 50
PARTITION_RECORDS = 1_000
TABLES = "raw_item, diamond, upstream, account_token, lane, run, step, history"
Asked = tuple[PriceRange, int, int]


def dlt_installed() -> bool:
    """Only the environment of `make bench` has it."""
    return importlib.util.find_spec("dlt") is not None


def measure(place: Place, *, stones: int, rounds: int) -> list[Figure]:
    with _upstream(stones) as upstream, tempfile.TemporaryDirectory(prefix="baton-bench-dlt-") as home:
        ours = _product(place, upstream, stones)
        ours.prepare()()  # so that it is known which pages a run asks for
        sides = [ours, _answers(upstream)]
        found = race(sides, rounds)
        figures = [
            versus(
                "pages of a whole ingestion, against the upstream's answers alone", "pages/s", found, *_names(sides)
            ),
            *cpu("a page of a whole ingestion", found, *_names(sides))[:1],
        ]
        if dlt_installed():
            engine = db.connect_engine(as_user(place.url, "baton_worker"), pool_size=2)
            both, dlt = _product(place, upstream, stones, engine, workers=2), _dlt(place, upstream, stones, home)
            found = race([ours, both, dlt], max(1, rounds // 3))
            engine.dispose()
            name, goal = "pages of a whole ingestion", ">= 2"
            figures += [
                versus(f"{name}, one step at a time, against dlt", "pages/s", found, ours.name, dlt.name),
                versus(f"{name} by two workers, against dlt", "pages/s", found, both.name, dlt.name, goal),
            ]
    return figures


def _names(sides: list[Side]) -> tuple[str, str]:
    return sides[0].name, sides[1].name


@dataclass(slots=True)
class Remembering:
    """The real adapter, and which pages it was asked for."""

    real: Nivoda
    pages: list[Asked]

    def authenticate(self) -> Token:
        return self.real.authenticate()

    def count(self, token: str, prices: PriceRange) -> int:
        return self.real.count(token, prices)

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page:
        self.pages.append((prices, offset, limit))
        return self.real.page(token, prices, offset, limit)


@dataclass(slots=True)
class Upstream:
    address: str
    username: str
    password: str
    pool: Pool
    bare: urllib3.PoolManager
    pages: list[Asked]

    def client(self, time_left_s: Callable[[], float] = lambda: 60.0) -> Nivoda:
        return Nivoda(self.address, self.username, self.password, time_left_s=time_left_s, pool=self.pool)

    def for_step(self, source: str, turn: Turn, time_left_s: Callable[[], float]) -> Remembering:
        return Remembering(self.client(time_left_s), self.pages)

    def answer(self, token: str, asked: Asked) -> bytes:
        """The body of a page as it comes, unread."""
        prices, offset, limit = asked
        variables = {
            "token": token,
            "query": {"dollar_value": {"from": prices.low, "to": prices.high}},
            "offset": offset,
            "limit": limit,
            "order": {"type": "createdAt", "direction": "ASC"},
        }
        body = json.dumps({"query": Question.PAGE.value, "variables": variables}).encode()
        headers = {"content-type": "application/json"}
        response = self.bare.request("POST", self.address + PATH, body=body, headers=headers)
        assert response.status == 200
        return response.data


@contextmanager
def _upstream(stones: int) -> Iterator[Upstream]:
    command = [sys.executable, "-m", "infra.local.standins.nivoda", "--stones", str(stones)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address, account = process.stdout.readline().strip(), process.stdout.readline()
        said = re.fullmatch(r"username (\S+), password (\S+), control at .*\n", account)
        assert said is not None, account
        try:
            with new_pool() as pool, urllib3.PoolManager() as bare:
                yield Upstream(address, said[1], said[2], pool, bare, [])
        finally:
            process.terminate()


def _product(place: Place, upstream: Upstream, stones: int, engine: sa.Engine | None = None, workers: int = 1) -> Side:
    """The partitions of a run are lanes: as many steps at once as there are workers."""
    engine = engine or place.engine
    kind = page_ingest(IngestPorts(upstream=upstream.for_step, tokens=Tokens(engine), store=PageStore(engine)))
    fifo = place.ports.relay.queue_of(kind.name)
    settings = {
        fifo: QueueSettings(fifo=True, visibility_s=180, dedup_scope="messageGroup"),
        place.ports.relay.delay_queue: QueueSettings(fifo=False, visibility_s=60),
    }
    params = {"source": "nivoda", "low": LOW, "high": HIGH, "partition_records": PARTITION_RECORDS}

    def prepare() -> Act:
        place.owner_runs(f"truncate {TABLES}")
        upstream.pages.clear()
        queue = MemoryQueue(settings, time.monotonic, Random(1))
        ports = replace(place.ports, queue=queue, store=PgStore(engine))
        at_work: set[int] = set()

        def work(number: int) -> None:
            """Until nothing is left, and nobody is at work who may leave something."""
            while True:
                at_work.add(number)
                message = next(iter(queue.receive(fifo)), None)
                if message is None:
                    at_work.discard(number)
                    if not at_work:
                        return
                    time.sleep(0.0005)
                    continue
                assert handle_baton(ports, kind, message)
                queue.delete(fifo, message.receipt)

        def act() -> int:
            run_id = start_run(ports, kind, TENANT, params)
            with ThreadPoolExecutor(workers) as pool:
                for done in [pool.submit(work, number) for number in range(workers)]:
                    done.result()
            _is_complete(place, run_id, stones)
            return len(upstream.pages)

        return act

    return Side("product" if workers == 1 else f"{workers} workers", prepare, place.product_connection)


def _is_complete(place: Place, run_id: UUID, stones: int) -> None:
    ended = sa.text("""
        select outcome, (select count(*) from raw_item where run_id = run.id), (select count(*) from diamond)
        from run where id = :id""")
    with place.owner.connect() as connection:
        assert tuple(connection.execute(ended, {"id": run_id}).one()) == ("complete", stones, stones)


def _answers(upstream: Upstream) -> Side:
    def prepare() -> Act:
        token, pages = upstream.client().authenticate().value, list(upstream.pages)

        def act() -> int:
            for asked in pages:
                upstream.answer(token, asked)
            return len(pages)

        return act

    return Side("answers", prepare)


def _dlt(place: Place, upstream: Upstream, stones: int, home: str) -> Side:
    """The same pages, merged by the stone's id into one table whose payload stays JSON; a new one in every round."""
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    dlt: Any = importlib.import_module("dlt")
    admin = place.admin
    url = sa.make_url(admin.url(admin.create_from_template("template1")))
    url = url.set(drivername="postgresql", password=url.password or "unused")  # dlt insists on one
    numbers = itertools.count()
    destination = dlt.destinations.postgres(url.render_as_string(hide_password=False))

    def prepare() -> Act:
        token, pages = upstream.client().authenticate().value, list(upstream.pages)
        name = f"bench_{next(numbers)}"
        pipeline = dlt.pipeline(name, destination=destination, dataset_name=name, pipelines_dir=home)

        def fetched() -> Iterator[list[dict[str, Any]]]:
            for asked in pages:
                items = json.loads(upstream.answer(token, asked))["data"]["as"]["diamonds_by_query"]["items"]
                yield [{"external_id": item["diamond"]["id"], "payload": item} for item in items]

        def act() -> int:
            stones_of = dlt.resource(
                fetched,
                name="stone",
                primary_key="external_id",
                write_disposition="merge",
                columns={"payload": {"data_type": "json"}},
            )
            pipeline.run(stones_of).raise_on_failed_jobs()
            with pipeline.sql_client() as client:
                assert client.execute_sql("select count(*) from stone") == [(stones,)]
            return len(pages)

        return act

    return Side("dlt", prepare)
