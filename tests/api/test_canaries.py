"""Guards that secrets are found nowhere: not in any row, log line, message or answer, whatever way they came in."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

import boto3
import pytest

from shared.kernel.catalogue import Kind
from shared.kernel.entry import step_handler
from shared.kernel.log import logger
from shared.kernel.log_json import json_log
from shared.kernel.tokens import Tokens
from shared.page_ingest.build import build_ports
from shared.page_ingest.ports import Ports as IngestPorts
from shared.page_ingest.ports import Upstream
from shared.page_ingest.steps import page_ingest
from shared.page_ingest.store import PageStore
from tests.support.door import QUEUES, Door, TenantHouse
from tests.support.lambda_calls import FakeContext, a_message, sqs_record
from tests.support.vaults import mocked_vault

CANARY = "canary-7f3a"


class Echo(BaseHTTPRequestHandler):
    """An upstream that repeats in its refusal whatever it was told, as careless ones do."""

    status = 400

    def do_POST(self) -> None:
        told = self.rfile.read(int(self.headers["content-length"])).decode()
        body = json.dumps({"errors": [{"message": f"no: {told}"}]}).encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Echo]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("BATON_NIVODA_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    with mocked_vault():
        yield Echo
    server.shutdown()
    server.server_close()


def dump(door: Door) -> dict[str, str]:
    """Every row of every table as text."""
    tables = [row["tablename"] for row in door.sql("select tablename from pg_tables where schemaname = 'public'")]
    return {table: "\n".join(row["t"] for row in door.sql(f"select t::text from {table} t")) for table in tables}


def take_step(door: Door, kind: Kind, run_id: UUID) -> None:
    """As the function does it, with its log."""
    message = a_message(door.baton(run_id).to_json())
    step_handler(kind, door.worker_ports)({"Records": [sqs_record(message, "baton-page-ingest.fifo")]}, FakeContext())


def surprise(*_: object) -> Upstream:
    raise RuntimeError(f"cannot log in with password={CANARY}")


def test_no_canary_is_found_anywhere(door: Door, acme: TenantHouse, echo: type[Echo]) -> None:
    kind = page_ingest(build_ports(door._worker))
    answers, log = [], io.StringIO()
    json_log()
    for handler in logger.handlers:
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(log)

    def ask(method: str, path: str, body: Any = None, **headers: str) -> Any:
        answers.append(door.call(acme.admin, method, path, body, headers=headers))
        return answers[-1].json()

    # Through connections, also those that are refused.
    body: dict[str, Any] = {"provider": "nivoda", "name": "main", "settings": {"username": "u"}}
    secret = {"password": f'{CANARY} p"w&d'}
    connection = ask("POST", "/connections", {**body, "secret": secret}, **{"Idempotency-Key": "k"})["id"]
    ask("POST", "/connections", {**body, "secret": secret}, **{"Idempotency-Key": "k"})
    ask("POST", "/connections", {**body, "secret": {"password": [CANARY]}})
    ask("POST", "/connections", {**body, "secret": {"password": "p", "pin": CANARY}})
    ask("POST", "/connections", {**body, "secret": CANARY})
    ask("PUT", f"/connections/{connection}", {"name": "main", "settings": {"username": "u"}, "secret": secret})
    ask("GET", f"/connections/{connection}")
    ask("GET", "/connections")

    # Through a surprise, whose traceback is logged.
    params = {"source": "nivoda", "low": 1, "high": 9, "connection": connection}
    run_id = UUID(ask("POST", "/runs", {"kind": "page_ingest", "params": params})["id"])
    take_step(
        door,
        page_ingest(IngestPorts(upstream=surprise, tokens=Tokens(door._worker), store=PageStore(door._worker))),
        run_id,
    )

    # Through what an upstream says of them, in a check and in steps; a 429 closes its gate, so it comes last.
    for status in (200, 400, 401, 403, 500, 429):
        echo.status = status
        ask("POST", f"/connections/{connection}/check")
        run_id = UUID(ask("POST", "/runs", {"kind": "page_ingest", "params": params})["id"])
        take_step(door, kind, run_id)
        for path in ("", "/lanes", "/history", "/why"):
            ask("GET", f"/runs/{run_id}{path}")

    # Through parameters, headers and bodies that are refused.
    ask("POST", "/runs", {"kind": "page_ingest", "params": {**params, "password": CANARY}})
    ask("POST", "/runs", {"kind": "page_ingest", "params": {**params, "connection": f"password={CANARY}"}})
    ask("POST", "/runs", {"kind": f"token={CANARY}", "params": {}})
    ask("POST", "/runs", f'{{"password": "{CANARY}"')
    ask("POST", "/runs", {"kind": "page_ingest", "password": CANARY})
    ask("GET", "/runs", Authorization=f"Bearer {CANARY}")
    ask("POST", f"/runs/{run_id}/cancel", {"reason": f"password={CANARY}"})
    ask("GET", "/audit")

    assert [answer.status for answer in answers if answer.status >= 500] == []
    logged = log.getvalue()
    assert '"message":"turn"' in logged  # there are lines to look at
    assert "password=***" in logged
    messages = str([door.queue.messages(queue) for queue in QUEUES])
    assert "page_ingest" in messages  # as above
    assert [table for table, rows in dump(door).items() if CANARY in rows] == []
    assert [answer.body for answer in answers if CANARY in answer.body] == []
    assert CANARY not in logged
    assert str(connection) not in messages
    assert CANARY not in messages
    # And it was really there to be found.
    (kept,) = boto3.client("secretsmanager").list_secrets()["SecretList"]
    assert CANARY in boto3.client("secretsmanager").get_secret_value(SecretId=kept["Name"])["SecretString"]
