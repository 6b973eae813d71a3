"""Guards the coverage map of ingestions: it never shows a price as better read than it is, however few bands it has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.page_ingest.coverage import MOST_MISSING, RANK, Reading, Standing, bands, gaps, readings

MONDAY = datetime(2026, 11, 16, 8, tzinfo=UTC)


@st.composite
def some_readings(draw: st.DrawFn) -> Reading:
    low = draw(st.integers(0, 60))
    standing = draw(st.sampled_from([each for each in Standing if each is not Standing.NOT_READ]))
    at = MONDAY - timedelta(days=draw(st.integers(0, 3)))
    return Reading(UUID(int=draw(st.integers(0, 9))), low, low + draw(st.integers(1, 30)), standing, at)


@pytest.mark.full
@given(st.lists(some_readings(), max_size=30), st.integers(1, 8))
def test_no_price_is_shown_better_than_it_is(said: list[Reading], most: int) -> None:
    found = bands(said, most)

    assert len(found) <= most
    assert [band.low for band in found[1:]] == [band.high for band in found[:-1]], "no price between two bands"
    if said:
        assert (found[0].low, found[-1].high) == (min(each.low for each in said), max(each.high for each in said))
    for band in found:
        for price in range(band.low, band.high):
            known = [each for each in said if each.low <= price < each.high]
            for day in {each.day for each in said}:
                best = min(
                    (each.standing for each in known if each.day == day),
                    key=RANK.__getitem__,
                    default=Standing.NOT_READ,
                )
                cell = band.cells.get(day)
                shown = cell.standing if cell else Standing.NOT_READ
                assert RANK[shown] >= RANK[best]
                assert shown is best or (cell is not None and cell.partly), "and it says where some are better"
            complete = [each.at for each in known if each.standing is Standing.COMPLETE]
            assert band.complete_at is None or band.complete_at <= max(complete)


@given(st.lists(some_readings(), max_size=12))
def test_with_room_for_all_of_them_the_gaps_are_exact(said: list[Reading]) -> None:
    found = bands(said, 1_000)

    missing = {price for low, high in gaps(found) for price in range(low, high)}

    complete = {
        price for each in said if each.standing is Standing.COMPLETE for price in range(each.low, each.high)
    }  # fmt: skip
    if said:
        assert missing == set(range(found[0].low, found[-1].high)) - complete
    assert all(first[1] < second[0] for first, second in zip(gaps(found), gaps(found)[1:], strict=False))


def row(status: str, outcome: str | None = None, missing: list[list[int]] | None = None) -> dict[str, Any]:
    return {
        "run_id": UUID(int=1), "status": status, "outcome": outcome, "low": 0, "high": 1_000, "created_at": MONDAY, "missing": missing,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (row("succeeded", "complete"), [(0, 1_000, Standing.COMPLETE)]),
        (row("succeeded", "drifted"), [(0, 1_000, Standing.READ)]),
        (row("succeeded", "partial", [[0, 10], [20, 30]]),
         [(10, 20, Standing.READ), (30, 1_000, Standing.READ), (0, 10, Standing.FAILED), (20, 30, Standing.FAILED)]),
        (row("succeeded", "partial", [[990, 1_000]]), [(0, 990, Standing.READ), (990, 1_000, Standing.FAILED)]),
        (row("failed", "partitions_failed"), [(0, 1_000, Standing.FAILED)]),
        (row("queued"), [(0, 1_000, Standing.RUNNING)]),
        (row("running"), [(0, 1_000, Standing.RUNNING)]),
        (row("canceled"), []),
    ],
)  # fmt: skip
def test_what_a_run_says(told: dict[str, Any], expected: list[Any]) -> None:
    assert [(each.low, each.high, each.standing) for each in readings(told)] == expected


def test_a_run_with_very_many_holes_is_read_less_well_than_it_is() -> None:
    holes = [[n * 10, n * 10 + 5] for n in range(50)]

    said = readings(row("succeeded", "partial", holes))

    failed = [each for each in said if each.standing is Standing.FAILED]
    assert len(failed) == MOST_MISSING
    assert (failed[-1].low, failed[-1].high) == (holes[MOST_MISSING - 1][0], 1_000)


def test_thousands_of_edges_are_few_bands() -> None:
    said = [
        Reading(UUID(int=n), n * 7, n * 7 + 5, Standing.COMPLETE, MONDAY) for n in range(3_000)
    ]  # fmt: skip

    assert len(bands(said)) <= 24
