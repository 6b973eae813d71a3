"""Page ingestion over HTTP: start one with typed parameters, and watch its partitions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body
from pydantic import Field

from shared.kernel.api import runs
from shared.kernel.api.frame import creates, desk, operation
from shared.kernel.api.shapes import Cursor, Key, Limit, RunId, Told
from shared.kernel.auth import READS, STARTS
from shared.kernel.errors import NotFound
from shared.kernel.paging import USUAL_PAGE
from shared.page_ingest import store
from shared.page_ingest.model import KIND, IngestParams

router = Router()  # type: ignore[no-untyped-call]


class StartIngestion(IngestParams):
    label: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class Partition(Told):
    """One crawl of one price range, in whole dollars: low <= price < high. `split`: its halves took over."""

    key: str
    lane_id: UUID
    low: int
    high: int
    crawl: int
    status: Literal["active", "done", "failed", "canceled"]
    offset: int
    counted: int | None
    duplicates: int
    split: bool
    clean: bool
    stuck: bool
    attempts: int
    last_error: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime


class Partitions(Told):
    partitions: list[Partition]
    next: str | None


@operation(
    router, "POST", "/page-ingestions", STARTS, tag="page ingestion", answers=creates(runs.Started), refuses=[429]
)
def start_page_ingestion(asked: Annotated[StartIngestion, Body()], idempotency_key: Key = None) -> Response[str]:
    """Start to ingest a price range of a catalogue."""
    params = asked.model_dump(mode="json", exclude_none=True, exclude={"label"})
    request = b"page-ingestion:" + asked.model_dump_json().encode()
    return runs.start(desk(router), KIND, params, asked.label, idempotency_key, request)


@operation(router, "GET", "/page-ingestions/<run_id>/partitions", READS, tag="page ingestion")
def list_partitions(run_id: RunId, limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Partitions:
    """The partitions of an ingestion by price, each with how far it is."""
    here = desk(router)
    if here.one(store.IS_INGESTION, run_id=run_id) is None:
        raise NotFound
    pager = here.pager("partitions", {"run_id": run_id})
    place = pager.place(cursor)
    params = {"run_id": run_id, "most": limit + 1, **({} if place is None else {"after_key": place[0]})}
    rows = here.all(store.list_partitions(after=place is not None), **params)
    page = [Partition(**row) for row in rows[:limit]]
    return Partitions(partitions=page, next=pager.cursor([page[-1].key]) if len(rows) > limit else None)
