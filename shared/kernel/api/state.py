"""What a run is doing, in one word. Each word means one thing, and the console, the command and every API client show the
same one: an attempt that fails is never called running."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


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


# How the lane that moves first stands: what can move now is better than what cannot. As a SQL expression of the lane `l`
# and of `why(l.id)` as `w`. Overdue is what was due two minutes ago; a lease counts from its end. What waits for a worker in
# a queue is never overdue.
FREE, FAILING, OVERDUE, HELD = range(4)
STANDING = f"""
case when w.code = 'queued' and l.attempts > 0 then {FAILING}
     when w.code is not null and w.code not in ('at_work', 'unsent') then {HELD}
     when coalesce(l.lease_until, l.next_due_at) < now() - interval '2 minutes' then {OVERDUE}
     when l.attempts > 0 then {FAILING}
     else {FREE} end"""
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
    return {FAILING: State.RETRYING, OVERDUE: State.STALLED, HELD: HELD_BY.get(row["why"], status)}.get(
        row["standing"], status
    )
