"""A table in a file of bytes: what it is written in, where each record ends, and what is wrong with a row.

Nothing is read twice and nothing is kept: `records` takes the bytes from a known place in the file and answers whole records
with the number of bytes that they took, so that whoever comes next begins exactly there.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import orjson
from orjson import Fragment

from shared.kernel.storable import unstorable
from shared.row_job.model import FIELDS

SAMPLE_BYTES = 262_144
MOST_COLUMNS = 1_000
LONGEST_CELL = 100_000
LONGEST_FIELD = 500  # of what is searched for
LONGEST_RECORD = 400_000  # characters; what is longer is taken for a quote that nobody closed
DELIMITERS = ",;\t|"
SAYS = re.compile('"?sep=([,;\t|])"?(?:\r?\n|\r)')
NO_TEXT = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"\x1f\x8b", b"%PDF-")
BOM = codecs.BOM_UTF8
# A BOM says it; without one, text of Windows is what is not UTF-8.
BOMS = ((BOM, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
SOUGHT = frozenset({"title", "sku"})  # one of them is needed to search for anything
ALIASES: Mapping[str, tuple[str, ...]] = {
    "title": ("title", "name", "product", "productname", "producttitle", "description"),
    "brand": ("brand", "manufacturer", "maker", "vendor"),
    "sku": ("sku", "code", "productcode", "articlenumber", "mpn", "ean", "gtin", "upc"),
}

# What makes a record more than text between delimiters.
SURROGATE = re.compile("[\\ud800-\\udfff]")
ODD = re.compile('["\\x00\\r\\n\\ud800-\\udfff]')

# What JSON writes in another way, and what makes a record more than that.
ODD_BYTES = bytes(range(32)) + b'"\\\x7f'
# Of cells in lines: a blank beside another one or at an end, and a cell without anything.
UNCLEAN = ("  ", "\n ", " \n", "\n\n")

csv.field_size_limit(LONGEST_RECORD)


class BadFile(Exception):
    """The file as a whole cannot be read; a code, and words for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a file is written; found once and kept with the job. `first`: where its first record begins."""

    encoding: str
    delimiter: str
    newline: str
    first: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def decode(self, data: bytes, *, last: bool) -> str:
        """Bytes that are none of this encoding become lone surrogates: they come back as they were, and the row shows it. So
        does half a character at the end of the file, which no decoder lets pass."""
        decoder = codecs.getincrementaldecoder(self.encoding)(errors=self.errors)
        half = len(data) % 2 if last and self.is_wide else 0
        return decoder.decode(data[: len(data) - half], last) + "\udc80" * half

    def size(self, text: str) -> int:
        return len(text.encode(self.encoding, self.errors))

    @property
    def is_wide(self) -> bool:
        return self.encoding.startswith("utf-16")

    @property
    def errors(self) -> str:
        return "surrogatepass" if self.is_wide else "surrogateescape"


class Row(NamedTuple):
    """A row as it will be kept: objects, or the JSON of them. `problem`: why it is left out; its input is then shown as far as
    it can be."""

    row_no: int
    input: Any
    normalized: Any = None
    problem: str | None = None


def detect(sample: bytes) -> Dialect:
    """Encoding, line ends and delimiter of a file, from how it begins."""
    if sample.startswith(NO_TEXT):
        raise BadFile(
            "not_csv", "The file is neither text nor a spreadsheet. Save its rows as CSV or XLSX, and upload that."
        )
    if not sample.strip(b"\x00\t\r\n \xef\xbb\xbf\xff\xfe"):
        raise BadFile("empty_file", "The file is empty.")
    encoding, first = _encoding(sample)
    text = Dialect(encoding=encoding, delimiter=",", newline="\n", first=0).decode(sample[first:], last=False)
    newline = "\n" if "\n" in text else "\r" if "\r" in text else "\n"
    if said := SAYS.match(text):  # a first line that some spreadsheets write for each other
        size = Dialect(encoding=encoding, delimiter=",", newline=newline, first=0).size(said[0])
        return Dialect(encoding=encoding, delimiter=said[1], newline=newline, first=first + size)
    header = _first_line(text, newline)
    delimiter = max(DELIMITERS, key=lambda each: (_outside_quotes(header, each), -DELIMITERS.index(each)))
    return Dialect(encoding=encoding, delimiter=delimiter, newline=newline, first=first)


def _encoding(sample: bytes) -> tuple[str, int]:
    for bom, encoding in BOMS:
        if sample.startswith(bom):
            return encoding, len(bom)
    head = sample[:2_000]
    if head[1::2].count(0) > len(head) // 4:
        return "utf-16-le", 0
    if head[0::2].count(0) > len(head) // 4:
        return "utf-16-be", 0
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, False)
    except UnicodeDecodeError as error:
        # One bad byte far inside is a bad row, not another encoding: what comes before it decides.
        return ("utf-8" if not sample[: error.start].isascii() else "cp1252"), 0
    return "utf-8", 0


def _first_line(text: str, newline: str) -> str:
    lines = text.split(newline)
    line = lines[0]
    for more in lines[1:]:
        if line.count('"') % 2 == 0 or len(line) > LONGEST_RECORD:
            break
        line += newline + more
    return line


def _outside_quotes(line: str, character: str) -> int:
    return sum(part.count(character) for part in line.split('"')[::2])


def records(data: bytes, dialect: Dialect, most: int, *, last: bool) -> tuple[list[str], int]:
    """Whole records from the start of `data`, at most so many, and how many bytes they took.

    `last`: the file ends with this data, so its last record is whole without a line end. A quote that stays open for longer
    than a record may be is one that nobody closed: its first line is a record of its own, and a bad one. So is any other line
    that is too long, up to its own end and not beyond it.
    """
    text = dialect.decode(data, last=last)
    found: list[str] = []
    at, taken, newline, end = 0, 0, dialect.newline, len(text)
    while at < end and len(found) < most:
        stop = text.find(newline, at)
        if stop < 0 or text.find('"', at, stop) >= 0:
            stop, is_open = _end_of_record(text, at, dialect)
            if stop < 0:
                if not last and end - at <= LONGEST_RECORD:
                    break  # the rest comes with more bytes
                stop = text.find(newline, at if is_open else at + LONGEST_RECORD)
                if stop < 0 and found and not last:
                    break  # its end is not in sight: it is looked at again from its beginning
                stop = end if stop < 0 else stop
        found.append(text[at:stop])
        at = taken = min(end, stop + 1)
    return found, min(len(data), dialect.size(text[:taken]))


def _end_of_record(text: str, at: int, dialect: Dialect) -> tuple[int, bool]:
    """Where a record ends, or -1; and whether it then stands in an open quote. A quote counts only where a cell begins."""
    place, end = at, min(len(text), at + LONGEST_RECORD)
    while place < end:
        if text[place] == '"':
            place = _end_of_quotes(text, place + 1, end)
            if place < 0:
                return -1, True
        cell, line = text.find(dialect.delimiter, place, end), text.find(dialect.newline, place, end)
        if line >= 0 and (cell < 0 or line < cell):
            return line, False
        if cell < 0:
            return -1, False
        place = cell + 1
    return -1, False


def _end_of_quotes(text: str, place: int, end: int) -> int:
    while True:
        place = text.find('"', place, end)
        if place < 0:
            return -1
        if text[place + 1 : place + 2] != '"':
            return place + 1
        place += 2


def cells(record: str, dialect: Dialect) -> list[str]:
    """The cells of a record. One that cannot be read as such is a single cell."""
    found = _split(record, dialect)
    return [record] if found is None else found


def _split(record: str, dialect: Dialect) -> list[str] | None:
    """None: it has a line end of another kind outside of quotes, so it may be two rows or one."""
    try:
        return next(csv.reader([record.removesuffix("\r")], delimiter=dialect.delimiter, strict=False), [])
    except csv.Error:
        return None


def columns(header: str, dialect: Dialect, *, most: int = MOST_COLUMNS) -> list[str]:
    """The names of the columns: without space around, none empty, none twice."""
    found = cells(header, dialect)
    if len(found) > most:
        raise BadFile("too_many_columns", f"The file has {len(found):,} columns; {most:,} are the most.")
    if unstorable(found, 2) or any(len(each) > 1_000 for each in found):
        raise BadFile("bad_header", "The first line doesn't hold column names that can be read.")
    names: list[str] = []
    for number, cell in enumerate(found, 1):
        name = " ".join(cell.split()) or f"column {number}"
        count = 2
        while name in names:
            name, count = f"{' '.join(cell.split()) or 'column'} {count}", count + 1
        names.append(name)
    if not any(cell.strip() for cell in found):
        raise BadFile("bad_header", "The first line is empty; it must hold the names of the columns.")
    return names


def mapping_of(names: Sequence[str], wanted: Mapping[str, str] | None) -> dict[str, str]:
    """Which column holds what: as asked for, else by its name."""
    if wanted:
        missing = sorted(set(wanted.values()) - set(names))
        if missing:
            raise BadFile("unknown_column", f"The file has no column named {missing[0][:100]!r}.")
        return dict(wanted)
    plain = {"".join(filter(str.isalnum, name.lower())): name for name in reversed(names)}
    return {field: plain[alias] for field in FIELDS for alias in reversed(ALIASES[field]) if alias in plain}


def rows_of(
    found: Sequence[str], after: int, names: Sequence[str], mapping: Mapping[str, str], dialect: Dialect
) -> list[Row]:
    """Records as rows, numbered from `after` on. Nearly all batches are plain and are taken apart as a whole; of the others,
    each record is looked at, and most are split here."""
    texts = [record.removesuffix("\r") for record in found]
    rows = _plain_rows(texts, after, names, mapping, dialect)
    if rows is not None:
        return rows
    rows = []
    delimiter, width, wanted = dialect.delimiter, len(names), tuple(mapping.items())
    for record, text in zip(found, texts, strict=True):
        if len(text) <= LONGEST_CELL and not ODD.search(text):
            parts = text.split(delimiter)
            if len(parts) == width:
                given = dict(zip(names, parts, strict=True))
                normalized = {field: " ".join(given[column].split())[:LONGEST_FIELD] for field, column in wanted}
                if all(normalized.values()):
                    rows.append(Row(after + len(rows) + 1, given, normalized))
                    continue
        row = row_of(after + len(rows) + 1, record, names, mapping, dialect)
        if row is not None:
            rows.append(row)
    return rows


def _plain_rows(
    texts: Sequence[str], after: int, names: Sequence[str], mapping: Mapping[str, str], dialect: Dialect
) -> list[Row] | None:
    """Rows of records that hold nothing odd, written as JSON just as they are: that takes a third of the time. None: one of
    them has something odd, another number of cells, or none where one is wanted; each must be looked at."""
    try:
        data = "".join(texts).encode()
    except UnicodeEncodeError:
        return None
    odd = ODD_BYTES.replace(dialect.delimiter.encode(), b"")
    if not texts or len(data.translate(None, odd)) != len(data) or len(max(texts, key=len)) > LONGEST_CELL:
        return None
    parts = [text.split(dialect.delimiter) for text in texts]
    if set(map(len, parts)) != {len(names)}:
        return None
    wanted = [_clean([cells[at] for cells in parts]) for at in map(names.index, mapping.values())]
    if not all(map(all, wanted)):
        return None
    given, normalized = _form(names), _form(list(mapping))
    return [
        Row(number, Fragment(given % tuple(cells)), Fragment(normalized % clean))
        for number, cells, clean in zip(
            range(after + 1, after + 1 + len(texts)), parts, zip(*wanted, strict=True), strict=True
        )
    ]


def _form(names: Sequence[str]) -> str:
    """A JSON object of these names, with a place for each value that needs no escaping."""
    return "{" + ",".join(orjson.dumps(name).decode().replace("%", "%%") + ':"%s"' for name in names) + "}"


def _clean(cells: Sequence[str]) -> Sequence[str]:
    """Cells without space around and with one blank within; most are so already, which is asked of all at once."""
    whole = "\n".join(["", *cells, ""])
    if whole.isascii() and not any(each in whole for each in UNCLEAN) and len(max(cells, key=len)) <= LONGEST_FIELD:
        return cells
    return [" ".join(cell.split())[:LONGEST_FIELD] for cell in cells]


def row_of(row_no: int, record: str, names: Sequence[str], mapping: Mapping[str, str], dialect: Dialect) -> Row | None:
    """A record as a row; None for an empty line. What cannot be used is kept with its reason."""
    split = _split(record, dialect)
    found = [record] if split is None else split
    if not any(cell.strip() for cell in found):
        return None
    problem = _problem(record, found, names, dialect)
    if problem is None and split is None:
        problem = "The row has a line end outside of quotes."
    if problem is not None:
        shown = {"row": record[:2_000].encode("utf-8", "replace").decode().replace("\x00", "\ufffd")}
        return Row(row_no=row_no, input=shown, problem=problem)
    given = dict(zip(names, found, strict=False))
    normalized = normalized_of(given, mapping)
    if normalized is None:
        return Row(row_no=row_no, input=given, problem="The row has neither a title nor a SKU.")
    return Row(row_no=row_no, input=given, normalized=normalized)


def normalized_of(given: Mapping[str, str], mapping: Mapping[str, str]) -> dict[str, str] | None:
    """What is searched for; None: there is nothing to search for."""
    clean = {field: " ".join(given.get(column, "").split())[:LONGEST_FIELD] for field, column in mapping.items()}
    normalized = {field: value for field, value in clean.items() if value}
    return normalized if SOUGHT & normalized.keys() else None


def misplaced(record: str, found: Sequence[str], names: Sequence[str], dialect: Dialect) -> str | None:
    """Why the cells of a record need not be those of the columns that they stand in."""
    if '"' in record and _end_of_record(record, 0, dialect)[1]:
        return "A quote is opened and not closed."
    if len(found) > len(names) and any(cell.strip() for cell in found[len(names) :]):
        return f"The row has {len(found)} cells; the file has {len(names)} columns."
    return None


def _problem(record: str, found: Sequence[str], names: Sequence[str], dialect: Dialect) -> str | None:
    if (problem := misplaced(record, found, names, dialect)) is not None:
        return problem
    if len(record) > LONGEST_RECORD:
        return f"The row is longer than {LONGEST_RECORD:,} characters."
    if longest := [len(cell) for cell in found if len(cell) > LONGEST_CELL]:
        return f"A cell has {longest[0]:,} characters; {LONGEST_CELL:,} are the most."
    if "\x00" in record:
        return "The row holds a NUL character."
    if SURROGATE.search(record):
        return "The row isn't written in the file's encoding."
    return None
