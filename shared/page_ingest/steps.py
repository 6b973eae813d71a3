"""The steps of page ingestion: read, look at the catalogue, decide; the relay commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from shared.kernel.catalogue import Kind, Outside
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent, Refused
from shared.kernel.model import Continue, Decision, Effect, Finish, Json, NewLane, NewRun, Turn, Wait
from shared.kernel.ports import Tx
from shared.page_ingest import decide, store
from shared.page_ingest.model import KIND, AuditCursor, ConsolidateCursor, CrawlCursor, IngestParams, PlanCursor
from shared.page_ingest.ports import PageTooBig, TokenExpired
from shared.page_ingest.ports import Ports as IngestPorts

TOKEN_BEING_FETCHED_S = 2.0
CONSOLIDATE_BATCH = 1_000


def start(tx: Tx, tenant_id: UUID, params: Json) -> NewRun:  # noqa: ARG001 - the shape of a start
    """A run begins with the lane that divides the price range."""
    try:
        wanted = IngestParams.model_validate(dict(params), strict=False)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'params'}: {e['msg']}" for e in error.errors()[:5])
        raise Refused("bad_params", problems) from None
    plan = NewLane(key="plan", cursor=PlanCursor(todo=[(wanted.low, wanted.high)]).to_json())
    return NewRun(
        params=wanted.model_dump(mode="json", exclude_none=True), lanes=[plan], time_limit_s=wanted.time_limit_s,
        label=f"{wanted.source} {wanted.low}-{wanted.high}",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageIngest:
    ports: IngestPorts

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        params = IngestParams.model_validate(dict(turn.params), strict=False)
        if turn.key.startswith("consolidate:"):
            return self._consolidate(turn, params)
        token = self._token(turn, params, outside)
        if token is None:
            return Wait(after_s=TOKEN_BEING_FETCHED_S)
        try:
            return self._look(turn, params, token, outside)
        except TokenExpired:
            self.ports.store.forget_token(turn, params.source, token)
            raise

    def _look(self, turn: Turn, params: IngestParams, token: str, outside: Outside) -> Decision:
        match turn.key.partition(":")[0]:
            case "plan":
                return self._plan(turn, params, token, outside)
            case "part":
                return self._crawl(turn, params, token, outside)
            case "audit":
                return self._audit(turn, params, token, outside)
            case _:
                raise Permanent(f"there is no lane {turn.key} in page ingestion", "unknown_lane")

    def _token(self, turn: Turn, params: IngestParams, outside: Outside) -> str | None:
        """The token that all steps of the tenant share; one of them fetches a new one, the others wait."""
        token, ours = self.ports.store.take_token(turn, params.source)
        if token is not None or not ours:
            return token
        fetched = self.ports.upstream(params.source, turn, outside.time_left_s).authenticate()
        self.ports.store.save_token(turn, params.source, fetched)
        return fetched.value

    def _plan(self, turn: Turn, params: IngestParams, token: str, outside: Outside) -> Decision:
        cursor, upstream = PlanCursor.read(turn.cursor), self.ports.upstream(params.source, turn, outside.time_left_s)
        for _ in range(decide.PROBES_PER_STEP):
            if not cursor.todo:
                return Finish(lanes=decide.planned_lanes(cursor, params.page_size), cursor=cursor.to_json())
            low, high = cursor.todo[0]
            count = upstream.count(token, decide.prices(low, high))
            cursor = decide.probed(cursor, low, high, count, params.partition_records)
            if len(cursor.parts) > decide.MOST_PARTITIONS:
                raise Permanent(
                    f"more than {decide.MOST_PARTITIONS} partitions: raise partition_records", "too_many_partitions"
                )
        return Continue(cursor=cursor.to_json())

    def _crawl(self, turn: Turn, params: IngestParams, token: str, outside: Outside) -> Decision:
        """One page of one partition."""
        cursor, upstream = CrawlCursor.read(turn.cursor), self.ports.upstream(params.source, turn, outside.time_left_s)
        if cursor.counted is None:
            cursor = cursor.but(counted=upstream.count(token, cursor.prices))
        asked_at, limit = decide.page_request(cursor, self.ports.store.page_size(turn, params.source))
        try:
            page = upstream.page(token, cursor.prices, asked_at, limit)
        except PageTooBig:
            return self._ask_for_less(cursor, params, limit)
        effect, rows = store.upsert_page(params.source, page.items)
        cursor = decide.after_page(cursor, page, asked_at)
        if decide.must_split(cursor, params):
            halves = decide.halves(cursor, int(turn.key.partition("#")[2] or 1))
            return Finish(effects=[effect], rows=rows, lanes=halves, cursor=cursor.but(split=True).to_json())
        count = upstream.count(token, cursor.prices) if page.fetched < limit or cursor.empties else None
        if decide.crawl_ended(cursor, count):
            count = upstream.count(token, cursor.prices) if count is None else count
            ended = cursor.but(clean=decide.is_clean(cursor, count))
            return Finish(effects=[effect], rows=rows, cursor=ended.to_json())
        after_s = decide.CONFIRM_AFTER_S if cursor.empties else 0.0
        return Continue(cursor=cursor.to_json(), effects=[effect], rows=rows, after_s=after_s)

    def _ask_for_less(self, cursor: CrawlCursor, params: IngestParams, limit: int) -> Decision:
        smaller = limit // 2
        if smaller <= decide.OVERLAP:
            raise PageTooBig(f"the upstream cannot answer even {limit} records")
        remember = Effect(store.REMEMBER_PAGE_SIZE, {"upstream": params.source, "page_size": smaller})
        return Continue(cursor=cursor.but(limit=smaller).to_json(), effects=[remember])

    def _audit(self, turn: Turn, params: IngestParams, token: str, outside: Outside) -> Decision:
        cursor, upstream = AuditCursor.read(turn.cursor), self.ports.upstream(params.source, turn, outside.time_left_s)
        for _ in range(decide.COUNTS_PER_STEP):
            if not cursor.todo:
                return Finish(cursor=cursor.to_json())
            low, high, *_ = cursor.todo[0]
            cursor = decide.recounted(cursor, upstream.count(token, decide.prices(low, high)))
        return Continue(cursor=cursor.to_json())

    def _consolidate(self, turn: Turn, params: IngestParams) -> Decision:
        """A bounded batch of the run's rows; at the end, in a complete run, what it did not see is gone."""
        cursor = ConsolidateCursor(**turn.cursor)
        upto = self.ports.store.batch_ends_at(turn, cursor.after, CONSOLIDATE_BATCH)
        if upto is not None:
            effect = Effect(store.CONSOLIDATE, {"after": cursor.after, "upto": upto})
            following = ConsolidateCursor(after=upto, complete=cursor.complete)
            return Continue(cursor=following.to_json(), effects=[effect])
        if not cursor.complete:
            return Finish()
        cents = {"low_cents": params.low * 100, "high_cents": params.high * 100}
        return Finish(effects=[Effect(store.MARK_GONE, {"source": params.source, **cents})])


def gates(turn: Turn) -> list[str]:
    return [] if turn.key.startswith("consolidate:") else [str(turn.params["source"])]


def page_ingest(ports: IngestPorts, limits: Limits | None = None) -> Kind:
    ingest: Any = PageIngest(ports)
    return Kind(
        name=KIND,
        take_step=ingest.take_step,
        start=start,
        settle=decide.settle,
        gates=gates,
        limits=limits or Limits(max_attempts=12),
    )
