"""Guards the promise when everything goes wrong at once: processes, server, wire, queues and clocks."""

from __future__ import annotations

import pytest

from tests.chaos.chaos import Plan, kinds_of_trouble, make_chaos

pytestmark = pytest.mark.full


def test_every_run_keeps_the_promise_through_some_seconds_of_chaos() -> None:
    plan = Plan(
        runs=60,
        seed=1,
        seconds_least=4,
        seconds_limit=6,
        kill_every_s=(0.4, 1.0),  # a worker must live long enough to work, on a busy machine too
        stop_every_s=(1.5, 3.0),
        down_s=(0.0, 0.5),
        purge_every_s=(1.5, 3.0),
        cut_rate=0.1,
        duplicate_rate=0.2,
    )

    report = make_chaos(plan)

    assert not report.violations, f"\n{report}"
    assert all(kinds_of_trouble(report.counts).values()), f"\n{report}"


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_ten_thousand_runs_keep_the_promise_through_chaos() -> None:
    report = make_chaos(Plan(runs=10_000, seed=1, seconds_limit=1500))

    print(report)
    assert not report.violations, f"\n{report}"
    assert all(kinds_of_trouble(report.counts).values()), f"\n{report}"
    assert report.counts["unknown commits: it had happened"] >= 200, f"\n{report}"
