"""The steps of page ingestion: read, look at the catalogue, decide; the relay commits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import ValidationError

from shared.kernel.catalogue import Kind, Outside
from shared.kernel.decide import Limits
from shared.kernel.errors import Later, Permanent, Refused, Transient
from shared.kernel.model import Continue, Decision, Effect, Finish, NewLane, NewRun, Run, Starting, Turn
from shared.kernel.ports import Tx
from shared.page_ingest import decide, store
from shared.page_ingest.model import (
    KIND,
    SMALLEST_PAGE,
    AuditCursor,
    ConsolidateCursor,
    CrawlCursor,
    IngestParams,
    PlanCursor,
)
from shared.page_ingest.ports import Page, PageTooBig, TokenExpired, Upstream
from shared.page_ingest.ports import Ports as IngestPorts

TOKEN_BEING_FETCHED_S = 2.0
CONSOLIDATE_BATCH = 1_000


def start(tx: Tx, starting: Starting) -> NewRun:
    """A run begins with the lane that divides the price range."""
    try:
        wanted = IngestParams.model_validate(dict(starting.params))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'params'}: {e['msg']}" for e in error.errors()[:5])
        raise Refused("bad_params", problems) from None
    if wanted.connection is not None:
        connection = tx.find_connection(starting.tenant_id, wanted.source, wanted.connection)
        if connection is None:
            raise Refused("unknown_connection", f"connection: there is none of this id or name to {wanted.source}.")
        wanted = wanted.model_copy(update={"connection": str(connection)})
    plan = NewLane(key="plan", cursor=PlanCursor(todo=[(wanted.low, wanted.high)]).to_json())
    return NewRun(
        params=wanted.model_dump(mode="json", exclude_none=True), lanes=[plan], time_limit_s=wanted.time_limit_s,
        label=f"{wanted.source} {wanted.low}-{wanted.high}",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageIngest:
    ports: IngestPorts

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        params = IngestParams.model_validate(dict(turn.params))
        if turn.key.startswith("consolidate:"):
            return self._consolidate(turn, params)
        upstream = self.ports.upstream(params.source, turn, outside.time_left_s)
        known = self.ports.store.look_up(turn, params.account)
        if known.token is None and not known.ours:
            raise Later(TOKEN_BEING_FETCHED_S, "a token that another step is fetching")
        token = known.token or self._new_token(turn, params.account, upstream)
        try:
            return self._look(turn, params, Asked(upstream, token), known.page_size)
        except TokenExpired:
            self.ports.store.forget_token(turn, params.account, token)
            raise

    def _new_token(self, turn: Turn, account: str, upstream: Upstream) -> str:
        """The token that all steps of the tenant with this account share: one of them fetches it, the others wait."""
        try:
            token = upstream.authenticate()
        except Exception:
            self.ports.store.give_up_token(turn, account)
            raise
        self.ports.store.save_token(turn, account, token)
        return token.value

    def _look(self, turn: Turn, params: IngestParams, asked: Asked, page_size: int | None) -> Decision:
        match turn.key.partition(":")[0]:
            case "plan":
                return _plan(PlanCursor.read(turn.cursor), params, asked)
            case "part":
                return _crawl(CrawlCursor.read(turn.cursor), params, asked, page_size)
            case "audit":
                return _audit(AuditCursor.read(turn.cursor), asked)
            case _:
                raise Permanent(f"there is no lane {turn.key} in page ingestion", "unknown_lane")

    def _consolidate(self, turn: Turn, params: IngestParams) -> Decision:
        """A bounded batch of the run's rows; then, in a complete run, batches of what it did not see."""
        cursor = ConsolidateCursor(**turn.cursor)
        upto = self.ports.store.batch_ends_at(turn, cursor.after, CONSOLIDATE_BATCH)
        if upto is not None:
            effect = Effect(store.CONSOLIDATE, {"after": cursor.after, "upto": upto})
            return Continue(cursor=cursor.but(after=upto).to_json(), effects=[effect])
        if not cursor.complete:
            return Finish()
        cents = (params.low * 100, params.high * 100)
        upto = self.ports.store.gone_ends_at(turn, params.source, cents, cursor.gone_after, CONSOLIDATE_BATCH)
        if upto is None:
            return Finish()
        effect = store.mark_gone(params.source, cents, cursor.gone_after, upto)
        return Continue(cursor=cursor.but(gone_after=upto).to_json(), effects=[effect])


@dataclass(frozen=True, slots=True)
class Asked:
    """An upstream with the token for this step."""

    upstream: Upstream
    token: str

    def count(self, low: int, high: int) -> int:
        return self.upstream.count(self.token, decide.prices(low, high))

    def page(self, cursor: CrawlCursor, offset: int, limit: int) -> Page:
        return self.upstream.page(self.token, cursor.prices, offset, limit)


def _plan(cursor: PlanCursor, params: IngestParams, asked: Asked) -> Decision:
    """A few probes; those before a failure count."""
    if cursor.planned:  # a lane that was done and is restarted in its place
        return Finish()
    for probes in range(decide.PROBES_PER_STEP):
        if not cursor.todo:
            lanes = decide.planned_lanes(cursor, params.page_size)
            return Finish(lanes=lanes, cursor=replace(cursor, planned=True).to_json())
        low, high = cursor.todo[0]
        try:
            count = asked.count(low, high)
        except Transient as error:
            if not probes or isinstance(error, TokenExpired):
                raise
            break
        cursor = decide.probed(cursor, low, high, count, params.partition_records)
        if len(cursor.parts) > decide.MOST_PARTITIONS:
            most = f"more than {decide.MOST_PARTITIONS} partitions: raise partition_records"
            raise Permanent(most, "too_many_partitions")
    return Continue(cursor=cursor.to_json())


def _crawl(cursor: CrawlCursor, params: IngestParams, asked: Asked, page_size: int | None) -> Decision:
    """One page of one partition."""
    if cursor.split:  # as a plan that is restarted: others do its work
        return Finish()
    if cursor.counted is None:
        cursor = cursor.but(counted=asked.count(cursor.low, cursor.high))
    asked_at, limit = decide.page_request(cursor, page_size)
    try:
        page = asked.page(cursor, asked_at, limit)
    except PageTooBig:
        return _ask_for_less(cursor, params, limit)
    wants_count = decide.wants_count(cursor, page, limit, params)
    count = asked.count(cursor.low, cursor.high) if wants_count else None
    effect, rows = store.upsert_page(params.source, page.items)
    cursor = decide.after_page(cursor, page, asked_at, limit, count)
    if decide.crawl_ended(cursor, count):
        ended = cursor.but(clean=decide.is_clean(cursor, count))
        return Finish(effects=[effect], rows=rows, cursor=ended.to_json())
    if decide.must_split(cursor, params, count):
        lanes = decide.halves(cursor)
        return Finish(effects=[effect], rows=rows, lanes=lanes, cursor=cursor.but(split=True).to_json())
    if decide.is_endless(cursor, count):
        raise Permanent(f"pages do not end: {cursor.offset} rows where {count} are counted", "endless")
    after_s = decide.CONFIRM_AFTER_S if cursor.empties else 0.0
    return Continue(cursor=cursor.to_json(), effects=[effect], rows=rows, after_s=after_s)


def _ask_for_less(cursor: CrawlCursor, params: IngestParams, limit: int) -> Decision:
    smaller = limit // 2
    if smaller < SMALLEST_PAGE:
        raise Transient(f"the upstream cannot answer even {limit} records", "page_too_big")
    remember = Effect(store.REMEMBER_PAGE_SIZE, {"upstream": params.account, "page_size": smaller})
    return Continue(cursor=cursor.but(limit=smaller).to_json(), effects=[remember])


def _audit(cursor: AuditCursor, asked: Asked) -> Decision:
    """A few partitions counted again; those before a failure count."""
    for counts in range(decide.COUNTS_PER_STEP):
        if not cursor.todo:
            return Finish(cursor=cursor.to_json())
        low, high, *_ = cursor.todo[0]
        try:
            count = asked.count(low, high)
        except Transient as error:
            if not counts or isinstance(error, TokenExpired):
                raise
            break
        cursor = decide.recounted(cursor, count)
    return Continue(cursor=cursor.to_json())


def gates(turn: Turn) -> list[str]:
    return [] if turn.key.startswith("consolidate:") else [str(turn.params["source"])]


def prune(tx: Tx, run: Run, most: int) -> int:
    return tx.apply(Effect(store.PRUNE, {"run_id": run.id, "most": most}))


def page_ingest(ports: IngestPorts, limits: Limits | None = None) -> Kind:
    return Kind(
        name=KIND,
        take_step=PageIngest(ports).take_step,
        start=start,
        settle=decide.settle,
        gates=gates,
        prune=prune,
        limits=limits or Limits(max_attempts=12),
    )
