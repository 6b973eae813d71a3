"""What is counted. Every name says what it means; nothing decides by a metric."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Metric(StrEnum):
    """The relay's own. A kind counts under names of its own, in a StrEnum of its own; those that end in `Milliseconds`, or
    in `_ms`, `_ewma`, `_rate`, `_sec`, `_depth` or `_count`, are measured, all others summed."""

    STEP = "Step"  # a committed step, by kind and outcome
    STEP_MS = "StepMilliseconds"  # from claim to commit
    REFUSED = "Refused"  # a message that gave no turn, by reason: stale copies are normal
    UNREADABLE = "Unreadable"  # a message that is no baton this code knows
    OVERTAKEN = "Overtaken"  # a step whose commit came too late; nothing was written
    GIVEN_BACK = "GivenBack"  # a message that goes back to its queue: of steps by kind, of all without, for the alarm
    SEND_FAILED = "SendFailed"  # batons the queue did not take; the tick sends them
    REPAIR = "Repair"  # what the tick mended, by reason
    REPAIRS = "Repairs"  # of one pass of the tick, all kinds and reasons together: what the alarm reads
    RUN_ENDED = "RunEnded"  # by kind and status
    RUNS_FAILED = "RunsFailed"  # those of them that failed, of all kinds together: what the alarm reads
    TICK = "Tick"  # one pass of the tick: its absence is an alarm
    SWEEP = "Sweep"  # one pass of the sweep: so is its absence
    CONNECTIONS_USED = "ConnectionsUsed"  # of those that the database accepts, in percent; once a tick
    DEAD_LETTER = "DeadLetter"  # a message that came back too often
    PRUNED = "Pruned"  # rows removed by retention, by table
    CLEANED = "Cleaned"  # outside assets removed by the sweep
    CLEAN_FAILED = "CleanFailed"
    SIGNAL = "Signal"  # a signal for one listener, by what became of it: heard, failed (comes again), given_up
    PRUNE_FAILED = "PruneFailed"  # by table
    EVENT = "Event"  # an event from outside, by what became of it: taken, again (seen before), refused


class Meter(Protocol):
    def count(self, metric: str, value: float = 1, /, **dimensions: str) -> None: ...


class NoMeter:
    def count(self, metric: str, value: float = 1, /, **dimensions: str) -> None:
        """Count nothing."""


def write_out(meter: Meter) -> None:
    """A meter that keeps its counts writes them now. A kind with a meter of its own says so at the end of each step: nobody
    else does."""
    flush = getattr(meter, "flush", None)
    if flush is not None:
        flush()
