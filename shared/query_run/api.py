"""Remote queries over HTTP: start one, see how far it is, read its rows, see what was left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Query
from pydantic import Field

from shared.kernel import run as relay
from shared.kernel.api import runs
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, creates, desk, operation
from shared.kernel.api.shapes import Because, Cursor, Done, Key, Limit, RunId, Told
from shared.kernel.auth import READS, STARTS
from shared.kernel.clock import stopwatch
from shared.kernel.connections import Accounts
from shared.kernel.deliver import deliver, deliver_unsent
from shared.kernel.errors import NotFound, Permanent, StepError, Transient
from shared.kernel.files import S3Files
from shared.kernel.model import Due, NewLane
from shared.kernel.paging import USUAL_PAGE
from shared.kernel.tokens import Token, TokenRefused
from shared.kernel.vault import live_vault
from shared.query_run import build, store
from shared.query_run.export import TOO_LARGE, aligned
from shared.query_run.model import KIND, ExportCursor, Phase, QueryParams, Rowset, export_key, export_lane
from shared.query_run.ports import Remote

router = Router()  # type: ignore[no-untyped-call]
TOKEN_KEPT_S = 600.0
MOST_TOKENS = 200
QueryStatus = Literal["queued", "running", "ready", "failed", "canceled"]
LINK_S = 900
LARGEST_PAGE = 5_500_000  # a function answers at most 6 MB, its body as a text in JSON
PAGE_TOO_LARGE = (
    "page_too_large",
    "These rows are too large for one page. Ask for a smaller `page_size`, or download them.",
)
_tokens: dict[tuple[UUID, str], tuple[Callable[[], float], Token]] = {}


class StartQueryRun(QueryParams):
    label: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class Checks(Told):
    """What polling has counted: questions whether it still runs and how many of them said no in a row, probes for rows, reads
    of the result, and how often SOAP had said nothing new for three minutes."""

    rest_checks: int
    not_running_confirmations: int
    row_probe_attempts: int
    rowset_ready_attempts: int
    stuck_fallbacks: int


class QueryRun(Told):
    """`doing` says in words what the run is at. `columns_from`: who says what the result looks like.

    `partial_available`: rows have been seen while the query was running. They are not the result. `starts`: 2 if the first
    start was not answered and left no trace. `checks`: what polling has counted so far.
    """

    id: UUID
    status: QueryStatus
    outcome: str | None
    phase: str | None
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
    checks: Checks
    starts: int
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


class QueryRuns(Told):
    query_runs: list[QueryRun]
    next: str | None


class Download(Told):
    """`preparing`: the file is being written; ask again. `ready`: `url` downloads it until `url_expires_at`."""

    status: Literal["preparing", "ready"]
    rows: int
    rows_written: int
    url: str | None = None
    url_expires_at: datetime | None = None


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


class UnknownAsset(Told):
    """Something in Marketing Cloud that has a name as Baton makes them and belongs to no run of the tenant."""

    account: str
    kind: Literal["data_extension", "query_definition"]
    key: str
    first_seen_at: datetime
    last_seen_at: datetime


class LeftAssets(Told):
    """`assets` are removed by themselves. `unknown` ones never are: another deployment or tenant may use the account."""

    assets: list[LeftAsset]
    unknown: list[UnknownAsset]


@operation(router, "POST", "/query-runs", STARTS, tag="remote queries", answers=creates(runs.Started), refuses=[429])
def start_query_run(asked: Annotated[StartQueryRun, Body()], idempotency_key: Key = None) -> Response[str]:
    """Run a query in Marketing Cloud."""
    params = asked.model_dump(mode="json", exclude_none=True, exclude={"label"})
    request = b"query-run:" + asked.model_dump_json().encode()
    return runs.start(desk(router), KIND, params, asked.label, idempotency_key, request)


@operation(router, "GET", "/query-runs/<run_id>", READS, tag="remote queries")
def get_query_run(run_id: RunId) -> QueryRun:
    """A remote query: its status, what it is at, and how many polls it took so far."""
    return _shown(_row(desk(router), run_id))


@operation(router, "GET", "/query-runs", READS, tag="remote queries")
def list_query_runs(
    status: Annotated[QueryStatus | None, Query()] = None, limit: Limit = USUAL_PAGE, cursor: Cursor = None
) -> QueryRuns:
    """List remote queries, newest first."""
    here = desk(router)
    pager = here.pager("query-runs", {"status": status})
    wanted = here.own() | ({} if status is None else {"status": "succeeded" if status == "ready" else status})
    place = pager.place(cursor)
    params = {**wanted, "most": limit + 1}
    if place is not None:
        params |= {"after_at": place[0], "after_id": place[1]}
    rows = here.all(store.list_runs(frozenset(wanted), after=place is not None), **params)
    page = rows[:limit]
    last = page[-1] if len(rows) > limit else None
    return QueryRuns(
        query_runs=[_shown(row) for row in page],
        next=None if last is None else pager.cursor([last["created_at"].isoformat(), str(last["id"])]),
    )


@operation(router, "POST", "/query-runs/<run_id>/cancel", STARTS, tag="remote queries", refuses=[409])
def cancel_query_run(run_id: RunId, because: Annotated[Because, Body()]) -> Done:
    """Cancel a remote query: polling stops at once, and what it made is removed when it does not run any more."""
    here = desk(router)
    _row(here, run_id)
    relay.cancel_run(here.ports, here.kinds[KIND], here.tenant_id, run_id, here.by(because.reason))
    return Done()


def _shown(row: Mapping[str, Any]) -> QueryRun:
    told = {name: row[name] for name in QueryRun.model_fields if name in row}
    state = row["state"] or {}
    checks = {name: int(state.get(name) or 0) for name in Checks.model_fields}
    return QueryRun(
        **told,
        phase=state.get("phase"),
        doing=doing(row),
        starts=int(state.get("starts") or 0),
        checks=Checks(**checks),
    )


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
    row = _with_result(here, run_id)
    found = _read(here, row, page, page_size)
    if row["row_count"] not in (None, found.count):
        raise Problem(
            409, "changed", "The result is not the one that was found complete any more. Run the query again."
        )
    columns = row["columns"] or []
    names = [column["name"] for column in columns]
    rows = [dict(zip(names, aligned(names, each), strict=True)) for each in found.rows]
    if len(json.dumps(json.dumps(rows, ensure_ascii=False))) > LARGEST_PAGE:
        raise Problem(413, *PAGE_TOO_LARGE)
    return QueryRows(columns=columns, count=found.count, page=page, rows=rows)


@operation(router, "POST", "/query-runs/<run_id>/download", READS, tag="remote queries", refuses=[409, 410])
def download_query_rows(run_id: RunId) -> Download:
    """The whole result as a CSV file. The first request starts to write it; ask again until `url` is there."""
    here = desk(router)
    row = _with_result(here, run_id)
    epoch = int((row["state"] or {}).get("epoch", 1))  # which made this result; a retry may open another one meanwhile
    cursor = ExportCursor(
        target_key=row["target_key"],
        columns=[column["name"] for column in row["columns"] or []],
        rows=row["row_count"],
        until=row["results_expire_at"],
    )
    lane = _export_lane(here, run_id, export_lane(epoch), cursor)
    so_far = ExportCursor.read(lane["cursor"])
    rows = so_far.rows or 0
    if lane["status"] != "done":
        return Download(status="preparing", rows=rows, rows_written=so_far.rows_read)
    for_s = max(1, min(LINK_S, int((row["results_expire_at"] - row["now"]).total_seconds())))
    try:
        url = S3Files().link(export_key(here.tenant_id, run_id, epoch), f"query-{run_id}.csv", for_s)
    except StepError as error:
        raise Problem(503, "no_storage", str(error)) from None
    until = row["now"] + timedelta(seconds=for_s)
    return Download(status="ready", rows=rows, rows_written=rows, url=url, url_expires_at=until)


def _export_lane(here: Desk, run_id: UUID, key: str, cursor: ExportCursor) -> Mapping[str, Any]:
    """The lane that writes the file of a result. Whoever asks first makes it. One that has failed says why for a while, to
    whoever waits for it; who asks later tries again."""
    new: list[Due] = []
    restarted: Due | None = None
    with here.begin() as (line, tx):
        run = tx.lock_run(run_id, here.tenant_id)
        if run is None:
            raise NotFound
        lane = next(
            iter(line.all(store.EXPORT_LANE, {"run_id": run_id, "tenant_id": here.tenant_id, "key": key})), None
        )
        begun = {"status": "active", "cursor": cursor.to_json()}
        if lane is None:
            wanted = NewLane(key=key, cursor=cursor.to_json(), holds_run=False)
            new = relay.create_lanes(tx, run, [wanted], here.kinds[KIND], here.ports)
        elif lane["status"] not in ("active", "done"):
            if lane["failed_just_now"]:
                why = (lane["last_error"] or {}).get("message", "It was stopped.")
                raise Problem(
                    409, "not_written", f"The file could not be written: {why} You can try again in a minute."
                )
            restarted = tx.restart_lane(lane["id"], cursor.to_json())
    deliver(here.ports, new)
    deliver_unsent(here.ports, [] if restarted is None else [restarted])
    return begun if lane is None or restarted is not None else lane


def _with_result(here: Desk, run_id: UUID) -> Mapping[str, Any]:
    row = _row(here, run_id)
    if row["status"] != "ready" or row["target_key"] is None:
        raise Problem(409, "not_ready", f"The query is {row['status']}: it has no result to read.")
    if row["results_expired"]:
        when = row["results_expire_at"].isoformat()
        raise Problem(410, "results_expired", f"The result expired at {when}. Run the query again.")
    return row


@operation(router, "GET", "/query-run-assets", READS, tag="remote queries")
def list_left_assets(limit: Limit = USUAL_PAGE) -> LeftAssets:
    """What ended queries have left in Marketing Cloud, oldest first, and why it is still there."""
    here = desk(router)
    return LeftAssets(
        assets=[LeftAsset(**row) for row in here.all(store.LEFT_BEHIND, most=limit)],
        unknown=[UnknownAsset(**row) for row in here.all(store.STRAYS, most=limit)],
    )


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
        if isinstance(error, Transient) and error.code == TOO_LARGE:
            raise Problem(413, *PAGE_TOO_LARGE) from None
        raise Problem(503, "upstream_unavailable", str(error)) from None


def _with_token(tenant_id: UUID, params: QueryParams, remote: Remote, ask: Callable[[Token], Rowset]) -> Rowset:
    """A token of this process: the role of the API cannot read those of the steps. One that is refused is fetched anew, once."""
    key = (tenant_id, params.token_account)
    age_s, token = _tokens.get(key, (None, None))
    if token is not None and age_s is not None and age_s() <= min(TOKEN_KEPT_S, token.expires_in_s / 2):
        try:
            return ask(token)
        except TokenRefused:
            _tokens.pop(key, None)
    token = remote.authenticate()
    if len(_tokens) >= MOST_TOKENS:
        _tokens.clear()
    _tokens[key] = (stopwatch(), token)
    try:
        return ask(token)
    except TokenRefused:
        _tokens.pop(key, None)
        raise
