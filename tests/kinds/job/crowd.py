"""Four workers at once, each a process of its own, and how long a job waits for a worker that has nothing to do."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Self

from shared.job_queue.build import build_ports
from shared.job_queue.model import Finished
from shared.job_queue.steps import job_kind
from shared.job_queue.worker import Worker
from shared.kernel import db
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.model import By, Taking, Turn
from shared.kernel.offers import PgOffers
from shared.kernel.ports import Ports
from shared.kernel.run import start_run
from shared.kernel.step import Looked, commit_together, look
from shared.kernel.store import PgStore
from tests.bench.figures import Figure
from tests.bench.place import TENANT, ListQueue, Place, place
from tests.kinds.job import peers
from tests.kinds.job.peers import HONEST_DISK, PgQueuer, define
from tests.support.databases import as_user
from tests.support.jobs import FakeRunner

WORKERS = 4
PAUSE_S = 0.02


def four_workers(*, jobs: int, rounds: int) -> list[Figure]:
    """Each enqueues and runs so many, one at a time, on one queue."""
    with place(HONEST_DISK) as here, ExitStack() as stack:
        define(here)
        theirs = peers.database(here)
        PgQueuer(theirs, stack)
        crowds = [
            stack.enter_context(_Crowd(_ours, as_user(here.url, "baton_worker"))),
            stack.enter_context(_Crowd(_pgqueuers, theirs)),
        ]
        for crowd in crowds:
            crowd.rate(jobs)  # plans are made, pages are there
        pairs = [tuple(crowd.rate(jobs) for crowd in crowds) for _ in range(rounds)]
        peers.check_all_succeeded(here)
    ratios = [ours / peer for ours, peer in pairs]
    return [
        Figure(
            name=f"jobs one at a time, {WORKERS} workers, against PgQueuer's queries",
            value=statistics.median(ours for ours, _ in pairs), unit="jobs/s", goal="1.0",
            against=statistics.median(peer for _, peer in pairs), ratio=statistics.median(ratios),
        )
    ]  # fmt: skip


class _Crowd:
    """Processes that wait for a word, run their jobs and say so."""

    def __init__(self, work: Callable[[str, Any], None], url: str) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(WORKERS)]
        self._ends = [ours for ours, _ in pairs]
        self._all = [context.Process(target=work, args=(url, theirs), daemon=True) for _, theirs in pairs]

    def __enter__(self) -> Self:
        for each in self._all:
            each.start()
        for end in self._ends:
            end.recv()
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            end.send(0)
        for each in self._all:
            each.join(60)

    def rate(self, jobs: int) -> float:
        began = time.perf_counter()
        for end in self._ends:
            end.send(jobs)
        for end in self._ends:
            end.recv()
        return WORKERS * jobs / (time.perf_counter() - began)


def _ports(engine: Any) -> Ports:
    return Ports(store=PgStore(engine), queue=ListQueue(), offers=PgOffers(engine))


def _ours(url: str, end: Any) -> None:
    engine = db.connect_engine(url)
    kind = job_kind(build_ports(engine, {}, runner=FakeRunner(), worker_id="w"))
    ports, held = _ports(engine), list[Turn]()

    def run_one() -> None:
        start_run(ports, kind, TENANT, {"definition_key": "noop"}, By(source="api"))
        if not held:
            assert ports.offers is not None
            held.extend(ports.offers.take("default", 1, new_id(), 60, "w"))
            return
        taking = Taking("default", 60, "w", new_id())
        looked = look(held.pop(), kind, ports)
        assert isinstance(looked, Looked)
        commit_together([looked], ports, taking)
        held.extend(taking.taken)

    def run_some(jobs: int) -> None:
        for _ in range(jobs):
            run_one()

    _serve(end, run_some)
    engine.dispose()


def _pgqueuers(url: str, end: Any) -> None:
    with ExitStack() as stack:
        _serve(end, PgQueuer(url, stack, install=False).one_by_one)


def _serve(end: Any, run: Callable[[int], object]) -> None:
    end.send("ready")
    while jobs := end.recv():
        run(jobs)
        end.send("done")


def latency(*, jobs: int) -> list[Figure]:
    """From the call that enqueues until the command would begin, with a worker that listens and has nothing else to do. By
    turns: a job for us, one for them."""
    with place(HONEST_DISK) as here, ExitStack() as stack:
        define(here)
        sides = [_our_starts(here, stack), _their_starts(peers.database(here), stack)]
        found = [[side() for side in sides] for _ in range(jobs + 5)][5:]
    ours, theirs = ([each[side] * 1000 for each in found] for side in (0, 1))
    return [
        Figure(
            name=f"from enqueue to start, {name}, against PgQueuer's worker", value=_at(ours, part), unit="ms",
            against=_at(theirs, part), ratio=_at(ours, part) / _at(theirs, part), goal="<= 1",
        )
        for name, part in (("p50", 0.5), ("p95", 0.95))
    ]  # fmt: skip


def _at(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


class _Begun:
    """When a command began, for whoever waits for it."""

    def __init__(self) -> None:
        self._at = 0.0
        self._told = threading.Semaphore(0)

    def note(self) -> None:
        self._at = time.perf_counter()
        self._told.release()

    def after(self, enqueue: Callable[[], object]) -> float:
        time.sleep(PAUSE_S)
        called = time.perf_counter()
        enqueue()
        assert self._told.acquire(timeout=60)
        return self._at - called


def _our_starts(here: Place, stack: ExitStack) -> Callable[[], float]:
    engine = db.connect_engine(as_user(here.url, "baton_worker"), pool_size=4)
    stack.callback(engine.dispose)
    begun = _Begun()

    class Noting(FakeRunner):
        def run(self, *_: Any) -> Finished:
            begun.note()
            return Finished(exit_code=0)

    kind = job_kind(build_ports(engine, {}, runner=Noting(), worker_id="w"))
    worker = Worker(engine=engine, ports=_ports(engine), kinds=Catalogue(kind), worker_id="w", queues=["default"])
    thread = threading.Thread(target=worker.run)
    thread.start()
    stack.callback(thread.join)
    stack.callback(worker.ask_to_stop)
    asked = {"definition_key": "noop"}
    return lambda: begun.after(lambda: start_run(here.ports, kind, TENANT, asked, By(source="api")))


def _their_starts(url: str, stack: ExitStack) -> Callable[[], float]:
    adds, works = PgQueuer(url, stack), PgQueuer(url, stack, install=False)
    begun = _Begun()
    manager = works.worker(begun.note)
    run = manager.run(dequeue_timeout=timedelta(seconds=1), batch_size=1)
    thread = threading.Thread(target=lambda: works.loop.run_until_complete(run))
    thread.start()
    stack.callback(thread.join)
    stack.callback(lambda: works.loop.call_soon_threadsafe(manager.shutdown.set))
    return lambda: begun.after(lambda: adds.loop.run_until_complete(adds.asked.enqueue("noop", b"x")))
