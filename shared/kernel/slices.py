"""One slice of paced calls: when to ask for slots, when to send, when to stop. No I/O and no clock of its own.

A step that makes many calls drives a `Slice`: it sends a call for each slot that falls due, asks for more when the slice
wants them, and tells it every answer. Threads, sockets and the row in the database are the driver's; so the very rules that
run in production run under a virtual clock in the tests.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from shared.kernel.control import Granted, Report

LONGEST_IDLE_S = 1.5
REPORTS_APART_S = 0.25
LONGEST_REFUSED_S = 15.0


@dataclass(slots=True)
class Slice:
    """All times are seconds of the driver's clock. `refusals`: slices of this lane in a row that got no slot at all."""

    began: float
    target_s: float
    most_threads: int
    refusals: int = 0
    in_flight: int = 0
    calls: int = 0
    wait_s: float = 0.0
    closing: bool = False
    report: Report = field(default_factory=Report)
    stop_at: float = 0.0
    _threads: int = 0
    _slots: deque[tuple[float, int]] = field(default_factory=deque)
    _ask_at: float = 0.0
    _at_once: bool = True
    _dropped: int = 0  # slots of windows up to this one are not used any more
    _probe: int = 0
    _urgent: bool = False
    _reported_at: float = 0.0
    _sends: deque[float] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._stop_before(tail_s(0.0, 0.0))
        self._threads = self.most_threads
        self._reported_at = self._ask_at = self.began

    def wants(self, now: float, items: int) -> int | None:
        """How many slots to ask for now; 0: only report; None: neither."""
        if self._urgent and now - self._reported_at >= REPORTS_APART_S:
            return 0
        if self.closing or now >= self.stop_at or self._slots or now < self._ask_at:
            return None
        if not items:
            self.closing = True
            return None
        free = self._threads - self.in_flight
        enough = 1 if self._at_once or not self.in_flight else max(1, self._threads // 4)
        return min(free, items) if free >= enough else None

    def sends_for_s(self, now: float) -> float:
        """How much longer calls are started: a slot after that would pass by."""
        return max(0.0, self.stop_at - now)

    def told(self, now: float, want: int, granted: Granted, fraction: float) -> None:
        """What the row answered. `fraction` spreads the lanes that must come back later."""
        self._reported_at, self._urgent, self._at_once = now, False, False
        self._learn(now, granted)
        if granted.closed and not granted.slots:
            self._drop(granted.window_no)
        if want:
            if granted.slots:
                self._grant(now, granted)
            else:
                self._refuse(now, granted, fraction)

    def due(self, now: float) -> list[int]:
        """The windows of the slots to use now; each is one call."""
        found: list[int] = []
        while self._slots and self._slots[0][0] <= now:
            _, window_no = self._slots.popleft()
            self._at_once = not self._slots
            if window_no > self._dropped and now <= self.stop_at + 0.1:
                found.append(window_no)
                self.report.sent(window_no)
                self._sends.append(now)
        self.in_flight += len(found)
        self.calls += len(found)
        return found

    def stop(self) -> None:
        """Start no more calls, whatever slots are left."""
        self.closing = True
        self._slots.clear()

    def unused(self, window_no: int) -> None:
        """A slot that there was nothing to send for after all, or whose answer says nothing about the pace."""
        self.in_flight -= 1
        self.calls -= 1
        self.report.add(window_no, sent=-1)

    def answered(self, now: float, window_no: int, what: str, latency_s: float, retry_after_s: float = 0.0) -> None:
        self.in_flight -= 1
        self.report.answered(window_no, what, latency_s, retry_after_s)
        if retry_after_s > 0:
            self._drop(window_no)
        if what in ("throttled", "failed"):
            self._urgent = True
        if window_no == self._probe:
            self._urgent, self._reported_at, self._probe = True, now - REPORTS_APART_S, 0

    def next_at(self, now: float) -> float:
        """When to look again if no answer comes before."""
        if self._slots:
            return self._slots[0][0]
        if self._urgent:
            return max(now, self._reported_at + REPORTS_APART_S)
        if not self.closing and now < self._ask_at:
            return min(self._ask_at, self.stop_at)
        return self.stop_at if now < self.stop_at else math.inf

    def over(self, now: float) -> bool:
        """Nothing is in flight and nothing more will be sent."""
        return not self.in_flight and not self._slots and (self.closing or now >= self.stop_at)

    def _grant(self, now: float, granted: Granted) -> None:
        apart = 1 / granted.law.rate
        self._slots.extend((now + granted.in_s + each * apart, granted.window_no) for each in range(granted.slots))
        self.refusals = 0
        if granted.closed:
            self._probe = granted.window_no

    def _refuse(self, now: float, granted: Granted, fraction: float) -> None:
        if granted.in_s <= LONGEST_IDLE_S and now + granted.in_s < self.stop_at:
            self._ask_at = now + max(0.005, granted.in_s)
            return
        self.closing = True
        if granted.closed:
            self.wait_s = granted.in_s + fraction
        else:
            self.refusals = 0 if self.calls else self.refusals + 1
            self.wait_s = granted.in_s + fraction * min(LONGEST_REFUSED_S, 2.0**self.refusals)

    def _stop_before(self, tail: float) -> None:
        """At least half of a slice is for starting calls: a short one with a slow provider would make none, again and again."""
        self.stop_at = self.began + self.target_s - min(tail, self.target_s / 2)

    def _drop(self, window_no: int) -> None:
        self._dropped = max(self._dropped, window_no)
        self._slots = deque(slot for slot in self._slots if slot[1] > self._dropped)

    def _learn(self, now: float, granted: Granted) -> None:
        law = granted.law
        self._stop_before(tail_s(law.base_s, law.sigma))
        while self._sends and self._sends[0] < now - 2:
            self._sends.popleft()
        if law.base_s and now - self.began >= 1:
            per_s = len(self._sends) / min(2.0, now - self.began)
            self._threads = min(self.most_threads, max(4, math.ceil(4 * law.base_s * per_s)))


def tail_s(base_s: float, sigma: float) -> float:
    """How long before its end a slice starts no more calls: what 19 of 20 need."""
    return min(2.0, max(0.3, (base_s or 0.4) * math.exp(1.645 * sigma)))
