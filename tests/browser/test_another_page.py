"""Guards that a web page which somebody happens to visit can neither read nor change the local cloud on his machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser

from infra.local.runs import functions_of
from tests.support.scene import Scene

pytestmark = pytest.mark.full

# What the page tries: as any page may send it, as an SDK would, and with the modes that need no permission.
ATTEMPTS = """async ({ places, key }) => {
    const signed = { authorization: `AWS4-HMAC-SHA256 Credential=${key}/20261116/us-east-1/lambda/aws4_request, SignedHeaders=host, Signature=0` };
    const made = JSON.stringify({ FunctionName: "evil", Runtime: "python3.13", Role: "arn:aws:iam::000000000000:role/x", Handler: "x.y", Code: { ZipFile: "" } });
    const read = [];
    for (const place of places) {
        for (const [path, how] of [
            ["/", {}], ["/_control", {}], ["/_ministack/health", {}], ["/_ministack/sqs/messages", {}], ["/2015-03-31/functions", { headers: signed }],
            ["/_control", { method: "POST", body: '{"expire_tokens": true}' }],
            ["/_ministack/reset", { method: "POST", mode: "no-cors" }],
            ["/2015-03-31/functions", { method: "POST", body: made, mode: "no-cors" }],
            ["/2015-03-31/functions", { method: "POST", body: made, headers: signed }],
            ["/", { method: "POST", body: "{}", headers: { ...signed, "x-amz-target": "secretsmanager.ListSecrets" } }],
            ["/", { method: "POST", body: "{}", headers: { "x-amz-target": "AWSCognitoIdentityProviderService.InitiateAuth" } }],
        ]) {
            try {
                const answer = await fetch(place + path, how);
                if (answer.type !== "opaque") read.push(`${how.method || "GET"} ${place}${path}: ${answer.status}`);
            } catch { /* the browser kept the answer from us */ }
        }
    }
    return read;
}"""
# A link needs no permission of anybody: what could make a stack, and so run code, by its query alone.
LINKS = ("/", "/login", "/logout", "/oauth2/authorize", "/pool/.well-known/jwks.json", "/_ministack/health")
MADE_BY_A_LINK = "?Action=CreateStack&StackName=evil&TemplateBody=" + quote(
    '{"Resources": {"Q": {"Type": "AWS::SQS::Queue"}}}'
)


@pytest.fixture
def evil_page() -> Iterator[str]:
    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>kittens</title>")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("key", ["test", "000000000000", "the cloud's own"])
def test_a_page_on_another_port_can_neither_read_nor_change_the_cloud(
    chromium: Browser, cloud: Scene, evil_page: str, key: str
) -> None:
    address = cloud.address
    port, before = urlsplit(address.endpoint).port, functions_of(address)
    api = address.outputs["ApiUrl"].rstrip("/")
    places = [address.endpoint, f"http://localhost:{port}", api, *address.upstreams.values()]
    page = chromium.new_page()
    page.goto(evil_page)

    read = page.evaluate(ATTEMPTS, {"places": places, "key": address.access_key if key == "the cloud's own" else key})
    page.close()

    assert read == []
    assert functions_of(address) == before  # nothing was made, and nothing reset


def test_a_link_that_somebody_follows_makes_nothing_in_the_cloud(
    chromium: Browser, cloud: Scene, evil_page: str
) -> None:
    stacks = cloud.address.client("cloudformation")
    before = [stack["StackName"] for stack in stacks.describe_stacks()["Stacks"]]
    page = chromium.new_page()
    for path in LINKS:
        page.goto(evil_page)
        with page.expect_navigation():
            page.evaluate("where => { location.href = where; }", cloud.address.endpoint + path + MADE_BY_A_LINK)
        assert page.url.startswith(cloud.address.endpoint)
    page.close()

    assert [stack["StackName"] for stack in stacks.describe_stacks()["Stacks"]] == before
