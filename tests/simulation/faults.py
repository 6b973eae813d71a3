"""The adversary: what may happen at a port call, and when it does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    CRASH_BEFORE = "crash_before"  # the process dies, the effect never happened
    CRASH_AFTER = "crash_after"  # the effect happened, the process never knew
    FAIL_BEFORE = "fail_before"  # an error, and nothing happened
    FAIL_AFTER = "fail_after"  # an error, but it happened
    STALL_BEFORE = "stall_before"  # frozen past lease and visibility, then goes on
    STALL_AFTER = "stall_after"
    DROP = "drop"  # a send that is answered with "ok" and lost
    CONFLICT = "conflict"  # a deadlock or a serialization failure: rolled back by the database


ANYWHERE = tuple(fault for fault in Fault if fault not in (Fault.DROP, Fault.CONFLICT))
IN_TRANSACTION = (Fault.CRASH_BEFORE, Fault.FAIL_BEFORE, Fault.CONFLICT)
AT_COMMIT = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL_BEFORE, Fault.FAIL_AFTER)
AT_SEND = (*ANYWHERE, Fault.DROP)


@dataclass(slots=True)
class RandomFaults:
    """A fault now and then until its budget or its time is spent."""

    rng: Random
    rate: float
    budget: int
    until: float

    def draw(self, call_no: int, now: float, choices: tuple[Fault, ...]) -> Fault | None:
        if self.budget <= 0 or now >= self.until or self.rng.random() >= self.rate:
            return None
        self.budget -= 1
        return self.rng.choice(choices)


@dataclass(slots=True)
class OneFault:
    """Exactly one fault, at one call."""

    at: int
    fault: Fault
    until: float = 0.0

    def draw(self, call_no: int, now: float, choices: tuple[Fault, ...]) -> Fault | None:
        return self.fault if call_no == self.at and self.fault in choices else None


Faults = RandomFaults | OneFault
