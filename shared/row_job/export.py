"""Rows as files, at any time: read at one instant, written in steps.

An export is a run of its own, so a job that is paused or canceled can be exported too. Its first step opens a snapshot: from
then on, whoever changes a row keeps it as it was (a trigger sees to that), and the export reads what was kept instead. A CSV file
goes on where the step before stopped. An XLSX file is an archive and cannot: each is written within one step, as many rows as
fit, and the next step begins the next file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from shared.kernel import db
from shared.kernel.catalogue import Outside
from shared.kernel.clock import stopwatch
from shared.kernel.errors import NotFound, Permanent, Refused
from shared.kernel.files import Parted, UploadGone
from shared.kernel.model import (
    Already,
    Continue,
    Decision,
    Effect,
    Ending,
    Finish,
    Json,
    NewLane,
    NewRun,
    Run,
    Starting,
    Turn,
    Wait,
)
from shared.kernel.params import parse
from shared.kernel.points import point
from shared.kernel.ports import Tx
from shared.row_job import fix, grid, store, table, xlsx
from shared.row_job.decide import LEAST_LEFT_S
from shared.row_job.model import EXPORT, EXPORTS, UNKEEP, ExportParams, Format, JobType, WayPoint, Which
from shared.row_job.ports import ExportState, Ports, Snapshot

PAGE = 10_000  # rows that are read at once
STEP_S = 20.0  # of a CSV file; an XLSX file takes what the function has
# Between two looks at older transactions: one that somebody left open may stay for hours.
SETTLE_S, MOST_SETTLE_S = 0.5, 30.0
UNKEPT_AT_ONCE = 20_000
MOST_LOST = 3  # files that are gone before they are whole; then it is no accident


def lost_too_often() -> Permanent:
    message = "A file that was half written is gone, again and again. Check what the functions may do in the bucket, then retry."
    return Permanent(message, "no_storage")


def is_export(params: Any) -> bool:
    return EXPORT in params


def start_export(tx: Tx, starting: Starting) -> NewRun | Already:
    wanted = parse(ExportParams, starting.params)
    job = {"job_id": wanted.export, "tenant_id": starting.tenant_id}
    found = tx.read(store.EXPORTABLE, job)
    if not found:
        raise NotFound
    if wanted.rows is Which.FAILED and found[0]["job_type"] != JobType.CSV:
        raise Refused("not_a_table", "Only rows of a CSV file can be downloaded, fixed and uploaded again.")
    asked = {**job, "format": wanted.format, "rows": wanted.rows, "created_by": starting.by.actor}
    under_way = tx.read(store.EXPORTING, asked)
    if under_way:
        return Already(under_way[0]["run_id"])
    tx.apply(Effect(store.ADD_EXPORT, {**asked, "run_id": starting.run_id}))
    what = "failed rows of " if wanted.rows is Which.FAILED else ""
    label = f"Export of {what}{found[0]['name']}"[:200]
    return NewRun(params=wanted.model_dump(mode="json"), lanes=[NewLane(key=EXPORT)], label=label)


def end_export(tx: Tx, run: Run, ending: Ending) -> list[NewLane]:  # noqa: ARG001 - the shape of on_end
    """However it ends: nothing is kept for it any more, and what was goes."""
    which = {"run_id": run.id, "tenant_id": run.tenant_id}
    tx.apply(Effect(store.CLOSE_EXPORT, which))
    if not tx.read(store.IS_KEPT, which):
        return []
    return [NewLane(key=f"{UNKEEP}:{run.epoch}", holds_run=False)]


def unkeep(outside: Outside) -> Decision:
    gone = outside.write(Effect(store.UNKEEP_ROWS, {"most": UNKEPT_AT_ONCE}))
    return Finish(rows=len(gone)) if len(gone) < UNKEPT_AT_ONCE else Continue(cursor={}, rows=len(gone))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far an export is. `horizon`: transactions below it may still change rows without keeping them, and `looks`: how
    often they were still there. `seen`: the last row that was looked at; `written`: how many are in a file. `bytes`,
    `upload`, `parts`, `tail`: of a file that is not whole yet. `lost`: how often such a file was gone."""

    gen: int
    upto: int
    horizon: int | None
    looks: int = 0
    seen: int = 0
    written: int = 0
    files: list[Json] = field(default_factory=list)
    upload: str | None = None
    parts: list[str] = field(default_factory=list)
    tail: str | None = None
    bytes: int = 0
    lost: int = 0

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def to_json(self) -> Json:
        return {name: value for name, value in asdict(self).items() if name != "lost" or value}

    def afresh(self) -> Self:
        if self.lost >= MOST_LOST:
            raise lost_too_often()
        return self.but(seen=0, written=0, files=[], upload=None, parts=[], tail=None, bytes=0, lost=self.lost + 1)


@dataclass(slots=True)
class Exporting:
    ports: Ports
    turn: Turn
    outside: Outside

    @property
    def wanted(self) -> ExportParams:
        return ExportParams.model_validate(dict(self.turn.params))

    def step(self) -> Decision:
        state = self.ports.reads.export(self.turn.tenant_id, self.turn.run_id)
        if state is None or state.deleted:
            raise Permanent("The job was deleted.", "job_deleted")
        cursor = self.turn.cursor
        # A snapshot that was closed is none: a retry takes another one.
        place = Place(**cursor) if "gen" in cursor and state.open and state.gen == cursor["gen"] else self._open()
        if place.horizon is not None:
            if self.ports.reads.horizon()[0] < place.horizon:
                after_s = min(SETTLE_S * 2.0**place.looks, MOST_SETTLE_S)
                cursor = place.but(looks=min(place.looks + 1, 10)).to_json()
                return Wait(after_s=after_s, cursor=cursor, waits_for="changes that are being committed")
            place = place.but(horizon=None)
        try:
            return self._csv(state, place) if self.wanted.format is Format.CSV else self._xlsx(state, place)
        except UploadGone:
            return Continue(cursor=place.afresh().to_json())

    def _open(self) -> Place:
        (opened,) = self.outside.write(Effect(store.OPEN_EXPORT))
        point(WayPoint.SNAPSHOT)
        return Place(gen=opened["gen"], upto=opened["upto"], horizon=self.ports.reads.horizon()[1])

    def _csv(self, state: ExportState, place: Place) -> Decision:
        elapsed, seconds, begun = stopwatch(), min(STEP_S, self._seconds()), place
        key = self._key(place, 1)
        file = Parted(self.ports.results, key, place.upload, place.parts, place.tail, beside=self.ports.beside)
        if not place.seen:
            # A spreadsheet that somebody fixes rows in reads UTF-8 as that only with a mark.
            file.write(grid.HEADER_LINE if self._is_all else table.BOM + fix.header_line(state.columns))
        lines = grid.csv_rows if self._is_all else fix.csv_rows_of(state.columns)
        while place.seen < place.upto and (place is begun or elapsed() < seconds):
            size, count = min(PAGE, place.upto - place.seen), 0
            for rows in self._page(state, place, size):
                file.write(lines(rows))
                count += len(rows)
            place = place.but(seen=place.seen + size, written=place.written + count)
        place = place.but(bytes=place.bytes + file.bytes)
        if place.seen < place.upto:
            left = file.rest(f"{key}.{self.turn.token}")
            return Continue(cursor=place.but(**left).to_json(), rows=place.written - begun.written)
        file.finish()
        point(WayPoint.EXPORTED)
        return self._finish(place.but(files=[_file(key, place.written, place.bytes)]), begun)

    def _xlsx(self, state: ExportState, place: Place) -> Decision:
        elapsed, seconds, begun = stopwatch(), self._seconds(), place
        # How many rows fit depends on the time: one who was overtaken must not put a file of other rows in this one's place.
        key = self._key(place, f"{len(place.files) + 1}-{self.turn.token}")
        most = self.ports.settings.export_xlsx_rows
        file = Parted(self.ports.results, key, beside=self.ports.beside)
        book = xlsx.Workbook(file, grid.HEADERS if self._is_all else fix.headers(state.columns))
        numbers = grid.NUMBERS if self._is_all else frozenset()
        cells = xlsx.rows_of if self._is_all else fix.xlsx_rows_of(state.columns)
        count = 0
        while place.seen < place.upto and count < most and book.size < xlsx.LARGEST_SHEET:
            if place is not begun and elapsed() >= seconds:
                break
            size = min(PAGE, most - count, place.upto - place.seen)
            for rows in self._page(state, place, size):
                book.write(cells(rows), numbers)
                count += len(rows)
            place = place.but(seen=place.seen + size)
        book.close()
        file.finish()
        point(WayPoint.EXPORTED)
        place = place.but(written=place.written + count, files=[*place.files, _file(key, count, file.bytes)])
        if place.seen < place.upto:
            return Continue(cursor=place.to_json(), rows=count)
        return self._finish(place, begun)

    def _page(self, state: ExportState, place: Place, size: int) -> Iterator[list[bytes]]:
        """The next rows, as they were at the snapshot. Rows of a file have no gaps: one that is missing is gone."""
        of = Snapshot(export_id=self.turn.run_id, job_id=state.job_id, gen=place.gen)
        count = 0
        for rows in self.ports.reads.copied(self.turn.tenant_id, of, self.wanted.rows, place.seen, place.seen + size):
            count += len(rows)
            yield rows
        if not self._is_all:  # those that did not fail are not among them: whether one is gone is asked afterwards
            count = self.ports.reads.there(self.turn.tenant_id, state.job_id, place.seen, place.seen + size)
        if count != size:
            raise Permanent("Rows were removed while they were exported.", "rows_gone")

    def _finish(self, place: Place, begun: Place) -> Decision:
        told = {"files": db.jsonb(place.files), "written": place.written}
        return Finish(
            effects=[Effect(store.END_EXPORT, told)], cursor=place.to_json(), rows=place.written - begun.written
        )

    @property
    def _is_all(self) -> bool:
        return self.wanted.rows is Which.ALL

    def _seconds(self) -> float:
        """What is left when it is over is for the last part and the commit."""
        return max(1.0, 0.6 * (self.outside.time_left_s() - LEAST_LEFT_S))

    def _key(self, place: Place, number: int | str) -> str:
        return EXPORTS.format(
            tenant_id=self.turn.tenant_id, export_id=self.turn.run_id, gen=place.gen, number=number,
            format=self.wanted.format,
        )  # fmt: skip


def _file(key: str, rows: int, size: int) -> Json:
    return {"key": key, "rows": rows, "bytes": size}
