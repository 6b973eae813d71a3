"""Guards that schedules are judged by something that knows nothing of cron libraries: it looks at the clock, minute by minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
# With changes of an hour, of half an hour and of two, at midnight, at odd hours, on both halves of the earth.
ZONES = (
    "America/New_York",
    "America/St_Johns",
    "America/Havana",
    "America/Santiago",
    "America/Nuuk",
    "Atlantic/Azores",
    "Europe/London",
    "Europe/Madrid",
    "Europe/Chisinau",
    "Asia/Beirut",
    "Asia/Jerusalem",
    "Australia/Adelaide",
    "Australia/Lord_Howe",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Antarctica/Troll",
)
YEARS = range(2025, 2031)


def changes(zone: ZoneInfo, years: range = YEARS) -> Iterator[tuple[datetime, timedelta]]:
    """When the clock is moved, and by how much."""
    at, end = datetime(years[0], 1, 1, tzinfo=UTC), datetime(years[-1] + 1, 1, 1, tzinfo=UTC)
    while at < end:
        then = at + timedelta(days=7)  # no zone of the table changes twice in a week
        before, after = at.astimezone(zone).utcoffset(), then.astimezone(zone).utcoffset()
        assert before is not None
        assert after is not None
        if before != after:
            for step in (timedelta(hours=12), timedelta(minutes=30), MINUTE):
                while (at + step).astimezone(zone).utcoffset() == before:
                    at += step
            yield at + MINUTE, after - before
        at = then


Minutes = list[tuple[datetime, datetime, datetime]]


def minutes_of(zone: ZoneInfo, first: datetime, hours: int) -> Minutes:
    """Each minute by UTC, what the clock shows, and what it showed the minute before."""
    ats = [first + n * MINUTE for n in range(-1, hours * 60)]
    shown = [at.astimezone(zone).replace(tzinfo=None, fold=0) for at in ats]
    return list(zip(ats[1:], shown[1:], shown[:-1], strict=True))


def walk(minutes: set[int], hours: set[int], clock: Minutes, *, interval: bool) -> list[datetime]:
    """The minutes, by UTC, in which a daily schedule is due.

    An interval is due whenever the clock shows a time that fits. A fixed time is due the first time that the clock shows it
    or, having been moved past it, anything later.
    """
    due: list[datetime] = []
    past: set[datetime] = set()
    for at, seen, before in clock:
        # Every time of day between the minute before and this one has now come: usually just this one.
        passed = [seen] if seen - before == MINUTE else _between(before, seen)
        if interval:
            passed = [seen]
        named = [each for each in passed if each.hour in hours and each.minute in minutes]
        if interval:
            due += [at for _ in named]
        elif any(each not in past for each in named):
            due.append(at)
        past.update(named)
    return due


def _between(before: datetime, seen: datetime) -> list[datetime]:
    return [before + n * MINUTE for n in range(1, int((seen - before) / MINUTE) + 1)] or [seen]
