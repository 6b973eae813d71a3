"""Guards the relay's decisions: what a step writes, what the tick does about a lane, how a run is settled."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kernel.decide import (
    FIRST_RESEND,
    LONGEST_RESEND,
    PROMOTE_BEFORE,
    Limits,
    all_or_nothing,
    before_looking,
    change_after,
    change_for,
    expired,
    judge,
    resend_interval,
    settlement,
)
from shared.kernel.errors import Permanent, Throttled, Transient
from shared.kernel.model import (
    REPAIRS,
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
    NewLane,
    NextPhase,
    Problem,
    Run,
    RunStatus,
    Settlement,
    Statement,
    StepOutcome,
    Turn,
    Verdict,
    Wait,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)
PROBLEM = Problem("code", "message")
EFFECTS = [Effect(Statement("s", "select 1"))]
LANES = [NewLane(key="next")]


def a_turn(**changed: Any) -> Turn:
    turn = Turn(
        lane_id=UUID(int=1),
        run_id=UUID(int=2),
        tenant_id=UUID(int=3),
        kind="tally",
        key="l0",
        holds_run=True,
        epoch=1,
        seq=4,
        resend_no=0,
        token=UUID(int=5),
        cursor={"n": 4},
        params={},
        claims=1,
        attempts=2,
        steps=4,
        max_steps=100,
        deadline_at=None,
        cancel_at=None,
        run_status=RunStatus.RUNNING,
        run_epoch=1,
        correlation_id=None,
        now=NOON,
    )
    return replace(turn, **changed)


def a_run(**changed: Any) -> Run:
    run = Run(
        id=UUID(int=2),
        tenant_id=UUID(int=3),
        kind="tally",
        status=RunStatus.RUNNING,
        outcome=None,
        epoch=1,
        params={},
        correlation_id=None,
        cancel_requested_at=None,
        paused_at=None,
        time_limit_s=None,
        deadline_at=None,
        now=NOON,
    )
    return replace(run, **changed)


def a_lane(status: LaneStatus, key: str = "l0", *, holds_run: bool = True) -> Lane:
    return Lane(id=UUID(int=1), key=key, status=status, holds_run=holds_run, epoch=1, cursor={}, last_error=None)


# What ends a lane before the outside is touched.


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"claims": 5}, None, id="the fifth claimant may try"),
        pytest.param({"claims": 6}, "poison", id="the sixth claimant gives up"),
        pytest.param({"steps": 99}, None, id="the last step is allowed"),
        pytest.param({"steps": 100}, "max_steps", id="one more is not"),
        pytest.param({"deadline_at": NOON + INSTANT}, None, id="before its deadline"),
        pytest.param({"deadline_at": NOON}, "timed_out", id="at its deadline"),
        pytest.param({"deadline_at": NOON, "steps": 100}, "timed_out", id="the deadline comes first"),
        pytest.param({"cancel_at": NOON, "steps": 100, "deadline_at": NOON}, None, id="a cancel has its own ending"),
        pytest.param({"cancel_at": NOON, "claims": 6}, "poison", id="but not for a lane that kills"),
    ],
)
def test_a_lane_ends_before_it_looks_when_its_budget_is_spent(changed: dict[str, Any], code: str | None) -> None:
    failure = before_looking(a_turn(**changed), Limits())

    assert (failure.problem.code if failure else None) == code


# What a decision writes.


@pytest.mark.parametrize(
    ("decision", "change"),
    [
        pytest.param(
            Continue(cursor={"n": 5}, after_s=7, effects=EFFECTS, rows=3, lanes=LANES),
            LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.MOVED,
                attempts=0,
                cursor={"n": 5},
                delay_s=7,
                spent=1,
                effects=EFFECTS,
                rows=3,
                lanes=LANES,
            ),
            id="progress clears the attempts and spends a step",
        ),
        pytest.param(
            Wait(after_s=30),
            LaneChange(status=LaneStatus.ACTIVE, outcome=StepOutcome.WAITED, attempts=2, delay_s=30),
            id="a wait spends nothing",
        ),
        pytest.param(
            Wait(after_s=30, cursor={"looks": 1}),
            LaneChange(
                status=LaneStatus.ACTIVE, outcome=StepOutcome.WAITED, attempts=2, delay_s=30, cursor={"looks": 1}
            ),
            id="a wait may remember what it saw",
        ),
        pytest.param(
            Finish(effects=EFFECTS, rows=1, lanes=LANES, cursor={"n": 9}),
            LaneChange(
                status=LaneStatus.DONE,
                outcome=StepOutcome.DONE,
                attempts=0,
                cursor={"n": 9},
                spent=1,
                effects=EFFECTS,
                rows=1,
                lanes=LANES,
            ),
            id="the end is progress too",
        ),
        pytest.param(
            Fail(PROBLEM),
            LaneChange(status=LaneStatus.FAILED, outcome=StepOutcome.FAILED, attempts=2, problem=PROBLEM),
            id="a failure says why",
        ),
        pytest.param(
            Cancel(effects=EFFECTS),
            LaneChange(status=LaneStatus.CANCELED, outcome=StepOutcome.CANCELED, attempts=2, effects=EFFECTS),
            id="a cancel may still write",
        ),
    ],
)
def test_a_decision_writes_exactly_this(decision: Decision, change: LaneChange) -> None:
    assert change_for(decision, a_turn()) == change


@pytest.mark.parametrize(
    ("error", "attempts", "change"),
    [
        pytest.param(
            Permanent("no such thing", code="gone"),
            0,
            LaneChange(
                status=LaneStatus.FAILED,
                outcome=StepOutcome.FAILED,
                attempts=0,
                problem=Problem("gone", "no such thing"),
            ),
            id="permanent: at once",
        ),
        pytest.param(
            Throttled("api", 100, shared=True),
            9,
            LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.THROTTLED,
                attempts=9,
                delay_s=110,
                problem=Problem("throttled", "the upstream asks to wait"),
                closes_gate=GateClosing(key="api", shared=True, retry_after_s=100, reason="the upstream asks to wait"),
                waits_for="gate:api",
            ),
            id="throttled: spends nothing, closes the gate",
        ),
        pytest.param(
            Transient("no answer"),
            0,
            LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.RETRIED,
                attempts=1,
                delay_s=3.75,
                problem=Problem("transient", "no answer"),
            ),
            id="transient: soon",
        ),
        pytest.param(
            Transient("busy", code="busy", retry_after_s=90),
            1,
            LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.RETRIED,
                attempts=2,
                delay_s=90,
                problem=Problem("busy", "busy"),
            ),
            id="transient: not before it is asked for",
        ),
        pytest.param(
            KeyError("x"),
            0,
            LaneChange(
                status=LaneStatus.ACTIVE,
                outcome=StepOutcome.RETRIED,
                attempts=1,
                delay_s=11.25,
                problem=Problem("unexpected", "KeyError: 'x'"),
            ),
            id="a surprise: slower",
        ),
        pytest.param(
            Transient("no answer"),
            9,
            LaneChange(
                status=LaneStatus.FAILED,
                outcome=StepOutcome.FAILED,
                attempts=9,
                problem=Problem("transient", "no answer"),
                probe_undecided=True,
            ),
            id="the tenth attempt was the last",
        ),
    ],
)
def test_a_failure_writes_exactly_this(error: Exception, attempts: int, change: LaneChange) -> None:
    assert change_after(error, a_turn(attempts=attempts), Limits(), 0.5) == change


@given(
    st.sampled_from([Transient("t"), Permanent("p"), Throttled("g", 5), ValueError("v"), MemoryError(), Exception()]),
    st.integers(0, 2_000),
    st.floats(0, 1, exclude_max=True),
)
def test_a_failure_never_counts_as_progress_and_never_moves_the_cursor(
    error: Exception, attempts: int, fraction: float
) -> None:
    change = change_after(error, a_turn(attempts=attempts), Limits(), fraction)

    assert not change.spent
    assert change.cursor is None
    assert not change.effects
    assert change.attempts - attempts in (0, 1)
    assert 0 <= change.delay_s <= 900


# What the tick does about a lane.

moments = st.integers(-200_000, 200_000).map(lambda seconds: NOON + timedelta(seconds=seconds / 10))
past = st.integers(0, 200_000).map(lambda seconds: NOON - timedelta(seconds=seconds / 10))


@st.composite
def lane_facts(draw: st.DrawFn, /, **fixed: Any) -> LaneFacts:
    facts: dict[str, Any] = {
        "lane_id": UUID(int=1),
        "tenant_id": UUID(int=3),
        "kind": "tally",
        "epoch": 1,
        "seq": draw(st.integers(0, 9)),
        "resend_no": draw(st.integers(0, 1000)),
        "resends": draw(st.integers(0, 100)),
        "next_due_at": draw(moments),
        "sent_at": draw(st.none() | past),
        "lease_until": draw(st.none() | moments),
        "cancel_at": draw(st.none() | past),
        "deadline_at": draw(st.none() | moments),
        "run_paused": draw(st.booleans()),
        "now": NOON,
    }
    return LaneFacts(**{**facts, **fixed})


def applied(judgement: Judgement) -> LaneFacts:
    """The lane as the tick leaves it."""
    lane = judgement.lane
    if not judgement.send:
        return lane
    due_at = lane.now if judgement.due_now else lane.next_due_at
    return replace(
        lane,
        resend_no=judgement.resend_no,
        resends=judgement.resends,
        sent_at=lane.now,
        lease_until=None,
        next_due_at=due_at,
    )


@given(lane_facts())
def test_every_lane_gets_a_judgement_and_a_time_for_the_next(lane: LaneFacts) -> None:
    judgement = judge(lane)

    assert judgement.lane is lane
    assert (judgement.check_at is None) == (judgement.verdict is Verdict.PARKED)
    assert judgement.check_at is None or judgement.check_at >= lane.now, "never in the past"
    assert judgement.due.delay_s >= 0


@given(lane_facts())
def test_a_lane_is_parked_exactly_if_its_run_is_paused_and_not_being_canceled(lane: LaneFacts) -> None:
    parked = judge(lane).verdict is Verdict.PARKED

    assert parked == (lane.run_paused and lane.cancel_at is None)


@given(lane_facts())
def test_a_copy_gets_a_new_number_exactly_when_an_old_one_may_be_in_the_way(lane: LaneFacts) -> None:
    judgement = judge(lane)

    raised = judgement.resend_no - lane.resend_no
    assert raised == (judgement.verdict in REPAIRS | {Verdict.EXPIRED})
    assert judgement.due.baton.resend_no == judgement.resend_no
    assert judgement.resends - lane.resends == (judgement.verdict is Verdict.UNCLAIMED)


@given(lane_facts())
def test_the_verdict_says_whether_anything_is_sent(lane: LaneFacts) -> None:
    judgement = judge(lane)

    assert judgement.send == (judgement.verdict in REPAIRS | {Verdict.PROMOTED, Verdict.EXPIRED})


@given(lane_facts(), st.integers(0, 10**9))
def test_what_is_to_be_sent_now_is_to_be_sent_later_too(lane: LaneFacts, microseconds: int) -> None:
    later = replace(lane, now=lane.now + timedelta(microseconds=microseconds))

    assert judge(later).send >= judge(lane).send


@given(lane_facts())
def test_a_second_look_at_the_same_moment_sends_nothing(lane: LaneFacts) -> None:
    assert not judge(applied(judge(lane))).send


@given(lane_facts())
def test_nothing_is_missed_by_not_looking_before_the_check_time(lane: LaneFacts) -> None:
    judgement = judge(lane)
    left = applied(judgement)
    if judgement.check_at is None:
        return

    just_before, just_after = judgement.check_at - INSTANT, judgement.check_at + INSTANT

    assert judge(replace(left, now=just_after)).send, "and nothing is looked at in vain"
    if just_before > lane.now:
        assert not judge(replace(left, now=just_before)).send


@given(lane_facts(lease_until=None, run_paused=False, cancel_at=None))
def test_a_lane_that_waits_beyond_its_deadline_is_due_when_it_comes(lane: LaneFacts) -> None:
    judgement = judge(lane)

    if lane.deadline_at is None or lane.next_due_at <= lane.deadline_at:
        assert judgement.verdict is not Verdict.EXPIRED
    elif lane.deadline_at > lane.now:
        assert judgement.check_at is not None
        assert judgement.check_at <= lane.deadline_at, "it is seen in time"
    elif lane.next_due_at > lane.now:
        assert (judgement.verdict, judgement.send, judgement.due.delay_s) == (Verdict.EXPIRED, True, 0)


@given(
    lane_facts(
        lease_until=None, run_paused=False, cancel_at=None, sent_at=None,
        next_due_at=NOON + timedelta(seconds=100), deadline_at=NOON + timedelta(seconds=60), now=NOON,
    )
)  # fmt: skip
def test_a_lane_whose_baton_is_sent_ahead_is_seen_at_its_deadline_too(lane: LaneFacts) -> None:
    promoted = judge(lane)

    assert (promoted.verdict, promoted.check_at) == (Verdict.PROMOTED, lane.deadline_at)


@given(lane_facts(run_paused=True, cancel_at=None) | lane_facts(cancel_at=NOON))
def test_the_clock_of_a_paused_or_canceled_lane_stands_still(lane: LaneFacts) -> None:
    assert judge(lane).verdict is not Verdict.EXPIRED


@given(lane_facts(lease_until=None, run_paused=False, deadline_at=None), st.booleans())
def test_only_a_backlog_makes_the_tick_more_patient_and_it_never_looks_away_for_long(
    lane: LaneFacts, backlog: bool
) -> None:
    judgement = judge(lane, backlog=backlog)

    if lane.sent_at is not None:
        silent_for = lane.now - max(lane.sent_at, lane.next_due_at)
        assert judgement.send == (silent_for >= (resend_interval(lane.resends) if backlog else FIRST_RESEND))
        assert judgement.check_at is not None
        assert judgement.check_at <= max(lane.now, lane.next_due_at) + FIRST_RESEND


@given(lane_facts(lease_until=None, run_paused=False, sent_at=None, deadline_at=None))
def test_an_unsent_baton_is_sent_two_minutes_before_it_is_due(lane: LaneFacts) -> None:
    judgement = judge(lane)

    assert judgement.send == (lane.next_due_at - PROMOTE_BEFORE <= lane.now)
    if judgement.send:
        assert judgement.due.delay_s <= PROMOTE_BEFORE.total_seconds()
        assert (judgement.verdict is Verdict.PROMOTED) == (lane.next_due_at > lane.now)


@given(lane_facts(run_paused=False))
def test_a_lane_in_the_hands_of_a_living_process_is_left_alone(lane: LaneFacts) -> None:
    held = replace(lane, lease_until=lane.now + INSTANT)

    assert judge(held).verdict is Verdict.BUSY


@given(st.integers(0, 10**9))
def test_patience_stays_between_three_and_thirty_minutes(resends: int) -> None:
    assert FIRST_RESEND <= resend_interval(resends) <= LONGEST_RESEND
    assert resend_interval(resends) <= resend_interval(resends + 1)


def test_patience_doubles_after_the_fourth_copy() -> None:
    minutes = [resend_interval(resends) / timedelta(minutes=1) for resends in range(10)]

    assert minutes == [3, 3, 3, 3, 3, 6, 12, 24, 30, 30]


# How a run is settled.

DONE, FAILED, CANCELED = a_lane(LaneStatus.DONE), a_lane(LaneStatus.FAILED, "l1"), a_lane(LaneStatus.CANCELED, "l2")
CLEAN_UP = a_lane(LaneStatus.FAILED, "cleanup", holds_run=False)
SUCCESS, FAILURE, NEXT = Ending(RunStatus.SUCCEEDED, "done"), Ending(RunStatus.FAILED, "failed"), NextPhase(LANES)
CANCEL = Ending(RunStatus.CANCELED, "canceled")


@pytest.mark.parametrize(
    ("asked", "lanes", "verdict", "expected"),
    [
        pytest.param(False, [DONE], SUCCESS, SUCCESS, id="the kind decides"),
        pytest.param(False, [DONE, FAILED], FAILURE, FAILURE, id="the kind decides about failures too"),
        pytest.param(False, [DONE], NEXT, NEXT, id="the kind may go on"),
        pytest.param(False, [CANCELED], SUCCESS, SUCCESS, id="without a request nothing is canceled"),
        pytest.param(True, [DONE, CANCELED], SUCCESS, CANCEL, id="anything undone means canceled"),
        pytest.param(True, [DONE, FAILED], FAILURE, CANCEL, id="a failure on the way out too"),
        pytest.param(True, [DONE], NEXT, CANCEL, id="a canceled run opens no next phase"),
        pytest.param(True, [DONE], SUCCESS, SUCCESS, id="a cancel that came too late changes nothing"),
        pytest.param(True, [DONE, CLEAN_UP], SUCCESS, SUCCESS, id="clean-up lanes do not count"),
    ],
)
def test_a_run_is_settled_by_its_kind_unless_it_was_canceled(
    asked: bool, lanes: list[Lane], verdict: Settlement, expected: Settlement
) -> None:
    run = a_run(cancel_requested_at=NOON if asked else None)

    assert settlement(run, lanes, verdict) == expected


@pytest.mark.parametrize(
    ("lanes", "status"),
    [
        ([DONE, DONE], RunStatus.SUCCEEDED),
        ([DONE, FAILED], RunStatus.FAILED),
        ([DONE, CLEAN_UP], RunStatus.SUCCEEDED),
    ],
)
def test_all_or_nothing_means_every_lane_that_holds_the_run(lanes: list[Lane], status: RunStatus) -> None:
    verdict = all_or_nothing(a_run(), lanes)

    assert isinstance(verdict, Ending)
    assert verdict.status is status


@pytest.mark.parametrize("asked", [True, False])
def test_a_step_that_did_not_ask_leaves_its_probe_to_the_next(asked: bool) -> None:
    for decision in (Wait(after_s=1, asked=asked), Fail(Problem("timed_out", "too late"), asked=asked)):
        assert change_for(decision, a_turn()).probe_undecided is not asked


def test_a_failure_names_five_lanes_at_most() -> None:
    verdict = all_or_nothing(a_run(), [a_lane(LaneStatus.FAILED, f"l{n}") for n in range(7)])

    assert isinstance(verdict, Ending)
    assert verdict.problem == Problem("lanes_failed", "7 lanes failed: l0, l1, l2, l3, l4, …")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, False),
        ({"deadline_at": NOON + INSTANT}, False),
        ({"deadline_at": NOON}, True),
        ({"deadline_at": NOON - INSTANT, "paused_at": NOON}, False),
    ],
)
def test_a_run_expires_at_its_deadline_unless_it_is_paused(changed: dict[str, Any], expected: bool) -> None:
    assert expired(a_run(**changed)) is expected


def test_progress_before_a_429_is_kept_and_closes_the_gate() -> None:
    throttled = Throttled("example:7", 300.0, "Example asks to wait")
    change = change_for(Continue(cursor={"n": 1}, rows=3, throttled=throttled), a_turn(attempts=4))

    assert (change.outcome, change.attempts, change.cursor, change.rows) == (StepOutcome.MOVED, 0, {"n": 1}, 3)
    assert (change.delay_s, change.waits_for) == (300.0, "gate:example:7")
    assert change.closes_gate == GateClosing(
        key="example:7", shared=False, retry_after_s=300.0, reason="Example asks to wait"
    )
