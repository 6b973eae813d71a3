"""Guards what becomes of due times and events: each is started, or listed with the reason why not, and none is both."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.job_queue.triggers import decide
from shared.job_queue.triggers.model import (
    LONGEST_CHAIN,
    LONGEST_LATENESS_S,
    MOST_LOOKED_AT,
    ON_TIME_S,
    Follow,
    Join,
    LastJob,
    Pass,
    Plan,
    Skipped,
    StartAt,
    StartNow,
    Trigger,
)

NOW = datetime(2026, 11, 16, 8, tzinfo=UTC)
RUN = UUID(int=1)


def a_trigger(**said: Any) -> Trigger:
    usual: dict[str, Any] = {
        "id": UUID(int=2), "tenant_id": UUID(int=3), "label": "t", "trigger_type": "schedule", "is_enabled": True,
        "event_name": None, "event_filter": {}, "cron_expr": "* * * * *", "timezone": "UTC", "definition_key": "d",
        "payload_template": {}, "dedupe_window_seconds": 300, "catch_up": "once", "max_lateness_seconds": 86_400,
        "catch_up_most": 10, "overlap": "queue", "next_fire_at": None,
    }  # fmt: skip
    return Trigger(**{**usual, **said})


def every(minutes: int, since: datetime) -> Iterator[datetime]:
    while True:
        yield since
        since += timedelta(minutes=minutes)


def the_plan(trigger: Trigger, minutes: int, late: timedelta) -> Plan:
    return decide.plan(trigger, every(minutes, NOW - late), NOW)


@pytest.mark.full
@settings(max_examples=200, deadline=None)
@given(
    catch_up=st.sampled_from(["skip", "once", "all"]),
    minutes=st.integers(1, 600),
    late_s=st.integers(0, 30 * 86_400),
    lateness_s=st.integers(60, LONGEST_LATENESS_S),
    most=st.integers(1, 100),
)
def test_every_due_time_is_started_or_listed_once(
    catch_up: str, minutes: int, late_s: int, lateness_s: int, most: int
) -> None:
    trigger = a_trigger(catch_up=catch_up, max_lateness_seconds=lateness_s, catch_up_most=most)
    first = NOW - timedelta(seconds=late_s)
    expected = _take(every(minutes, first), NOW)
    done: list[datetime] = []
    fired: list[datetime] = []
    at: datetime | None = first
    for _ in range(100):
        assert at is not None
        plan = decide.plan(trigger, every(minutes, at), NOW)
        passed = [each for line in plan.passed for each in _take(every(minutes, line.first), line.last)]
        assert [line.count for line in plan.passed] == [
            len(_take(every(minutes, line.first), line.last)) for line in plan.passed
        ]
        done += sorted([*plan.fire, *passed])
        fired += plan.fire
        assert plan.next_at is not None
        assert plan.next_at > at or not (plan.fire or plan.passed)
        at = plan.next_at
        if at > NOW:
            break
    assert done == expected
    assert all((NOW - each).total_seconds() <= max(lateness_s, ON_TIME_S) for each in fired)
    late = [each for each in fired if (NOW - each).total_seconds() > ON_TIME_S]
    assert len(late) <= {"skip": 0, "once": 1, "all": most}[catch_up]


def _take(dues: Iterator[datetime], until: datetime) -> list[datetime]:
    found: list[datetime] = []
    for at in dues:
        if at > until:
            return found
        found.append(at)
    return found


@pytest.mark.parametrize(
    ("catch_up", "fired", "reasons"),
    [
        ("skip", [], [(Skipped.MISSED, 5)]),
        ("once", [60], [(Skipped.SUPERSEDED, 4)]),
        ("all", [120, 60], [(Skipped.OVER_CAP, 3)]),
    ],
)
def test_an_outage_is_made_up_for_as_the_trigger_says(catch_up: Any, fired: list[int], reasons: list[Any]) -> None:
    plan = decide.plan(
        a_trigger(catch_up=catch_up, catch_up_most=2),
        every(60, NOW - timedelta(minutes=300)),
        NOW - timedelta(minutes=1),
    )
    assert [int((NOW - at).total_seconds() // 60) for at in plan.fire] == fired
    assert [(line.reason, line.count) for line in plan.passed] == reasons
    assert plan.next_at == NOW


def test_one_that_is_due_now_makes_up_for_those_before_it() -> None:
    plan = the_plan(a_trigger(), 60, timedelta(minutes=120))
    assert plan.fire == [NOW]
    assert [(line.reason, line.count) for line in plan.passed] == [(Skipped.SUPERSEDED, 2)]


def test_a_very_long_outage_is_looked_through_a_part_at_a_time() -> None:
    plan = the_plan(a_trigger(), 1, timedelta(days=365))
    assert (plan.fire, [(line.reason, line.count) for line in plan.passed]) == (
        [],
        [(Skipped.TOO_LATE, MOST_LOOKED_AT)],
    )
    assert plan.next_at == NOW - timedelta(days=365) + timedelta(minutes=MOST_LOOKED_AT)


def a_job(state: Any, age_s: int = 10) -> LastJob:
    return LastJob(run_id=RUN, state=state, began_window_at=NOW - timedelta(seconds=age_s))


def test_an_event_is_served_by_a_job_that_begins_after_it() -> None:
    assert decide.on_event(None, 300, NOW) == StartNow()
    assert decide.on_event(a_job("waiting"), 300, NOW) == Join(RUN)
    assert decide.on_event(a_job("running"), 300, NOW) == Follow(RUN)
    assert decide.on_event(a_job("ended"), 300, NOW) == StartAt(NOW + timedelta(seconds=290))
    assert decide.on_event(a_job("ended", 300), 300, NOW) == StartNow()
    assert decide.on_event(a_job("ended"), 0, NOW) == StartNow()


def test_a_due_time_meets_the_job_before_it_as_the_trigger_says() -> None:
    assert decide.on_due(None, "skip") == StartNow()
    assert decide.on_due(a_job("ended"), "skip") == StartNow()
    for state in ("waiting", "running"):
        assert decide.on_due(a_job(state), "skip") == Pass(Skipped.OVERLAP)
        assert decide.on_due(a_job(state), "queue") == Follow(RUN)


def test_jobs_that_start_each_other_end() -> None:
    assert decide.loops(RUN, RUN, 1)
    assert not decide.loops(RUN, None, 0)
    assert not decide.loops(RUN, UUID(int=9), LONGEST_CHAIN - 1)
    assert decide.loops(RUN, UUID(int=9), LONGEST_CHAIN)


def test_payloads_are_equal_whatever_order_they_were_written_in() -> None:
    assert decide.payload_key({"a": 1, "b": [2]}) == decide.payload_key({"b": [2], "a": 1})
    assert decide.payload_key({"a": 1}) != decide.payload_key({"a": "1"})
