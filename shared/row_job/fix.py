"""Rows that failed, to take home, fix and bring back.

A file of failed rows has the columns that it was read from, and before them a key and what was wrong. The key names the row and
what it held: only a row that is still as it was downloaded is replaced. It also says whether the file had apostrophes before
what looks like a formula: a spreadsheet may save it as something else. Whatever else a file brings is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from shared.kernel.storable import unstorable
from shared.row_job import grid, table, xlsx
from shared.row_job.model import FAILED, OPEN
from shared.row_job.ports import FixRow

KEY, PROBLEM = OURS = "baton_key", "baton_problem"
RAW = "row"  # what a line was that could not be read
MOST_COLUMNS = table.MOST_COLUMNS + len(OURS)
GUARDED, PLAIN = "h", "t"  # in the key: how the cells of the row were written
_KEY = re.compile(r"r([0-9]{1,18})-([ht])([0-9a-f]{16})")


# The file that is taken home


def headers(columns: Sequence[str] | None) -> list[str]:
    return grid.encode([*OURS, *(columns or ())], ())[:-1]


def header_line(columns: Sequence[str] | None) -> bytes:
    return grid.csv_line(headers(columns)).encode()


def csv_rows_of(columns: Sequence[str] | None) -> Callable[[Sequence[bytes]], bytes]:
    names = columns or ()
    return lambda rows: "".join(grid.csv_line(cells) for cells in _cells(rows, names, GUARDED)).encode()


def xlsx_rows_of(columns: Sequence[str] | None) -> Callable[[Sequence[bytes]], Iterable[Sequence[str]]]:
    names = columns or ()
    return lambda rows: ([xlsx.escape(cell) for cell in cells] for cells in _cells(rows, names, PLAIN))


def _cells(rows: Sequence[bytes], names: Sequence[str], written: str) -> Iterable[list[str]]:
    """The database writes each row as JSON in a line, where only backslashes are doubled."""
    for line in rows:
        row = orjson.loads(line.replace(b"\\\\", b"\\"))
        given = row["input"]
        problem = f"{row['status']}: {row['error']}" if row["error"] else row["status"]
        if RAW in given and RAW not in names:
            problem = f"{problem} The line was: {given[RAW]}"
        cells = [f"r{row['n']}-{written}{row['hash']}", problem, *(str(given.get(name) or "") for name in names)]
        yield grid.encode(cells, ())[:-1]


# What comes back


class Why(StrEnum):
    """Why a row that came back is not worked on again."""

    BAD_KEY = "bad_key"
    TWICE = "twice"
    UNKNOWN_ROW = "unknown_row"
    CHANGED = "changed"
    AT_WORK = "at_work"
    NOT_FAILED = "not_failed"
    BAD_CELL = "bad_cell"
    BAD_ROW = "bad_row"
    UNKNOWN_COLUMN = "unknown_column"
    NOTHING_TO_SEARCH = "nothing_to_search"


WORDS = {
    Why.BAD_KEY: "The key isn't one of a downloaded row.",
    Why.TWICE: "The file has this row more than once; the first one counts.",
    Why.UNKNOWN_ROW: "The job has no such row.",
    Why.CHANGED: "The row was changed after it was downloaded. Download it again.",
    Why.AT_WORK: "The row is being worked on.",
    Why.NOT_FAILED: "The row didn't fail, or was fixed before.",
    Why.BAD_CELL: "A cell is too long, or holds something that can't be kept.",
    Why.BAD_ROW: "The row has more cells than the file has columns, or a quote that isn't closed.",
    Why.UNKNOWN_COLUMN: "The job has no column with this name; what it holds was not read.",
    Why.NOTHING_TO_SEARCH: "The row has neither a title nor a SKU.",
}


@dataclass(frozen=True, slots=True)
class Fix:
    """`given`: cells by the names of their columns; those that are not named stay as they were."""

    row_no: int
    hash: str
    given: Mapping[str, str]


@dataclass(slots=True)
class Judged:
    """What becomes of some fixes: rows to write, how many changed nothing, and what did not match."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    unchanged: int = 0
    unmatched: list[dict[str, Any]] = field(default_factory=list)

    def refuse(self, row: int | str, why: Why) -> None:
        self.unmatched.append({"row": row, "code": why, "message": WORDS[why]})


def columns_of(names: Sequence[str], columns: Sequence[str]) -> list[str | None]:
    """Which column of the job each one of a file is: spelled as the file was written, or as the job's own file has it. The key
    and what was wrong are none, also if the job's file has columns of these names."""
    line = header_line(columns).decode().removesuffix("\n")
    written = table.columns(
        line, table.Dialect(encoding="utf-8", delimiter=",", newline="\n", first=0), most=MOST_COLUMNS
    )[len(OURS) :]
    known = {name: name for name in columns if name not in OURS} | dict(zip(written, columns, strict=True))
    return [known.get(name) for name in names]


class Key(NamedTuple):
    row_no: int
    hash: str
    is_guarded: bool


def read_key(text: str) -> Key | None:
    found = _KEY.fullmatch(text.strip())
    return None if found is None else Key(int(found[1]), found[3], found[2] == GUARDED)


def judge(
    fixes: Iterable[Fix], rows: Mapping[int, FixRow], columns: Sequence[str], mapping: Mapping[str, str]
) -> Judged:
    judged, seen = Judged(), set[int]()
    for each in fixes:
        why = _refusal(each, rows.get(each.row_no), seen)
        if why is not None:
            judged.refuse(each.row_no, why)
            continue
        seen.add(each.row_no)
        held = rows[each.row_no].input
        before = {name: str(held[name]) for name in columns if name in held}
        given = before | {
            name: _kept(each.given[name], before.get(name))
            for name in columns
            if each.given.get(name)
            or (name in each.given and name in before)  # a row may have fewer cells than columns
        }
        if given == before:
            judged.unchanged += 1
            continue
        if unstorable(given, 2) or any(len(cell) > table.LONGEST_CELL for cell in given.values()):
            judged.refuse(each.row_no, Why.BAD_CELL)
            continue
        normalized = table.normalized_of(given, mapping)
        if normalized is None:
            judged.refuse(each.row_no, Why.NOTHING_TO_SEARCH)
            continue
        judged.rows.append({"n": each.row_no, "hash": each.hash, "input": given, "normalized": normalized})
    return judged


def _kept(cell: str, before: str | None) -> str:
    """What a file could not hold as it was comes back as it was shown: that changes nothing."""
    return cell if before is None or grid.clean(cell) != grid.short(grid.clean(before)) else before


def _refusal(fix: Fix, row: FixRow | None, seen: set[int]) -> Why | None:
    if fix.row_no in seen:
        return Why.TWICE
    if row is None:
        return Why.UNKNOWN_ROW
    if row.status in OPEN:
        return Why.AT_WORK
    if row.status not in FAILED:
        return Why.NOT_FAILED
    return None if row.hash == fix.hash else Why.CHANGED
