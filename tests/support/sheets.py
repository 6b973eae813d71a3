"""Files of rows read back as other programs read them, and what each says, in one spelling."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import openpyxl
import python_calamine

from shared.row_job import grid

csv.field_size_limit(2**24)


def from_csv(data: bytes) -> list[list[str]]:
    found = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True))
    return [[grid.unguarded(cell) for cell in row] for row in found]


def from_openpyxl(data: bytes) -> list[list[Any]]:
    book = openpyxl.load_workbook(io.BytesIO(data))
    sheet = book.active
    assert sheet is not None
    assert {cell.data_type for row in sheet.iter_rows() for cell in row} <= {"n", "s", "inlineStr"}, "no formula"
    return [[_read_as_excel_does(cell.value) for cell in row] for row in sheet.iter_rows()]


def from_calamine(data: bytes) -> list[list[Any]]:
    return python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data)).get_sheet_by_index(0).to_python()


def _read_as_excel_does(value: Any) -> Any:
    """`_x0041_` is A to Excel, and to calamine; openpyxl leaves that to its caller."""
    return (
        re.sub("_x([0-9A-Fa-f]{4})_", lambda found: chr(int(found[1], 16)), value) if isinstance(value, str) else value
    )


def spelled(rows: Iterable[Sequence[Any]], numbers: frozenset[int] = grid.NUMBERS) -> list[list[str]]:
    """As all readers can tell it: numbers by their value."""

    def cell(at: int, value: Any) -> str:
        text = "" if value is None else str(value)
        if at in numbers and text:
            try:
                return str(Decimal(text).normalize() + 0)
            except InvalidOperation:
                return text
        return text

    return [[cell(at, value) for at, value in enumerate(row)] for row in rows]


def digest(rows: Iterable[Sequence[Any]]) -> str:
    return hashlib.sha256(json.dumps(spelled(rows)).encode()).hexdigest()
