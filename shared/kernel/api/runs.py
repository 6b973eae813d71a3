"""Runs of every kind: start, list, look at, act. What a route may do is said beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import sqlalchemy as sa
from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Query
from pydantic import Field

from shared.kernel import db
from shared.kernel import run as relay
from shared.kernel.api import sql
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, creates, desk, operation
from shared.kernel.api.shapes import Asked, Because, Cursor, Done, Instant, Key, LaneId, Limit, RunId, Short, Told
from shared.kernel.api.state import OVERDUE, OVERDUE_SENTENCE, State, state_of
from shared.kernel.auth import READS, STARTS
from shared.kernel.catalogue import Kind
from shared.kernel.clock import read_id
from shared.kernel.db import jsonb
from shared.kernel.deliver import deliver
from shared.kernel.direct import Row
from shared.kernel.errors import NotFound
from shared.kernel.model import By
from shared.kernel.paging import LARGEST_PAGE, USUAL_PAGE
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports
from shared.kernel.redact import redact_json
from shared.kernel.undeployed import NOT_DEPLOYED, cancel_undeployed, sentence

router = Router()  # type: ignore[no-untyped-call]
T = TypeVar("T")


class Shown(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Why(Told):
    """Why nothing moves now, until when, what holds it, and which action frees it."""

    code: str
    sentence: str
    until: datetime | None
    held_by: str | None
    action: str | None


class Fix(Told):
    """What fixes an error for good, before a retry: `fix_connection` changes the account with the id `target`."""

    action: Literal["fix_connection"]
    target: str


# The upstream doesn't accept the account: trying again changes nothing until its connection is changed.
REFUSED_ACCOUNT = frozenset(
    {"bad_credentials", "token_refused", "not_connected", "connection_outdated", "ftp_login", "not_shared", "forbidden"}
)


def fix_of(code: str | None, connection: str | None) -> Fix | None:
    return Fix(action="fix_connection", target=connection) if connection and code in REFUSED_ACCOUNT else None


class Rows(Told):
    """As they were counted last; `all` of them that are known so far, null: nobody knows. `unit`: what they are, `rows` or `offers`."""

    done: int
    failed: int
    all: int | None
    unit: str


class Progress(Told):
    """`lanes_failed` is part of `lanes_ended`. `failing`: open lanes whose last attempt failed. `rows`: where its kind counts them."""

    lanes: int
    lanes_ended: int
    lanes_failed: int
    failing: int
    more_lanes: bool
    steps: int
    moved_at: datetime | None
    next_due_at: datetime | None
    rows: Rows | None


class Run(Told):
    """`status`: how far its life is. `state`: what it is doing now; only one that is running has an `eta`.

    `error.cause`: of a run that failed of its lanes, the error of most of them, and the key of one. `fingerprint`: equal for
    errors of one cause. `fix`: what to change before a retry, where that is known.
    """

    id: UUID
    kind: str
    label: str | None
    status: Shown
    state: State
    outcome: str | None
    epoch: int
    created_by: str | None
    source: str | None
    source_ref: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    cancel_requested_at: datetime | None
    error: dict[str, Any] | None
    fingerprint: str | None
    fix: Fix | None
    progress: Progress
    rate_per_minute: float | None
    eta: datetime | None
    why: Why | None


class RemoteCall(Told):
    epoch: int
    key: str
    kind: str
    remote_id: str | None
    leaves_asset: bool
    intended_at: datetime
    confirmed_at: datetime | None
    cleaned_at: datetime | None


class RunDetail(Run):
    params: dict[str, Any]
    correlation_id: str | None
    remote_calls: list[RemoteCall]


class Runs(Told):
    runs: list[Run]
    next: str | None


class Step(Told):
    epoch: int
    seq: int
    outcome: str
    rows: int
    ms: int
    at: datetime


class Lane(Told):
    """`ribbon`: its last steps, oldest first; null: not asked for."""

    id: UUID
    key: str
    holds_run: bool
    status: Literal["active", "done", "failed", "canceled"]
    epoch: int
    seq: int
    steps: int
    max_steps: int
    attempts: int
    claims: int
    next_due_at: datetime
    deadline_at: datetime | None
    last_error: dict[str, Any] | None
    fingerprint: str | None
    created_at: datetime
    updated_at: datetime
    why: Why | None
    ribbon: list[Step] | None


class Lanes(Told):
    lanes: list[Lane]
    next: str | None


class Steps(Told):
    steps: list[Step]
    next: str | None


class HistoryLine(Told):
    n: int
    epoch: int
    type: str
    data: dict[str, Any]
    at: datetime


class History(Told):
    lines: list[HistoryLine]
    next: int | None


class Reason(Told):
    """Why so many lanes wait; `until` is the earliest of theirs."""

    lanes: int
    code: str
    sentence: str
    until: datetime | None
    held_by: str | None
    action: str | None


class RestartLane(Because):
    from_start: bool = False
    dry_run: bool = False


class Restarted(Told):
    """`again`: what is done again; null: it goes on from its last step."""

    restarted: bool
    again: str | None


class WhyRun(Told):
    """`moving`: open lanes that nothing holds. `more`: there are more lanes than were looked at."""

    status: Shown
    moving: int
    reasons: list[Reason]
    more: bool


class Woken(Done):
    """`lanes`: how many waited and are due now."""

    lanes: int


class Started(Told):
    id: UUID


class StartRun(Asked):
    kind: Short
    params: dict[str, Any] = Field(default_factory=dict)
    label: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class RunFilter(Asked):
    """Which runs: all that is said must hold. The list takes the same names as query parameters."""

    kind: Annotated[str, Field(max_length=100)] | None = None
    status: Shown | None = None
    outcome: Annotated[str, Field(max_length=100)] | None = None
    label: Annotated[str, Field(max_length=200)] | None = None
    fingerprint: Annotated[str, Field(max_length=100)] | None = None
    source: Annotated[str, Field(max_length=200)] | None = None
    created_by: Annotated[str, Field(max_length=200)] | None = None
    created_from: Instant | None = None
    created_before: Instant | None = None
    finished_from: Instant | None = None
    finished_before: Instant | None = None

    def wanted(self) -> dict[str, Any]:
        """The filters that are there, by the names of `sql.FILTERS`, and their values."""
        said = {name: value for name, value in self if value is not None}
        status = said.pop("status", None)
        if status is Shown.PAUSED:
            return {**said, "paused": True}
        return said if status is None else {**said, "status": str(status)}


@operation(router, "GET", "/runs", READS, tag="runs")
def list_runs(
    kind: Annotated[str | None, Query(max_length=100)] = None,
    status: Annotated[Shown | None, Query()] = None,
    outcome: Annotated[str | None, Query(max_length=100)] = None,
    label: Annotated[str | None, Query(max_length=200)] = None,
    fingerprint: Annotated[str | None, Query(max_length=100, description="Failed runs of one cause")] = None,
    q: Annotated[str | None, Query(max_length=200, description="A part of the label or of the ID")] = None,
    state: Annotated[State | None, Query(description="What a run is doing now")] = None,
    source: Annotated[str | None, Query(max_length=200)] = None,
    created_by: Annotated[str | None, Query(max_length=200)] = None,
    created_from: Annotated[Instant | None, Query()] = None,
    created_before: Annotated[Instant | None, Query()] = None,
    finished_from: Annotated[Instant | None, Query()] = None,
    finished_before: Annotated[Instant | None, Query()] = None,
    limit: Limit = USUAL_PAGE,
    cursor: Cursor = None,
) -> Runs:
    """List runs, newest first. With `q` or `state` a page may be short or empty and still have a next one."""
    wanted = RunFilter(
        kind=kind, status=status, outcome=outcome, label=label, fingerprint=fingerprint, source=source, created_by=created_by,
        created_from=created_from, created_before=created_before, finished_from=finished_from, finished_before=finished_before,
    ).wanted()  # fmt: skip
    wanted |= _sifts(q) | _looks_at(state, wanted)
    here, pager = desk(router), desk(router).pager("runs", {**wanted, "state": state})
    wanted |= here.own()
    place = pager.place(cursor)
    params = {**wanted, "most": limit + 1}
    if place is not None:
        params |= {"after_at": place[0], "after_id": place[1]}
    rows = here.all(sql.list_runs(frozenset(wanted), after=place is not None), **params)
    found = [row for row in rows if row["id"] is not None]
    page = [Run(**shown(row)) for row in with_rows(here, found[:limit])]
    last = (page[-1].created_at, page[-1].id) if len(found) > limit else None
    if last is None and rows and rows[0].get("sifted") == sql.SIFTED:
        last = (rows[0]["last_at"], rows[0]["last_id"])  # there are more to look through
    return Runs(
        runs=[run for run in page if state is None or run.state is state],
        next=None if last is None else pager.cursor([last[0].isoformat(), str(last[1])]),
    )


def _sifts(q: str | None) -> dict[str, Any]:
    """A whole id is looked up; a part of one, or of a label, is searched for among the newest, page by page."""
    if not q or not q.strip():
        return {}
    whole = read_id(q.strip())
    escaped = q.strip().replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
    return {"id": whole} if whole is not None else {"q": f"%{escaped}%"}


def _looks_at(state: State | None, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Among which runs those of a state are: it is told of each of them, as it is now."""
    if state is None or "status" in wanted or "paused" in wanted:
        return {}
    match state:
        case State.PAUSED:
            return {"paused": True}
        case State.WAITING | State.STALLED | State.QUEUED:
            return {"open": True}
        case State.RUNNING | State.RETRYING | State.THROTTLED:
            return {"status": "running"}  # its first step made it so, however that ended
        case _:
            return {"status": str(state)}


@operation(router, "POST", "/runs", STARTS, tag="runs", answers=creates(Started, or_finds=True), refuses=[429])
def start_run(asked: Annotated[StartRun, Body()], idempotency_key: Key = None) -> Response[str]:
    """Start a run of any kind. If it exists already, the answer is 200 with its ID."""
    return start(desk(router), asked.kind, asked.params, asked.label, idempotency_key, asked.model_dump_json().encode())


def start(
    here: Desk, kind_name: str, params: dict[str, Any], label: str | None, key: str | None, request: bytes,
    told: sa.TextClause | None = None,
) -> Response[str]:  # fmt: skip
    """Start a run once per key. The run, its lanes and the answer that is kept are one transaction. `told`: what of the run
    `:run_id` is answered beside its id."""
    kind = here.kinds.get(kind_name)
    if kind is None:
        raise Problem(422, "unknown_kind", f"Unknown kind {kind_name!r}. Available: {', '.join(sorted(here.kinds))}.")
    return looking_twice(lambda: _start(here, kind, params, label, key, request, told))


def looking_twice(start: Callable[[], T]) -> T:
    """Between our look for what is open under a key and our write, somebody may retry the run that has it. The second look
    finds it."""
    try:
        return start()
    except Exception as error:
        if db.sqlstate(error) != relay.UNIQUE:
            raise
    return start()


def _start(
    here: Desk, kind: Kind, params: dict[str, Any], label: str | None, key: str | None, request: bytes,
    told: sa.TextClause | None,
) -> Response[str]:  # fmt: skip
    with here.begin() as (line, tx):
        kept = here.once(line, key, request)
        if kept is not None:
            return Response(kept.status, "application/json", kept.body)
        started = relay.create_run(tx, here.ports, kind, here.tenant_id, params, here.by(), label)
        # What is there already is answered as what it is: found, not created.
        row = None if told is None else line.one(told, {"tenant_id": here.tenant_id, "run_id": started.run_id})
        status, body = 200 if started.already else 201, jsonb({"id": str(started.run_id), **(row or {})})
        here.keep(line, key, status, body)
        point(Point.START_WRITTEN)
    point(Point.START_COMMITTED)
    deliver(here.ports, started.dues)
    return Response(status, "application/json", body)


@operation(router, "GET", "/runs/<run_id>", READS, tag="runs")
def get_run(run_id: RunId) -> RunDetail:
    """Get a run as it is now. This is the truth, whatever a stream last said."""
    here = desk(router)
    row = here.one(sql.ONE_RUN, run_id=run_id)
    if row is None:
        raise NotFound
    calls = here.all(sql.REMOTE_CALLS, run_id=run_id, most=LARGEST_PAGE)
    return RunDetail(
        **shown(*with_rows(here, [row])),
        params=redact_json(row["params"]),
        correlation_id=row["correlation_id"],
        remote_calls=[RemoteCall(**call) for call in calls],
    )


@operation(router, "GET", "/runs/<run_id>/lanes", READS, tag="runs")
def list_lanes(
    run_id: RunId,
    status: Annotated[Literal["active", "done", "failed", "canceled"] | None, Query()] = None,
    ribbon: Annotated[
        int, Query(ge=0, le=100, description="How many of its last steps to show with each; fewer on a long page")
    ] = 0,
    limit: Limit = USUAL_PAGE,
    cursor: Cursor = None,
) -> Lanes:
    """List the lanes of a run, each with the reason why it waits."""
    here, kind = _desk_of(run_id)
    pager = here.pager("lanes", {"run_id": run_id, "status": status})
    place = pager.place(cursor)
    params: dict[str, Any] = {"run_id": run_id, "most": limit + 1}
    if status is not None:
        params["status"] = status
    if place is not None:
        params["after_key"] = place[0]
    if ribbon:
        params["ribbon"] = min(ribbon, sql.MOST_STEPS_SHOWN // limit)
    asked = sql.list_lanes(with_status=status is not None, after=place is not None, with_ribbon=ribbon > 0)
    rows = here.all(asked, **params)
    page = [Lane(**_with_why(_as_deployed(here, kind, row, is_open=row["status"] == "active"))) for row in rows[:limit]]
    return Lanes(lanes=page, next=pager.cursor([page[-1].key]) if len(rows) > limit else None)


@operation(router, "GET", "/runs/<run_id>/lanes/<lane_id>/steps", READS, tag="runs")
def list_steps(run_id: RunId, lane_id: LaneId, limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Steps:
    """List the steps of a lane, newest first."""
    here = _desk_of_lane(run_id, lane_id)
    pager = here.pager("steps", {"lane_id": lane_id})
    place = pager.place(cursor)
    params: dict[str, Any] = {"lane_id": lane_id, "most": limit + 1}
    if place is not None:
        params |= {"after_epoch": place[0], "after_seq": place[1]}
    rows = here.all(sql.list_steps(after=place is not None), **params)
    page = [Step(**row) for row in rows[:limit]]
    return Steps(steps=page, next=pager.cursor([page[-1].epoch, page[-1].seq]) if len(rows) > limit else None)


@operation(router, "GET", "/runs/<run_id>/history", READS, tag="runs")
def get_history(
    run_id: RunId,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="The number of the last line you know")] = 0,
    limit: Limit = LARGEST_PAGE,
) -> History:
    """The timeline of a run: numbered events, oldest first."""
    here, _ = _desk_of(run_id)
    rows = here.all(sql.HISTORY, run_id=run_id, after=after, most=limit + 1)
    lines = [HistoryLine(**row) for row in rows[:limit]]
    return History(lines=lines, next=lines[-1].n if len(rows) > limit else None)


@operation(router, "GET", "/runs/<run_id>/why", READS, tag="runs")
def get_why(run_id: RunId) -> WhyRun:
    """Why a run waits: the causes by lanes, until when, and the action that frees them."""
    here = desk(router)
    run = here.one(sql.RUN_STATUS, run_id=run_id)
    if run is None:
        raise NotFound
    rows = here.all(sql.WHY_RUN, run_id=run_id)
    lanes = sum(row["lanes"] for row in rows)
    if run["kind"] in here.kinds:
        rows = [{**row, "action": freed_by(here, run["kind"], row["sentence"], row["action"])} for row in rows]
    elif lanes:
        rows = [{"lanes": lanes, "code": NOT_DEPLOYED, "sentence": sentence(run["kind"]), "until": None, **_CANCELS}]
    return WhyRun(
        status=run["status"],
        moving=sum(row["lanes"] for row in rows if row["code"] is None),
        reasons=[Reason(**row) for row in rows if row["code"] is not None],
        more=lanes >= sql.MOST_REASONED,
    )


@operation(router, "POST", "/runs/<run_id>/cancel", STARTS, tag="actions", refuses=[409])
def cancel(run_id: RunId, because: Annotated[Because, Body()]) -> Done:
    """Cancel a run: every lane stops at its next step, which runs now. A run whose kind isn't deployed anymore ends at once."""
    here = desk(router)
    stop(here, _name_of_kind(here, run_id), run_id, here.by(because.reason))
    return Done()


def stop(here: Desk, kind_name: str, run_id: UUID, by: By) -> None:
    kind = here.kinds.get(kind_name)
    if kind is None:
        cancel_undeployed(here.ports, kind_name, here.tenant_id, run_id, by)
    else:
        relay.cancel_run(here.ports, kind, here.tenant_id, run_id, by)


@operation(router, "POST", "/runs/<run_id>/pause", STARTS, tag="actions", refuses=[409])
def pause(run_id: RunId, because: Annotated[Because, Body()]) -> Done:
    """Pause a run: no new step starts until it is resumed."""
    return done(relay.pause_run, desk(router), run_id, because)


@operation(router, "POST", "/runs/<run_id>/resume", STARTS, tag="actions", refuses=[409])
def resume(run_id: RunId, because: Annotated[Because, Body()]) -> Done:
    """Resume a paused run. Deadlines move by the length of the pause."""
    return done(relay.resume_run, desk(router), run_id, because)


@operation(router, "POST", "/runs/<run_id>/retry", STARTS, tag="actions", refuses=[409, 429])
def retry(run_id: RunId, because: Annotated[Because, Body()]) -> Done:
    """Retry an ended run: resumes failed and canceled work from its last step.

    409 `nothing_failed`: it succeeded, and there is nothing to resume. A job that succeeded runs again.
    """
    here = desk(router)
    relay.retry_run(here.ports, _kind_of(here, run_id), here.tenant_id, run_id, here.by(because.reason))
    return Done()


@operation(router, "POST", "/runs/<run_id>/wake", STARTS, tag="actions", refuses=[409])
def wake_waiting(run_id: RunId, because: Annotated[Because, Body()]) -> Woken:
    """Run the next step of every waiting lane now. A rate limit that is closed stays closed."""
    here = desk(router)
    return Woken(lanes=relay.wake_run(here.ports, here.tenant_id, run_id, here.by(because.reason)))


@operation(router, "POST", "/runs/<run_id>/lanes/<lane_id>/wake", STARTS, tag="actions", refuses=[409])
def wake(run_id: RunId, lane_id: LaneId, because: Annotated[Because, Body()]) -> Done:
    """Run a waiting lane's next step now."""
    here = _desk_of_lane(run_id, lane_id)
    relay.wake_lane(here.ports, here.tenant_id, lane_id, here.by(because.reason))
    return Done()


@operation(router, "POST", "/runs/<run_id>/lanes/<lane_id>/restart", STARTS, tag="actions", refuses=[409])
def restart(run_id: RunId, lane_id: LaneId, asked: Annotated[RestartLane, Body()]) -> Restarted:
    """Restart one lane: from its last step, or with `from_start` from its first, where its kind can do that.

    With `dry_run` it is only told what would be done again.
    """
    here = desk(router)
    lane = here.one(sql.ONE_LANE, run_id=run_id, lane_id=lane_id)
    if lane is None:
        raise NotFound
    cursor, again = None, None
    if asked.from_start:
        kind = here.kinds.get(lane["kind"])
        found = None if kind is None else kind.from_start(lane["key"], lane["cursor"])
        if found is None:
            raise Problem(422, "no_start", f"The lane {lane['key']} can't be restarted from its start.")
        cursor, again = found
    if not asked.dry_run:
        by = here.by(asked.reason)
        relay.restart_lane(here.ports, here.tenant_id, lane_id, cursor, by, only_open=asked.from_start)
    return Restarted(restarted=not asked.dry_run, again=again)


def done(act: Callable[[Ports, UUID, UUID, By], object], here: Desk, run_id: UUID, because: Because) -> Done:
    act(here.ports, here.tenant_id, run_id, here.by(because.reason))
    return Done()


def _desk_of(run_id: UUID) -> tuple[Desk, str]:
    """And the name of its kind."""
    here = desk(router)
    return here, _name_of_kind(here, run_id)


def _desk_of_lane(run_id: UUID, lane_id: UUID) -> Desk:
    here = desk(router)
    if here.one(sql.LANE_EXISTS, run_id=run_id, lane_id=lane_id) is None:
        raise NotFound
    return here


def _name_of_kind(here: Desk, run_id: UUID) -> str:
    row = here.one(sql.RUN_KIND, run_id=run_id)
    if row is None:
        raise NotFound
    return str(row["kind"])


def _kind_of(here: Desk, run_id: UUID) -> Kind:
    name = _name_of_kind(here, run_id)
    kind = here.kinds.get(name)
    if kind is None:
        raise Problem(409, "unknown_kind", f"The kind {name!r} is not deployed here. Deploy it, then try again.")
    return kind


_CANCELS = {"held_by": None, "action": "cancel"}


def _as_deployed(here: Desk, kind: str, row: Row, *, is_open: bool) -> Row:
    """The database doesn't know which kinds are deployed, and what each of them can do: what only they know is said here."""
    if not is_open:
        return row
    if kind in here.kinds:
        return {**row, "action": freed_by(here, kind, row["why_sentence"], row["action"])}
    return {**row, "why": NOT_DEPLOYED, "why_sentence": sentence(kind), "why_until": None, **_CANCELS}


def freed_by(here: Desk, kind: str, sentence: str | None, action: str | None) -> str | None:
    """The kind's own action, if one frees what waits: waking it would have it look again, and wait again."""
    own = here.kinds[kind].freed_by
    return next((own[what] for what in own if sentence == f"Waiting for {what}."), action)


def with_rows(here: Desk, found: Sequence[Row]) -> list[Row]:
    """The same, with how far they are in rows where their kinds count some: a statement for each such kind that is there."""
    found = [_as_deployed(here, each["kind"], each, is_open=each["finished_at"] is None) for each in found]
    rows: dict[Any, Rows] = {}
    counted = set[str]()
    for name in {each["kind"] for each in found}:
        kind = here.kinds.get(name)
        if kind is not None and kind.rows is not None:
            counted.add(name)
            ids = [each["id"] for each in found if each["kind"] == name]
            for row in here.all(sa.text(kind.rows.sql), run_ids=ids):
                rows[row["run_id"]] = Rows(done=row["done"], failed=row["failed"], all=row["total"], unit=kind.counts)
    return [{**each, "rows": rows.get(each["id"]), "counts_rows": each["kind"] in counted} for each in found]


def shown(row: Any) -> dict[str, Any]:
    """A row as the fields of `Run`."""
    state = state_of(row)
    pace = _pace(row, state)
    told = {name: row[name] for name in Run.model_fields if name not in {"progress", "why", "state", "fix", *pace}}
    progress = Progress(
        lanes=row["lanes"], lanes_ended=row["lanes_ended"], lanes_failed=row["lanes_failed"], failing=row["failing"] or 0,
        more_lanes=row["lanes"] >= sql.MOST_LANES, steps=row["steps"] or 0, moved_at=row["moved_at"], next_due_at=row["next_due_at"],
        rows=row["rows"],
    )  # fmt: skip
    cause = (row["error"] or {}).get("cause") or row["error"] or {}
    fix = fix_of(cause.get("code"), row["connection"])
    return {**told, **pace, "state": state, "fix": fix, "progress": progress, "why": _why(row) or _overdue(state)}


def _with_why(row: Any) -> dict[str, Any]:
    return {**{name: row[name] for name in Lane.model_fields if name != "why"}, "why": _why(row)}


def _why(row: Any) -> Why | None:
    if row["why"] is None:
        return None
    return Why(
        code=row["why"],
        sentence=row["why_sentence"],
        until=row["why_until"],
        held_by=row["held_by"],
        action=row["action"],
    )


def _overdue(state: State) -> Why | None:
    if state is not State.STALLED:
        return None
    return Why(code=OVERDUE, sentence=OVERDUE_SENTENCE, until=None, held_by=None, action=None)


def _pace(row: Any, state: State) -> dict[str, Any]:
    """Steps per minute so far, and when what is left would be done at the pace of what is: rows, where the kind counts them
    and knows how many there are; lanes, where it counts none. (Lanes that share rows end together, with the last of them.)

    Nothing is said of a run with more lanes than were looked at: the figures would be of a part of it. A run that is held
    up, or of which any lane keeps failing, has no ETA: nothing is known about when that ends.
    """
    began, lanes, rows = row["started_at"], row["lanes"], row["rows"]
    if began is None or row["finished_at"] is not None or lanes >= sql.MOST_LANES:
        return {"rate_per_minute": None, "eta": None}
    took = row["now"] - began
    minutes = took.total_seconds() / 60
    rate = round((row["steps"] or 0) / minutes, 2) if minutes > 0 else None
    done, everything = row["lanes_ended"], lanes
    if row["counts_rows"]:
        done, everything = (rows.done + rows.failed, rows.all or 0) if rows is not None else (0, 0)
    moves = state is State.RUNNING and not row["failing"]
    eta = row["now"] + took * ((everything - done) / done) if 0 < done < everything and moves else None
    return {"rate_per_minute": rate, "eta": eta}
