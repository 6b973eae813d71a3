"""Guards the decisions of page ingestion: how a range is divided, how a list that moves is walked through, what follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import orjson
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
    Turn,
)
from shared.kernel.tokens import Token
from shared.page_ingest import decide, store
from shared.page_ingest.model import (
    AuditCursor,
    CrawlCursor,
    IngestParams,
    Item,
    Page,
    PlanCursor,
    PriceRange,
    Walked,
    crawl_lane,
    part_key,
)
from shared.page_ingest.steps import Asked, _crawl, start
from tests.support.ingest import a_turn

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
        items = tuple(Item(external_id=each, offer_id=each, price_cents=1, body=b"{}") for each in found)
        return Page(items=items, fetched=len(found), ids=found)

    def _called(self) -> None:
        self.calls += 1
        self.change(self.rows)


class Rows:
    """The rows of one run as the statements keep them: each stone with the walk that saw it last."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[str, int, int]] = {}

    def page_size(self, turn: Turn, account: str) -> int | None:
        return None

    def forget_page_size(self, turn: Turn, account: str) -> None:
        pass

    def stones_walked(self, turn: Turn, cursor: CrawlCursor, ids: Sequence[str]) -> int:
        return len({*self.of_walk(turn, cursor), *ids})

    def of_walk(self, turn: Turn, cursor: CrawlCursor) -> dict[str, int]:
        return {
            each: price
            for each, (key, page, price) in self.seen.items()
            if key == turn.key and page >= cursor.began and cursor.prices.holds(price)
        }

    def walked(self, turn: Turn, cursor: CrawlCursor, at_cents: int) -> Walked:
        found = self.of_walk(turn, cursor)
        return Walked(
            below=sum(price <= at_cents for price in found.values()),
            above=sum(price >= at_cents for price in found.values()),
            at=[each for each, price in found.items() if price == at_cents],
            prices={each: found[each] for each in cursor.tail if each in found},
        )

    def batch_ends_at(self, turn: Turn, after: str, most: int) -> str | None:
        raise NotImplementedError

    def gone_ends_at(self, turn: Turn, source: str, cents: tuple[int, int], after: str, most: int) -> str | None:
        raise NotImplementedError

    def commit(self, turn: Turn, decision: Continue | Finish) -> None:
        for effect in decision.effects:
            given = effect.params
            if effect.statement is store.UPSERT_PAGE:
                for each, _, price, *_ in orjson.loads(given["items"]):
                    key, page, _ = self.seen.get(each, ("", -1, 0))
                    again = key == turn.key and page >= given["began"]
                    self.seen[each] = (turn.key, page if again else turn.seq, price)
            elif effect.statement is store.HAND_ON:
                for each, (key, page, price) in list(self.seen.items()):
                    half = given["lower"] if price < given["middle_cents"] else given["upper"]
                    if key == turn.key and page >= given["began"] and half is not None:
                        self.seen[each] = (half, 0, price)


def crawl(
    upstream: Any,
    limit: int = 10,
    seen: set[str] | None = None,
    most: int = 3_000,
    rows: Rows | None = None,
    number: int = 1,
) -> CrawlCursor:
    """The crawl of one partition to its end, as the steps do it."""
    rows = Rows() if rows is None else rows
    (ended,) = crawl_all([CrawlCursor(low=0, high=1, limit=limit, crawl=number)], upstream, rows, PARAMS, most)
    if seen is not None:
        seen.update(rows.seen)
    return ended


def crawl_all(
    begun: Sequence[CrawlCursor], upstream: Any, rows: Rows, params: IngestParams, most: int = 3_000, failures: int = 0
) -> list[CrawlCursor]:
    """The crawls of these partitions, and of those that they are cut into, one after the other. `failures`: how many
    attempts of each came to nothing before its first page."""
    todo, ended = list(begun), list[CrawlCursor]()
    while todo:
        cursor, seq = todo.pop(0), failures
        while True:
            turn = replace(a_turn(1), key=cursor.key, seq=seq)
            decision = _crawl(cursor, Asked(turn, params, upstream, "t", rows, lambda: 60.0))
            assert isinstance(decision, Continue | Finish)
            assert decision.cursor is not None
            rows.commit(turn, decision)
            cursor, seq = CrawlCursor.read(decision.cursor), seq + 1
            if isinstance(decision, Finish):
                break
            assert seq < most, "the crawl does not end"
        todo += [CrawlCursor.read(lane.cursor) for lane in decision.lanes]
        ended += [] if cursor.split else [cursor]
    return ended


def crawl_until_clean(upstream: MovingList, limit: int, rounds: int = 60) -> set[str]:
    """Crawl, count again, crawl again what drifted. What the last crawl saw."""
    rows = Rows()
    for number in range(1, rounds + 1):
        cursor = crawl(upstream, limit, rows=rows, number=number)
        todo = [(0, 1, number, cursor.counted if cursor.clean else None)]
        if not decide.recounted(AuditCursor(todo=todo), upstream.count("t", PriceRange(low=0, high=1))).drifted:
            return {each for each, (key, _, _) in rows.seen.items() if key == cursor.key}
    raise AssertionError("the audit is never content")


@pytest.mark.full
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


# --- crawl: rows that change places


def an_order_that_changes(chance: Random, how: str, rate: float) -> Callable[[list[str]], None]:
    """Between any two answers, and never a stone more or less."""

    def change(rows: list[str]) -> None:
        if chance.random() > rate or len(rows) < 2:
            return
        at = chance.randrange(len(rows) - 1)
        match how:
            case "neighbours":
                rows[at], rows[at + 1] = rows[at + 1], rows[at]
            case "any two":
                other = chance.randrange(len(rows))
                rows[at], rows[other] = rows[other], rows[at]
            case "ties":  # 400 rows with the same time of making: their order is nobody's promise
                tied = rows[at : at + 400]
                chance.shuffle(tied)
                rows[at : at + 400] = tied
            case "all":
                chance.shuffle(rows)

    return change


@pytest.mark.full
@given(
    size=st.integers(2, 600),
    limit=st.sampled_from([4, 7, 10, 50]),
    seed=st.integers(0, 2**32),
    how=st.sampled_from(["neighbours", "any two", "ties", "all"]),
    rate=st.sampled_from([0.05, 0.3, 1.0]),
)
@settings(max_examples=400, deadline=None)
def test_a_clean_crawl_saw_every_stone_however_the_rows_change_places(
    size: int, limit: int, seed: int, how: str, rate: float
) -> None:
    stones = [f"r{n}" for n in range(size)]
    upstream, rows = MovingList(stones, an_order_that_changes(Random(seed), how, rate)), Rows()

    cursor = crawl(upstream, limit, rows=rows)

    assert not cursor.clean or rows.seen.keys() == set(stones)


def test_two_stones_that_change_places_across_a_page_boundary_are_noticed() -> None:
    upstream, rows = MovingList([f"r{n}" for n in range(40)]), Rows()

    def swap(rows: list[str]) -> None:
        if upstream.calls == 3:  # after the count and the first page, which ends with r9; the overlap r8, r9 stays
            rows[5], rows[15] = rows[15], rows[5]

    upstream.change = swap
    cursor = crawl(upstream, 10, rows=rows)

    assert "r15" not in rows.seen
    assert (cursor.shifts, cursor.offset, cursor.counted) == (0, 40, 40), "nothing else shows it"
    assert not cursor.clean


def test_a_walk_counts_what_it_saw_itself_and_not_what_an_earlier_one_saw() -> None:
    upstream, rows = MovingList([f"r{n}" for n in range(40)]), Rows()
    assert crawl(upstream, 10, rows=rows).clean
    upstream.calls = 0
    upstream.change = lambda rows: rows.insert(15, rows.pop(5)) if upstream.calls == 3 else None

    again = crawl(upstream, 10, rows=rows, number=2)

    assert not again.clean or {key for key, _, _ in rows.seen.values()} == {again.key}


# --- crawl: bounds


@pytest.mark.full
@given(size=st.integers(0, 1_300), limit=st.sampled_from([20, 50]), seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_an_order_that_changes_with_every_answer_ends_within_what_was_counted_at_first(
    size: int, limit: int, seed: int
) -> None:
    upstream = MovingList([f"r{n}" for n in range(size)], an_order_that_changes(Random(seed), "all", 1.0))

    cursor = crawl(upstream, limit)

    assert cursor.received <= decide.MOST_ROUNDS * size + 2 * decide.SPARE_ROWS + limit


def test_a_count_that_grows_with_every_answer_over_pages_without_end_comes_to_an_end() -> None:
    upstream = Liar([f"r{n}" for n in range(100)])
    upstream.lies = {"endless": True}
    upstream.change = lambda rows: rows.extend(f"x{upstream.calls}-{n}" for n in range(60))

    cursor = crawl(upstream, 10)

    assert not cursor.clean
    assert cursor.pages < 400


@pytest.mark.parametrize("failures", [0, 2])
def test_a_partition_that_is_cut_goes_on_where_it_was(failures: int) -> None:
    params = PARAMS.model_copy(update={"partition_records": 40, "page_size": 10})
    stones = {f"r{n:03d}": (n * 37 % 900 + 50) * 100 + n % 3 * 50 for n in range(150)}
    upstream, rows = PricedList(stones), Rows()
    upstream.late = {f"z{n:03d}": (n * 53 % 900 + 50) * 100 for n in range(150)}

    ended = crawl_all([CrawlCursor(low=50, high=1_000, limit=10)], upstream, rows, params, failures=failures)

    assert len(ended) > 1
    assert all(cursor.clean for cursor in ended)
    assert rows.seen.keys() == upstream.prices.keys()
    expected = sum(decide.pages_expected(cursor.counted or 0, 10) for cursor in ended)
    assert sum(cursor.pages for cursor in ended) < expected * 0.9, "what the whole has walked through is mostly kept"


class PricedList(MovingList):
    """Stones with prices; some more join them after the first page."""

    def __init__(self, prices: dict[str, int]) -> None:
        super().__init__(list(prices))
        self.prices = dict(prices)
        self.late: dict[str, int] = {}
        self.pages = 0

    def count(self, token: str, prices: PriceRange) -> int:
        return len(self.between(prices))

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page:
        self.pages += 1
        found = self.between(prices)[offset : offset + limit]
        self.prices |= self.late
        self.late = {}
        items = tuple(
            Item(external_id=each, offer_id=each, price_cents=price, body=b"{}")
            for each, price in found
            if prices.holds(price)
        )
        return Page(items=items, fetched=len(found), ids=tuple(each for each, _ in found))

    def between(self, prices: PriceRange) -> list[tuple[str, int]]:
        return [each for each in self.prices.items() if prices.low * 100 <= each[1] <= prices.high * 100]


@pytest.mark.full
@given(stones=st.integers(1, 400), seed=st.integers(0, 2**32), whole=st.booleans(), most=st.sampled_from([20, 45, 90]))
@settings(max_examples=60, deadline=None)
def test_however_partitions_are_cut_every_stone_is_seen_and_the_crawls_are_clean(
    stones: int, seed: int, whole: bool, most: int
) -> None:
    chance = Random(seed)
    prices = {
        f"r{n:03d}": chance.randrange(0, 300) * 100 + (0 if whole else chance.randrange(100)) for n in range(stones)
    }
    params = PARAMS.model_copy(update={"partition_records": most, "page_size": 10})
    upstream, rows = PricedList(prices), Rows()

    ended = crawl_all([CrawlCursor(low=0, high=300, limit=10)], upstream, rows, params)

    assert rows.seen.keys() == prices.keys()
    assert all(cursor.clean for cursor in ended)


@given(size=st.integers(0, 300), limit=st.integers(4, 50))
@settings(max_examples=60)
def test_a_list_that_stands_still_is_walked_through_once_and_clean(size: int, limit: int) -> None:
    seen: set[str] = set()
    upstream = MovingList([f"r{n}" for n in range(size)])
    cursor = crawl(upstream, limit, seen)

    assert len(seen) == size
    assert (cursor.clean, cursor.offset, cursor.counted) == (True, size, size)
    assert cursor.pages <= size / (limit - decide.overlap(limit)) + 2


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

    with pytest.raises(Permanent, match="Pages don't end"):
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
    assert not decide.must_split(cursor.but(cuts=decide.MOST_CUTS), params, count=400), "nor is it cut without end"
    first, second = decide.halves(cursor, Walked(below=0, above=0, at=[], prices={}))
    assert (first.low, first.high) == (10, second.low)
    assert (second.high, second.crawl, second.cuts) == (90, 3, 1)


def test_a_partition_that_needs_many_small_pages_keeps_what_it_has() -> None:
    slow = CrawlCursor(low=10, high=90, limit=4, counted=2_000, offset=400, pages=20_000)

    assert not decide.must_split(slow, PARAMS, count=2_000)


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
    new = crawl_lane(CrawlCursor(low=low, high=high, limit=50, crawl=crawl))
    return a_lane(new, status, **{"counted": 5, "clean": True, **cursor})


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
        assert "$0\N{EN DASH}$25" in verdict.problem.message
        assert "no luck" in verdict.problem.message, "and why"


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
