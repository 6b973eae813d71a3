"""A spreadsheet (XLSX) that comes back, read as a stream: the rows of its first sheet, each cell as the person sees it.

Only what a cell holds is read, never how it came to be: of a formula, what the spreadsheet program last worked out. The archive
is unpacked in small pieces that are counted, its strings are kept as bytes up to a limit, and a reader that has to stop goes on
at the row where it stopped. Pure but for `fetch`, which answers bytes of the file.
"""

from __future__ import annotations

import math
import posixpath
import re
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, Literal
from xml.parsers import expat

from shared.row_job import fix, looks, table
from shared.row_job.images import DEFLATED, STORED, BadImage, Fetch, content, entries
from shared.row_job.table import BadFile

LARGEST_SHEET: Final = 2**31  # unpacked
LARGEST_STRINGS: Final = 2**29
MOST_TEXT: Final = 64 * 2**20  # bytes of strings that cells share, which are kept
MOST_STRINGS: Final = 2_000_000
LARGEST_PART: Final = 4 * 2**20  # of what says where the sheet is and how its cells look
MOST_LOOKED_AT: Final = 64  # pieces of a sheet, for its header
LONGEST_PLACE: Final = 18  # digits of the number of a string or a style
LONGEST_NAME: Final = 100  # of an element that a reader has to know to go on
MOST_STUCK: Final = 16  # pieces within one name or value: nothing of ours is as long
UNKNOWN: Final = "\x00"  # a cell that shows nothing that can be kept: an error, or a formula that was never worked out

_ZIP, _OLD = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"
_SPELLED = re.compile("_x([0-9A-Fa-f]{4})_")
_NOT_OF_A_DATE = re.compile(r'"[^"]*"|\[[^\]]*\]|\\.|_.|\*.')
_ELAPSED = re.compile(r"\[(h+|m+|s+)\]", re.IGNORECASE)
ELAPSED: Final = 46
_DATES: Final = frozenset([*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)])


def is_one(head: bytes) -> bool:
    """Whether a file begins like a spreadsheet, of today or of before 2007."""
    return head.startswith((_ZIP, _OLD))


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Where a row begins, in the unpacked sheet, and what the sheet calls the elements around it."""

    byte: int
    root: str
    data: str


class _Enough(Exception):
    """All that is wanted was seen."""


class Sheet:
    """The first sheet of a file. What is wrong with all of it is a BadFile."""

    def __init__(self, fetch: Fetch, size: int) -> None:
        if fetch(0, 4).startswith(_OLD):
            raise BadFile("not_a_sheet", "The spreadsheet has a password or an old format. Save it as XLSX or CSV.")
        self._fetch = fetch
        self._parts = {each.name.lstrip("/"): each for each in entries(fetch, size)}
        self._sheet, strings, styles, since_1904 = self._find()
        self._epoch = datetime(1904, 1, 1) if since_1904 else datetime(1899, 12, 30)  # noqa: DTZ001 - a sheet knows no zone
        self._styles = self._read_styles(styles)
        self._strings = _Strings(self._pieces(strings, LARGEST_STRINGS) if strings else iter(()))

    def rows(self, at: At | None = None) -> Iterator[tuple[list[list[str]], At | None]]:
        """Rows as they come, and where to go on behind them: None before the first one, and at the end."""
        reader = _Rows(self._value, at)
        pieces = self._pieces(self._sheet, LARGEST_SHEET)
        if at is not None:
            pieces = _behind(pieces, at.byte)
        for piece in pieces:
            if reader.feed(piece):
                deque(pieces, maxlen=0)  # whether all of it is whole is known at its end
                yield reader.take(), None
                return
            yield reader.take(), reader.at
        raise BadFile("bad_sheet", "The sheet has no end: the file is damaged.")

    def first(self, most: int) -> list[list[str]]:
        """The first rows with anything in them. Somebody waits for the answer: they are not looked for to the end of the sheet."""
        pieces = islice(self.rows(), MOST_LOOKED_AT)
        found = list(islice((row for rows, _ in pieces for row in rows if any(cell.strip() for cell in row)), most))
        if not found:
            raise BadFile("empty_file", "The first sheet is empty, or begins with far too many empty rows.")
        return found

    # What a file holds, and where.

    def _find(self) -> tuple[str, str | None, str | None, bool]:
        """The first sheet, the strings and the styles, by what the workbook says."""
        sheets: list[str] = []
        since_1904 = False

        def on_book(name: str, given: Mapping[str, str]) -> None:
            nonlocal since_1904
            if name == "workbookPr":
                since_1904 = given.get("date1904") in ("1", "true")
            elif name == "sheet":
                sheets.append(next((value for key, value in given.items() if key.rpartition(":")[2] == "id"), ""))

        book = self._target("_rels/.rels", "", "/officeDocument")
        if book is None:
            raise BadFile("not_a_sheet", "The file isn't a spreadsheet. Upload the rows as XLSX or CSV.")
        self._parse(book, on_book)
        folder, name = posixpath.split(book)
        rels = posixpath.join(folder, "_rels", f"{name}.rels")
        sheet = next(filter(None, (self._target(rels, folder, "/worksheet", each) for each in sheets)), None)
        if sheet is None:
            raise BadFile("not_a_sheet", "The spreadsheet has no sheet with cells.")
        strings, styles = (self._target(rels, folder, end) for end in ("/sharedStrings", "/styles"))
        return sheet, strings, styles, since_1904

    def _target(self, rels: str, folder: str, type_: str, id_: str | None = None) -> str | None:
        found: list[str] = []

        def on_relation(name: str, given: Mapping[str, str]) -> None:
            if name == "Relationship" and given.get("Type", "").endswith(type_) and id_ in (None, given.get("Id")):
                found.append(given.get("Target", ""))

        if rels not in self._parts:
            return None
        self._parse(rels, on_relation)
        paths = [
            each[1:] if each.startswith("/") else posixpath.normpath(posixpath.join(folder, each)) for each in found
        ]
        return next((path for path in paths if path in self._parts), None)

    def _read_styles(self, part: str | None) -> list[_Style]:
        """Of each style, how its numbers look."""
        custom: dict[str, str] = {}
        used: list[str] = []
        inside: list[str] = []

        def on_start(name: str, given: Mapping[str, str]) -> None:
            inside.append(name)
            if name == "numFmt":
                custom[given.get("numFmtId", "")] = given.get("formatCode", "")
            elif name == "xf" and inside[-2:-1] == ["cellXfs"]:
                used.append(given.get("numFmtId", "0"))

        if part is None:
            return []
        self._parse(part, on_start, lambda _: inside.pop())
        known = {each: _style(_place(each), custom.get(each)) for each in set(used)}
        return [known[each] for each in used]

    def _parse(
        self, part: str, on_start: Callable[[str, Mapping[str, str]], None], on_end: Callable[[str], Any] | None = None
    ) -> None:
        parser = _parser()
        parser.StartElementHandler = lambda name, given: on_start(_local(name), given)
        if on_end is not None:
            parser.EndElementHandler = lambda name: on_end(_local(name))
        for piece in self._pieces(part, LARGEST_PART):
            _feed(parser, piece)

    def _pieces(self, part: str, most: int) -> Iterator[bytes]:
        member, size, crc = self._parts[part], 0, 0
        if member.is_locked or member.method not in (STORED, DEFLATED):
            raise BadFile(
                "not_a_sheet", "The spreadsheet has a password or an unknown packing. Save it as XLSX or CSV."
            )
        try:
            for piece in content(member, self._fetch):
                size, crc = size + len(piece), zlib.crc32(piece, crc)
                if size > min(most, member.size):
                    raise BadFile("zip_bomb", "The spreadsheet is far larger than it says. Save the rows as CSV.")
                yield piece
        except BadImage:
            raise BadFile("bad_zip", "The spreadsheet is damaged, or not all of it was uploaded.") from None
        if size != member.size or crc != member.crc:
            raise BadFile("bad_zip", "The spreadsheet is damaged, or not all of it was uploaded.")

    # What a cell shows.

    def _value(self, kind: str, style: str, text: str, is_formula: bool) -> str:
        if kind == "s":
            return self._strings.get(text)
        if kind in ("str", "inlineStr"):
            return _spelled(text)
        if kind == "e" or (is_formula and not text):
            return UNKNOWN
        if kind == "b":
            return {"1": "TRUE", "0": "FALSE"}.get(text.strip(), UNKNOWN)
        if kind == "d" or not text.strip():
            return text.strip()
        at = _place(style)
        return _number(text, self._styles[at] if at is not None and at < len(self._styles) else None, self._epoch)


def _place(text: str) -> int | None:
    """A place in a list, as a file names it. None: it is none, or so far behind every list that Python would not read it."""
    text = text.strip()
    return int(text) if len(text) <= LONGEST_PLACE and text.isdecimal() else None


# How numbers of a style are shown: as dates, as a time that has passed, by their format, or (None) as they are.
_Style = Literal["date", "elapsed"] | looks.Look | None


def _style(built_in: int | None, code: str | None) -> _Style:
    if code is None:
        known = looks.BUILT_IN.get(-1 if built_in is None else built_in)
        return (
            "elapsed" if built_in == ELAPSED else "date" if built_in in _DATES else looks.look(known) if known else None
        )
    if _ELAPSED.search(code):
        return "elapsed"
    return "date" if _is_of_a_date(code) else looks.look(code)


def _number(text: str, style: _Style, epoch: datetime) -> str:
    """A number as people write it: spreadsheets keep 9.9 as 9.9000000000000004."""
    try:
        value = float(text)
    except ValueError:
        return UNKNOWN
    if not math.isfinite(value):
        return UNKNOWN
    if style == "elapsed" and 0 <= value < looks.LARGEST:
        minutes, seconds = divmod(round(value * 86_400), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    if not isinstance(style, str):
        shown = style.show(value) if style else None
        if shown is not None:
            return shown
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else format(value, ".15g")
    try:
        # Days before March 1900 are counted by one too many: spreadsheets know a 29 February of that year.
        days = value + 1 if epoch.year == 1899 and value < 60 else value
        at = epoch + timedelta(seconds=round(days * 86_400))
    except OverflowError:
        return UNKNOWN
    if 0 <= value < 1:
        return at.strftime("%H:%M:%S")
    return at.strftime("%Y-%m-%d" if (at.hour, at.minute, at.second) == (0, 0, 0) else "%Y-%m-%d %H:%M:%S")


def _is_of_a_date(code: str) -> bool:
    return bool(re.search("[ymdhs]", _NOT_OF_A_DATE.sub("", code).partition(";")[0], re.IGNORECASE))


def _spelled(text: str) -> str:
    return _SPELLED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


class _Strings:
    """The strings that cells share, read as far as somebody asks, each a stretch of one row of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._parser = pieces, _parser()
        self._text, self._ends = bytearray(), array("Q")
        self._inside: list[str] = []
        self._one: list[str] = []
        self._length = 0
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._start, self._end
        self._parser.CharacterDataHandler = self._say

    def get(self, number: str) -> str:
        at = _place(number)
        if at is None:
            return UNKNOWN
        while at >= len(self._ends):
            piece = next(self._pieces, None)
            if piece is None:
                return UNKNOWN
            _feed(self._parser, piece)
        return self._text[self._ends[at - 1] if at else 0 : self._ends[at]].decode("utf-8", "surrogatepass")

    def _start(self, name: str, given: Mapping[str, str]) -> None:  # noqa: ARG002 - as expat calls it
        self._inside.append(_local(name))

    def _end(self, name: str) -> None:
        self._inside.pop()
        if _local(name) != "si":
            return
        self._text += _spelled("".join(self._one)).encode("utf-8", "surrogatepass")
        self._ends.append(len(self._text))
        self._one, self._length = [], 0
        if len(self._text) > MOST_TEXT or len(self._ends) > MOST_STRINGS:
            raise BadFile("too_large", "The spreadsheet holds more text than can be read at once. Save it as CSV.")

    def _say(self, text: str) -> None:
        # How a text is read aloud stands beside it, and is not what the cell shows.
        if self._inside[-1:] == ["t"] and "rPh" not in self._inside and self._length <= table.LONGEST_CELL:
            self._one.append(text)
            self._length += len(text)


class _Rows:
    """A parser of a sheet that is fed with pieces. A row is given out when the next one begins, which is where to go on."""

    def __init__(self, value: Callable[[str, str, str, bool], str], at: At | None) -> None:
        self._value, self._parser = value, _parser()
        self._byte, self._data = (at.byte, at.data) if at else (0, "")
        self._done: list[list[str]] = []
        self._row: list[str] | None = None
        self._cell: list[str] | None = None
        self._length = self._column = self._stuck = 0
        self._kind = self._style = ""
        self._is_formula = self._takes = self._moved = False
        self._root = at.root if at else ""
        head = f"<{at.root}><{at.data}>".encode() if at else b""
        self._shift = at.byte - len(head) if at else 0
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._start, self._end
        self._parser.CharacterDataHandler = self._say
        _feed(self._parser, head)

    def feed(self, piece: bytes) -> bool:
        """Whether the sheet is over."""
        self._moved = False
        try:
            _feed(self._parser, piece)
        except _Enough:
            return True
        self._stuck = 0 if self._moved else self._stuck + 1
        if self._stuck > MOST_STUCK:
            raise BadFile("bad_sheet", "The sheet can't be read.")
        return False

    def take(self) -> list[list[str]]:
        done, self._done = self._done, []
        return done

    @property
    def at(self) -> At | None:
        """Where the row begins that was not given out; None before the first one."""
        return At(byte=self._byte, root=self._root, data=self._data) if self._byte else None

    def _start(self, tag: str, given: Mapping[str, str]) -> None:
        self._moved = True
        if not self._root:
            self._root = tag
        if len(tag) > LONGEST_NAME:
            raise BadFile("bad_sheet", "The sheet can't be read.")
        name = _local(tag)
        if name == "c" and self._row is not None:
            self._column = _column(given.get("r"), self._column + 1)
            self._kind, self._style = given.get("t", "n"), given.get("s", "")
            self._cell, self._length, self._is_formula = [], 0, False
        elif name in ("v", "t"):
            self._takes = self._cell is not None
        elif name == "f":
            self._is_formula = True
        elif name == "row" and self._data:
            self._flush()
            self._byte = self._shift + self._parser.CurrentByteIndex
            self._row, self._column = [], -1
        elif name == "sheetData":
            self._data = tag
        elif name == "rPh":
            self._cell_is_over()

    def _end(self, tag: str) -> None:
        self._moved = True
        name = _local(tag)
        if name == "c":
            self._cell_is_over()
        elif name in ("v", "t"):
            self._takes = False
        elif name == "sheetData":
            self._flush()
            raise _Enough

    def _say(self, text: str) -> None:
        self._moved = True
        if self._takes and self._cell is not None and self._length <= table.LONGEST_CELL:
            self._cell.append(text)
            self._length += len(text)

    def _cell_is_over(self) -> None:
        if self._cell is None or self._row is None:
            return
        text = "".join(self._cell)
        self._cell = None
        value = self._value(self._kind, self._style, text, self._is_formula)
        if value and self._column < fix.MOST_COLUMNS:
            self._row.extend([""] * (self._column + 1 - len(self._row)))
            self._row[self._column] = value

    def _flush(self) -> None:
        if self._row is not None:
            self._done.append(self._row)
        self._row = None


def _column(reference: str | None, following: int) -> int:
    """The number of `C` in `C5`, from 0; without one, the cell follows the one before."""
    if reference is None:
        return following
    number = 0
    for sign in reference:
        if not "A" <= sign <= "Z":
            break
        number = 26 * number + ord(sign) - 64
        if number > 20_000:
            raise BadFile("bad_sheet", "The sheet can't be read.")
    if not number:
        raise BadFile("bad_sheet", "The sheet can't be read.")
    return number - 1


def _behind(pieces: Iterator[bytes], place: int) -> Iterator[bytes]:
    for piece in pieces:
        if place < len(piece):
            yield piece[place:]
        place = max(0, place - len(piece))


def _local(tag: str) -> str:
    return tag.rpartition(":")[2] if ":" in tag else tag


def _parser() -> Any:
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_types  # nobody needs any, and entities are a way to grow
    parser.XmlDeclHandler = _refuse_encodings
    return parser


def _refuse_types(*_: object) -> None:
    raise BadFile("bad_sheet", "The spreadsheet declares types of its own, which isn't read here.")


def _refuse_encodings(_version: str, encoding: str | None, _standalone: int) -> None:
    if (encoding or "utf-8").lower() not in ("utf-8", "us-ascii"):
        raise BadFile("bad_sheet", "The spreadsheet isn't written in UTF-8.")


def _feed(parser: Any, piece: bytes) -> None:
    try:
        parser.Parse(piece, False)
    except expat.ExpatError:
        raise BadFile("bad_sheet", "The spreadsheet can't be read: it is damaged.") from None
