"""Time zones by name: those that mean the same on every machine, and no others."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

NO_ZONES = frozenset({"localtime", "posixrules", "Factory"})  # files beside the zones
ANOTHER_COUNT = ("right/", "posix/")  # the same names once more; `right/` counts leap seconds
LONGEST = 64


def zone_named(name: str) -> ZoneInfo | None:
    """None: there is no such zone."""
    if not 0 < len(name) <= LONGEST or not name.isascii() or name in NO_ZONES or name.startswith(ANOTHER_COUNT):
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
