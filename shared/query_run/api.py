"""Remote queries over HTTP: start one, see how far it is, read its rows, see what was left behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Query
from pydantic import Field

from shared.kernel.api import runs
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, creates, desk, operation
from shared.kernel.api.shapes import Key, Limit, RunId, Told
from shared.kernel.auth import READS, STARTS
from shared.kernel.clock import stopwatch
from shared.kernel.connections import Accounts
from shared.kernel.errors import NotFound, Permanent, StepError
from shared.kernel.paging import USUAL_PAGE
from shared.kernel.tokens import Token, TokenRefused
from shared.kernel.vault import live_vault
from shared.query_run import build, store
from shared.query_run.model import KIND, Phase, QueryParams, Rowset
from shared.query_run.ports import Remote

router = Router()  # type: ignore[no-untyped-call]
TOKEN_KEPT_S = 600.0
MOST_TOKENS = 200
_tokens: dict[tuple[UUID, str], tuple[Callable[[], float], Token]] = {}


class StartQueryRun(QueryParams):
    label: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class QueryRun(Told):
    """`doing` says in words what the run is at. `columns_from`: who says what the result looks like.

    `partial_available`: rows have been seen while the query was running. They are not the result.
    """

    id: UUID
    status: Literal["queued", "running", "ready", "failed", "canceled"]
    outcome: str | None
    doing: str
    snippet_name: str | None
    sql_text: str
    mid: str
    eid: str | None
    connection: str | None
    task_id: str | None
    query_definition_id: str | None
    poll_started_at: datetime | None
    poll_count: int
    partial_available: bool
    warning: str | None
    columns: list[dict[str, Any]] | None
    columns_from: str | None
    note: str | None
    row_count: int | None
    results_expire_at: datetime | None
    error: dict[str, Any] | None
    created_at: datetime
    completed_at: datetime | None


class QueryRows(Told):
    """`rows` of this page; `count`: of all pages."""

    columns: list[dict[str, Any]]
    count: int
    page: int
    rows: list[dict[str, str | None]]


class LeftAsset(Told):
    """Something in Marketing Cloud that an ended run made and that is still there, or may be."""

    run_id: UUID
    epoch: int
    kind: Literal["data_extension", "query_definition"]
    remote_id: str | None
    made_at: datetime
    run_status: str
    run_outcome: str | None
    run_finished_at: datetime
    why: str


class LeftAssets(Told):
    assets: list[LeftAsset]


@operation(router, "POST", "/query-runs", STARTS, tag="remote queries", answers=creates(runs.Started), refuses=[429])
def start_query_run(asked: Annotated[StartQueryRun, Body()], idempotency_key: Key = None) -> Response[str]:
    """Run a query in Marketing Cloud."""
    params = asked.model_dump(mode="json", exclude_none=True, exclude={"label"})
    request = b"query-run:" + asked.model_dump_json().encode()
    return runs.start(desk(router), KIND, params, asked.label, idempotency_key, request)


@operation(router, "GET", "/query-runs/<run_id>", READS, tag="remote queries")
def get_query_run(run_id: RunId) -> QueryRun:
    """A remote query: its status, what it is at, and how many polls it took so far."""
    row = _row(desk(router), run_id)
    told = {name: row[name] for name in QueryRun.model_fields if name in row}
    return QueryRun(**told, doing=doing(row))


def doing(row: Mapping[str, Any]) -> str:
    """What the decision tree is at, in words."""
    if row["status"] in ("ready", "failed", "canceled"):
        return {"ready": "Ready", "failed": "Failed", "canceled": "Canceled"}[row["status"]]
    state = row["state"] or {}
    match state.get("phase"):
        case Phase.TARGET:
            return "Validating the query and creating its data extension"
        case Phase.DEFINITION:
            return "Creating the query definition"
        case Phase.START:
            return "Starting the query"
        case Phase.VERIFY:
            return f"Reading the result (attempt {state.get('rowset_ready_attempts', 0) + 1})"
        case Phase.POLL if state.get("not_running_confirmations"):
            return "Not running any more; confirming"
        case Phase.POLL if state.get("partial_available"):
            return "Running; rows are arriving"
        case Phase.POLL:
            return "Running"
        case _:
            return "Waiting for a free slot"


@operation(router, "GET", "/query-runs/<run_id>/rows", READS, tag="remote queries", refuses=[409, 410])
def list_query_rows(
    run_id: RunId,
    page: Annotated[int, Query(ge=1, le=1_000_000, description="Which page, from 1")] = 1,
    page_size: Annotated[int, Query(ge=1, le=2_500, description="Rows per page")] = 50,
) -> QueryRows:
    """The rows of a query that is ready, a page at a time, until they expire."""
    here = desk(router)
    row = _row(here, run_id)
    if row["status"] != "ready" or row["target_key"] is None:
        raise Problem(409, "not_ready", f"The query is {row['status']}: it has no result to read.")
    if row["results_expired"]:
        raise Problem(
            410,
            "results_expired",
            f"The result expired at {row['results_expire_at'].isoformat()}. Run the query again.",
        )
    found = _read(here, row, page, page_size)
    return QueryRows(
        columns=row["columns"] or [], count=found.count, page=page, rows=[dict(each) for each in found.rows]
    )


@operation(router, "GET", "/query-run-assets", READS, tag="remote queries")
def list_left_assets(limit: Limit = USUAL_PAGE) -> LeftAssets:
    """What ended queries have left in Marketing Cloud, oldest first, and why it is still there."""
    rows = desk(router).all(store.LEFT_BEHIND, most=limit)
    return LeftAssets(assets=[LeftAsset(**row) for row in rows])


def _row(here: Desk, run_id: UUID) -> Mapping[str, Any]:
    row = here.one(store.GET, run_id=run_id)
    if row is None:
        raise NotFound
    return row


def _read(here: Desk, row: Mapping[str, Any], page: int, size: int) -> Rowset:
    params = QueryParams(sql_text="rows", mid=row["mid"], connection=row["connection"])
    try:
        remote = build.remote(
            os.environ, Accounts(here.engine, live_vault()), here.tenant_id, params, here.ports.time_left_s
        )
        return _with_token(
            here.tenant_id, params, remote, lambda token: remote.rows(token, row["target_key"], page, size)
        )
    except Permanent as error:
        raise Problem(409, "not_readable", str(error)) from None
    except StepError as error:
        raise Problem(503, "upstream_unavailable", str(error)) from None


def _with_token(tenant_id: UUID, params: QueryParams, remote: Remote, ask: Callable[[Token], Rowset]) -> Rowset:
    """A token of this process, once fresh: the role of the API cannot read those of the steps."""
    key = (tenant_id, params.token_account)
    age_s, token = _tokens.get(key, (None, None))
    if token is None or age_s is None or age_s() > min(TOKEN_KEPT_S, token.expires_in_s / 2):
        token = remote.authenticate()
        if len(_tokens) >= MOST_TOKENS:
            _tokens.clear()
        _tokens[key] = (stopwatch(), token)
    try:
        return ask(token)
    except TokenRefused:
        _tokens.pop(key, None)
        raise
