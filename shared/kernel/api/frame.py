"""The HTTP API's frame: who asks, may he, and what goes wrong as a problem document. Kinds bring their own routes."""

from __future__ import annotations

import base64
import binascii
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import orjson
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.middlewares import NextMiddleware
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.event_handler.openapi.models import HTTPBearer
from aws_lambda_powertools.event_handler.openapi.types import OpenAPIResponse, OpenAPIResponseHeader

from shared.kernel import auth, db
from shared.kernel.api.console import Console
from shared.kernel.api.desk import Desk, Front
from shared.kernel.auth import ANYBODY, Role, Visitor
from shared.kernel.entry import Context, Event, Handler, write_metrics
from shared.kernel.errors import Conflict, NoRoom, NotFound, Refused
from shared.kernel.log import logger
from shared.kernel.log_json import logged
from shared.kernel.paging import BadCursor
from shared.kernel.redact import redact
from shared.kernel.wrong import Wrong, problems
from shared.kernel.wrong import unknown as unknown_word

API = "/api/v1"
# The answers that need no tenant: which there are, and which may become one.
ME = f"{API}/me"
INVITATIONS = f"{ME}/invitations"
MACHINES = "/machine"  # the same API for machine tokens: a route without the authorizer, which only knows JWTs
OLDEST_TICK_S = 180.0  # a tick comes every minute and may take most of one
LARGEST_BODY = 256 * 1024
DEEPEST_BODY = 32
PROBLEM = "application/problem+json"
# In the OpenAPI document: who may use an operation, and what names of other systems' query parameters mean here.
ROLES, ELSEWHERE = "x-baton-roles", "x-baton-elsewhere"
DOCS = "/docs"
# It brings its own scripts in the page, which are somebody else's, and the console is at the same address. In a sandbox it
# has an origin of its own that is nobody's: no storage, no channel and no request of it reaches the console's session.
DOCS_GUARDS = {
    "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
# When to come back, of what goes by itself.
RETRY_AFTER_S = {"busy": 2, "no_database": 10, "no_vault": 60}

Look = Callable[[], tuple[str | None, float | None]]
Answer = Response[str]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Problem(Exception):
    """Why a request is not answered as it wished: a stable code for programs, a sentence for people."""

    status: int
    code: str
    detail: str
    more: Mapping[str, Any] | None = None
    retry_after_s: int | None = None


@dataclass
class WrongMethod(Exception):
    """The path is known, but not for this method."""

    allowed: Sequence[str]


class Never(NamedTuple):
    """A query parameter that other systems have and no operation here can keep."""

    code: str
    reason: str


BY_CURSOR = Never("by_cursor", "Lists are read by cursor: send `next` of the page before as `cursor`.")


def operation(
    router: Router,
    method: str,
    path: str,
    roles: frozenset[Role],
    *,
    tag: str,
    answers: Mapping[int, Any] | None = None,
    refuses: Iterable[int] = (),
    elsewhere: Mapping[str, str | Never] | None = None,
) -> Callable[[F], F]:
    """A route and who may use it: kept by the route itself, and told in the OpenAPI document.

    It is named for its function, and the first line of the function's docstring sums it up. `elsewhere`: what callers of other systems
    call its query parameters, each with the name here or why it is refused.
    """

    def guard(app: Any, next_middleware: NextMiddleware) -> Any:
        _refuse_who_may_not(roles)  # once more: whoever comes by a way that nobody thought of
        return next_middleware(app)

    said = answers or {200: {"description": "As asked"}}
    refusals = {code: REFUSALS[code] for code in sorted({*ALWAYS_REFUSED, *refuses})}

    def register(func: F) -> F:
        route = router.route(
            path,
            method,
            tags=[tag],
            operation_id=func.__name__,
            summary=inspect.cleandoc(func.__doc__ or "").split("\n", 1)[0],
            middlewares=[guard],
            security=[{"jwt": []}, {"machine": []}],
            openapi_extensions={ROLES: sorted(roles), **({ELSEWHERE: elsewhere} if elsewhere else {})},
            status_code=min(said),
            responses={**said, **{code: _refusal(code, text) for code, text in refusals.items()}},
        )
        return route(func)

    return register


def creates(model: type, *, or_finds: bool = False) -> dict[int, Any]:
    """What an operation answers that makes something, or finds that it was there already."""
    content = {"content": {"application/json": {"model": model}}}
    found = {200: {"description": "It already existed", **content}} if or_finds else {}
    return {201: {"description": "Created", **content}, **found}


REFUSALS = {
    400: "The request cannot be read",
    401: "Missing or invalid credentials",
    403: "Your role or tenant does not allow this",
    404: "Not found, or not visible to you",
    409: "Its current state does not allow this",
    410: "It has expired",
    413: "Too large",
    415: "A body must be JSON",
    422: "A field is invalid",
    429: "Too many at once: wait for some to end",
    503: "Busy or unreachable: try again after Retry-After",
}
ALWAYS_REFUSED = frozenset({400, 401, 403, 404, 413, 415, 422, 503})
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


RETRY_HEADER: dict[str, OpenAPIResponseHeader] = {
    "Retry-After": {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}
}


def _refusal(code: int, text: str) -> OpenAPIResponse:
    """Some the gateway answers itself, in words of its own: a token it does not know, a path it cannot read."""
    by_gateway: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}} if code in {401, 404} else {}
    said: OpenAPIResponse = {"description": text, "content": {**PROBLEM_SCHEMA, **by_gateway}}
    return {**said, "headers": RETRY_HEADER} if code == 503 else said


# Powertools keeps a request's context with the app that a router was last given to; a process may make two.
_DESK: ContextVar[Desk] = ContextVar("desk")
_VISITOR: ContextVar[Visitor] = ContextVar("visitor")
_CONTEXT: ContextVar[Context] = ContextVar("context")


def desk(_: Any) -> Desk:
    """What the one request at hand works with."""
    return _DESK.get()


def visitor(_: Any) -> Visitor:
    """Who asks, where no tenant is chosen."""
    return _VISITOR.get()


def time_left_s(_: Any) -> float:
    return float(_CONTEXT.get().get_remaining_time_in_millis()) / 1000


def api_handler(
    front: Front, look: Look, newest_revision: str, routers: Sequence[Router], console: Console | None = None
) -> Handler:
    """Answers HTTP requests. `look` tells the revision of the schema and the seconds since the last tick."""
    app = make_app(look, newest_revision, routers)

    def answer(event: Event, context: Context) -> dict[str, Any]:
        _CONTEXT.set(context)
        # Before the routes: their parameters are read before their middlewares, and nobody unknown gets that far.
        try:
            asked = _unprefixed(event)
            if console is not None and console.serves(asked):
                return console.answer(asked)
            asked = _readable(asked)
            if asked["rawPath"].startswith(API + "/"):
                _enter(front, asked)
                _refuse_other_methods(app, asked)
                route = _route_of(app, asked)
                _refuse_other_roles(route)
                asked = _by_our_names(route, asked)
        except Exception as error:
            return _raw(_answer_to(error))
        answered = app.resolve(asked, context)  # type: ignore[arg-type]
        answered["headers"].setdefault("Cache-Control", "no-store")  # somebody's own rows, for nobody in between
        if asked["rawPath"] == DOCS:
            answered["headers"] |= DOCS_GUARDS
        return answered

    def handler(event: Event, context: Context) -> dict[str, Any]:
        try:
            return copy_context().run(answer, event, context)  # whoever asked leaves nothing behind for the next
        finally:
            write_metrics(front.ports.meter)

    return logged(handler)


def _refuse_other_methods(app: APIGatewayHttpResolver, asked: Mapping[str, Any]) -> None:
    """A path that is written out belongs to its own methods alone: GET /runs/bulk asks for no run called bulk."""
    here = [route for route in app._static_routes if route.rule.match(asked["rawPath"])]  # noqa: SLF001 - as `_routes`
    methods = sorted({method for route in here for method in _methods(route)})
    if here and asked["requestContext"]["http"]["method"] not in methods:
        raise WrongMethod(methods)


def _route_of(app: APIGatewayHttpResolver, asked: Mapping[str, Any]) -> Any:
    method, path = asked["requestContext"]["http"]["method"], asked["rawPath"]
    return next((each for each in _routes(app) if method in _methods(each) and each.rule.match(path)), None)


def _refuse_other_roles(route: Any) -> None:
    """Before the request is read any further: what is wrong with it is told to nobody who may not ask."""
    _refuse_who_may_not(ANYBODY if route is None else frozenset(Role(name) for name in route.openapi_extensions[ROLES]))


def _by_our_names(route: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The query with our names for what other systems call otherwise; one of theirs without a value says nothing. What nobody
    knows is refused: a misspelt filter would otherwise answer with everything."""
    query = dict(asked.get("queryStringParameters") or {})
    if route is None or not query:
        return asked
    theirs = route.openapi_extensions.get(ELSEWHERE, {})
    for name in theirs.keys() & query.keys():
        value, ours = query.pop(name), theirs[name]
        if not value:
            continue
        if isinstance(ours, Never):
            raise Problem(422, ours.code, f"{name}: {ours.reason}")
        if ours in query:
            raise Problem(422, "invalid", f"{name} is another name for {ours}: send one of them.")
        query[ours] = value
    known = {field.alias for field in route.dependant.query_params}
    if unknown := sorted(query.keys() - known):
        raise Problem(422, "invalid", unknown_word("query parameter", unknown, sorted(known)))
    return {**asked, "queryStringParameters": query}


def _refuse_who_may_not(roles: frozenset[Role]) -> None:
    if roles != ANYBODY and not _DESK.get().principal.may(roles):
        needed = f"the role {' or '.join(sorted(roles))}" if roles else "a super admin"
        raise Problem(403, "not_allowed", f"This needs {needed}.")


def make_app(look: Look, newest_revision: str, routers: Sequence[Router]) -> APIGatewayHttpResolver:
    app = APIGatewayHttpResolver(
        enable_validation=True,
        json_body_deserializer=read_json,
        serializer=_dumps,
        response_validation_error_http_code=500,  # else an answer of ours that breaks its schema is called their fault
    )
    app.configure_openapi(
        title="Baton",
        version="1",
        description="Long work, short functions: start runs, watch them, know why they wait, act on them. "
        "Whoever belongs to several tenants says which with the header X-Tenant-Id.",
        security_schemes={
            "jwt": HTTPBearer(bearerFormat="JWT", description="Of the user pool, or of your OIDC issuer"),
            "machine": HTTPBearer(description=f"A machine token, under the path {MACHINES}"),
        },
    )

    @app.get("/health", include_in_schema=False, enable_validation=False)
    def health() -> Answer:
        status, report = say_health(look, newest_revision)
        return _json(status, report, "application/json")

    @app.get("/openapi.json", include_in_schema=False, enable_validation=False)
    def openapi() -> Answer:
        return Response(200, "application/json", app.get_openapi_json_schema())

    app.enable_swagger(path=DOCS, compress=True)  # its scripts come with the page, from nobody else

    for router in routers:
        app.include_router(router, prefix=API)
    app.exception_handler(Exception)(lambda error: _answer_to(error, app.context.get("_route")))

    @app.not_found
    def _nothing_there(_: Exception) -> Answer:
        path = app.current_event.path
        others = sorted({m for route in _routes(app) if route.rule.match(path) for m in _methods(route)})
        if others:
            return _answer_to(WrongMethod(others))
        return _answer_to(NotFound())

    return app


def _answer_to(error: Exception, route: Any = None) -> Answer:
    """What went wrong, as a problem document. `route`: whose parameters were read."""
    match error:
        case WrongMethod():
            answer = problem(405, "method_not_allowed", f"Use {' or '.join(error.allowed)}.")
            answer.headers["Allow"] = ", ".join(error.allowed)
            return answer
        case Problem():
            answer = problem(error.status, error.code, error.detail, error.more)
            if error.retry_after_s is not None:
                answer.headers["Retry-After"] = str(error.retry_after_s)
            return answer
        case auth.Unknown():
            answer = problem(
                401,
                "unauthenticated",
                "Missing or invalid credentials. Log in and send a token in the Authorization header.",
            )
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        case auth.Elsewhere():
            return problem(403, error.code, error.message)
        case NotFound():
            return problem(404, "not_found", "Not found. It doesn't exist, or you don't have access to it.")
        case Refused():
            status = 409 if isinstance(error, Conflict) else 429 if isinstance(error, NoRoom) else 422
            return problem(status, error.code, error.message)
        case BadCursor():
            return problem(400, "bad_cursor", "This cursor belongs to another list or filter. Start again without one.")
        case RequestValidationError():
            return _invalid(error, route)
        case _ if db.is_busy(error):
            logger.warning("the database is busy", exc_info=error)
            return problem(503, "busy", BUSY)
        case _ if db.is_disconnect(error):
            logger.warning("the database is away", exc_info=error)
            return problem(503, "no_database", NO_DATABASE)
        case _:
            logger.error("a request failed", exc_info=error)
            return problem(500, "unexpected", "Something went wrong. The log has the details under this request's ID.")


# Nobody promises that nothing was done: a commit may have been cut off from its answer.
AGAIN = "Try again in a few seconds; with the same Idempotency-Key nothing starts twice."
BUSY = f"The database is busy. {AGAIN}"
NO_DATABASE = f"The database can't be reached. {AGAIN}"


def _invalid(error: RequestValidationError, route: Any) -> Answer:
    """As people know the fields; whether one stood in the body or in the address, `fields` tells programs."""
    told: list[tuple[str, Wrong]] = []
    for place in ("path", "query", "header", "body"):
        here = [{**each, "loc": each["loc"][1:]} for each in error.errors() if each["loc"][:1] == (place,)]
        known = (
            {} if route is None else {each.alias: each.type_ for each in getattr(route.dependant, f"{place}_params")}
        )
        shape = next(iter(known.values()), None) if place == "body" else known
        told += [(place, each) for each in problems(here, shape, whole="The body", most=20)]
    fields = [{"field": ".".join(filter(None, (place, each.name))), "problem": each.said} for place, each in told]
    return problem(422, "invalid", " ".join(each.said for _, each in told), {"fields": fields})


def _routes(app: APIGatewayHttpResolver) -> list[Any]:
    return [*app._static_routes, *app._dynamic_routes]  # noqa: SLF001 - Powertools answers 404 for a known path


def _methods(route: Any) -> list[str]:
    return [route.method] if isinstance(route.method, str) else list(route.method)


def _unprefixed(event: Event) -> dict[str, Any]:
    """The request as our routes know it: without its stage, and without the machines' door.

    A machine's request is the same request; that it came through that door decides how it is known.
    """
    context = dict(event["requestContext"])
    stage = context.pop("stage", None)
    path = event.get("rawPath", "")
    path = path if stage in {None, "$default"} else path.removeprefix(f"/{stage}")
    if path.startswith(MACHINES + "/"):
        path = path.removeprefix(MACHINES)
        context.pop("authorizer", None)
        context["machine"] = True
    # The routes take a method in any case; who may use one is looked up by the same spelling, and found.
    method = str(context["http"]["method"]).upper()
    context |= {"stage": "$default", "http": {**context["http"], "method": method, "path": path}}
    return {**event, "rawPath": path, "requestContext": context}


WITH_A_BODY = frozenset({"POST", "PUT", "PATCH"})


def _readable(event: dict[str, Any]) -> dict[str, Any]:
    """Refuses what Postgres cannot hold or nobody means: NUL, lone surrogates, a body beyond the limit or not JSON."""
    headers = {str(name).lower(): str(value) for name, value in (event.get("headers") or {}).items()}
    asked = event.get("rawQueryString", "")
    questions = [text for pair in parse_qsl(asked, keep_blank_values=True) for text in pair]
    body = event.get("body") or ""
    if len(body) > 2 * LARGEST_BODY:  # before anything is decoded
        raise Problem(413, "too_large", f"The body is too large: at most {LARGEST_BODY:,} bytes.")
    try:
        if event.get("isBase64Encoded"):
            body = base64.b64decode(body, validate=True).decode()
        spoken = "".join((event.get("rawPath", ""), asked, *questions, *headers.values(), body))
        spoken.encode()  # a lone surrogate has no bytes
        size = len(body.encode())
    except (UnicodeError, binascii.Error):
        raise Problem(400, "unreadable", "The request is not valid UTF-8.") from None
    if "\x00" in spoken or "%00" in event.get("rawPath", ""):
        raise Problem(400, "unreadable", "The request contains a NUL character.")
    if any(ord(each) < ord(" ") for each in event.get("rawPath", "")):
        # A route takes a path with a line break at its end for itself; whoever compares paths does not.
        raise Problem(400, "unreadable", "The path contains a control character.")
    if size > LARGEST_BODY:
        raise Problem(413, "too_large", f"The body is too large: at most {LARGEST_BODY:,} bytes.")
    if body and headers.get("content-type", "application/json").partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "not_json", "Send the body as JSON, with the header Content-Type: application/json.")
    if not body and event.get("requestContext", {}).get("http", {}).get("method") in WITH_A_BODY:
        body = "{}"  # whoever has nothing to say need not say it
    read = {"body": body, "headers": {**headers, "content-type": "application/json"}} if body else {"body": None}
    return {**event, **read, "isBase64Encoded": False}


def _enter(front: Front, event: Mapping[str, Any]) -> None:
    headers = {str(name).lower(): value for name, value in (event.get("headers") or {}).items()}
    claims, token, wanted = _claims(event), _machine_token(event, headers), headers.get("x-tenant-id")
    by_token = token is not None
    if event["rawPath"] in (ME, INVITATIONS):
        known = (
            auth.visitor_by_token(token, front.register) if by_token else auth.visitor_by_claims(claims, front.register)
        )
        _VISITOR.set(known)
        return
    found = (
        auth.by_machine_token(token, wanted, front.register)
        if by_token
        else auth.by_claims(claims, wanted, front.register)
    )
    _DESK.set(front.desk(found, str(event["requestContext"].get("requestId") or "")))


def _machine_token(event: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """What came through the machines' door, `""` if nothing; None: another door."""
    if not event["requestContext"].get("machine"):
        return None
    scheme, _, token = (headers.get("authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _claims(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    claims: Mapping[str, Any] | None = ((event["requestContext"].get("authorizer") or {}).get("jwt") or {}).get(
        "claims"
    )
    return claims


def read_json(text: str) -> Any:
    """A body, read strictly: valid JSON, no NUL, no nesting that only an attacker would write."""
    try:
        body = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        raise Problem(400, "unreadable", "The body is not valid JSON.") from None
    level = [body]
    for _ in range(DEEPEST_BODY):
        level = [
            inner for each in level if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]  # fmt: skip
    if level:
        raise Problem(400, "unreadable", f"The body is nested deeper than {DEEPEST_BODY} levels.")
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
    answer = _json(status, {"status": status, "code": code, "detail": redact(detail), **(more or {})}, PROBLEM)
    if code in RETRY_AFTER_S:
        answer.headers["Retry-After"] = str(RETRY_AFTER_S[code])
    return answer


def _json(status: int, body: Mapping[str, Any], content_type: str) -> Answer:
    return Response(status, content_type, _dumps(body), headers={"Cache-Control": "no-store"})


def _dumps(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def _raw(answer: Answer) -> dict[str, Any]:
    """An answer given before there was a route for it."""
    headers = {"Content-Type": answer.headers.get("Content-Type", PROBLEM), **answer.headers}
    return {"statusCode": answer.status_code, "headers": headers, "body": answer.body, "isBase64Encoded": False}
