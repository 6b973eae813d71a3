"""Guards that a spreadsheet is read as the person sees it, whatever program wrote it, and that no file makes its reader grow."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from typing import Any

import openpyxl
import pytest
from openpyxl.utils.datetime import CALENDAR_MAC_1904

from shared.row_job import sheets, xlsx
from shared.row_job.fixing import line_of
from shared.row_job.table import LONGEST_CELL, LONGEST_RECORD, BadFile

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"


def fetch_of(data: bytes) -> Callable[[int, int], bytes]:
    return lambda at, length: data[at : at + length]


def read(data: bytes, at: sheets.At | None = None) -> list[list[str]]:
    return [row for rows, _ in sheets.Sheet(fetch_of(data), len(data)).rows(at) for row in rows]


def refusal(data: bytes) -> str:
    with pytest.raises(BadFile) as refused:
        read(data)
    return refused.value.code


def archive(sheet: bytes | Iterator[bytes], **parts: str) -> bytes:
    """A workbook of these parts; `sheet` is all of its XML, and may be made as it is packed."""
    known = {
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}"><Relationship Id="a" Type="{REL}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{REL}"><sheets><sheet name="x" sheetId="1" r:id="b"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}"><Relationship Id="b" Type="{REL}/worksheet" Target="/xl/s.xml"/>'
        f'<Relationship Id="c" Type="{REL}/sharedStrings" Target="strings.xml"/></Relationships>',
        "xl/strings.xml": f'<sst xmlns="{MAIN}"></sst>',
        **{name.replace("__", "/").replace("_xml", ".xml"): text for name, text in parts.items()},
    }  # fmt: skip
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in known.items():
            made.writestr(name, text)
        with made.open("xl/s.xml", "w") as part:
            for piece in [sheet] if isinstance(sheet, bytes) else sheet:
                part.write(piece)
    return out.getvalue()


def sheet_of(rows: str) -> bytes:
    return f'<worksheet xmlns="{MAIN}"><sheetData>{rows}</sheetData></worksheet>'.encode()


def book(rows: list[list[Any]], *, mac: bool = False) -> bytes:
    made = openpyxl.Workbook()
    if mac:
        made.epoch = CALENDAR_MAC_1904
    sheet = made.active
    assert sheet is not None
    for row in rows:
        sheet.append(row)
    out = io.BytesIO()
    made.save(out)
    return out.getvalue()


WHEN = datetime(2026, 1, 31, 13, 5)  # noqa: DTZ001 - a sheet knows no zone
CELLS: list[tuple[Any, str]] = [
    ("plain", "plain"), ("'=x", "'=x"), (" both ", " both "), ("a\nb", "a\nb"), ("שלום", "שלום"), ("😀", "😀"), ("00123", "00123"),
    (7, "7"), (9.9, "9.9"), (0.1 + 0.2, "0.3"), (1e20, "1e+20"), (123456789012345, "123456789012345"), (-5.5, "-5.5"), (True, "TRUE"),
    (False, "FALSE"), (date(2026, 1, 31), "2026-01-31"), (WHEN, "2026-01-31 13:05:00"), (time(7, 30), "07:30:00"),
    (None, ""), ("=1+1", sheets.UNKNOWN), ("x" * 32_767, "x" * 32_767), ("_x005F_x0041_", "_x0041_"),
]  # fmt: skip


@pytest.mark.parametrize("mac", [False, True])
def test_each_cell_is_what_the_person_sees(mac: bool) -> None:
    """Days are counted from 1900, or from 1904 where the file says so. openpyxl keeps no result of a formula: nobody knows it."""
    given = [cell for cell, _ in CELLS]

    (header, row) = read(book([["a"] * len(given), given], mac=mac))

    assert len(header) == len(given)
    assert [*row, *[""] * (len(given) - len(row))] == [shown for _, shown in CELLS]


LOOKS: list[tuple[float, str, str]] = [
    # decimals and leading zeros; separators and currency signs go
    (12.5, "0.00", "12.50"), (12, "0.00", "12.00"), (1234567.5, "#,##0.00", "1234567.50"), (12.345, "0.00", "12.35"), (0.5, "#.00", "0.50"),
    (42, "00000", "00042"), (12.5, '"$"#,##0.00', "12.50"), (12.5, "[$€-407] #,##0.00", "12.50"), (12.5, '#,##0.00\\ "€"', "12.50"),
    (12.5, "0.0#", "12.5"), (12, "0.##", "12"), (12.25, "0.0##", "12.25"),
    # below zero and zero, as accountants write them
    (-12.5, "0.00;[Red]0.00", "-12.50"), (-12.5, '_("$"* #,##0.00_);_("$"* \\(#,##0.00\\);_("$"* "-"??_);_(@_)', "-12.50"),
    (0, '_("$"* #,##0.00_);_("$"* \\(#,##0.00\\);_("$"* "-"??_);_(@_)', "0.00"), (-0.001, "0.00", "0.00"), (0, '0;-0;"sold out"', "sold out"),
    # percents, words, digits in groups
    (0.125, "0.0%", "12.5%"), (0.5, "0%", "50%"), (1.5, '0.00" kg"', "1.50 kg"), (42, '"SKU-"00000', "SKU-00042"), (5551234, "000-0000", "555-1234"),
    (5551234567, "(###) ###-####", "(555) 123-4567"),
    # times that have passed
    (1.5, "[h]:mm", "36:00:00"),
    # what is not followed is the number
    (12.5, "General", "12.5"), (12500, "0,", "12500"), (12.5, "# ?/?", "12.5"), (12500, "0.00E+00", "12500"), (12.5, "[>100]0.00", "12.5"),
    (12.5, "@", "12.5"), (12.5, "0" * 300, "12.5"), (12.5, "0." + "0" * 250, "12.5" + "0" * 249), (1e20, "0.00", "1e+20"), (12.5, ";;;", "12.5"),
]  # fmt: skip


def test_a_number_is_shown_by_its_format() -> None:
    """As a person would read it out, without decoration; also where a file names a format by its number alone."""
    made = openpyxl.Workbook()
    sheet = made.active
    assert sheet is not None
    for at, (value, code, _) in enumerate(LOOKS, 1):
        sheet.cell(at, 1, value).number_format = code
        sheet.cell(at, 2, f"{value}").number_format = code  # a text is a text, whatever it looks like
    out = io.BytesIO()
    made.save(out)

    found = read(out.getvalue())

    assert [row[0] for row in found] == [shown for _, _, shown in LOOKS]
    assert [row[1] for row in found] == [f"{value}" for value, _, _ in LOOKS]


def test_a_price_that_is_exported_keeps_its_zeros() -> None:
    """It is a number to a spreadsheet, and shown as it is; and it comes back so."""
    out = io.BytesIO()
    made = xlsx.Workbook(out, ["row", "price"])
    prices = ["12.50", "12.00", "12.5", "12", "0.10", "-3.00", "1.2300"]
    made.write([[str(n), price] for n, price in enumerate(prices)], frozenset({0, 1}))
    made.close()

    assert [row[1] for row in read(out.getvalue())[1:]] == prices
    told = openpyxl.load_workbook(io.BytesIO(out.getvalue())).active
    assert told is not None
    assert [(cell.value, cell.number_format) for cell in told["B"][1:4]] == [
        (12.5, "0.00"),
        (12, "0.00"),
        (12.5, "General"),
    ]


def test_a_file_of_ours_comes_back_as_it_went() -> None:
    cells = ["r1-t0123456789abcdef", "'=1", "=1+1", "_x0041_", "a&b<c>", " x ", "", "\ufffd", "😀", "00123"]
    out = io.BytesIO()
    made = xlsx.Workbook(out, ["baton_key", "title"])
    made.write([[xlsx.escape(cell) for cell in cells]])
    made.close()

    assert read(out.getvalue()) == [["baton_key", "title"], cells]


def test_what_programs_write_in_their_own_ways() -> None:
    """Rich text, how it is read aloud, results of formulas, merged cells, gaps, prefixes, errors; and no reference at all."""
    strings = (
        f'<x:sst xmlns:x="{MAIN}"><x:si><x:r><x:t>ri</x:t></x:r><x:r><x:t xml:space="preserve">ch </x:t></x:r></x:si>'
        "<x:si><x:t>kanji</x:t><x:rPh><x:t>aloud</x:t></x:rPh></x:si></x:sst>"
    )
    rows = (
        '<x:row r="1"><x:c r="A1" t="s"><x:v>0</x:v></x:c><x:c r="C1" t="s"><x:v>1</x:v></x:c><x:c r="D1" t="s"><x:v>9</x:v></x:c></x:row>'
        '<x:row r="5"/><x:row><x:c t="str"><x:f>A1&amp;"x"</x:f><x:v>worked out</x:v></x:c><x:c><x:f>1/0</x:f></x:c>'
        '<x:c t="e"><x:f>1/0</x:f><x:v>#DIV/0!</x:v></x:c><x:c t="inlineStr"><x:is><x:t>in</x:t><x:rPh><x:t>aloud</x:t></x:rPh></x:is></x:c>'
        "<x:c><x:v>nonsense</x:v></x:c><x:c><x:v>NaN</x:v></x:c></x:row>"
    )
    sheet = f'<x:worksheet xmlns:x="{MAIN}"><x:sheetData>{rows}</x:sheetData><x:mergeCells><x:mergeCell ref="A1:B1"/></x:mergeCells></x:worksheet>'

    first, empty, last = read(archive(sheet.encode(), xl__strings_xml=strings))

    unknown = sheets.UNKNOWN
    assert first == ["rich ", "", "kanji", unknown]
    assert empty == []
    assert last == ["worked out", unknown, unknown, "in", unknown, unknown]


def test_a_place_that_no_list_has_is_a_cell_that_shows_nothing() -> None:
    """Python refuses to read a number of so many digits: that would be the reader's end, and not the cell's."""
    far = "9" * 5_000
    styles = f'<styleSheet xmlns="{MAIN}"><cellXfs><xf numFmtId="{far}"/></cellXfs></styleSheet>'
    rels = (
        f'<Relationships xmlns="{PACKAGE}"><Relationship Id="b" Type="{REL}/worksheet" Target="/xl/s.xml"/>'
        f'<Relationship Id="d" Type="{REL}/styles" Target="styles.xml"/></Relationships>'
    )
    row = f'<row><c t="s"><v>{far}</v></c><c s="{far}"><v>7</v></c><c s="0"><v>8</v></c></row>'

    (found,) = read(archive(sheet_of(row), xl__styles_xml=styles, **{"xl/_rels/workbook.xml.rels": rels}))

    assert found == [sheets.UNKNOWN, "7", "8"]


@pytest.mark.full
def test_a_reader_goes_on_at_the_row_where_another_one_stopped() -> None:
    rows = [[f"title {n}", f"text {n} " * (n % 50), n] for n in range(3_000)]
    data = book(rows)
    whole = read(data)
    assert [row[0] for row in whole] == [f"title {n}" for n in range(3_000)]

    stops = 0
    found: list[list[str]] = []
    at: sheets.At | None = None
    while not stops or at is not None:
        began = at
        for rows_now, at in sheets.Sheet(fetch_of(data), len(data)).rows(began):
            found += rows_now
            if at != began:
                break
        stops += 1
        assert len(found) <= len(whole)
    assert found == whole
    assert stops > 2


def test_the_first_sheet_counts_and_its_header_needs_no_more_than_its_beginning() -> None:
    made = openpyxl.Workbook()
    for name in ("first", "second"):
        sheet = made.create_sheet(name)
        for _ in range(3):
            sheet.append([])
        sheet.append([name, "title"])
        sheet.append(["x", "y"])
    del made["Sheet"]
    out = io.BytesIO()
    made.save(out)
    data = out.getvalue()

    assert sheets.Sheet(fetch_of(data), len(data)).first(1) == [["first", "title"]]
    blank = archive(sheet_of(f"<row/>{' ' * 300_000}" * 70 + '<row><c r="A1"><v>1</v></c></row>'))
    with pytest.raises(BadFile, match="far too many empty rows"):
        sheets.Sheet(fetch_of(blank), len(blank)).first(1)
    assert read(blank)[-1] == ["1"], "who has the time reads on"


BOMB = b'<row><c r="A1" t="inlineStr"><is><t>' + b" " * 200_000 + b"</t></is></c></row>"


def endless(head: bytes, piece: bytes, count: int) -> Iterator[bytes]:
    yield f'<worksheet xmlns="{MAIN}"><sheetData>'.encode() + head
    for _ in range(count):
        yield piece


def with_lie(data: bytes, name: bytes) -> bytes:
    """The directory says that this member is small."""
    at = data.rindex(name) - 46
    return data[: at + 24] + struct.pack("<L", 100) + data[at + 28 :]


STRINGS = f'<sst xmlns="{MAIN}">' + f"<si><t>{'x' * 30_000}</t></si>" * 100 + "</sst>"
HOSTILE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "no directory": ("bad_zip", lambda: b"PK\x03\x04" + b"x" * 100),
    "an archive of something else": ("not_a_sheet", lambda: _zipped("mimetype", "application/vnd.oasis.opendocument.spreadsheet")),
    "a password, or before 2007": ("not_a_sheet", lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 1_000),
    "no sheet": ("not_a_sheet", lambda: archive(b"", xl__workbook_xml=f'<workbook xmlns="{MAIN}"><sheets/></workbook>')),
    "a sheet that is elsewhere": ("not_a_sheet", lambda: archive(sheet_of("")).replace(b"xl/s.xml", b"xl/t.xml")),
    "an empty sheet": ("bad_sheet", lambda: archive(b"")),
    "no XML": ("bad_sheet", lambda: archive(b"\x00\xff garbage")),
    "cut off": ("bad_sheet", lambda: archive(f'<worksheet xmlns="{MAIN}"><sheetData><row><c><v>1'.encode())),
    "entities": ("bad_sheet", lambda: archive(b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + sheet_of("<row><c><v>&b;</v></c></row>"))),
    "another encoding": ("bad_sheet", lambda: archive('<?xml version="1.0" encoding="UTF-16"?>'.encode("utf-16") + sheet_of("").decode().encode("utf-16-le"))),
    "a name that never ends": ("bad_sheet", lambda: archive(endless(b"<row a='", b"x" * 300_000, 40))),
    "a long name": ("bad_sheet", lambda: archive(f'<worksheet xmlns="{MAIN}"><{"x" * 200}:sheetData>'.encode())),
    "a column beyond the last": ("bad_sheet", lambda: archive(sheet_of('<row><c r="ZZZZZZZZ1"><v>1</v></c></row>'))),
    "no column": ("bad_sheet", lambda: archive(sheet_of('<row><c r="1"><v>1</v></c></row>'))),
    "a member that is larger than it says": ("zip_bomb", lambda: with_lie(archive(sheet_of("<row/>" * 50_000)), b"xl/s.xml")),
    "strings without end": ("too_large", lambda: archive(sheet_of('<row><c t="s"><v>99</v></c></row>'), xl__strings_xml=STRINGS)),
    "a byte that was changed": ("bad_zip", lambda: _flipped(archive(sheet_of("<row><c><v>123456789</v></c></row>" * 50)))),
}  # fmt: skip


def _zipped(name: str, text: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr(name, text)
    return out.getvalue()


def _flipped(data: bytes) -> bytes:
    """As if one digit had been another: it unpacks, but it is not what was packed."""
    at = data.rindex(b"PK\x01\x02")
    assert data[at + 46 :].startswith(b"xl/s.xml")
    return data[: at + 16] + struct.pack("<L", zlib.crc32(b"else")) + data[at + 20 :]


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_cannot_be_read_is_refused_with_its_code(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "MOST_TEXT", 2**20)
    code, make = HOSTILE[what]

    assert refusal(make()) == code


@pytest.mark.full
def test_a_sheet_that_grows_is_read_in_constant_memory() -> None:
    """30 MB of one cell, and rows without anything: some kilobytes when they are packed."""
    long = archive(endless(b'<row><c r="A1" t="inlineStr"><is><t>', b" " * 600_000, 50))
    blank = archive(sheet_of('<row r="1" spans="1:5"/>' * 50_000))
    assert len(long) + len(blank) < 200_000

    tracemalloc.start()
    assert refusal(long) == "bad_sheet"
    count = sum(len(rows) for rows, _ in sheets.Sheet(fetch_of(blank), len(blank)).rows())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == 50_000
    assert peak < 8 * 2**20


def test_a_cell_that_is_too_long_is_known_to_be() -> None:
    text = "x" * (LONGEST_CELL + 5_000)
    (row,) = read(archive(sheet_of(f'<row><c t="inlineStr"><is><t>{text}</t></is></c><c><v>1</v></c></row>')))

    assert len(row[0]) > LONGEST_CELL
    assert row[1] == "1"


def test_a_row_that_is_too_long_for_a_line_keeps_its_key() -> None:
    line = line_of(["r1-t0123456789abcdef", *['"' * 90_000] * 5, "short"]).decode()

    assert len(line) < LONGEST_RECORD
    assert line.startswith('"r1-t0123456789abcdef",')
    assert line.endswith(f'"{sheets.UNKNOWN}","short"\n')


@pytest.mark.parametrize(
    ("book", "format_", "number", "shown"),
    [
        ("", 'numFmtId="14"', "59", "1900-02-28"), ("", 'numFmtId="14"', "61", "1900-03-01"),
        ("", 'numFmtId="15"', "46053", "2026-01-31"), ("", 'numFmtId="47"', "46053.5", "2026-01-31 12:00:00"),
        ("", 'numFmtId="9"', "0.5", "50%"), ("", 'numFmtId="44"', "12.5", "12.50"), ("", 'numFmtId="46"', "1.5", "36:00:00"), ("", 'numFmtId="0"', "7.5", "7.5"),
        ('<workbookPr date1904="true"/>', 'numFmtId="14"', "44591", "2026-01-31"),
        ("", 'numFmtId="200"', "1234.5", "1234.50"), ("", 'numFmtId="201"', "46053", "2026-01-31"), ("", 'numFmtId="4"', "7.5", "7.50"),
    ],
)  # fmt: skip
def test_what_is_a_date_says_its_format(book: str, format_: str, number: str, shown: str) -> None:
    """Also a day before the 29 February that spreadsheets take for one, and a color that is spelled with a d."""
    workbook = f'<workbook xmlns="{MAIN}" xmlns:r="{REL}">{book}<sheets><sheet name="x" sheetId="1" r:id="b"/></sheets></workbook>'
    styles = (
        f'<styleSheet xmlns="{MAIN}"><numFmts><numFmt numFmtId="200" formatCode="[Red]0.00"/><numFmt numFmtId="201" formatCode="yyyy"/>'
        f"</numFmts><cellXfs><xf {format_}/></cellXfs></styleSheet>"
    )
    rels = (
        f'<Relationships xmlns="{PACKAGE}"><Relationship Id="b" Type="{REL}/worksheet" Target="/xl/s.xml"/>'
        f'<Relationship Id="d" Type="{REL}/styles" Target="styles.xml"/></Relationships>'
    )
    parts = {"xl/_rels/workbook.xml.rels": rels, "xl/workbook.xml": workbook, "xl/styles.xml": styles}

    assert read(archive(sheet_of(f'<row><c s="0"><v>{number}</v></c></row>'), **parts)) == [[shown]]
