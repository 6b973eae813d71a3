"""The one HTTP client against servers that drip, stall, lie about sizes and pack bombs, on real sockets."""

from __future__ import annotations

import gzip
import html
import json
import socket
import ssl
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote, quote_plus

import pytest

from shared.kernel.errors import Permanent, StepError, Throttled, Transient
from shared.kernel.http import (
    LARGEST_ANSWER,
    LONGEST_WAIT_S,
    RESERVE_S,
    Answer,
    AnswerTooLarge,
    Http,
    Pool,
    SlowUpstream,
    new_pool,
)
from shared.kernel.tokens import TokenRefused

CALL_S = 1.2
DRIPS_S = 60  # fifty times as long as a call may take
Talk = Callable[[socket.socket], None]


@contextmanager
def a_server(talk: Talk) -> Iterator[str]:
    """Reads one request of each connection, then says what the test tells it to."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=converse, args=(connection,), daemon=True).start()

    def converse(connection: socket.socket) -> None:
        with connection:
            connection.settimeout(5)
            try:
                while b"\r\n\r\n" not in connection.recv(65_536):
                    pass
                talk(connection)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        done.set()
        thread.join()
        listener.close()


def drip(head: bytes, piece: bytes, pause_s: float = 0.02) -> Talk:
    def talk(connection: socket.socket) -> None:
        ends = time.monotonic() + DRIPS_S
        connection.sendall(head)
        while time.monotonic() < ends:
            connection.sendall(piece)
            time.sleep(pause_s)

    return talk


def say(*pieces: bytes) -> Talk:
    def talk(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)

    return talk


def ask(base_url: str, pool: Pool, left_s: float = CALL_S + RESERVE_S) -> Answer:
    return Http(base_url, name="Example", gate="example", time_left_s=lambda: left_s, pool=pool).send("GET", "/thing")


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = new_pool()
    yield pool
    pool.clear()


OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "the status line": drip(b"HTTP/1.1 20", b"0"),
    "headers": drip(OK, b"x-a: b\r\n", 0.05),
    "one header": drip(OK + b"x-a: ", b"b"),
    "100 Continue": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "headers of 100 Continue": drip(b"HTTP/1.1 100 Continue\r\n", b"x-a: b\r\n", 0.05),
    "the body": drip(OK + b"content-length: 100000\r\n\r\n", b"x"),
    "the body without an end": drip(OK + b"\r\n", b"x"),
    "chunks": drip(OK + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "the size of a chunk": drip(OK + b"transfer-encoding: chunked\r\n\r\n", b"0"),
    "what follows the size": drip(OK + b"transfer-encoding: chunked\r\n\r\n1;", b"x"),
    "trailers": drip(OK + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"x-a: b\r\n"),
    "nothing": drip(b"", b"", 1),
}


@pytest.mark.full
@pytest.mark.parametrize("what", DRIPS)
def test_a_peer_that_drips_is_left_before_the_step_ends_and_called_slow(what: str, pool: Pool) -> None:
    with a_server(DRIPS[what]) as base_url:
        began = time.monotonic()
        with pytest.raises(Transient) as caught:
            ask(base_url, pool)
        took = time.monotonic() - began

    # Some things a peer can drip are refused for their size before the time is over; nothing outlasts the call.
    assert took < DRIPS_S
    if type(caught.value) is SlowUpstream:
        assert took >= CALL_S
        assert "Slow upstream: the answer of Example was not complete after 1 s." in str(caught.value)
    else:
        assert what in ("headers", "trailers", "the size of a chunk", "headers of 100 Continue")


@pytest.mark.full
def test_a_peer_that_does_not_read_is_left_as_well(pool: Pool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        http = Http(
            f"http://127.0.0.1:{deaf.getsockname()[1]}",
            name="Example",
            gate="example",
            time_left_s=lambda: CALL_S + RESERVE_S,
            pool=pool,
        )
        with pytest.raises(SlowUpstream):
            http.send("POST", "/thing", body=b"x" * 50_000_000)


def plain(body: bytes, *headers: bytes) -> bytes:
    length = b"content-length: %d" % len(body)
    return OK + b"\r\n".join([length, *headers]) + b"\r\n\r\n" + body


def test_a_body_of_20_megabytes_is_cut(pool: Pool) -> None:
    with a_server(say(plain(b"x" * 20_000_000))) as base_url, pytest.raises(AnswerTooLarge, match="more than 8 MB"):
        ask(base_url, pool, 30)


@pytest.mark.parametrize("announced", [True, False])
def test_a_gzip_bomb_is_cut_while_it_is_unpacked(announced: bool, pool: Pool) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(2**20)) for _ in range(64)) + packer.flush()
    assert len(bomb) < LARGEST_ANSWER / 10
    answer = plain(bomb, b"content-encoding: gzip")
    if not announced:
        chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(bomb), bomb)
        answer = OK + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n" + chunk

    with a_server(say(answer)) as base_url, pytest.raises(AnswerTooLarge):
        ask(base_url, pool, 30)


def test_a_packed_answer_is_unpacked(pool: Pool) -> None:
    body = b'{"a": [1, 2, 3]}' * 10_000
    with a_server(say(plain(gzip.compress(body), b"content-encoding: gzip"))) as base_url:
        assert ask(base_url, pool).body == body


@pytest.mark.parametrize(
    "answer",
    [
        plain(gzip.compress(b"x" * 1000)[:-8], b"content-encoding: gzip"),
        plain(gzip.compress(b"x") + b"and more", b"content-encoding: gzip"),
        plain(b"not packed at all", b"content-encoding: gzip"),
        plain(b"x", b"content-encoding: br"),
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + plain(b"x"),
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
    ids=["cut", "with more behind it", "not packed", "packed otherwise", "early hints", "another protocol"],
)
def test_what_is_not_what_it_says_is_a_bad_answer(answer: bytes, pool: Pool) -> None:
    with a_server(say(answer)) as base_url, pytest.raises(Transient) as caught:
        ask(base_url, pool)

    assert caught.value.code == "bad_answer"


def test_an_answer_is_never_read_as_the_answer_to_the_next_question(pool: Pool) -> None:
    twice = plain(b"first") + plain(b"second")

    def answer_whatever_is_asked(connection: socket.socket) -> None:
        # The connection stays open: one that the server hangs up between two questions is another matter.
        connection.sendall(twice)
        while connection.recv(65_536):
            connection.sendall(twice)

    with a_server(answer_whatever_is_asked) as base_url:
        assert [ask(base_url, pool).body for _ in range(3)] == [b"first"] * 3
    with a_server(say(b"HTTP/1.1 103 Early Hints\r\n\r\n" + plain(b"late"))) as base_url:
        for _ in range(3):
            with pytest.raises(Transient, match="103"):
                ask(base_url, pool)


def test_a_connection_that_the_server_hung_up_between_two_questions_is_replaced(pool: Pool) -> None:
    with a_server(say(plain(b"fine"))) as base_url:
        for _ in range(3):
            assert ask(base_url, pool).body == b"fine"
            time.sleep(0.05)


TWO_LENGTHS = OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nxx"


@pytest.mark.parametrize(
    "cut", [b"HTTP", OK + b"content-length: 9\r\n\r\nhalf", b"\x00\x01garbage\r\n\r\n", TWO_LENGTHS]
)
def test_a_connection_that_breaks_is_a_known_error(cut: bytes, pool: Pool) -> None:
    with a_server(say(cut)) as base_url, pytest.raises(Transient) as caught:
        ask(base_url, pool)

    assert caught.value.code in ("no_connection", "bad_answer")


def test_a_redirect_is_not_followed(pool: Pool) -> None:
    with a_server(say(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n")) as base_url:
        assert ask(base_url, pool).status == 302


def refused(status: int, **headers: str) -> StepError:
    http = Http("https://example.test", name="Example", gate="example:7", time_left_s=lambda: 60.0)
    return http.refusal(Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, b""), "why")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, Permanent), (401, TokenRefused), (403, TokenRefused), (404, Transient), (422, Permanent)),
        *((429, Throttled), (500, Transient), (503, Transient), (302, Transient)),
    ],
)
def test_a_status_is_sorted_by_who_tries_again(status: int, kind: type[StepError]) -> None:
    assert type(refused(status)) is kind
    assert str(status) in str(refused(status))


def test_a_429_says_whose_word_the_wait_is() -> None:
    broken = refused(503, retry_after="315360000")
    ten_years, soon, never = refused(429, retry_after="315360000"), refused(429, retry_after="7"), refused(429)

    assert isinstance(ten_years, Throttled)
    assert (ten_years.gate, ten_years.retry_after_s) == ("example:7", LONGEST_WAIT_S)
    assert str(ten_years) == (
        "Example asks to wait for 315360000 s; Baton waits 21600 s, its own limit, and asks again (429)."
    )
    assert isinstance(broken, Transient)
    assert broken.retry_after_s == LONGEST_WAIT_S
    assert str(soon) == "Example asks to wait for 7 s (429)."
    assert str(never) == "Example asks to wait without saying how long; Baton waits 30 s (429)."


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    """A server's context, and the file by which it is trusted."""
    place = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    try:
        subprocess.run(made, cwd=place, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl here to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "cert.pem", place / "key.pem")
    return context, str(place / "cert.pem")


@pytest.mark.full
def test_the_deadline_holds_over_tls_too(certified: tuple[ssl.SSLContext, str]) -> None:
    context, certificate = certified

    def talk_tls(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(65_536)
            paths.pop()(secure)

    def one_request(listener: socket.socket) -> None:
        for _ in range(3):
            connection, _ = listener.accept()
            with connection:
                try:
                    talk_tls(connection)
                except OSError:
                    continue

    paths = [drip(OK, b"x-a: b\r\n"), say(plain(b"fine")), say(plain(b"never"))]
    paths.reverse()
    trusting, strange = new_pool(certificate), new_pool()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=one_request, args=(listener,), daemon=True).start()
        base_url = f"https://localhost:{listener.getsockname()[1]}"
        with pytest.raises(Transient) as caught:
            ask(base_url, trusting)
        assert caught.value.code == "slow_upstream"
        assert ask(base_url, trusting).body == b"fine"
        with pytest.raises(Transient, match="SSLCertVerificationError"):
            ask(base_url, strange)
    trusting.clear()
    strange.clear()


def test_what_nobody_asked_for_is_no_answer_to_the_next_question(certified: tuple[ssl.SSLContext, str]) -> None:
    """Behind the first answer, in the same record of TLS, comes another: the rest of the record is no longer on the wire."""
    context, certificate = certified
    first = plain(b"first").ljust(8192, b" ") + plain(b"forged")

    def serve(listener: socket.socket) -> None:
        for said in (first, plain(b"second")):
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True) as secure:
                secure.recv(65_536)
                secure.sendall(said)
                secure.recv(65_536)  # until it hangs up

    with socket.create_server(("127.0.0.1", 0)) as listener, new_pool(certificate) as pool:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        base_url = f"https://localhost:{listener.getsockname()[1]}"
        assert [ask(base_url, pool).body for _ in range(2)] == [b"first", b"second"]


def test_a_secret_is_not_repeated_however_it_was_spelt() -> None:
    secret = 'a&b <c>"é d'
    http = Http("https://example.test", name="Example", gate="g", time_left_s=lambda: 60.0, secrets=[secret])
    spelt = [secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote_plus(secret), html.escape(secret)]

    assert [http.quote(f"no such key: {each}!") for each in spelt] == ["no such key: ***!"] * 5
