"""The steps of row jobs: read the file into rows, work on them in paced slices, take away what was deleted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from shared.kernel import db
from shared.kernel.catalogue import Kind, Outside
from shared.kernel.clock import read_id, stopwatch
from shared.kernel.control import REPORT_ONLY, Bounds, Paced, Want, trade
from shared.kernel.decide import Limits, all_or_nothing
from shared.kernel.errors import Conflict, Permanent, Refused, StepError, Throttled
from shared.kernel.files import UploadGone
from shared.kernel.log import logger
from shared.kernel.metrics import write_out
from shared.kernel.model import (
    Already,
    Continue,
    Decision,
    Effect,
    Ending,
    Finish,
    Lane,
    LaneStatus,
    NewLane,
    NewRun,
    Problem,
    Run,
    RunStatus,
    Settlement,
    Signal,
    Start,
    Starting,
    Turn,
    Wait,
)
from shared.kernel.params import parse, with_connection
from shared.kernel.points import point
from shared.kernel.ports import Tx
from shared.kernel.settings import RETENTION_DAYS
from shared.kernel.slices import Slice
from shared.row_job import decide, sheets, store, table
from shared.row_job.decide import Answered, Batch
from shared.row_job.export import Exporting, end_export, is_export, lost_too_often, start_export, unkeep
from shared.row_job.fixing import Fixing, header_of, lost_again, new_line_of, records_at, written_down
from shared.row_job.model import (
    ERASE,
    EXPORT,
    FIX,
    INGEST,
    KIND,
    SCAN,
    TAKE,
    UNKEEP,
    UPSTREAM,
    Item,
    JobType,
    Options,
    RowJobParams,
    RowMetric,
    Status,
    account_of,
    refuse_columns_of_images,
)
from shared.row_job.picturing import Picturing
from shared.row_job.ports import Call, Hands, OpenRows, Ports, Progress, Search
from shared.row_job.reading import batch_after, batch_at, bytes_of
from shared.row_job.scan import Scanning, is_scan, start_scan

OptionsT = TypeVar("OptionsT", bound=Options)
ERASED_AT_ONCE = 5_000
EXPORT_STOPS_S = 10.0  # at its next step, at the latest
IMAGES_DONE = "images.ingest.completed"
READ_AHEAD = 1.2  # bytes read for a batch, in batches
PROMOTION = "the canary to be promoted"
PROMOTION_S = 3600.0
REFUSED_S = 900.0  # a key that was refused is tried again by one call after so long, if nobody changes it before
LONGEST_WAIT_S, MOST_ELDER_S, FILE_S = 900.0, 300.0, 2.0
LONG_WAIT_S = 5.0  # so long that somebody looks meanwhile
DATA_ERRORS, TWICE = ("22", "23"), "23505"  # what the database will not keep; what it has already


class RowPoint(StrEnum):
    ROWS_WRITTEN = "row_job.rows_written"
    CLAIMED = "row_job.claimed"
    CALLED = "row_job.called"


def work_lane(slot: int, gen: int = 0) -> NewLane:
    """The lane of one share of the rows. A later generation waits until the one before has ended."""
    return NewLane(key=f"work:{slot}:{gen}")


@dataclass(frozen=True, slots=True)
class RowJobs:
    ports: Ports

    def start(self, tx: Tx, starting: Starting) -> NewRun | Already:
        if is_scan(starting.params):
            return start_scan(self.ports, tx, starting)
        if is_export(starting.params):
            return start_export(tx, starting)
        wanted = parse(RowJobParams, starting.params)
        which = {"file_id": wanted.file_id, "tenant_id": starting.tenant_id}
        found = tx.read(store.FILE, which)
        if not found:
            raise Refused("unknown_file", "file_id: upload not found.")
        (file,) = found
        if file["run_id"] is not None:
            return Already(file["run_id"])
        # What was chosen with the upload holds, unless the start says otherwise.
        mapping = wanted.mapping  # that of a scan is for the CSV files among what it finds
        wanted = parse(RowJobParams, {**file["options"], **wanted.model_dump(mode="json", exclude_unset=True)})
        refuse_columns_of_images(wanted.job_type, mapping)
        if not file["arrived"]:
            raise Conflict("not_uploaded", "The file hasn't been uploaded yet.")
        wanted = self._connected(tx, starting.tenant_id, wanted)
        job = {
            **which, "run_id": starting.run_id, "user_id": starting.by.actor or file["created_by"],
            "ip_address": file["ip_address"], "job_type": wanted.job_type or JobType.CSV, "slots": self.ports.settings.slots,
            "process_upto": wanted.canary,
        }  # fmt: skip
        tx.apply(Effect(store.ADD_JOB, job))
        lanes = [NewLane(key=INGEST), *map(work_lane, range(self.ports.settings.slots))]
        # Of a file that starts its job by arriving, the job is its uploader's: whoever sees only their own runs must see this one.
        return NewRun(
            params=wanted.model_dump(mode="json", exclude_none=True),
            lanes=lanes,
            label=str(file["name"])[:200],
            created_by=file["created_by"],
        )

    def _connected(self, tx: Tx, tenant_id: UUID, wanted: OptionsT) -> OptionsT:
        wanted = with_connection(tx, tenant_id, wanted, UPSTREAM)
        if self.ports.needs_connection and wanted.connection is None:
            raise Refused("bad_params", f"connection: name a connection to {UPSTREAM}.")
        return wanted

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        try:
            return self._take_step(turn, outside)
        finally:
            write_out(self.ports.meter)

    def _take_step(self, turn: Turn, outside: Outside) -> Decision:
        if turn.key == INGEST and turn.params.get("job_type") == JobType.IMAGE:
            return Picturing(self.ports, turn, outside).step()
        if turn.key == INGEST:
            return _Reading(self.ports, turn, outside).step()
        if turn.key.startswith(f"{FIX}:"):
            return Fixing(self.ports, turn, outside).step()
        if turn.key == EXPORT:
            return Exporting(self.ports, turn, outside).step()
        if turn.key.startswith(f"{UNKEEP}:"):
            return unkeep(outside)
        if turn.key.startswith(ERASE):
            return self._erase(turn, outside)
        if turn.key == SCAN:
            return Scanning(self.ports, turn, outside).look()
        if turn.key.startswith(f"{TAKE}:"):
            return Scanning(self.ports, turn, outside).take()
        return _Working(self.ports, turn, outside).step()

    def _erase(self, turn: Turn, outside: Outside) -> Decision:
        """The files last: an export that is at work has read its rows, and would write a file that nobody removes."""
        gone = outside.write(Effect(store.ERASE_ROWS, {"most": ERASED_AT_ONCE}))
        if len(gone) >= ERASED_AT_ONCE:
            return Continue(cursor={}, rows=len(gone))
        if self.ports.reads.is_exporting(turn.tenant_id, turn.run_id):
            return Wait(after_s=EXPORT_STOPS_S, waits_for="an export that is at work to stop")
        for key in self.ports.reads.exported(turn.tenant_id, turn.run_id):
            self.ports.results.delete(key)
        return Finish(effects=[Effect(store.ERASE_EVENTS)], rows=len(gone))

    def on_connection(self, tx: Tx, signal: Signal) -> Sequence[Start]:
        """A connection was changed: what waited because its key was refused goes on."""
        said = signal.payload
        if said.get("provider") == UPSTREAM and said.get("change") == "changed":
            account = account_of(str(said.get("connection_id")))
            tx.open_gate(signal.tenant_id, account)
            while tx.wake_waiting(signal.tenant_id, account):  # some at a time; the tick sends what it finds awake
                pass
        return []

    def on_arrival(self, tx: Tx, signal: Signal) -> Sequence[Start]:
        """An upload has arrived: pin what came, and begin, unless its owner wants to look first."""
        payload = signal.payload
        parts = str(payload.get("key", "")).split("/")
        file_id = read_id(parts[3]) if len(parts) == 4 and parts[2] == "rows" else None
        if file_id is None:
            return []
        which = {"file_id": file_id, "tenant_id": signal.tenant_id}
        came = {"size": payload.get("size"), "version_id": payload.get("version_id"), "etag": payload.get("etag")}
        tx.apply(Effect(store.ARRIVE, {**which, **came}))
        found = tx.read(store.FILE, which)
        if not found or found[0]["hold"]:
            return []
        options = parse(Options, found[0]["options"])
        try:
            self._connected(tx, signal.tenant_id, options)
        except Refused as error:  # nobody is there to be told: it waits for its owner, whom the start tells why
            logger.warning("an upload waits to be started", extra={"file": str(file_id), "why": error.code})
            return []
        return [Start(KIND, {**options.model_dump(mode="json", exclude_none=True), "file_id": str(file_id)})]


def gates(turn: Turn) -> list[str]:
    """The account's own, for the lanes that call: it closes when the key is refused."""
    return [account_of(turn.params.get("connection"))] if turn.key.startswith("work:") else []


def settle(run: Run, lanes: Sequence[Lane]) -> Settlement:
    """A file that cannot be read fails the job; rows that failed do not: each says so itself."""
    ending = all_or_nothing(run, lanes)
    if isinstance(ending, Ending) and ending.status is RunStatus.SUCCEEDED:
        return replace(ending, outcome="done")
    why = next((lane.last_error for lane in lanes if lane.status is LaneStatus.FAILED and lane.last_error), None)
    if isinstance(ending, Ending) and ending.status is RunStatus.FAILED and why is not None:
        return replace(ending, problem=Problem(str(why["code"]), str(why["message"])))
    return ending


def on_reopen(tx: Tx, run: Run) -> None:
    """A job that was deleted stays so: its rows are gone or going, and nobody would see what becomes of new ones."""
    if is_scan(run.params) or is_export(run.params):
        return
    found = tx.read(store.SLOTS, {"run_id": run.id, "tenant_id": run.tenant_id})
    if found and found[0]["deleted"]:
        raise Conflict("deleted", "The job was deleted. Upload its file again.")


def on_end(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
    if is_scan(run.params):
        return ()
    if is_export(run.params):
        return end_export(tx, run, ending)
    tx.apply(Effect(store.COUNT, {"run_id": run.id, "tenant_id": run.tenant_id}))
    what = "done" if ending.status is RunStatus.SUCCEEDED else "failed"
    said = {"run_id": str(run.id), "epoch": run.epoch, "status": ending.status, "outcome": ending.outcome}
    tx.add_signal(run.tenant_id, f"{KIND}.{what}", said)
    if what == "done" and run.params.get("job_type") == JobType.IMAGE:
        tx.add_signal(run.tenant_id, IMAGES_DONE, {"run_id": str(run.id), "epoch": run.epoch})
    return ()


def prune(tx: Tx, run: Run, most: int) -> int:
    """Whoever answers fewer than `most` says that nothing is left: the run goes then, and nobody comes back for its rows."""
    gone = 0
    for rows in (store.PRUNE_KEPT, store.PRUNE_EVENTS, store.PRUNE_ITEMS):
        gone += tx.apply(Effect(rows, {"run_id": run.id, "most": most - gone}))
        if gone >= most:
            return gone
    for each in (store.PRUNE_EXPORT, store.PRUNE_FIXES, store.PRUNE_JOB):
        tx.apply(Effect(each, {"run_id": run.id}))
    old = {"tenant_id": run.tenant_id, "days": RETENTION_DAYS["run"], "most": most - gone}
    return gone + tx.apply(Effect(store.PRUNE_FILES, old))


def row_job(ports: Ports, limits: Limits | None = None) -> Kind:
    jobs = RowJobs(ports)
    return Kind(
        name=KIND,
        take_step=jobs.take_step,
        start=jobs.start,
        settle=settle,
        on_reopen=on_reopen,
        freed_by={PROMOTION: "promote"},
        to_do_again="To work on its rows again, reprocess them; for another export or scan, start a new one.",
        on_end=on_end,
        prune=prune,
        rows=store.ROWS,
        gates=gates,
        says=("images.ingest.",),
        listens={"object.created": jobs.on_arrival, "provider.connection.changed": jobs.on_connection},
        limits=limits or Limits(max_attempts=10),
    )


# Reading.


@dataclass(slots=True)
class _Reading:
    """A part of the file, as long as a slice lasts. Its place is committed with the step, and only then.

    While the database takes one batch in, the next is read, taken apart and encoded.
    """

    ports: Ports
    turn: Turn
    outside: Outside
    uploaded: int = 0  # bytes of the file as it came

    def step(self) -> Decision:
        job = self.ports.reads.progress(self.turn.tenant_id, self.turn.run_id)
        if job is None:
            raise Permanent("The job's file isn't known any more.", "no_file")
        self.ports.meter.count(RowMetric.POOL_WAIT_MS, job.pool_wait_ms)
        self.uploaded, cursor = job.size, self.turn.cursor
        try:
            if "csv" in cursor:
                return self._read(replace(job, **cursor["csv"], version_id=None))
            if "sheet" in cursor or ("offset" not in cursor and sheets.is_one(self._bytes(job, 0, 4))):
                return written_down(
                    self.ports, self.turn, self.outside, job, UUID(self.turn.params["file_id"]), new_line_of
                )
            return self._read(job)
        except UploadGone:
            again = lost_again(self.turn)
            if again is None:
                raise lost_too_often() from None
            return again
        except table.BadFile as error:
            raise Permanent(error.message, error.code) from None

    def _read(self, job: Progress) -> Decision:
        cursor = self.turn.cursor
        if "offset" not in cursor:
            sample = self._bytes(job, 0, table.SAMPLE_BYTES)
            dialect, names, offset = header_of(sample, whole=len(sample) >= job.size, most=table.MOST_COLUMNS)
            rows = 0
        else:
            dialect, names = table.Dialect(**cursor["dialect"]), list(cursor["columns"])
            offset, rows = int(cursor["offset"]), int(cursor["rows"])
        asked = RowJobParams.model_validate(dict(self.turn.params)).mapping
        mapping = table.mapping_of(names, asked)
        if not table.SOUGHT & mapping.keys():
            raise table.BadFile("no_columns", "No column holds a title or a SKU. Choose the columns and upload again.")
        place = _Place(offset, rows, batch_at(self.ports, self.turn))
        self._read_on(job, dialect, names, mapping, place)
        if place.offset >= job.size and not place.rows:
            raise table.BadFile("no_rows", "The file holds the names of its columns and no rows.")
        return self._commit(job, dialect, names, place)

    def _read_on(
        self, job: Progress, dialect: table.Dialect, names: Sequence[str], mapping: dict[str, str], place: _Place
    ) -> None:
        settings, elapsed = self.ports.settings, stopwatch()
        seconds = decide.slice_s(settings, self.outside.time_left_s())
        width = float(self.turn.cursor.get("width", 200.0))  # bytes of a row
        writing: Callable[[], _Written] = _Written
        try:
            while place.offset < job.size and elapsed() < seconds:
                wanted = int(min(settings.ingest_max_batch_bytes, max(65_536.0, READ_AHEAD * width * place.batch.rows)))
                found, size = records_at(self.ports, job, dialect, place.offset, wanted, place.batch.rows)
                width = max(1.0, size / len(found))
                rows = table.rows_of(found, place.rows, names, mapping, dialect)
                place.rows, place.offset = place.rows + len(rows), place.offset + size
                kept = store.kept(rows) if rows else None
                self._note(writing(), place)
                writing = self.ports.beside(partial(self._write, rows, kept))
        finally:
            written = writing()  # nobody leaves while it writes: the connection is the step's
        self._note(written, place)
        place.width = width

    def _write(self, rows: Sequence[table.Row], kept: Effect | None) -> _Written:
        if kept is None:
            return _Written()
        elapsed = stopwatch()
        bad = self._keep(rows, kept)
        point(RowPoint.ROWS_WRITTEN)
        return _Written(len(rows), bad, elapsed())

    def _note(self, written: _Written, place: _Place) -> None:
        if written.rows:
            place.batch = batch_after(self.ports, place.batch, written.rows, written.seconds, written.bad)

    def _keep(self, rows: Sequence[table.Row], kept: Effect | None = None) -> int:
        """Write rows. If the database will not keep one of them, halve until it is found, and set that one aside."""
        try:
            self.outside.write(store.kept(rows) if kept is None else kept)
        except Exception as error:
            if not _is_of_a_row(error):
                raise
            if len(rows) > 1:
                half = len(rows) // 2
                return self._keep(rows[:half]) + self._keep(rows[half:])
            aside = table.Row(row_no=rows[0].row_no, input={}, problem="The database can't store this row.")
            self.outside.write(store.kept([aside]))
            return 1
        return 0

    def _bytes(self, job: Progress, offset: int, length: int) -> bytes:
        return bytes_of(self.ports, job, offset, length)

    def _commit(self, job: Progress, dialect: table.Dialect, names: Sequence[str], place: _Place) -> Decision:
        done = place.offset >= job.size
        noted = Effect(
            store.NOTE_READ,
            {
                "dialect": db.jsonb(dialect.to_json()), "columns": db.jsonb(list(names)), "read_bytes": self.uploaded * place.offset // job.size,
                "read_rows": place.rows, "batch_rows": place.batch.rows, "done": done,
            },
        )  # fmt: skip
        if done:
            return Finish(effects=[noted], rows=place.rows)
        cursor = {
            "offset": place.offset, "rows": place.rows, "dialect": dialect.to_json(), "columns": list(names),
            **place.batch.to_json(), "width": place.width,
            **{name: value for name, value in self.turn.cursor.items() if name == "csv"},
        }  # fmt: skip
        return Continue(cursor=cursor, effects=[noted], renews=True)


@dataclass(frozen=True, slots=True)
class _Written:
    """What became of a batch; of none at all: nothing."""

    rows: int = 0
    bad: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Place:
    offset: int
    rows: int
    batch: Batch
    width: float = 200.0


def _is_of_a_row(error: Exception) -> bool:
    """Whether a row is to blame. One that is there already is not: whoever wrote it was not to be here, or we are not."""
    state = db.sqlstate(error) or ""
    return isinstance(error, TypeError) or (state.startswith(DATA_ERRORS) and state != TWICE)


# Working.


@dataclass(slots=True)
class _Working:
    """One slice of a lane: claim rows, call for them at the pace that all functions share, commit what came of it."""

    ports: Ports
    turn: Turn
    outside: Outside
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    refused: str | None = None  # what the provider says of the key

    @property
    def slot(self) -> int:
        return int(self.turn.key.split(":")[1])

    @property
    def gen(self) -> int:
        return int(self.turn.key.split(":")[2])

    def step(self) -> Decision:
        settings, cursor = self.ports.settings, self.turn.cursor
        params = RowJobParams.model_validate(dict(self.turn.params))
        count_s = self._count(float(cursor.get("count_s", 0.0)))
        with self.ports.hands(settings.threads) as hands:
            seconds = decide.slice_s(settings, self.outside.time_left_s())
            avg_ms = cursor.get("avg_ms")
            most = decide.claim_size(avg_ms, seconds, settings, hands.pressure())
            most = min(most, max(1, settings.most_in_flight // settings.slots))
            items = self._claim(most, decide.lease_s(seconds, settings))
            if not items:
                return self._nothing_due(count_s)
            point(RowPoint.CLAIMED)
            search = self._search(items, params)
            elapsed = stopwatch()
            waits = self._call(items, params, search, hands, seconds)
            took = elapsed()
        done = len(self.ended)
        self._measure(done, took)
        cursor = {"avg_ms": decide.smoothed_ms(avg_ms, took, done), "refusals": waits[1], "count_s": count_s}
        effects = [self._finished()]
        if self.events:
            effects.append(Effect(store.ADD_EVENTS, {"events": db.jsonb(self.events)}))
        refused = None if self.refused is None else Throttled(params.account, REFUSED_S, self.refused)
        return Continue(
            cursor=cursor, after_s=waits[0], effects=effects, rows=done, renews=True, throttled=refused
        )  # fmt: skip

    def _claim(self, most: int, lease_s: float) -> list[Item]:
        settings = self.ports.settings
        asked = {
            "most": most, "tenant_most": settings.tenant_most_in_flight, "slot": self.slot, "gen": self.gen,
            "holder": self.turn.token, "lease_s": lease_s, "alone": self.turn.claims > 1,
        }  # fmt: skip
        rows = self.outside.write(Effect(store.CLAIM, asked))
        items = [Item.model_validate(dict(row)) for row in sorted(rows, key=lambda row: row["row_no"])]
        for item in items:
            if decide.lost(item, settings, self.turn.claims):
                message = item.last_error or "The worker stopped each time it worked on this row."
                self._end(item, decide.Verdict(status=Status.ERROR, attempts=item.attempts, message=message))
        return items

    def _search(self, items: Sequence[Item], params: RowJobParams) -> Search:
        """Whom to ask. If nobody can tell (a vault that does not answer, a connection that is gone), no row was asked for: each
        gets its attempt back, else an outage would use up all of them."""
        try:
            return self.ports.search(self.turn.tenant_id, params, self.outside.time_left_s)
        except StepError as error:
            self._give_back(items)
            error.effects = [self._finished()]
            raise

    def _give_back(self, items: Iterable[Item]) -> None:
        """Rows that were claimed and never sent, but for those that are given up."""
        ended = {row["row_no"] for row in self.verdicts}
        for item in items:
            if item.row_no not in ended:
                self.verdicts.append(_verdict(item, decide.Verdict(status=Status.PENDING, attempts=item.attempts - 1)))

    def _finished(self) -> Effect:
        return Effect(store.FINISH_ROWS, {"items": db.jsonb(self.verdicts), "holder": self.turn.token})

    def _count(self, last_s: float) -> float:
        """One of a job's lanes counts its rows now and then. Answers how long it took the last time."""
        if self.slot:
            return last_s
        elapsed = stopwatch()
        counted = self.outside.write(Effect(store.COUNT_NOW, {"every_s": decide.count_every_s(last_s)}))
        if not counted:
            return last_s
        self.ports.meter.count(RowMetric.QUEUE_DEPTH, counted[0]["pending"])
        return elapsed()

    def _nothing_due(self, count_s: float) -> Decision:
        left = self.ports.reads.open_rows(self.turn.tenant_id, self.turn.run_id, self.slot, self.gen)
        looks = int(self.turn.cursor.get("looks", 0))
        decision = idle(left, looks)
        if isinstance(decision, Wait) and decision.after_s >= LONG_WAIT_S:  # what is shown meanwhile is as it is now
            self.outside.write(Effect(store.COUNT_NOW, {"every_s": 20 * count_s}))
        cursor = {**self.turn.cursor, "count_s": count_s, "looks": min(looks + 1, 10) if left.elder else 0}
        return replace(decision, cursor=cursor) if isinstance(decision, Wait) else decision

    def _call(
        self, items: Sequence[Item], params: RowJobParams, search: Search, hands: Hands, seconds: float
    ) -> tuple[float, int]:
        """Send a call for each slot of the pace, until the rows or the time are used up. Answers how long to wait, and how
        often in a row there was no slot."""
        lost = {row["row_no"] for row in self.verdicts}
        waiting: dict[str, deque[Item]] = {}
        for item in items:
            if item.row_no not in lost:
                waiting.setdefault(decide.domain_of(item, params.retailers), deque()).append(item)
        settings, refusals = self.ports.settings, int(self.turn.cursor.get("refusals", 0))
        slices = {domain: Slice(hands.now(), seconds, settings.threads, refusals) for domain in waiting}
        while True:
            self._send(slices, waiting, params, search, hands)
            if self._ask(slices, waiting, params, hands):
                continue
            now = hands.now()
            if all(piece.over(now) for piece in slices.values()):
                break
            until = min(piece.next_at(now) for piece in slices.values())
            for call, answer in hands.collect(min(max(0.0, until - now), 5.0)):
                self._answered(call, answer, slices[call.domain], hands.now())
            if self.refused is not None:
                for piece in slices.values():
                    piece.stop()
        for domain, piece in slices.items():
            if piece.report:
                trade(
                    self.ports.pace,
                    self._paced(params, domain),
                    self.turn.token,
                    piece.report.hand_over(),
                    REPORT_ONLY,
                    self._bounds(),
                )
        self._give_back(item for unsent in waiting.values() for item in unsent)
        wait_s = max((piece.wait_s for piece in slices.values()), default=0.0)
        worst = max((piece.refusals for piece in slices.values()), default=0)
        return (wait_s if not self.ended else min(wait_s, 15.0)), worst

    def _send(
        self,
        slices: dict[str, Slice],
        waiting: dict[str, deque[Item]],
        params: RowJobParams,
        search: Search,
        hands: Hands,
    ) -> None:
        for domain, piece in slices.items():
            now = hands.now()
            for window_no in piece.due(now):
                if not waiting[domain]:
                    piece.unused(window_no)
                    continue
                item = waiting[domain].popleft()
                strategy, retailers = decide.strategy_of(item), decide.retailers_of(item, params.retailers)
                # Attempts begin anew when somebody fixes a row or asks for it again. Its turn tells that question from the
                # one before: whoever answers by the key alone would repeat the old answer, or refuse the new words.
                turn = f"{self.gen}.{self.turn.epoch}.{self.turn.seq}"
                key = f"{self.turn.run_id}:{item.row_no}:{item.attempts}-{turn}"

                def call(
                    item: Item = item, key: str = key, strategy: Any = strategy, retailers: list[str] = retailers
                ) -> Answered:
                    return search.find(item, strategy, retailers, key)

                hands.submit(call, Call(item, domain, window_no))

    def _ask(
        self, slices: dict[str, Slice], waiting: dict[str, deque[Item]], params: RowJobParams, hands: Hands
    ) -> bool:
        for domain, piece in slices.items():
            now = hands.now()
            want = piece.wants(now, len(waiting[domain]))
            if want is not None:
                paced, report, asked = (
                    self._paced(params, domain),
                    piece.report.hand_over(),
                    Want(want, piece.sends_for_s(now)),
                )
                granted = trade(self.ports.pace, paced, self.turn.token, report, asked, self._bounds())
                piece.told(hands.now(), want, granted, self.ports.chance.fraction())
                return True
        return False

    def _answered(self, call: Call, answer: Answered, piece: Slice, now: float) -> None:
        item = call.item
        point(RowPoint.CALLED)
        if answer.what == "refused":
            self.refused = answer.message
            piece.unused(call.window_no)
        else:
            what = {"found": "ok", "not_found": "ok", "invalid": "ok"}.get(answer.what, answer.what)
            piece.answered(now, call.window_no, what, answer.ms / 1000, answer.retry_after_s)
        failed = sum(each["status"] == "failed" for each in self.events)
        spike = len(self.events) >= 10 and failed > len(self.events) / 2
        verdict = decide.judge(item, answer, self.ports.settings, self.ports.chance.fraction(), spike)
        strategy = decide.strategy_of(item)
        self.events.append(
            {"row_no": item.row_no, "attempt": item.attempts, "strategy": strategy, "domain": call.domain,
             "status": answer.what, "ms": answer.ms}
        )  # fmt: skip
        self._end(item, verdict, answer)
        if verdict.again_s is not None:
            logger.debug(
                "a row comes again", extra={"row": item.row_no, "after_s": verdict.again_s, "why": answer.what}
            )

    def _end(self, item: Item, verdict: decide.Verdict, answer: Answered | None = None) -> None:
        offers = answer.offers if answer is not None else ()
        self.verdicts.append(_verdict(item, verdict, offers))
        if answer is None or answer.what not in ("throttled", "refused"):
            self.ended.append(verdict.status)

    def _paced(self, params: RowJobParams, domain: str) -> Paced:
        return Paced(params.account, domain, self.turn.tenant_id)

    def _bounds(self) -> Bounds:
        settings = self.ports.settings
        return Bounds(
            first=settings.provider_first_rate, least=settings.provider_min_rate, most=settings.provider_max_rate
        )

    def _measure(self, done: int, took_s: float) -> None:
        meter, called = self.ports.meter, max(1, len(self.events))
        met = [each["status"] for each in self.events]
        meter.count(RowMetric.ITEMS_SEC, done / max(took_s, 0.001))
        meter.count(RowMetric.ERROR_RATE, met.count("failed") / called)
        meter.count(RowMetric.NOT_FOUND_RATE, met.count("not_found") / called)
        meter.count(RowMetric.THROTTLE_RATE, met.count("throttled") / called, provider=UPSTREAM)


def idle(left: OpenRows, looks: int = 0) -> Decision:
    """What a lane does that found no row to take: it ends only when the file is read and none of its rows is open. The lane
    before it may wait for a day: it takes the rows that are open, so this one looks less and less often."""
    if left.elder:
        return Wait(after_s=min(2.0 * 2**looks, MOST_ELDER_S), waits_for="the lane before it")
    if left.next_due_s is not None:
        most = LONGEST_WAIT_S if left.read_done else FILE_S  # a file that is being read brings rows that are due now
        return Wait(after_s=min(max(left.next_due_s, 0.5), most), waits_for="rows that are retried later")
    if not left.read_done:
        return Wait(after_s=FILE_S, waits_for="rows of the file")
    if left.held_back:
        return Wait(after_s=PROMOTION_S, waits_for=PROMOTION)
    return Finish()


def _verdict(item: Item, verdict: decide.Verdict, offers: Sequence[Any] = ()) -> dict[str, Any]:
    best = offers[0] if offers else None
    result = {"offers": [each.model_dump() for each in offers]} if offers else None
    return {
        "row_no": item.row_no, "claimed": item.attempts, "status": verdict.status, "attempts": verdict.attempts,
        "result": result, "price": None if best is None else best.price, "message": verdict.message,
        "missed": verdict.missed, "permanent": verdict.permanent, "again_s": verdict.again_s,
    }  # fmt: skip
