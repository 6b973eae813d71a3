"""The steps of a cycle: pick what is due, read one page, aggregate companies. The relay commits them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid5

from shared.kernel.catalogue import NO_CAP, Kind, Outside
from shared.kernel.decide import Limits
from shared.kernel.errors import Later, Overtaken, Permanent, StepError, Throttled
from shared.kernel.log import logger
from shared.kernel.metrics import write_out
from shared.kernel.model import (
    Already,
    Continue,
    Decision,
    Effect,
    Ending,
    Finish,
    NewLane,
    NewRun,
    Problem,
    Run,
    RunStatus,
    Say,
    Signal,
    Start,
    Starting,
    Turn,
    Wait,
)
from shared.kernel.params import parse
from shared.kernel.points import point
from shared.kernel.ports import Tx
from shared.search import decide, store
from shared.search.chain import Chain
from shared.search.model import (
    CLIENTS,
    KIND,
    LANE,
    CycleCursor,
    CycleParams,
    Job,
    Page,
    Phase,
    Purpose,
    SearchConfig,
    Status,
    Stop,
    Walk,
    Window,
)
from shared.search.parse import offer_of
from shared.search.points import SearchPoint
from shared.search.ports import Ports, SearchMetric
from shared.search.sheets.steps import Sheets, is_sheet, left_open, settle
from shared.search.sheets.steps import gates as sheet_gates
from shared.search.sheets.store import PRUNE as PRUNE_NIGHT
from shared.search.store import Spent

COMPANIES_PER_STEP = 100
REPLAYS_PER_STEP = 50
COMPANY_RETRIES = 3
# What says that this account will not be let in, whatever it asks for.
NO_ACCESS = frozenset({"token_refused", "connection_gone", "connection_outdated", "bad_settings"})


@dataclass(frozen=True, slots=True)
class Cycles:
    ports: Ports

    @property
    def config(self) -> SearchConfig:
        return self.ports.config

    @property
    def sheets(self) -> Sheets:
        return Sheets(self.ports.sheets)

    # --- the run

    def start(self, tx: Tx, starting: Starting) -> NewRun | Already:
        """One cycle of a tenant at a time. It begins when something is due, and not too soon after the last one."""
        asked = parse(CycleParams, starting.params)
        if asked.sheet is not None:
            return self.sheets.start(tx, starting, asked.sheet)
        which = {"tenant_id": starting.tenant_id}
        (following,) = tx.read(store.NEXT_CYCLE, {**which, "gap_s": self.config.cycle_gap_s})
        delay_s = following["delay_s"] or 0.0
        opening = Effect(store.OPEN_CYCLE, {**which, "run_id": starting.run_id, "delay_s": delay_s})
        while not tx.apply(opening):
            found = tx.read(store.THE_OPEN_CYCLE, which)
            left = left_open(tx, starting.tenant_id, found[0]["run_id"]) if found else None
            if found and left is None:
                return Already(found[0]["run_id"])
            if left is not None:
                self.on_end(tx, *left)
        return NewRun(
            params={}, lanes=[NewLane(key=LANE, cursor=CycleCursor().to_json(), delay_s=delay_s)], label="Search cycle"
        )

    def on_end(self, tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
        """What is still open when a cycle ends was canceled, or its processes died: nothing stays RUNNING."""
        if "sheet" in run.params:
            self.sheets.on_end(tx, run, ending)
            return ()
        canceled = ending.status is RunStatus.CANCELED
        problem = None if canceled else Problem("crashed", "The cycle ended in the middle of this search.")
        told = {
            "run_id": run.id,
            "stop_reason": Stop.CANCELED if canceled else Stop.ERROR,
            "run_status": "stopped" if canceled else "failure",
            "state": Status.IDLE if canceled else Status.ERROR,
            "problem": None if problem is None else store.as_json(problem.to_json()),
        }
        tx.apply(Effect(store.END_EXECUTIONS, told))
        tx.apply(Effect(store.END_CYCLE, {"run_id": run.id}))
        return ()

    def next_cycle(self, tx: Tx, signal: Signal) -> Sequence[Start]:
        """A cycle has ended: the next one follows, while there is anything to search for."""
        if signal.payload.get("kind") != KIND:
            return ()
        run_id = str(signal.payload.get("run_id"))
        left = left_open(tx, signal.tenant_id, UUID(run_id))
        if left is not None:
            self.on_end(tx, *left)
        nights = self.sheets.following(tx, signal.tenant_id, run_id)
        if nights is not None:
            return nights
        (following,) = tx.read(store.NEXT_CYCLE, {"tenant_id": signal.tenant_id, "gap_s": self.config.cycle_gap_s})
        return [Start(KIND, {})] if following["wanted"] else []

    # --- a step

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        try:
            return self._take_step(turn, outside)
        finally:
            write_out(self.ports.meter)

    def _take_step(self, turn: Turn, outside: Outside) -> Decision:
        if is_sheet(turn):
            return self.sheets.take_step(turn, outside)
        cursor = CycleCursor.read(turn.cursor)
        if cursor.epoch != turn.run_epoch:
            if not outside.write(Effect(store.RETAKE_CYCLE)):
                return Finish()  # another cycle has begun since: it does all that this one would
            cursor = CycleCursor(epoch=turn.run_epoch)
        match cursor.phase:
            case Phase.FETCH:
                return self._fetch(turn, cursor, outside)
            case Phase.AGGREGATE:
                return self._aggregate(turn, cursor)
            case _:
                return self._pick(turn, cursor)

    def _pick(self, turn: Turn, cursor: CycleCursor) -> Decision:
        if cursor.begun is False and (wait_s := self.ports.store.too_early_s(turn, self.config.cycle_gap_s)) > 0:
            return Wait(after_s=wait_s, waits_for="the gap between two cycles")
        begins = [] if cursor.begun else [Effect(store.BEGIN_CYCLE)]
        cursor = cursor.but(phase=Phase.PICK, job=None, ingestion=None, singles=0, begun=True)
        replays = self.ports.store.replays(turn, REPLAYS_PER_STEP)
        if replays:
            return self._replay(turn, cursor, replays, begins)
        row = self.ports.store.next_job(turn)
        if row is None:
            return Finish(cursor=cursor.to_json(), effects=[*begins, Effect(store.UNSEEN)])
        point(SearchPoint.PICKED)
        job = self._job(turn, row)
        if job is None:  # its history was completed by a head meanwhile
            return Continue(cursor=cursor.to_json(), effects=[*begins, store.history_done(row["query_key"])])
        fetching = cursor.but(phase=Phase.FETCH, job=job.to_json())
        return Continue(cursor=fetching.to_json(), effects=store.merged(*begins, *store.begin(job)))

    def _job(self, turn: Turn, row: Any) -> Job | None:
        walk = self._walk(turn.now, row)
        if walk is None:
            return None
        return Job(
            ingestion=str(uuid5(turn.run_id, f"{turn.epoch}:{turn.seq}")), search=str(row["search_id"]), name=row["name"],
            query_key=row["query_key"], client=row["client"], connection=str(row["connection"]), params=row["params"],
            max_pages=row["max_pages"], max_offers=row["max_offers"], every_s=row["every_s"],
            failures=row["consecutive_failures"],
            backfill=str(row["backfill_id"]) if walk.purpose == Purpose.BACKFILL else None, walk=walk,
        )  # fmt: skip

    def _walk(self, now: datetime, row: Any) -> Walk | None:
        """The window to read: one that was not read to its end goes on, else the next one of its purpose."""
        if row["purpose"] == Purpose.HEAD:
            purpose, kept = Purpose.HEAD, row["resume"].get(Purpose.HEAD)
            window = decide.head_window(now, row["high_watermark"], self.config)
        elif row["backfill_id"] is not None:
            purpose, kept = Purpose.BACKFILL, row["backfill_resume"]
            window = Window(row["backfill_lo"], row["backfill_hi"])
        else:
            purpose, kept = Purpose.SEED, row["resume"].get(Purpose.SEED)
            seeding = decide.seed_window(row["seed_cursor"], row["seed_floor"], row["zone"], self.config)
            if seeding is None:
                return None
            window = seeding
        if kept is not None:
            return decide.again(Walk.read(kept))
        page = row["resume"].get("hint", 1) if purpose == Purpose.SEED else 1
        return Walk(purpose=purpose, lo=window.lo, hi=window.hi, page=page)

    def _fetch(self, turn: Turn, cursor: CycleCursor, outside: Outside) -> Decision:
        """One page. Whatever goes wrong is this search's trouble, or its client's: the cycle goes on with the next."""
        assert cursor.job is not None
        job = Job.read(cursor.job)
        if job.retries + turn.attempts > self.config.retries:  # what it read could not be written, again and again
            return self._failed(turn, cursor, job, Problem("not_written", "What was read could not be stored."))
        try:
            bucket = decide.bucket_for(job.client, job.walk.lo, turn.now)
            job = job.but(walk=decide.before_page(job.walk, bucket))
            client = self.ports.client(turn.tenant_id, job, outside.time_left_s)
            page = client.page(job.params, bucket, job.walk.page)
            point(SearchPoint.FETCHED)
            decide.check_page(page, job.walk.page)
            return self._read(turn, cursor, job, page)
        except (Overtaken, Later):
            raise
        except Throttled as error:
            return self._throttled(turn, cursor, job, error)
        except Exception as error:
            return self._after(error, turn, cursor, job)

    def _read(self, turn: Turn, cursor: CycleCursor, job: Job, page: Page) -> Decision:
        count = len(page.offers)
        job = job.but(pages=job.pages + 1, offers=job.offers + count, retries=job.retries + turn.attempts)
        step = decide.after_page(job, page)
        written = store.page(turn.tenant_id, job, page.offers, page.bad)
        tries = 1 + turn.attempts
        spent = Spent(pages=1, offers=count, requests=tries, errors=len(page.bad) + turn.attempts)
        if step.stop is None:
            effects = store.merged(*written, store.progress(job, spent))
            going_on = cursor.but(job=job.but(walk=step.walk).to_json())
            return Continue(cursor=going_on.to_json(), effects=effects, rows=count)
        ended = store.progress(job, spent, step.stop)
        if step.stop is Stop.EXHAUSTED:
            effects = store.merged(*written, ended, *store.exhausted(job))
            return self._on(turn, cursor, job, step.stop, effects, count)
        effects = store.merged(*written, ended, *store.stopped(job, step.walk, Status.IDLE, None, 0))
        return self._on(turn, cursor, job, step.stop, effects, count)

    def _throttled(self, turn: Turn, cursor: CycleCursor, job: Job, error: Throttled) -> Decision:
        """Everybody with this account waits; the cycle does not. No attempt is spent, and nothing counts as an error."""
        wait_s = decide.pause_s(error.retry_after_s, self.config)
        said = f"{CLIENTS[job.client].title} asked to wait; searches with this account go on after {_long(wait_s)}."
        closing = Throttled(job.account, wait_s, said)
        spent = Spent(requests=1 + turn.attempts, throttles=1, errors=turn.attempts)
        ended = store.progress(job, spent, Stop.RATE_LIMITED)
        effects = store.merged(ended, *store.stopped(job, job.walk, Status.IDLE, None, 0))
        return self._on(turn, cursor, job, Stop.RATE_LIMITED, effects, throttled=closing)

    def _after(self, error: Exception, turn: Turn, cursor: CycleCursor, job: Job) -> Decision:
        known = error if isinstance(error, StepError) else decide.unexpected(error)
        code = getattr(known, "code", "unexpected")
        problem = Problem(code, known.message)
        if code in NO_ACCESS:
            client = CLIENTS[job.client].title
            said = f"{known.message} Searches with this account are stopped. Fix the connection, then resume {client}."
            closing = Throttled(job.account, self.config.refused_pause_s, said)
            return self._failed(turn, cursor, job, Problem(code, said), closing)
        if isinstance(known, Permanent):
            return self._failed(turn, cursor, job, problem)
        if decide.may_retry(job, turn.attempts, self.config):
            if known is not error:
                logger.exception("a search failed unexpectedly", extra={"search": job.search}, exc_info=error)
            raise known from error
        return self._failed(turn, cursor, job, problem)

    def _failed(
        self, turn: Turn, cursor: CycleCursor, job: Job, problem: Problem, closing: Throttled | None = None
    ) -> Decision:
        wait_s = decide.wait_after_failures(job.failures + 1).total_seconds()
        spent = Spent(requests=1 + turn.attempts, errors=1 + turn.attempts)
        ended = store.progress(job, spent, Stop.ERROR, problem)
        effects = store.merged(ended, *store.stopped(job, job.walk, Status.ERROR, problem, wait_s))
        return self._on(turn, cursor, job, Stop.ERROR, effects, throttled=closing, problem=problem)

    def _on(
        self, turn: Turn, cursor: CycleCursor, job: Job, stop: Stop, effects: Sequence[Effect], rows: int = 0,
        throttled: Throttled | None = None, problem: Problem | None = None,
    ) -> Decision:  # fmt: skip
        """The end of an execution; its companies are next."""
        self.ports.meter.count(SearchMetric.EXECUTION, client=job.client, stop=stop)
        told: dict[str, Any] = {
            "run_id": str(turn.run_id), "search_id": job.search, "name": job.name, "query_key": job.query_key, "client": job.client,
            "execution_id": job.ingestion, "purpose": job.walk.purpose, "from": job.walk.lo.isoformat(),
            "to": job.walk.hi.isoformat(), "stop_reason": stop,
        }  # fmt: skip
        logger.info("a search was executed", extra={"search": {**told, "pages": job.pages, "offers": job.offers}})
        says = []
        if stop is Stop.EXHAUSTED:
            says = [Say("search.completed", told)]
        elif problem is not None:
            # Not search.failed: as with every kind, that is the end of a run, here of a whole cycle.
            says = [Say("search.errored", {**told, "error": dict(problem.to_json())})]
        following = cursor.but(phase=Phase.AGGREGATE, job=None, ingestion=job.ingestion, singles=0)
        return Continue(
            cursor=following.to_json(), effects=effects, rows=rows, says=says, throttled=throttled, goes_on=True
        )

    def _aggregate(self, turn: Turn, cursor: CycleCursor) -> Decision:
        """A bounded batch. If it cannot be written, its companies one by one: the one that fails is set aside."""
        singles = COMPANIES_PER_STEP if turn.attempts and not cursor.singles else cursor.singles
        ids = self.ports.store.dirty_companies(turn, 1 if singles else COMPANIES_PER_STEP)
        if not ids:
            return self._pick(turn, cursor)
        broken = bool(singles) and turn.attempts > COMPANY_RETRIES
        counts = {
            "ingestion": cursor.ingestion,
            "aggregated": 0 if broken else len(ids),
            "failed": len(ids) if broken else 0,
        }
        written = store.set_aside(ids) if broken else store.aggregate(ids)
        following = cursor.but(singles=max(0, singles - 1))
        effects = store.merged(*written, Effect(store.AGGREGATED, counts))
        return Continue(cursor=following.to_json(), effects=effects, rows=len(ids))

    def _replay(self, turn: Turn, cursor: CycleCursor, rows: Sequence[Any], begins: Sequence[Effect]) -> Decision:
        """Quarantined records once more, as we read them today. One client in a step."""
        client = rows[0]["client"]
        done, found, key = [], [], rows[0]["query_key"]
        for row in (each for each in rows if each["client"] == client and each["query_key"] == key):
            offer, problem = offer_of(client, row["payload"])
            done.append({"id": str(row["id"]), "problem": problem})
            if offer is not None:
                found.append(offer)
        effects = [*begins, Effect(store.REPLAYED, {"replayed": store.as_json(done)})]
        effects += store.upserts(turn.tenant_id, client, key, found)
        return Continue(cursor=cursor.to_json(), effects=store.merged(*effects), rows=len(found))

    # --- gates

    def at_closed_gate(self, turn: Turn) -> Decision | None:
        """Closed since this search was picked: it keeps its place, and the cycle goes on with another. A sheet waits."""
        if is_sheet(turn):
            return None
        cursor = CycleCursor.read(turn.cursor)
        assert cursor.job is not None
        job = Job.read(cursor.job)
        ended = store.progress(job, Spent(), Stop.RATE_LIMITED)
        effects = store.merged(ended, *store.stopped(job, job.walk, Status.IDLE, None, 0))
        return self._on(turn, cursor, job, Stop.RATE_LIMITED, effects)


def _long(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{math.ceil(minutes / 60)} hours"


def gates(turn: Turn) -> list[str]:
    """The account's own, for the steps that ask it."""
    if is_sheet(turn):
        return sheet_gates(turn)
    job = turn.cursor.get("job")
    if turn.cursor.get("phase") != Phase.FETCH or job is None or turn.cursor.get("epoch", 1) != turn.run_epoch:
        return []
    return [Job.read(job).account]


def prune(tx: Tx, run: Run, most: int) -> int:
    if "sheet" in run.params:
        return tx.apply(Effect(PRUNE_NIGHT, {"run_id": run.id}))
    return tx.apply(Effect(store.PRUNE, {"run_id": run.id, "most": most}))


def search(ports: Ports, limits: Limits | None = None) -> Kind:
    cycles, cycle_limits = Cycles(ports), limits or Limits(max_attempts=12)
    return Kind(
        name=KIND,
        take_step=cycles.take_step,
        start=cycles.start,
        settle=settle,
        on_end=cycles.on_end,
        gates=gates,
        at_closed_gate=cycles.at_closed_gate,
        prune=prune,
        rows=store.OFFERS_READ,
        counts="offers",
        listens={f"run.{status}": cycles.next_cycle for status in ("succeeded", "failed", "canceled")},
        each_tick=Chain,
        limits=cycle_limits,
        limits_of=lambda turn: cycles.sheets.limits() if is_sheet(turn) else cycle_limits,
        most_open_runs=NO_CAP,
    )
