"""A spreadsheet as a stream: one sheet, its rows written as they come, in constant memory.

Strings are inline, so none is a formula and nothing has to be kept until the end. The archive is written from its beginning to
its end, because a bucket takes it in parts; without the extensions for 4 GB, which some programs do not read.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from shared.row_job import grid

LARGEST_SHEET: Final = 2**30  # before it is packed; a page of the longest rows still fits below 2 GB
LEVEL: Final = 1
MOST_DECIMALS: Final = 14  # of what is written as a number

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_FRAME: Final = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
    f'<Override PartName="/xl/styles.xml" ContentType="{_TYPE}.styles+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPE}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_REL}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_REL}/worksheet" Target="worksheets/sheet1.xml"/>'
    f'<Relationship Id="rId2" Type="{_REL}/styles" Target="styles.xml"/></Relationships>',
    # Style 2 shows two decimals, and so on: a price of 12.50 is a number, and keeps its zero.
    "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><numFmts count="{MOST_DECIMALS}">'
    + "".join(f'<numFmt numFmtId="{164 + n}" formatCode="0.{"0" * n}"/>' for n in range(1, MOST_DECIMALS + 1))
    + '</numFmts><fonts count="1"><font/></fonts><fills count="2"><fill><patternFill patternType="none"/></fill>'
    '<fill><patternFill patternType="gray125"/></fill></fills><borders count="1"><border/></borders>'
    '<cellStyleXfs count="1"><xf/></cellStyleXfs>'
    f'<cellXfs count="{MOST_DECIMALS + 1}"><xf xfId="0"/>'
    + "".join(f'<xf numFmtId="{164 + n}" xfId="0" applyNumberFormat="1"/>' for n in range(1, MOST_DECIMALS + 1))
    + '</cellXfs><cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_REL}"><sheets>'
    '<sheet name="Rows" sheetId="1" r:id="rId1"/></sheets></workbook>',
}
_HEAD: Final = (
    f'{_XML}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">'
    '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/></sheetView></sheetViews><sheetData>'
)
_TAIL: Final = "</sheetData></worksheet>"
# What a spreadsheet takes for a character of its own spelling: `_x0041_` is A. Spelled out, it stays as it is.
_SPELLED = re.compile(r"_(?=x[0-9A-Fa-f]{4}_)")


class Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...


class _Forward:
    """Somewhere to write to and nothing else: seeking and telling the position are refused."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, data: bytes) -> int:
        self._sink.write(bytes(data))
        return len(data)

    def flush(self) -> None: ...


class Workbook:
    """Write a header and rows, then `close`. `size` is what the sheet takes before it is packed."""

    def __init__(self, sink: Sink, headers: Sequence[str]) -> None:
        self._archive = zipfile.ZipFile(_Forward(sink), "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL)  # type: ignore[call-overload]
        for name, body in _FRAME.items():
            with self._archive.open(name, "w") as part:  # which writes no time: the same rows are the same file
                part.write((_XML + body).encode())
        self._sheet = self._archive.open("xl/worksheets/sheet1.xml", "w")
        self.size = 0
        self._write(_HEAD)
        self._write(row([escape(name) for name in headers], frozenset()))

    def write(self, rows: Iterable[Sequence[str]], numbers: frozenset[int] = frozenset()) -> None:
        """Rows that the encoder made, escaped."""
        self._write("".join([row(cells, numbers) for cells in rows]))

    def close(self) -> None:
        self._write(_TAIL)
        self._sheet.close()
        self._archive.close()

    def _write(self, text: str) -> None:
        data = text.encode()
        self.size += len(data)
        self._sheet.write(data)


def escape(text: str) -> str:
    return _SPELLED.sub("_x005F_", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def row(cells: Sequence[str], numbers: frozenset[int]) -> str:
    return (
        "<row>"
        + "".join(
            [
                "<c/>"
                if not cell
                else f"<c{_style(cell)}><v>{cell}</v></c>"
                if at in numbers and grid.is_number(cell)
                else f'<c t="inlineStr"><is><t xml:space="preserve">{cell}</t></is></c>'
                for at, cell in enumerate(cells)
            ]
        )
        + "</row>"
    )


def _style(number: str) -> str:
    """Only where a zero at its end would not be shown."""
    return f' s="{len(number) - number.index(".") - 1}"' if number[-1] == "0" and "." in number else ""


def rows_of(rows: Sequence[bytes]) -> Iterable[Sequence[str]]:
    """Rows of the grid's columns, as the database writes them in CSV, encoded and escaped. Where nothing has to be encoded, a
    block is escaped whole: that makes no new cells."""
    block = b"".join(rows)
    if grid.is_plain(rows, block):
        return grid.read_csv(escape(block.decode()))
    return ([escape(cell) for cell in cells] for cells in grid.encoded(grid.read_csv(block.decode())))
