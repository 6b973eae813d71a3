"""The nightly sheet: filled by key, read back, once a night and in its window, within the quota of its account."""

from __future__ import annotations

from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from shared.kernel import direct
from shared.kernel import run as runs
from shared.search.sheets import store
from shared.search.sheets.model import HEADER
from tests.support.rig import TENANT
from tests.support.searches import DAY_S, SearchRig

HOUR = 3_600.0


def column(rig: SearchRig, number: int, tab: str = "Companies") -> list[object]:
    return [row[number - 1] for row in rig.google.tab(tab).table()[1:]]


def keys(rig: SearchRig) -> list[int]:
    return keys_of(column(rig, 1))


def keys_of(cells: list[object]) -> list[int]:
    return [UUID(str(each)).int for each in cells]


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


def said(rig: SearchRig) -> dict[int, object]:
    """The feedback that stands beside each company."""
    return {UUID(str(row[0])).int: row[6] for row in rig.google.tab().table()[1:]}


def test_rows_that_are_sorted_before_they_are_written_keep_their_feedback(searches: SearchRig) -> None:
    searches.add_companies(1, 4)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    searches.google.tab().cells[2, 7] = "irrelevant"
    searches.google.tab().cells[3, 7] = "relevant"
    searches.google.misbehave("sorted", on=["sheet"], after=3, budget=1)  # look, titles, read, and here
    searches.go(DAY_S)
    assert searches.google.struck["sorted"] == 1
    assert searches.nights(sheet)[1]["status"] == "synced"
    assert said(searches) == {1: "irrelevant", 2: "relevant", 3: "", 4: ""}


@pytest.mark.full
def test_a_sheet_that_never_stands_still_is_left_as_it_is(searches: SearchRig) -> None:
    searches.add_companies(1, 4)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    searches.google.tab().cells[2, 7] = "irrelevant"
    searches.google.misbehave("sorted", on=["sheet"])
    searches.go(DAY_S)
    night = searches.nights(sheet)[1]
    assert (night["status"], night["problem"]["code"]) == ("failed", "sheet_moves"), night
    assert said(searches) == {1: "irrelevant", 2: "", 3: "", 4: ""}


def test_where_rows_stood_is_forgotten_when_the_night_ends(searches: SearchRig) -> None:
    searches.add_companies(1, 3)
    searches.add_sheet()
    searches.go(3 * HOUR)
    assert not searches.rows("select 1 from sheet_row")


def test_an_old_night_that_is_retried_forgets_nothing_of_the_next(searches: SearchRig) -> None:
    """Tonight's would find none of its rows any more, and call the sheet synced."""
    searches.add_companies(1, 3)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    old, following = searches.nights(sheet)
    assert (old["status"], following["status"]) == ("synced", "waiting")
    searches.write(
        "insert into sheet_row (tenant_id, sheet_id, row_no, company_id) values (:tenant, :sheet, 2, :company)",
        tenant=TENANT, sheet=sheet, company=UUID(int=1),
    )  # fmt: skip

    searches.write("update run set status = 'failed', outcome = 'settle_failed' where id = :id", id=old["run_id"])

    runs.retry_run(searches.ports, searches.kind, TENANT, old["run_id"])

    assert searches.run(old["run_id"])["status"] == "succeeded"
    assert searches.rows("select 1 from sheet_row")


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


@pytest.mark.full
def test_the_newest_word_counts_wherever_it_was_said(searches: SearchRig) -> None:
    """Guards that a cell does not undo every night what somebody said over the API since it was written; and that another
    word in it does."""
    searches.add_companies(1, 3)
    searches.add_sheet()
    searches.go(3 * HOUR)
    grid = searches.google.tab()
    grid.cells[3, 7] = grid.cells[4, 7] = "relevant"
    searches.go(DAY_S)
    for company, word in ((2, "blocked"), (3, "irrelevant")):
        say(searches, company, word)
    searches.go(DAY_S)
    assert (keys(searches), searches.feedback()) == ([1, 3], {2: "blocked", 3: "irrelevant"})
    grid.cells[4, 7] = "blocked"
    searches.go(DAY_S)
    assert (keys(searches), searches.feedback()) == ([1], {2: "blocked", 3: "blocked"})


def say(rig: SearchRig, company: int, word: str | None) -> None:
    """As over the API."""
    told = {"tenant_id": TENANT, "company_id": UUID(int=company), "said_by": "user:ada"}
    with direct.alone(rig.engine, TENANT) as line:
        if word is None:
            line.run(store.UNSAY, told)
        else:
            assert line.all(store.SAY, {**told, "feedback": word})


@pytest.mark.full
def test_a_word_that_is_said_again_is_a_new_one(searches: SearchRig) -> None:
    """Its row left with the first; the one it came back with was empty. So was a cell that somebody cleared."""
    searches.add_companies(1, 3)
    searches.add_sheet()
    searches.go(3 * HOUR)
    grid = searches.google.tab()
    grid.cells[3, 7], grid.cells[4, 7] = "blocked", "irrelevant"
    searches.go(DAY_S)
    say(searches, 2, "relevant")
    say(searches, 3, "relevant")
    grid.cells.pop((4, 7))
    searches.go(DAY_S)
    assert (keys(searches), searches.feedback()) == ([1, 2, 3], {2: "relevant", 3: "relevant"})
    grid.cells[3, 7], grid.cells[4, 7] = "blocked", "irrelevant"
    searches.go(DAY_S)
    assert (keys(searches), searches.feedback()) == ([1, 3], {2: "blocked", 3: "irrelevant"})


@pytest.mark.full
def test_what_was_taken_back_is_not_said_again_by_an_old_cell(searches: SearchRig) -> None:
    searches.add_companies(1, 2)
    searches.add_sheet()
    searches.go(3 * HOUR)
    grid = searches.google.tab()
    grid.cells[3, 7] = "irrelevant"
    searches.go(DAY_S)
    say(searches, 2, None)
    searches.go(DAY_S)
    assert searches.feedback() == {}
    grid.cells[3, 7] = "relevant"
    searches.go(DAY_S)
    assert searches.feedback() == {2: "relevant"}


@pytest.mark.full
def test_an_old_word_in_one_sheet_does_not_undo_a_new_one_in_another(searches: SearchRig) -> None:
    searches.add_companies(1, 2)
    searches.add_sheet(1, tab="One")
    searches.add_sheet(2, tab="Two")
    searches.go(3 * HOUR)
    one, two = searches.google.tab("One"), searches.google.tab("Two")
    one.cells[3, 7] = two.cells[3, 7] = "relevant"
    searches.go(DAY_S)
    for newer in (one, two):
        newer.cells[3, 7] = "irrelevant"
        searches.go(2 * DAY_S)
        assert searches.feedback() == {2: "irrelevant"}
        newer.cells[3, 7] = "relevant"
        searches.go(DAY_S)
    two.cells[3, 7] = "blocked"
    searches.go(2 * DAY_S)
    assert searches.feedback() == {2: "blocked"}
    assert (column(searches, 1, "One"), column(searches, 1, "Two")) == ([str(UUID(int=1))],) * 2


def test_a_sheet_grows_beyond_its_first_rows(searches: SearchRig) -> None:
    searches.add_companies(1, 1_200)
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    assert searches.nights(sheet)[0]["rows_written"] == 1_200
    assert keys(searches) == list(range(1, 1_201))
    assert searches.google.tab().rows == 1_201
    calls = len(searches.google.times)
    assert calls <= 13, (
        "look, add, two for the titles, read, look again, grow, and three batches of rows, each looked at first"
    )


@pytest.mark.full
def test_all_sheets_of_an_account_share_its_quota(searches: SearchRig) -> None:
    """Two dozen sheets begin in the same minute: none meets a 429, because none is provoked."""
    searches.add_companies(1, 2)
    sheets = [searches.add_sheet(n, tab=f"Tab {n}") for n in range(24)]
    searches.go(3 * HOUR)
    assert {searches.nights(sheet)[0]["status"] for sheet in sheets} == {"synced"}
    assert len(searches.google.times) >= 24 * 4
    assert 40 < searches.google.busiest_minute() <= 60
    assert not searches.rows("select 1 from gate")


@pytest.mark.full
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


def test_nights_go_on_where_the_clocks_skip_a_whole_window(searches: SearchRig) -> None:
    """On 29 March it is never half past two in Madrid: a night that could not be written down would be the last one."""
    searches.now = searches.seconds(datetime(2026, 3, 28, 3, tzinfo=UTC))
    searches.add_companies(1, 2)
    sheet = searches.add_sheet(opens="02:30", closes="03:00")
    searches.go(DAY_S)
    skipped, following = searches.nights(sheet)
    assert (skipped["night"], skipped["status"], skipped["rows_written"]) == (date(2026, 3, 29), "synced", 2)
    assert (following["status"], following["opens_at"]) == ("waiting", datetime(2026, 3, 30, 0, 30, tzinfo=UTC))


@pytest.mark.full
def test_rows_that_readers_add_during_a_night_are_not_cut_off(searches: SearchRig) -> None:
    """The tab was looked at before they did; whoever sets the number of its rows must know of theirs."""
    searches.add_companies(1, 1_200)
    sheet = searches.add_sheet()
    grid = searches.google.tab()

    def add(operation: str, facts: object) -> None:
        if searches.google.log and grid.rows == 1_000:
            grid.rows, grid.cells[1_500, 1] = 1_500, "our own row"

    searches.google.before_each = add
    searches.go(3 * HOUR)
    assert searches.nights(sheet)[0]["rows_written"] == 1_200
    assert (grid.rows, grid.cells.get((1_500, 1))) == (1_500, "our own row")
    assert keys_of(column(searches, 1)[:-1]) == list(range(1, 1_201))


def test_one_company_whose_name_is_too_long_for_a_cell_stops_no_sheet(searches: SearchRig) -> None:
    """Boards say what they like, and Google refuses the whole batch for one cell."""
    searches.add_companies(1, 2)
    searches.write(
        "update companies set name = repeat('n', 60000), link = 'https://' || repeat('l', 60000) where external_id = '1'"
    )
    sheet = searches.add_sheet()
    searches.go(3 * HOUR)
    assert (searches.nights(sheet)[0]["status"], keys(searches)) == ("synced", [1, 2])
    first, second = searches.google.tab().table()[1:]
    assert first[1:3] == ["n" * 500, 1]
    assert (first[5], second[1]) == ("", "Company 2")
