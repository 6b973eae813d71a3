"""One MemoryQueue for several processes: the parent holds it and serves it over loopback; it also adds up what they count."""

from __future__ import annotations

import hmac
import pickle
import secrets
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from random import Random
from typing import Any, NamedTuple, Self

from shared.kernel.queue import Outgoing, QueueRefused, QueueUnavailable, Received
from shared.kernel.queue_memory import MemoryQueue, QueueSettings

FIFO, DEAD, DELAY, ORDERS = "baton-tally.fifo", "baton-tally-dead.fifo", "baton-delay", "orders"
BATONS = (FIFO, DELAY, DEAD)
MAX_RECEIVE_COUNT = 6
QUEUES = {
    FIFO: QueueSettings(fifo=True, visibility_s=6, max_receive_count=MAX_RECEIVE_COUNT, dead_letter=DEAD),
    DEAD: QueueSettings(fifo=True, visibility_s=6),
    DELAY: QueueSettings(fifo=False, visibility_s=4),
    ORDERS: QueueSettings(fifo=False, visibility_s=5),
}
SECRET_BYTES = 16


class Address(NamedTuple):
    port: int
    secret: bytes


class Taken(NamedTuple):
    """One delivery and the queue it came from."""

    queue: str
    message: Received


class Hub:
    """The parent's side: real time, unless the parent skips some of it for queues and database alike."""

    def __init__(self, rng: Random, duplicate_rate: float = 0.0) -> None:
        self.queue = MemoryQueue(QUEUES, self._now, rng)
        self.counts: Counter[str] = Counter()
        self.duplicate_rate = duplicate_rate
        self.handed_out = 0
        self._rng = rng
        self._skipped_s = 0.0
        self._lock = threading.Lock()
        self._copies: list[Taken] = []
        self._proxy_ports: SimpleQueue[int] = SimpleQueue()
        self._server = _Server(("127.0.0.1", 0), _Session)
        self._server.hub = self
        self._server.secret = secrets.token_bytes(SECRET_BYTES)
        self.address = Address(self._server.server_address[1], self._server.secret)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def proxy_port(self) -> int:
        """Wait until the proxy says where it listens."""
        return self._proxy_ports.get(timeout=60)

    def skip(self, seconds: float) -> None:
        self._skipped_s += seconds

    def _now(self) -> float:
        return time.monotonic() + self._skipped_s

    def waiting(self, queue: str) -> int:
        """How many messages lie in a queue, in whatever state."""
        contents = self.queue.messages(queue)
        return len(contents.visible) + len(contents.in_flight) + len(contents.delayed)

    # What workers ask for.

    def take(self) -> Taken | None:
        """The next message of any queue; now and then the same one again for somebody else."""
        with self._lock:
            if self._copies and self._rng.random() < 0.5:
                return self._copies.pop()
            queues = self._rng.sample(list(QUEUES), len(QUEUES))
        for queue in queues:
            for message in self.queue.receive(queue):
                self.handed_out += 1
                return self._perhaps_twice(Taken(queue, message))
        with self._lock:
            return self._copies.pop() if self._copies else None

    def _perhaps_twice(self, taken: Taken) -> Taken:
        with self._lock:
            if taken.queue != ORDERS and self._rng.random() < self.duplicate_rate:
                self._copies.append(taken)
                self.counts["duplicates"] += 1
        return taken

    def add(self, counts: Mapping[str, float]) -> None:
        with self._lock:
            self.counts.update(counts)

    def answer(self, name: str, args: Sequence[Any]) -> Any:
        match name:
            case "take":
                return self.take()
            case "add":
                return self.add(*args)
            case "proxy_listens":
                return self._proxy_ports.put(*args)
            case "send" | "receive" | "delete" | "change_visibility":
                return getattr(self.queue, name)(*args)
        raise ValueError(name)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    hub: Hub
    secret: bytes


class _Session(socketserver.StreamRequestHandler):
    """One worker's questions, until it dies."""

    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        if not hmac.compare_digest(self.rfile.read(SECRET_BYTES), self.server.secret):
            return
        with suppress(EOFError, OSError, pickle.UnpicklingError):  # a killed worker hangs up, perhaps in mid-sentence
            while True:
                name, args = pickle.load(self.rfile)
                self.wfile.write(pickle.dumps(self._answer(name, args)))

    def _answer(self, name: str, args: Sequence[Any]) -> tuple[str, Any]:
        try:
            return "ok", self.server.hub.answer(name, args)
        except QueueRefused as refused:
            return "refused", (refused.code, refused.message)


class HubIsGone(SystemExit):
    """The parent has ended, so the worker ends too."""


class Line:
    """A worker's side; answers to the Queue port."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(("127.0.0.1", address.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rwb")
        self._file.write(address.secret)
        self._lock = threading.Lock()

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        missed: list[int] = self._ask("send", queue, messages)
        return missed

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:
        self._ask("change_visibility", queue, receipt, seconds)

    def is_empty(self, queue: str) -> bool:
        return bool(self._ask("is_empty", queue))

    def receive(self, queue: str) -> list[Received]:
        received: list[Received] = self._ask("receive", queue)
        return received

    def delete(self, queue: str, receipt: str) -> None:
        self._ask("delete", queue, receipt)

    def take(self) -> Taken | None:
        taken: Taken | None = self._ask("take")
        return taken

    def add(self, counts: Mapping[str, float]) -> None:
        self._ask("add", counts)

    def proxy_listens(self, port: int) -> None:
        self._ask("proxy_listens", port)

    def _ask(self, name: str, *args: Any) -> Any:
        with self._lock:
            try:
                pickle.dump((name, args), self._file)
                self._file.flush()
                verdict, value = pickle.load(self._file)
            except (EOFError, OSError) as error:
                raise HubIsGone from error
        if verdict == "refused":
            raise QueueRefused(*value)
        return value


class TroubledLine(Line):
    """A line on which some sends fail, before or after they happened, and some are lost without a word."""

    def __init__(self, address: Address, rng: Random, rate: float) -> None:
        super().__init__(address)
        self._rng = rng
        self._rate = rate

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        if queue == ORDERS or self._rng.random() >= self._rate:
            return super().send(queue, messages)
        trouble = self._rng.choice(("before", "after", "lost"))
        self.add({f"sends troubled: {trouble}": 1})
        if trouble == "after":
            super().send(queue, messages)
        if trouble == "lost":
            return []
        raise QueueUnavailable(trouble)
