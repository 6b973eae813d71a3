"""Guards the decisions of page ingestion: how a range is divided, how a list that moves is walked through, what follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.kernel.errors import Permanent, Refused
from shared.kernel.model import (
    By,
    Continue,
    Ending,
    Finish,
    Lane,
    LaneStatus,
    NewLane,
    NextPhase,
    Run,
    RunStatus,
    Starting,
)
from shared.page_ingest import decide
from shared.page_ingest.model import (
    AuditCursor,
    CrawlCursor,
    IngestParams,
    PlanCursor,
    crawl_lane,
    part_key,
)
from shared.page_ingest.ports import Item, Page, PriceRange, Token
from shared.page_ingest.steps import Asked, _crawl, start

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PARAMS = IngestParams(source="nivoda", low=0, high=1_000)


# --- plan


@given(
    prices=st.lists(st.integers(0, 5_000), max_size=400),
    low=st.integers(0, 4_000),
    width=st.integers(1, 6_000),
    most=st.integers(1, 60),
)
def test_the_partitions_cover_the_range_without_gap_or_overlap(
    prices: list[int], low: int, width: int, most: int
) -> None:
    high = low + width
    cursor = PlanCursor(todo=[(low, high)])
    for _ in range(5_000):
        if not cursor.todo:
            break
        first, last = cursor.todo[0]
        count = sum(first <= price <= last for price in prices)  # as the upstream counts: both ends included
        cursor = PlanCursor.read(decide.probed(cursor, first, last, count, most).to_json())

    assert not cursor.todo
    borders = [(first, last) for first, last, _ in cursor.parts]
    assert borders[0][0] == low
    assert borders[-1][1] == high
    assert all(here[1] == there[0] for here, there in pairwise(borders))
    assert all(first < last for first, last in borders)
    for first, last in borders:
        assert sum(first <= price < last for price in prices) <= most or last - first == 1


@given(low=st.integers(0, 2**31 - 3), width=st.integers(2, 2**31 - 1))
def test_a_range_is_always_cut_inside(low: int, width: int) -> None:
    high = min(low + width, 2**31 - 1)

    assert low < decide.split_point(low, high) < high


def test_an_empty_catalogue_is_one_partition() -> None:
    planned = decide.probed(PlanCursor(todo=[(0, 1_000)]), 0, 1_000, 0, 100)

    assert [lane.key for lane in decide.planned_lanes(planned, 50)] == [part_key(0, 1_000)]


# --- crawl: a list that moves


class MovingList:
    """An upstream that answers pages of a list, which something changes before each answer."""

    def __init__(self, rows: Sequence[str], change: Callable[[list[str]], None] = lambda rows: None) -> None:
        self.rows = list(rows)
        self.change = change
        self.calls = 0

    def authenticate(self) -> Token:
        return Token("t", 60)

    def count(self, token: str, prices: PriceRange) -> int:
        self._called()
        return len(self.rows)

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page:
        self._called()
        found = tuple(self.rows[offset : offset + limit])
        items = tuple(Item(external_id=each, offer_id=each, price_cents=1, payload={}) for each in found)
        return Page(items=items, fetched=len(found), ids=found)

    def _called(self) -> None:
        self.calls += 1
        self.change(self.rows)


def crawl(upstream: Any, limit: int = 10, seen: set[str] | None = None, most: int = 3_000) -> CrawlCursor:
    """The crawl of one partition to its end, as the steps do it."""
    cursor = CrawlCursor(low=0, high=1, limit=limit)
    for _ in range(most):
        decision = _crawl(cursor, PARAMS, Asked(upstream, "t"), None)
        assert isinstance(decision, Continue | Finish)
        if seen is not None:
            seen.update(_ids(decision))
        assert decision.cursor is not None
        cursor = CrawlCursor.read(decision.cursor)
        if isinstance(decision, Finish):
            return cursor
    raise AssertionError("the crawl does not end")


def _ids(decision: Continue | Finish) -> list[str]:
    import orjson

    return [row[0] for effect in decision.effects for row in orjson.loads(effect.params.get("items", "[]"))]


def crawl_until_clean(upstream: MovingList, limit: int, rounds: int = 60) -> set[str]:
    """Crawl, count again, crawl again what drifted."""
    seen: set[str] = set()
    for _ in range(rounds):
        cursor = crawl(upstream, limit, seen)
        todo = [(0, 1, 1, cursor.counted if cursor.clean else None)]
        if not decide.recounted(AuditCursor(todo=todo), upstream.count("t", PriceRange(low=0, high=1))).drifted:
            return seen
    raise AssertionError("the audit is never content")


@given(
    size=st.integers(0, 120),
    limit=st.integers(4, 50),
    seed=st.integers(0, 2**32),
    rate=st.sampled_from([0.05, 0.3, 0.8]),
    most=st.sampled_from([1, 4, 40]),
    changes=st.integers(0, 25),
)
@settings(max_examples=300, deadline=None)
def test_every_row_that_was_there_throughout_is_seen(
    size: int, limit: int, seed: int, rate: float, most: int, changes: int
) -> None:
    chance, left, deleted = Random(seed), [changes], set[str]()

    def change(rows: list[str]) -> None:
        if left[0] <= 0 or chance.random() > rate:
            return
        left[0] -= 1
        for _ in range(chance.randrange(most)):
            if rows:
                deleted.add(rows.pop(chance.randrange(len(rows))))
        for n in range(chance.randrange(3)):
            place = len(rows) if chance.random() < 0.7 else chance.randrange(len(rows) + 1)
            rows.insert(place, f"new{left[0]}-{n}")

    before = [f"r{n}" for n in range(size)]
    seen = crawl_until_clean(MovingList(before, change), limit)

    assert set(before) - deleted <= seen


@given(size=st.integers(0, 300), limit=st.integers(4, 50))
@settings(max_examples=60)
def test_a_list_that_stands_still_is_walked_through_once_and_clean(size: int, limit: int) -> None:
    seen: set[str] = set()
    upstream = MovingList([f"r{n}" for n in range(size)])
    cursor = crawl(upstream, limit, seen)

    assert len(seen) == size
    assert (cursor.clean, cursor.offset, cursor.counted) == (True, size, size)
    assert cursor.pages <= size / (limit - limit // 2) + 2


def test_rows_that_vanished_before_the_page_are_noticed_and_nothing_is_skipped() -> None:
    upstream = MovingList([f"r{n}" for n in range(100)])
    upstream.change = lambda rows: rows.__delitem__(slice(0, 30)) if upstream.calls == 5 else None
    seen: set[str] = set()

    cursor = crawl(upstream, 10, seen)

    assert {f"r{n}" for n in range(30, 100)} <= seen
    assert cursor.shifts
    assert not cursor.clean


@given(size=st.integers(0, 400), limit=st.integers(4, 50))
def test_a_list_that_does_not_move_takes_as_many_pages_as_expected(size: int, limit: int) -> None:
    cursor = crawl(MovingList([f"r{n}" for n in range(size)]), limit)

    assert cursor.pages == decide.pages_expected(size, limit)


def test_a_list_that_became_shorter_than_the_crawl_has_walked_is_read_back() -> None:
    upstream = MovingList([f"r{n}" for n in range(100)])
    upstream.change = lambda rows: rows.__delitem__(slice(0, 60)) if upstream.calls == 13 else None
    seen: set[str] = set()

    crawl(upstream, 10, seen)

    assert {f"r{n}" for n in range(60, 100)} <= seen


class Liar(MovingList):
    """An upstream that does not say what is the case, in the way that a test gives it."""

    lies: dict[str, Any] = {}  # noqa: RUF012 - a test sets its own

    def count(self, token: str, prices: PriceRange) -> int:
        return max(0, super().count(token, prices) + int(self.lies.get("count", 0)))

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page:
        if self.lies.get("endless"):
            return Page(items=(), fetched=limit, ids=tuple(f"r{n % 100}" for n in range(offset, offset + limit)))
        page = super().page(token, prices, offset, limit)
        short = page.ids[: max(1, page.fetched - self.lies.get("short", 0))]
        if self.calls in self.lies.get("empty", ()):
            short = ()
        return Page(items=page.items[: len(short)], fetched=len(short), ids=short)


@pytest.mark.parametrize("lies", [{"short": 1}, {"short": 7}, {"count": -30}, {"count": -300}, {"count": 40}])
@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 100])
def test_no_lie_about_sizes_hides_a_row(lies: dict[str, Any], size: int) -> None:
    upstream, seen = Liar([f"r{n}" for n in range(size)]), set[str]()
    upstream.lies = lies

    crawl(upstream, 10, seen)

    assert len(seen) == size


def test_one_empty_page_is_not_the_end() -> None:
    upstream, seen = Liar([f"r{n}" for n in range(100)]), set[str]()
    upstream.lies = {"empty": {4, 8}}

    assert crawl(upstream, 10, seen).clean
    assert len(seen) == 100


def test_pages_that_never_end_are_given_up() -> None:
    upstream = Liar([f"r{n}" for n in range(100)])
    upstream.lies = {"endless": True}

    with pytest.raises(Permanent, match="pages do not end"):
        crawl(upstream, 10)
    assert upstream.calls < 1_000


def test_duplicates_are_counted() -> None:
    upstream, seen = MovingList(["a", "b", "b", "c"] * 3), set[str]()

    assert crawl(upstream, 50, seen).duplicates >= 9
    assert seen == {"a", "b", "c"}


def test_a_partition_that_grew_far_beyond_its_size_is_cut() -> None:
    params = PARAMS.model_copy(update={"partition_records": 20, "page_size": 10})
    cursor = CrawlCursor(low=10, high=90, limit=10, counted=15, offset=41, crawl=3)

    assert decide.must_split(cursor, params, count=400)
    assert not decide.must_split(cursor, params, count=45), "it is nearly done"
    assert not decide.must_split(cursor.but(high=11), params, count=400), "one dollar cannot be cut"
    first, second = decide.halves(cursor)
    assert (first.cursor["low"], first.cursor["high"]) == (10, second.cursor["low"])
    assert (second.cursor["high"], second.cursor["crawl"]) == (90, 3)


def test_a_partition_that_needs_far_more_pages_than_planned_is_cut() -> None:
    slow = CrawlCursor(low=10, high=90, limit=4, counted=2_000, offset=400, pages=200)

    assert decide.must_split(slow, PARAMS, count=2_000)
    assert not decide.must_split(slow.but(pages=100), PARAMS, count=2_000)


# --- the run as a whole


def a_run(epoch: int = 1, **params: Any) -> Run:
    return Run(
        id=UUID(int=1),
        tenant_id=UUID(int=2),
        kind="page_ingest",
        status=RunStatus.RUNNING,
        outcome=None,
        epoch=epoch,
        params={"source": "nivoda", "low": 0, "high": 100, **params},
        correlation_id=None,
        cancel_requested_at=None,
        paused_at=None,
        time_limit_s=None,
        deadline_at=None,
        now=NOON,
    )


def a_lane(new: NewLane, status: LaneStatus = LaneStatus.DONE, **cursor: Any) -> Lane:
    return Lane(
        id=UUID(int=3),
        key=new.key,
        status=status,
        holds_run=True,
        epoch=1,
        cursor={**new.cursor, **cursor},
        last_error=None if status is LaneStatus.DONE else {"message": "no luck"},
    )


PLAN = a_lane(NewLane(key="plan"))
FAILED = LaneStatus.FAILED


def a_part(low: int, high: int, crawl: int = 1, status: LaneStatus = LaneStatus.DONE, **cursor: Any) -> Lane:
    return a_lane(crawl_lane(low, high, 50, crawl), status, **{"counted": 5, "clean": True, **cursor})


def next_keys(run: Run, lanes: Sequence[Lane]) -> list[str]:
    verdict = decide.settle(run, lanes)
    assert isinstance(verdict, NextPhase)
    return [lane.key for lane in verdict.lanes]


def an_audit(key: str, *drifted: tuple[int, int, int]) -> Lane:
    return a_lane(NewLane(key=key), drifted=[list(each) for each in drifted], todo=[])


def test_the_phases_follow_each_other() -> None:
    lanes = [PLAN, a_part(0, 50), a_part(50, 100)]
    assert next_keys(a_run(), lanes) == ["audit:1.1.0"]
    lanes.append(an_audit("audit:1.1.0", (0, 50, 1)))
    assert next_keys(a_run(), lanes) == [part_key(0, 50, 2)]
    lanes.append(a_part(0, 50, 2))
    assert next_keys(a_run(), lanes) == ["audit:1.2.0"]
    lanes.append(an_audit("audit:1.2.0"))
    assert next_keys(a_run(), lanes) == ["consolidate:1"]
    lanes.append(a_lane(NewLane(key="consolidate:1", cursor={"complete": True})))
    assert decide.settle(a_run(), lanes) == Ending(RunStatus.SUCCEEDED, "complete")


def test_every_audit_counts_every_partition() -> None:
    lanes = [PLAN, a_part(0, 50), a_part(50, 100), an_audit("audit:1.1.0", (0, 50, 1)), a_part(0, 50, 2, clean=False)]
    verdict = decide.settle(a_run(), lanes)

    assert isinstance(verdict, NextPhase)
    assert verdict.lanes[0].cursor["todo"] == [[0, 50, 2, None], [50, 100, 1, 5]]


def test_what_drifts_for_ever_is_crawled_a_bounded_number_of_times_and_said_to_have_drifted() -> None:
    run, lanes, keys = a_run(recrawls=2), [PLAN, a_part(0, 100)], list[str]()
    for _ in range(20):
        verdict = decide.settle(run, lanes)
        if isinstance(verdict, Ending):
            break
        for new in verdict.lanes:
            keys.append(new.key)
            crawl = max(lane.cursor.get("crawl", 0) for lane in lanes)
            audited = new.key.startswith("audit:")
            lanes.append(a_lane(new, drifted=[[0, 100, crawl]]) if audited else a_lane(new))

    assert verdict == Ending(RunStatus.SUCCEEDED, "drifted")
    assert keys == [
        "audit:1.1.0", part_key(0, 100, 2), "audit:1.2.0", part_key(0, 100, 3), "audit:1.3.0", "consolidate:1",
    ]  # fmt: skip
    assert lanes[-1].cursor["complete"] is False


def test_a_retried_run_counts_again_and_consolidates_again_under_new_names() -> None:
    lanes = [
        PLAN, a_part(0, 50), a_part(0, 50, 2), a_part(50, 100), an_audit("audit:1.1.0", (0, 50, 1)),
        an_audit("audit:1.2.0"), a_lane(NewLane(key="consolidate:1", cursor={"complete": False})),
    ]  # fmt: skip
    assert next_keys(a_run(epoch=2), lanes) == ["audit:2.1.0"]
    lanes.append(an_audit("audit:2.1.0", (0, 50, 2)))
    assert next_keys(a_run(epoch=2), lanes) == [part_key(0, 50, 3)], "a name that no earlier epoch has used"
    lanes += [a_part(0, 50, 3), an_audit("audit:2.2.0")]
    assert next_keys(a_run(epoch=2), lanes) == ["consolidate:2"]


def test_a_partition_that_was_cut_is_replaced_by_its_halves_in_any_crawl() -> None:
    whole = a_part(0, 100)
    cut = a_part(0, 100, 2, split=True)
    halves = [a_part(0, 10, 2), a_part(10, 100, 2)]

    assert decide.latest_crawls([whole, cut, *halves]) == halves


def test_many_partitions_are_counted_by_several_lanes() -> None:
    lanes = decide.audit_lanes(1, 1, [a_part(n, n + 1) for n in range(250)])

    assert [len(lane.cursor["todo"]) for lane in lanes] == [100, 100, 50]
    assert len({lane.key for lane in lanes}) == 3


@pytest.mark.parametrize(
    ("policy", "failed", "goes_on"),
    [
        ({"rule": "all"}, 0, True),
        ({"rule": "all"}, 1, False),
        ({"rule": "at_least", "percent": 75}, 1, True),
        ({"rule": "at_least", "percent": 75}, 2, False),
        ({"rule": "at_least", "percent": 75.5}, 1, False),
        ({"rule": "critical", "prices": [80]}, 3, True),
        ({"rule": "critical", "prices": [10, 80]}, 1, False),
        ({"rule": "critical", "prices": [25]}, 1, True),
    ],
)
def test_the_policy_says_how_many_partitions_may_fail(policy: dict[str, Any], failed: int, goes_on: bool) -> None:
    parts = [a_part(25 * n, 25 * n + 25, status=FAILED if n < failed else LaneStatus.DONE) for n in range(4)]
    verdict = decide.settle(a_run(policy=policy), [PLAN, *parts])

    assert isinstance(verdict, NextPhase) == goes_on
    if isinstance(verdict, Ending):
        assert verdict.problem is not None
        assert part_key(0, 25) in verdict.problem.message


def test_a_run_with_tolerated_failures_ends_as_partial_and_judges_nothing_gone() -> None:
    lanes = [PLAN, a_part(0, 50), a_part(50, 100, status=FAILED), an_audit("audit:1.1.0")]
    run = a_run(policy={"rule": "at_least", "percent": 50})
    verdict = decide.settle(run, lanes)
    assert isinstance(verdict, NextPhase)
    assert verdict.lanes[0].cursor["complete"] is False

    assert decide.settle(run, [*lanes, a_lane(verdict.lanes[0])]) == Ending(RunStatus.SUCCEEDED, "partial")


@pytest.mark.parametrize("broken", ["plan", "audit:1.1.0", "consolidate:1"])
def test_a_phase_that_failed_fails_the_run_and_says_why(broken: str) -> None:
    lanes = [
        PLAN,
        a_part(0, 100),
        an_audit("audit:1.1.0"),
        a_lane(NewLane(key="consolidate:1", cursor={"complete": True})),
    ]
    upto = [lane.key for lane in lanes].index(broken) + 1
    lanes[upto - 1] = replace(lanes[upto - 1], status=FAILED, last_error={"message": "no luck"})
    verdict = decide.settle(a_run(), lanes[:upto])

    assert isinstance(verdict, Ending)
    assert verdict.status is RunStatus.FAILED
    assert verdict.problem is not None
    assert "no luck" in verdict.problem.message


# --- what is asked for


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"source": "elsewhere"}, "source"),
        ({"low": 500, "high": 500}, "empty"),
        ({"low": 900, "high": 500}, "empty"),
        ({"low": -1}, "low"),
        ({"high": 2**31}, "high"),
        ({"low": "200"}, "low"),
        ({"page_size": 51}, "page_size"),
        ({"page_size": 3}, "page_size"),
        ({"partition_records": 0}, "partition_records"),
        ({"policy": {"rule": "most"}}, "policy"),
        ({"policy": {"rule": "at_least", "percent": 101}}, "percent"),
        ({"policy": {"rule": "critical", "prices": []}}, "prices"),
        ({"policy": {"rule": "critical", "prices": [5_000]}}, "outside"),
        ({"recrawls": 99}, "recrawls"),
        ({"password": "x"}, "password"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(Refused) as refused:
        start(None, starting({"source": "nivoda", "low": 0, "high": 1_000, **wrong}))  # type: ignore[arg-type]

    assert refused.value.code == "bad_params"
    assert named in refused.value.message


def test_a_cursor_survives_its_way_through_json() -> None:
    cursor = CrawlCursor(low=1, high=2, limit=50, tail=("a", "b"), offset=7, counted=9)

    assert CrawlCursor.read(cursor.to_json()) == cursor
    assert cursor.from_the_start == CrawlCursor(low=1, high=2, limit=50)


def starting(params: dict[str, Any]) -> Starting:
    return Starting(run_id=UUID(int=2), tenant_id=UUID(int=1), params=params, by=By())
