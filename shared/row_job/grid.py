"""What a row is for people: the same cells in the grid, in CSV and in XLSX. No I/O.

Every way out takes its cells from one list of columns, reads them from what was kept (nothing is worked out again), and writes
them by one encoder: what no spreadsheet can hold is replaced, what is too long is cut and said to be, and no cell is a formula.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

LONGEST_CELL: Final = 32_767  # of a spreadsheet, in UTF-16 units
CUT: Final = "…"
REPLACED: Final = "\ufffd"


@dataclass(frozen=True, slots=True)
class Column:
    """`sql`: of the row as it was (`v`) and its best offer (`b`). `number`: what looks like a number is one. `bare`: the
    database knows that it is one."""

    name: str
    sql: str
    number: bool = False
    bare: bool = False


def _best(name: str) -> str:
    return f"left(b.{name}, {LONGEST_CELL + 1})"


COLUMNS: Final = (
    Column("row", "i.row_no", number=True, bare=True),
    Column("status", "v.status"),
    Column("title", "v.normalized_json ->> 'title'"),
    Column("brand", "v.normalized_json ->> 'brand'"),
    Column("sku", "v.normalized_json ->> 'sku'"),
    Column("attempts", "v.attempts", number=True, bare=True),
    Column("found_title", _best("title")),
    Column("found_brand", _best("brand")),
    Column("found_sku", _best("sku")),
    Column("price", "b.price", number=True),
    Column("currency", _best("currency")),
    Column("retailer", f"left(coalesce(b.retailer, b.domain), {LONGEST_CELL + 1})"),
    Column("url", _best("url")),
    Column("score", "b.score", number=True),
    Column("in_stock", "case b.in_stock when 'true' then 'yes' when 'false' then 'no' end"),
    Column("error", f"left(v.last_error, {LONGEST_CELL + 1})"),
    Column("updated_at", """to_char(v.updated_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""),
)
# The columns that were cut come last; only the encoder knows them.
HEADERS: Final = (*(column.name for column in COLUMNS), "cut")
NUMBERS: Final = frozenset(at for at, column in enumerate(COLUMNS) if column.number)
BARE: Final = frozenset(at for at, column in enumerate(COLUMNS) if column.bare)
QUOTED: Final = tuple(column.name for column in COLUMNS if not column.bare)
# What was found once and not the last time is no offer of the row: a price beside NOT_FOUND would be read as today's. It stays
# in the row itself, with each search.
BEST: Final = (
    "left join lateral jsonb_to_record(case when v.status not in ('NOT_FOUND', 'ERROR') then v.result_json -> 'offers' -> 0 end) "
    "as b (title text, brand text, sku text, price text, "
    "currency text, url text, retailer text, domain text, score text, in_stock text) on true"
)

# What XML and so a spreadsheet cannot hold. Line ends are one character, because XML readers make them one.
_LINE_ENDS = re.compile("\r\n?")
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# More than 15 digits are not kept by a spreadsheet: such a number stays a text.
_NUMBER = re.compile(r"-?(?=[0-9.]{1,16}$)[0-9]{1,15}(?:\.[0-9]{1,14})?")
# A cell that begins like this is a formula to a spreadsheet, in its own spelling or the wide one. An apostrophe before it says
# that it is text; one that is there already gets another, so that nothing is lost.
_FORMULA: Final = tuple("=+-@\t\n\r'＝＋－＠")  # noqa: RUF001 - the wide ones are meant
# Whether any row of some CSV must be looked at cell by cell; nearly none must. Text is always in quotes there.
_ODD = re.compile(rb"[\x00-\x08\x0b-\x1f]|\xef\xbf[\xbe\xbf]|[,\n]\"(?:[=+@\t\n'-]|\xef\xbc[\x8b\x8d\x9d\xa0])")
# The same question for a tenth of the time, which is most of an export's: a block without any of these signs has nothing odd.
_SPELLING: Final = bytes(
    0 if byte in b"\x0b\x0c\r" or byte < 9 or 13 < byte < 32 else ord("=") if byte in b"=+@\t\n'-" else byte
    for byte in range(256)
)
_SUSPICIOUS: Final = (b"\0", b',"=', b'="=', b"\xef")


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def clean(text: str) -> str:
    """A text without what no spreadsheet can hold."""
    return _ILLEGAL.sub(REPLACED, _LINE_ENDS.sub("\n", text))


def short(text: str) -> str:
    """A text that fits into a cell; one that does not ends with `…`."""
    if len(text) * 2 <= LONGEST_CELL or len(units := text.encode("utf-16-le", "replace")) <= 2 * LONGEST_CELL:
        return text
    return units[: 2 * (LONGEST_CELL - 1)].decode("utf-16-le", "ignore") + CUT


def encode(cells: Sequence[str | None], names: Sequence[str]) -> list[str]:
    """Cells as they are shown everywhere, and last the names of those that were cut."""
    texts = [clean(cell or "") for cell in cells]
    shown = [short(text) for text in texts]
    cut = [name for name, text, kept in zip(names, texts, shown, strict=False) if text != kept]
    return [*shown, ", ".join(cut)]


# CSV


def guarded(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def unguarded(cell: str) -> str:
    """A cell of a file of ours as it was before."""
    return cell[1:] if cell[:1] == "'" and cell[1:].startswith(_FORMULA) else cell


def csv_line(cells: Sequence[str], numbers: frozenset[int] = frozenset(), bare: frozenset[int] = frozenset()) -> str:
    """All but what is surely a number in quotes. A program that separates by something else splits lines all the same."""
    written = [
        cell
        if not cell or at in bare
        else '"' + (cell if at in numbers and is_number(cell) else guarded(cell)).replace('"', '""') + '"'
        for at, cell in enumerate(cells)
    ]
    return ",".join(written) + "\n"


HEADER_LINE: Final = csv_line(HEADERS).encode()


def csv_rows(rows: Sequence[bytes]) -> bytes:
    """Rows of our columns, as the database writes them in CSV, with what must be encoded encoded."""
    block = b"".join(rows)
    if is_plain(rows, block):
        return block
    return "".join(csv_line(cells, NUMBERS, BARE) for cells in encoded(read_csv(block.decode()))).encode()


def is_plain(rows: Sequence[bytes], block: bytes) -> bool:
    """Whether every cell of these rows is as it will be shown. A cell is never longer than its row."""
    if len(max(rows, key=len)) > LONGEST_CELL:
        return False
    spelled = block.translate(_SPELLING)
    return not any(sign in spelled for sign in _SUSPICIOUS) or not _ODD.search(block)


def read_csv(text: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""))


def encoded(rows: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    """Rows of our columns; the last cell is empty until the encoder says what was cut."""
    return (encode(cells[:-1], HEADERS) for cells in rows)
