"""A stand-in for an upstream on this machine: the server, its control endpoint and its misbehaviours, the same for all.

A stand-in of its own is a subclass that knows the truth and speaks the wire protocol:

    class ExampleStandIn(StandIn):
        name = "example"

        def serve(self, request: Request) -> Reply:
            faults = self.struck_by("search")             # counts the call, waits if it is to be slow
            return self.spoil(Reply.json({"items": …}), faults)

It is added to `STANDINS` in `all.py`; then the local cloud starts it, `baton up --upstream example=URL` puts another server
in its place, and `POST /_control` obeys orders such as {"misbehave": {"fault": "throttle", "budget": 3}}, {"behave": null}.

It listens on loopback only. `main` runs one by hand.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import ValidationError

from infra.local.child import HOST, Stops
from infra.local.origin_guard import refusal
from infra.local.standins.faults import Misbehaviour, Schedule

CONTROL = "/_control"
LARGEST_REQUEST = 2**20

Hook = Callable[[Any, Mapping[str, Any]], None]
_PAGE_FOR_PEOPLE = b"<!doctype html><html><body><h1>We will be back soon</h1></body></html>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Message[str, str]  # `get` takes a name in any case
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    reset: bool = False
    drip_s: float = 0

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Self:
        return cls(status=status, body=json.dumps(value).encode())


class StandIn(Stops):
    """Starts on `start()`; everything else may be used before, while and after it runs, from any thread."""

    name: ClassVar[str]
    misbehaviours: ClassVar[type[Misbehaviour]] = Misbehaviour

    def __init__(
        self, seed: int = 0, *, budget: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.before_each: Hook | None = None
        self.calls: Counter[Any] = Counter()
        self.surprises: list[Exception] = []
        self.now = clock
        self.lock = threading.RLock()
        self.schedule = Schedule(seed, budget)
        self._stopping = threading.Event()
        self._server: _Server | None = None

    # --- what a stand-in is

    def serve(self, request: Request) -> Reply:
        """The wire protocol: one request, answered. An exception is a surprise, and a 500."""
        raise NotImplementedError

    def obey(self, orders: Mapping[str, Any]) -> None:
        """Orders of the control endpoint that only this stand-in knows."""

    def figures(self) -> Mapping[str, Any]:
        """What the control endpoint tells besides calls and faults."""
        return {}

    # --- its life

    def start(self, port: int = 0) -> str:
        """The base URL under which it answers."""
        self._stopping.clear()
        self._server = _Server((HOST, port), self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True, name=self.name).start()
        return f"http://{HOST}:{self._server.server_address[1]}"

    def stop(self) -> None:
        if self._server is not None:
            self._stopping.set()
            self._server.shutdown()
            self._server.hang_up()
            self._server.server_close()
            self._server = None

    def wait(self, seconds: float) -> None:
        """Let time pass, unless the stand-in stops."""
        self._stopping.wait(seconds)

    # --- misbehaviour

    @property
    def struck(self) -> Counter[Any]:
        """How often each fault has struck."""
        with self.lock:
            return self.schedule.struck.copy()

    def misbehave(self, fault: str, **how: Any) -> None:
        """For example misbehave("throttle", every=3, budget=5, retry_after="7"); see Misbehaviour and `faults.COMMON`."""
        misbehaviour = self.misbehaviours.model_validate({"fault": fault, **how})
        with self.lock:
            self.schedule.add(misbehaviour)

    def behave(self, fault: str | None = None) -> None:
        """No more of this fault, or of any."""
        with self.lock:
            self.schedule.clear(fault)

    def struck_by(self, operation: str, **facts: Any) -> Mapping[str, Any]:
        """Count a call of this operation and draw what strikes it; `facts` are what faults may depend on."""
        if self.before_each is not None:
            self.before_each(operation, facts)
        with self.lock:
            self.calls[operation] += 1
            return self.schedule.draw(operation, facts)

    def instead(self, faults: Mapping[str, Misbehaviour]) -> Reply | None:
        """What is said in place of any answer, if something is. Waits first if the call is to be slow."""
        if how := faults.get("slow"):
            self.wait(how.seconds)
        if how := faults.get("throttle"):
            ahead = formatdate(time.time_ns() / 1e9 + how.seconds, usegmt=True)
            wait = ahead if how.retry_after == "date" else how.retry_after
            headers = {} if wait is None else {"Retry-After": wait}
            return Reply(status=429, body=b'{"error":"Too Many Requests"}', headers=headers)
        if how := faults.get("server_error"):
            return Reply(status=how.status, body=_PAGE_FOR_PEOPLE, headers={"Content-Type": "text/html"})
        if "html" in faults:
            return Reply(body=_PAGE_FOR_PEOPLE, headers={"Content-Type": "text/html"})
        return None

    def spoil(self, reply: Reply, faults: Mapping[str, Misbehaviour]) -> Reply:
        """The reply as it arrives after what the common faults do to it."""
        if (said := self.instead(faults)) is not None:
            return said
        body = reply.body
        if how := faults.get("huge"):
            body += b" " * (how.by * 2**20)
        if "truncated" in faults:
            body = body[: len(body) // 2]
        drip = faults.get("drip")
        return replace(reply, body=body, reset="reset" in faults, drip_s=drip.seconds if drip else 0)

    # --- the control endpoint

    def control(self, body: bytes) -> Reply:
        try:
            orders = json.loads(body or b"{}")
            if "misbehave" in orders:
                self.misbehave(**orders["misbehave"])
            if "behave" in orders:
                self.behave(orders["behave"])
            self.obey(orders)
        except (ValueError, TypeError, ValidationError) as error:
            return Reply.json({"error": str(error)}, 400)
        return Reply.json({"calls": self.calls, "struck": self.struck, **self.figures()})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], standin: StandIn) -> None:
        super().__init__(address, _Handler)
        self.standin = standin
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End the connections that clients keep alive."""
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the shape of the base class
        """A client that went away is its own business; anything else is a fault of the stand-in."""
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self.standin.surprises.append(error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "stand-in"
    wbufsize = 2**16
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._send(self._reply())

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the names of the base class

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the shape of the base class
        pass

    def _reply(self) -> Reply:
        standin, size = self.server.standin, int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(min(size, LARGEST_REQUEST))  # first: who is refused while sending never reads why
        if (why := refusal({name.lower(): value for name, value in self.headers.items()})) is not None:
            self.close_connection = True
            return Reply.json({"error": why}, 403)
        if size > LARGEST_REQUEST:
            self.close_connection = True
            return Reply.json({"error": "the request is too large"}, 413)
        asked = urlsplit(self.path)
        if asked.path == CONTROL:
            return standin.control(body)
        query = parse_qs(asked.query, keep_blank_values=True)
        request = Request(method=self.command, path=asked.path, query=query, headers=self.headers, body=body)
        try:
            return standin.serve(request)
        except Exception as error:
            standin.surprises.append(error)
            return Reply.json({"error": "the stand-in itself failed"}, 500)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if reply.reset:
            self.wfile.write(reply.body[: len(reply.body) // 2])
            self._break()
        elif reply.drip_s:
            self._drip(reply)
        else:
            self.wfile.write(reply.body)
            self.wfile.flush()

    def _drip(self, reply: Reply) -> None:
        for byte in reply.body:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            self.server.standin.wait(reply.drip_s)

    def _break(self) -> None:
        """Let the client see a reset, not an orderly end."""
        self.wfile.flush()
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.wfile.close()
        self.rfile.close()
        self.connection.close()
        self.wfile = io.BytesIO()  # the base class flushes once more


def run_by_hand(parser: argparse.ArgumentParser, make: Callable[[argparse.Namespace], StandIn], told: str) -> None:
    """`python -m infra.local.standins.NAME`: prints its address and what else one must know, then serves until a signal."""
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    with make(options) as standin:
        print(standin.start(options.port), flush=True)
        print(f"{told}, control at {CONTROL}", flush=True)
        done.wait()
