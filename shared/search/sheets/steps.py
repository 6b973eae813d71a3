"""One night of one sheet: look at it, read what its readers say, give every company a row, write the rows.

One request in a step, two where rows are written. They are written where they stand, by the key in their first column; a step that is repeated writes
the same cells again. The window is looked at before each step: what comes too late is missed, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from shared.kernel.catalogue import Outside
from shared.kernel.decide import Limits, all_or_nothing
from shared.kernel.errors import Permanent, Refused
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
    Start,
    Starting,
    Turn,
    Wait,
    account_name,
)
from shared.kernel.points import point
from shared.kernel.ports import Tx
from shared.search.model import KIND
from shared.search.points import SearchPoint
from shared.search.sheets import store
from shared.search.sheets.model import (
    ALARMING,
    FIRST_ROW,
    HEADER,
    LANE,
    LONGEST_LINK,
    LONGEST_NAME,
    MOST_COLUMNS,
    MOST_MOVES,
    MOST_ROWS,
    PROVIDER,
    READ_ROWS,
    SLOT_LASTS_S,
    WRITE_ROWS,
    Block,
    NightStatus,
    SheetCursor,
    SheetPhase,
    Tab,
    WrongColumns,
    blocks,
    columns_of,
    has_moved,
    next_night,
    seen_rows,
)
from shared.search.sheets.ports import Sheet, SheetPorts
from shared.search.store import LEFT_OPEN, as_json, merged

AFTER_HEAD = frozenset({SheetPhase.READ, SheetPhase.PLAN, SheetPhase.WRITE})


class SheetMetric(StrEnum):
    NOT_SYNCED = "SheetNotSynced"  # a night that failed or was missed


@dataclass(frozen=True, slots=True)
class Sheets:
    ports: SheetPorts

    # --- the run

    def start(self, tx: Tx, starting: Starting, sheet: str) -> NewRun | Already:
        """The night that is open or comes next. A night has one sync, whoever asks for it."""
        which = {"tenant_id": starting.tenant_id, "sheet": sheet}
        rows = tx.read(store.FOR_A_NIGHT, which)
        if not rows:
            raise Refused("unknown_sheet", "sheet: not found.")
        row = rows[0]
        if row["waiting"] is not None:
            left = left_open(tx, starting.tenant_id, row["waiting"])
            if left is None:
                return Already(row["waiting"])
            self._give_up(tx, *left)
        night, opens_at, closes_at = next_night(row["now"], row["last_night"], row["opens"], row["closes"], row["zone"])
        told = {**which, "night": night, "run_id": starting.run_id, "opens_at": opens_at, "closes_at": closes_at}
        if not tx.apply(Effect(store.OPEN_NIGHT, told)):
            (found,) = tx.read(store.RUN_OF_NIGHT, {**which, "night": night})
            return Already(found["run_id"])
        cursor = SheetCursor(sheet=sheet, connection=str(row["connection"]))
        delay_s = max(0.0, (opens_at - row["now"]).total_seconds())
        lane = NewLane(key=LANE, cursor=cursor.to_json(), delay_s=delay_s)
        return NewRun(params={"sheet": sheet}, lanes=[lane], label=f"Sheet, night of {night}")

    def on_end(self, tx: Tx, run: Run, ending: Ending) -> None:
        self._give_up(tx, run, ending)
        tx.apply(Effect(store.FORGET_AT_END, {"run_id": run.id}))

    def _give_up(self, tx: Tx, run: Run, ending: Ending) -> None:
        """What is open when the run ends was canceled, or given up. Both that and a missed window raise the alarm."""
        canceled = ending.status is RunStatus.CANCELED
        problem = None if canceled else (ending.problem or Problem("crashed", "The sync ended in the middle."))
        told = {
            "run_id": run.id,
            "status": NightStatus.CANCELED if canceled else NightStatus.FAILED,
            "problem": None if problem is None else as_json(problem.to_json()),
        }
        tx.apply(Effect(store.END_NIGHT, told))
        rows = tx.read(store.STATUS, {"run_id": run.id})
        if rows and rows[0]["status"] in ALARMING:
            self.ports.meter.count(SheetMetric.NOT_SYNCED)
            write_out(self.ports.meter)

    def following(self, tx: Tx, tenant_id: Any, run_id: str) -> Sequence[Start] | None:
        """The next night follows, unless the sheet is no more. None: that was no run of a sheet."""
        rows = tx.read(store.FOLLOWING, {"tenant_id": tenant_id, "run_id": run_id})
        if not rows:
            return None
        return [Start(KIND, {"sheet": rows[0]["sheet"]})] if rows[0]["active"] else []

    # --- a step

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        cursor = SheetCursor.read(turn.cursor)
        if cursor.epoch != turn.run_epoch or (cursor.phase in AFTER_HEAD and not cursor.columns):  # of an older release
            cursor = cursor.afresh(epoch=turn.run_epoch)
        night = self.ports.store.night(turn)
        if night is None or (not night["active"] and night["status"] == NightStatus.WAITING):
            return Finish(effects=[store.ended(NightStatus.CANCELED)])
        if turn.now >= night["closes_at"]:
            return self._missed(night["night"], night["closes_at"])
        if turn.now < night["opens_at"]:
            return Wait(after_s=(night["opens_at"] - turn.now).total_seconds(), waits_for="the night", asked=False)
        if cursor.phase == SheetPhase.PLAN:
            effects = merged(*store.leave(cursor.sheet), store.place(cursor.sheet))
            return Continue(cursor=cursor.but(phase=SheetPhase.WRITE, row=0).to_json(), effects=effects)
        wait_s = self._wait_s(turn, cursor)
        if wait_s > 0:
            at = (turn.now + timedelta(seconds=wait_s)).isoformat()
            kept = cursor.but(slot_at=at, slot_of=turn.attempts)
            return Wait(after_s=wait_s, cursor=kept.to_json(), waits_for="its turn at Google Sheets", asked=False)
        cursor, sheet = cursor.but(slot_at=None), self.ports.sheet(turn, cursor, outside.time_left_s)
        match cursor.phase:
            case SheetPhase.ADD:
                return self._add(cursor, night["tab"], sheet)
            case SheetPhase.TITLES:
                return self._title(cursor, night["tab"], sheet)
            case SheetPhase.HEAD:
                return self._head(cursor, night["tab"], sheet)
            case SheetPhase.READ:
                return self._read(cursor, night["tab"], sheet)
            case SheetPhase.WRITE:
                return self._write(turn, cursor, night["tab"], sheet)
            case _:
                return self._open(cursor, night["tab"], sheet)

    def _wait_s(self, turn: Turn, cursor: SheetCursor) -> float:
        """How long until this step may send its one request. A reserved slot is good once, and only for a while."""
        if cursor.slot_at is not None and cursor.slot_of == turn.attempts:
            late_s = (turn.now - datetime.fromisoformat(cursor.slot_at)).total_seconds()
            if -1 <= late_s <= SLOT_LASTS_S:
                return 0.0
        return self.ports.slot(turn, cursor)

    def _missed(self, night: Any, closes_at: datetime) -> Decision:
        said = f"The sheet was not synced in the night of {night}: its window closed at {closes_at.isoformat()}."
        problem = Problem("window_missed", said)
        ended = store.ended(NightStatus.MISSED, as_json(problem.to_json()))
        raise Permanent(said, problem.code, effects=[ended])

    def _open(self, cursor: SheetCursor, tab: str, sheet: Sheet) -> Decision:
        found = sheet.look(tab)
        if found is None and cursor.added:
            raise Permanent(f"The tab {tab} could not be added.", "no_tab")
        if found is None:
            return Continue(cursor=cursor.but(phase=SheetPhase.ADD).to_json())
        return self._begin(cursor, tab, found)

    def _add(self, cursor: SheetCursor, tab: str, sheet: Sheet) -> Decision:
        """If it is refused, another look tells whether that was because it is there: an answer may have been lost."""
        try:
            return self._begin(cursor, tab, sheet.add_tab(tab))
        except Permanent:
            return Continue(cursor=cursor.but(phase=SheetPhase.OPEN, added=True).to_json())

    def _begin(self, cursor: SheetCursor, tab: str, found: Tab) -> Decision:
        if found.rows > MOST_ROWS:
            raise Permanent(f"The tab {tab} has {found.rows} rows; at most {MOST_ROWS} are read.", "sheet_too_large")
        width = min(found.columns, MOST_COLUMNS)
        following = cursor.but(phase=SheetPhase.HEAD, grid=found.grid, rows=found.rows, width=width, row=FIRST_ROW - 1)
        return Continue(cursor=following.to_json(), effects=store.begin(cursor.sheet))

    def _head(self, cursor: SheetCursor, tab: str, sheet: Sheet) -> Decision:
        """A sheet without any title gets ours. One that lacks some, or has one twice, is not written at all: its columns would
        be somebody else's."""
        titles = sheet.titles(tab, cursor.width)
        if not any(cell not in ("", None) for cell in titles):
            return Continue(cursor=cursor.but(phase=SheetPhase.TITLES).to_json())
        try:
            columns = columns_of(titles)
        except WrongColumns as wrong:
            said = f"The first row of the tab {tab} has {wrong}. Nothing was written. It needs each of these once: {', '.join(HEADER)}."
            raise Permanent(said, "sheet_columns") from None
        return Continue(cursor=cursor.but(phase=SheetPhase.READ, columns=columns).to_json())

    def _title(self, cursor: SheetCursor, tab: str, sheet: Sheet) -> Decision:
        columns = list(range(len(HEADER)))
        sheet.write(tab, columns, [Block(1, [HEADER])])
        return Continue(cursor=cursor.but(phase=SheetPhase.READ, columns=columns).to_json())

    def _read(self, cursor: SheetCursor, tab: str, sheet: Sheet) -> Decision:
        first, last = cursor.row + 1, min(cursor.rows, cursor.row + READ_ROWS)
        found = [] if first > last else sheet.read(tab, cursor.columns, first, last)
        if found is None:
            return self._start_over(cursor, tab)
        effects = store.saw(cursor.sheet, seen_rows(first, found))
        point(SearchPoint.SHEET_READ)
        phase = SheetPhase.READ if last < cursor.rows else SheetPhase.PLAN
        return Continue(cursor=cursor.but(row=last, phase=phase).to_json(), effects=effects)

    def _write(self, turn: Turn, cursor: SheetCursor, tab: str, sheet: Sheet) -> Decision:
        """The keys are looked at once more right before the write: whoever sorted the sheet since it was read would find
        their feedback beside another company."""
        rows = self.ports.store.batch(turn, cursor.sheet, cursor.row, WRITE_ROWS)
        rows = [row for row in rows if row["row_no"] < rows[0]["row_no"] + READ_ROWS]
        if not rows and cursor.row:
            return Finish(cursor=cursor.to_json(), effects=[store.ended(NightStatus.SYNCED)])
        last_row = rows[0]["last_row"] if rows else 1
        if last_row > cursor.rows:
            return self._grow(cursor, tab, sheet, last_row)
        if rows:
            first, last = rows[0]["row_no"], rows[-1]["row_no"]
            found = sheet.read(tab, cursor.columns, first, last)
            if found is None or has_moved(first, found, rows):
                return self._start_over(cursor, tab)
            sheet.write(tab, cursor.columns, blocks([(row["row_no"], _cells(row)) for row in rows]))
        point(SearchPoint.SHEET_WRITTEN)
        cleared = sum(row["gone"] for row in rows)
        following, written = cursor.but(row=rows[-1]["row_no"] if rows else 1), len(rows) - cleared
        if not rows or last == last_row:
            ended = store.ended(NightStatus.SYNCED, written=written, cleared=cleared)
            return Finish(cursor=following.to_json(), effects=[ended], rows=len(rows))
        return Continue(cursor=following.to_json(), effects=[store.wrote(written, cleared)], rows=len(rows))

    def _grow(self, cursor: SheetCursor, tab: str, sheet: Sheet, rows: int) -> Decision:
        """Its readers may have added rows since it was looked at: to set fewer than there are would delete theirs."""
        found = sheet.look(tab)
        if found is None or found.grid != cursor.grid:
            return self._start_over(cursor, tab)
        if found.rows < rows:
            sheet.grow(cursor.grid, rows)
        return Continue(cursor=cursor.but(rows=max(found.rows, rows)).to_json())

    def _start_over(self, cursor: SheetCursor, tab: str) -> Decision:
        moved = cursor.moved + 1
        if moved > MOST_MOVES:
            said = f"Somebody moved rows or columns of the tab {tab} {moved} times during the sync. Nothing was overwritten; the next night tries again."
            raise Permanent(said, "sheet_moves")
        return Continue(cursor=cursor.afresh(epoch=cursor.epoch, moved=moved).to_json())

    def limits(self) -> Limits:
        return Limits(max_attempts=self.ports.retries + 1)


def _cells(row: Any) -> Sequence[str | int]:
    """A row that is to go leaves with its feedback; another keeps it: that column is never written."""
    if row["gone"]:
        return ("",) * len(HEADER)
    link = row["link"] or ""
    return (
        str(row["id"]), row["name"][:LONGEST_NAME], row["open_offers"], _day(row["first_seen_at"]), _day(row["last_seen_at"]),
        link if len(link) <= LONGEST_LINK else "",  # a part of an address leads elsewhere
    )  # fmt: skip


def _day(at: datetime) -> str:
    return at.astimezone(ZoneInfo("UTC")).date().isoformat()


def settle(run: Run, lanes: Sequence[Lane]) -> Settlement:
    """The run says what its one lane said."""
    said = next((lane.last_error for lane in lanes if lane.status is LaneStatus.FAILED), None)
    if "sheet" not in run.params or said is None:
        return all_or_nothing(run, lanes)
    return Ending(RunStatus.FAILED, "failed", Problem(str(said["code"]), str(said["message"])))


def left_open(tx: Tx, tenant_id: UUID, run_id: Any) -> tuple[Run, Ending] | None:
    """A run that ended although its `on_end` never succeeded: whoever finds what it left open does that in its place. Under its
    lock, for a retry takes up again what is open."""
    if not tx.read(LEFT_OPEN, {"run_id": run_id}):
        return None
    run = tx.lock_run(run_id, tenant_id)
    if run is None or run.status in (RunStatus.QUEUED, RunStatus.RUNNING):
        return None
    return run, Ending(run.status, run.outcome)


def is_sheet(turn: Turn) -> bool:
    return turn.key == LANE


def gates(turn: Turn) -> list[str]:
    return [account_name(PROVIDER, SheetCursor.read(turn.cursor).connection)]
