"""The words of the nightly sheet: nights, what a lane remembers, rows as they are read and written. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, time
from enum import StrEnum
from typing import Any, Self
from uuid import UUID

from shared.kernel.clock import read_id
from shared.kernel.model import Json
from shared.search.decide import night_of

PROVIDER = "google_sheets"
LANE = "sheet"
TAB = "Companies"
ZONE, OPENS, CLOSES = "Europe/Madrid", time(3), time(6)
HEADER = ("Id", "Name", "Open offers", "First seen", "Last seen", "Link", "Feedback")
WRITTEN = 6  # the columns that are ours; feedback is the readers' own
FIRST_ROW = 2
READ_ROWS, WRITE_ROWS = 2_000, 500  # in one request
# Google refuses a whole request for one cell of more than 50,000 characters, and advises at most 2 MB of it.
LONGEST_NAME, LONGEST_LINK = 500, 1_000
MOST_COMPANIES = 50_000
MOST_ROWS = 200_000  # of a tab that is read at all
MOST_COLUMNS = 702  # of a tab that are looked at, up to ZZ
PER_MINUTE, BURST = 60, 10  # requests of one service account, whoever asks
PATIENCE_S = 300.0  # how far ahead a slot is kept for somebody
SLOT_LASTS_S = 10.0
MOST_MOVES = 3  # how often a night starts over because somebody is sorting the sheet


class Feedback(StrEnum):
    RELEVANT = "relevant"
    IRRELEVANT = "irrelevant"
    BLOCKED = "blocked"


class NightStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    SYNCED = "synced"
    FAILED = "failed"
    MISSED = "missed"
    CANCELED = "canceled"


ALARMING = frozenset({NightStatus.FAILED, NightStatus.MISSED})


class SheetPhase(StrEnum):
    OPEN = "open"
    ADD = "add"
    TITLES = "titles"
    HEAD = "head"
    READ = "read"
    PLAN = "plan"
    WRITE = "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetCursor:
    """`rows`, `width`: how many rows and columns the tab has. `columns`: where each of ours is. `row`: the last one that was read
    or written. `grid`: the tab's own id. `added`: it was asked for. `moved`: how often its rows or
    columns had moved when they were to be written. `slot_at`: when the next request may be sent, kept for the attempt `slot_of`."""

    sheet: str
    connection: str
    phase: str = SheetPhase.OPEN
    epoch: int = 1
    grid: int = 0
    rows: int = 0
    width: int = 0
    columns: Sequence[int] = ()
    row: int = 0
    added: bool = False
    moved: int = 0
    slot_at: str | None = None
    slot_of: int = 0

    @classmethod
    def read(cls, told: Json) -> Self:
        return cls(**told)

    def to_json(self) -> Json:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def but(self, **new: Any) -> Self:
        return replace(self, **new)

    def afresh(self, epoch: int, moved: int = 0) -> Self:
        return type(self)(sheet=self.sheet, connection=self.connection, epoch=epoch, moved=moved)

    @property
    def requests(self) -> int:
        """How many a step of this phase sends: a batch of rows is looked at and then written."""
        return 2 if self.phase == SheetPhase.WRITE else 1


@dataclass(frozen=True, slots=True)
class Tab:
    grid: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Block:
    """Cells to be written from `row` on, each under its title: in the order of `HEADER`, or of its beginning."""

    row: int
    values: Sequence[Sequence[str | int]]


class WrongColumns(ValueError):
    """A title that is missing or is there twice: nobody knows where to write."""


def columns_of(titles: Sequence[Any]) -> list[int]:
    """Where each of our columns is, by its title: readers add, move and sort columns as they like."""
    said, found = plain_titles(titles), list[int]()
    for title in HEADER:
        places = [at for at, cell in enumerate(said) if cell == title]
        if len(places) != 1:
            where = f"{len(places)} columns called {title} ({', '.join(map(letters, places))})"
            raise WrongColumns(where if places else f"no column called {title}")
        found += places
    return found


def plain_titles(cells: Sequence[Any]) -> list[Any]:
    return [cell.strip() if isinstance(cell, str) else cell for cell in cells]


def letters(column: int) -> str:
    """The name of a column, from 0: A, Z, AA."""
    return (letters(column // 26 - 1) if column >= 26 else "") + chr(ord("A") + column % 26)


def side_by_side(columns: Sequence[int]) -> list[list[int]]:
    """Which of our columns follow each other in the sheet: each group is one range."""
    groups: list[list[int]] = []
    for number in sorted(range(len(columns)), key=columns.__getitem__):
        if groups and columns[groups[-1][-1]] + 1 == columns[number]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRow:
    """A row of the sheet that is not empty. `company`: by its key, if it has one; `said`: its feedback cell has anything."""

    row: int
    company: UUID | None
    feedback: Feedback | None
    said: bool


def seen_rows(first: int, values: Sequence[Sequence[Any]]) -> list[SeenRow]:
    """What our columns of some rows mean. Anyone with the link wrote it: a cell that is not exactly one of our words says nothing."""
    found = []
    for number, cells in enumerate(values, first):
        if not any(cell not in ("", None) for cell in cells):
            continue
        key, said = (cells[0] if cells else ""), (cells[WRITTEN] if len(cells) > WRITTEN else "")
        company = read_id(key.strip()) if isinstance(key, str) else None
        found.append(SeenRow(row=number, company=company, feedback=feedback_of(said), said=said not in ("", None)))
    return found


def has_moved(first: int, values: Sequence[Sequence[Any]], planned: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a row no longer holds the company that it is about to be written for. One that was placed, or is to go, may
    be empty; and a write whose answer was lost is found as it was meant."""
    for row in planned:
        at = row["row_no"] - first
        cells = values[at] if at < len(values) else ()
        key = cells[0] if cells else ""
        if isinstance(key, str) and read_id(key.strip()) == row["id"]:
            continue
        empty = not any(cell not in ("", None) for cell in cells)
        if not (empty and (row["placed"] or row["gone"])):
            return True
    return False


def feedback_of(cell: Any) -> Feedback | None:
    word = cell.strip().casefold() if isinstance(cell, str) else ""
    return Feedback(word) if word in set(Feedback) else None


def blocks(rows: Sequence[tuple[int, Sequence[str | int]]]) -> list[Block]:
    """Rows that follow each other in one block. A row with more cells than another ends it."""
    found: list[tuple[int, list[Sequence[str | int]]]] = []
    for number, cells in rows:
        if found and found[-1][0] + len(found[-1][1]) == number and len(found[-1][1][-1]) == len(cells):
            found[-1][1].append(cells)
        else:
            found.append((number, [cells]))
    return [Block(number, values) for number, values in found]


def next_night(
    now: datetime, last: date | None, opens: time, closes: time, zone: str
) -> tuple[date, datetime, datetime]:
    """The night that is open or comes next, and was not there before: its local date, when it opens and when it closes."""
    night, begins, ends = night_of(now, opens, closes, zone)
    while last is not None and night <= last:
        night, begins, ends = night_of(ends, opens, closes, zone)
    return night, begins, ends
