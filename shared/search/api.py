"""Saved searches over HTTP: save one, see its state and coverage, backfill, look at what was quarantined, pause a client."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Annotated, Any, Literal
from uuid import UUID

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Path, Query
from pydantic import Field

from shared.kernel import run as relay
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, creates, desk, operation
from shared.kernel.api.shapes import Asked, Because, Changes, Cursor, Done, Instant, Key, Limit, Short, Told
from shared.kernel.auth import MANAGES, READS
from shared.kernel.clock import new_id
from shared.kernel.db import jsonb
from shared.kernel.deliver import deliver
from shared.kernel.direct import Line
from shared.kernel.errors import NotFound, Refused
from shared.kernel.model import GateClosing, account_name
from shared.kernel.paging import USUAL_PAGE
from shared.kernel.params import parse
from shared.kernel.redact import redact, redact_json
from shared.kernel.store import PgTx
from shared.kernel.zones import zone_named
from shared.search import decide, store
from shared.search.model import CLIENTS, KIND, MAX_OFFERS, MAX_PAGES, Window, canonical, changes, query_key
from shared.search.parse import EARLIEST
from shared.search.sheets import store as sheet_store
from shared.search.sheets.model import CLOSES, OPENS, PROVIDER, TAB, ZONE, next_night

router = Router()  # type: ignore[no-untyped-call]
SearchId = Annotated[UUID, Path(description="The search's id")]
RecordId = Annotated[UUID, Path(description="The quarantined record's id")]
ClientName = Literal["infojobs", "adzuna"]
CompanyId = Annotated[UUID, Path(description="The company's id")]
SheetId = Annotated[UUID, Path(description="The sheet's id")]
Opinion = Literal["relevant", "irrelevant", "blocked"]
AnyClient = Annotated[str, Path(max_length=50, description="The job board: infojobs or adzuna")]
UNTIL_RESUMED_S = 10 * 366 * 86_400
CHANGEABLE = ("connection", "seed_floor", "max_pages", "max_offers", "every_s", "fresh_within_s")
MOST_SEARCHES = 10_000


class SaveSearch(Asked):
    """`seed_from`: the first day of history to read, where the client is. `every_hours`: how often the head is due."""

    name: Short
    client: ClientName
    connection: Short
    params: dict[str, Any] = Field(default_factory=dict)
    seed_from: Annotated[date, Field(ge=EARLIEST.date())]  # a year with a digit too few is two thousand years of weeks
    max_pages: Annotated[int, Field(ge=1, le=1_000)] = MAX_PAGES
    max_offers: Annotated[int, Field(ge=1, le=100_000)] = MAX_OFFERS
    every_hours: Annotated[int, Field(ge=1, le=744)] = 24
    fresh_within_hours: Annotated[int, Field(ge=1, le=2_000)] = 36


class ChangeSearch(Changes):
    """What is left out stays as it is. Other parameters are another query: it starts with a clean history."""

    params: dict[str, Any] | None = None
    connection: Short | None = None
    seed_from: Annotated[date, Field(ge=EARLIEST.date())] | None = None
    max_pages: Annotated[int, Field(ge=1, le=1_000)] | None = None
    max_offers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    every_hours: Annotated[int, Field(ge=1, le=744)] | None = None
    fresh_within_hours: Annotated[int, Field(ge=1, le=2_000)] | None = None


class Range(Told):
    start: datetime
    end: datetime


class Search(Told):
    """Its state answers: when was it last executed, did that succeed, how far back is its history read, is it running?

    `zone`: where its board is, and its days begin. `covered`: what was read to its end; `gaps`: what is missing between
    `seed_floor` and the watermark; `unclean`: windows with records in quarantine. `held_until`: its account is not asked before,
    and `held_because` says why: the board asked to wait, refused the key, or was paused.
    """

    id: UUID
    name: str
    client: ClientName
    connection: UUID
    params: dict[str, Any]
    query_key: str
    zone: str
    status: Literal["IDLE", "RUNNING", "SUCCESS", "ERROR"]
    paused: bool
    fresh: bool
    last_run_at: datetime | None
    last_success_at: datetime | None
    last_error_at: datetime | None
    last_processed_date: date | None
    consecutive_failures: int
    high_watermark: datetime | None
    seed_floor: datetime
    seed_cursor: datetime | None
    next_due_at: datetime
    held_until: datetime | None
    held_because: str | None
    history_open: bool
    problem: dict[str, Any] | None
    max_pages: int
    max_offers: int
    every_hours: int
    fresh_within_hours: int
    covered: list[Range]
    gaps: list[Range]
    unclean: list[Range]
    in_quarantine: int
    created_at: datetime


class Searches(Told):
    searches: list[Search]
    next: str | None


class Saved(Told):
    id: UUID
    query_key: str


class Change(Told):
    parameter: str
    before: Any
    after: Any


class Changed(Told):
    """`changes`: what is otherwise now. `is_another_query`: parameters are among it, and its history starts again."""

    query_key: str
    is_another_query: bool
    changes: list[Change]


class Estimate(Told):
    """By what was seen a day so far. `covered_already`: nothing of it is missing."""

    offers: int
    requests: int
    cycles: int
    covered_already: bool


class Backfill(Asked):
    start: Instant
    end: Instant


class BackfillStarted(Told):
    id: UUID
    estimate: Estimate


class Execution(Told):
    id: UUID
    run_id: UUID
    query_key: str
    purpose: Literal["head", "seed", "backfill"]
    window_from: datetime
    window_to: datetime
    status: Literal["running", "success", "failure", "stopped"]
    stop_reason: Literal["window_exhausted", "rate_limited", "cap", "error", "canceled"] | None
    started_at: datetime
    finished_at: datetime | None
    pages_fetched: int
    offers_fetched: int
    requests_count: int
    http_429_count: int
    errors_count: int
    companies_aggregated: int
    companies_failed: int
    problem: dict[str, Any] | None


class Executions(Told):
    runs: list[Execution]
    next: str | None


class Record(Told):
    id: UUID
    key: str
    problem: str
    payload: Any
    times: int
    window_from: datetime
    window_to: datetime
    first_seen_at: datetime
    seen_at: datetime
    replay_at: datetime | None


class Records(Told):
    records: list[Record]
    next: str | None


class FoundOffer(Told):
    external_id: str
    client: ClientName
    title: str
    company_id: UUID | None
    company: str | None
    location: str | None
    link: str | None
    salary: str | None
    published_at: datetime | None
    updated_at: datetime
    repost_of: str | None


class FoundOffers(Told):
    offers: list[FoundOffer]
    next: str | None


class Company(Told):
    id: UUID
    client: ClientName
    name: str
    link: str | None
    open_offers: int
    first_seen_at: datetime
    last_seen_at: datetime
    feedback: Opinion | None


class Companies(Told):
    companies: list[Company]
    next: str | None


class Client(Told):
    """`paused_until`: null: it may be asked now."""

    name: ClientName
    title: str
    zone: str
    searches: int
    paused_until: datetime | None
    reason: str | None


class Clients(Told):
    clients: list[Client]


class Feedback(Asked):
    """null: nothing is said of it any more."""

    feedback: Opinion | None


class AddSheet(Asked):
    """The sync begins between `opens` and `closes`, local times of `zone`. A window that closes no later than it opens
    closes on the next day."""

    connection: Short
    tab: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")] = TAB
    zone: Annotated[str, Field(min_length=1, max_length=64)] = ZONE
    opens: time = OPENS
    closes: time = CLOSES


class Night(Told):
    night: date
    status: Literal["waiting", "running", "synced", "failed", "missed", "canceled"]
    run_id: UUID
    opens_at: datetime
    closes_at: datetime
    rows_written: int
    rows_cleared: int
    feedback_read: int
    feedback_ignored: int
    problem: dict[str, Any] | None
    started_at: datetime | None
    finished_at: datetime | None


class Sheet(Told):
    """`nights`: the last eight, the newest first."""

    id: UUID
    connection: UUID
    tab: str
    zone: str
    opens: time
    closes: time
    created_at: datetime
    nights: list[Night]


class ListOfSheets(Told):
    sheets: list[Sheet]


class SheetAdded(Told):
    id: UUID
    run_id: UUID


# --- searches


@operation(router, "POST", "/searches", MANAGES, tag="searches", answers=creates(Saved), refuses=[409])
def save_search(asked: Annotated[SaveSearch, Body()], idempotency_key: Key = None) -> Response[str]:
    """Save a search. Its first cycle begins at once, or soon after the one before."""
    here, facts = desk(router), CLIENTS[asked.client]
    parse(facts.identity, asked.params)
    key, search_id = query_key(asked.client, asked.params), new_id()
    body, request = jsonb({"id": str(search_id), "query_key": key}), b"search:" + asked.model_dump_json().encode()
    with here.begin() as (line, tx):
        if (kept := here.once(line, idempotency_key, request)) is not None:
            return Response(kept.status, "application/json", kept.body)
        connection = _connection(here, tx, asked.client, asked.connection)
        floor = _floor(line, asked.client, asked.seed_from)
        told = {
            "tenant_id": here.tenant_id, "id": search_id, "name": asked.name, "client": asked.client,
            "connection": connection, "params": jsonb(canonical(asked.client, asked.params)), "query_key": key,
            "max_pages": asked.max_pages, "max_offers": asked.max_offers, "every_s": asked.every_hours * 3600,
            "fresh_within_s": asked.fresh_within_hours * 3600, "created_by": here.principal.actor,
            "floor": floor, "most": MOST_SEARCHES,
        }  # fmt: skip
        if not line.all(store.SAVE, told):
            if line.all(store.HAS_MOST, told):
                raise Problem(
                    409,
                    "too_many_searches",
                    f"The tenant already has {MOST_SEARCHES:,} searches, the maximum. Delete one first.",
                )
            raise Problem(409, "search_exists", "A search with this name or these parameters exists already.")
        _new_state(line, tx, here, asked.client, search_id)
        here.audit(tx, "search.create", f"search:{search_id}", after={"name": asked.name, "client": asked.client})
        dues = _begin_cycle(here, line, tx)
        here.keep(line, idempotency_key, 201, body)
    deliver(here.ports, dues)
    return Response(201, "application/json", body)


@operation(router, "GET", "/searches", READS, tag="searches")
def list_searches(limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Searches:
    """List saved searches by name, each with its state and coverage."""
    here = desk(router)
    pager = here.pager("searches", {})
    place = pager.place(cursor)
    rows = here.all(store.LIST, after="" if place is None else place[0], most=limit + 1)
    page = [_shown(row) for row in rows[:limit]]
    return Searches(searches=page, next=pager.cursor([page[-1].name]) if len(rows) > limit else None)


@operation(router, "GET", "/searches/<search_id>", READS, tag="searches")
def get_search(search_id: SearchId) -> Search:
    """Get a saved search with its state, coverage and gaps."""
    return _shown(_row(desk(router), search_id))


@operation(router, "PATCH", "/searches/<search_id>", MANAGES, tag="searches", refuses=[409])
def change_search(search_id: SearchId, asked: Annotated[ChangeSearch, Body()]) -> Changed:
    """Change a search: its parameters, account, caps, cadence or the first day of its history. It is read with the next cycle.

    Other parameters are another query, with a clean history; the answer says what differs.
    """
    here = desk(router)
    row = _row(here, search_id)
    client, others, key = row["client"], list[Any](), row["query_key"]
    if asked.params is not None:
        parse(CLIENTS[client].identity, asked.params)
        others, key = changes(client, row["params"], asked.params), query_key(client, asked.params)
    with here.begin() as (line, tx):
        given = _given(here, line, tx, client, asked)
        found = [*others, *_differing(row, given)]
        if not found:
            return Changed(query_key=key, is_another_query=False, changes=[])
        told = {"tenant_id": here.tenant_id, "id": search_id, "query_key": key}
        if line.one(store.KEY_TAKEN, told) is not None:
            raise Problem(409, "search_exists", "Another search has these parameters already.")
        if others:
            line.run(store.DEACTIVATE, told)
        params = jsonb(canonical(client, asked.params)) if asked.params is not None and others else None
        line.run(store.CHANGE, {**dict.fromkeys(CHANGEABLE), **told, **given, "params": params})
        _new_state(line, tx, here, client, search_id)
        before, after = ({each["parameter"]: each[side] for each in found} for side in ("before", "after"))
        here.audit(tx, "search.change", f"search:{search_id}", before, after)
        dues = _begin_cycle(here, line, tx)
    deliver(here.ports, dues)
    return Changed(query_key=key, is_another_query=bool(others), changes=[Change(**each) for each in found])


@operation(router, "POST", "/searches/<search_id>/pause", MANAGES, tag="searches")
def pause_search(search_id: SearchId, asked: Annotated[Because, Body()]) -> Done:
    """Pause a search: what is running ends, and nothing follows until it is resumed."""
    _switch(search_id, paused=True, reason=asked.reason)
    return Done()


@operation(router, "POST", "/searches/<search_id>/resume", MANAGES, tag="searches")
def resume_search(search_id: SearchId, asked: Annotated[Because, Body()]) -> Done:
    """Resume a paused search: it reads what it has missed."""
    _switch(search_id, paused=False, reason=asked.reason)
    return Done()


@operation(router, "DELETE", "/searches/<search_id>", MANAGES, tag="searches")
def delete_search(search_id: SearchId) -> Done:
    """Delete a search. Its offers stay; saved again, it goes on where it was."""
    here = desk(router)
    with here.begin() as (line, tx):
        told = {"tenant_id": here.tenant_id, "id": search_id}
        line.run(store.DEACTIVATE, told)
        if not line.run(store.DELETE, told):
            raise NotFound
        here.audit(tx, "search.delete", f"search:{search_id}")
    return Done()


# --- backfill


@operation(router, "GET", "/searches/<search_id>/backfill", READS, tag="searches")
def estimate_backfill(
    search_id: SearchId,
    start: Annotated[Instant, Query(description="From here on")],
    end: Annotated[Instant, Query(description="Before this")],
) -> Estimate:
    """Estimate what a backfill costs before you start it."""
    here = desk(router)
    return _estimate(here, _row(here, search_id), start, end)


@operation(router, "POST", "/searches/<search_id>/backfill", MANAGES, tag="searches", answers=creates(BackfillStarted))
def start_backfill(
    search_id: SearchId, asked: Annotated[Backfill, Body()], idempotency_key: Key = None
) -> Response[str]:
    """Read any range again, or for the first time. It moves neither the watermark nor the place of seeding."""
    here, request = desk(router), f"backfill:{search_id}:{asked.model_dump_json()}".encode()
    row = _row(here, search_id)
    estimate, backfill_id = _estimate(here, row, asked.start, asked.end), new_id()
    body = jsonb({"id": str(backfill_id), "estimate": estimate.model_dump()})
    with here.begin() as (line, tx):
        if (kept := here.once(line, idempotency_key, request)) is not None:
            return Response(kept.status, "application/json", kept.body)
        told = {
            "tenant_id": here.tenant_id,
            "id": search_id,
            "backfill_id": backfill_id,
            "lo": asked.start,
            "hi": asked.end,
        }
        line.run(store.START_BACKFILL, {**told, "created_by": here.principal.actor})
        line.run(store.HISTORY_DUE, {"tenant_id": here.tenant_id, "id": search_id})
        after = {"start": asked.start.isoformat(), "end": asked.end.isoformat()}
        here.audit(tx, "search.backfill", f"search:{search_id}", after=after)
        dues = _begin_cycle(here, line, tx)
        here.keep(line, idempotency_key, 201, body)
    deliver(here.ports, dues)
    return Response(201, "application/json", body)


# --- executions, quarantine, offers, companies


@operation(router, "GET", "/searches/<search_id>/runs", READS, tag="searches")
def list_search_runs(search_id: SearchId, limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Executions:
    """List the executions of a search, newest first, each with its counters and why it stopped."""
    here = desk(router)
    _row(here, search_id)
    pager = here.pager("search runs", {"id": search_id})
    place = pager.place(cursor)
    after = {"at": None, "after_id": None} if place is None else {"at": place[0], "after_id": place[1]}
    rows = here.all(store.EXECUTIONS, id=search_id, most=limit + 1, **after)
    page = [Execution(**row) for row in rows[:limit]]
    last = page[-1] if len(rows) > limit else None
    return Executions(
        runs=page, next=None if last is None else pager.cursor([last.started_at.isoformat(), str(last.id)])
    )


@operation(router, "GET", "/searches/<search_id>/quarantine", READS, tag="searches")
def list_quarantine(search_id: SearchId, limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Records:
    """List records that could not be read as offers, oldest first."""
    here = desk(router)
    row = _row(here, search_id)
    pager = here.pager("quarantine", {"id": search_id})
    place = pager.place(cursor)
    after = {"at": None, "after_id": None} if place is None else {"at": place[0], "after_id": place[1]}
    rows = here.all(store.QUARANTINED, id=search_id, query_key=row["query_key"], most=limit + 1, **after)
    page = [
        Record(**{**row, "payload": redact_json(row["payload"]), "problem": redact(row["problem"])})
        for row in rows[:limit]
    ]
    last = page[-1] if len(rows) > limit else None
    return Records(
        records=page, next=None if last is None else pager.cursor([last.first_seen_at.isoformat(), str(last.id)])
    )


@operation(router, "POST", "/searches/<search_id>/quarantine/<record_id>/replay", MANAGES, tag="searches")
def replay_record(search_id: SearchId, record_id: RecordId, asked: Annotated[Because, Body()]) -> Done:
    """Read a quarantined record again, with the next cycle. It stays if it still can't be read."""
    here = desk(router)
    with here.begin() as (line, tx):
        _resolve(here, line, store.REPLAY, search_id, record_id)
        here.audit(tx, "quarantine.replay", f"record:{record_id}", reason=asked.reason)
        line.run(store.DUE_NOW, {"tenant_id": here.tenant_id, "id": search_id})
        dues = _begin_cycle(here, line, tx)
    deliver(here.ports, dues)
    return Done()


@operation(router, "POST", "/searches/<search_id>/quarantine/<record_id>/accept", MANAGES, tag="searches")
def accept_record(search_id: SearchId, record_id: RecordId, asked: Annotated[Because, Body()]) -> Done:
    """Accept that a record isn't read: its window counts as clean."""
    here = desk(router)
    with here.begin() as (line, tx):
        _resolve(here, line, store.ACCEPT, search_id, record_id)
        here.audit(tx, "quarantine.accept", f"record:{record_id}", reason=asked.reason)
    return Done()


@operation(router, "GET", "/searches/<search_id>/offers", READS, tag="searches")
def list_search_offers(search_id: SearchId, limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> FoundOffers:
    """List the offers that a search has found, newest first."""
    here = desk(router)
    row = _row(here, search_id)
    pager = here.pager("search offers", {"id": search_id})
    place = pager.place(cursor)
    after = {"at": None, "after_id": ""} if place is None else {"at": place[0], "after_id": place[1]}
    rows = here.all(store.FOUND, query_key=row["query_key"], most=limit + 1, **after)
    page = [FoundOffer(**each) for each in rows[:limit]]
    last = page[-1] if len(rows) > limit else None
    return FoundOffers(
        offers=page, next=None if last is None else pager.cursor([last.updated_at.isoformat(), last.external_id])
    )


@operation(router, "GET", "/search-companies", READS, tag="searches")
def list_companies(limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Companies:
    """List the companies behind all offers, in the order in which they were first seen."""
    here = desk(router)
    pager = here.pager("companies", {})
    place = pager.place(cursor)
    after = {"at": None, "after_id": None} if place is None else {"at": place[0], "after_id": place[1]}
    rows = here.all(store.COMPANIES, most=limit + 1, **after)
    page = [Company(**each) for each in rows[:limit]]
    last = page[-1] if len(rows) > limit else None
    return Companies(
        companies=page, next=None if last is None else pager.cursor([last.first_seen_at.isoformat(), str(last.id)])
    )


@operation(router, "PUT", "/search-companies/<company_id>/feedback", MANAGES, tag="searches")
def set_company_feedback(company_id: CompanyId, asked: Annotated[Feedback, Body()]) -> Done:
    """Say whether a company is relevant. A blocked one leaves the sheet with its next sync; an unblocked one comes back."""
    here = desk(router)
    with here.begin() as (line, tx):
        which = {"tenant_id": here.tenant_id, "company_id": company_id}
        if line.one(sheet_store.KNOWN_COMPANY, which) is None:
            raise NotFound
        if asked.feedback is None:
            line.run(sheet_store.UNSAY, {**which, "said_by": here.principal.actor})
        else:
            line.all(sheet_store.SAY, {**which, "feedback": asked.feedback, "said_by": here.principal.actor})
        here.audit(tx, "company.feedback", f"company:{company_id}", after={"feedback": asked.feedback})
    return Done()


# --- sheets


@operation(router, "POST", "/search-sheets", MANAGES, tag="searches", answers=creates(SheetAdded), refuses=[409])
def add_sheet(asked: Annotated[AddSheet, Body()], idempotency_key: Key = None) -> Response[str]:
    """Keep a Google sheet filled with the companies, once a night. The first sync is in the window that is open or next."""
    here, sheet_id, request = desk(router), new_id(), b"sheet:" + asked.model_dump_json().encode()
    _checked_window(asked)
    with here.begin() as (line, tx):
        if (kept := here.once(line, idempotency_key, request)) is not None:
            return Response(kept.status, "application/json", kept.body)
        connection = tx.find_connection(here.tenant_id, PROVIDER, asked.connection)
        if connection is None:
            raise Refused("unknown_connection", f"connection: no connection to {PROVIDER} has this name or id.")
        told = {
            "id": sheet_id, "tenant_id": here.tenant_id, "connection": connection, "tab": asked.tab, "zone": asked.zone,
            "opens": asked.opens.isoformat(), "closes": asked.closes.isoformat(), "created_by": here.principal.actor,
        }  # fmt: skip
        rows = line.all(sheet_store.ADD, told)
        if not rows:
            raise Problem(409, "sheet_exists", "This tab of this connection is kept already.")
        sheet_id = rows[0]["id"]
        here.audit(tx, "sheet.create", f"sheet:{sheet_id}", after={"connection": str(connection), "tab": asked.tab})
        params = {"sheet": str(sheet_id)}
        started = relay.create_run(tx, here.ports, here.kinds[KIND], here.tenant_id, params, here.by())
        dues = _move_night(here, line, tx, asked, started.run_id) if started.already else list(started.dues)
        body = jsonb({"id": str(sheet_id), "run_id": str(started.run_id)})
        here.keep(line, idempotency_key, 201, body)
    deliver(here.ports, dues)
    return Response(201, "application/json", body)


@operation(router, "GET", "/search-sheets", READS, tag="searches")
def list_sheets() -> ListOfSheets:
    """List the sheets, each with its last nights and how they went."""
    return ListOfSheets(sheets=[Sheet(**row) for row in desk(router).all(sheet_store.LIST)])


@operation(router, "DELETE", "/search-sheets/<sheet_id>", MANAGES, tag="searches")
def remove_sheet(sheet_id: SheetId) -> Done:
    """Stop keeping a sheet. What is in it stays."""
    here = desk(router)
    with here.begin() as (line, tx):
        if not line.run(sheet_store.REMOVE, {"tenant_id": here.tenant_id, "id": sheet_id}):
            raise NotFound
        here.audit(tx, "sheet.delete", f"sheet:{sheet_id}")
    return Done()


# --- clients


@operation(router, "GET", "/search-clients", READS, tag="searches")
def list_search_clients() -> Clients:
    """List the job boards, how many searches use each, and whether one is paused."""
    known = {row["client"]: row for row in desk(router).all(store.CLIENTS)}
    return Clients(
        clients=[
            Client(
                name=each.name,  # type: ignore[arg-type]
                title=each.title,
                zone=each.zone,
                searches=known.get(each.name, {}).get("searches", 0),
                paused_until=known.get(each.name, {}).get("paused_until"),
                reason=known.get(each.name, {}).get("reason"),
            )
            for each in CLIENTS.values()
        ]
    )


@operation(router, "POST", "/search-clients/<client>/pause", MANAGES, tag="searches")
def pause_search_client(client: AnyClient, asked: Annotated[Because, Body()]) -> Done:
    """Pause a job board: none of its searches is executed until you resume it."""
    here = desk(router)
    if client not in CLIENTS:
        raise NotFound
    with here.begin() as (line, tx):
        for row in line.all(store.ACCOUNTS, {"tenant_id": here.tenant_id, "client": client}):
            why = redact(asked.reason) or "Paused by hand."
            closing = GateClosing(key=row["account"], shared=False, retry_after_s=UNTIL_RESUMED_S, reason=why)
            tx.close_gate(here.tenant_id, closing)
        here.audit(tx, "search_client.pause", f"search-client:{client}", reason=asked.reason)
    return Done()


@operation(router, "POST", "/search-clients/<client>/resume", MANAGES, tag="searches")
def resume_search_client(client: AnyClient, asked: Annotated[Because, Body()]) -> Done:
    """Resume a job board, whoever paused it: you, a rate limit, or refused access."""
    here = desk(router)
    if client not in CLIENTS:
        raise NotFound
    with here.begin() as (line, tx):
        for row in line.all(store.ACCOUNTS, {"tenant_id": here.tenant_id, "client": client}):
            tx.open_gate(here.tenant_id, row["account"])
        line.run(store.CLIENT_DUE, {"tenant_id": here.tenant_id, "client": client})
        here.audit(tx, "search_client.resume", f"search-client:{client}", reason=asked.reason)
        dues = _begin_cycle(here, line, tx)
    deliver(here.ports, dues)
    return Done()


# --- what several of them do


def _checked_window(asked: AddSheet) -> None:
    """`zone` is a name that means the same everywhere, and the only one: a time may not bring another."""
    if zone_named(asked.zone) is None:
        raise Refused("unknown_timezone", f"zone: unknown time zone {asked.zone!r}. Use a name such as Europe/Madrid.")
    if asked.opens.tzinfo is not None or asked.closes.tzinfo is not None:
        raise Refused("bad_window", "opens, closes: use local times of the zone, such as 03:00, without an offset.")


def _given(here: Desk, line: Line, tx: PgTx, client: str, asked: ChangeSearch) -> dict[str, Any]:
    """What a change says beside its parameters, as it is kept."""
    given: dict[str, Any] = {}
    if asked.connection is not None:
        given["connection"] = _connection(here, tx, client, asked.connection)
    if asked.seed_from is not None:
        given["seed_floor"] = _floor(line, client, asked.seed_from)
    plain = {"max_pages": asked.max_pages, "max_offers": asked.max_offers}
    hours = {"every_s": asked.every_hours, "fresh_within_s": asked.fresh_within_hours}
    given |= {name: value for name, value in plain.items() if value is not None}
    return given | {name: value * 3600 for name, value in hours.items() if value is not None}


def _differing(row: Mapping[str, Any], given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By the names that people know, in the units that they use."""
    shown = {"every_s": ("every_hours", 3600), "fresh_within_s": ("fresh_within_hours", 3600)}
    found = []
    for name, value in given.items():
        if row[name] != value:
            word, unit = shown.get(name, (name, None))
            before, after = (
                each // unit if unit else str(each) if name in ("connection", "seed_floor") else each
                for each in (row[name], value)
            )
            found.append({"parameter": word, "before": before, "after": after})
    return found


def _connection(here: Desk, tx: PgTx, client: str, asked: str) -> UUID:
    connection = tx.find_connection(here.tenant_id, client, asked)
    if connection is None:
        raise Refused("unknown_connection", f"connection: no connection to {client} has this name or id.")
    return connection


def _floor(line: Line, client: str, seed_from: date) -> datetime:
    facts = CLIENTS[client]
    floor = decide.local_midnight(seed_from, facts.zone)
    if floor > line.all(store.NOW, {})[0]["now"]:
        said = f"seed_from: {seed_from} is in the future at {facts.title} ({facts.zone}). Use today or an earlier day."
        raise Refused("bad_range", said)
    return floor


def _new_state(line: Line, tx: PgTx, here: Desk, client: str, search_id: UUID) -> None:
    """A query that was there before goes on where it was; any other begins with nothing. A board that somebody paused is
    paused for an account that it is asked with for the first time, too."""
    (row,) = line.all(store.ONE_SAVED, {"tenant_id": here.tenant_id, "id": search_id})
    account = account_name(client, str(row["connection"]))
    paused = line.one(store.PAUSED_BY_HAND, {"tenant_id": here.tenant_id, "client": client})
    if paused is not None:
        closing = GateClosing(key=account, shared=False, retry_after_s=UNTIL_RESUMED_S, reason=paused["reason"])
        tx.close_gate(here.tenant_id, closing)
    line.run(
        store.NEW_STATE,
        {"tenant_id": here.tenant_id, "id": search_id, "account": account, "zone": CLIENTS[client].zone},
    )
    line.run(store.ADOPT, {"tenant_id": here.tenant_id, "id": search_id})


def _move_night(here: Desk, line: Line, tx: PgTx, asked: AddSheet, run_id: UUID) -> list[Any]:
    """The sheet was removed while it waited for a night: that night is in the window that it is added with."""
    which = {"tenant_id": here.tenant_id, "run_id": run_id}
    waits = line.one(sheet_store.WAITING_NIGHT, which)
    if waits is None:
        return []
    night, opens_at, closes_at = next_night(waits["now"], waits["last_night"], asked.opens, asked.closes, asked.zone)
    line.run(sheet_store.MOVE_NIGHT, {**which, "night": night, "opens_at": opens_at, "closes_at": closes_at})
    return _woken(line, tx, which)


def _woken(line: Line, tx: PgTx, which: Mapping[str, Any]) -> list[Any]:
    lane = line.one(store.WAITING_LANE, which)
    due = None if lane is None else tx.wake_lane(lane["id"])
    return [] if due is None else [due]


def _begin_cycle(here: Desk, line: Line, tx: PgTx) -> list[Any]:
    """The open cycle wakes; without one, a new one begins. Neither comes sooner than it may."""
    started = relay.create_run(tx, here.ports, here.kinds[KIND], here.tenant_id, {}, here.by())
    if not started.already:
        return list(started.dues)
    return _woken(line, tx, {"tenant_id": here.tenant_id, "run_id": started.run_id})


def _switch(search_id: UUID, *, paused: bool, reason: str) -> None:
    here = desk(router)
    dues: list[Any] = []
    with here.begin() as (line, tx):
        told = {"tenant_id": here.tenant_id, "id": search_id, "paused": paused}
        if not line.run(store.PAUSE, told):
            raise NotFound
        line.run(store.ACTIVATE, {**told, "active": not paused})
        here.audit(tx, "search.pause" if paused else "search.resume", f"search:{search_id}", reason=reason)
        if not paused:
            dues = _begin_cycle(here, line, tx)
    deliver(here.ports, dues)


def _resolve(here: Desk, line: Line, statement: Any, search_id: UUID, record_id: UUID) -> None:
    if not line.run(statement, {"tenant_id": here.tenant_id, "id": search_id, "record_id": record_id}):
        raise NotFound


def _row(here: Desk, search_id: UUID) -> Mapping[str, Any]:
    row = here.one(store.ONE, id=search_id)
    if row is None:
        raise NotFound
    return row


def _shown(row: Mapping[str, Any]) -> Search:
    told = {name: row[name] for name in Search.model_fields if name in row}
    return Search(
        **{**told, "every_hours": row["every_s"] // 3600, "fresh_within_hours": row["fresh_within_s"] // 3600}
    )


def _estimate(here: Desk, row: Mapping[str, Any], start: datetime, end: datetime) -> Estimate:
    if not start < end:
        raise Refused("bad_range", "start must be before end.")
    seen = here.one(store.SEEN, id=row["id"], lo=start, hi=end)
    assert seen is not None
    if end > seen["now"]:
        raise Refused("bad_range", "end must not be in the future.")
    offers, requests = decide.estimate_pages(Window(start, end), seen["now"], float(seen["per_day"]), row["client"])
    cycles = -(-requests // row["max_pages"])
    return Estimate(offers=offers, requests=requests, cycles=cycles, covered_already=seen["covered"])
