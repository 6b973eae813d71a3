"""The one HTTP client: an upstream as one step may ask it.

    http = Http("https://api.example", name="Example", gate=account, time_left_s=outside.time_left_s, secrets=[password])
    answer = http.send("POST", "/v1/search", body=b"…", headers={"authorization": f"Bearer {token}"}, secrets=[token])
    if answer.status != 200:
        raise http.refusal(answer)

What it guarantees, whatever the other side does:

- One deadline from the first byte of the connection to the last byte of the answer: drops of headers, of chunk sizes, of
  trailers and any number of "100 Continue" end in `SlowUpstream`, well before the function is killed. (Only the look-up of
  the host's name is not under it: the system's resolver has its own limits.)
- An answer has `LARGEST_ANSWER` bytes at most, also after decompression; a longer one is `AnswerTooLarge`.
- No sleeping, no redirects, no second attempt of a request that may have been received: waiting belongs to the relay.
- https only, with the system's certificates; http:// on this machine alone, for stand-ins.
- Whatever it raises is a `StepError` in plain words and repeats no secret it was told of, however the other side spelt it.

Every status comes back as an `Answer`; `refusal` sorts those that mean no by who tries again.
"""

from __future__ import annotations

import html
import http.client
import ipaddress
import json
import re
import select
import socket
import ssl
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Final, Self
from urllib.parse import quote as url_quoted
from urllib.parse import quote_plus as query_quoted
from urllib.parse import urlencode, urlsplit

from shared.kernel.clock import stopwatch
from shared.kernel.errors import Permanent, StepError, Throttled, Transient, bad_answer
from shared.kernel.redact import redact
from shared.kernel.tokens import TokenRefused

LARGEST_ANSWER: Final = 8 * 2**20
CHUNK: Final = 64 * 2**10
CONNECT_S: Final = 3.0  # for each address of a host
CONNECT_TRIES: Final = 3
LONGEST_CALL_S: Final = 30.0
RESERVE_S: Final = 2.0  # what the commit after the call needs
LEAST_S: Final = 1.0  # both together well within the shortest time-out that is deployed: 5 s in the local cloud
USUAL_WAIT_S: Final = 30.0  # when a 429 does not say how long
LONGEST_WAIT_S: Final = 21_600.0
LONGEST_QUOTE: Final = 300
MOST_HOSTS: Final = 16  # whose connections are kept
NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
IN_A_TARGET: Final = "/%?:@!$&'()*+,;=~"  # what is quoted already, and what need not be


@dataclass(eq=False)
class SlowUpstream(Transient):
    """The exchange was not over in time."""

    code: str = "slow_upstream"


@dataclass(eq=False)
class AnswerTooLarge(Transient):
    """The answer has more bytes than any proper one."""

    code: str = "answer_too_large"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, unpacked."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Http:
    """One upstream for one step. It is cheap to make: all share the connections of one pool.

    `gate` is the key of the rate limit gate that a 429 closes (usually the account), `name` what people call the upstream,
    `secrets` what no message may repeat, `longest_s` what one call may take however much time is left.
    """

    def __init__(
        self,
        base_url: str,
        *,
        name: str,
        gate: str,
        time_left_s: Callable[[], float],
        secrets: Iterable[str] = (),
        pool: Pool | None = None,
        longest_s: float = LONGEST_CALL_S,
    ) -> None:
        self._base_url = safe_base_url(base_url)
        self._name = name
        self._gate = gate
        self._time_left_s = time_left_s
        self._longest_s = longest_s
        self._secrets = tuple(secrets)
        self._pool = pool or _shared_pool()

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | Sequence[str]] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask once. `path` comes after the base URL; whatever is in it must be quoted already."""
        most_s = self._time_left_s() - RESERVE_S
        if not most_s >= LEAST_S:
            raise Transient(f"There is too little time left to ask {self._name}.", code="no_time")
        call_s = min(self._longest_s, most_s)
        elapsed = stopwatch()

        def left_s() -> float:
            return call_s - elapsed()

        deadline = _LEFT_S.set(left_s)
        where = urlsplit(self._base_url)
        target = url_quoted(f"{where.path}{path}", safe=IN_A_TARGET) or "/"
        if query:
            target += f"?{urlencode(query, doseq=True)}"
        try:
            connection = self._pool.take(where.scheme, where.netloc)
            return self._exchange(connection, method, target, body, headers or {})
        except (http.client.HTTPException, OSError, zlib.error) as error:
            raise self._no_answer(error, call_s, is_late=left_s() <= 0.01) from None
        finally:
            _LEFT_S.reset(deadline)

    def _exchange(
        self, connection: _Connection, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """The connection is kept only if the answer was read to its end."""
        status = 0
        try:
            connection.ask(method, target, body, {"user-agent": "baton", "accept-encoding": "gzip", **headers})
            response = connection.getresponse()
            status, told = response.status, _headers(response)
            if status < 200:  # what follows would be read as the answer to the next question
                raise bad_answer(f"{self._name} answered with the unexpected status {status}.")  # noqa: TRY301 - the connection is closed as for any other
            answer = Answer(status, told, self._body(response, told))
        except BaseException as error:
            connection.close()
            if status >= 300 and isinstance(error, http.client.HTTPException | OSError | zlib.error | Transient):
                return Answer(status, told, b"")  # who refuses often hangs up in the middle of the reason
            raise
        if response.will_close:
            connection.close()
        else:
            response.close()
            self._pool.keep(connection)
        return answer

    def _body(self, response: http.client.HTTPResponse, told: Mapping[str, str]) -> bytes:
        coding = told.get("content-encoding", "identity").strip().lower()
        chunks = _chunks(response)
        if coding in ("gzip", "x-gzip"):
            chunks = _unpacked(chunks)
        elif coding not in ("identity", ""):
            raise bad_answer(f"{self._name} answered in an encoding that was not asked for ({self.quote(coding)}).")
        found: list[bytes] = []
        size = 0
        for chunk in chunks:
            size += len(chunk)
            if size > LARGEST_ANSWER:
                raise AnswerTooLarge(f"The answer of {self._name} has more than {LARGEST_ANSWER // 2**20} MB.")
            found.append(chunk)
        return b"".join(found)

    def _no_answer(self, error: Exception, call_s: float, *, is_late: bool) -> Transient:
        if isinstance(error, ConnectTimeout):
            return Transient(f"{self._name} did not accept a connection in time.", code="no_connection")
        if is_late:
            return SlowUpstream(f"Slow upstream: the answer of {self._name} was not complete after {call_s:.0f} s.")
        if isinstance(error, zlib.error | _BadGzip):
            return bad_answer(f"The answer of {self._name} says that it is compressed, but cannot be unpacked.")
        return Transient(f"The connection to {self._name} failed ({type(error).__name__}).", code="no_connection")

    def refusal(self, answer: Answer, said: str = "") -> StepError:
        """Why the upstream said no, sorted by who tries again. `said`: its reason in words, already quoted."""
        status, why = answer.status, f": {said}" if said else "."
        if status == 429:
            return self.throttled(answer.headers, "429")
        if status in (401, 403):
            return TokenRefused(f"{self._name} refuses access ({status}){why}")
        if status >= 500:
            wait_s = retry_after_s(answer.headers)
            wait_s = None if wait_s is None else _bounded(wait_s)
            return Transient(f"{self._name} failed ({status}){why}", code="server_error", retry_after_s=wait_s)
        if status in (400, 422):
            return Permanent(f"{self._name} refuses the request ({status}){why}", code="request_refused")
        return bad_answer(f"{self._name} answered with the unexpected status {status}{why}")

    def throttled(self, headers: Mapping[str, str], said: str) -> Throttled:
        """Everybody with this account waits, as long as the upstream asks for and Baton agrees to."""
        asked_s = retry_after_s(headers)
        if asked_s is None:
            wait_s, how = USUAL_WAIT_S, f"without saying how long; Baton waits {USUAL_WAIT_S:.0f} s"
        elif asked_s > LONGEST_WAIT_S:
            wait_s = LONGEST_WAIT_S
            how = f"for {asked_s:.0f} s; Baton waits {LONGEST_WAIT_S:.0f} s, its own limit, and asks again"
        else:
            wait_s = _bounded(asked_s)
            how = f"for {wait_s:.0f} s"
        return Throttled(gate=self._gate, retry_after_s=wait_s, message=f"{self._name} asks to wait {how} ({said}).")

    def quote(self, text: str, *secrets: str) -> str:
        """Foreign text as a message may repeat it: short, and without our secrets however they were spelt."""
        for secret in filter(None, (*secrets, *self._secrets)):
            for spelt in {
                secret,
                json.dumps(secret)[1:-1],
                url_quoted(secret, safe="", errors="replace"),
                query_quoted(secret, errors="replace"),  # as a query spells it: a blank is a plus
                html.escape(secret),
            }:
                text = text.replace(spelt, "***")
        return redact(text)[:LONGEST_QUOTE]


def safe_base_url(base_url: str) -> str:
    """The address if it is one that we may send credentials to; a ValueError says why not."""
    parts = urlsplit(base_url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address of the upstream must not carry credentials")
    if not parts.hostname or parts.query or parts.fragment:
        raise ValueError("the address of the upstream must be a scheme, a host and perhaps a path")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise ValueError("the address of the upstream must begin with https:// (http:// only on this machine)")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_public(address: str) -> bool:
    """Whether an address is one of the internet, also where it carries one of IPv4 within it."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if found in NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that `Retry-After` names, in seconds or as a date; None if it is missing or makes no sense.

    A date counts from the answer's own `Date`: both come from the upstream's clock, so ours does not matter.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", text):
        return float(text)
    try:
        until, now = parsedate_to_datetime(text), parsedate_to_datetime(headers.get("date", ""))
        return (until - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None


def _bounded(seconds: float) -> float:
    return min(max(seconds, 1.0), LONGEST_WAIT_S)


# --- reading within bounds --------------------------------------------------------------------------------------------


class _BadGzip(OSError):
    """Something else where compressed data was announced."""


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    """By their names in lower case; of one that is there twice, both values."""
    told: dict[str, str] = {}
    for name, value in response.getheaders():
        name = name.lower()  # noqa: PLW2901 - the same name
        told[name] = f"{told[name]}, {value}" if name in told else value
    if len({each.strip() for each in told.get("content-length", "").split(",")}) > 1:
        raise http.client.HTTPException("two lengths of one answer")
    return told


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while chunk := response.read1(CHUNK):
        yield chunk
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)


def _unpacked(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """A piece at a time: what unpacks to a thousand times its size is noticed before it is in memory."""
    unpack = zlib.decompressobj(wbits=31)
    for chunk in chunks:
        packed = chunk
        while packed and not unpack.eof:
            yield unpack.decompress(packed, CHUNK)
            packed = unpack.unconsumed_tail
        if unpack.unused_data:
            raise _BadGzip
    if not unpack.eof:
        raise _BadGzip


# --- sockets under the deadline of the call ---------------------------------------------------------------------------

_LEFT_S: ContextVar[Callable[[], float]] = ContextVar("left_s", default=lambda: LONGEST_CALL_S)


def _left_s() -> float:
    left = _LEFT_S.get()()
    if left <= 0:
        raise TimeoutError("the time of the call is over")
    return left


class _UnderDeadline:
    """Each operation gets what is left of the whole call. A socket's own time-out begins anew with every byte."""

    def recv_into(self, *args: Any) -> int:
        self.settimeout(_left_s())  # type: ignore[attr-defined]
        received: int = super().recv_into(*args)  # type: ignore[misc]
        return received

    def sendall(self, *args: Any) -> None:
        self.settimeout(_left_s())  # type: ignore[attr-defined]
        super().sendall(*args)  # type: ignore[misc]

    def send(self, *args: Any) -> int:
        self.settimeout(_left_s())  # type: ignore[attr-defined]
        sent: int = super().send(*args)  # type: ignore[misc]
        return sent


class _PlainSocket(_UnderDeadline, socket.socket):
    pass


class _TlsSocket(_UnderDeadline, ssl.SSLSocket):
    pass


class NoHost(OSError):
    """Nobody knows the host's name."""


class NotConnected(OSError):
    """No address of the host accepts a connection."""


class ConnectTimeout(OSError):
    """No address of the host accepted a connection in time."""


def _connected(host: str, port: int, *, public: bool = False) -> socket.socket:
    """A socket to the first address of the host that takes one. The name is looked up once: what was checked is what is used."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NoHost(host) from error
    if public and not all(is_public(str(each[4][0])) for each in found):
        raise Permanent(f"{host} is at an address of a private network: it was not asked.", code="private_address")
    for family, kind, protocol, _, address in found:
        sock = _PlainSocket(family, kind, protocol)
        try:
            sock.settimeout(min(CONNECT_S, _left_s()))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_left_s())  # for the handshake of TLS
        except OSError as error:
            sock.close()
            problem = error
        else:
            return sock
    raise (ConnectTimeout if isinstance(problem, TimeoutError) else NotConnected)(host) from problem


class _Connection(http.client.HTTPConnection):
    """To one host. `context`: over TLS."""

    def __init__(self, netloc: str, context: ssl.SSLContext | None, *, public: bool = False) -> None:
        self.default_port = http.client.HTTPS_PORT if context else http.client.HTTP_PORT
        super().__init__(netloc)
        self.netloc = netloc
        self.context = context
        self._public = public
        self._held: list[bytes] | None = None

    def connect(self) -> None:
        for tries_left in reversed(range(CONNECT_TRIES)):
            try:
                plain = _connected(self.host, self.port, public=self._public)
                break
            except (NoHost, NotConnected, ConnectTimeout):
                if not tries_left or _left_s() < LEAST_S:
                    raise
        try:
            self.sock = self.context.wrap_socket(plain, server_hostname=self.host) if self.context else plain
        except BaseException:
            plain.close()
            raise

    @property
    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer: neither an end, nor what nobody asked for. TLS may hold some of it
        already, of a record that was not read to its end."""
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            return False
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return not poll.poll(0)

    def ask(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        """Headers and body leave together: as two pieces they cost the other side two reads, and us two packets."""
        held: list[bytes] = []
        self._held = held
        try:
            self.request(method, target, body, dict(headers))
        finally:
            self._held = None
        if self.sock is None:
            self.connect()
        with suppress(BrokenPipeError, ConnectionResetError):  # who hangs up early may have said why
            self.send(b"".join(held))

    def send(self, data: Any) -> None:
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class Pool:
    """Connections that are kept between calls, some for each host.

    A wait belongs to the relay, which waits without a running function: hence nothing here is retried but connecting.
    """

    def __init__(self, context: ssl.SSLContext, connections: int, *, public: bool = False) -> None:
        self._context = context
        self._public = public
        self._connections = connections
        self._kept: defaultdict[tuple[str, bool], list[_Connection]] = defaultdict(list)

    def take(self, scheme: str, netloc: str) -> _Connection:
        kept = self._kept[netloc, scheme == "https"]
        while kept:
            connection = kept.pop()
            if connection.is_quiet:
                return connection
            connection.close()
        return _Connection(netloc, self._context if scheme == "https" else None, public=self._public)

    def keep(self, connection: _Connection) -> None:
        if len(self._kept) > MOST_HOSTS:
            self.clear()
        kept = self._kept[connection.netloc, connection.context is not None]
        if len(kept) < self._connections:
            kept.append(connection)
        else:
            connection.close()

    def clear(self) -> None:
        while self._kept:
            _, kept = self._kept.popitem()
            for connection in kept:
                connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def new_pool(ca_file: str | None = None, connections: int = 4, *, public: bool = False) -> Pool:
    """`ca_file`: certificates to trust instead of the system's. `public`: only addresses of the internet are asked."""
    return Pool(_context(ca_file), connections, public=public)


@lru_cache
def _context(ca_file: str | None) -> ssl.SSLContext:
    """Once for every pool of a process: reading the system's certificates takes 30 ms."""
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    context.sslsocket_class = _TlsSocket
    return context


@lru_cache(maxsize=1)
def _shared_pool() -> Pool:
    """Made when it is first needed: reading the system's certificates takes longer than a cold start should."""
    return new_pool()
