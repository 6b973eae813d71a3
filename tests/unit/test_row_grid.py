"""Guards the one encoder of rows: the same cells in the grid, in CSV and in XLSX, whatever they hold."""

from __future__ import annotations

import csv
import io
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.row_job import fix, grid, xlsx
from shared.row_job.model import Status
from shared.row_job.ports import FixRow
from tests.support.sheets import digest, from_calamine, from_csv, from_openpyxl

HOSTILE = [
    "=1+1", '=HYPERLINK("http://x","y")', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "''", "'n Sync", "＝1", "＠x",  # noqa: RUF001
    "\x00\x01\x0b\x1f", "a\r\nb\rc\nd", "\uffff\ufffe", "x" * 40_000, "😀" * 20_000, "שלום", "\u202eevil", "_x0041_", "_x005F_x0041_",
    "</t></is>", "&amp;", "a;=1+1", 'say "hi"', "a,b", "  ", " both ", "", "00123", "1e5", "12345678901234567", "-5.00", "9.90", "\ud83d",
]  # fmt: skip
WIDTH = len(grid.COLUMNS)
cells = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30))


def as_the_database_writes(row: list[str]) -> bytes:
    """As COPY does: text in quotes, nothing is nothing."""
    row = [cell.encode("utf-8", "ignore").decode().replace("\x00", "") for cell in row]
    written = [c if at in grid.BARE or not c else '"' + c.replace('"', '""') + '"' for at, c in enumerate(row)]
    return (",".join(written) + ",\n").encode()


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(cells, min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=4))
def test_grid_csv_and_xlsx_are_the_same_rows(found: list[list[str]]) -> None:
    for n, row in enumerate(found, 1):
        for at in grid.BARE:
            row[at] = str(n)
    stored = [[c.encode("utf-8", "ignore").decode().replace("\x00", "") for c in row] for row in found]
    lines = [as_the_database_writes(row) for row in found]

    shown = [list(grid.HEADERS), *(grid.encode(row, grid.HEADERS) for row in stored)]
    written = grid.HEADER_LINE + grid.csv_rows(lines)
    book = io.BytesIO()
    sheet = xlsx.Workbook(book, grid.HEADERS)
    sheet.write(xlsx.rows_of(lines), grid.NUMBERS)
    sheet.close()

    truth = digest(shown)
    assert digest(from_csv(written)) == truth
    assert digest(from_openpyxl(book.getvalue())) == truth
    assert digest(from_calamine(book.getvalue())) == truth
    for row in csv.reader(io.StringIO(written.decode(), newline="")):
        for at, cell in enumerate(row):
            assert not cell.startswith(tuple("=+-@\t\r\n")) or (at in grid.NUMBERS and grid.is_number(cell)), cell


@settings(max_examples=100, deadline=None)
@given(st.lists(cells, min_size=WIDTH, max_size=WIDTH))
def test_a_plain_block_is_what_cell_by_cell_would_write(row: list[str]) -> None:
    for at in grid.BARE:
        row[at] = "7"
    line = as_the_database_writes(row)
    slowly = "".join(
        grid.csv_line(each, grid.NUMBERS, grid.BARE) for each in grid.encoded(grid.read_csv(line.decode()))
    )

    assert grid.csv_rows([line]) == slowly.encode()


@pytest.mark.parametrize("text", [*HOSTILE, *map(chr, range(1, 32)), *(f"a{sign}" for sign in map(chr, range(1, 32)))])
def test_one_odd_cell_among_plain_ones_is_seen(text: str) -> None:
    row = [text if at == 2 else "7" if at in grid.BARE else "a" for at in range(WIDTH)]
    line = as_the_database_writes(row)
    (read,) = grid.read_csv(line.decode())

    encoded = grid.csv_line(grid.encode(read[:-1], grid.HEADERS), grid.NUMBERS, grid.BARE)
    assert grid.csv_rows([line]) == encoded.encode()


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_is_lost_by_an_apostrophe(text: str) -> None:
    assert grid.unguarded(grid.guarded(text)) == text


def test_what_is_too_long_is_cut_and_said_to_be() -> None:
    shown = grid.encode(["1", "x" * 32_767, "y" * 32_768, "😀" * 16_384], ("a", "b", "c", "d"))

    assert shown[-1] == "c, d"
    assert [len(cell.encode("utf-16-le")) // 2 for cell in shown[1:4]] == [32_767, 32_767, 32_767]
    assert (shown[1][-1], shown[2][-1], shown[3][-1]) == ("x", "…", "…")


def test_a_workbook_is_written_forward_only_and_always_the_same() -> None:
    class Sink(io.RawIOBase):
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes) -> int:  # type: ignore[override]
            self.data += data
            return len(data)

        def seek(self, *_: int) -> int:
            raise AssertionError("a bucket takes no step back")

        tell = seek

    files = []
    for _ in range(2):
        sink = Sink()
        book = xlsx.Workbook(sink, ["a"])
        book.write([["1"]])
        book.close()
        files.append(sink.data)
    assert files[0] == files[1]
    with zipfile.ZipFile(io.BytesIO(files[0])) as archive:
        assert archive.testzip() is None
        assert all(entry.extra == b"" for entry in archive.infolist()), "no extensions for 4 GB"


COLUMNS = ["title", "brand", "note"]
MAPPING = {"title": "title", "brand": "brand"}


def held(row_no: int, status: str = "ERROR", **given: str) -> FixRow:
    return FixRow(row_no=row_no, status=Status(status), hash="a" * 16, input=given)


def judged(*fixes: fix.Fix, **more: str) -> fix.Judged:
    rows = {
        1: held(1, title="x", brand="y"),
        2: held(2, "PROCESSING", title="x"),
        3: held(3, "DONE", title="x"),
        4: held(4, row="broken"),
    }
    rows[5] = held(5, title="x", note="a\r\nb" + "z" * 40_000)
    return fix.judge(fixes, rows, COLUMNS, MAPPING)


def test_only_rows_that_failed_and_are_as_they_were_are_fixed() -> None:
    told = judged(
        fix.Fix(1, "a" * 16, {"title": "new", "other": "ignored"}), fix.Fix(1, "a" * 16, {"title": "again"}),
        fix.Fix(2, "a" * 16, {"title": "new"}), fix.Fix(3, "a" * 16, {"title": "new"}), fix.Fix(9, "a" * 16, {"title": "new"}),
        fix.Fix(4, "b" * 16, {"title": "new"}),
    )  # fmt: skip

    assert [(row["n"], row["input"], row["normalized"]) for row in told.rows] == [
        (1, {"title": "new", "brand": "y"}, {"title": "new", "brand": "y"})
    ]
    assert [(each["row"], each["code"]) for each in told.unmatched] == [
        (1, "twice"), (2, "at_work"), (3, "not_failed"), (9, "unknown_row"), (4, "changed"),
    ]  # fmt: skip


def test_a_row_that_was_not_changed_is_left_alone_although_no_file_could_hold_it() -> None:
    shown = grid.encode(["a\r\nb" + "z" * 40_000], ("note",))[0]

    assert judged(fix.Fix(5, "a" * 16, {"title": "x", "note": shown.replace("\n", "\r\n")})).unchanged == 1
    (row,) = judged(fix.Fix(5, "a" * 16, {"title": "new", "note": shown})).rows
    assert len(row["input"]["note"]) > 40_000, "what was cut in the file stays whole in the row"


@pytest.mark.parametrize(
    ("given", "why"),
    [({"title": " ", "brand": "x"}, "nothing_to_search"), ({"title": "a\x00"}, "bad_cell"), ({"title": "\ud800"}, "bad_cell"),
     ({"title": "x" * 100_001}, "bad_cell")],
)  # fmt: skip
def test_a_fix_that_cannot_be_kept_is_reported(given: dict[str, str], why: str) -> None:
    assert [each["code"] for each in judged(fix.Fix(1, "a" * 16, given)).unmatched] == [why]


@pytest.mark.parametrize(
    "key", ["", "r1", "1-aaaaaaaaaaaaaaaa", "r1-h" + "A" * 16, "r1-h" + "a" * 17, "r-1-h" + "a" * 16, "=r1"]
)
def test_a_key_is_one_of_ours_or_none(key: str) -> None:
    assert fix.read_key(key) is None
    assert fix.read_key(" r12-h0123456789abcdef ") == fix.Key(12, "0123456789abcdef", is_guarded=True)
    assert fix.read_key("r12-t0123456789abcdef") == fix.Key(12, "0123456789abcdef", is_guarded=False)
