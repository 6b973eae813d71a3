"""Guards the waits between tries: bounded, growing, and never all at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kernel.retry import SURPRISE, TRANSIENT, Backoff, spread_s

fractions = st.floats(0, 1, exclude_max=True)
attempts = st.integers(1, 10**6)
backoffs = st.builds(Backoff, first_s=st.floats(0.1, 100), most_s=st.floats(100, 3600))


@given(backoffs, attempts, fractions)
def test_a_delay_is_at_least_half_the_first_and_at_most_the_longest(
    backoff: Backoff, attempt: int, fraction: float
) -> None:
    assert backoff.first_s / 2 <= backoff.delay_s(attempt, fraction) <= backoff.most_s


@given(backoffs, attempts, fractions)
def test_a_delay_never_shrinks_with_the_attempts(backoff: Backoff, attempt: int, fraction: float) -> None:
    assert backoff.delay_s(attempt, fraction) <= backoff.delay_s(attempt + 1, fraction)


@given(backoffs, attempts, fractions)
def test_jitter_takes_off_up_to_half(backoff: Backoff, attempt: int, fraction: float) -> None:
    full = backoff.delay_s(attempt, 0)

    assert full / 2 <= backoff.delay_s(attempt, fraction) <= full


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [(TRANSIENT, [5, 10, 20, 40, 80, 160, 300, 300]), (SURPRISE, [15, 30, 60, 120, 240, 300, 300, 300])],
)
def test_delays_double_up_to_five_minutes(backoff: Backoff, expected: list[float]) -> None:
    assert [backoff.delay_s(attempt, 0) for attempt in range(1, 9)] == expected


@given(st.floats(0, 10**6), fractions)
def test_a_shared_wait_is_never_shortened_and_stretched_by_a_minute_at_most(wait_s: float, fraction: float) -> None:
    assert wait_s <= spread_s(wait_s, fraction) <= wait_s + 60


@given(st.floats(0, 10**6))
def test_lanes_that_wait_together_do_not_come_back_together(wait_s: float) -> None:
    assert spread_s(wait_s, 0.99) - spread_s(wait_s, 0) > 1.9
