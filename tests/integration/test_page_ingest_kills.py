"""A process of page ingestion may die at every named point, and two may do the same at once: the rows are the same."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from uuid import UUID

import pytest

from shared.kernel.metrics import Metric
from shared.kernel.points import Point, watch_points
from shared.kernel.queue import Received
from tests.support.ingest import IngestRig, at_once, ids

pytestmark = pytest.mark.full

POINTS = [
    Point.STEP_RECEIVED,
    Point.STEP_CLAIMED,
    Point.STEP_GATED,
    Point.STEP_LOOKED,
    Point.STEP_COMMITTED,
    Point.STEP_SENT,
    Point.TURN_RUN_LOCKED,
    Point.TURN_WRITTEN,
    Point.TURN_SETTLED,
    Point.FORWARD_RECEIVED,
    Point.FORWARD_SENT,
    Point.TICK_LOCKED,
    Point.TICK_JUDGED,
    Point.TICK_COMMITTED,
    Point.TICK_SENT,
]


class Killed(BaseException):
    """The process is gone: no code of ours runs after this."""


def ends_well(rig: IngestRig, run_id: UUID) -> None:
    assert rig.finish(run_id) == "succeeded complete", rig.run(run_id)["error"]
    assert sorted(rig.seen(run_id)) == sorted(ids(rig.standin))
    assert rig.diamonds() == ids(rig.standin)
    assert len(rig.lanes(run_id, "consolidate:")) == 1
    assert rig.terminal_lines(run_id) == [(1, "succeeded")]


@pytest.mark.parametrize("point", POINTS)
def test_a_process_may_die_wherever_it_is(ingest: IngestRig, point: str) -> None:
    standin = ingest.stock(80)
    standin.misbehave("empty_page", every=4, budget=3)  # so that some turns wait in the delay queue
    standin.misbehave("throttle", after=9, budget=1, retry_after="200")  # and the tick has something to do
    passed, deaths = Counter[str](), 0

    def die_now_and_then(here: str) -> None:
        passed[here] += 1
        if here is point and passed[here] in (1, 3, 8, 14):
            raise Killed

    run_id = ingest.start(partition_records=30)
    ingest.purge()  # the tick must find it
    watch_points(die_now_and_then)
    try:
        for _ in range(8):
            with suppress(Killed):
                ingest.pass_time(900)
                continue
            deaths += 1
    finally:
        watch_points(None)

    assert deaths, "it did pass there"
    ends_well(ingest, run_id)


@pytest.mark.usefixtures("page_by_page")
def test_of_two_that_take_the_same_message_at_once_one_works(ingest: IngestRig) -> None:
    ingest.stock(120)
    run_id = ingest.start(partition_records=5_000)
    while not ingest.lanes(run_id):
        ingest.work(ingest.expect())
    message, begin = ingest.expect(), threading.Barrier(3)

    def work(_: int) -> None:
        with ingest.another_process() as process, suppress(Exception):
            begin.wait(60)
            process.work(message)

    at_once(work, range(3))

    (lane,) = ingest.lanes(run_id)
    assert (lane["seq"], lane["cursor"]["pages"]) == (1, 1)
    assert ingest.counted[Metric.REFUSED] == 2
    ends_well(ingest, run_id)


def test_two_runs_that_consolidate_the_same_stones_at_once_do_not_deadlock(ingest: IngestRig) -> None:
    ingest.stock(400)
    both = [ingest.start(partition_records=5_000)]
    ingest.now += 1
    both.append(ingest.start(partition_records=5_000))
    last: list[Received] = []
    while len(last) < 2:
        message = ingest.expect()
        if "consolidate" in _key(ingest, message):
            last.append(message)
        else:
            ingest.work(message)
    meet = threading.Barrier(2)
    watch_points(lambda point: _meet(meet) if point is Point.STEP_LOOKED else None)

    def work(message: Received) -> None:
        with ingest.another_process() as process:
            process.work(message)

    try:
        at_once(work, last)
    finally:
        watch_points(None)

    assert [ingest.finish(run_id) for run_id in both] == ["succeeded complete"] * 2
    assert ingest.counted[Metric.GIVEN_BACK] == 0
    assert {row["source_run"] for row in ingest.rows("select distinct source_run from diamond")} == {both[1]}


def _meet(barrier: threading.Barrier) -> None:
    with suppress(threading.BrokenBarrierError):
        barrier.wait(60)


def _key(rig: IngestRig, message: Received) -> str:
    from shared.kernel.baton import read_baton

    return str(rig.rows("select key from lane where id = :id", id=read_baton(message.body).lane_id)[0]["key"])
