"""The nightly sheet: filled by key, read back, once a night and in its window, within the quota of its account."""

from __future__ import annotations

from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from shared.search.sheets.model import HEADER
from tests.support.rig import TENANT
from tests.support.searches import DAY_S, SearchRig

HOUR = 3_600.0


def column(rig: SearchRig, number: int, tab: str = "Companies") -> list[object]:
    return [row[number - 1] for row in rig.google.tab(tab).table()[1:]]


def keys(rig: SearchRig) -> list[int]:
    return [UUID(str(each)).int for each in column(rig, 1)]


def test_a_sheet_is_filled_at_night(searches: SearchRig) -> None:
    searches.add_companies(1, 3)
    sheet = searches.add_sheet()
    searches.go(HOUR)
    assert not searches.google.times, "it is midnight: the window is not open yet"
    searches.go(2 * HOUR)
    (night, following) = searches.nights(sheet)
    assert (night["status"], night["rows_written"], night["night"]) == ("synced", 3, date(2026, 1, 1)), night
    assert (following["status"], following["opens_at"]) == ("waiting", datetime(2026, 1, 2, 2, tzinfo=UTC))
    table = searches.google.tab().table()
    assert table[0] == list(HEADER)
    assert table[1][:3] == [str(UUID(int=1)), "Company 1", 1]
    assert not searches.google.wrong


def test_rows_stay_where_their_readers_put_them(searches: SearchRig) -> None:
    """They sort it, add notes and rows of their own; the next night finds every company by its key."""
    searches.add_companies(1, 4)
    searches.add_sheet()
    searches.go(3 * HOUR)
    grid = searches.google.tab()
    old = dict(grid.cells)
    for row, was in ((2, 5), (3, 4), (4, 3), (5, 2)):
        for col in range(1, 8):
            grid.cells[row, col] = old.get((was, col), "")
    grid.cells[7, 1] = "our own row"
    grid.cells[4, 8] = "a note"
    grid.cells[3, 7] = "Relevant "
    searches.add_companies(5, 6)
    searches.write("update companies set open_offers = 70 where external_id = '1'")
    searches.go(DAY_S)
    # 5 and 6 take the first free rows, above and below the stranger's.
    assert [grid.cells.get((row, 1)) for row in range(2, 9)] == [
        str(UUID(int=4)), str(UUID(int=3)), str(UUID(int=2)), str(UUID(int=1)), str(UUID(int=5)), "our own row", str(UUID(int=6)),
    ]  # fmt: skip
    assert (grid.cells[5, 3], grid.cells[4, 8], grid.cells[3, 7]) == (70, "a note", "Relevant ")
    assert searches.feedback() == {3: "relevant"}


def test_a_blocked_company_leaves_and_comes_back_when_it_is_no_more(searches: SearchRig) -> None:
    searches.add_companies(1, 3)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    grid = searches.google.tab()
    grid.cells[3, 7] = "blocked"
    searches.go(DAY_S)
    assert (keys(searches), searches.feedback()) == ([1, 3], {2: "blocked"})
    assert not any(row == 3 for row, _ in grid.cells), "its row is empty, with its feedback"
    assert searches.nights(sheet)[1]["rows_cleared"] == 1
    searches.write("delete from company_feedback")
    searches.go(DAY_S)
    assert keys(searches) == [1, 2, 3]


def test_a_sheet_grows_beyond_its_first_rows(searches: SearchRig) -> None:
    searches.add_companies(1, 1_200)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    assert searches.nights(sheet)[0]["rows_written"] == 1_200
    assert keys(searches) == list(range(1, 1_201))
    assert searches.google.tab().rows == 1_201
    calls = len(searches.google.times)
    assert calls <= 7, "look, add, read, grow, and three batches of rows"


def test_all_sheets_of_an_account_share_its_quota(searches: SearchRig) -> None:
    """Two dozen sheets begin in the same minute: none meets a 429, because none is provoked."""
    searches.add_companies(1, 2)
    sheets = [searches.add_sheet(n, tab=f"Tab {n}") for n in range(24)]
    searches.go(3 * HOUR)
    assert {searches.nights(sheet)[0]["status"] for sheet in sheets} == {"synced"}
    assert len(searches.google.times) >= 24 * 4
    assert 40 < searches.google.busiest_minute() <= 60
    assert not searches.rows("select 1 from gate")


@pytest.mark.parametrize("trouble", ["throttle", "expired", "server_error", "html", "truncated", "lost_answer"])
def test_trouble_on_the_way_leaves_the_same_sheet(searches: SearchRig, trouble: str) -> None:
    searches.add_companies(1, 3)
    sheet = searches.add_sheet()
    searches.google.misbehave(trouble, on=["sheet"], after=1, every=2, budget=3)
    searches.go(4 * HOUR)
    assert searches.nights(sheet)[0]["status"] == "synced", searches.nights(sheet)
    assert keys(searches) == [1, 2, 3]
    assert searches.counted["SheetNotSynced"] == 0


def test_a_sheet_that_is_not_shared_says_with_whom_to_share_it(searches: SearchRig) -> None:
    searches.google.misbehave("not_shared")
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    (night, following) = searches.nights(sheet)
    assert night["status"] == "failed"
    assert "Share the sheet with baton@stand-in" in night["problem"]["message"]
    assert (following["status"], searches.counted["SheetNotSynced"]) == ("waiting", 1)


def test_a_key_that_is_not_the_accounts_is_refused(searches: SearchRig) -> None:
    searches.google.tokens.clear()
    searches.google.began += 5_000  # its clock, so that the assertion is from another hour
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    night = searches.nights(sheet)[0]
    assert (night["status"], night["problem"]["code"]) == ("failed", "token_refused"), night


def test_a_sheet_that_is_removed_has_no_next_night(searches: SearchRig) -> None:
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    searches.write("update search_sheet set active = false")
    searches.go(2 * DAY_S)
    assert [night["status"] for night in searches.nights(sheet)] == ["synced", "canceled"]


def test_a_night_is_synced_once_whoever_asks(searches: SearchRig) -> None:
    sheet = searches.add_sheet()
    waiting = searches.start(TENANT, sheet=str(sheet))
    assert searches.start(TENANT, sheet=str(sheet)) == waiting
    searches.go(3 * HOUR)
    searches.start(TENANT, sheet=str(sheet))  # the window is still open: it waits for the next night
    searches.go(2 * HOUR)
    assert [night["status"] for night in searches.nights(sheet)] == ["synced", "waiting"]
