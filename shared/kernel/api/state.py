"""What a run is doing, in one word. Each word means one thing, and the console, the command and every API client show the
same one: an attempt that fails is never called running."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Any

from shared.kernel.undeployed import NOT_DEPLOYED


class State(StrEnum):
    """`status` says how far a run's life is; this says what it is doing now."""

    QUEUED = "queued"  # waits for a worker
    RUNNING = "running"  # steps run, or are about to
    RETRYING = "retrying"  # what could move has only failed attempts behind it
    THROTTLED = "throttled"  # rate-limited by an upstream
    WAITING = "waiting"  # scheduled for later
    PAUSED = "paused"
    STALLED = "stalled"  # overdue: nobody took a step that was due
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Standing(IntEnum):
    """How the lane that moves first stands: what can move now is better than what cannot.

    Overdue is what was due two minutes ago; a lease counts from its end. What waits for a worker in a queue is never overdue.
    """

    FREE = 0
    FAILING = 1
    OVERDUE = 2
    HELD = 3
    UNTRIED = 4  # it could move, but half of the run's open lanes failed their last attempt and nothing has moved since


# What is said of what is overdue: nothing holds it, so no other reason is known.
OVERDUE, OVERDUE_SENTENCE = "overdue", "The next step is overdue. It is retried automatically."

HELD_BY = {
    "gate": State.THROTTLED,
    "retrying": State.RETRYING,
    "due_later": State.WAITING,
    "queued": State.QUEUED,
    "inactive": State.WAITING,
}


def state_of(row: Mapping[str, Any]) -> State:
    """`status`: as the API shows it. `standing` and `why`: of the lane that moves first; None if no lane is open."""
    status = State(row["status"])
    if status not in (State.QUEUED, State.RUNNING):
        return status
    if row["why"] == NOT_DEPLOYED:
        return State.STALLED
    match row["standing"]:
        case Standing.FAILING:
            return State.WAITING if row["why"] == "inactive" else State.RETRYING
        case Standing.OVERDUE:
            return State.STALLED
        case Standing.HELD:
            return HELD_BY.get(row["why"], status)
        case _:
            return status
