"""When a stand-in misbehaves, and the ways that are the same for all: by name, on a schedule drawn from a seed, with an end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

# What `StandIn.spoil` does to the reply of any protocol. A stand-in adds its own names.
COMMON = {
    "slow": "waits `seconds` before it answers",
    "throttle": '429; `retry_after` as it is, or "date" for a date `seconds` ahead',
    "server_error": "`status`, with a page for people",
    "html": "a page for people, with status 200",
    "huge": "an answer of `by` MiB",
    "truncated": "half of the body as if it were all",
    "reset": "half of the body, then the connection breaks",
    "drip": "one byte each `seconds`",
}


class Misbehaviour(BaseModel):
    """One fault. It strikes every n-th call that it concerns after the first few, with a chance, until its budget is spent.

    A stand-in subclasses it: `fault` becomes its own enumeration (with the names of `COMMON` in it), and what its faults need
    to know becomes further fields.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fault: str
    on: frozenset[str] = frozenset()  # operations; none: all
    after: int = Field(0, ge=0)
    every: int = Field(1, ge=1)
    chance: float = Field(1.0, ge=0, le=1)
    budget: int | None = Field(None, ge=0)

    seconds: float = Field(1.0, ge=0)
    status: int = 502
    retry_after: str | None = None
    by: int = 1

    def concerns(self, operation: str, facts: Mapping[str, Any]) -> bool:  # noqa: ARG002 - for subclasses
        return not self.on or operation in self.on


class Schedule:
    """The misbehaviours in force. Not safe for threads by itself: the stand-in holds its lock."""

    def __init__(self, seed: int, budget: int | None) -> None:
        self.budget = budget  # of all together
        self.struck: Counter[str] = Counter()
        self.random = random.Random(f"faults {seed}")  # noqa: S311 - repeatable, not secret
        self._active: list[Misbehaviour] = []
        self._seen: Counter[int] = Counter()
        self._left: dict[int, int] = {}

    def add(self, misbehaviour: Misbehaviour) -> None:
        self._active.append(misbehaviour)

    def clear(self, fault: str | None = None) -> None:
        """No more of this fault, or of any."""
        gone = [each for each in self._active if fault in (None, each.fault)]
        self._active = [each for each in self._active if each not in gone]
        for each in gone:
            self._seen.pop(id(each), None)
            self._left.pop(id(each), None)

    def draw(self, operation: str, facts: Mapping[str, Any]) -> dict[str, Misbehaviour]:
        """What strikes this call."""
        return {each.fault: each for each in self._active if each.concerns(operation, facts) and self._strikes(each)}

    def _strikes(self, each: Misbehaviour) -> bool:
        key = id(each)
        self._seen[key] += 1
        turn = self._seen[key] - each.after
        left = self._left.setdefault(key, each.budget) if each.budget is not None else 1
        if turn < 1 or turn % each.every or left < 1 or self.budget == 0:
            return False
        if each.chance < 1 and self.random.random() >= each.chance:
            return False
        if each.budget is not None:
            self._left[key] -= 1
        if self.budget is not None:
            self.budget -= 1
        self.struck[each.fault] += 1
        return True
