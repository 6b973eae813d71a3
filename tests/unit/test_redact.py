"""Guards what is stored and logged: canaries of every shape go in, none comes out."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.kernel.auth import new_token
from shared.kernel.redact import LONGEST, redact

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.canarycanarycanary"
CANARIES = {
    "a bearer token": "Authorization: Bearer canary-7f3a.0001",
    "a bearer token in lower case": "sent bearer canary7f3a0001 to the upstream",
    "basic credentials": "Authorization: Basic canary7f3aOmNhbmFyeQ==",
    "a JWT": f"the token was {JWT}, refused",
    "a JWT in a query": f"GET /x?jwt={JWT}&y=1",
    "an AWS key": "AKIACANARY7CANARY7CA",
    "a temporary AWS key": "key ASIACANARY7CANARY7CA denied",
    "an AWS secret": "aws_secret_access_key = canary/7f3a+0001",
    "an AWS session": "x-amz-security-token: canary7f3a",
    "a presigned url": "https://b.s3.amazonaws.com/k?X-Amz-Credential=canary&X-Amz-Signature=canary",
    "a password in a url": "postgresql://baton:canary7f3a@db.example:5432/baton",
    "key=value": "host=db password=canary7f3a port=5432",
    "key = 'value'": "password = 'canary 7f3a'",
    "key: value": "client_secret: canary7f3a",
    "a form": "grant_type=password&client_secret=canary7f3a&x=1",
    "JSON": '{"apiKey": "canary 7f3a", "n": 1}',
    "JSON with blanks": '{ "db_password" : "canary 7f3a" }',
    "Python's repr": "{'api_key': 'canary 7f3a'}",
    "a header pair": "('X-Api-Key', 'x'), X-Api-Key: canary7f3a",
    "a quote within JSON": r'{"password": "x\"canary"}',
    "JSON within JSON": r'{"body": "{\"password\": \"canary7f3a\"}"}',
    "an at sign in a url's password": "postgresql://baton:x@canary@db.example/baton",
    "a slash in a url's password": "postgresql://baton:canary/x@db.example/baton",
    "an element of XML": "<password>canary7f3a</password>",
    "a list in JSON": '{"tokens": ["canary1", "canary2"]}',
    "a short name": "pwd=canary7f3a",
    "a cookie": "Cookie: session=canary7f3a",
    "a shared access signature": "https://x.example/b?sv=1&sig=canary7f3a",
    "a token of ours": f"logged in with {new_token()[:-6]}canary",
    "a token of ours in a URL": f"GET /x?as={new_token()[:-6]}canary&y=1",
    "a token of GitHub": "git clone failed for ghp_" + "canary7f3a" * 4,
    "a token of Slack": "xoxb-2345-canary7f3a was revoked",
    "a key of Stripe": "No such key: sk_live_canary7f3acanary7f3a",
    "a key of Google": "GET /v1/x?key=AIza" + "canary7" * 5,
    "a key of a service account": r'{"type": "service_account", "private_key": "canary\n7f3a"}',
    "a private key": "-----BEGIN PRIVATE KEY-----\nMIIEcanary\ncanary/+=\n-----END PRIVATE KEY-----",
    "a private key in one line": r"key -----BEGIN RSA PRIVATE KEY-----\nMIIEcanary\n-----END RSA PRIVATE KEY----- used",
    "a private key that was cut off": "-----BEGIN EC PRIVATE KEY-----\nMIIEcanary",
    "an access key": "accessKey: canary7f3a",
}


@pytest.mark.parametrize("text", CANARIES.values(), ids=CANARIES)
def test_no_canary_comes_through(text: str) -> None:
    assert "canary" not in redact(text).lower()


@pytest.mark.parametrize("text", CANARIES.values(), ids=CANARIES)
def test_a_canary_is_found_within_other_text(text: str) -> None:
    assert "canary" not in redact(f"before {text} after\nand more\n").lower()


@pytest.mark.parametrize(
    "text",
    [
        "the upstream answered 503 after 30.2 s",
        "https://api.example/v1/items?page=3",
        'column "price" does not exist: select price from stone',
        "lane 019b75b0-8c00-7c3e-9a55-0d4c8a4f5b21 took its 100 steps",
        "Nivoda refused the user name and password: upstream answered 400",
        "wrong password: the upstream answered 401",
        "no token: it expired. Log in again",
        "Basic authentication is not offered here",
        "private_key: not a private key in PEM form.",
        "the role baton_worker may not write baton_api's rows",
    ],
)
def test_what_is_no_secret_is_kept(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("wrong password: swordfish, upstream answered 401", "wrong password: ***, upstream answered 401"),
        ("password: upstream7 was refused", "password: *** was refused"),
        ("password=the", "password=***"),  # no sentence is written with an equals sign
        ('"password": "the"', '"password": ***'),
        ("token: themis-9 expired", "token: *** expired"),
    ],
)
def test_a_word_that_could_be_a_secret_is_still_masked(text: str, told: str) -> None:
    assert redact(text) == told


def test_what_surrounds_a_secret_is_kept() -> None:
    assert (
        redact("postgresql://baton:x@db.example/baton timed out") == "postgresql://baton:***@db.example/baton timed out"
    )


@given(st.text())
@example("\x00\ud800")
@example("password='")
@example("://:@")
def test_redacting_never_fails_and_twice_is_as_good_as_once(text: str) -> None:
    once = redact(text)

    assert redact(once) == once
    assert "\x00" not in once
    assert len(once) <= LONGEST
    once.encode()


@given(st.text(alphabet="aeyJ.-_ =:'\"@/password", max_size=200))
def test_twice_is_as_good_as_once_for_texts_that_look_like_secrets(text: str) -> None:
    once = redact(text)

    assert redact(once) == once


@pytest.mark.parametrize("length", [LONGEST - 1, LONGEST, LONGEST + 1, 10 * LONGEST])
def test_a_text_is_kept_short_and_says_that_it_was_cut(length: int) -> None:
    clean = redact("x" * length)

    assert len(clean) == min(length, LONGEST)
    assert clean.endswith("\N{HORIZONTAL ELLIPSIS}") == (length > LONGEST)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x" * 100_000, id="a long word"),
        pytest.param('"' * 20_000, id="quotes"),
        pytest.param("eyJaaaaaa." * 5_000, id="almost a token"),
        pytest.param("://a" * 5_000, id="almost a url"),
        pytest.param("a-" * 10_000, id="a word of many parts"),
        pytest.param("-----BEGIN PRIVATE KEY-----" * 3_000, id="keys without an end"),
    ],
)
def test_the_cost_of_redacting_is_bounded_by_what_is_looked_at(text: str) -> None:
    beginning = (text * 50)[: 5 * LONGEST]

    assert redact(text * 50) == redact(beginning)
