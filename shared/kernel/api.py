"""The HTTP API's frame: health for everybody, a problem document for whatever is not there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import orjson
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response

from shared.kernel.entry import Context, Event, Handler
from shared.kernel.log import logger
from shared.kernel.log_json import json_log

# A tick comes every minute and may take most of one.
OLDEST_TICK_S = 180.0

Look = Callable[[], tuple[str | None, float | None]]


def api_handler(look: Look, newest_revision: str) -> Handler:
    """Answers HTTP requests. `look` tells the revision of the schema and the seconds since the last tick."""
    log = json_log()
    app = APIGatewayHttpResolver()

    @app.get("/health")
    def health() -> Response[str]:
        status, report = say_health(look, newest_revision)
        return _json(status, report, "application/json")

    @app.not_found
    def nothing_there(_: Exception) -> Response[str]:
        return problem(404, "not_found", f"There is nothing at {app.current_event.path}.")

    def handler(event: Event, context: Context) -> dict[str, Any]:
        return app.resolve(dict(event), context)  # type: ignore[arg-type]

    return log.inject_lambda_context(handler, clear_state=True)


def say_health(look: Look, newest_revision: str) -> tuple[int, dict[str, Any]]:
    """200 only if work can move: the database answers, its schema is not older than the code, the tick is alive.

    Everybody may ask, so nothing is said that helps an attacker: what went wrong is in the log.
    """
    report: dict[str, Any] = {
        "ok": False,
        "database": "unreachable",
        "schema": None,
        "expected_schema": newest_revision,
    }
    try:
        revision, tick_age_s = look()
    except Exception:
        logger.exception("the database could not be asked for its health")
        return 503, report
    report |= {"database": "reachable", "schema": revision}
    report["tick_age_s"] = None if tick_age_s is None else math.floor(tick_age_s)
    is_new = revision is not None and revision >= newest_revision
    report["ok"] = is_new and tick_age_s is not None and tick_age_s <= OLDEST_TICK_S
    return (200 if report["ok"] else 503), report


def problem(status: int, code: str, detail: str) -> Response[str]:
    """An error as RFC 9457 has it; `code` is for programs."""
    return _json(status, {"status": status, "code": code, "detail": detail}, "application/problem+json")


def _json(status: int, body: dict[str, Any], content_type: str) -> Response[str]:
    headers: dict[str, str | list[str]] = {"Cache-Control": "no-store"}
    return Response(status, content_type, orjson.dumps(body).decode(), headers=headers)
