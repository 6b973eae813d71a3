"""A file of fixed rows, read as the job's own was: a batch in each step, written with the step's commit.

A spreadsheet is written down as CSV first, beside the exports, over as many steps as that takes: only in CSV there is a place
that the next step can begin at. So is a job's own file, if it is a spreadsheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from shared.kernel import db
from shared.kernel.catalogue import Outside
from shared.kernel.clock import stopwatch
from shared.kernel.errors import Permanent
from shared.kernel.files import Parted, UploadGone
from shared.kernel.model import Continue, Decision, Effect, Finish, Turn
from shared.row_job import fix, grid, sheets, store, table
from shared.row_job.decide import LEAST_LEFT_S
from shared.row_job.export import MOST_LOST, lost_too_often
from shared.row_job.images import Fetch
from shared.row_job.model import SHEET, RowJobParams
from shared.row_job.ports import Ports, Progress
from shared.row_job.reading import bytes_of
from shared.row_job.table import BOM

EXAMPLES = 100  # of what did not match
SHEET_S = 20.0  # of a spreadsheet in one step


def records_at(
    ports: Ports, job: Progress, dialect: table.Dialect, offset: int, wanted: int, most: int
) -> tuple[list[str], int]:
    """Whole records from a place in a file, and how many bytes they took. If none fits into what was wanted, one of the longest
    that there may be."""
    for length, count in ((wanted, most), (4 * table.LONGEST_RECORD + 16, 1)):
        data = bytes_of(ports, job, offset, length)
        found, size = table.records(data, dialect, count, last=offset + len(data) >= job.size)
        if found or offset + len(data) >= job.size:
            break
    if not found and offset < job.size:
        raise table.BadFile("unreadable", f"The file can't be read from byte {offset:,} on.")
    return found, size


def key_column(names: Sequence[str]) -> int:
    found = [at for at, name in enumerate(names) if name.casefold() == fix.KEY]
    if not found:
        message = f"The file has no column named {fix.KEY}. Download the failed rows, change them there, and upload that file."
        raise table.BadFile("no_keys", message)
    return found[0]


def header_of(sample: bytes, *, whole: bool, most: int = fix.MOST_COLUMNS) -> tuple[table.Dialect, list[str], int]:
    """How a file is written, its columns, and where its rows begin. `most`: a file of fixed rows has two columns of ours."""
    dialect = table.detect(sample)
    found, size = table.records(sample[dialect.first :], dialect, 1, last=whole)
    if not found:
        raise table.BadFile("bad_header", "The first line is too long to hold the names of the columns.")
    return dialect, table.columns(found[0], dialect, most=most), dialect.first + size


def columns_of_sheet(fetch: Fetch, size: int) -> list[str]:
    """The columns of a spreadsheet, named as those of the CSV that it becomes."""
    return header_of(BOM + line_of(sheets.Sheet(fetch, size).first(1)[0]), whole=True)[1]


def line_of(cells: Sequence[str]) -> bytes:
    """Cells of a spreadsheet as a line of CSV, just as they are. A row that is too long for one is known by its key."""
    text = ",".join(['"' + cell.replace('"', '""') + '"' for cell in cells]) + "\n"
    if len(text) > table.LONGEST_RECORD:
        fits = table.LONGEST_RECORD // (3 * fix.MOST_COLUMNS)
        return line_of([cell if len(cell) <= fits else sheets.UNKNOWN for cell in cells])
    return text.encode("utf-8", "replace")


def new_line_of(cells: Sequence[str]) -> bytes:
    """A row that is read for the first time. What shows an error, or a formula that was never worked out, holds nothing."""
    return line_of(["" if cell == sheets.UNKNOWN else cell for cell in cells])


def written_down(
    ports: Ports,
    turn: Turn,
    outside: Outside,
    job: Progress,
    file_id: UUID,
    line: Callable[[Sequence[str]], bytes] = line_of,
) -> Continue:
    """The rows of a spreadsheet as CSV, as far as the time lasts. `csv` in the cursor says where that is, once it is whole."""
    elapsed, seconds = stopwatch(), min(SHEET_S, max(1.0, 0.6 * (outside.time_left_s() - LEAST_LEFT_S)))
    done: dict[str, Any] = turn.cursor.get("sheet") or {}
    key = SHEET.format(tenant_id=turn.tenant_id, file_id=file_id)
    left = [done.get(name) for name in ("upload", "parts", "tail")]
    file = Parted(ports.results, key, left[0], left[1] or (), left[2], beside=ports.beside)
    size = int(done.get("size", 0))
    if not size:
        file.write(BOM)
    book = sheets.Sheet(partial(bytes_of, ports, job), job.size)
    begun = sheets.At(**done["at"]) if done else None
    for rows, at in book.rows(begun):
        file.write(b"".join(line(row) for row in rows if any(cell.strip() for cell in row)))
        if at not in (None, begun) and elapsed() >= seconds:
            rest = file.rest(f"{key}.{turn.token}")
            lost = {name: value for name, value in turn.cursor.items() if name == "lost"}
            return Continue(
                cursor={**lost, "sheet": {"at": asdict(at), "size": size + file.bytes, **rest}}, renews=True
            )
    file.finish()
    size += file.bytes
    if size == len(BOM):
        raise table.BadFile("empty_file", "The first sheet is empty.")
    return Continue(cursor={"csv": {"key": key, "size": size}}, renews=True)


def lost_again(turn: Turn) -> Continue | None:
    """The bucket has forgotten what was written down: from the beginning, unless that has happened too often."""
    lost = int(turn.cursor.get("lost", 0)) + 1
    return Continue(cursor={"lost": lost}) if lost <= MOST_LOST else None


@dataclass(slots=True)
class Fixing:
    ports: Ports
    turn: Turn
    outside: Outside

    def step(self) -> Decision:
        file_id = UUID(self.turn.key.partition(":")[2])
        job = self.ports.reads.fixing(self.turn.tenant_id, self.turn.run_id, file_id)
        if job is None:
            return Finish()
        try:
            if "csv" in self.turn.cursor:
                return self._read(replace(job, **self.turn.cursor["csv"], version_id=None), file_id)
            if sheets.is_one(bytes_of(self.ports, job, 0, 4)):
                return written_down(self.ports, self.turn, self.outside, job, file_id)
            return self._read(job, file_id)
        except UploadGone:
            return lost_again(self.turn) or _given_up(file_id, lost_too_often())
        except (table.BadFile, Permanent) as error:  # a bad file is no failure of the job, nor is one that is gone
            return _given_up(file_id, error)

    def _read(self, job: Progress, file_id: UUID) -> Decision:
        cursor, settings = self.turn.cursor, self.ports.settings
        if "offset" in cursor:
            dialect, names, offset = table.Dialect(**cursor["dialect"]), list(cursor["names"]), int(cursor["offset"])
        else:
            sample = bytes_of(self.ports, job, 0, table.SAMPLE_BYTES)
            dialect, names, offset = header_of(sample, whole=len(sample) >= job.size)
        at = key_column(names)
        records, size = records_at(
            self.ports, job, dialect, offset, settings.ingest_max_batch_bytes, settings.ingest_max_rows
        )
        found = [
            (cells := table.cells(record, dialect), self._is_misplaced(record, cells, names, dialect))
            for record in records
        ]
        judged, told = self._judge(job, found, names, at)
        done = offset + size >= job.size
        effects = _effects(file_id, judged, done=done)
        if done:
            return Finish(effects=effects, rows=len(judged.rows))
        cursor = {**cursor, "offset": offset + size, "dialect": dialect.to_json(), "names": names, "told": told}
        return Continue(cursor=cursor, effects=effects, rows=len(judged.rows), renews=True)

    def _is_misplaced(self, record: str, cells: Sequence[str], names: Sequence[str], dialect: table.Dialect) -> bool:
        """Whether its cells may be those of other columns. In a spreadsheet none moves because of a comma or a quote."""
        return "csv" not in self.turn.cursor and table.misplaced(record, cells, names, dialect) is not None

    def _judge(
        self, job: Progress, found: list[tuple[list[str], bool]], names: Sequence[str], at: int
    ) -> tuple[fix.Judged, list[str]]:
        """What becomes of some rows, and all columns so far that were told to be unknown: once for the file."""
        columns = job.columns or []
        mapping = table.mapping_of(columns, RowJobParams.model_validate(dict(self.turn.params)).mapping)
        fixes, bad = list[fix.Fix](), list[str]()
        of = fix.columns_of(names, columns)
        told, misplaced, unknown = list[str](self.turn.cursor.get("told", ())), list[int](), dict[str, None]()
        for cells, is_misplaced in found:
            if not any(cell.strip() for cell in cells):
                continue
            key = fix.read_key(cells[at]) if at < len(cells) else None
            if key is None:
                bad.append(cells[at] if at < len(cells) else "")
                continue
            if is_misplaced:
                misplaced.append(key.row_no)
                continue
            held = zip(names, of, cells, strict=False)
            unknown |= dict.fromkeys(name for name, known, cell in held if known is None and cell.strip())
            as_it_was = grid.unguarded if key.is_guarded else str
            given = {name: as_it_was(cell) for name, cell in zip(of, cells, strict=False) if name is not None}
            fixes.append(fix.Fix(key.row_no, key.hash, given))
        rows = self.ports.reads.fixable(self.turn.tenant_id, self.turn.run_id, sorted({each.row_no for each in fixes}))
        judged = fix.judge(fixes, rows, columns, mapping)
        for row_no in misplaced:
            judged.refuse(row_no, fix.Why.BAD_ROW)
        for key_text in bad:
            judged.refuse(grid.clean(key_text)[:50], fix.Why.BAD_KEY)
        new = [name for name in unknown if name not in told and name.casefold() not in fix.OURS][: EXAMPLES - len(told)]
        for name in new:
            judged.refuse(grid.clean(name)[:100], fix.Why.UNKNOWN_COLUMN)
        return judged, [*told, *new]


def _given_up(file_id: UUID, error: table.BadFile | Permanent) -> Decision:
    told = [{"row": 0, "code": error.code, "message": error.message}]
    return Finish(effects=_effects(file_id, fix.Judged(unmatched=told), done=True))


def _effects(file_id: UUID, judged: fix.Judged, *, done: bool) -> list[Effect]:
    told: dict[str, Any] = {
        "file_id": file_id, "fixed": len(judged.rows), "unchanged": judged.unchanged, "done": done,
        "unmatched": len(judged.unmatched), "examples": db.jsonb(judged.unmatched[:EXAMPLES]),
        "row_nos": [row["n"] for row in judged.rows], "words": fix.WORDS[fix.Why.CHANGED],
    }  # fmt: skip
    return [Effect(store.FIX_ROWS, {"fixes": db.jsonb(judged.rows)}), Effect(store.NOTE_FIX, told)]
