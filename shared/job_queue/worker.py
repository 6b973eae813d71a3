"""A resident worker: takes jobs as it has room for them, runs each on a thread, and says that it is alive.

There is a thread for every job in hand. One that has done its job goes on with the next that nobody has begun, and calls
another thread if more is left: many short jobs are done by few threads, and long ones by as many as there are. What has
ended is handed in together, by whoever finds nothing else to do or is called meanwhile, and new jobs are taken with it.

It may do the steps of the other kinds too, where their batons travel through Postgres.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from shared.job_queue import store
from shared.kernel import db, direct
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import stopwatch
from shared.kernel.dead_letter import note_dead_letter
from shared.kernel.handle import handle_baton, handle_delayed
from shared.kernel.log import logger
from shared.kernel.metrics import write_out
from shared.kernel.model import Taking, Turn
from shared.kernel.ports import Ports
from shared.kernel.pull import kind_of
from shared.kernel.queue import Consumer, Received
from shared.kernel.queue_postgres import CHANNEL
from shared.kernel.redact import redact
from shared.kernel.sql import LISTEN_TO
from shared.kernel.step import Looked, commit_together, look
from shared.kernel.tick import repair_lost, roll_up, tick

SEEN_S = 10.0
METRICS_S = 10.0
AFTER_TROUBLE_S = 2.0
NO_ENTRY = ("28", "3D")  # Postgres refuses the role or its password, or has no such database
LISTENS_S = 5.0  # a mark that somebody listens is good for so long
MOST_RECEIVES = 10
MOST_TOGETHER = 100  # endings in one flight


@dataclass(slots=True)
class Worker:
    """`poll_s`: how long it waits at most when there is nothing to do; it is woken earlier by whoever adds something.

    `tick_s`: how often it repairs what others left. `pushed`: other kinds whose batons it takes from `messages`.
    """

    engine: sa.Engine
    ports: Ports
    kinds: Catalogue
    worker_id: str
    queues: Sequence[str]
    concurrency: int = 1
    lease_s: float = 60.0
    poll_s: float = 0.5
    tick_s: float | None = None
    pushed: Sequence[str] = ()
    messages: Consumer | None = None
    version: str = ""
    stop: threading.Event = field(default_factory=threading.Event)
    bell: threading.Event = field(default_factory=threading.Event)
    in_hand: int = 0  # until its end is handed in
    last_round: float = 0.0
    _times: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of all below, and of `in_hand`
    _turns: deque[tuple[Turn, str]] = field(default_factory=deque)  # not begun, each with its queue
    _ended: list[tuple[Looked, str]] = field(default_factory=list)
    _called: bool = False  # a thread that is not here yet
    _handing_in: bool = False

    def run(self) -> None:
        """Until it is told to stop; then it waits for what it has in hand, which hears of the stop at its next heartbeat."""
        listener = threading.Thread(target=self._listen, name="listener", daemon=True)
        listener.start()
        ticker = threading.Thread(target=self._tick_on, name="ticker", daemon=True)
        if self.tick_s is not None:
            ticker.start()
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="job") as pool:
            while not self.stop.is_set():
                self.bell.clear()
                try:
                    taken = self._round(pool)
                except Exception as error:
                    self.stop.wait(AFTER_TROUBLE_S if _tell("a worker could not take jobs", error) else self.poll_s)
                    continue
                self.last_round = time.monotonic()
                if not taken:
                    self.bell.wait(self.poll_s)
        self._quietly("the worker could not sign off", self._forget)
        self._quietly("metrics were not written", self._write_metrics)

    def ask_to_stop(self) -> None:
        self.stop.set()
        self.bell.set()

    def is_well(self) -> bool:
        """Whether it still looks for work: what runs in its threads may take as long as it wants."""
        return time.monotonic() - self.last_round < max(60.0, 4 * self.poll_s)

    def _round(self, pool: ThreadPoolExecutor) -> int:
        self._every("seen", SEEN_S, self._see)
        self._every("metrics", METRICS_S, self._write_metrics)
        taken = 0
        for queue in self.queues:
            room = self.concurrency - self.in_hand
            if room <= 0:
                return taken
            turns = self._take(queue, room)
            self._add(pool, turns, queue)
            taken += len(turns)
        for queue in self._message_queues():
            room = self.concurrency - self.in_hand
            if room <= 0 or self.messages is None:
                return taken
            for message in self.messages.receive(queue, min(room, 10)):
                with self._lock:
                    self.in_hand += 1
                pool.submit(self._handle, queue, message)
                taken += 1
        if not taken:
            self._every("listens", LISTENS_S / 2, self._mark_listening)
        return taken

    def _take(self, queue: str, room: int) -> list[Turn]:
        assert self.ports.offers is not None
        return self.ports.offers.take(queue, room, self.ports.chance.new_id(), self.lease_s, self.worker_id)

    # --- what the threads do ---

    def _add(self, pool: ThreadPoolExecutor, turns: Sequence[Turn], queue: str) -> None:
        with self._lock:
            self._turns.extend((turn, queue) for turn in turns)
            self.in_hand += len(turns)
            calls = self._calls()
        if calls:
            pool.submit(self._work, pool)

    def _calls(self) -> bool:
        """Whether another thread is to be called, under the lock: one at a time, who calls the next."""
        if self._called or not (self._turns or (self._ended and not self._handing_in)):
            return False
        self._called = True
        return True

    def _work(self, pool: ThreadPoolExecutor) -> None:
        """Whoever was called hands in what has ended, and then does what nobody has begun, as long as there is some."""
        with self._lock:
            self._called = False
            hands_in = bool(self._ended)
        while True:
            turn: tuple[Turn, str] | None = None
            with self._lock:
                if self._turns and not (hands_in and self._ended and not self._handing_in):
                    turn = self._turns.popleft()
                elif not self._ended or self._handing_in:
                    break
                else:
                    self._handing_in = True
                hands_in = False
                calls = self._calls()
            if calls:
                with suppress(RuntimeError):  # the worker stops: nobody is called any more
                    pool.submit(self._work, pool)
            if turn is None:
                self._hand_in()
            else:
                self._begin(*turn)
        self.bell.set()

    def _begin(self, turn: Turn, queue: str) -> None:
        looked: Looked | None = None
        offers = self.ports.offers
        assert offers is not None

        def begin() -> None:
            nonlocal looked
            if self.stop.is_set():  # nothing was done: it costs no attempt
                offers.give_back(turn)
                return
            found = look(turn, kind_of(turn, self.kinds, self.ports), self.ports)
            looked = found if isinstance(found, Looked) else None

        self._quietly("a turn could not be taken to its end", begin)
        with self._lock:
            if looked is None:
                self.in_hand -= 1
            else:
                self._ended.append((looked, queue))

    def _hand_in(self) -> None:
        """Together with what has ended, as much is taken as that makes room for: from the first queue alone, the others wait
        for the next round."""
        with self._lock:
            ended, self._ended = self._ended[:MOST_TOGETHER], self._ended[MOST_TOGETHER:]
        first = self.queues[0] if self.queues else ""
        wanted = 0 if self.stop.is_set() else sum(queue == first for _, queue in ended)
        taking = Taking(first, self.lease_s, self.worker_id, self.ports.chance.new_id(), wanted)
        steps = [looked for looked, _ in ended]
        self._quietly(
            "what has ended could not be handed in",
            lambda: commit_together(steps, self.ports, taking if wanted else None),
        )
        with self._lock:
            self._handing_in = False
            self._turns.extend((turn, first) for turn in taking.taken)
            self.in_hand += len(taking.taken) - len(ended)

    def _message_queues(self) -> Sequence[str]:
        if not self.pushed:
            return ()
        return [*(self.ports.relay.queue_of(name) for name in self.pushed), self.ports.relay.delay_queue]

    def _handle(self, queue: str, message: Received) -> None:
        def handle() -> None:
            assert self.messages is not None
            if message.receive_count > MOST_RECEIVES:
                note_dead_letter(self.ports, message.body, message.receive_count)
                self.messages.delete(queue, message.receipt)
                return
            elapsed, most_s = stopwatch(), self.ports.relay.step_timeout_s
            ports = replace(self.ports, time_left_s=lambda: most_s - elapsed())
            by_queue: Mapping[str, str] = {self.ports.relay.queue_of(name): name for name in self.pushed}
            if queue in by_queue:
                done = handle_baton(ports, self.kinds[by_queue[queue]], message)
            else:
                done = handle_delayed(ports, message)
            if done:
                self.messages.delete(queue, message.receipt)

        self._quietly("a message could not be handled", handle)
        with self._lock:
            self.in_hand -= 1
        self.bell.set()

    def _every(self, name: str, seconds: float, do: Callable[[], object]) -> None:
        now = time.monotonic()
        if now >= self._times.get(name, 0.0):
            self._times[name] = now + seconds
            self._quietly(f"{name} failed", do)

    def _quietly(self, otherwise: str, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:
            _tell(otherwise, error)

    def _see(self) -> None:
        with direct.alone(self.engine) as line:
            line.run(
                store.SEE_WORKER,
                {
                    "worker_id": self.worker_id,
                    "hostname": socket.gethostname(),
                    "version": self.version,
                    "queues": list(self.queues),
                    "running_count": self.in_hand,
                },
            )

    def _write_metrics(self) -> None:
        write_out(self.ports.meter)

    def _forget(self) -> None:
        with direct.alone(self.engine) as line:
            line.run(store.FORGET_WORKER, {"worker_id": self.worker_id})

    def _tick_on(self) -> None:
        assert self.tick_s is not None
        while not self.stop.wait(0 if "tick" not in self._times else self.tick_s):
            self._times["tick"] = time.monotonic()
            self._quietly("a tick failed", self._tick)

    def _tick(self) -> None:
        ports = replace(self.ports, pause=self.stop.wait)
        if self.messages is None:
            repair_lost(ports, self.kinds)  # the rest is for a tick that can send
            return
        tick(ports, self.kinds)
        roll_up(ports, ports.store.beat("tick"))

    # --- who adds something rings the bell ---

    def _mark_listening(self) -> None:
        with direct.alone(self.engine) as line:
            if line.run(LISTEN_TO, {"queues": list(self.queues), "for_s": LISTENS_S}):
                self.bell.set()  # whatever came before the mark was there is looked for once more

    def _listen(self) -> None:
        while not self.stop.is_set():
            try:
                self._hear()
            except Exception:
                logger.warning("not listening; looking every %s s", self.poll_s)
                self.stop.wait(AFTER_TROUBLE_S)

    def _hear(self) -> None:
        loan = self.engine.raw_connection()
        connection: Any = loan.dbapi_connection
        try:
            connection.autocommit = True
            connection.execute_simple(f"listen baton_offers; listen {CHANNEL}")
            while not self.stop.is_set():
                if connection.heard(1.0) & {*self.queues, *self._message_queues()}:
                    self.bell.set()
        finally:
            with suppress(Exception):
                loan.invalidate()  # it must not go back to the pool with its ears open
            loan.close()


def _tell(what: str, error: Exception) -> bool:
    """A database that is away, or doesn't let us in, is told in a line: how we came to ask it explains nothing. Whether it is so."""
    is_away = db.is_disconnect(error) or (db.sqlstate(error) or "").startswith(NO_ENTRY)
    if is_away:
        logger.warning("%s: the database can't be reached", what, extra={"error": redact(str(error))})
    else:
        logger.error(what, exc_info=error)
    return is_away
