"""The HTTP API's frame: who asks, may he, and what goes wrong as a problem document. Kinds bring their own routes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.middlewares import NextMiddleware
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.event_handler.openapi.models import HTTPBearer

from shared.kernel import auth
from shared.kernel.api.desk import Desk, Front
from shared.kernel.auth import Principal, Role
from shared.kernel.entry import Context, Event, Handler
from shared.kernel.errors import NotFound, Refused
from shared.kernel.log import logger
from shared.kernel.log_json import json_log
from shared.kernel.paging import BadCursor

API = "/api/v1"
MACHINES = "/machine"  # the same API for machine tokens: a route without the authorizer, which only knows JWTs
OLDEST_TICK_S = 180.0  # a tick comes every minute and may take most of one
LARGEST_BODY = 256 * 1024
CONFLICTS = frozenset({"already_ended", "not_ended", "not_paused", "being_canceled", "lane_ended", "too_old"})
PROBLEM = "application/problem+json"

Look = Callable[[], tuple[str | None, float | None]]
Answer = Response[str]


@dataclass
class Problem(Exception):
    """Why a request is not answered as it wished: a stable code for programs, a sentence for people."""

    status: int
    code: str
    detail: str
    more: Mapping[str, Any] | None = None


def allows(roles: frozenset[Role]) -> dict[str, Any]:
    """What a route says of who may use it: kept by the route itself, and told in the OpenAPI document."""

    def guard(app: Any, next_middleware: NextMiddleware) -> Any:
        if not desk(app).principal.may(roles):
            raise Problem(403, "not_allowed", f"This needs the role {' or '.join(sorted(roles))}.")
        return next_middleware(app)

    return {
        "middlewares": [guard],
        "security": [{"jwt": []}, {"machine": []}],
        "openapi_extensions": {"x-baton-roles": sorted(roles)},
        "responses": {
            200: {"description": "As asked"},
            **{code: {"description": text, "content": PROBLEM_SCHEMA} for code, text in REFUSALS.items()},
        },
    }


REFUSALS = {
    400: "The request cannot be read",
    401: "Nobody we know",
    403: "Not with this role, or not in this tenant",
    404: "There is no such thing, or not for you",
    409: "Its state does not allow this now",
    413: "Too large",
    422: "A field is not as it must be",
}
PROBLEM_SCHEMA: dict[str, Any] = {
    PROBLEM: {
        "schema": {
            "type": "object",
            "required": ["status", "code", "detail"],
            "properties": {
                "status": {"type": "integer"},
                "code": {"type": "string"},
                "detail": {"type": "string"},
                "fields": {"type": "array", "items": {"type": "object"}},
            },
        }
    }
}


def desk(app: Any) -> Desk:
    """What the one request at hand works with."""
    found: Desk = app.context["desk"]
    return found


def api_handler(front: Front, look: Look, newest_revision: str, routers: Sequence[Router]) -> Handler:
    """Answers HTTP requests. `look` tells the revision of the schema and the seconds since the last tick."""
    log = json_log()
    app = make_app(front, look, newest_revision, routers)

    def handler(event: Event, context: Context) -> dict[str, Any]:
        return app.resolve(_unprefixed(event), context)  # type: ignore[arg-type]

    return log.inject_lambda_context(handler, clear_state=True)


def make_app(front: Front, look: Look, newest_revision: str, routers: Sequence[Router]) -> APIGatewayHttpResolver:
    app = APIGatewayHttpResolver(enable_validation=True, json_body_deserializer=read_json, serializer=_dumps)
    app.configure_openapi(
        title="Baton",
        version="1",
        description="Long work, short functions: start runs, watch them, know why they wait, act on them.",
        security_schemes={
            "jwt": HTTPBearer(bearerFormat="JWT", description="Of the user pool, or of your OIDC issuer"),
            "machine": HTTPBearer(description=f"A machine token, under the path {MACHINES}"),
        },
    )

    def enter(app: APIGatewayHttpResolver, next_middleware: NextMiddleware) -> Response[Any]:
        event = app.current_event.raw_event
        if app.current_event.path.startswith(API):
            _refuse_unspeakable(event)
            app.append_context(desk=front.desk(_principal(event, front), _correlation(event)))  # type: ignore[no-untyped-call]
        return next_middleware(app)

    app.use(middlewares=[enter])

    @app.get("/health", include_in_schema=False, enable_validation=False)
    def health() -> Answer:
        status, report = say_health(look, newest_revision)
        return _json(status, report, "application/json")

    @app.get("/openapi.json", include_in_schema=False, enable_validation=False)
    def openapi() -> Answer:
        return Response(200, "application/json", app.get_openapi_json_schema())

    for router in routers:
        app.include_router(router, prefix=API)
    _answer_problems(app)
    return app


def _answer_problems(app: APIGatewayHttpResolver) -> None:
    def unexpected(error: Exception) -> Answer:
        logger.exception("a request failed", exc_info=error)
        return problem(500, "unexpected", "Something went wrong here; it is in the log under this request's id.")

    answers: dict[type[Exception], Callable[[Any], Answer]] = {
        Problem: lambda error: problem(error.status, error.code, error.detail, error.more),
        auth.Unknown: lambda _: _unknown(),
        auth.Elsewhere: lambda error: problem(403, error.code, error.message),
        NotFound: lambda _: problem(404, "not_found", "There is no such thing here."),
        Refused: lambda error: problem(409 if error.code in CONFLICTS else 422, error.code, error.message),
        BadCursor: lambda _: problem(
            400, "bad_cursor", "This cursor does not belong to this list and filter: begin without one."
        ),
        RequestValidationError: _invalid,
        Exception: unexpected,
    }
    for kind, answer in answers.items():
        app.exception_handler(kind)(answer)

    @app.not_found
    def _nothing_there(_: Exception) -> Answer:
        path = app.current_event.path
        others = sorted({m for route in _routes(app) if route.rule.match(path) for m in _methods(route)})
        if others:
            answer = problem(405, "method_not_allowed", f"Use {' or '.join(others)}.")
            answer.headers["Allow"] = ", ".join(others)
            return answer
        return problem(404, "not_found", "There is no such thing here.")


def _unknown() -> Answer:
    answer = problem(401, "unauthenticated", "Log in first: send a token in the header Authorization.")
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def _invalid(error: RequestValidationError) -> Answer:
    fields = [{"field": ".".join(map(str, e["loc"])), "problem": e["msg"]} for e in error.errors()[:20]]
    said = "; ".join(f"{field['field']}: {field['problem']}" for field in fields)
    return problem(422, "invalid", said, {"fields": fields})


def _routes(app: APIGatewayHttpResolver) -> list[Any]:
    return [*app._static_routes, *app._dynamic_routes]  # noqa: SLF001 - Powertools answers 404 for a known path


def _methods(route: Any) -> list[str]:
    return [route.method] if isinstance(route.method, str) else list(route.method)


def _unprefixed(event: Event) -> dict[str, Any]:
    """A machine's request is the same request; that it came through the machines' door decides how it is known."""
    path = event.get("rawPath", "")
    if not path.startswith(MACHINES + "/"):
        return dict(event)
    inner = path.removeprefix(MACHINES)
    context = dict(event["requestContext"])
    context["http"] = {**context["http"], "path": inner}
    context.pop("authorizer", None)
    return {**event, "rawPath": inner, "requestContext": {**context, "machine": True}}


def _principal(event: Mapping[str, Any], front: Front) -> Principal:
    headers = {str(name).lower(): value for name, value in (event.get("headers") or {}).items()}
    wanted = headers.get("x-tenant-id")
    if event["requestContext"].get("machine"):
        scheme, _, token = (headers.get("authorization") or "").partition(" ")
        return auth.by_machine_token(token.strip() if scheme.lower() == "bearer" else None, wanted, front.register)
    claims = ((event["requestContext"].get("authorizer") or {}).get("jwt") or {}).get("claims")
    return auth.by_claims(claims, wanted, front.register)


def _correlation(event: Mapping[str, Any]) -> str:
    return str(event["requestContext"].get("requestId") or "")


def _refuse_unspeakable(event: Mapping[str, Any]) -> None:
    """What Postgres cannot hold, or what nobody means: NUL anywhere, and bodies beyond the limit."""
    spoken = (event.get("rawPath", ""), event.get("rawQueryString", ""), *(event.get("headers") or {}).values())
    if any("\x00" in text or "%00" in text for text in spoken):
        raise Problem(400, "unreadable", "The request contains a NUL character.")
    if len(event.get("body") or "") > LARGEST_BODY:
        raise Problem(413, "too_large", f"A body may have {LARGEST_BODY} bytes.")


def read_json(text: str) -> Any:
    """A body, read strictly: valid UTF-8, no NUL, no nesting that only an attacker would write."""
    try:
        body = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        raise Problem(400, "unreadable", "The body is no JSON.") from None
    if "\\u0000" in text and "\x00" in _dumps(body).replace("\\u0000", "\x00"):
        raise Problem(400, "unreadable", "The body contains a NUL character.")
    return body


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


def problem(status: int, code: str, detail: str, more: Mapping[str, Any] | None = None) -> Answer:
    """An error as RFC 9457 has it; `code` is for programs."""
    return _json(status, {"status": status, "code": code, "detail": detail, **(more or {})}, PROBLEM)


def _json(status: int, body: Mapping[str, Any], content_type: str) -> Answer:
    return Response(status, content_type, _dumps(body), headers={"Cache-Control": "no-store"})


def _dumps(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()
