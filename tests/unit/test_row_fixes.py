"""Guards what counts as a change of a row that came back, and how its column with the keys is found."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shared.row_job import fix, grid
from shared.row_job.fixing import key_column
from shared.row_job.model import Status
from shared.row_job.ports import FixRow
from shared.row_job.table import BadFile

COLUMNS, MAPPING = ("title", "brand", "note"), {"title": "title", "brand": "brand"}


def judged(held: Mapping[str, str], given: Mapping[str, str]) -> fix.Judged:
    row = FixRow(row_no=1, status=Status.ERROR, hash="h", input=dict(held))
    return fix.judge([fix.Fix(1, "h", given)], {1: row}, COLUMNS, MAPPING)


@pytest.mark.parametrize("held", ["two\r\nlines", "a bell \x07", "x" * 40_000, "\U0001f600" * 20_000])
def test_a_cell_that_comes_back_as_it_was_shown_is_no_change(held: str) -> None:
    (shown, _) = grid.encode([held], ())

    assert judged({"title": "a", "note": held}, {"title": "a", "note": shown}).unchanged == 1
    (row,) = judged({"title": "a", "note": held}, {"title": "b", "note": shown}).rows
    assert row["input"] == {"title": "b", "note": held}, "what the file could not hold is not lost"


def test_of_a_row_that_comes_twice_the_first_one_counts() -> None:
    row = FixRow(row_no=1, status=Status.ERROR, hash="h", input={"title": "a"})
    twice = [fix.Fix(1, "h", {"title": "b"}), fix.Fix(1, "h", {"title": "c"})]

    found = fix.judge(twice, {1: row}, COLUMNS, MAPPING)

    assert [each["input"] for each in found.rows] == [{"title": "b"}]
    assert [(each["row"], each["code"]) for each in found.unmatched] == [(1, "twice")]


def test_a_cell_that_was_emptied_is_a_change() -> None:
    (row,) = judged({"title": "a", "brand": "wrong"}, {"title": "a", "brand": "", "note": ""}).rows

    assert row["input"] == {"title": "a", "brand": ""}, "and one that the row never had stays away"
    assert row["normalized"] == {"title": "a"}


def test_a_cell_that_the_row_did_not_have_is_added() -> None:
    (row,) = judged({"title": "a"}, {"title": "a", "note": "new"}).rows

    assert row["input"] == {"title": "a", "note": "new"}


def test_the_column_with_the_keys_is_found_however_it_is_written() -> None:
    assert key_column(["title", "BATON_Key"]) == 1
    with pytest.raises(BadFile) as refused:
        key_column(["title", "key"])
    assert refused.value.code == "no_keys"
