"""The reader of files: bytes in, whole records and exact places out, whatever a file holds."""

from __future__ import annotations

import csv
import io

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.row_job import table
from shared.row_job.decide import Answered, judge
from shared.row_job.model import Item, RowSettings
from shared.row_job.table import BadFile, Dialect, cells, columns, detect, mapping_of, records, row_of, rows_of

PLAIN = Dialect(encoding="utf-8", delimiter=",", newline="\n", first=0)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\r"), max_size=12)


def read_all(data: bytes, dialect: Dialect, most: int, chunk: int) -> list[str]:
    """As the step reads: a batch at a time, each from exactly where the last one ended."""
    found: list[str] = []
    at = dialect.first
    while at < len(data):
        size = chunk
        while True:
            part = data[at : at + size]
            got, took = records(part, dialect, most, last=at + len(part) >= len(data))
            if got or at + len(part) >= len(data):
                break
            size *= 2
        assert took > 0
        found += got
        at += took
    return found


@pytest.mark.full
@settings(max_examples=150, deadline=None)
@given(
    grid=st.lists(st.lists(texts, min_size=2, max_size=4), min_size=1, max_size=12),
    encoding=st.sampled_from(["utf-8", "utf-16-le", "utf-16-be"]),
    most=st.integers(1, 5),
    chunk=st.integers(4, 64),
)
def test_any_table_is_read_in_any_slices_as_it_was_written(
    grid: list[list[str]], encoding: str, most: int, chunk: int
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(grid)
    dialect = Dialect(encoding=encoding, delimiter=",", newline="\n", first=0)
    data = out.getvalue().encode(encoding)

    assert [cells(record, dialect) for record in read_all(data, dialect, most, chunk * 2)] == grid


@pytest.mark.parametrize(
    ("data", "encoding", "delimiter", "newline"),
    [
        (b"title,sku\na,b\n", "utf-8", ",", "\n"),
        (b"\xef\xbb\xbftitle;sku\r\n\xc3\xa9;b\r\n", "utf-8", ";", "\n"),
        ("title\tsku\n\u00e9\tb\n".encode("utf-16"), "utf-16-le", "\t", "\n"),
        ("title|sku\na|b\n".encode("utf-16-be"), "utf-16-be", "|", "\n"),
        (b"sep=;\r\ntitle;sku\r\na,b;c\r\n", "utf-8", ";", "\n"),
        ("sep=\t\ntitle\tsku\n\u00e9\tb\n".encode("utf-16"), "utf-16-le", "\t", "\n"),
        ("title,sku\nCaf\u00e9,\u20ac5\n".encode("cp1252"), "cp1252", ",", "\n"),
        (b"title,sku\ra,b\r", "utf-8", ",", "\r"),
        (b'"a,b;c;d";sku\n', "utf-8", ";", "\n"),
    ],
    ids=["plain", "bom", "utf16", "utf16 without a mark", "told", "told in utf16", "windows", "old mac", "quoted"],
)
def test_how_a_file_is_written_is_found(data: bytes, encoding: str, delimiter: str, newline: str) -> None:
    found = detect(data)

    assert (found.encoding, found.delimiter, found.newline) == (encoding, delimiter, newline)
    first = columns(records(data[found.first :], found, 1, last=True)[0][0], found)[0]
    assert not first.startswith(("\ufeff", "sep="))


HOSTILE_FILES = {
    "an empty file": (b"", "empty_file"),
    "nothing but a mark": (b"\xef\xbb\xbf", "empty_file"),
    "spaces and lines": (b" \n\n \t\r\n", "empty_file"),
    "ten thousand columns": (b",".join(b"c%d" % n for n in range(10_000)) + b"\n1\n", "too_many_columns"),
    "a NUL in the header": (b"ti\x00tle,sku\na,b\n", "bad_header"),
    "an empty header": (b",,,\na,b,c,d\n", "bad_header"),
    "a spreadsheet": (b"PK\x03\x04 and so on", "not_csv"),
    "a spreadsheet of before 2007": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 and so on", "not_csv"),
    "something packed": (b"\x1f\x8b\x08 and so on", "not_csv"),
}


@pytest.mark.parametrize("what", HOSTILE_FILES)
def test_a_file_that_cannot_be_used_is_refused_by_its_code(what: str) -> None:
    data, code = HOSTILE_FILES[what]

    def look() -> None:
        dialect = detect(data)
        columns(records(data[dialect.first :], dialect, 1, last=True)[0][0], dialect)

    with pytest.raises(BadFile) as refused:
        look()
    assert refused.value.code == code


HOSTILE_ROWS = {
    "a cell of 200 kB": (b"x" * 200_000 + b",1", "A cell has 200,000 characters"),
    "a quote that nobody closes": (b'"open,1', "A quote is opened and not closed."),
    "a NUL": (b"a\x00b,1", "The row holds a NUL character."),
    "bytes of another encoding": (b"caf\xe9,1", "The row isn't written in the file's encoding."),
    "more cells than columns": (b"a,b,c,d", "The row has 4 cells; the file has 2 columns."),
    "a line end of another kind": (b"a,1\rb,2", "The row has a line end outside of quotes."),
    "nothing to look for": (b" , ,", None),
    "no title and no sku": (b",\x20", None),
}


@pytest.mark.parametrize("what", HOSTILE_ROWS)
def test_a_bad_row_is_set_aside_with_its_reason_and_the_next_one_is_read(what: str) -> None:
    bad, reason = HOSTILE_ROWS[what]
    data = b"title,sku\n" + bad + b"\ngood,2\n"
    dialect = Dialect(encoding="utf-8", delimiter=",", newline="\n", first=0)

    found = read_all(data, dialect, 100, 1 << 20)
    rows = [
        row_of(n, record, ["title", "sku"], {"title": "title", "sku": "sku"}, dialect)
        for n, record in enumerate(found[1:], 1)
    ]

    assert rows[-1] is not None
    assert rows[-1].normalized == {"title": "good", "sku": "2"}
    if reason is None:
        assert rows[0] is None
    else:
        assert rows[0] is not None
        assert (rows[0].problem or "").startswith(reason)


def test_an_open_quote_costs_one_row_and_not_the_rest_of_the_file() -> None:
    lines = [b'"5 screen,%d' % n if n == 3 else b"row %d,%d" % (n, n) for n in range(20_000)]
    data = b"\n".join(lines) + b"\n"

    found = read_all(data, PLAIN, 500, 65_536)

    assert len(found) == 20_000


def test_a_line_that_is_too_long_costs_one_row_and_not_those_behind_it() -> None:
    """It ends where it ends: with a quote in it, and at the border of what was read."""
    long = b'"Lamp",' + b"x" * 450_000
    lines = [b"row %d,1" % n for n in range(5_000)]
    data = b"\n".join([*lines, long, b"Chair,2", b"Desk,3"]) + b"\n"
    border = sum(map(len, lines)) + len(lines) + 420_000  # within the long one, and beyond what a record may have

    at_once, in_two = read_all(data, PLAIN, 10_000, len(data)), read_all(data, PLAIN, 10_000, border)

    assert at_once == in_two == data.decode().splitlines()


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("tail", [b"x", b"\n", b"\xd8"])
def test_half_a_character_at_the_end_of_a_file_costs_one_row(encoding: str, tail: bytes) -> None:
    data = "title,sku\na,1\nb,2".encode(encoding) + tail
    dialect = detect(data)
    assert dialect.encoding == encoding

    found, size = records(data, dialect, 10, last=True)
    first, last = (row_of(n, each, ["title", "sku"], {"title": "title"}, dialect) for n, each in enumerate(found[1:]))

    assert size == len(data), "a reader comes to the end of it"
    assert first is not None
    assert first.normalized == {"title": "a"}
    assert last is not None
    assert last.problem == "The row isn't written in the file's encoding."


def test_a_quote_inside_a_cell_is_just_that() -> None:
    assert read_all(b'5" screen,1\n7" screen,2\n', PLAIN, 10, 100) == ['5" screen,1', '7" screen,2']


def test_a_record_may_have_lines() -> None:
    assert records(b'"a\nb",1\nc,2\n', PLAIN, 10, last=True) == (['"a\nb",1', "c,2"], 12)
    assert records(b'"a\nb', PLAIN, 10, last=False) == ([], 0)
    assert records(b"a,1\nb,2", PLAIN, 10, last=False) == (["a,1"], 4)
    assert records(b"a,1\nb,2", PLAIN, 10, last=True) == (["a,1", "b,2"], 7)
    assert records(b"a\n\xc3", PLAIN, 10, last=False) == (["a"], 2)


def test_columns_have_names_of_their_own_and_are_found_by_them() -> None:
    names = columns(" Product  Name ,brand,,brand", PLAIN)

    assert names == ["Product Name", "brand", "column 3", "brand 2"]
    assert mapping_of(names, None) == {"title": "Product Name", "brand": "brand"}
    assert mapping_of(names, {"sku": "brand 2"}) == {"sku": "brand 2"}
    with pytest.raises(BadFile, match="no column named"):
        mapping_of(names, {"sku": "nope"})


def test_a_row_without_title_and_sku_is_left_out() -> None:
    row = row_of(1, "acme,", ["brand", "title"], {"brand": "brand", "title": "title"}, PLAIN)

    assert row is not None
    assert row.problem == "The row has neither a title nor a SKU."
    assert table.row_of(1, "", ["title"], {"title": "title"}, PLAIN) is None


signs = ["a", "b", " ", "  ", "\t", "\\", "%", "%s", "\u00e9", "\uff1d", "\u3000", "\x7f", "\x1f", "\x0b"]
odd = st.text(st.sampled_from(["a", "b", " ", ",", '"', "\x00", "\r", "\ud800", "\u00e9"]), max_size=12)
few = st.lists(st.lists(st.sampled_from(signs), max_size=4).map("".join), min_size=2, max_size=4).map(",".join)
three = st.lists(
    st.lists(st.sampled_from(["a", "b c", "\u00e9", "%s", "x" * 501]), min_size=1, max_size=3).map("".join),
    min_size=3,
    max_size=3,
)


@pytest.mark.full
@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.lists(odd, max_size=6), st.lists(few, max_size=3), st.lists(three.map(",".join), min_size=1, max_size=3)
    ),
    st.sampled_from(["", "\r"]),
)
def test_records_that_are_split_at_once_are_the_rows_that_a_close_look_finds(found: list[str], end: str) -> None:
    """Whichever way they are taken apart, the database is given the same."""
    found = [record + end for record in found]
    names, mapping = ["title", 'a "%s" \\name', "sku"], {"title": "title", "sku": "sku"}
    closely: list[table.Row] = []
    for record in found:
        row = row_of(7 + len(closely) + 1, record, names, mapping, PLAIN)
        if row is not None:
            closely.append(row)

    split = rows_of(found, 7, names, mapping, PLAIN)
    assert [orjson.loads(orjson.dumps(list(row))) for row in split] == [list(row) for row in closely]


def test_a_line_feed_in_a_file_of_carriage_returns_is_no_blank_within_a_row() -> None:
    """Two rows would be one that somebody searches for. The file's line ends are those of its beginning."""
    dialect = Dialect(encoding="utf-8", delimiter=",", newline="\r", first=0)
    found, _ = records(b"Lamp\nChair\rDesk\r", dialect, 10, last=True)

    odd, plain = rows_of(found, 0, ["title"], {"title": "title"}, dialect)

    assert odd.problem == "The row has a line end outside of quotes."
    assert plain.normalized == {"title": "Desk"}


def test_a_plain_batch_is_taken_apart_as_a_whole() -> None:
    (row,) = rows_of(["a b,c,d"], 0, ["title", "brand", "sku"], {"title": "title"}, PLAIN)

    assert isinstance(row.input, orjson.Fragment)
    assert orjson.dumps(list(row)) == b'[1,{"title":"a b","brand":"c","sku":"d"},{"title":"a b"},null]'


def test_a_row_comes_again_later_while_most_others_fail_too() -> None:
    item, failed = Item(row_no=1, attempts=2, normalized={"title": "x"}), Answered(what="failed", ms=1)

    waits = [judge(item, failed, RowSettings(), 0.0, spike).again_s for spike in (False, True)]

    assert waits == [60.0, 120.0]


def test_names_that_come_again_and_again_are_still_names_of_their_own() -> None:
    assert columns("a,a,a 2,a,,", PLAIN) == ["a", "a 2", "a 2 2", "a 3", "column 5", "column 6"]


def test_one_cell_too_many_is_enough_to_leave_a_row_out() -> None:
    row = row_of(1, "Lamp, Acme,L-1", ["title", "sku"], {"title": "title", "sku": "sku"}, PLAIN)
    assert row is not None
    assert row.problem == "The row has 3 cells; the file has 2 columns."
