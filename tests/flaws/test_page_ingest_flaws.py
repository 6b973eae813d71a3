"""One test per flaw of the page ingestion that the seed describes (2a-2p): each fails when the flaw's rule is put back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.local.standins.nivoda_faults import Fault, Operation
from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.answers import storable
from shared.kernel.baton import read_baton
from shared.kernel.metrics import Metric
from shared.kernel.model import Turn
from shared.kernel.points import Point, watch_points
from shared.kernel.queue import Outgoing, QueueUnavailable, Received
from shared.page_ingest import store
from shared.page_ingest.model import CrawlCursor, Item, Page, PriceRange
from shared.page_ingest.ports import Upstream
from tests.support.databases import as_user
from tests.support.ingest import HIGH, LOW, IngestRig, at_once, ids
from tests.support.rig import LEASE_S, TENANT, RigDatabase

pytestmark = pytest.mark.usefixtures("page_by_page")


class Killed(BaseException):
    """The process is gone: no code of ours runs after this."""


@contextmanager
def killed_at(wanted: str, when: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """The process dies when it passes this point for the first time that `when` holds."""

    def hook(point: str) -> None:
        if point is wanted and when():
            watch_points(None)
            raise Killed

    watch_points(hook)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        watch_points(None)


def ends_well(rig: IngestRig, run_id: UUID) -> None:
    """Complete, with exactly the stones, one consolidation and one terminal line."""
    assert rig.finish(run_id) == "succeeded complete", rig.run(run_id)["error"]
    assert sorted(rig.seen(run_id)) == sorted(ids(rig.standin))
    assert rig.diamonds() == ids(rig.standin)
    assert len(rig.lanes(run_id, "consolidate:")) == 1
    assert rig.terminal_lines(run_id) == [(1, "succeeded")]


def planned(rig: IngestRig, run_id: UUID) -> list[Any]:
    """Let the plan lane do its work, and no other."""
    while not rig.lanes(run_id):
        rig.work(rig.expect())
    return rig.lanes(run_id)


def message_of(rig: IngestRig, lane: Any) -> Any:
    """The message of this lane; the others stay in flight until their visibility ends."""
    while True:
        message = rig.expect()
        if read_baton(message.body).lane_id == lane["id"]:
            return message


class DeafQueue:
    """A queue that takes nothing while `deaf`."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue
        self.deaf = True

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        if self.deaf:
            raise QueueUnavailable("no answer")
        return list(self.queue.send(queue, messages))

    def is_empty(self, queue: str) -> bool:
        return bool(self.queue.is_empty(queue))

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:
        self.queue.change_visibility(queue, receipt, seconds)


def test_2a_a_message_that_comes_again_after_its_page_never_ends_the_partition(ingest: IngestRig) -> None:
    ingest.stock(300)
    run_id = ingest.start(partition_records=5_000)
    (lane,) = planned(ingest, run_id)
    message = ingest.expect()
    deaf = DeafQueue(ingest.queue)
    ingest.ports = replace(ingest.ports, queue=deaf)

    ingest.work(message)  # the page commits; its continuation cannot be sent
    deaf.deaf = False
    assert ingest.work(replace(message, receive_count=2)) is True, "a stale message is acknowledged"

    assert ingest.lane(run_id, lane["key"])["status"] == "active"
    assert ingest.counted[Metric.REFUSED] == 1
    ends_well(ingest, run_id)


def test_2b_a_partition_whose_end_is_delivered_twice_is_not_counted_twice(ingest: IngestRig) -> None:
    ingest.stock(60)
    run_id = ingest.start(partition_records=20)
    lanes = planned(ingest, run_id)
    assert len(lanes) > 2
    with killed_at(
        Point.STEP_COMMITTED,
        when=lambda: bool(ingest.rows("select 1 from lane where key like 'part:%' and status = 'done'")),
    ):
        while True:
            message = ingest.expect()
            ingest.work(message)
    for _ in lanes:
        assert ingest.work(replace(message, receive_count=2)), "a message of an ended lane is acknowledged"

    metadata = ingest.view("select * from run_metadata")[0]
    assert metadata["completed_workers"] == 1
    assert not ingest.lanes(run_id, "audit:")
    assert ingest.run(run_id)["status"] == "running"
    ends_well(ingest, run_id)


def test_2c_a_crash_after_the_last_partition_ended_does_not_keep_the_run_open(ingest: IngestRig) -> None:
    ingest.stock(60)
    run_id = ingest.start(partition_records=40)
    planned(ingest, run_id)

    with killed_at(Point.STEP_COMMITTED, when=lambda: bool(ingest.lanes(run_id, "audit:"))):
        ingest.pass_time(600)

    assert not ingest.queue.messages("baton-tally.fifo").visible, "nobody was told"
    ingest.pass_time(300)
    assert [lane["status"] for lane in ingest.lanes(run_id, "audit:")] == ["done"]
    ends_well(ingest, run_id)


@pytest.mark.parametrize("attempt", range(3))
def test_2d_two_partitions_that_end_at_the_same_moment_open_one_next_phase(ingest: IngestRig, attempt: int) -> None:
    ingest.stock(40, seed=attempt)
    run_id = ingest.start(partition_records=25)
    lanes = planned(ingest, run_id)
    assert len(lanes) > 1
    for message in [ingest.expect() for _ in lanes]:
        ingest.work(message)
    last = [ingest.expect() for _ in lanes]
    meet = threading.Barrier(len(lanes))

    def wait_for_the_others(point: str) -> None:
        if point is Point.TURN_RUN_LOCKED:
            with suppress(threading.BrokenBarrierError):  # where one has the lock, the others cannot come
                meet.wait(0.5)

    def work(message: Received) -> None:
        with ingest.another_process() as process:
            process.work(message)

    watch_points(wait_for_the_others)
    try:
        at_once(work, last)
    finally:
        watch_points(None)

    assert {lane["status"] for lane in ingest.lanes(run_id)} == {"done"}
    assert len(ingest.lanes(run_id, "audit:")) == 1
    ends_well(ingest, run_id)


def test_2e_a_failure_that_passes_is_not_a_failed_partition(ingest: IngestRig) -> None:
    standin = ingest.stock(300)
    standin.misbehave("server_error", on=["page"], every=2, budget=10)
    run_id = ingest.start()

    ends_well(ingest, run_id)

    assert standin.struck[Fault.SERVER_ERROR] == 10
    assert ingest.view("select failed_workers from run_metadata")[0]["failed_workers"] == 0


@pytest.mark.parametrize("fault", ["short_page", "empty_page"])
def test_2f_a_short_page_is_not_the_end_and_one_empty_page_neither(ingest: IngestRig, fault: str) -> None:
    standin = ingest.stock(600)
    standin.misbehave(fault, by=1, every=3)
    run_id = ingest.start(partition_records=5_000)

    ends_well(ingest, run_id)

    assert standin.struck[Fault(fault)] >= 3


def test_2g_a_stone_that_vanishes_before_the_offset_takes_no_other_with_it(ingest: IngestRig) -> None:
    standin = ingest.stock(400)
    before = ingest.moment()
    ingest.start(partition_records=5_000, recrawls=0)
    first = list[int]()
    oldest = [stone.id for stone in standin.stones[:40]]

    def delete_some(operation: Operation, variables: Any) -> None:
        if operation is Operation.PAGE and variables["offset"] > 100 and not first:
            first.append(variables["offset"])
            for stone_id in oldest:
                standin.stock.delete(stone_id)

    standin.before_each = delete_some
    ingest.pass_time(60)

    (lane,) = ingest.rows("select * from lane where key like 'part:%' and key not like '%#%'")
    crawled = {row["external_id"] for row in ingest.rows("select external_id from raw_item where partition = :key", key=lane["key"])}  # fmt: skip
    assert first
    assert standin.held_throughout(before) <= crawled, "already the first crawl saw them"


def test_2g_ranges_share_no_stone_and_leave_none_out_at_their_borders(ingest: IngestRig) -> None:
    standin = ingest.stock(0)
    for dollars in range(LOW, LOW + 40):
        for cents in (0, 1, 99):
            standin.stock.insert(price_cents=dollars * 100 + cents)
    standin.stock.insert(price_cents=(LOW + 40) * 100)
    run_id = ingest.start(partition_records=10, high=LOW + 40)

    assert ingest.finish(run_id) == "succeeded complete"

    assert len(ingest.lanes(run_id)) > 10
    assert sorted(ingest.seen(run_id)) == sorted(ids(standin, LOW, LOW + 40))
    for row in ingest.rows("select r.price_cents, l.cursor from raw_item r join lane l on l.key = r.partition and l.run_id = r.run_id"):  # fmt: skip
        assert row["cursor"]["low"] * 100 <= row["price_cents"] < row["cursor"]["high"] * 100


def test_2g_a_stone_whose_price_moved_into_a_partition_already_crawled_is_found_by_the_audit(
    ingest: IngestRig,
) -> None:
    standin = ingest.stock(200)
    run_id = ingest.start(partition_records=60)
    first, *_, last = planned(ingest, run_id)
    moved = next(stone.id for stone in standin.stones if stone.price_cents >= last["cursor"]["low"] * 100)
    while ingest.lane(run_id, first["key"])["status"] == "active":
        ingest.work(message_of(ingest, first))
        ingest.now += 200
        ingest.tick()
    standin.stock.reprice(moved, first["cursor"]["low"] * 100)

    ends_well(ingest, run_id)

    assert moved in ingest.seen(run_id)


def test_2h_a_stone_twice_in_one_page_is_one_row_and_counted(ingest: IngestRig) -> None:
    standin = ingest.stock(300)
    standin.misbehave("twins", share=0.2)
    run_id = ingest.start(partition_records=5_000)

    assert ingest.finish(run_id) == "succeeded drifted", "a list that counts a stone twice may have hidden another"
    assert sorted(ingest.seen(run_id)) == sorted(ids(standin))
    assert ingest.diamonds() == ids(standin)
    assert ingest.view("select duplicates from partition_progress")[0]["duplicates"] >= 40


def test_2i_lanes_that_write_the_same_stones_in_opposite_order_do_not_deadlock(
    ingest: IngestRig, rig_database: RigDatabase
) -> None:
    statement = sa.text(f"""
        with turn as (select cast(:run as uuid) as run_id, cast(:tenant as uuid) as tenant_id, 'part:x'::text as key, 0 as seq)
        {store.UPSERT_PAGE.sql}""")
    problems: list[Exception] = []
    begin = threading.Barrier(2)

    def write(backwards: bool) -> None:
        engine = db.connect_engine(as_user(rig_database.url, "baton_worker"))
        sa.event.listen(engine, "checkout", ingest.tell_the_time)
        try:
            for n in range(40):
                stones = [
                    Item(external_id=f"s{i:03d}", offer_id="o", price_cents=1, body=storable({"n": n, "b": backwards}))
                    for i in range(400)
                ]
                effect = store.upsert_page("nivoda", stones[::-1] if backwards else stones)
                begin.wait(60)
                with engine.begin() as connection:
                    connection.execute(sa.text("select set_config('app.tenant', :t, true)"), {"t": str(TENANT)})
                    connection.execute(statement, {"run": UUID(int=5), "tenant": TENANT, **effect.params})
        except Exception as error:
            problems.append(error)
            begin.abort()
        finally:
            engine.dispose()

    at_once(write, [False, True])

    assert problems == []


def test_2j_runs_that_overlap_keep_their_rows_and_the_newest_wins(ingest: IngestRig) -> None:
    standin = ingest.stock(120)
    older = ingest.start()
    while not ingest.lanes(older, "consolidate:"):
        ingest.work(ingest.expect())
    kept = ingest.expect()  # the older run is about to consolidate
    stone, sold = standin.stones[0].id, standin.stones[1].id
    standin.stock.reprice(stone, 77_700)
    standin.stock.delete(sold)
    ingest.now += 10
    newer = ingest.start()
    assert ingest.finish(newer) == "succeeded complete"

    ingest.work(kept)  # the zombie of the older run comes late
    assert ingest.finish(older) == "succeeded complete"

    (row,) = ingest.rows("select * from diamond where external_id = :id", id=stone)
    assert (row["price_cents"], row["source_run"]) == (77_700, newer)
    assert ingest.diamonds() == ids(standin) | {sold}, "one run that did not see it is one witness"
    (row,) = ingest.rows("select missed_by from diamond where external_id = :id", id=sold)
    assert row["missed_by"] == newer, "which the late run does not take back"
    assert {older, newer} == {row["run_id"] for row in ingest.rows("select distinct run_id from raw_item")}
    assert len(ingest.seen(older)) == len(ingest.seen(newer)) + 1
    ingest.now += 10
    assert ingest.finish(ingest.start()) == "succeeded complete"
    assert ingest.diamonds() == ids(standin), "the next one is the second"


class Meanwhile:
    """An upstream during whose first page something else happens."""

    def __init__(self, rig: IngestRig, happens: Callable[[], None]) -> None:
        self._rig, self._happens = rig, [happens]

    def __call__(self, source: str, turn: Turn, time_left_s: Callable[[], float]) -> Upstream:
        self._real = self._rig.nivoda(source, turn, time_left_s)
        self.authenticate, self.count = self._real.authenticate, self._real.count
        return self

    def page(self, token: str, prices: PriceRange, offset: int, limit: int) -> Page:
        real = self._real
        if self._happens:
            self._happens.pop()()
        return real.page(token, prices, offset, limit)


def test_2k_of_two_that_fetched_the_same_page_one_commits_and_one_goes_on(ingest: IngestRig) -> None:
    ingest.stock(300)
    run_id = ingest.start(partition_records=5_000)
    (lane,) = planned(ingest, run_id)

    def another_takes_over() -> None:
        ingest.now += LEASE_S + 65
        ingest.tick()
        assert ingest.work(ingest.expect())

    ingest.use(Meanwhile(ingest, another_takes_over))
    ingest.work(ingest.expect())

    assert ingest.counted[Metric.OVERTAKEN] == 1
    assert ingest.lane(run_id, lane["key"])["seq"] == 1
    assert len(ingest.waiting()) == 1, "only the winner sent a continuation"
    ends_well(ingest, run_id)


def test_2l_a_reset_partition_begins_again_and_no_old_message_matches(ingest: IngestRig) -> None:
    ingest.stock(300)
    run_id = ingest.start(partition_records=5_000)
    (lane,) = planned(ingest, run_id)
    old = ingest.expect()
    ingest.work(old)
    cursor = CrawlCursor.read(ingest.lane(run_id, lane["key"])["cursor"])
    assert cursor.offset == 30

    runs.restart_lane(ingest.ports, TENANT, lane["id"], cursor.from_the_start.to_json())
    assert ingest.work(replace(old, receive_count=2)), "seq 0 of the old epoch is not seq 0 of the new one"

    again = ingest.lane(run_id, lane["key"])
    assert (again["epoch"], again["cursor"]["offset"]) == (2, 0)
    assert ingest.counted[Metric.REFUSED] == 1
    ends_well(ingest, run_id)


def test_2l_a_partition_enqueued_by_hand_is_not_swallowed(ingest: IngestRig) -> None:
    ingest.stock(300)
    run_id = ingest.start(partition_records=5_000)
    (lane,) = planned(ingest, run_id)
    ingest.purge()  # SQS still knows the id of what is lost

    runs.wake_lane(ingest.ports, TENANT, lane["id"])

    assert ingest.work(ingest.expect())
    assert ingest.lane(run_id, lane["key"])["cursor"]["offset"] == 30


def test_2m_a_crash_between_commit_and_enqueue_is_mended_within_five_minutes(ingest: IngestRig) -> None:
    ingest.stock(300)
    run_id = ingest.start(partition_records=5_000)
    (lane,) = planned(ingest, run_id)
    with killed_at(Point.STEP_COMMITTED):
        ingest.work(ingest.expect())
    before, at = ingest.lane(run_id, lane["key"]), ingest.now

    while ingest.lane(run_id, lane["key"])["seq"] == before["seq"]:
        ingest.pass_time(10)
        assert ingest.now - at < 300

    ends_well(ingest, run_id)


def test_2n_a_process_killed_in_the_middle_of_a_page_loses_nothing(ingest: IngestRig) -> None:
    ingest.stock(300)
    run_id = ingest.start(partition_records=5_000)
    (lane,) = planned(ingest, run_id)

    def die() -> None:
        raise Killed

    ingest.use(Meanwhile(ingest, die))
    with pytest.raises(Killed):
        ingest.work(ingest.expect())
    ingest.use(ingest.nivoda)

    assert ingest.seen(run_id) == []
    assert ingest.lane(run_id, lane["key"])["seq"] == 0
    ends_well(ingest, run_id)


def test_2n_a_step_without_time_stops_before_it_asks(ingest: IngestRig) -> None:
    standin = ingest.stock(300)
    run_id = ingest.start(partition_records=5_000)
    planned(ingest, run_id)
    calls = standin.calls.total()
    in_time, ingest.ports = ingest.ports, replace(ingest.ports, time_left_s=lambda: 2.9)

    ingest.work(ingest.expect())

    assert standin.calls.total() == calls
    ingest.ports = in_time
    ends_well(ingest, run_id)


def test_2o_the_records_of_a_partition_are_all_of_them_not_those_of_the_last_page(ingest: IngestRig) -> None:
    ingest.stock(230)
    run_id = ingest.start(partition_records=5_000)
    ends_well(ingest, run_id)

    (worker,) = ingest.view("select * from worker_runs")

    assert (worker["status"], worker["records_processed"]) == ("completed", len(ids(ingest.standin)))


def test_2p_all_partitions_are_born_together_or_not_at_all(ingest: IngestRig) -> None:
    ingest.stock(600)
    run_id = ingest.start(partition_records=40)

    for _ in range(2):  # at its first step, which says that the run runs, and at its last, which makes the partitions
        with killed_at(Point.TURN_SETTLED):
            while True:
                ingest.work(ingest.expect())
        assert ingest.lanes(run_id) == [], "the process died before its commit"
        ingest.now += LEASE_S + 65
        ingest.tick()
        ingest.work(ingest.expect())
    lanes = planned(ingest, run_id)
    borders = [(lane["cursor"]["low"], lane["cursor"]["high"]) for lane in lanes]
    metadata = ingest.view("select * from run_metadata")[0]

    assert (borders[0][0], borders[-1][1]) == (LOW, HIGH)
    assert (metadata["expected_workers"], metadata["completed_workers"]) == (len(lanes), 0)
    ends_well(ingest, run_id)
