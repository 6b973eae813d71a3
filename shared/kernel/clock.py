"""The process's own time and chance. Only local time-outs and ids may use them: the database's clock decides the rest."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def new_id() -> uuid.UUID:
    """A UUID of version 7: ids made close in time lie close in an index."""
    stamp = time.time_ns() // 1_000_000
    chance = int.from_bytes(os.urandom(10))
    value = (stamp & (2**48 - 1)) << 80 | 7 << 76 | (chance >> 68) << 64 | 2 << 62 | chance & (2**62 - 1)
    return uuid.UUID(int=value)


def read_id(text: str) -> uuid.UUID | None:
    """An id that somebody wrote; None if it is none."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """Ids and fractions in [0, 1), so that a simulation can draw them from its seed."""

    new_id: Callable[[], uuid.UUID] = new_id
    fraction: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class _Stopwatch:
    """Plain data, as whatever holds one is."""

    began: float

    def __call__(self) -> float:
        return time.monotonic() - self.began


def stopwatch() -> Callable[[], float]:
    """A function that tells the seconds since this call."""
    return _Stopwatch(time.monotonic())


def patience(most_s: float) -> Callable[[float], bool]:
    """Waits a second and says that it is worth another try, until so many seconds have been spent on it."""

    def wait(spent_s: float) -> bool:
        if spent_s >= most_s:
            return False
        time.sleep(1)
        return True

    return wait


def process_time() -> datetime:
    """This machine's own idea of now, for what must be signed with a time where no database was asked."""
    return datetime.fromtimestamp(time.time_ns() / 1e9, UTC)
