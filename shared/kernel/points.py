"""Named points between two effects. In production passing one does nothing; tests stop, crash or kill there."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """The relay's own places where a process may die between two effects. A kind has a StrEnum of its own for its places."""

    STEP_RECEIVED = "step.received"
    STEP_CLAIMED = "step.claimed"
    STEP_GATED = "step.gated"
    STEP_WROTE = "step.wrote"
    STEP_LOOKED = "step.looked"
    STEP_COMMITTED = "step.committed"
    STEP_SENT = "step.sent"
    TURN_RUN_LOCKED = "turn.run_locked"
    TURN_WRITTEN = "turn.written"
    TURN_SETTLED = "turn.settled"
    START_WRITTEN = "start.written"
    START_COMMITTED = "start.committed"
    ACTION_RUN_LOCKED = "action.run_locked"
    ACTION_WRITTEN = "action.written"
    ACTION_COMMITTED = "action.committed"
    TICK_LOCKED = "tick.locked"
    TICK_JUDGED = "tick.judged"
    TICK_COMMITTED = "tick.committed"
    TICK_SENT = "tick.sent"
    TICK_RUN_LOCKED = "tick.run_locked"
    TICK_RUN_COMMITTED = "tick.run_committed"
    TICK_TOOK_OVER = "tick.took_over"
    TICK_LOST_COMMITTED = "tick.lost_committed"
    FORWARD_RECEIVED = "forward.received"
    FORWARD_SENT = "forward.sent"
    REMOTE_INTENDED = "remote.intended"
    REMOTE_LOOKED = "remote.looked"
    REMOTE_CALLED = "remote.called"
    REMOTE_CONFIRMED = "remote.confirmed"
    SWEEP_CLEANED = "sweep.cleaned"
    SWEEP_NOTED = "sweep.noted"
    DEAD_LETTER_NOTED = "dead_letter.noted"
    SIGNAL_LOCKED = "signal.locked"
    SIGNAL_FANNED_OUT = "signal.fanned_out"
    SIGNAL_TAKEN = "signal.taken"
    SIGNAL_HEARD = "signal.heard"
    SIGNAL_COMMITTED = "signal.committed"


_hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Pass a named point."""
    if _hook is not None:
        _hook(name)


def watch_points(hook: Callable[[str], None] | None) -> None:
    """Call `hook` at every point from now on; None stops it. Only tests do this."""
    global _hook  # noqa: PLW0603 - one hook per process, set by tests alone
    _hook = hook
