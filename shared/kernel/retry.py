"""When to try again: pure functions of the attempt, with the jitter handed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays of first_s, doubled with every attempt, never above most_s; jitter takes off up to half."""

    first_s: float
    most_s: float

    def delay_s(self, attempt: int, fraction: float) -> float:
        """The wait after failed attempt number `attempt` (from 1)."""
        full = min(self.most_s, self.first_s * 2.0 ** min(attempt - 1, 60))
        return full * (1 - fraction / 2)


TRANSIENT = Backoff(first_s=5, most_s=300)
# A surprise is usually a bad deploy or a database on its way down: slow enough that a short burst poisons no lane.
SURPRISE = Backoff(first_s=15, most_s=300)


def spread_s(wait_s: float, fraction: float) -> float:
    """A wait that many lanes share, stretched so that they come back one after the other."""
    return wait_s + fraction * min(60.0, max(2.0, wait_s / 5))
