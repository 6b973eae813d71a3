"""The relay's own decisions. Pure: no clock, no database, no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from shared.kernel.errors import Permanent, Throttled, Transient
from shared.kernel.model import (
    Cancel,
    Continue,
    Decision,
    Ending,
    Fail,
    Finish,
    GateClosing,
    Judgement,
    Lane,
    LaneChange,
    LaneFacts,
    LaneStatus,
    Problem,
    Run,
    RunStatus,
    Settlement,
    StepOutcome,
    Turn,
    Verdict,
    Wait,
)
from shared.kernel.redact import redact
from shared.kernel.retry import SURPRISE, TRANSIENT, Backoff, spread_s

LONGEST_QUEUE_DELAY_S = 900
PROMOTE_BEFORE = timedelta(seconds=120)
FIRST_RESEND = timedelta(minutes=3)
LONGEST_RESEND = timedelta(minutes=30)
PATIENT_RESENDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a lane may spend before it fails."""

    max_steps: int = 1_000_000
    max_attempts: int = 10
    max_claims: int = 5
    backoff: Backoff = TRANSIENT


def before_looking(turn: Turn, limits: Limits) -> Fail | None:
    """What ends the lane before the outside is touched."""
    if turn.claims > limits.max_claims:
        return Fail(Problem("poison", f"{turn.claims - 1} processes took this turn and none came back"))
    if turn.cancel_at is not None:
        return None
    if turn.deadline_at is not None and turn.now >= turn.deadline_at:
        return Fail(Problem("timed_out", f"the lane's deadline {turn.deadline_at.isoformat()} has passed"))
    if turn.steps >= turn.max_steps:
        return Fail(Problem("max_steps", f"the lane took its {turn.max_steps} steps and was not done"))
    return None


def change_for(decision: Decision, turn: Turn) -> LaneChange:
    """What a decision writes."""
    match decision:
        case Continue():
            closing = decision.throttled
            return LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.MOVED,
                attempts=0,
                cursor=decision.cursor,
                delay_s=decision.after_s if closing is None else closing.retry_after_s,
                progress=True,
                effects=decision.effects,
                rows=decision.rows,
                lanes=decision.lanes,
                closes_gate=None if closing is None else _closing(closing),
                waits_for=None if closing is None else f"gate:{closing.gate}",
            )
        case Wait():
            return LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.WAITED,
                attempts=turn.attempts,
                cursor=decision.cursor,
                delay_s=decision.after_s,
                waits_for=decision.waits_for,
            )
        case Finish():
            return LaneChange(
                status=LaneStatus.DONE,
                outcome=StepOutcome.DONE,
                attempts=0,
                cursor=decision.cursor,
                progress=True,
                effects=decision.effects,
                rows=decision.rows,
                lanes=decision.lanes,
            )
        case Fail():
            return failed(turn, decision.problem)
        case Cancel():
            return LaneChange(
                status=LaneStatus.CANCELED,
                outcome=StepOutcome.CANCELED,
                attempts=turn.attempts,
                effects=decision.effects,
            )
        case _:
            assert_never(decision)


def change_after(error: Exception, turn: Turn, limits: Limits, fraction: float) -> LaneChange:
    """What a failure writes: it is a decision like any other."""
    match error:
        case Permanent():
            return failed(turn, Problem(error.code, error.message))
        case Throttled():
            return LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.THROTTLED,
                attempts=turn.attempts,
                delay_s=spread_s(error.retry_after_s, fraction),
                problem=Problem("throttled", error.message),
                closes_gate=_closing(error),
                waits_for=f"gate:{error.gate}",
            )
        case Transient():
            delay = limits.backoff.delay_s(turn.attempts + 1, fraction)
            return retried(turn, limits, Problem(error.code, error.message), max(delay, error.retry_after_s or 0))
        case _:
            problem = Problem("unexpected", f"{type(error).__name__}: {error}")
            return retried(turn, limits, problem, SURPRISE.delay_s(turn.attempts + 1, fraction))


def _closing(error: Throttled) -> GateClosing:
    return GateClosing(
        key=error.gate, shared=error.shared, retry_after_s=error.retry_after_s, reason=redact(error.message)
    )


def retried(turn: Turn, limits: Limits, problem: Problem, delay_s: float) -> LaneChange:
    """The same cursor later, or the end of the lane's patience."""
    if turn.attempts + 1 >= limits.max_attempts:
        return failed(turn, problem)
    return LaneChange(
        status=LaneStatus.ACTIVE,
        outcome=StepOutcome.RETRIED,
        attempts=turn.attempts + 1,
        delay_s=delay_s,
        problem=problem,
    )


def failed(turn: Turn, problem: Problem) -> LaneChange:
    return LaneChange(status=LaneStatus.FAILED, outcome=StepOutcome.FAILED, attempts=turn.attempts, problem=problem)


def judge(lane: LaneFacts) -> Judgement:
    """What the tick does about a lane. Earlier rules win."""
    now = lane.now
    if lane.run_paused and lane.cancel_at is None:
        return _leave(lane, Verdict.PARKED, None)
    if lane.lease_until is not None and lane.lease_until >= now:
        return _leave(lane, Verdict.BUSY, lane.lease_until)
    if lane.lease_until is not None:
        # The lease is longer than a function may run: whoever held it is dead, and its message blocks its group.
        return _send(lane, Verdict.LEASE_RAN_OUT, resend_no=lane.resend_no + 1, resends=lane.resends)
    if lane.sent_at is None and lane.next_due_at - PROMOTE_BEFORE > now:
        return _leave(lane, Verdict.LATER, lane.next_due_at - PROMOTE_BEFORE)
    if lane.sent_at is None and lane.next_due_at > now:
        return _send(lane, Verdict.PROMOTED, resend_no=lane.resend_no, resends=lane.resends)
    if lane.sent_at is None:
        # Overdue: a send failed, perhaps after it was accepted, perhaps of a process that died with its message in hand.
        return _send(lane, Verdict.UNSENT, resend_no=lane.resend_no + 1, resends=lane.resends)
    patience_ends = max(lane.next_due_at, lane.sent_at) + resend_interval(lane.resends)
    if patience_ends > now:
        return _leave(lane, Verdict.WAITING, patience_ends)
    return _send(lane, Verdict.UNCLAIMED, resend_no=lane.resend_no + 1, resends=lane.resends + 1)


def resend_interval(resends: int) -> timedelta:
    """How long a sent baton may stay unclaimed: a long backlog must not be multiplied."""
    doublings = max(0, min(resends, 20) - PATIENT_RESENDS)
    return min(LONGEST_RESEND, FIRST_RESEND * (1 << doublings))


def _leave(lane: LaneFacts, verdict: Verdict, check_at: datetime | None) -> Judgement:
    return Judgement(
        verdict=verdict, lane=lane, resend_no=lane.resend_no, resends=lane.resends, send=False, check_at=check_at
    )


def _send(lane: LaneFacts, verdict: Verdict, *, resend_no: int, resends: int) -> Judgement:
    check_at = max(lane.next_due_at, lane.now) + resend_interval(resends)
    return Judgement(verdict=verdict, lane=lane, resend_no=resend_no, resends=resends, send=True, check_at=check_at)


def settlement(run: Run, lanes: Sequence[Lane], verdict: Settlement) -> Settlement:
    """The kind's verdict, unless a cancel was asked for and anything of the run is left undone."""
    if run.cancel_requested_at is None:
        return verdict
    undone = any(lane.holds_run and lane.status is not LaneStatus.DONE for lane in lanes)
    if undone or not isinstance(verdict, Ending):
        return Ending(RunStatus.CANCELED, "canceled")
    return verdict


def all_or_nothing(run: Run, lanes: Sequence[Lane]) -> Settlement:  # noqa: ARG001 - the shape of a settlement
    """The settlement of a kind with one phase in which every lane counts."""
    broken = sorted(lane.key for lane in lanes if lane.holds_run and lane.status is LaneStatus.FAILED)
    if broken:
        named = ", ".join(broken[:5]) + (", …" if len(broken) > 5 else "")
        return Ending(RunStatus.FAILED, "failed", Problem("lanes_failed", f"{len(broken)} lanes failed: {named}"))
    return Ending(RunStatus.SUCCEEDED, "done")


def expired(run: Run) -> bool:
    """A paused run's clock stands still."""
    return run.deadline_at is not None and run.paused_at is None and run.deadline_at <= run.now
