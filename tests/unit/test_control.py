"""The controller's decisions, and what they lead to on a virtual clock when the provider's limit moves."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.kernel.control import (
    ENOUGH_ANSWERS,
    SHARED,
    WINDOW_S,
    Bounds,
    Exchanged,
    Granted,
    Law,
    Paced,
    Plain,
    Report,
    Seen,
    Want,
    decide,
    is_due,
    shut_for_s,
)
from shared.kernel.slices import Slice
from tests.bench.paths.pace import SHOWN, picture
from tests.support.pace import LANES, MemoryPace, PaceWorld, Phase, plateaus, stepping

BOUNDS = Bounds()
CALM = Seen(seconds=3, sent=30, ok=30, ln1=30 * math.log(0.3), ln2=30 * math.log(0.3) ** 2)

laws = st.builds(
    Law,
    rate=st.floats(0.1, 500),
    ceiling=st.floats(0, 500),
    gain=st.floats(0.02, 1),
    base_s=st.floats(0.01, 5),
    known=st.integers(0, 200),
    slow_at_s=st.sampled_from([0.0, 0.5, 2.0]),
    waited=st.integers(0, 8),
    debt=st.floats(0, 50),
    clean=st.floats(0, 500),
    streak=st.integers(0, 5),
)
windows = st.builds(
    Seen,
    seconds=st.floats(0.1, 30),
    sent=st.integers(0, 500),
    ok=st.integers(0, 500),
    throttled=st.integers(0, 100),
    failed=st.integers(0, 100),
    slow=st.integers(0, 20),
    late_ok=st.integers(0, 50),
    ln1=st.floats(-500, 500),
    ln2=st.floats(0, 5000),
    retry_after_s=st.sampled_from([0.0, 1.0, 60.0]),
)


@pytest.mark.full
@settings(max_examples=400, deadline=None)
@given(law=laws, seen=windows, trips=st.integers(0, 20))
def test_the_rate_stays_within_its_bounds_and_bad_windows_never_raise_it(law: Law, seen: Seen, trips: int) -> None:
    move = decide(law, seen, trips, BOUNDS)

    assert BOUNDS.least <= move.law.rate <= max(BOUNDS.most, law.rate)
    if move.law.rate > law.rate * (1 + 1e-9):
        assert move.reason in ("grow", "recover") or law.rate < BOUNDS.least
        assert seen.seconds >= WINDOW_S, "an early close never raises it"
        assert seen.done_per_s >= 0.8 * law.rate, "what is not used is not raised"
    if move.reason == "grow":
        assert move.law.debt == 0, "rejected calls are paid for first"
    assert 0 <= move.shut_s <= 60


def test_a_window_needs_time_and_answers_and_ends_early_when_it_goes_badly() -> None:
    assert not is_due(replace(CALM, seconds=2.9))
    assert is_due(CALM)
    assert not is_due(Seen(seconds=4, sent=9, ok=ENOUGH_ANSWERS - 1))
    assert is_due(Seen(seconds=30, sent=1))
    assert is_due(Seen(seconds=1, sent=10, ok=7, throttled=3))
    assert not is_due(Seen(seconds=0.9, sent=10, ok=7, throttled=3))
    assert is_due(Seen(seconds=0.1, sent=1, throttled=1, retry_after_s=5))


def test_each_reason_has_its_window() -> None:
    law = Law(rate=10, base_s=0.3, known=100, gain=0.1, clean=10)

    def reason(seen: Seen, **knows: float) -> str:
        return decide(replace(law, **knows), seen, 0, BOUNDS).reason  # type: ignore[arg-type]

    slow = replace(CALM, ln1=30 * math.log(2.0), ln2=30 * math.log(2.0) ** 2)
    assert reason(CALM) == "grow"
    assert reason(replace(CALM, ok=5, ln1=5 * math.log(0.3), ln2=5 * math.log(0.3) ** 2)) == "unused"
    assert reason(CALM, debt=20.0) == "paying"
    assert reason(CALM, ceiling=100.0) == "recover"
    assert reason(replace(CALM, throttled=5)) == "throttled"
    assert reason(replace(CALM, ok=5, failed=20)) == "failing"
    assert reason(Seen(seconds=3, sent=10, failed=10)) == "shut"
    assert reason(Seen(seconds=30, sent=4, failed=4)) == "failing", "four calls shut nothing"
    assert reason(Seen(seconds=30, sent=1, failed=1)) != "shut"
    assert reason(slow) == "slow"
    assert reason(slow, slow_at_s=2.0) == "draining"
    assert reason(slow, slow_at_s=2.0, waited=2.0) == "rebased"
    assert reason(replace(CALM, seconds=1.5, throttled=1)) == "hold"
    assert [shut_for_s(trips) for trips in (0, 1, 5, 20)] == [2, 4, 60, 60]


def test_a_report_of_an_older_window_is_throughput_and_nothing_else() -> None:
    now = [0.0]
    pace, paced, token = MemoryPace(lambda: now[0]), Paced("a", "d", UUID(int=1)), UUID(int=2)
    pace.exchange(paced, token, (0, Seen()), Want(1), BOUNDS)

    got = pace.exchange(paced, token, (0, Seen(sent=9, ok=2, throttled=7, retry_after_s=60)), Want(1), BOUNDS)

    assert (got.seen.throttled, got.seen.retry_after_s, got.seen.late_ok) == (0, 0, 2)
    assert not got.granted.closed


def test_a_report_tells_the_newest_window_and_what_came_through_of_others() -> None:
    report = Report()
    report.sent(1)
    report.answered(1, "throttled", 0.1, 30)
    report.answered(1, "ok", 1.0)
    report.sent(2)
    report.answered(2, "slow", math.e)

    window_no, told = report.hand_over()

    assert (window_no, told.sent, told.slow, told.late_ok, told.throttled) == (2, 1, 1, 1, 0)
    assert told.ln1 == pytest.approx(1)
    assert not report


def test_a_slice_drops_its_slots_when_it_is_told_to_wait() -> None:
    piece = Slice(0.0, 5.0, 16)
    want = piece.wants(0.0, 100)
    assert want == 16
    piece.told(0.0, want, Granted(slots=5, in_s=0.0, window_no=1, law=Law(rate=10)), 0.5)
    assert piece.due(0.0) == [1]

    piece.answered(0.05, 1, "throttled", 0.05, retry_after_s=2.0)

    assert piece.due(1.0) == [], "slots of that window are not used any more"
    assert piece.wants(1.0, 100) == 0, "and the others hear of it at once"


def test_a_slice_that_gets_no_slot_comes_back_later_each_time() -> None:
    def refused(refusals: int) -> Slice:
        piece = Slice(0.0, 5.0, 16, refusals)
        piece.told(0.0, 16, Granted(slots=0, in_s=2.0, window_no=1, law=Law(rate=1)), 1.0)
        return piece

    assert [refused(n).wait_s for n in (0, 1, 2, 9)] == [4, 6, 10, 17]
    assert refused(0).over(0.0)


def test_a_plain_limit_leaves_room_for_its_burst() -> None:
    assert Plain(per_minute=60).rate == pytest.approx(59 / 60)
    with pytest.raises(ValueError, match="doesn't fit"):
        Plain(per_minute=5, burst=5)


# On the virtual clock: the slices, the laws and the rows' rules that ship, against a provider whose limit moves.


def judge(mode: str, seeds: range) -> None:
    """On every plateau of every seed within a fifth of the limit, and hardly a call rejected."""
    for seed in seeds:
        world = stepping(seed, mode)
        found = plateaus(world)
        assert min(found) >= 0.8, (seed, found)
        assert world.rejected_share() < 0.05, seed
        numbers = [at for at, *_ in world.pace.decisions]
        assert numbers == sorted(numbers)


MODES = ["plain", "retry_after", "slow"]


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_throughput_follows_a_limit_that_moves(mode: str) -> None:
    judge(mode, range(4))


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_throughput_follows_a_limit_that_moves_for_many_seeds(mode: str) -> None:
    judge(mode, range(4, 20))
    judge(mode, range(100, 120))


def test_below_one_call_a_second_no_slot_is_given_that_its_slice_cannot_use() -> None:
    """Slots are further apart than a slice is long: one that falls due after its end would pass by unused, and the next too."""
    world = PaceWorld(1, [Phase(0, 0.3)], {1: 3}, bounds=Bounds(first=0.3, most=0.3))
    granted = 0
    real = world.pace.exchange

    def exchange(*asked: Any) -> Exchanged:
        nonlocal granted
        got = real(*asked)
        granted += got.granted.slots
        return got

    world.pace = SimpleNamespace(exchange=exchange, close=world.pace.close)  # type: ignore[assignment]
    world.run(1200)

    assert len(world.provider.calls) >= 0.9 * granted, (len(world.provider.calls), granted)
    assert world.ok_between(60, 1200) / (1140 * 0.3) >= 0.8


def test_a_gate_that_was_opened_by_its_probe_closes_for_as_long_as_it_is_told() -> None:
    """The time that a probe has to report is no part of the next closing."""
    now = [0.0]
    pace, paced, token = MemoryPace(lambda: now[0]), Paced("acc", "shop", UUID(int=1)), UUID(int=2)
    pace.exchange(paced, token, (0, Seen()), Want(1), BOUNDS)
    told_to_wait = Seen(sent=1, throttled=1, retry_after_s=1.0)
    pace.exchange(paced, token, (1, told_to_wait), Want(0), BOUNDS)
    now[0] = 1.1
    probe = pace.exchange(paced, token, (0, Seen()), Want(1), BOUNDS).granted
    assert (probe.slots, probe.in_s) == (1, 0.0)
    now[0] = 1.3
    assert not pace.exchange(paced, token, (probe.window_no, Seen(sent=1, ok=1)), Want(0), BOUNDS).granted.closed

    shut = pace.exchange(paced, token, (probe.window_no + 1, told_to_wait), Want(1), BOUNDS).granted

    assert shut.closed
    assert shut.in_s == pytest.approx(1.01)


def test_an_outage_closes_the_gate_and_one_probe_opens_it() -> None:
    world = PaceWorld(3, [Phase(0, 20), Phase(60, 20, "down"), Phase(100, 20)], LANES)
    world.run(60)
    before = len(world.provider.calls)
    world.run(100)
    during = len(world.provider.calls) - before
    world.run(180)

    assert during < 120, "not 20 a second for 40 seconds"
    assert "shut" in {reason for *_, reason, _ in world.pace.decisions}
    assert world.ok_between(140, 180) / (40 * 20) >= 0.8


def test_tenants_that_share_an_account_take_turns() -> None:
    world = PaceWorld(5, [Phase(0, 20)], {1: 8, 2: 2})
    world.run(150)
    row = world.pace.rows[SHARED, "account", "shop"]

    got = [sum(at >= 60 for at in world.done[tenant]) for tenant in (1, 2)]
    assert sum(got) ** 2 / (2 * sum(each * each for each in got)) >= 0.85, got
    assert row.window_no > 20


def test_a_short_slice_with_a_slow_provider_still_makes_calls() -> None:
    """Else its lane claims rows and gives them back without end."""
    piece, law = Slice(0.0, 0.5, 4), Law(rate=10, base_s=3.0, sigma=0.6)

    assert piece.wants(0.0, 4) == 4
    piece.told(0.0, 4, Granted(slots=4, in_s=0.0, window_no=1, law=law), 0.5)

    assert piece.due(0.0) == [1]
    assert piece.due(0.25) == [1, 1]


@pytest.mark.full
def test_the_picture_in_the_docs_is_the_one_that_the_bench_makes() -> None:
    """After a change of the rules: `python -m tests.bench.paths.pace`."""
    assert SHOWN.read_text() == picture()
