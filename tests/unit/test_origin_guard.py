"""Guards the local cloud's front: which requests its servers answer, whoever sends them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from infra.local.guarded_ministack import guarded
from infra.local.origin_guard import credential, form_credential, is_form, needs_credentials, refusal, repeated

OURS = {"host": "127.0.0.1:4566"}
CONSOLE = "0123abcd.execute-api.localhost:4566"


@pytest.mark.parametrize("host", ["127.0.0.1:4566", "localhost:4566", CONSOLE, "localhost"])
def test_a_client_that_calls_this_machine_by_its_name_is_answered(host: str) -> None:
    assert refusal({"host": host}) is None


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:4566", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.7:4566",
     "x.localhost", "evil.execute-api.localhost:4566", "[::1]:4566"],
)  # fmt: skip
def test_a_name_that_somebody_made_resolve_to_this_machine_is_refused(host: str) -> None:
    assert refusal({"host": host}) is not None


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:8000", "http://localhost:4567", "null", "",
                                    "https://127.0.0.1:4566", f"http://evil@{CONSOLE}", "http://127.0.0.1"])  # fmt: skip
def test_a_page_of_another_origin_is_refused(origin: str) -> None:
    assert refusal({**OURS, "origin": origin}, own_port=4566) is not None


def test_the_console_may_ask_the_cloud_that_serves_it_and_nobody_else() -> None:
    asked = {**OURS, "origin": f"http://{CONSOLE}", "sec-fetch-site": "cross-site"}

    assert refusal(asked, own_port=4566) is None
    assert refusal(asked, own_port=4567) is not None
    assert refusal(asked) is not None  # a stand-in serves no page


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_picture_or_script_on_another_page_is_refused(site: str) -> None:
    page = {**OURS, "sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    link = {**OURS, "sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    frame = {**link, "sec-fetch-dest": "iframe"}

    assert refusal(page, own_port=4566) is not None
    assert refusal(frame, own_port=4566) is not None
    assert refusal(link, own_port=4566) is None


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {}),
        ("POST", "/", {"x-amz-target": "AmazonSQS.SendMessage"}),
        ("POST", "/", {"x-amz-target": "AWSCognitoIdentityProviderService.AdminSetUserPassword"}),
        ("POST", "/2015-03-31/functions", {}),
        ("POST", "/_ministack/reset", {}),
        ("GET", "/_ministack/sqs/messages", {}),
        ("PUT", "/bucket/key", {}),
        ("PUT", "/_ministack/cfn-response/x", {}),
        ("GET", "/_aws/execute-api/0123abcd/$default/../../_ministack/reset", {}),
        ("POST", "/api/v1/runs", {"host": CONSOLE, "x-amz-target": "AmazonSQS.SendMessage"}),
        ("POST", "/_ministack/config", {"host": CONSOLE}),
        ("POST", "/2015-03-31/functions", {"host": CONSOLE}),
        ("GET", "/login", {}),
        ("POST", "/oauth2/revoke", {}),
        ("OPTIONS", "/_alb/x", {}),
        ("HEAD", "/", {}),
        ("GET", "/pool/.well-known/jwks.json", {"x-amz-target": "DynamoDB_20120810.ListTables"}),
        (
            "GET",
            "/pool/.well-known/jwks.json",
            {"authorization": "AWS4-HMAC-SHA256 Credential=test/1/x/sqs/aws4_request"},
        ),
        ("GET", "/pool/.well-known/jwks.json", {"content-length": "40"}),
    ],
)
def test_whatever_can_read_or_change_the_cloud_needs_its_key(method: str, path: str, headers: dict[str, str]) -> None:
    assert needs_credentials(method, path, {**OURS, **headers})


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/pool/.well-known/jwks.json", {}),
        ("GET", "/pool/.well-known/openid-configuration", {}),
        ("POST", "/", {"x-amz-target": "AWSCognitoIdentityProviderService.InitiateAuth"}),
        ("OPTIONS", "/", {}),
    ],
)
def test_a_link_cannot_carry_a_call_in_its_query(method: str, path: str, headers: dict[str, str]) -> None:
    """The emulator reads `Action` in the query of any path that it does not know."""
    assert not needs_credentials(method, path, {**OURS, **headers})
    assert needs_credentials(method, path, {**OURS, **headers}, "Action=CreateStack&StackName=x")


@pytest.mark.parametrize("name", ["host", "origin", "authorization", "x-amz-target"])
def test_a_header_that_decides_is_not_said_twice(name: str) -> None:
    assert repeated(["accept", name, "accept"]) is None
    assert repeated([name, "accept", name]) == name


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/_ministack/health", {}),
        ("GET", "/us-east-1_abc/.well-known/jwks.json", {}),
        ("POST", "/", {"x-amz-target": "AWSCognitoIdentityProviderService.InitiateAuth"}),
        ("PUT", "/_ministack/cfn-response/0f8fad5b-d9cb-469f-a165-70867728950e", {}),
        ("POST", "/api/v1/runs", {"host": CONSOLE}),
        ("GET", "/console/now", {"host": CONSOLE}),
        ("GET", "/_aws/execute-api/0123abcd/$default/health", {}),
    ],
)
def test_what_needs_no_credentials_in_aws_needs_none_here(method: str, path: str, headers: dict[str, str]) -> None:
    assert not needs_credentials(method, path, {**OURS, **headers})


def test_the_key_is_found_where_clients_put_it() -> None:
    signed = {
        "authorization": "AWS4-HMAC-SHA256 Credential=KEY/20261116/us-east-1/sqs/aws4_request, SignedHeaders=host"
    }

    assert credential({**signed, "x-amz-security-token": "T"}, "") == ("KEY", "T")
    assert credential({}, "X-Amz-Credential=KEY%2F20261116%2Fx&X-Amz-Security-Token=T") == ("KEY", "T")
    assert credential({"authorization": "Bearer x"}, "a=b") == ("", "")


FORM = {**OURS, "content-type": "multipart/form-data; boundary=x"}


def form(*fields: tuple[str, str], file: str = "title\nTV\n") -> bytes:
    parts = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields]
    return "".join(
        [*parts, f'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n{file}\r\n--x--\r\n']
    ).encode()


def test_a_form_to_a_bucket_carries_its_credentials_itself() -> None:
    assert is_form("POST", "/baton-files", FORM, "")
    assert not is_form("POST", "/baton-files", OURS, "")
    assert not is_form("POST", "/baton-files", FORM, "Action=CreateStack")
    assert not is_form("POST", "/2015-03-31/functions", FORM, "")
    assert form_credential(form(("x-amz-credential", "KEY/2026/s3"), ("x-amz-security-token", "TOKEN"))) == (
        "KEY",
        "TOKEN",
    )
    said = 'form-data; name="x-amz-security-token"\r\n\r\nTOKEN\r\n'
    assert form_credential(form(file=said)) == ("", ""), "what is in the file was not signed"


def test_a_preflight_to_a_bucket_is_answered_and_nothing_else_of_it() -> None:
    assert not needs_credentials("OPTIONS", "/baton-files", OURS)
    assert needs_credentials("OPTIONS", "/baton-files", OURS, "Action=CreateStack")
    assert needs_credentials("GET", "/baton-files", OURS)


@pytest.mark.parametrize(("token", "told"), [("SECRET", "all of it"), ("OTHER", "refused"), (None, "refused")])
def test_a_form_reaches_the_emulator_whole_if_it_has_the_key(token: str | None, told: str) -> None:
    """In pieces, as a server receives it."""
    sent = form(*([("x-amz-security-token", token)] if token else []), file="x" * 100_000)
    pieces = [sent[at : at + 1_000] for at in range(0, len(sent), 1_000)]
    came: list[bytes] = []

    async def receive() -> Any:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def emulator(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            came.append(message["body"])
            more = message["more_body"]

    async def send(message: Any) -> None: ...

    scope = {
        "type": "http", "method": "POST", "path": "/baton-files", "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in FORM.items()],
    }  # fmt: skip
    app = guarded(emulator, port=4566, access_key="SECRET", checks_signatures=False)

    async def ask() -> None:
        await app(scope, receive, send)

    with ThreadPoolExecutor(1) as thread:  # a browser test of this process may have left a loop in the main one
        thread.submit(asyncio.run, ask()).result()

    assert b"".join(came) == (sent if told == "all of it" else b"")
