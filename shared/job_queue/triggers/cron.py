"""When a schedule is due, in its own timezone. Pure: the zones' rules are data, and no clock is read.

The rule for the two days a year on which clocks change:

* A schedule whose minute and hour are both fixed (`30 2 * * *`, `0 9,17 * * 1-5`) runs once for each time of day it names.
  A time that the change leaves out runs at the first minute that exists after it; several of them run once, together.
  A time that comes twice runs the first time.
* A schedule whose minute or hour starts with `*` (`*/15 * * * *`, `0 * * * *`) is an interval: it runs whenever the clock
  on the wall shows a time that fits. What the change leaves out is left out, and what it repeats is repeated.

cronsim reads the expression and names times of day; what a zone makes of them is decided here. (Left to it, `0 */2 * * *`
loses 02:00 where clocks change by half an hour, and a start within a repeated hour names a time that has passed.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from shared.kernel.errors import Refused
from shared.kernel.zones import zone_named

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
LONGEST = 100
MINUTE = timedelta(minutes=1)
LARGEST_CHANGE = timedelta(hours=4)  # of a clock; in Antarctica it is two
MOST_UNSEEN = 500  # an expression that names only times which no clock shows is given up


@dataclass(frozen=True, slots=True)
class Schedule:
    expr: str  # five fields
    zone: ZoneInfo

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Due times in UTC, each later than the one before and all later than `instant`."""
        last = instant
        for at in self._instants(instant):
            if at > last:
                last = at
                yield at

    def next(self, instant: datetime) -> datetime | None:
        return next(self.after(instant), None)

    def _instants(self, instant: datetime) -> Iterator[datetime]:
        """In order; the first ones may be too early, and one may come twice."""
        walls = self._walls(instant)
        if not any(part.startswith("*") for part in self.expr.split()[:2]):
            yield from map(self._first_shown, walls)
            return
        # A time that is shown twice has an instant that later ones may come before.
        coming: list[datetime] = []
        unseen = 0
        for wall in walls:
            shown = self._shown(wall)
            unseen = 0 if shown else unseen + 1
            if unseen > MOST_UNSEEN:
                return
            for at in shown:
                heappush(coming, at)
            while coming and shown and coming[0] <= shown[0]:
                yield heappop(coming)

    def _walls(self, instant: datetime) -> Iterator[datetime]:
        """What the clock shows when it is due, without a zone: of days on which nothing is changed, this is all."""
        start = instant.astimezone(self.zone).replace(tzinfo=None, fold=0)
        return CronSim(self.expr, start - LARGEST_CHANGE)

    def _shown(self, wall: datetime) -> list[datetime]:
        """When the clock shows this: once, twice or never."""
        ats = [wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
        real = [at for at in ats if at.astimezone(self.zone).replace(tzinfo=None, fold=0) == wall]
        return sorted(set(real))

    def _first_shown(self, wall: datetime) -> datetime:
        while not (shown := self._shown(wall)):
            wall += MINUTE
        return shown[0]


def read_zone(name: str) -> ZoneInfo:
    zone = zone_named(name)
    if zone is None:
        raise Refused(
            "unknown_timezone", f"timezone: unknown timezone {name[:64]!r}. Use a name such as Europe/Madrid or UTC."
        )
    return zone


def read_schedule(expr: str, timezone: str, now: datetime) -> Schedule:
    """A schedule that will be due some day; `Refused` says what is wrong with it otherwise."""
    zone = read_zone(timezone)
    plain = MACROS.get(expr.strip().lower(), expr.strip())
    if len(plain) > LONGEST or len(plain.split()) != 5:
        raise Refused(
            "bad_cron", "cron_expr: needs five fields: minute, hour, day of month, month, day of week, as 0 2 * * *."
        )
    try:
        schedule = Schedule(" ".join(plain.split()), zone)
        never = schedule.next(now) is None
    except CronSimError as error:
        raise Refused("bad_cron", f"cron_expr: {error}.") from None
    except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError):
        raise Refused("bad_cron", "cron_expr: not understood.") from None
    if never:
        raise Refused("never_fires", "cron_expr: no date in the next 50 years fits it.")
    return schedule
