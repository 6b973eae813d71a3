"""Secrets that must be found nowhere, and the ways by which they come in. Kinds bring ways of their own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel.catalogue import Kind
from shared.kernel.entry import step_handler
from tests.support.door import Answer, Door, TenantHouse
from tests.support.lambda_calls import FakeContext, a_message, sqs_record
from tests.support.vaults import mocked_vault

CANARY = "canary-7f3a"


class Echo(BaseHTTPRequestHandler):
    """An upstream that repeats in its refusal whatever it was told, as careless ones do."""

    status = 400

    def do_GET(self) -> None:
        self._say(f"{self.path} {self.headers}")

    def do_POST(self) -> None:
        self._say(self.rfile.read(int(self.headers["content-length"])).decode())

    def _say(self, told: str) -> None:
        said = dict.fromkeys(("error_description", "display", "error"), f"no: {told}")
        body = json.dumps({"errors": [{"message": f"no: {told}"}], **said}).encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Canaries:
    """What a kind needs to let them in: the API as an admin, its own steps, and an upstream that repeats everything."""

    door: Door
    tenant: TenantHouse
    echo: type[Echo]
    echo_url: str
    environment: pytest.MonkeyPatch
    answers: list[Answer] = field(default_factory=list)

    @property
    def engine(self) -> sa.Engine:
        return self.door._worker

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        self.answers.append(self.door.call(self.tenant.admin, method, path, body, headers=headers))
        return self.answers[-1].json()

    def start(self, kind: str, params: dict[str, Any]) -> UUID:
        return UUID(self.ask("POST", "/runs", {"kind": kind, "params": params})["id"])

    def take_step(self, kind: Kind, run_id: UUID) -> None:
        """As the function does it, with its log."""
        message = a_message(self.door.baton(run_id).to_json())
        queue = f"baton-{kind.name.replace('_', '-')}.fifo"
        step_handler(kind, self.door.worker_ports)({"Records": [sqs_record(message, queue)]}, FakeContext())

    def look_at(self, run_id: UUID) -> None:
        for path in ("", "/lanes", "/history", "/why"):
            self.ask("GET", f"/runs/{run_id}{path}")


@contextmanager
def open_canaries(door: Door, tenant: TenantHouse) -> Iterator[Canaries]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with mocked_vault(), pytest.MonkeyPatch.context() as environment:
            yield Canaries(door, tenant, Echo, f"http://127.0.0.1:{server.server_port}", environment)
    finally:
        server.shutdown()
        server.server_close()
