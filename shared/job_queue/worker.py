"""A resident worker: takes jobs as it has room for them, runs each on a thread, and says that it is alive."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import sqlalchemy as sa

from shared.job_queue import store
from shared.kernel import db, direct
from shared.kernel.catalogue import Catalogue
from shared.kernel.log import logger
from shared.kernel.model import Turn
from shared.kernel.ports import Ports
from shared.kernel.pull import do_pulled
from shared.kernel.step import Outcome
from shared.kernel.tick import repair_lost

SEEN_S = 10.0
AFTER_TROUBLE_S = 2.0


@dataclass(slots=True)
class Worker:
    """`poll_s`: how long it waits when there is nothing to do. `tick_s`: how often it repairs what other workers left."""

    engine: sa.Engine
    ports: Ports
    kinds: Catalogue
    worker_id: str
    queues: Sequence[str]
    concurrency: int = 1
    lease_s: float = 60.0
    poll_s: float = 0.5
    tick_s: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    _running: set[Future[Outcome]] = field(default_factory=set)
    _times: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Until it is told to stop; then it waits for what it has in hand, which hears of the stop at its next heartbeat."""
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="job") as pool:
            while not self.stop.is_set():
                try:
                    taken = self._round(pool)
                except Exception as error:
                    logger.exception("a worker could not take jobs")
                    self.stop.wait(AFTER_TROUBLE_S if db.is_disconnect(error) else self.poll_s)
                    continue
                if not taken:
                    self.stop.wait(self.poll_s)
        self._quietly("the worker could not sign off", self._forget)

    def _round(self, pool: ThreadPoolExecutor) -> int:
        self._running = {each for each in self._running if not each.done()}
        self._every("seen", SEEN_S, self._see)
        if self.tick_s is not None:
            self._every("tick", self.tick_s, self._tick)
        taken = 0
        for queue in self.queues:
            room = self.concurrency - len(self._running)
            if room <= 0:
                break
            for turn in self._take(queue, room):
                self._running.add(pool.submit(self._do, turn))
                taken += 1
        return taken

    def _take(self, queue: str, room: int) -> list[Turn]:
        assert self.ports.offers is not None
        return self.ports.offers.take(queue, room, self.ports.chance.new_id(), self.lease_s, self.worker_id)

    def _do(self, turn: Turn) -> Outcome:
        return do_pulled(turn, self.kinds, self.ports)

    def _every(self, name: str, seconds: float, do: Callable[[], object]) -> None:
        now = time.monotonic()
        if now >= self._times.get(name, 0.0):
            self._times[name] = now + seconds
            self._quietly(f"{name} failed", do)

    def _quietly(self, otherwise: str, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception:
            logger.exception(otherwise)

    def _see(self) -> None:
        with direct.alone(self.engine) as line:
            line.run(
                store.SEE_WORKER,
                {
                    "worker_id": self.worker_id,
                    "hostname": socket.gethostname(),
                    "version": "",
                    "queues": list(self.queues),
                    "running_count": len(self._running),
                },
            )

    def _forget(self) -> None:
        with direct.alone(self.engine) as line:
            line.run(store.FORGET_WORKER, {"worker_id": self.worker_id})

    def _tick(self) -> None:
        repair_lost(self.ports, self.kinds)
