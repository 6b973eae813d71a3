"""The front door over real HTTP: what API Gateway, its authorizer and the user pool do, in front of the real handler."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from shared.kernel.api.frame import API
from tests.support.door import ANONYMOUS, Door, Who

CLIENT_ID = "client-1"


class Gateway:
    """`people` are the pool's users by address: password and subject. `tokens` are those that still hold. `says`: a status that it
    answers itself, in its own words."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.people: dict[str, tuple[str, str]] = {}
        self.tokens: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.says: tuple[int, str] | None = None
        self._made = 0
        self._one_at_a_time = threading.Lock()  # as one process of a function

    def answer(self, method: str, target: str, headers: dict[str, str], body: str) -> tuple[int, str, str]:
        with self._one_at_a_time:
            if "x-amz-target" in headers:
                return self._pool(json.loads(body))
            parts = urlsplit(target)
            self.requests.append((method, parts.path))
            if self.says is not None:
                return self.says[0], "application/json", json.dumps({"message": self.says[1]})
            who = ANONYMOUS
            if parts.path.startswith(API):
                subject = self.tokens.get(headers.get("authorization", "").removeprefix("Bearer "))
                if subject is None:
                    return 401, "application/json", json.dumps({"message": "Unauthorized"})
                who = Who(subject)
            event = self.door.event(who, method, parts.path, body or None, headers=headers)
            event["rawQueryString"] = parts.query
            if parts.query:
                event["queryStringParameters"] = dict(parse_qsl(parts.query, keep_blank_values=True))
            answer = self.door.ask(event)
            return answer.status, answer.headers.get("Content-Type", "application/json"), answer.body

    def _pool(self, asked: Any) -> tuple[int, str, str]:
        given, kind = asked["AuthParameters"], "application/x-amz-json-1.1"
        assert asked["ClientId"] == CLIENT_ID
        if asked["AuthFlow"] == "REFRESH_TOKEN_AUTH":
            subject = given["REFRESH_TOKEN"].removeprefix("refresh-")
        else:
            password, subject = self.people.get(given["USERNAME"], ("", ""))
            if not password or password != given["PASSWORD"]:
                said = {"__type": "NotAuthorizedException", "message": "Incorrect username or password."}
                return 400, kind, json.dumps(said)
        self._made += 1
        token = f"jwt-{self._made}"
        self.tokens[token] = subject
        result = {"AccessToken": token, "RefreshToken": f"refresh-{subject}", "ExpiresIn": 3600}
        return 200, kind, json.dumps({"AuthenticationResult": result})


@contextmanager
def served(gateway: Gateway) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0))).decode()
            status, kind, said = gateway.answer(self.command, self.path, headers, body)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(said.encode())))
            self.end_headers()
            self.wfile.write(said.encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - the names that the server calls

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
