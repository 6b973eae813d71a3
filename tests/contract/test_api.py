"""Guards that the API's health is honest and that whatever is not there is a problem document."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pg8000.exceptions import DatabaseError

from infra.migrations.head import newest_revision
from shared.kernel import db
from shared.kernel.api.desk import Front
from shared.kernel.api.frame import Look, api_handler, say_health
from shared.kernel.catalogue import Catalogue
from shared.kernel.ports import Ports
from shared.kernel.store import PgStore
from tests.support.house import new_queue
from tests.support.lambda_calls import FakeContext

EVENT: dict[str, Any] = json.loads((Path(__file__).parents[2] / "events" / "api.json").read_text())


def asked(look: Look, path: str = "/health") -> tuple[int, str, dict[str, Any]]:
    event = copy.deepcopy(EVENT)
    event["rawPath"] = event["requestContext"]["http"]["path"] = path
    nowhere = db.connect_engine("postgresql://baton_api@203.0.113.1/baton", pool="none")
    front = Front(nowhere, Ports(store=PgStore(nowhere), queue=new_queue()), Catalogue())
    answer = api_handler(front, look, "0003", [])(event, FakeContext())
    return answer["statusCode"], answer["headers"]["Content-Type"], json.loads(answer["body"])


def test_a_healthy_deployment_says_so() -> None:
    status, kind, body = asked(lambda: ("0003", 61.7))

    assert (status, kind) == (200, "application/json")
    assert body == {"ok": True, "database": "reachable", "schema": "0003", "expected_schema": "0003", "tick_age_s": 61}


@pytest.mark.parametrize(
    ("revision", "tick_age_s", "status"),
    [
        pytest.param("0003", 180.0, 200, id="a slow tick"),
        pytest.param("0003", 181.0, 503, id="no tick for three minutes"),
        pytest.param("0003", None, 503, id="never a tick"),
        pytest.param("0002", 10.0, 503, id="a schema older than the code"),
        pytest.param("0004", 10.0, 200, id="a schema newer than the code, as during a deployment"),
        pytest.param(None, 10.0, 503, id="no schema"),
    ],
)
def test_health_is_whether_work_can_move(revision: str | None, tick_age_s: float | None, status: int) -> None:
    assert say_health(lambda: (revision, tick_age_s), "0003")[0] == status


def test_a_database_that_is_away_is_told_without_a_reason() -> None:
    def away() -> tuple[str | None, float | None]:
        raise RuntimeError("password=canary refused")

    status, _, body = asked(away)

    assert status == 503
    assert body["database"] == "unreachable"
    assert "canary" not in json.dumps(body)


def test_what_is_not_there_is_a_problem_document() -> None:
    status, kind, body = asked(lambda: ("0003", 1.0), "/nowhere")

    assert (status, kind) == (404, "application/problem+json")
    assert body == {
        "status": 404,
        "code": "not_found",
        "detail": "Not found. It doesn't exist, or you don't have access to it.",
    }


def test_the_api_may_ask_and_a_tick_is_seen(url_as: Callable[[str], str]) -> None:
    def store(role: str) -> PgStore:
        return PgStore(db.connect_engine(url_as(role), pool="none"))

    assert store("baton_api").health() == (newest_revision(), None)
    store("baton_worker").beat("sweep")
    store("baton_worker").beat("tick")
    store("baton_worker").beat("tick")

    revision, tick_age_s = store("baton_api").health()

    assert revision == newest_revision()
    assert tick_age_s is not None
    with pytest.raises(DatabaseError, match="permission denied"):
        store("baton_api").beat("tick")
