"""The steps of page ingestion: read, look at the catalogue, decide; the relay commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shared.kernel.catalogue import Kind, Outside
from shared.kernel.decide import Limits
from shared.kernel.errors import Permanent, Throttled, Transient
from shared.kernel.model import (
    Continue,
    Decision,
    Effect,
    Ending,
    Finish,
    Json,
    Lane,
    NewLane,
    NewRun,
    Run,
    Settlement,
    Starting,
    Turn,
    account_name,
)
from shared.kernel.params import parse, with_connection
from shared.kernel.ports import Tx
from shared.kernel.tokens import TokenRefused
from shared.page_ingest import decide, store
from shared.page_ingest.model import (
    KIND,
    SMALLEST_PAGE,
    AuditCursor,
    ConsolidateCursor,
    CrawlCursor,
    IngestParams,
    Item,
    Page,
    PlanCursor,
    crawl_lane,
)
from shared.page_ingest.ports import Memory, PageTooBig, Upstream
from shared.page_ingest.ports import Ports as IngestPorts

if TYPE_CHECKING:
    from shared.page_ingest.reader.steps import Ports as SourcePorts

CONSOLIDATE_BATCH = 1_000


def start(tx: Tx, starting: Starting) -> NewRun:
    """A run begins with the lane that divides the price range."""
    wanted = parse(IngestParams, starting.params)
    wanted = with_connection(tx, starting.tenant_id, wanted, wanted.source)
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
        token = self.ports.tokens.of(turn, params.account, upstream.authenticate)
        asked = Asked(
            turn, params, upstream, token.value, self.ports.store, outside.time_left_s, self.ports.pages_per_step
        )
        try:
            return self._look(asked)
        finally:
            if asked.token_refused:
                self.ports.tokens.forget(turn, params.account, token)

    def _look(self, asked: Asked) -> Decision:
        turn = asked.turn
        match turn.key.partition(":")[0]:
            case "plan":
                return _plan(PlanCursor.read(turn.cursor), asked)
            case "part":
                return _crawl(CrawlCursor.read(turn.cursor), asked)
            case "audit":
                return _audit(AuditCursor.read(turn.cursor), asked)
            case _:
                raise Permanent(f"there is no lane {turn.key} in page ingestion", "unknown_lane")

    def _consolidate(self, turn: Turn, params: IngestParams) -> Decision:
        """A bounded batch of the run's rows; then, in a complete run, batches of what it did not see."""
        cursor = ConsolidateCursor(**turn.cursor)
        upto = self.ports.store.batch_ends_at(turn, cursor.after, CONSOLIDATE_BATCH)
        if upto is not None:
            effects = store.consolidate(cursor.after, upto, drops=cursor.drops)
            return Continue(cursor=cursor.but(after=upto).to_json(), effects=effects)
        if not cursor.complete:
            return Finish()
        cents = (params.low * 100, params.high * 100)
        upto = self.ports.store.gone_ends_at(turn, params.source, cents, cursor.gone_after, CONSOLIDATE_BATCH)
        if upto is None:
            return Finish()
        effect = store.mark_gone(params.source, cents, cursor.gone_after, upto)
        return Continue(cursor=cursor.but(gone_after=upto).to_json(), effects=[effect])


@dataclass(slots=True)
class Asked:
    """What one step may ask: the upstream, with a token, and the store about the lane's own rows."""

    turn: Turn
    params: IngestParams
    upstream: Upstream
    token: str
    store: Memory
    time_left_s: Callable[[], float]
    pages_per_step: int = 1
    token_refused: bool = False

    def count(self, low: int, high: int) -> int:
        with self._token_watched():
            return self.upstream.count(self.token, decide.prices(low, high))

    def page(self, cursor: CrawlCursor, offset: int, limit: int) -> Page:
        with self._token_watched():
            return self.upstream.page(self.token, cursor.prices, offset, limit)

    @contextmanager
    def _token_watched(self) -> Iterator[None]:
        try:
            yield
        except TokenRefused:
            self.token_refused = True
            raise


def _plan(cursor: PlanCursor, asked: Asked) -> Decision:
    """A few probes; those before a failure count."""
    params = asked.params
    if cursor.planned:  # a lane that was done and is restarted in its place
        return Finish()
    for probes in range(decide.PROBES_PER_STEP):
        if not cursor.todo:
            lanes = decide.planned_lanes(cursor, params.page_size)
            return Finish(lanes=lanes, cursor=replace(cursor, planned=True).to_json())
        low, high = cursor.todo[0]
        try:
            count = asked.count(low, high)
        except (Transient, Throttled) as error:
            if not probes:
                raise
            return Continue(cursor=cursor.to_json(), throttled=_only_throttled(error))
        cursor = decide.probed(cursor, low, high, count, params.partition_records)
        if len(cursor.parts) > decide.MOST_PARTITIONS:
            most = f"more than {decide.MOST_PARTITIONS} partitions: raise partition_records"
            raise Permanent(most, "too_many_partitions")
    return Continue(cursor=cursor.to_json())


def _only_throttled(error: Exception | None) -> Throttled | None:
    """What was done before the upstream asked to wait is kept, and everybody waits."""
    return error if isinstance(error, Throttled) else None


def _crawl(cursor: CrawlCursor, asked: Asked) -> Decision:
    """A page of one partition; or several, one after the other, while there is time. Those before a failure count."""
    if cursor.split:  # as a plan that is restarted: others do its work
        return Finish()
    walk = Walk(cursor, asked, began_with_s=asked.time_left_s())
    while True:
        try:
            decision = walk.next_page()
        except (Transient, Throttled) as error:
            if not walk.moved:
                raise
            return walk.so_far(throttled=_only_throttled(error))
        if decision is not None:
            return decision


@dataclass(slots=True)
class Walk:
    """The pages of one step: where they lead, and what they brought."""

    cursor: CrawlCursor
    asked: Asked
    began_with_s: float
    moved: bool = False
    trouble: Exception | None = None
    pages: int = 0
    items: dict[str, Item] = field(default_factory=dict)  # each stone once; the last one counts

    def next_page(self) -> Decision | None:
        """Read on by one page. None: there is more to do, and time for it."""
        asked, cursor = self.asked, self.cursor
        if cursor.counted is None:
            counted = asked.count(cursor.low, cursor.high)
            began = cursor.began if cursor.offset else asked.turn.seq
            cursor = self.cursor = cursor.but(counted=counted, began=began)
            self.moved = True
        asked_at, limit = decide.page_request(cursor, asked.store.page_size(asked.turn, asked.params.account))
        try:
            page = asked.page(cursor, asked_at, limit)
        except PageTooBig as error:
            # After other pages less time was left for this one: the next step tells whether it is too big by itself.
            return self.so_far() if self.pages else _ask_for_less(cursor, asked, limit, error)
        count = self._count_if_wanted(page, limit)
        if decide.must_split(cursor, asked.params, count):
            return self.so_far() if self.pages else _cut(cursor, asked)
        return self._after(page, asked_at, limit, count)

    def _after(self, page: Page, asked_at: int, limit: int, count: int | None) -> Decision | None:
        cursor = self.cursor = decide.after_page(self.cursor, page, asked_at, limit, count)
        self.items |= {item.external_id: item for item in page.items}
        self.moved = True
        self.pages += 1
        if decide.crawl_ended(cursor, count):
            stones = self.asked.store.stones_walked(self.asked.turn, cursor, list(self.items))
            return self._ended(clean=decide.is_clean(cursor, count, stones))
        if decide.is_endless(cursor, count):
            raise Permanent(
                f"Pages don't end: {cursor.offset:,} rows read, but the upstream counts {count:,}.", "endless"
            )
        if decide.is_spent(cursor):
            return self._ended(clean=False)
        if self.trouble is not None or cursor.empties:
            return self.so_far(after_s=decide.CONFIRM_AFTER_S, throttled=_only_throttled(self.trouble))
        return None if self._goes_on() else self.so_far()

    def _goes_on(self) -> bool:
        left_s = self.asked.time_left_s()
        is_early = self.began_with_s - left_s < decide.LONGEST_BURST_S and left_s > decide.LEAST_FOR_A_PAGE_S
        return self.pages < self.asked.pages_per_step and is_early

    def _count_if_wanted(self, page: Page, limit: int) -> int | None:
        """A page is kept although a 429 or a refused token came before its count: else an upstream that allows one call at a
        time would never be read. Without a count the crawl may end as not clean, so any other failure takes the page back.
        """
        cursor, asked = self.cursor, self.asked
        if not decide.wants_count(cursor, page, limit, asked.params):
            return None
        try:
            return asked.count(cursor.low, cursor.high)
        except (TokenRefused, Throttled) as error:
            self.trouble = error
            return None

    def so_far(self, *, after_s: float = 0.0, throttled: Throttled | None = None) -> Continue:
        effects, rows, cursor = self._effects(), len(self.items), self.cursor.to_json()
        return Continue(cursor=cursor, effects=effects, rows=rows, after_s=after_s, throttled=throttled)

    def _ended(self, *, clean: bool) -> Finish:
        return Finish(effects=self._effects(), rows=len(self.items), cursor=self.cursor.but(clean=clean).to_json())

    def _effects(self) -> list[Effect]:
        items = self.items.values()
        return [store.upsert_page(self.asked.params.source, items, self.cursor.began)] if items else []


def _cut(cursor: CrawlCursor, asked: Asked) -> Decision:
    """Two partitions take over, each from where this one stands in its part of the list."""
    middle = decide.split_point(cursor.low, cursor.high)
    lower, upper = decide.halves(cursor, asked.store.walked(asked.turn, cursor, middle * 100))
    return Finish(
        effects=[store.hand_on(cursor, lower, upper)],
        lanes=[crawl_lane(lower), crawl_lane(upper)],
        cursor=cursor.but(split=True).to_json(),
    )


def _ask_for_less(cursor: CrawlCursor, asked: Asked, limit: int, error: PageTooBig) -> Decision:
    smaller = limit // 2
    if smaller < SMALLEST_PAGE:
        raise Transient(f"Even {limit} records are too many. {error.message}", "page_too_big")
    account = asked.params.account
    asked.store.forget_page_size(asked.turn, account)
    remember = Effect(store.REMEMBER_PAGE_SIZE, {"upstream": account, "page_size": smaller})
    return Continue(cursor=cursor.to_json(), effects=[remember])


def _audit(cursor: AuditCursor, asked: Asked) -> Decision:
    """A few partitions counted again; those before a failure count."""
    for counts in range(decide.COUNTS_PER_STEP):
        if not cursor.todo:
            return Finish(cursor=cursor.to_json())
        low, high, *_ = cursor.todo[0]
        try:
            count = asked.count(low, high)
        except (Transient, Throttled) as error:
            if not counts:
                raise
            return Continue(cursor=cursor.to_json(), throttled=_only_throttled(error))
        cursor = decide.recounted(cursor, count)
    return Continue(cursor=cursor.to_json())


def gates(turn: Turn) -> list[str]:
    """The account's own: a 429 on one of a tenant's accounts does not stop the others."""
    return (
        []
        if turn.key.startswith("consolidate:")
        else [account_name(turn.params["source"], turn.params.get("connection"))]
    )


def prune(tx: Tx, run: Run, most: int) -> int:
    return tx.apply(Effect(store.PRUNE, {"run_id": run.id, "most": most}))


def page_ingest(
    ports: IngestPorts, limits: Limits | None = None, sources: Callable[[], SourcePorts] | None = None
) -> Kind:
    """`sources`: what runs of source files need, made when the first one does. The built-in catalogue needs none of it."""
    either = Either(PageIngest(ports), sources)
    return Kind(
        name=KIND,
        take_step=either.take_step,
        start=either.start,
        settle=either.settle,
        gates=either.gates,
        on_end=either.on_end,
        prune=either.prune,
        rows=store.ROWS,
        from_start=from_first_page,
        limits=limits or Limits(max_attempts=12),
    )


def from_first_page(key: str, cursor: Json) -> tuple[Json, str] | None:
    """A partition whose rows nobody trusts. What it read before doesn't count; one that was cut has halves of its own."""
    if key.startswith("part/"):
        from shared.page_ingest.reader.model import ReadCursor  # noqa: PLC0415

        read = ReadCursor.read(cursor)
        return read.from_the_start().but(restarts=0).to_json(), _read_so_far(read.pages, read.received)
    if not key.startswith("part:") or cursor.get("split"):
        return None
    crawl = CrawlCursor.read(cursor)
    return crawl.from_the_start.to_json(), _read_so_far(crawl.pages, crawl.offset)


def _read_so_far(pages: int, rows: int) -> str:
    return f"{pages:,} page{'' if pages == 1 else 's'} with {rows:,} row{'' if rows == 1 else 's'}"


@dataclass(slots=True)
class Either:
    """One kind, two ways to read: the catalogue whose adapter is Python, and lists that a file describes. A run's `source`
    says which. What reads files is imported by who needs it.
    """

    built_in: PageIngest
    sources: Callable[[], SourcePorts] | None
    _made: SourcePorts | None = None

    def ports(self) -> SourcePorts:
        if self._made is None:
            if self.sources is None:
                raise Permanent("this deployment reads no source files", "unknown_source")
            self._made = self.sources()
        return self._made

    def start(self, tx: Tx, starting: Starting) -> NewRun:
        if self.sources is None or is_built_in(starting.params):
            return start(tx, starting)
        from shared.page_ingest.reader import steps as reader  # noqa: PLC0415

        return reader.start(self.ports().files, tx, starting)

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        if is_built_in(turn.params):
            return self.built_in.take_step(turn, outside)
        from shared.page_ingest.reader import steps as reader  # noqa: PLC0415

        return reader.Reader(self.ports()).take_step(turn, outside)

    def settle(self, run: Run, lanes: Sequence[Lane]) -> Settlement:
        if is_built_in(run.params):
            return decide.settle(run, lanes)
        from shared.page_ingest.reader.settle import settle  # noqa: PLC0415

        return settle(run, lanes)

    def gates(self, turn: Turn) -> Sequence[str]:
        if is_built_in(turn.params):
            return gates(turn)
        from shared.page_ingest.reader import steps as reader  # noqa: PLC0415

        return reader.gates(turn)

    def on_end(self, tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
        if is_built_in(run.params):
            return ()
        from shared.page_ingest.reader import steps as reader  # noqa: PLC0415

        return reader.on_end(tx, run, ending)

    def prune(self, tx: Tx, run: Run, most: int) -> int:
        if is_built_in(run.params):
            return prune(tx, run, most)
        from shared.page_ingest.reader import steps as reader  # noqa: PLC0415

        return reader.prune(tx, run, most)


def is_built_in(params: Mapping[str, Any]) -> bool:
    return params.get("source") == "nivoda"
