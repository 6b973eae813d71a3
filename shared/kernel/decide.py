"""The relay's own decisions. Pure: no clock, no database, no network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from shared.kernel.errors import Later, Permanent, Throttled, Transient
from shared.kernel.model import (
    Cancel,
    Continue,
    Decision,
    Effect,
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
# What a kind or an upstream may ask for. A time further off could be beyond what can be counted with, or a slip.
LONGEST_S = 10 * 366 * 86_400
LONGEST_RETRY_AFTER_S = 86_400.0
# Being throttled spends nothing: an upstream that asks for no wait at all would be asked without end and without a pause.
LEAST_THROTTLED_S = 1.0


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
        return Fail(Problem("poison", f"{turn.claims - 1} processes started this step and none finished it"))
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
            # The upstream asked to wait in the middle of a step: what was done counts, and its gate closes with it.
            closing = None if decision.throttled is None else _closing(decision.throttled, TRANSIENT.first_s)
            waits = None if decision.goes_on else closing
            return LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.MOVED,
                attempts=0,
                cursor=decision.cursor,
                delay_s=bounded_s(decision.after_s if waits is None else waits.retry_after_s),
                spent=-turn.steps if decision.renews else 1,
                effects=decision.effects,
                rows=decision.rows,
                lanes=decision.lanes,
                says=decision.says,
                closes_gate=closing,
                waits_for=None if waits is None else f"gate:{waits.key}",
            )
        case Wait():
            return LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.WAITED,
                attempts=turn.attempts,
                cursor=decision.cursor,
                delay_s=bounded_s(decision.after_s),
                waits_for=decision.waits_for,
                probe_undecided=not decision.asked,
            )
        case Finish():
            return LaneChange(
                status=LaneStatus.DONE,
                outcome=StepOutcome.DONE,
                attempts=0,
                cursor=decision.cursor,
                spent=1,
                effects=decision.effects,
                rows=decision.rows,
                lanes=decision.lanes,
                says=decision.says,
            )
        case Fail():
            return replace(failed(turn, decision.problem), probe_undecided=not decision.asked)
        case Cancel():
            return LaneChange(
                status=LaneStatus.CANCELED,
                outcome=StepOutcome.CANCELED,
                attempts=turn.attempts,
                effects=decision.effects,
            )
        case _:
            assert_never(decision)


def bounded_s(seconds: float) -> float:
    """A delay or a time limit as it may be stored: at least zero, at most ten years."""
    if math.isnan(seconds):
        raise ValueError("a delay or a time limit must be a number of seconds, not NaN")
    return min(max(seconds, 0), LONGEST_S)


def _asked_s(retry_after_s: float | None, otherwise: float) -> float:
    """What an upstream asks for, within a day: after that it is asked again. What is no number is no wish."""
    if retry_after_s is None or not math.isfinite(retry_after_s):
        return otherwise
    return min(max(retry_after_s, 0.0), LONGEST_RETRY_AFTER_S)


def change_after(error: Exception, turn: Turn, limits: Limits, fraction: float) -> LaneChange:
    """What a failure writes: it is a decision like any other."""
    match error:
        case Permanent():
            return failed(turn, Problem(error.code, error.message), error.effects)
        case Throttled():
            closing = _closing(error, limits.backoff.delay_s(1, fraction))
            return LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.THROTTLED,
                attempts=turn.attempts,
                delay_s=spread_s(closing.retry_after_s, fraction),
                problem=Problem("throttled", error.message),
                closes_gate=closing,
                waits_for=f"gate:{error.gate}",
            )
        case Later():
            return LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.WAITED,
                attempts=turn.attempts,
                delay_s=bounded_s(error.after_s),
                probe_undecided=True,
                waits_for=error.waits_for,
            )
        case Transient():
            delay = limits.backoff.delay_s(turn.attempts + 1, fraction)
            wait_s = max(delay, _asked_s(error.retry_after_s, 0))
            return retried(turn, limits, Problem(error.code, error.message), wait_s, error.effects)
        case _:
            problem = Problem("unexpected", f"{type(error).__name__}: {error}")
            return retried(turn, limits, problem, SURPRISE.delay_s(turn.attempts + 1, fraction))


def _closing(error: Throttled, otherwise_s: float) -> GateClosing:
    wait_s = max(LEAST_THROTTLED_S, _asked_s(error.retry_after_s, otherwise_s))
    return GateClosing(key=error.gate, shared=error.shared, retry_after_s=wait_s, reason=redact(error.message))


def retried(turn: Turn, limits: Limits, problem: Problem, delay_s: float, effects: Sequence[Effect] = ()) -> LaneChange:
    """The same cursor later, or the end of the lane's patience."""
    if turn.attempts + 1 >= limits.max_attempts:
        # The lane gives up; no upstream has answered.
        return replace(failed(turn, problem, effects), probe_undecided=True)
    return LaneChange(
        status=LaneStatus.ACTIVE,
        outcome=StepOutcome.RETRIED,
        attempts=turn.attempts + 1,
        delay_s=bounded_s(delay_s),
        problem=problem,
        effects=effects,
    )


def failed(turn: Turn, problem: Problem, effects: Sequence[Effect] = ()) -> LaneChange:
    return LaneChange(
        status=LaneStatus.FAILED, outcome=StepOutcome.FAILED, attempts=turn.attempts, problem=problem, effects=effects
    )


def judge(lane: LaneFacts, *, backlog: bool = False) -> Judgement:
    """What the tick does about a lane. Earlier rules win. In a backlog, copies are sent ever more seldom."""
    now = lane.now
    if lane.run_paused and lane.cancel_at is None:
        return _leave(lane, Verdict.PARKED, None)
    if lane.lease_until is not None and lane.lease_until >= now:
        return _leave(lane, Verdict.BUSY, lane.lease_until)
    if lane.lease_until is not None:
        # The lease is longer than a function may run: whoever held it is dead, and its message blocks its group.
        return _send(lane, Verdict.LEASE_RAN_OUT, resend_no=lane.resend_no + 1, resends=lane.resends)
    if _waits_in_vain(lane):
        return _send(lane, Verdict.EXPIRED, resend_no=lane.resend_no + 1, resends=lane.resends)
    if lane.sent_at is None and lane.next_due_at - PROMOTE_BEFORE > now:
        return _leave(lane, Verdict.LATER, lane.next_due_at - PROMOTE_BEFORE)
    if lane.sent_at is None and lane.next_due_at > now:
        return _send(lane, Verdict.PROMOTED, resend_no=lane.resend_no, resends=lane.resends)
    if lane.sent_at is None:
        # Overdue: a send failed, perhaps after it was accepted, perhaps of a process that died with its message in hand.
        return _send(lane, Verdict.UNSENT, resend_no=lane.resend_no + 1, resends=lane.resends)
    patience_ends = max(lane.next_due_at, lane.sent_at) + resend_interval(lane.resends if backlog else 0)
    if patience_ends > now:
        # Patience may end with the backlog: it is not slept through.
        return _leave(lane, Verdict.WAITING, min(patience_ends, max(lane.next_due_at, now) + FIRST_RESEND))
    return _send(lane, Verdict.UNCLAIMED, resend_no=lane.resend_no + 1, resends=lane.resends + 1)


def resend_interval(resends: int) -> timedelta:
    """How long a sent baton may stay unclaimed in a backlog, which must not be multiplied."""
    doublings = max(0, min(resends, 20) - PATIENT_RESENDS)
    return min(LONGEST_RESEND, FIRST_RESEND * (1 << doublings))


def _waits_in_vain(lane: LaneFacts) -> bool:
    """Whether its own deadline has come before its turn. A canceled lane has no deadline any more."""
    return lane.deadline_at is not None and lane.deadline_at <= lane.now < lane.next_due_at and lane.cancel_at is None


def _leave(lane: LaneFacts, verdict: Verdict, check_at: datetime | None) -> Judgement:
    if check_at is not None and verdict is not Verdict.BUSY:
        check_at = _by_its_deadline(lane, check_at)
    return Judgement(
        verdict=verdict, lane=lane, resend_no=lane.resend_no, resends=lane.resends, send=False, check_at=check_at
    )


def _send(lane: LaneFacts, verdict: Verdict, *, resend_no: int, resends: int) -> Judgement:
    due_now = _waits_in_vain(lane)
    due_at = lane.now if due_now else max(lane.next_due_at, lane.now)
    return Judgement(
        verdict=verdict,
        lane=lane,
        resend_no=resend_no,
        resends=resends,
        send=True,
        due_now=due_now,
        check_at=_by_its_deadline(lane, due_at + FIRST_RESEND),
    )


def _by_its_deadline(lane: LaneFacts, check_at: datetime) -> datetime:
    deadline_at = lane.deadline_at
    if deadline_at is None or not lane.now < deadline_at < lane.next_due_at or lane.cancel_at is not None:
        return check_at
    return min(check_at, deadline_at)


def settlement(run: Run, lanes: Sequence[Lane], verdict: Settlement) -> Settlement:
    """The kind's verdict, unless a cancel was asked for and anything of the run is left undone."""
    if run.cancel_requested_at is None:
        return verdict
    undone = any(lane.holds_run and lane.status is not LaneStatus.DONE for lane in lanes)
    if undone or not isinstance(verdict, Ending):
        return Ending(RunStatus.CANCELED, "canceled")
    return verdict


def with_cause(verdict: Settlement, lanes: Sequence[Lane]) -> Settlement:
    """A run that fails of its lanes names what most of them failed of: people fix that, not "1 of 19 failed"."""
    if not isinstance(verdict, Ending) or verdict.status is not RunStatus.FAILED or verdict.problem is None:
        return verdict
    failed = [lane for lane in lanes if lane.holds_run and lane.status is LaneStatus.FAILED and lane.last_error]
    if not failed or verdict.problem.cause is not None:
        return verdict
    alike = Counter(_cause_of(lane) for lane in failed)
    first = max(failed, key=lambda lane: alike[_cause_of(lane)])
    if _cause_of(first) == verdict.problem.to_json()["fingerprint"]:
        return verdict  # it says so itself
    cause = {**(first.last_error or {}), "lane": first.key, "lanes": alike[_cause_of(first)]}
    return replace(verdict, problem=replace(verdict.problem, cause=cause))


def _cause_of(lane: Lane) -> str:
    return str((lane.last_error or {}).get("fingerprint"))


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
