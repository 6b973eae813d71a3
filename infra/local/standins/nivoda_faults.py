"""How the stand-in for Nivoda misbehaves in its own ways, besides those that all stand-ins have."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from random import Random
from typing import Any, TypeVar

from infra.local.standins import faults

RowT = TypeVar("RowT")


class Operation(StrEnum):
    AUTHENTICATE = "authenticate"
    COUNT = "count"
    PAGE = "page"


class Fault(StrEnum):
    # before the answer
    SHIFT = "shift"  # the catalogue changes: deletes, inserts, reprices
    SLOW = "slow"  # waits `seconds`
    HANG_ABOVE = "hang_above"  # waits `seconds` when the limit is above `above`
    EXPIRED = "expired"  # forgets the token it was given
    # instead of the answer
    THROTTLE = "throttle"  # 429; `retry_after` as it is, or "date" for a date `seconds` ahead
    SERVER_ERROR = "server_error"  # `status`
    HTML = "html"  # a page for people, with status 200
    TOO_BIG_ABOVE = "too_big_above"  # 413 when the limit is above `above`
    # another answer
    SHORT_PAGE = "short_page"  # `by` fewer than asked for and there
    EMPTY_PAGE = "empty_page"  # none although there are some
    ENDLESS = "endless"  # begins again after the last
    OVERFULL = "overfull"  # one more than asked for
    TWINS = "twins"  # a `share` of the stones has a second row, `distance` rows later
    DISPLACED = "displaced"  # the page's first stone again in the place of its last, which this pass never shows
    LYING_TOTAL = "lying_total"  # total_count is off `by`
    LYING_COUNT = "lying_count"  # the count is off `by`
    # a spoilt answer
    EMPTY_OBJECT = "empty_object"  # {}
    NULL_DATA = "null_data"
    ERRORS = "errors"  # `message` and `code` within a 200
    WRONG_TYPES = "wrong_types"
    POISON = "poison"  # text that Postgres cannot store
    HUGE = "huge"  # an answer of `by` MiB
    # a spoilt way
    TRUNCATED = "truncated"  # half of the JSON as if it were all
    RESET = "reset"  # half of it, then the connection breaks
    DRIP = "drip"  # one byte each `seconds`


_PAGES_ONLY = {
    Fault.HANG_ABOVE,
    Fault.TOO_BIG_ABOVE,
    Fault.SHORT_PAGE,
    Fault.EMPTY_PAGE,
    Fault.ENDLESS,
    Fault.OVERFULL,
    Fault.DISPLACED,
    Fault.LYING_TOTAL,
    Fault.POISON,
}
_ABOVE_LIMIT = {Fault.HANG_ABOVE, Fault.TOO_BIG_ABOVE}
_NOT_AT_LOG_IN = {Fault.EXPIRED, Fault.TWINS}


class Misbehaviour(faults.Misbehaviour):
    fault: Fault
    on: frozenset[Operation] = frozenset()

    above: int = 0
    share: float = 0.1
    distance: int = 0
    deletes: int = 0
    inserts: int = 0
    reprices: int = 0
    message: str = "Internal server error"
    code: str | None = None

    def concerns(self, operation: str, facts: Mapping[str, Any]) -> bool:
        if self.fault in _PAGES_ONLY and operation != Operation.PAGE:
            return False
        if self.fault in _NOT_AT_LOG_IN and operation == Operation.AUTHENTICATE:
            return False
        if self.fault is Fault.LYING_COUNT and operation != Operation.COUNT:
            return False
        small_enough = self.fault in _ABOVE_LIMIT and facts["limit"] <= self.above
        return super().concerns(operation, facts) and not small_enough


def with_a_wrong_type(data: Any, chance: Random) -> Any:
    """The same answer with one value of another type, a different one each time."""
    path, value = chance.choice(list(_meant(data, ())))
    kinds: tuple[Any, ...] = ([], {}, "x", 1.5, True, None)
    others = [other for other in kinds if type(other) is not type(value)]
    return _with(data, path, chance.choice(others))


# Where a wrong type must be noticed: the structure, and the values that have a meaning to us.
_MEANT = {
    *("authenticate", "username_and_password", "token"),
    *("as", "diamonds_by_query_count", "diamonds_by_query", "items", "diamond", "id", "price"),
}


def _meant(data: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(data, dict):
        for key in (key for key in data if key in _MEANT):
            yield (*path, key), data[key]
            yield from _meant(data[key], (*path, key))
    elif isinstance(data, list):
        for at, value in enumerate(data):
            yield from _meant(value, (*path, at))


def _with(data: Any, path: Sequence[Any], value: Any) -> Any:
    if not path:
        return value
    changed = dict(data) if isinstance(data, dict) else list(data)
    changed[path[0]] = _with(data[path[0]], path[1:], value)
    return changed


def with_twins(rows: list[RowT], keys: list[str], share: float, distance: int) -> list[RowT]:
    """Some rows twice, the second `distance` rows after the first; always the same ones, so no offset loses a stone."""
    doubled = [(at, 0, row) for at, row in enumerate(rows)]
    doubled += [
        (at + distance, 1, row)
        for at, (row, key) in enumerate(zip(rows, keys, strict=True))
        if zlib.crc32(key.encode()) < share * 2**32
    ]
    return [row for _, _, row in sorted(doubled, key=lambda each: each[:2])]
