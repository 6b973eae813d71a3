"""Guards when schedules are due: the rule for changed clocks, in every zone of the table, six years, both directions."""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from shared.job_queue.triggers.cron import LONGEST, MACROS, read_schedule, read_zone
from shared.kernel.errors import Refused
from tests.support.wall_clock import ZONES, changes, minutes_of, walk

GOLDEN = Path(__file__).with_name("clock_changes.csv")
NOW = datetime(2026, 11, 16, 8, tzinfo=UTC)
EVERY = set(range(24))
# Fields, minutes, hours, and whether it is an interval.
SHAPES = (
    ("30 2 * * *", {30}, {2}, False),
    ("15,45 1-3 * * *", {15, 45}, {1, 2, 3}, False),
    ("0 0 * * *", {0}, {0}, False),
    ("*/30 * * * *", {0, 30}, EVERY, True),
    ("0 */2 * * *", {0}, set(range(0, 24, 2)), True),
    ("*/20 2 * * *", {0, 20, 40}, {2}, True),
    ("*/20 0 * * *", {0, 20, 40}, {0}, True),
)


def dues(expr: str, zone: str, first: datetime, hours: int) -> list[datetime]:
    schedule = read_schedule(expr, zone, NOW)
    return list(takewhile(lambda at: at < first + timedelta(hours=hours), schedule.after(first - timedelta(seconds=1))))


@pytest.mark.parametrize("name", ZONES)
def test_what_is_due_around_every_change_is_what_the_clock_on_the_wall_shows(name: str) -> None:
    zone = ZoneInfo(name)
    seen = 0
    for at, moved in changes(zone):
        first = (at - timedelta(hours=8)).replace(minute=0)
        clock = minutes_of(zone, first, 16)
        for expr, minutes, hours, interval in SHAPES:
            assert dues(expr, name, first, 16) == walk(minutes, hours, clock, interval=interval), (expr, at, moved)
        seen += 1
    assert seen == 12


@pytest.mark.parametrize("name", ["America/New_York", "America/Havana", "Australia/Lord_Howe", "Antarctica/Troll"])
def test_asked_from_any_moment_a_schedule_names_the_same_times(name: str) -> None:
    zone = ZoneInfo(name)
    for at, _ in changes(zone, range(2026, 2027)):
        first = (at - timedelta(hours=3)).replace(minute=0)
        for expr, *_ in SHAPES:
            schedule = read_schedule(expr, name, NOW)
            listed = list(islice(schedule.after(first), 30))
            for n in range(0, 6 * 60, 11):
                moment = first + timedelta(minutes=n)
                assert schedule.next(moment) == next(each for each in listed if each > moment), (expr, moment)


def test_the_golden_table_of_clock_changes() -> None:
    rows = list(csv.DictReader(GOLDEN.open()))
    for row in rows:
        at = datetime.fromisoformat(row["changes_at"])
        told = [due.strftime("%dT%H:%M") for due in dues(row["cron"], row["zone"], at - timedelta(hours=3), 6)]
        assert " ".join(told) == row["due_utc"], row
    assert len({row["zone"] for row in rows}) >= 12
    assert {row["changes_at"][:4] for row in rows} == {str(year) for year in range(2025, 2031)}
    assert {row["moved"] for row in rows} >= {"+60", "-60", "+30", "-30"}
    assert sum(row["zone"] == "Australia/Lord_Howe" for row in rows) == 24


def test_the_example_that_does_not_exist_in_spring_runs_at_the_first_minute_that_does() -> None:
    (due,) = dues("0 2 * * *", "America/New_York", datetime(2026, 3, 8, 5, tzinfo=UTC), 24)
    assert due == datetime(2026, 3, 8, 7, tzinfo=UTC)  # 03:00 EDT
    (due,) = dues("30 1 * * *", "America/New_York", datetime(2026, 11, 1, 4, tzinfo=UTC), 24)
    assert due == datetime(2026, 11, 1, 5, 30, tzinfo=UTC)  # 01:30 EDT, not again at 01:30 EST


@pytest.mark.parametrize(
    ("expr", "code"),
    [
        ("", "bad_cron"),
        ("* * * *", "bad_cron"),
        ("* * * * * *", "bad_cron"),  # seconds: the tick comes once a minute
        ("60 * * * *", "bad_cron"),
        ("*/0 * * * *", "bad_cron"),
        ("5-1 * * * *", "bad_cron"),
        ("0 0 31 2 *", "bad_cron"),
        ("0 0 * 2 MON#6", "bad_cron"),
        ("@reboot", "bad_cron"),
        ("1" * (LONGEST + 1) + " * * * *", "bad_cron"),
        ("*/1" + "/1" * 40 + " * * * *", "bad_cron"),
        ("0 0 29 2 MON#5", None),
        ("0 0 1 1 1L/2", "bad_cron"),
        ("² * * * *", "bad_cron"),
        ("0 0 30 2 MON#1", None),  # a day of the month or a day of the week
        *((macro, None) for macro in MACROS),
    ],
)
def test_an_expression_is_read_strictly(expr: str, code: str | None) -> None:
    if code is None:
        assert read_schedule(expr, "UTC", NOW).next(NOW) is not None
        return
    with pytest.raises(Refused) as refused:
        read_schedule(expr, "UTC", NOW)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Europe/Atlantis",
        "../../etc/passwd",
        "/etc/localtime",
        "localtime",
        "right/UTC",
        "posix/UTC",
        "a" * 1000,
        "Örebro",
        "UTC\x00",
    ],
)
def test_an_unknown_timezone_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        read_zone(name)
    assert refused.value.code == "unknown_timezone"
