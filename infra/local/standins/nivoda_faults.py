"""How the stand-in misbehaves, and when: every sort by name, on a schedule drawn from a seed, with an end."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

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


class Misbehaviour(BaseModel):
    """One sort of fault. It strikes every n-th matching call after the first few, with a chance, until its budget is spent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fault: Fault
    on: frozenset[Operation] = frozenset(Operation)
    after: int = Field(0, ge=0)
    every: int = Field(1, ge=1)
    chance: float = Field(1.0, ge=0, le=1)
    budget: int | None = Field(None, ge=0)

    seconds: float = Field(1.0, ge=0)
    status: int = 502
    retry_after: str | None = None
    above: int = 0
    by: int = 1
    share: float = 0.1
    distance: int = 0
    deletes: int = 0
    inserts: int = 0
    reprices: int = 0
    message: str = "Internal server error"
    code: str | None = None

    def concerns(self, operation: Operation, limit: int) -> bool:
        if self.fault in _PAGES_ONLY and operation is not Operation.PAGE:
            return False
        if self.fault in _NOT_AT_LOG_IN and operation is Operation.AUTHENTICATE:
            return False
        if self.fault is Fault.LYING_COUNT and operation is not Operation.COUNT:
            return False
        return operation in self.on and not (self.fault in _ABOVE_LIMIT and limit <= self.above)


class Faults:
    """The misbehaviours in force. Not safe for threads by itself: the stand-in holds its lock."""

    def __init__(self, seed: int, budget: int | None) -> None:
        self.budget = budget  # of all together
        self.struck: Counter[Fault] = Counter()
        self._random = random.Random(f"faults {seed}")  # noqa: S311 - repeatable, not secret
        self._active: list[Misbehaviour] = []
        self._seen: Counter[int] = Counter()
        self._left: dict[int, int] = {}

    def add(self, misbehaviour: Misbehaviour) -> None:
        self._active.append(misbehaviour)

    def clear(self, fault: Fault | None = None) -> None:
        kept = [each for each in self._active if fault not in (None, each.fault)]
        gone = [id(each) for each in self._active if fault in (None, each.fault)]
        self._active = kept
        for key in gone:
            self._seen.pop(key, None)
            self._left.pop(key, None)

    def draw(self, operation: Operation, limit: int) -> dict[Fault, Misbehaviour]:
        """What strikes this call."""
        return {each.fault: each for each in self._active if each.concerns(operation, limit) and self._strikes(each)}

    def _strikes(self, each: Misbehaviour) -> bool:
        key = id(each)
        self._seen[key] += 1
        turn = self._seen[key] - each.after
        left = self._left.setdefault(key, each.budget) if each.budget is not None else 1
        if turn < 1 or turn % each.every or left < 1 or self.budget == 0:
            return False
        if each.chance < 1 and self._random.random() >= each.chance:
            return False
        if each.budget is not None:
            self._left[key] -= 1
        if self.budget is not None:
            self.budget -= 1
        self.struck[each.fault] += 1
        return True

    def wrong(self, data: Any) -> Any:
        """The same answer with one value of another type, a different one each time."""
        path, value = self._random.choice(list(_meant(data, ())))
        kinds: tuple[Any, ...] = ([], {}, "x", 1.5, True, None)
        others = [other for other in kinds if type(other) is not type(value)]
        return _with(data, path, self._random.choice(others))


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
