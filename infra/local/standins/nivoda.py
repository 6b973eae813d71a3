"""A stand-in for the Nivoda API on this machine: it speaks the real shapes, knows the truth and misbehaves on demand.

By hand: python -m infra.local.standins.nivoda --port 0 --stones 5000
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import io
import json
import math
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import ValidationError

from infra.local.child import Stops
from infra.local.origin_guard import refusal
from infra.local.standins.nivoda_catalogue import Catalogue, Stone
from infra.local.standins.nivoda_faults import Fault, Faults, Misbehaviour, Operation, with_twins
from infra.local.standins.nivoda_query import Field, QueryError, parse, pick

PATH = "/api/diamonds"
CONTROL = "/_control"
USERNAME, PASSWORD = "buyer@example.com", "stand-in-password"  # they open nothing
LARGEST_LIMIT = 50
LARGEST_REQUEST = 2**20
DAY_S = 86_400
POISON = {"nul": "a\x00b", "lone": "a\ud800b"}

Hook = Callable[[Operation, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as it was answered; `faults` are the misbehaviours that struck it."""

    at: float
    operation: Operation
    offset: int
    limit: int
    returned: int
    faults: frozenset[Fault]


@dataclass(slots=True, kw_only=True)
class _Reply:
    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    reset: bool = False
    drip_s: float = 0


@dataclass(slots=True)
class _Session:
    expires_at: float
    calls_left: float


class NivodaStandIn(Stops):
    """Starts on `start()`; everything else may be used before, while and after it runs, from any thread."""

    def __init__(
        self,
        seed: int = 0,
        *,
        stones: int = 500,
        low: int = 200,
        high: int = 20_000,
        budget: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.username, self.password = USERNAME, PASSWORD
        self.token_lives_s: float = DAY_S
        self.token_lives_calls: float = math.inf
        self.catalogue = Catalogue(seed, stones, low, high, clock)
        self.before_each: Hook | None = None
        self.calls: Counter[Operation] = Counter()
        self.log: list[Call] = []
        self.surprises: list[Exception] = []
        self.now = clock
        self._seed = seed
        self._faults = Faults(seed, budget)
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._server: _Server | None = None

    # --- its life

    def start(self, port: int = 0) -> str:
        """The base URL under which it answers."""
        self._stopping.clear()
        self._server = _Server(("127.0.0.1", port), self)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True, name="nivoda").start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        if self._server is not None:
            self._stopping.set()
            self._server.shutdown()
            self._server.hang_up()
            self._server.server_close()
            self._server = None

    # --- the truth

    @property
    def stones(self) -> tuple[Stone, ...]:
        return self.catalogue.stones

    def held_throughout(self, since: float, until: float = math.inf) -> frozenset[str]:
        return self.catalogue.held_throughout(since, until)

    # --- misbehaviour

    @property
    def struck(self) -> Counter[Fault]:
        """How often each fault has struck."""
        with self._lock:
            return self._faults.struck.copy()

    def misbehave(self, fault: Fault | str, **how: Any) -> None:
        """For example misbehave("throttle", every=3, budget=5, retry_after="7"); see Misbehaviour."""
        misbehaviour = Misbehaviour.model_validate({"fault": fault, **how})
        with self._lock:
            self._faults.add(misbehaviour)

    def behave(self, fault: Fault | str | None = None) -> None:
        """No more of this fault, or of any."""
        with self._lock:
            self._faults.clear(None if fault is None else Fault(fault))

    def expire_tokens(self) -> None:
        with self._lock:
            self._sessions.clear()

    def wait(self, seconds: float) -> None:
        """Let time pass, unless the stand-in stops."""
        self._stopping.wait(seconds)

    # --- answering

    def answer(self, body: bytes, authorization: str) -> _Reply:
        try:
            asked = _asked(body, authorization)
        except QueryError as error:
            return _refusal(error.message, error.code)
        if self.before_each is not None:
            self.before_each(asked.operation, asked.public)
        with self._lock:
            self.calls[asked.operation] += 1
            faults = self._faults.draw(asked.operation, asked.limit)
        if how := faults.get(Fault.SHIFT):
            self.catalogue.shift(deletes=how.deletes, inserts=how.inserts, reprices=how.reprices)
        for fault in (Fault.SLOW, Fault.HANG_ABOVE):
            if fault in faults:
                self.wait(faults[fault].seconds)
        reply, returned = self._reply(asked, faults)
        call = Call(
            at=self.now(),
            operation=asked.operation,
            offset=asked.offset,
            limit=asked.limit,
            returned=returned,
            faults=frozenset(faults),
        )
        with self._lock:
            self.log.append(call)
        return reply

    def _reply(self, asked: _Asked, faults: Mapping[Fault, Misbehaviour]) -> tuple[_Reply, int]:
        if (instead := _instead(faults)) is not None:
            return instead, 0
        try:
            data, returned = self._data(asked, faults)
        except QueryError as error:
            return _refusal(error.message, error.code), 0
        return self._spoilt(data, faults), returned

    def _data(self, asked: _Asked, faults: Mapping[Fault, Misbehaviour]) -> tuple[dict[str, Any], int]:
        if asked.operation is Operation.AUTHENTICATE:
            return {"authenticate": {"username_and_password": pick(self._log_in(asked), asked.fields, "token")}}, 0
        self._check(asked.token, forget=Fault.EXPIRED in faults)
        value: Any
        returned = 0
        if asked.operation is Operation.COUNT:
            lie = faults.get(Fault.LYING_COUNT)
            value = max(0, len(self._rows(asked, faults)) + (lie.by if lie else 0))
        else:
            page = self._page(asked, faults)
            returned = len(page["items"])
            value = pick(page, asked.fields, "diamonds_by_query")
        inner = {asked.field: value}
        return ({"as": inner} if asked.wrapped else inner), returned

    def _log_in(self, asked: _Asked) -> dict[str, str]:
        given = (asked.variables.get("username"), asked.variables.get("password"))
        if given != (self.username, self.password):
            raise QueryError("Invalid username or password", "BAD_CREDENTIALS")
        with self._lock:
            token = self._token(len(self._sessions))
            self._sessions[token] = _Session(self.now() + self.token_lives_s, self.token_lives_calls)
        return {"token": token}

    def _token(self, number: int) -> str:
        issued = time.time_ns() // 10**9
        claims = {"id": f"{self._seed}-{number}", "iat": issued, "exp": issued + math.ceil(self.token_lives_s)}
        head = f"{_base64({'alg': 'HS256', 'typ': 'JWT'})}.{_base64(claims)}"
        signature = hmac.new(b"stand-in", f"{head}{self.calls.total()}".encode(), hashlib.sha256).digest()
        return f"{head}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"

    def _check(self, token: Any, *, forget: bool) -> None:
        with self._lock:
            if forget:
                self._sessions.pop(token, None)
            session = self._sessions.get(token)
            if session is None or session.expires_at <= self.now() or session.calls_left < 1:
                raise QueryError("Unauthorized: the token is not valid", "UNAUTHENTICATED")
            session.calls_left -= 1

    def _rows(self, asked: _Asked, faults: Mapping[Fault, Misbehaviour]) -> list[Stone]:
        rows = asked.chosen(self.catalogue)
        if how := faults.get(Fault.TWINS):
            return with_twins(rows, [stone.id for stone in rows], how.share, how.distance)
        return rows

    def _page(self, asked: _Asked, faults: Mapping[Fault, Misbehaviour]) -> dict[str, Any]:
        rows = self._rows(asked, faults)
        size, offset = asked.limit, asked.offset
        if Fault.ENDLESS in faults and rows:
            offset %= len(rows)
        if Fault.OVERFULL in faults:
            size += 1
        if how := faults.get(Fault.SHORT_PAGE):
            size = max(1, min(size, len(rows) - offset) - how.by)
        if Fault.EMPTY_PAGE in faults:
            size = 0
        page = rows[offset : offset + size]
        if Fault.DISPLACED in faults and len(page) > 1:
            page = [*page[:-1], page[0]]
        lie = faults.get(Fault.LYING_TOTAL)
        # As the real one: what is left, not the total.
        return {
            "total_count": max(0, len(rows) - asked.offset + (lie.by if lie else 0)),
            "items": [stone.to_item() for stone in page],
        }

    def _spoilt(self, data: dict[str, Any], faults: Mapping[Fault, Misbehaviour]) -> _Reply:
        answer: dict[str, Any] = {"data": data}
        if Fault.POISON in faults:
            _poison(answer)
        if Fault.WRONG_TYPES in faults:
            with self._lock:
                answer = {"data": self._faults.wrong(data)}
        if how := faults.get(Fault.ERRORS):
            answer = _errors(how.message, how.code)
        if Fault.NULL_DATA in faults:
            answer = {"data": None}
        if Fault.EMPTY_OBJECT in faults:
            answer = {}
        body = json.dumps(answer).encode()
        if how := faults.get(Fault.HUGE):
            body += b" " * (how.by * 2**20)
        if Fault.TRUNCATED in faults:
            body = body[: len(body) // 2]
        drip = faults.get(Fault.DRIP)
        return _Reply(body=body, reset=Fault.RESET in faults, drip_s=drip.seconds if drip else 0)

    # --- the control endpoint

    def control(self, body: bytes) -> _Reply:
        """Obey orders such as {"misbehave": {…}}, {"behave": fault or null}, {"shift": {…}}, {"expire_tokens": true}."""
        try:
            orders = json.loads(body or b"{}")
            if "misbehave" in orders:
                self.misbehave(**orders["misbehave"])
            if "behave" in orders:
                self.behave(orders["behave"])
            if "shift" in orders:
                self.catalogue.shift(**orders["shift"])
            if "token_lives_s" in orders:
                self.token_lives_s = float(orders["token_lives_s"])
            if "token_lives_calls" in orders:
                self.token_lives_calls = float(orders["token_lives_calls"])
            if orders.get("expire_tokens"):
                self.expire_tokens()
        except (ValueError, TypeError, ValidationError) as error:
            return _Reply(status=400, body=json.dumps({"error": str(error)}).encode())
        state = {"calls": self.calls, "struck": self.struck, "stones": len(self.stones)}
        return _Reply(body=json.dumps(state).encode())


# --- what was asked ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A call that the stand-in understands."""

    operation: Operation
    field: str
    fields: tuple[Field, ...]
    variables: Mapping[str, Any]  # by the name of the argument
    token: str | None
    wrapped: bool

    @property
    def offset(self) -> int:
        return int(self.variables.get("offset") or 0)

    @property
    def limit(self) -> int:
        given = self.variables.get("limit")
        return LARGEST_LIMIT if given is None else int(given)

    @property
    def public(self) -> Mapping[str, Any]:
        return {key: value for key, value in self.variables.items() if key not in ("username", "password")}

    def chosen(self, catalogue: Catalogue) -> list[Stone]:
        """The stones that the query names, in its order."""
        query = self.variables["query"]
        value = query.get("dollar_value", {})
        stones = catalogue.between(value.get("from", 0) * 100, value.get("to", math.inf) * 100)
        for name, read in _FILTERS.items():
            if (wanted := query.get(name)) is not None:
                stones = [
                    stone for stone in stones if read(stone) in (wanted if isinstance(wanted, list) else [wanted])
                ]
        order = self.variables.get("order") or {"type": "createdAt", "direction": "ASC"}
        if order["type"] == "price":
            stones = sorted(stones, key=lambda stone: (stone.price_cents, stone.created))
        return stones if order["direction"] == "ASC" else stones[::-1]


_FILTERS: Mapping[str, Callable[[Stone], Any]] = {
    "labgrown": lambda stone: stone.labgrown,
    "shapes": lambda stone: stone.shape,
    "availability": lambda stone: stone.availability,
}
_ARGUMENTS = {
    "diamonds_by_query": (Operation.PAGE, {"query", "offset", "limit", "order"}),
    "diamonds_by_query_count": (Operation.COUNT, {"query"}),
    "username_and_password": (Operation.AUTHENTICATE, {"username", "password"}),
}


def _asked(body: bytes, authorization: str) -> _Asked:
    text, variables = _request(body)
    root = parse(text, variables)
    token = authorization.removeprefix("Bearer ") or None
    field = root
    if root.name in ("as", "authenticate"):
        token = variables.get(root.arguments.get("token", ""), token)
        field = _only(root)
    if field.name not in _ARGUMENTS or (field.name == "username_and_password") != (root.name == "authenticate"):
        raise QueryError(f'Cannot query field "{field.name}" on "Query"')
    operation, known = _ARGUMENTS[field.name]
    if unknown := set(field.arguments) - known:
        raise QueryError(f"Unknown arguments {sorted(unknown)}")
    values = {name: variables.get(variable) for name, variable in field.arguments.items()}
    if operation is not Operation.AUTHENTICATE:
        _check_query(values)
    return _Asked(
        operation=operation,
        field=field.name,
        fields=field.fields,
        variables=values,
        token=token,
        wrapped=root.name == "as",
    )


def _request(body: bytes) -> tuple[str, dict[str, Any]]:
    try:
        request = json.loads(body)
        text, variables = request["query"], request.get("variables") or {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise QueryError("Must provide query string", "BAD_REQUEST") from None
    if not isinstance(text, str) or not isinstance(variables, dict):
        raise QueryError("Must provide query string", "BAD_REQUEST")
    return text, variables


def _only(root: Field) -> Field:
    if len(root.fields) != 1:
        raise QueryError(f'The stand-in answers one field of "{root.name}" at a time')
    return root.fields[0]


def _check_query(values: Mapping[str, Any]) -> None:
    query = values.get("query")
    if not isinstance(query, dict) or set(query) - {"dollar_value", *_FILTERS}:
        raise QueryError("Variable $query is not a known DiamondQuery", "BAD_USER_INPUT")
    value = query.get("dollar_value", {})
    if set(value) - {"from", "to"} or not all(type(each) is int for each in value.values()):
        raise QueryError("dollar_value takes whole dollars", "BAD_USER_INPUT")
    for name in ("offset", "limit"):
        given = values.get(name)
        if given is not None and (type(given) is not int or given < 0):
            raise QueryError(f"{name} must be an Int", "BAD_USER_INPUT")
    if (values.get("limit") or 0) > LARGEST_LIMIT:
        raise QueryError(f"Limit can be {LARGEST_LIMIT} maximum", "BAD_USER_INPUT")
    order = values.get("order")
    if order is not None and (order.get("type"), order.get("direction")) not in _ORDERS:
        raise QueryError("Unknown DiamondOrder", "BAD_USER_INPUT")


_ORDERS = {(by, direction) for by in ("price", "createdAt") for direction in ("ASC", "DESC")}


# --- what is answered -------------------------------------------------------------------------------------------------


def _errors(message: str, code: str | None) -> dict[str, Any]:
    error: dict[str, Any] = {"message": message, "path": ["as"]}
    if code is not None:
        error["extensions"] = {"code": code}
    return {"data": None, "errors": [error]}


def _refusal(message: str, code: str) -> _Reply:
    return _Reply(body=json.dumps(_errors(message, code)).encode())


def _instead(faults: Mapping[Fault, Misbehaviour]) -> _Reply | None:
    if how := faults.get(Fault.THROTTLE):
        wait = (
            formatdate(time.time_ns() / 1e9 + how.seconds, usegmt=True)
            if how.retry_after == "date"
            else how.retry_after
        )
        return _Reply(
            status=429,
            body=b'{"error":"Too Many Requests"}',
            headers={} if wait is None else {"Retry-After": wait},
        )
    if how := faults.get(Fault.SERVER_ERROR):
        return _Reply(status=how.status, body=_PAGE_FOR_PEOPLE, headers={"Content-Type": "text/html"})
    if Fault.TOO_BIG_ABOVE in faults:
        return _Reply(status=413, body=b"Payload Too Large", headers={"Content-Type": "text/plain"})
    if Fault.HTML in faults:
        return _Reply(body=_PAGE_FOR_PEOPLE, headers={"Content-Type": "text/html"})
    return None


_PAGE_FOR_PEOPLE = b"<!doctype html><html><body><h1>We will be back soon</h1></body></html>"


def _poison(answer: Any) -> None:
    for item in answer["data"].get("as", answer["data"])["diamonds_by_query"]["items"]:
        item["diamond"]["poison"] = {**POISON, POISON["nul"]: [POISON["lone"]]}


def _base64(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


# --- the server -------------------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], standin: NivodaStandIn) -> None:
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
    server_version = "nivoda-stand-in"
    wbufsize = 2**16
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve({CONTROL: lambda _: self.server.standin.control(b"")})

    def do_POST(self) -> None:
        standin = self.server.standin
        authorization = self.headers.get("Authorization", "")
        self._serve({PATH: lambda body: standin.answer(body, authorization), CONTROL: standin.control})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the shape of the base class
        pass

    def _serve(self, routes: Mapping[str, Callable[[bytes], _Reply]]) -> None:
        if (why := refusal({name.lower(): value for name, value in self.headers.items()})) is not None:
            self.close_connection = True
            self._send(_Reply(status=403, body=json.dumps({"error": why}).encode()))
            return
        size = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(min(size, LARGEST_REQUEST))
        if size > LARGEST_REQUEST or self.path not in routes:
            self.close_connection = True
            self._send(_Reply(status=404, body=b'{"error":"no such thing"}'))
            return
        try:
            reply = routes[self.path](body)
        except Exception as error:
            self.server.standin.surprises.append(error)
            reply = _Reply(status=500, body=b'{"error":"the stand-in itself failed"}')
        self._send(reply)

    def _send(self, reply: _Reply) -> None:
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

    def _drip(self, reply: _Reply) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for the Nivoda API.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stones", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--low", type=int, default=200, help="lowest price in dollars")
    parser.add_argument("--high", type=int, default=20_000, help="highest price in dollars")
    options = parser.parse_args()
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    with NivodaStandIn(options.seed, stones=options.stones, low=options.low, high=options.high) as standin:
        print(standin.start(options.port), flush=True)
        print(f"username {standin.username}, password {standin.password}, control at {CONTROL}", flush=True)
        done.wait()


if __name__ == "__main__":
    main()
