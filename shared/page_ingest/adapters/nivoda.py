"""The Nivoda GraphQL API as an upstream: one call per question, no sleeping, every failure sorted by who tries again."""

from __future__ import annotations

import html
import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Final
from urllib.parse import quote as url_quoted
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, MaxRetryError, ReadTimeoutError

from shared.kernel.clock import stopwatch
from shared.kernel.errors import Permanent, StepError, Throttled, Transient
from shared.kernel.redact import redact
from shared.page_ingest.adapters.nivoda_answers import (
    DEFAULT_WAIT_S,
    GATE,
    bad_answer,
    named_error,
    read_count,
    read_page,
    read_token,
    says_wrong_credentials,
)
from shared.page_ingest.ports import Page, PageTooBig, PriceRange, Token, TokenExpired

PATH: Final = "/api/diamonds"
LARGEST_LIMIT: Final = 50  # the API's own
LARGEST_OFFSET: Final = 2**31 - 1
LARGEST_ANSWER: Final = 8 * 2**20
CHUNK: Final = 64 * 2**10
CONNECT_S, READ_S = 3.0, 25.0
CONNECT_TRIES: Final = 3
RESERVE_S: Final = 2.0  # what the commit after the call needs
LEAST_S: Final = 1.0  # both together well within the shortest time-out that is deployed: 5 s in the local cloud
LONGEST_WAIT_S: Final = 21_600

# A wait belongs to the relay, which waits without a running function: hence no retry that sleeps.
RETRIES: Final = urllib3.Retry(
    total=None,
    connect=CONNECT_TRIES - 1,
    read=0,
    redirect=0,
    status=0,
    other=0,
    respect_retry_after_header=False,
    raise_on_redirect=False,
    raise_on_status=False,
)
POOL: Final = urllib3.PoolManager(num_pools=4, maxsize=4)

LOG_IN: Final = (
    "query($username:String!,$password:String!)"
    "{authenticate{username_and_password(username:$username,password:$password){token}}}"
)
COUNT: Final = "query($token:String!,$query:DiamondQuery!){as(token:$token){diamonds_by_query_count(query:$query)}}"
PAGE: Final = (
    "query($token:String!,$query:DiamondQuery!,$offset:Int,$limit:Int,$order:DiamondOrder){as(token:$token)"
    "{diamonds_by_query(query:$query,offset:$offset,limit:$limit,order:$order)"
    "{items{id price discount diamond{id availability supplierStockId image video certificate"
    "{id lab certNumber shape carats clarity cut color polish symmetry labgrown}}}}}}"
)
OLDEST_FIRST: Final = {"type": "createdAt", "direction": "ASC"}  # new stones come last: they do not move the offsets


class Question(Enum):
    LOG_IN = LOG_IN
    COUNT = COUNT
    PAGE = PAGE


class Nivoda:
    """An `Upstream`. It is cheap to build one per step: all share the connections of one pool."""

    def __init__(
        self,
        base_url: str,
        username: str,
        password: str,
        *,
        time_left_s: Callable[[], float],
        pool: urllib3.PoolManager = POOL,
    ) -> None:
        self._url = _endpoint(base_url)
        self._username = username
        self._password = password
        self._time_left_s = time_left_s
        self._pool = pool

    def authenticate(self) -> Token:
        try:
            body = self._ask(Question.LOG_IN, {"username": self._username, "password": self._password})
            return read_token(body, self._quote)
        except (Transient, Permanent) as error:
            if isinstance(error, TokenExpired) or says_wrong_credentials(error.message):
                raise _bad_credentials(error.message) from None
            raise

    def count(self, token: str, prices: PriceRange) -> int:
        body = self._ask(Question.COUNT, {"token": token, "query": _between(prices)}, token)
        return read_count(body, lambda text: self._quote(text, token))

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page:
        if not 1 <= limit <= LARGEST_LIMIT:
            raise Permanent(f"a page of Nivoda has 1 to {LARGEST_LIMIT} items, not {limit}", code="bad_limit")
        if not 0 <= offset <= LARGEST_OFFSET:
            raise Permanent(f"an offset is 0 to {LARGEST_OFFSET}, not {offset}", code="bad_offset")
        variables = {
            "token": token,
            "query": _between(prices),
            "offset": offset,
            "limit": limit,
            "order": OLDEST_FIRST,
        }
        body = self._ask(Question.PAGE, variables, token)
        return read_page(body, prices, limit, lambda text: self._quote(text, token))

    def _ask(self, question: Question, variables: Mapping[str, Any], token: str = "") -> bytes:
        """The body of a 200; everything else raises."""
        timeout, call_s = self._patience()
        elapsed = stopwatch()
        try:
            response = self._pool.request(
                "POST",
                self._url,
                body=json.dumps({"query": question.value, "variables": variables}).encode(),
                headers={"content-type": "application/json", "accept": "application/json", "user-agent": "baton"},
                timeout=timeout,
                retries=RETRIES,
                redirect=False,
                preload_content=False,
                decode_content=False,  # nothing was asked for compressed, and nothing unpacks to more than it is
            )
            if response.status == 200:
                return _body(response, question, lambda: call_s - elapsed())
            said = _body_of_refusal(response, question, lambda: call_s - elapsed())
        except (HTTPError, OSError) as error:
            raise _no_answer(question, error) from None
        raise _refusal(question, response, named_error(said, lambda text: self._quote(text, token)))

    def _patience(self) -> tuple[urllib3.Timeout, float]:
        """How long to wait for a connection, for the answer to begin, and for all of it."""
        left_s = self._time_left_s() - RESERVE_S
        if not left_s >= LEAST_S:
            raise Transient("there is too little time left to ask the upstream", code="no_time")
        connect_s = min(CONNECT_S, left_s / (2 * CONNECT_TRIES))
        read_s = min(READ_S, left_s - CONNECT_TRIES * connect_s)
        return urllib3.Timeout(connect=connect_s, read=read_s), CONNECT_TRIES * connect_s + read_s

    def _quote(self, text: str, token: str = "") -> str:
        """Foreign text as a message may repeat it: short, and without our secrets however they were spelt."""
        for secret in filter(None, (token, self._password)):
            for spelt in {
                secret,
                json.dumps(secret)[1:-1],
                url_quoted(secret, safe="", errors="replace"),
                html.escape(secret),
            }:
                text = text.replace(spelt, "***")
        return redact(text)[:300]


def _endpoint(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address of the upstream must not carry credentials")
    if not parts.hostname or parts.query or parts.fragment:
        raise ValueError("the address of the upstream must be a scheme, a host and perhaps a path")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname)):
        raise ValueError("the address of the upstream must begin with https:// (http:// only on this machine)")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith(PATH) else path + PATH}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _between(prices: PriceRange) -> dict[str, Any]:
    # The API takes whole dollars, both ends included: up to high - 1 would lose the stone at high - 0.50.
    return {"dollar_value": {"from": prices.low, "to": prices.high}}


def _body(response: urllib3.BaseHTTPResponse, question: Question, left_s: Callable[[], float]) -> bytes:
    try:
        body = b"".join(_chunks(response, question, left_s))
    except BaseException:
        response.close()
        raise
    response.release_conn()
    return body


def _body_of_refusal(response: urllib3.BaseHTTPResponse, question: Question, left_s: Callable[[], float]) -> bytes:
    """A refusal's status says enough; whoever refuses often hangs up in the middle of the reason."""
    try:
        return _body(response, question, left_s)
    except (HTTPError, OSError, Transient):
        return b""


def _chunks(response: urllib3.BaseHTTPResponse, question: Question, left_s: Callable[[], float]) -> Iterator[bytes]:
    """The body as far as time and size allow: a peer that drips bytes must not outlast the step."""
    size = 0
    while True:
        if (left := left_s()) <= 0:
            raise _too_much(question, "the answer did not end in time", "timed_out")
        _wait_no_longer(response, left)
        if not (chunk := response.read1(CHUNK)):
            return
        size += len(chunk)
        if size > LARGEST_ANSWER:
            raise _too_much(question, f"the answer has more than {LARGEST_ANSWER} bytes", "bad_answer")
        yield chunk


def _wait_no_longer(response: urllib3.BaseHTTPResponse, seconds: float) -> None:
    sock = getattr(response.connection, "sock", None)
    if sock is not None:
        sock.settimeout(min(seconds, READ_S))


def _no_answer(question: Question, error: Exception) -> Transient:
    reason = error.reason if isinstance(error, MaxRetryError) else error
    if isinstance(reason, ReadTimeoutError):
        return _too_much(question, "the upstream did not answer in time", "timed_out")
    if isinstance(reason, ConnectTimeoutError):
        return Transient("the upstream did not accept a connection in time", code="no_connection")
    return Transient(f"the connection to the upstream failed ({type(reason).__name__})", code="no_connection")


def _refusal(question: Question, response: urllib3.BaseHTTPResponse, named: StepError | None) -> StepError:
    status = response.status
    wait_s = retry_after_s(response.headers)
    said = f": {named.message}" if isinstance(named, Transient | Permanent) else ""
    if status == 429:
        wait_s = DEFAULT_WAIT_S if wait_s is None else wait_s
        return Throttled(gate=GATE, retry_after_s=wait_s, message=f"the upstream asks to wait {wait_s:.0f} s (429)")
    if status in (401, 403):
        return TokenExpired(f"the upstream does not let us in ({status}){said}")
    if status in (413, 504):
        return _too_much(question, f"the upstream cannot answer so much ({status})", "server_error")
    if isinstance(named, Throttled | TokenExpired):
        return named
    if status >= 500:
        return Transient(f"the upstream failed ({status}){said}", code="server_error", retry_after_s=wait_s)
    if status in (400, 422):
        return Permanent(f"the upstream refuses the query ({status}){said}", code="query_refused")
    return bad_answer(f"the upstream answered with the unexpected status {status}{said}")


def _too_much(question: Question, message: str, code: str) -> Transient:
    return PageTooBig(message) if question is Question.PAGE else Transient(message, code=code)


def _bad_credentials(message: str) -> Permanent:
    return Permanent(f"the upstream refuses the user name and password: {message}", code="bad_credentials")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that `Retry-After` names, within bounds; None if it is missing or makes no sense.

    A date counts from the answer's own `Date`: both come from the upstream's clock, so ours does not matter.
    """
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", text):
        return _bounded(float(text))
    try:
        until, now = parsedate_to_datetime(text), parsedate_to_datetime(headers.get("date", ""))
        return _bounded((until - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def _bounded(seconds: float) -> float:
    return min(max(seconds, 1.0), float(LONGEST_WAIT_S))
