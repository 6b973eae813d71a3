"""Guards that `baton smoke` says what is wrong with a deployment, each fault by its own sentence, and never calls it well."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.cli import main
from infra.client.kinds import smoke

WELL: dict[str, Any] = {
    "GET /health": (
        200,
        {"ok": True, "database": "reachable", "schema": "0130", "expected_schema": "0130", "tick_age_s": 7},
    ),
    "GET /console/now": (200, '<script src="assets/app.js"></script>'),
    "GET /console/assets/app.js": (200, "start()"),
    "GET /machine/api/v1/me": (200, {"actor": "token:1", "tenants": [{"name": "acme", "role": "admin"}]}),
    "POST /machine/api/v1/jobs": (201, {"id": "j1"}),
    "GET /machine/api/v1/jobs/j1": (200, {"status": "succeeded"}),
}


class Deployment:
    """Answers as it is told to, on loopback."""

    def __init__(self) -> None:
        self.answers = dict(WELL)
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = f"{self.command} {self.path}"
                outer.asked.append(asked)
                status, body = outer.answers.get(asked, (404, {"detail": "Page not found"}))
                said = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    place = Deployment()
    thread = threading.Thread(target=place.server.serve_forever)
    thread.start()
    yield place
    place.server.shutdown()
    thread.join()
    place.server.server_close()


@pytest.fixture
def check(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    monkeypatch.setenv("BATON_TOKEN", "baton_x")
    monkeypatch.setattr(smoke, "EVERY_S", 0.0)

    def run(*more: str) -> tuple[int, str]:
        code = main(["--home", str(tmp_path), "smoke", "--url", deployment.url, *more])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_a_deployment_that_is_well_is_said_to_be(deployment: Deployment, check: Callable[..., tuple[int, str]]) -> None:
    code, said = check("--json")

    assert (code, json.loads(said)["ok"]) == (0, True)
    assert set(deployment.asked) == set(WELL)


@pytest.mark.parametrize(
    ("fault", "answer", "told"),
    [
        ("GET /health", (503, {**WELL["GET /health"][1], "ok": False, "database": "unreachable"}), "The database is unreachable"),
        ("GET /health", (503, {**WELL["GET /health"][1], "ok": False, "schema": "0102"}), "The schema is 0102, the code expects 0130"),
        ("GET /health", (503, {**WELL["GET /health"][1], "ok": False, "schema": None}), "The schema is None"),
        ("GET /health", (503, {**WELL["GET /health"][1], "ok": False, "tick_age_s": 700}), "The scheduler has stopped"),
        ("GET /health", (503, {**WELL["GET /health"][1], "ok": False, "tick_age_s": None}), "The scheduler has not run yet"),
        ("GET /health", (200, "<html>another service</html>"), "not as Baton does"),
        ("GET /console/now", (500, ""), "/console/now answered 500"),
        ("GET /console/now", (200, "hello"), "is not the console"),
        ("GET /console/assets/app.js", (404, "no"), "/console/assets/app.js answered 404"),
        ("GET /machine/api/v1/me", (401, {}), "the token in BATON_TOKEN is wrong, expired or revoked"),
        ("GET /machine/api/v1/me", (200, {"actor": "user:a", "tenants": []}), "belongs to no tenant"),
        ("POST /machine/api/v1/jobs", (403, {"detail": "This needs the role member."}), "This needs the role member"),
        ("POST /machine/api/v1/jobs", (422, {"code": "unknown_definition", "detail": "x"}), "The function migrate creates it"),
        ("GET /machine/api/v1/jobs/j1", (200, {"status": "queued", "why": {"sentence": "No worker is running."}}), "No worker is running."),
        ("GET /machine/api/v1/jobs/j1", (200, {"status": "dead_letter", "last_error": "exit code 3"}), "ended as dead_letter: exit code 3"),
    ],
)  # fmt: skip
def test_no_fault_is_passed_over(
    deployment: Deployment, check: Callable[..., tuple[int, str]], fault: str, answer: Any, told: str
) -> None:
    deployment.answers[fault] = answer

    code, said = check("--within", "0")

    assert code == 1
    assert told in said, said
    assert said.count("FAIL") == 1, "what is well beside it is said too"


def test_a_deployment_that_does_not_answer_is_not_well(
    deployment: Deployment, check: Callable[..., tuple[int, str]]
) -> None:
    deployment.url = "http://127.0.0.1:9"

    code, said = check()

    assert code == 1
    assert said.count("is not responding") == 3
    assert "ok  " not in said


@pytest.mark.full
def test_a_run_of_a_kind_can_take_the_place_of_the_job(
    deployment: Deployment, check: Callable[..., tuple[int, str]]
) -> None:
    deployment.answers |= {
        "POST /machine/api/v1/runs": (201, {"id": "r1"}),
        "GET /machine/api/v1/runs/r1": (200, {"status": "failed", "error": {"message": "NivodaBaseUrl is not set"}}),
    }

    code, said = check("--run", "page_ingest", "--params", '{"low": 1}')

    assert code == 1
    assert "run r1 ended as failed: NivodaBaseUrl is not set" in said
    assert "not valid JSON" in check("--run", "page_ingest", "--params", "{")[1]
