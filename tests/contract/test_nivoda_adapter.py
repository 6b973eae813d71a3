"""The Nivoda client against its stand-in: the whole truth in fair weather, and the right error for every misbehaviour."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import orjson
import pytest
import urllib3

from infra.local.standins.nivoda import NivodaStandIn
from infra.local.standins.nivoda_faults import Fault, Operation
from shared.kernel import http
from shared.kernel.errors import Permanent, StepError, Throttled, Transient
from shared.kernel.http import Pool, SlowUpstream, new_pool
from shared.kernel.tokens import TokenRefused
from shared.page_ingest.adapters.nivoda import Nivoda
from shared.page_ingest.model import Item, Page, PriceRange
from shared.page_ingest.ports import PageTooBig, Upstream

STONES = 120
ALL = PriceRange(low=0, high=100_000)
PLENTY_S, SHORT_S = 60.0, 5.2  # of the latter, 1.1 s are for the answer


@pytest.fixture
def standin() -> Iterator[NivodaStandIn]:
    with NivodaStandIn(seed=7, stones=STONES, low=200, high=3_000) as standin:
        yield standin
        assert standin.surprises == []


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = new_pool()
    yield pool
    pool.clear()


@pytest.fixture
def base_url(standin: NivodaStandIn) -> str:
    return standin.start()


@pytest.fixture
def client(standin: NivodaStandIn, base_url: str, pool: Pool) -> Nivoda:
    return a_client(standin, base_url, pool)


def a_client(standin: NivodaStandIn, base_url: str, pool: Pool, left_s: float = PLENTY_S) -> Nivoda:
    return Nivoda(base_url, standin.username, standin.password, time_left_s=lambda: left_s, pool=pool)


@pytest.fixture
def token(client: Nivoda) -> str:
    return client.authenticate().value


def crawl(upstream: Upstream, token: str, prices: PriceRange, limit: int = 50) -> Iterator[Page]:
    """Page after page until one is empty."""
    offset = 0
    while (page := upstream.page(token, prices, offset, limit)).fetched:
        yield page
        offset += page.fetched


def items_of(upstream: Upstream, token: str, prices: PriceRange, limit: int = 50) -> list[Item]:
    return [item for page in crawl(upstream, token, prices, limit) for item in page.items]


def ranges(*borders: int) -> list[PriceRange]:
    return [PriceRange(low=low, high=high) for low, high in itertools.pairwise(borders)]


# --- fair weather -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [7, 50])
def test_neighbouring_ranges_find_every_stone_exactly_once(
    standin: NivodaStandIn, client: Nivoda, token: str, limit: int
) -> None:
    found = [
        item
        for prices in ranges(0, 200, 500, 501, 1_000, 2_000, 100_000)
        for item in items_of(client, token, prices, limit)
    ]

    assert Counter(item.external_id for item in found) == Counter(stone.id for stone in standin.stones)
    assert {item.external_id: (item.offer_id, item.price_cents) for item in found} == {
        stone.id: (stone.offer_id, stone.price_cents) for stone in standin.stones
    }


def test_stones_at_a_border_and_between_whole_dollars_belong_to_one_range_each(
    standin: NivodaStandIn, client: Nivoda, token: str
) -> None:
    below, at, above = (standin.stock.insert(price_cents=cents) for cents in (1_999_50, 2_000_00, 2_000_01))

    low, high = ({item.external_id for item in items_of(client, token, each)} for each in ranges(1_999, 2_000, 2_001))

    assert below in low
    assert {at, above} <= high
    assert not low & high


def test_the_payload_is_the_item_as_it_came(standin: NivodaStandIn, client: Nivoda, token: str) -> None:
    items = items_of(client, token, ALL)

    assert [orjson.loads(item.body) for item in items] == [stone.to_item() for stone in standin.stones]


def test_stones_come_in_the_order_of_their_creation(standin: NivodaStandIn, client: Nivoda, token: str) -> None:
    ids = [key for page in crawl(client, token, ALL) for key in page.ids]

    assert ids == [stone.id for stone in standin.stones]


def test_the_count_is_what_pages_walk_through_and_may_exceed_what_they_keep(
    standin: NivodaStandIn, client: Nivoda, token: str
) -> None:
    prices = PriceRange(low=500, high=1_000)
    standin.stock.insert(price_cents=1_000_00)

    pages = list(crawl(client, token, prices))

    assert client.count(token, prices) == sum(page.fetched for page in pages)
    assert sum(len(page.items) for page in pages) < client.count(token, prices)


def test_a_page_beyond_the_end_is_empty(client: Nivoda, token: str) -> None:
    assert client.page(token, ALL, 1_000, 50) == Page(items=(), fetched=0, ids=())


def test_a_token_tells_how_long_it_lives_and_hides_its_value(standin: NivodaStandIn, client: Nivoda) -> None:
    standin.token_lives_s = 1_800

    token = client.authenticate()

    assert token.expires_in_s == 1_800
    assert token.value not in repr(token)


def test_calls_share_one_connection(
    standin: NivodaStandIn, base_url: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    connected = http._connected

    def counted(host: str, port: int, **how: bool) -> socket.socket:
        made.append(port)
        return connected(host, port, **how)

    monkeypatch.setattr(http, "_connected", counted)
    calls = len(standin.log)

    with new_pool() as fresh:
        items_of(a_client(standin, base_url, fresh), token, ALL, limit=10)

    assert len(standin.log) - calls > 10
    assert len(made) == 1


# --- misbehaviour that is an error ------------------------------------------------------------------------------------

BAD = (Transient, "bad_answer")
ERRORS: dict[Fault, tuple[dict[str, Any], type[StepError], str]] = {
    Fault.SERVER_ERROR: ({"status": 503}, Transient, "server_error"),
    Fault.HTML: ({}, *BAD),
    Fault.TRUNCATED: ({}, *BAD),
    Fault.EMPTY_OBJECT: ({}, *BAD),
    Fault.NULL_DATA: ({}, *BAD),
    Fault.WRONG_TYPES: ({}, *BAD),
    Fault.OVERFULL: ({}, *BAD),
    Fault.RESET: ({}, Transient, "no_connection"),
    Fault.ERRORS: ({}, Transient, "upstream_error"),
    Fault.EXPIRED: ({}, TokenRefused, "token_refused"),
    Fault.TOO_BIG_ABOVE: ({"above": 20}, PageTooBig, "page_too_big"),
    Fault.HUGE: ({"by": 9}, PageTooBig, "page_too_big"),
}
HALF_AN_ANSWER_S = 60  # of those that come too late
TIMED_OUT: dict[Fault, dict[str, Any]] = {
    Fault.SLOW: {"seconds": 120},
    Fault.HANG_ABOVE: {"seconds": 120, "above": 20},
    Fault.DRIP: {"seconds": 0.05},
}
STILL_PAGES = {
    *(Fault.SHIFT, Fault.SHORT_PAGE, Fault.EMPTY_PAGE, Fault.ENDLESS, Fault.TWINS),
    *(Fault.DISPLACED, Fault.LYING_TOTAL, Fault.LYING_COUNT, Fault.POISON),
}


def test_every_misbehaviour_is_tried_here() -> None:
    assert set(ERRORS) | set(TIMED_OUT) | STILL_PAGES | {Fault.THROTTLE} == set(Fault)


@pytest.mark.parametrize("fault", ERRORS)
def test_a_spoilt_page_is_a_known_error_and_the_next_one_is_fine(
    standin: NivodaStandIn, client: Nivoda, token: str, fault: Fault
) -> None:
    how, kind, code = ERRORS[fault]
    standin.misbehave(fault, budget=1, **how)

    with pytest.raises(kind) as caught:
        client.page(token, ALL, 0, 50)

    assert type(caught.value) is kind
    assert getattr(caught.value, "code", "") == code
    assert str(caught.value)
    assert standin.struck == {fault: 1}
    standin.behave()
    assert client.page(client.authenticate().value, ALL, 0, 50).fetched == 50


@pytest.mark.parametrize(
    "fault", [Fault.HTML, Fault.TRUNCATED, Fault.EMPTY_OBJECT, Fault.NULL_DATA, Fault.WRONG_TYPES, Fault.RESET]
)
@pytest.mark.parametrize("operation", [Operation.AUTHENTICATE, Operation.COUNT])
def test_a_spoilt_log_in_or_count_is_transient_and_never_a_value(
    standin: NivodaStandIn, client: Nivoda, token: str, fault: Fault, operation: Operation
) -> None:
    standin.misbehave(fault, on=[operation])

    for _ in range(10 if fault is Fault.WRONG_TYPES else 1):
        with pytest.raises(Transient) as caught:
            client.authenticate() if operation is Operation.AUTHENTICATE else client.count(token, ALL)
        assert caught.value.code in ("bad_answer", "no_connection")


def test_a_wrong_type_anywhere_in_a_page_is_noticed(standin: NivodaStandIn, client: Nivoda, token: str) -> None:
    standin.misbehave(Fault.WRONG_TYPES)

    for _ in range(60):
        with pytest.raises(Transient, match=r"expected shape|neither data"):
            client.page(token, ALL, 0, 3)


@pytest.mark.full
@pytest.mark.parametrize("fault", TIMED_OUT)
def test_a_page_that_takes_too_long_is_too_big_and_the_step_keeps_its_time(
    standin: NivodaStandIn, base_url: str, token: str, pool: Pool, fault: Fault
) -> None:
    standin.misbehave(fault, **TIMED_OUT[fault])
    began = time.monotonic()

    with pytest.raises(PageTooBig):
        a_client(standin, base_url, pool, SHORT_S).page(token, ALL, 0, 50)

    assert time.monotonic() - began < HALF_AN_ANSWER_S


def test_a_hanging_upstream_answers_smaller_pages(standin: NivodaStandIn, client: Nivoda, token: str) -> None:
    standin.misbehave(Fault.HANG_ABOVE, seconds=30, above=20)
    standin.misbehave(Fault.TOO_BIG_ABOVE, above=20)

    assert client.page(token, ALL, 0, 20).fetched == 20


@pytest.mark.full
def test_a_count_that_takes_too_long_is_transient_but_no_page(
    standin: NivodaStandIn, base_url: str, token: str, pool: Pool
) -> None:
    standin.misbehave(Fault.SLOW, seconds=30)

    with pytest.raises(Transient) as caught:
        a_client(standin, base_url, pool, SHORT_S).count(token, ALL)

    assert type(caught.value) is SlowUpstream
    assert "Slow upstream" in caught.value.message


def test_without_time_nothing_is_asked(standin: NivodaStandIn, base_url: str, token: str, pool: Pool) -> None:
    with pytest.raises(Transient) as caught:
        a_client(standin, base_url, pool, left_s=1).page(token, ALL, 0, 50)

    assert caught.value.code == "no_time"
    assert standin.calls[Operation.PAGE] == 0


def test_the_time_out_of_the_local_cloud_is_enough(
    standin: NivodaStandIn, base_url: str, token: str, pool: Pool
) -> None:
    late_in_the_step = a_client(standin, base_url, pool, left_s=3.5)

    assert late_in_the_step.page(token, ALL, 0, 5).fetched == 5


@pytest.mark.parametrize(
    ("retry_after", "low", "high"),
    [
        pytest.param("7", 7, 7, id="seconds"),
        pytest.param("0", 1, 1, id="none is one second"),
        pytest.param("date", 58, 62, id="a date counts from the upstream's own clock"),
        pytest.param("Wed, 21 Oct 2015 07:28:00 GMT", 1, 1, id="a date in the past"),
        pytest.param("Fri, 31 Dec 9999 23:59:59 GMT", 21_600, 21_600, id="a date far ahead"),
        pytest.param("99999999", 21_600, 21_600, id="too long"),
        pytest.param("soon", 30, 30, id="garbage"),
        pytest.param("-5", 30, 30, id="negative"),
        pytest.param("1e3", 30, 30, id="no plain number"),
        pytest.param(None, 30, 30, id="missing"),
    ],
)
def test_a_throttled_call_says_how_long_to_wait(
    standin: NivodaStandIn, client: Nivoda, token: str, retry_after: str | None, low: float, high: float
) -> None:
    standin.misbehave(Fault.THROTTLE, retry_after=retry_after, seconds=60)
    began = time.monotonic()

    with pytest.raises(Throttled) as caught:
        client.page(token, ALL, 0, 50)

    assert caught.value.gate == "nivoda"
    assert low <= caught.value.retry_after_s <= high
    assert time.monotonic() - began < 50, "it waited for what it was told to wait for"
    assert standin.calls[Operation.PAGE] == 1


@pytest.mark.parametrize(
    ("message", "code", "kind"),
    [
        ("Too many requests, slow down", None, Throttled),
        ("Slow down", "RATE_LIMITED", Throttled),
        ("jwt expired", None, TokenRefused),
        ("Not logged in", None, TokenRefused),
        ("No", "UNAUTHENTICATED", TokenRefused),
        ("Invalid token", None, TokenRefused),
        ("Syntax Error: Unexpected token }", None, Transient),
        ("Cannot query field", "GRAPHQL_VALIDATION_FAILED", Permanent),
        ("Something went wrong", None, Transient),
    ],
)
def test_errors_within_a_200_are_sorted_by_who_tries_again(
    standin: NivodaStandIn,
    client: Nivoda,
    token: str,
    message: str,
    code: str | None,
    kind: type[Transient | Throttled | Permanent],
) -> None:
    standin.misbehave(Fault.ERRORS, message=message, code=code)

    with pytest.raises(kind) as caught:
        client.page(token, ALL, 0, 50)

    assert type(caught.value) is kind
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, Transient),
        (400, Permanent),
        (401, TokenRefused),
        (403, TokenRefused),
        (404, Transient),
        (413, PageTooBig),
        (500, Transient),
        (502, Transient),
        (504, PageTooBig),
    ],
)
def test_a_status_is_sorted_by_who_tries_again(
    standin: NivodaStandIn, client: Nivoda, token: str, status: int, kind: type[StepError]
) -> None:
    standin.misbehave(Fault.SERVER_ERROR, status=status)

    with pytest.raises(StepError, match=str(status)) as caught:
        client.page(token, ALL, 0, 50)

    assert type(caught.value) is kind
    assert standin.calls[Operation.PAGE] == 1


def test_a_refused_connection_is_transient(pool: Pool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = Nivoda(f"http://127.0.0.1:{port}", "u", "p", time_left_s=lambda: PLENTY_S, pool=pool)

    with pytest.raises(Transient) as caught:
        client.page("token", ALL, 0, 50)

    assert type(caught.value) is Transient
    assert caught.value.code == "no_connection"


def test_an_upstream_that_comes_back_is_found_again(
    standin: NivodaStandIn, base_url: str, client: Nivoda, token: str
) -> None:
    standin.stop()
    with pytest.raises(Transient):
        client.page(token, ALL, 0, 50)
    standin.start(int(base_url.rsplit(":", 1)[1]))

    assert client.page(token, ALL, 0, 50).fetched == 50


def test_wrong_credentials_are_permanent(base_url: str, pool: Pool) -> None:
    client = Nivoda(base_url, "somebody", "guess", time_left_s=lambda: PLENTY_S, pool=pool)

    with pytest.raises(Permanent) as caught:
        client.authenticate()

    assert caught.value.code == "bad_credentials"


@pytest.mark.parametrize("message", ["Invalid username or password", "User not found", "Password is incorrect"])
@pytest.mark.parametrize("code", [None, "BAD_USER_INPUT", "UNAUTHENTICATED"])
def test_wrong_credentials_are_recognised_by_what_the_upstream_says(
    standin: NivodaStandIn, client: Nivoda, message: str, code: str | None
) -> None:
    standin.misbehave(Fault.ERRORS, message=message, code=code)

    with pytest.raises(Permanent) as caught:
        client.authenticate()

    assert caught.value.code == "bad_credentials"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_log_in_is_permanent(standin: NivodaStandIn, client: Nivoda, status: int) -> None:
    standin.misbehave(Fault.SERVER_ERROR, status=status)

    with pytest.raises(Permanent) as caught:
        client.authenticate()

    assert caught.value.code == "bad_credentials"


def test_an_upstream_in_trouble_does_not_make_the_credentials_wrong(standin: NivodaStandIn, client: Nivoda) -> None:
    standin.misbehave(Fault.ERRORS, message="Internal server error")

    with pytest.raises(Transient):
        client.authenticate()


def test_a_token_may_end_after_some_calls_or_seconds(standin: NivodaStandIn, client: Nivoda) -> None:
    standin.token_lives_calls = 2
    spent = client.authenticate().value
    for _ in range(2):
        client.count(spent, ALL)
    standin.token_lives_s = 0
    stillborn = client.authenticate().value

    for token in (spent, stillborn, "never a token"):
        with pytest.raises(TokenRefused):
            client.count(token, ALL)


@pytest.mark.parametrize(("offset", "limit"), [(0, 51), (0, 0), (0, -1), (-1, 50), (2**31, 50)])
def test_a_page_that_the_api_would_refuse_is_refused_before_any_call(
    standin: NivodaStandIn, client: Nivoda, token: str, offset: int, limit: int
) -> None:
    with pytest.raises(Permanent, match=r"50|offset"):
        client.page(token, ALL, offset, limit)

    assert standin.calls[Operation.PAGE] == 0


@pytest.mark.parametrize(
    "base_url",
    [
        "http://nivoda.example",
        "http://127.0.0.1.nivoda.example",
        "ftp://127.0.0.1",
        "https://user:secret@nivoda.example",
        "https://",
        "nivoda.example",
        "",
    ],
)
def test_an_address_that_would_show_the_password_is_refused(base_url: str) -> None:
    with pytest.raises(ValueError, match="address") as caught:
        Nivoda(base_url, "u", "p", time_left_s=lambda: PLENTY_S)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("base_url", ["https://nivoda.example", "http://localhost:1", "http://[::1]:1/prefix/"])
def test_https_and_this_machine_are_accepted(base_url: str) -> None:
    Nivoda(base_url, "u", "p", time_left_s=lambda: PLENTY_S)


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_no_error_repeats_the_token_or_the_password(
    standin: NivodaStandIn, base_url: str, pool: Pool, status: int
) -> None:
    standin.password = 'canary "pa/ss" & wörd'
    token = "canarytoken-without-the-look-of-one"
    spelt = (
        standin.password,
        json.dumps(standin.password),
        "canary%20%22pa%2Fss%22%20%26%20w%C3%B6rd",
        "canary &quot;pa/ss&quot; &amp; wörd",
    )
    standin.misbehave(Fault.ERRORS, on=["authenticate"], message=f"failed for {' and '.join(spelt)}")
    standin.misbehave(Fault.ERRORS, on=["count", "page"], message=f"failed for {' and '.join((*spelt, token))}")
    client = a_client(standin, a_server(echo(status)) if status != 200 else base_url, pool)

    for ask in (client.authenticate, lambda: client.count(token, ALL), lambda: client.page(token, ALL, 0, 50)):
        with pytest.raises(StepError) as caught:
            ask()
        everything = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert "canary" not in everything


def a_server(answer: Callable[[dict[str, Any]], bytes]) -> str:
    """The address of a server that answers three connections with raw bytes, one request each."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server:
            for _ in range(3):
                connection, _ = server.accept()
                with connection, connection.makefile("rb") as lines:
                    connection.sendall(answer(request(lines)["variables"]))

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def request(lines: BinaryIO) -> dict[str, Any]:
    length = 0
    while (line := lines.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return dict(json.loads(lines.read(length)))


def echo(status: int) -> Callable[[dict[str, Any]], bytes]:
    def answer(variables: dict[str, Any]) -> bytes:
        said = " ".join(map(str, variables.values()))
        body = json.dumps({"errors": [{"message": f"refused: {said}"}]}).encode()
        return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body

    return answer


# --- the wire ---------------------------------------------------------------------------------------------------------

COUNT = b'{"data":{"as":{"diamonds_by_query_count":5}}}'
OK = b"HTTP/1.1 200 OK\r\n"


def chunked(*chunks: bytes) -> bytes:
    return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks)


def count_over(raw: bytes, pool: Pool) -> int:
    return Nivoda(a_server(lambda _: raw), "u", "p", time_left_s=lambda: PLENTY_S, pool=pool).count("token", ALL)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(OK + b"Content-Length: %d\r\n\r\n" % len(COUNT) + COUNT, id="with its length"),
        pytest.param(OK + chunked(COUNT[:5], COUNT[5:], b""), id="in chunks"),
        pytest.param(OK + b"Connection: close\r\n\r\n" + COUNT, id="until the end"),
    ],
)
def test_a_whole_answer_is_read_however_it_is_sent(raw: bytes, pool: Pool) -> None:
    assert count_over(raw, pool) == 5


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(OK + b"Content-Length: 100\r\n\r\n" + COUNT, id="shorter than its length"),
        pytest.param(OK + chunked(COUNT), id="without the last chunk"),
        pytest.param(OK + chunked(COUNT)[:-9], id="within a chunk"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", id="a chunk of no length"),
        pytest.param(OK + b"Connection: close\r\n\r\n" + COUNT[:-1], id="cut before the end"),
        pytest.param(OK + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00", id="compressed"),
        pytest.param(b"HTTP/1.1 200", id="half a status"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", id="another protocol"),
        pytest.param(OK + b"X: " + b"x" * 70_000 + b"\r\n\r\n", id="an endless header"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_broken_answer_is_transient_however_it_breaks(raw: bytes, pool: Pool) -> None:
    with pytest.raises(Transient) as caught:
        count_over(raw, pool)

    assert type(caught.value) is Transient
    assert caught.value.code in ("no_connection", "bad_answer")


def test_a_refusal_counts_even_if_its_reason_is_cut_off(pool: Pool) -> None:
    with pytest.raises(Throttled) as caught:
        count_over(b"HTTP/1.1 429 X\r\nRetry-After: 9\r\nContent-Length: 100\r\n\r\n{", pool)

    assert caught.value.retry_after_s == 9


# --- misbehaviour that is still a page --------------------------------------------------------------------------------


def test_short_pages_lose_nothing_when_the_offset_moves_by_what_was_fetched(
    standin: NivodaStandIn, client: Nivoda, token: str
) -> None:
    standin.misbehave(Fault.SHORT_PAGE, every=2, by=3)

    ids = [key for page in crawl(client, token, ALL, limit=20) for key in page.ids]

    assert ids == [stone.id for stone in standin.stones]
    assert any(call.returned == 17 for call in standin.log)


def test_an_empty_page_in_the_middle_is_seen_as_it_is(standin: NivodaStandIn, client: Nivoda, token: str) -> None:
    standin.misbehave(Fault.EMPTY_PAGE, after=1, budget=1)

    assert [client.page(token, ALL, 50, 50).fetched for _ in range(3)] == [50, 0, 50]


@pytest.mark.parametrize("distance", [0, 60])
def test_twins_are_told_as_they_came(standin: NivodaStandIn, client: Nivoda, token: str, distance: int) -> None:
    standin.misbehave(Fault.TWINS, share=0.2, distance=distance)

    ids = Counter(key for page in crawl(client, token, ALL) for key in page.ids)

    assert set(ids) == {stone.id for stone in standin.stones}
    assert set(ids.values()) == {1, 2}
    assert client.count(token, ALL) == ids.total()


def test_a_displaced_stone_is_missing_and_only_the_count_tells(
    standin: NivodaStandIn, client: Nivoda, token: str
) -> None:
    standin.misbehave(Fault.DISPLACED, budget=1)

    ids = [key for page in crawl(client, token, ALL) for key in page.ids]

    assert len(set(ids)) == len(ids) - 1 == client.count(token, ALL) - 1


def test_endless_pages_repeat_stones_beyond_the_count(standin: NivodaStandIn, client: Nivoda, token: str) -> None:
    standin.misbehave(Fault.ENDLESS)

    pages = crawl(client, token, ALL)
    ids = [key for _ in range(10) for key in next(pages).ids]

    assert len(ids) > client.count(token, ALL)
    assert set(ids) == {stone.id for stone in standin.stones}


def test_a_lying_total_is_not_looked_at_and_a_lying_count_is_told(
    standin: NivodaStandIn, client: Nivoda, token: str
) -> None:
    standin.misbehave(Fault.LYING_TOTAL, by=-500)
    standin.misbehave(Fault.LYING_COUNT, by=13, budget=1)

    assert len(items_of(client, token, ALL)) == len(standin.stones)
    assert [client.count(token, ALL) for _ in range(2)] == [STONES + 13, STONES]


def test_text_that_postgres_cannot_store_is_replaced(standin: NivodaStandIn, client: Nivoda, token: str) -> None:
    standin.misbehave(Fault.POISON)

    item = client.page(token, ALL, 0, 1).items[0]

    payload = orjson.loads(item.body)
    assert payload["diamond"]["poison"] == {"nul": "a\ufffdb", "lone": "a\ufffdb", "a\ufffdb": ["a\ufffdb"]}


def test_a_crawl_of_shifting_data_finds_only_what_was_ever_there(
    standin: NivodaStandIn, client: Nivoda, token: str
) -> None:
    standin.misbehave(Fault.SHIFT, deletes=1, inserts=1, reprices=1)
    since = standin.now()

    found = items_of(client, token, ALL, limit=10)

    truth = standin.stock
    assert {item.external_id for item in found} <= truth.ever_held(since)
    assert all(item.price_cents in truth.prices_held(item.external_id, since) for item in found)
    assert len(truth.history) == 3 * standin.struck[Fault.SHIFT]


# --- the stand-in itself ----------------------------------------------------------------------------------------------


def test_the_stand_in_knows_which_stones_were_there_all_the_time() -> None:
    times = iter(range(100))
    standin = NivodaStandIn(stones=3, clock=lambda: next(times))
    first, second, third = (stone.id for stone in standin.stones)
    before = standin.now()
    standin.stock.delete(first)
    standin.stock.reprice(second, 77_700)
    fresh = standin.stock.insert()
    after = standin.now()
    late = standin.stock.insert()

    truth = standin.stock
    assert standin.held_throughout(before) == {second, third}
    assert truth.unchanged_throughout(before) == {third}
    assert standin.held_throughout(after) == {second, third, fresh}
    assert truth.ever_held(before, after) == {first, second, third, fresh}
    assert truth.ever_held(after) == {second, third, fresh, late}
    assert len(truth.prices_held(second, before)) == 2
    assert truth.prices_held(second, after) == {77_700}
    assert [change.what for change in truth.history] == ["deleted", "repriced", "inserted", "inserted"]


def test_the_same_seed_makes_the_same_stones_and_the_same_trouble() -> None:
    def story(seed: int) -> list[Any]:
        with NivodaStandIn(seed=seed, stones=60) as standin, new_pool() as pool:
            client = a_client(standin, standin.start(), pool)
            token = client.authenticate().value
            standin.misbehave(Fault.EMPTY_PAGE, chance=0.3)
            standin.misbehave(Fault.SHIFT, chance=0.3, deletes=1)
            return [client.page(token, ALL, 0, 50).ids for _ in range(10)]

    assert story(1) == story(1) != story(2)


def test_misbehaviour_ends_with_its_budget_and_with_the_budget_of_all() -> None:
    with NivodaStandIn(stones=5, budget=5) as standin, new_pool() as pool:
        client = a_client(standin, standin.start(), pool)
        token = client.authenticate().value
        standin.misbehave(Fault.EMPTY_PAGE, budget=2)
        standin.misbehave(Fault.POISON)

        sizes = [client.page(token, ALL, 0, 50).fetched for _ in range(6)]

    assert sizes == [0, 0, 5, 5, 5, 5]
    assert standin.struck == {Fault.EMPTY_PAGE: 2, Fault.POISON: 3}


def test_a_callback_may_change_the_catalogue_before_each_call(
    standin: NivodaStandIn, client: Nivoda, token: str
) -> None:
    seen = []
    standin.before_each = lambda operation, variables: seen.append((operation, variables.get("offset")))

    client.page(token, ALL, 30, 10)

    assert seen == [(Operation.PAGE, 30)]


def ask(base_url: str, query: str, variables: dict[str, Any], **headers: str) -> dict[str, Any]:
    asked = {"query": query, "variables": variables}
    answer = urllib3.request("POST", f"{base_url}/api/diamonds", json=asked, headers=headers, timeout=60)
    assert answer.status == 200
    return dict(answer.json())


PLAIN = "query($q:DiamondQuery!,$o:Int,$l:Int){diamonds_by_query(query:$q,offset:$o,limit:$l){total_count items{id}}}"


def test_the_stand_in_takes_a_bearer_token_and_its_total_is_what_is_left(base_url: str, token: str) -> None:
    answer = ask(base_url, PLAIN, {"q": {}, "o": STONES - 5, "l": 50}, authorization=f"Bearer {token}")

    result = answer["data"]["diamonds_by_query"]
    assert result["total_count"] == 5
    assert [set(item) for item in result["items"]] == [{"id"}] * 5


@pytest.mark.parametrize(
    ("query", "variables", "message"),
    [
        (PLAIN, {"q": {}, "l": 51}, "Limit can be 50 maximum"),
        (PLAIN, {"q": {"colour": "D"}}, "not a known DiamondQuery"),
        (PLAIN, {"q": {"dollar_value": {"from": 1.5}}}, "whole dollars"),
        (PLAIN, {"l": 5}, "without a value"),
        (PLAIN.replace("items{id}", "items{weight}"), {"q": {}}, 'Cannot query field "weight"'),
        (PLAIN.replace("items{id}", "items"), {"q": {}}, "selection of subfields"),
        (PLAIN.replace("$l)", "50)"), {"q": {}}, "Syntax Error"),
        ("{shops{id}}", {}, 'Cannot query field "shops"'),
        ("mutation{order}", {}, "Syntax Error"),
        (PLAIN[:-1], {"q": {}}, "Syntax Error"),
        (PLAIN + "}", {"q": {}}, "Syntax Error"),
    ],
)
def test_the_stand_in_answers_what_it_does_not_know_with_errors(
    base_url: str, token: str, query: str, variables: dict[str, Any], message: str
) -> None:
    answer = ask(base_url, query, variables, authorization=f"Bearer {token}")

    assert answer["data"] is None
    assert message in answer["errors"][0]["message"]


def test_the_control_endpoint_switches_misbehaviour_and_tells_the_figures(
    standin: NivodaStandIn, base_url: str, client: Nivoda, token: str
) -> None:
    def control(orders: dict[str, Any]) -> urllib3.BaseHTTPResponse:
        return urllib3.request("POST", f"{base_url}/_control", json=orders, timeout=60)

    assert control({"misbehave": {"fault": "empty_page"}, "shift": {"deletes": 30}}).json()["stones"] == STONES - 30
    assert client.page(token, ALL, 0, 50).fetched == 0
    assert control({"behave": "empty_page", "expire_tokens": True}).json()["struck"] == {"empty_page": 1}
    assert client.page(client.authenticate().value, ALL, 0, 50).fetched == 50
    assert control({"misbehave": {"fault": "nonsense"}}).status == 400


@pytest.mark.full
def test_the_stand_in_runs_by_hand() -> None:
    command = [sys.executable, "-m", "infra.local.standins.nivoda", "--stones", "20", "--low", "10", "--high", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        assert "password" in process.stdout.readline()
        figures = urllib3.request("GET", f"{base_url}/_control", timeout=60).json()
        process.terminate()

    assert figures["stones"] == 20
    assert process.returncode == 0
