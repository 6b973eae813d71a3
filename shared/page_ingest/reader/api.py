"""Sources over HTTP: what is deployed and how much it can prove, trying and estimating, runs with their claims, rows, the quarantine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import sqlalchemy as sa
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Query
from pydantic import Field

from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, desk, operation, time_left_s
from shared.kernel.api.shapes import Asked, Cursor, Limit, RunId, Told, fitting
from shared.kernel.auth import READS, STARTS
from shared.kernel.clock import process_time, stopwatch
from shared.kernel.connections import Accounts
from shared.kernel.errors import NotFound, StepError
from shared.kernel.paging import USUAL_PAGE
from shared.kernel.sql import FIND_CONNECTION
from shared.kernel.vault import live_vault
from shared.page_ingest.reader.words import Moment, Name

if TYPE_CHECKING:
    from shared.page_ingest.source.compile import Compiled, CompiledResource

router = Router()  # type: ignore[no-untyped-call]
LONGEST_TRY_S = 20.0
SPARE_S = 3.0

OF_A_SOURCE = (
    "r.id = :run_id and r.tenant_id = :tenant_id and r.kind = 'page_ingest' and r.params ->> 'source' <> 'nivoda'"
)
IS_OF_A_SOURCE = sa.text(f"select r.id from run r where {OF_A_SOURCE}")  # noqa: S608 - our own words
# Rows that came so far; of a slice of parents, those of its earlier lists too.
RECEIVED = "(l.cursor ->> 'received')::bigint + coalesce((l.cursor ->> 'received_before')::bigint, 0)"
# A run of a source: the last reading of each of its partitions by resource, and what was said of each resource at the end.
SUMMARY = sa.text(f"""
select r.id, r.params ->> 'source' as source, r.params ->> 'digest' as digest, r.status, r.outcome,
       (select coalesce(jsonb_agg(to_jsonb(p) order by p.resource), '[]') from (
            select l.cursor -> 'part' ->> 'resource' as resource, count(*) as partitions,
                   count(*) filter (where l.status = 'done') as done, count(*) filter (where l.status = 'failed') as failed,
                   sum({RECEIVED}) as received, sum((l.cursor ->> 'counted')::bigint) as counted,
                   sum((l.cursor ->> 'quarantined')::bigint) as quarantined, max((l.cursor ->> 'crawl')::integer) - 1 as reread
            from (select distinct on (split_part(key, '#', 1)) status, cursor from lane
                  where run_id = r.id and tenant_id = :tenant_id and key like 'part/%'
                  order by split_part(key, '#', 1), (cursor ->> 'crawl')::integer desc) l group by 1) p) as parts,
       (select coalesce(jsonb_agg(jsonb_build_object('resource', l.cursor ->> 'resource', 'claim', l.cursor ->> 'claim',
                            'reason', l.cursor ->> 'reason', 't', l.cursor ->> 't', 'fuse', l.cursor ->> 'fuse') order by l.key), '[]')
        from lane l where l.run_id = r.id and l.tenant_id = :tenant_id and l.key like 'consolidate/' || r.epoch || '/%') as ends
from run r where {OF_A_SOURCE}
""")  # noqa: S608 - our own words


@lru_cache(maxsize=2)
def list_parts(*, after: bool) -> sa.TextClause:
    further = "and l.key > :after_key" if after else ""
    return sa.text(f"""
select l.key, l.id as lane_id, l.status, l.cursor -> 'part' ->> 'resource' as resource,
       (l.cursor ->> 'crawl')::integer as crawl, (l.cursor ->> 'pages')::bigint as pages,
       {RECEIVED} as received, (l.cursor ->> 'counted')::bigint as counted,
       (l.cursor ->> 'quarantined')::bigint as quarantined, (l.cursor ->> 'clean')::boolean as clean, l.cursor ->> 'why' as why,
       l.attempts, l.last_error, l.updated_at
from lane l where l.run_id = :run_id and l.tenant_id = :tenant_id and l.key like 'part/%' {further}
order by l.key limit :most
""")  # noqa: S608 - our own words


@lru_cache(maxsize=100)
def list_rows(table: str, columns: tuple[str, ...]) -> sa.TextClause:
    """A page of a source's table. The names are those of a compiled file."""
    named = ", ".join(f"'{name}', d.\"{name}\"" for name in columns)
    return sa.text(f"""
select d.source_key as key, d.connection, jsonb_build_object({named}) as columns, d.run_id, d.partition, d.page, d.said_at,
       d.gone_at, d.rest
from {table} d where d.tenant_id = :tenant_id and (d.connection, d.source_key) > (:after_connection, :after_key)
order by d.connection, d.source_key limit :most
""")  # noqa: S608 - as above


@lru_cache(maxsize=2)
def list_quarantined(*, after: bool) -> sa.TextClause:
    further = "and id < cast(:after_id as bigint)" if after else ""
    return sa.text(f"""
select id, source, connection, resource, key, run_id, partition, page, why, payload, at from source_quarantine
where tenant_id = :tenant_id and source = :source {further} order by id desc limit :most
""")  # noqa: S608 - our own words


class SourceResource(Told):
    """One list of a source. `claim`: the most that a run can prove, `reason`: why not more, `better`: what would help."""

    name: str
    table: str
    claim: str
    reason: str
    better: str
    windows: bool
    columns: list[str]


class SourceFile(Told):
    """A source that is deployed. `digest`: what its file means; runs are pinned to it."""

    name: str
    digest: str
    hosts: list[str]
    claim: str
    needs_connection: bool
    resources: list[SourceResource]


class Sources(Told):
    sources: list[SourceFile]


class TrySource(Asked):
    source: Name
    resource: Name | None = None
    connection: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    begin: Annotated[Moment | None, Field(alias="from")] = None
    to: Moment | None = None
    tighten: Annotated[dict[str, str | int], Field(max_length=100, default_factory=dict)]


class Tried(Told):
    """What the first pages of a list said. `unfit`: why rows do not fit their columns. Nothing was written."""

    resource: str
    partition: dict[str, Any]
    claim: str
    reason: str
    requests: int
    pages: list[dict[str, Any]]
    ended: bool
    counted: int | None
    unfit: list[str]
    rows: list[dict[str, Any]]


class EstimatedResource(Told):
    """`exact`: every partition was counted; else the rest is guessed from those that were."""

    resource: str
    claim: str
    asked: int
    partitions: int | None
    rows: int | None
    requests: int | None
    exact: bool


class Estimated(Told):
    """What a run would cost. Null: nobody knows, because nothing counts."""

    resources: list[EstimatedResource]
    requests: int | None
    minutes: float | None


class ReadResource(Told):
    """How far one list of a run is; `claim` and `reason` once it is read. `through`: up to when every change was."""

    resource: str
    partitions: int
    done: int
    failed: int
    received: int
    counted: int | None
    quarantined: int
    reread: int
    claim: str | None
    reason: str | None
    through: datetime | None
    fuse: str | None


class SourceRun(Told):
    id: UUID
    source: str
    digest: str | None
    status: str
    outcome: str | None
    resources: list[ReadResource]


class SourcePart(Told):
    """The reading of one partition. `why`: what is in the way of its proof."""

    key: str
    lane_id: UUID
    status: str
    resource: str
    crawl: int
    pages: int
    received: int
    counted: int | None
    quarantined: int
    clean: bool
    why: str | None
    attempts: int
    last_error: dict[str, Any] | None
    updated_at: datetime


class SourceParts(Told):
    partitions: list[SourcePart]
    next: str | None


class SourceRow(Told):
    """A row of a source's table, and where it comes from."""

    key: str
    connection: str
    columns: dict[str, Any]
    run_id: UUID
    partition: str
    page: int
    said_at: datetime
    gone_at: datetime | None
    rest: Any


class SourceRows(Told):
    rows: list[SourceRow]
    next: str | None


class QuarantinedRow(Told):
    """A row that does not fit its columns, as it came."""

    id: int
    source: str
    connection: str
    resource: str
    key: str
    run_id: UUID
    partition: str
    page: int
    why: str
    payload: Any
    at: datetime


class Quarantined(Told):
    rows: list[QuarantinedRow]
    next: str | None


def deployed() -> Mapping[str, Compiled]:
    from shared.page_ingest.reader import files, providers  # noqa: PLC0415 - other routes need none of it

    return providers.deployed(files.folder_of()).all()


def one_source(name: str) -> Compiled:
    found = deployed().get(name)
    if found is None:
        raise NotFound
    return found


def one_resource(compiled: Compiled, name: str) -> CompiledResource:
    found = next((each for each in compiled.resources if each.resource.name == name), None)
    if found is None:
        raise NotFound
    return found


@operation(router, "GET", "/sources", READS, tag="sources")
def list_sources() -> Sources:
    """The sources that are deployed, and how much a run of each can prove."""
    return Sources(sources=[_told(each) for _, each in sorted(deployed().items())])


def _told(compiled: Compiled) -> SourceFile:
    source = compiled.source
    return SourceFile(
        name=source.name, digest=compiled.digest, hosts=list(source.hosts), claim=compiled.claim,
        needs_connection=source.auth.way != "none" or bool(source.settings),
        resources=[
            SourceResource(
                name=each.resource.name, table=each.table, claim=each.best.claim, reason=each.best.reason,
                better=each.best.better, columns=[column.name for column in each.resource.columns],
                windows=each.resource.split is not None and each.resource.split.way == "window",
            )
            for each in compiled.resources
        ],
    )  # fmt: skip


@operation(router, "POST", "/sources/try", STARTS, tag="sources", refuses=[400])
def try_source(asked: Annotated[TrySource, Body()]) -> Tried:
    """Read the first three pages of a list, as a run would. Nothing is written."""
    from shared.page_ingest.reader.tryout import try_out  # noqa: PLC0415 - as above

    compiled = _tightened(asked)
    return Tried(
        **_asking(
            compiled,
            asked,
            lambda client: try_out(client, compiled, asked.resource, asked.begin, asked.to, process_time()),
        )
    )


@operation(router, "POST", "/sources/estimate", STARTS, tag="sources", refuses=[400])
def estimate_source(asked: Annotated[TrySource, Body()]) -> Estimated:
    """How many partitions, requests and minutes a run would take. Counts are asked for; nothing is written."""
    from shared.page_ingest.reader.tryout import estimate  # noqa: PLC0415 - as above

    compiled = _tightened(asked)
    return Estimated(
        **_asking(
            compiled, asked,
            lambda client: estimate(client, compiled, asked.begin, asked.to, process_time(), asked.resource),
        )
    )  # fmt: skip


def _tightened(asked: TrySource) -> Compiled:
    from shared.page_ingest.source.compile import compiled  # noqa: PLC0415 - as above
    from shared.page_ingest.source.tighten import Widened, tightened  # noqa: PLC0415 - as above

    found = one_source(asked.source)
    try:
        return compiled(tightened(found.source, asked.tighten), found.digest) if asked.tighten else found
    except Widened as error:
        raise Problem(400, "bad_params", f"tighten: {error}") from None


def _asking(compiled: Compiled, asked: TrySource, ask: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """What the upstream says, with the tenant's account; its refusals are the caller's to read."""
    from shared.kernel.model import account_name  # noqa: PLC0415 - as above
    from shared.page_ingest.reader import build, providers  # noqa: PLC0415 - as above

    here = desk(router)
    most_s, elapsed = min(LONGEST_TRY_S, time_left_s(router) - SPARE_S), stopwatch()
    standin = providers.Place.from_env(os.environ, providers.PREFIX).standin
    try:
        settings, secret = _account(here, compiled, asked.connection)
        client = build.client_of(
            compiled, settings, secret, gate=account_name(asked.source, asked.connection),
            time_left_s=lambda: most_s - elapsed(), standin=standin,
        )  # fmt: skip
        return ask(client)
    except StepError as error:
        raise Problem(400, "source_refused", str(error)) from None


def _account(here: Desk, compiled: Compiled, connection: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    from shared.page_ingest.reader import build, providers  # noqa: PLC0415 - as above

    source = compiled.source
    if connection is None:
        if source.auth.way != "none" or source.settings:
            raise Problem(400, "bad_params", f"connection: {source.name} needs one")
        return {}, {}
    found = here.one(FIND_CONNECTION, provider=source.name, wanted=connection)
    if found is None:
        raise Problem(400, "unknown_connection", f"connection: no connection to {source.name} has this name or id.")
    account = Accounts(here.engine, live_vault()).of(here.tenant_id, providers.provider(compiled), str(found["id"]))
    return account.settings.model_dump(), build.revealed(account.secret)


@operation(router, "GET", "/source-runs/<run_id>", READS, tag="sources")
def get_source_run(run_id: RunId) -> SourceRun:
    """A run of a source: how far each list is, and what the run claims of it and why."""
    row = desk(router).one(SUMMARY, run_id=run_id)
    if row is None:
        raise NotFound
    ends = {each["resource"]: each for each in row["ends"]}
    parts = {each["resource"]: each for each in row["parts"]}
    told = [_read(name, parts.get(name, {}), ends.get(name, {})) for name in sorted({*parts, *ends})]
    named = {name: row[name] for name in ("id", "source", "digest", "status", "outcome")}
    return SourceRun(**named, resources=told)


def _read(name: str, part: Mapping[str, Any], end: Mapping[str, Any]) -> ReadResource:
    counts: dict[str, Any] = {
        each: part.get(each) or 0 for each in ("partitions", "done", "failed", "received", "quarantined", "reread")
    }
    through = end.get("t") if end.get("claim") == "through T" else None
    said: dict[str, Any] = {each: end.get(each) for each in ("claim", "reason", "fuse")}
    at = datetime.fromisoformat(through) if through else None
    return ReadResource(resource=name, counted=part.get("counted"), through=at, **counts, **said)


@operation(router, "GET", "/source-runs/<run_id>/partitions", READS, tag="sources")
def list_source_partitions(run_id: RunId, limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> SourceParts:
    """The partitions of a source's run, each with how far it is."""
    here = desk(router)
    if here.one(IS_OF_A_SOURCE, run_id=run_id) is None:
        raise NotFound
    pager = here.pager("source-partitions", {"run_id": run_id})
    place = pager.place(cursor)
    params = {"run_id": run_id, "most": limit + 1, **({} if place is None else {"after_key": place[0]})}
    rows = here.all(list_parts(after=place is not None), **params)
    page = [SourcePart(**row) for row in rows[:limit]]
    return SourceParts(partitions=page, next=pager.cursor([page[-1].key]) if len(rows) > limit else None)


@operation(router, "GET", "/source-rows", READS, tag="sources")
def list_source_rows(
    source: Annotated[str, Query(max_length=40)], resource: Annotated[str, Query(max_length=40)],
    limit: Limit = USUAL_PAGE, cursor: Cursor = None,
) -> SourceRows:  # fmt: skip
    """The rows of a source's table by key, each with the run, the partition and the page that it comes from."""
    here = desk(router)
    each = one_resource(one_source(source), resource)
    pager = here.pager("source-rows", {"source": source, "resource": resource})
    place = pager.place(cursor) or ["", ""]
    columns = tuple(column.name for column in each.resource.columns)
    rows = here.all(
        list_rows(each.table, columns), after_connection=place[0], after_key=place[1], most=limit + 1
    )  # fmt: skip
    page = fitting(SourceRow(**row) for row in rows[:limit])
    more = len(rows) > len(page)
    return SourceRows(rows=page, next=pager.cursor([page[-1].connection, page[-1].key]) if more else None)


@operation(router, "GET", "/source-quarantine", READS, tag="sources")
def list_source_quarantine(
    source: Annotated[str, Query(max_length=40)], limit: Limit = USUAL_PAGE, cursor: Cursor = None
) -> Quarantined:
    """Rows that do not fit their columns, newest first. A run with `replay` tries them again."""
    here = desk(router)
    one_source(source)
    pager = here.pager("source-quarantine", {"source": source})
    place = pager.place(cursor)
    params = {"source": source, "most": limit + 1, **({} if place is None else {"after_id": place[0]})}
    rows = here.all(list_quarantined(after=place is not None), **params)
    page = fitting(QuarantinedRow(**row) for row in rows[:limit])
    return Quarantined(rows=page, next=pager.cursor([page[-1].id]) if len(rows) > len(page) else None)
