"""Guards that the tick is fair: one kind's, queue's, row's or run's trouble costs no other its turn, and none stays for ever."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, NoReturn

import pytest
import sqlalchemy as sa
from pg8000.exceptions import DatabaseError

from shared.kernel import run as runs
from shared.kernel.baton import read_baton
from shared.kernel.catalogue import Catalogue, Kind, Outside
from shared.kernel.errors import Throttled, Transient
from shared.kernel.metrics import Metric
from shared.kernel.model import (
    Continue,
    Decision,
    Effect,
    Ending,
    Finish,
    Lane,
    NewLane,
    NewRun,
    NextPhase,
    Run,
    Settlement,
    Starting,
    Statement,
    StepOutcome,
    Turn,
    Wait,
)
from shared.kernel.points import Point, watch_points
from shared.kernel.ports import Tx
from shared.kernel.queue import Outgoing, QueueRefused, QueueUnavailable
from shared.kernel.queue_memory import MemoryQueue, QueueSettings
from shared.kernel.run import SETTLE_ATTEMPTS
from shared.kernel.settings import Relay
from shared.kernel.step import Lost
from shared.kernel.store import PgStore
from shared.kernel.tick import tick
from tests.support.house import ALICE, House
from tests.support.rig import BEGINNING, DELAY, FIFO, LEASE_S, QUEUE_SETTINGS, TENANT, Rig

OTHER = "baton-other.fifo"
HOUR, DAY = 3600, 86_400


class Partly(MemoryQueue):
    """Some of its queues take nothing; what was tried on each is counted."""

    closed: frozenset[str] = frozenset()
    error: Exception = QueueRefused("AccessDenied", "not allowed")

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        self.sends = getattr(self, "sends", Counter[str]())
        self.sends[queue] += 1
        if queue in self.closed:
            raise self.error
        return super().send(queue, messages)


def with_queue(rig: Rig, *closed: str, error: Exception = Partly.error) -> Partly:
    queue = Partly({**QUEUE_SETTINGS, OTHER: QueueSettings(fifo=True)}, lambda: rig.now, Random(7))
    queue.closed, queue.error = frozenset(closed), error
    rig.queue = queue
    rig.ports = replace(
        rig.ports, queue=queue, relay=Relay(step_timeout_s=30, lease_s=40, tick_batch=5, tick_seconds=5)
    )
    return queue


# 1. Each lane once a tick; nobody pays for another's queue.


@pytest.mark.parametrize(
    "error", [QueueRefused("AccessDenied", "no"), QueueUnavailable("no answer"), KeyError("no such url")], ids=type
)
def test_a_refused_queue_is_tried_once_a_tick_and_costs_no_other_kind_its_turn(rig: Rig, error: Exception) -> None:
    other = replace(rig.kind, name="other")
    queue = with_queue(rig)
    rig.start(lanes=20)
    rig.now += 1
    fine = runs.start_run(rig.ports, other, TENANT, {"lanes": 1, "target": 2})
    rig.now += 1
    late = rig.start(time_limit_s=60)
    rig.purge()
    rig.queue.purge(OTHER)
    queue.closed, queue.error = frozenset({FIFO}), error
    rig.now += 600
    queue.sends.clear()

    report = tick(rig.ports, Catalogue(rig.kind, other))

    assert report.finished
    assert queue.sends == {FIFO: 1, OTHER: 1}, "one attempt is enough to know"
    assert report.lanes == {"refused": 5, "unclaimed": 1}
    assert len(queue.messages(OTHER).visible) == 1
    assert rig.run(late)["outcome"] == "timed_out"
    assert rig.lane(fine)["resend_no"] == 1


@pytest.mark.full
def test_a_refused_delay_queue_costs_no_lane_its_turn_that_is_due(rig: Rig) -> None:
    queue = with_queue(rig)
    early = [rig.start(target=2, delays=[2000]) for _ in range(7)]
    rig.work_off()
    due = rig.start(lanes=2)
    rig.purge()
    queue.closed = frozenset({DELAY})
    rig.now += 1950
    queue.sends.clear()

    report = rig.tick()

    assert queue.sends[DELAY] == 1
    assert report.lanes["unclaimed"] == 2
    assert {rig.lane(due, key)["resend_no"] for key in ("l0", "l1")} == {1}
    queue.closed = frozenset()
    rig.pass_time(300)
    assert {rig.run(run_id)["status"] for run_id in (*early, due)} == {"succeeded"}


@pytest.mark.full
def test_a_refused_baton_is_no_repair_however_often_it_is_attempted(rig: Rig) -> None:
    queue = with_queue(rig)
    run_id = rig.start(lanes=12)
    rig.purge()
    queue.closed = frozenset({FIFO})

    for _ in range(20):
        rig.now += 60
        rig.tick()
    assert rig.rows("select count(*) from repair")[0]["count"] == 0
    assert rig.counted[Metric.REPAIR] == 0

    queue.closed = frozenset()
    rig.pass_time(300)
    assert rig.run(run_id)["status"] == "succeeded", "and within five minutes all is well"
    repaired = rig.rows("select count(*), count(distinct lane_id) as lanes from repair")[0]
    assert repaired == {"count": 12, "lanes": 12}
    assert rig.counted[Metric.REPAIR] == 12


def test_a_tick_looks_at_each_lane_once_even_if_a_single_baton_is_refused(rig: Rig) -> None:
    class Picky(Partly):
        def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
            sent = super().send(queue, messages)
            return [*sent, 0]

    with_queue(rig)
    rig.ports = replace(rig.ports, queue=Picky(QUEUE_SETTINGS, lambda: rig.now, Random(7)))
    rig.start(lanes=11)
    rig.now += 600

    report = rig.tick()

    assert report.finished
    assert report.lanes == {"unclaimed": 8, "refused": 3}


def test_runs_get_their_turn_however_many_lanes_are_due(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over after the first batch of lanes."""
    with_queue(rig)
    rig.start(lanes=30)
    late = rig.start(time_limit_s=60)
    rig.now += 600
    seconds = iter(range(0, 10_000, 3))
    monkeypatch.setattr("shared.kernel.tick.stopwatch", lambda: lambda: float(next(seconds)))

    report = rig.tick()

    assert not report.finished
    assert rig.run(late)["outcome"] == "timed_out"
    assert report.lanes.total() < 30


def test_what_goes_wrong_with_the_runs_costs_no_lane_its_repair(rig: Rig) -> None:
    rig.start(lanes=3)
    rig.purge()
    rig.now += 600

    class Broken(PgStore):
        def due_runs(self, *_: Any, **__: Any) -> NoReturn:
            raise DatabaseError({"C": "53100", "M": "disk full"})

    rig.ports = replace(rig.ports, store=Broken(rig.engine))
    with pytest.raises(DatabaseError):
        rig.tick()

    assert len(rig.waiting()) == 3


def test_what_goes_wrong_with_the_lanes_costs_no_run_its_deadline(rig: Rig) -> None:
    late = rig.start(time_limit_s=60)
    rig.now += 600

    class Broken(PgStore):
        def begin(self, tenant_id: Any) -> Any:
            if tenant_id is None:
                raise DatabaseError({"C": "53100", "M": "disk full"})
            return super().begin(tenant_id)

    rig.ports = replace(rig.ports, store=Broken(rig.engine))
    with pytest.raises(DatabaseError):
        rig.tick()

    assert rig.run(late)["outcome"] == "timed_out"


# 5. A claim that was given back is not a death.


class NoCommits(PgStore):
    def begin(self, tenant_id: Any) -> NoReturn:
        raise DatabaseError({"C": "53100", "M": "disk full"})

    def commit_turn(self, *_: Any) -> NoReturn:
        raise DatabaseError({"C": "53100", "M": "disk full"})


def test_commits_that_fail_for_minutes_poison_no_lane(house: House) -> None:
    run_id = house.start_running(target=2)
    for _ in range(20):
        assert house.take_turn(run_id, ports=house.ports_of(NoCommits(house.store._engine))) is Lost.GIVEN_BACK
    assert house.lane(run_id).claims == 0

    assert house.take_turn(run_id) is StepOutcome.MOVED
    assert house.tally(run_id) == [0]


def test_a_claimant_that_gives_back_hides_no_death_before_it(house: House) -> None:
    """Five died; the sixth could not commit the failure: the seventh still finds poison."""
    run_id = house.start_running()
    for claims in range(1, 6):
        assert house.claim(run_id).claims == claims
        house.expire_lease(run_id)
    visited: list[int] = []
    house.visits = lambda _turn, n: visited.append(n)

    for _ in range(3):
        assert house.take_turn(run_id, ports=house.ports_of(NoCommits(house.store._engine))) is Lost.GIVEN_BACK
        assert house.lane(run_id).claims == 5
    assert house.take_turn(run_id) is StepOutcome.FAILED

    assert visited == []
    assert house.lane(run_id).last_error["code"] == "poison"


# 8. Deadlines fire however many runs are open, and nobody is looked at for nothing.


def test_a_deadline_fires_behind_more_open_runs_than_a_batch_holds(house: House) -> None:
    house.ports = replace(house.ports, relay=Relay(tick_batch=10))
    for _ in range(35):
        house.start()
    late = house.start(time_limit_s=60)
    house.sql("update run set check_at = now() - interval '1 hour'")
    house.sql("update run set deadline_at = now() - interval '1 s', check_at = now() where id = :id", id=late)

    report = tick(house.ports, house.kinds)

    assert (report.finished, report.runs_moved) == (True, 1)
    assert house.run(late).outcome == "timed_out"
    assert house.value("select min(check_at) > now() + interval '23 hours' from run where finished_at is null")


@pytest.mark.full
def test_an_open_run_is_looked_at_once_a_day_and_without_a_transaction_of_its_own(rig: Rig) -> None:
    rig.start(target=2, delays=[30 * DAY])
    rig.work_off()
    locked: list[str] = []

    watch_points(locked.append)
    try:
        for _ in range(3 * 24):
            rig.now += HOUR
            rig.tick()
    finally:
        watch_points(None)

    assert Point.TICK_RUN_LOCKED not in locked
    assert (
        rig.rows("select round(extract(epoch from check_at - created_at) / 3600) as hours from run")[0]["hours"] == 96
    )


def test_a_run_that_nobody_settled_is_found_by_the_daily_look(rig: Rig) -> None:
    run_id = rig.start()
    with rig.owner.connect() as connection:
        connection.execute(sa.text("update lane set status = 'done'"))
    rig.now += DAY + 1

    rig.tick()

    assert rig.run(run_id)["status"] == "succeeded"


def test_every_run_that_a_tick_moves_on_gets_its_batons(rig: Rig) -> None:
    started = [rig.start(target=9) for _ in range(3)]
    rig.purge()
    rig.kind = replace(rig.kind, settle=lambda _run, _lanes: NextPhase([NewLane(key="more", cursor={"n": 0})]))
    with rig.owner.connect() as connection:
        connection.execute(sa.text("update lane set status = 'done'"))
    rig.now += DAY + 1

    rig.tick()

    moved = {rig.lane(run_id, "more")["id"] for run_id in started}
    assert {read_baton(body).lane_id for body in rig.waiting()} == moved


def test_a_run_with_only_a_clean_up_lane_left_is_not_at_work(house: House) -> None:
    run_id = house.start(lanes=2)
    house.set_lane(run_id, "l0", "status = 'done'")
    house.set_lane(run_id, "l1", "holds_run = false")
    house.sql("update run set check_at = now() - interval '1 s'")

    (due,) = house.store.due_runs(10)

    assert not due.at_work


# 10. A kind that raises where its run is settled or ended.


class Fault(RuntimeError):
    pass


def raising_settle(run: Run, lanes: Sequence[Lane]) -> Settlement:
    raise Fault("no such phase, password=hunter2")


def raising_on_end(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
    raise Fault("no such table, password=hunter2")


def failing_sql(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
    tx.apply(Effect(Statement("broken", "insert into nowhere values (1)")))
    return ()


BROKEN = [
    pytest.param({"settle": raising_settle}, "settle of tally raised Fault: no such phase, password=***", id="settle"),
    pytest.param({"on_end": raising_on_end}, "on_end of tally raised Fault: no such table, password=***", id="on_end"),
    pytest.param({"on_end": failing_sql}, "on_end of tally raised DatabaseError", id="on_end's SQL"),
    pytest.param({"settle": raising_settle, "on_end": raising_on_end}, "on_end of tally raised Fault", id="both"),
    pytest.param({"settle": lambda *_: None}, "settle of tally raised AssertionError", id="no verdict at all"),
    pytest.param(
        {"on_end": lambda *_: [NewLane(key="c", holds_run=False, delay_s=math.nan)]}, "raised ValueError", id="bad lane"
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("broken", "said"), BROKEN)
def test_a_kind_that_raises_at_the_end_ends_its_run_after_bounded_attempts(
    rig: Rig, broken: dict[str, Any], said: str
) -> None:
    rig.kind = replace(rig.kind, **broken)
    claims: Counter[str] = rig.counted
    run_id = rig.start(target=2)

    assert rig.run_to_end(run_id, within_s=3 * HOUR) == "failed"

    run = rig.run(run_id)
    assert (run["outcome"], run["error"]["code"]) == ("settle_failed", "settle_failed")
    assert said in run["error"]["message"]
    assert "hunter2" not in str(rig.rows("select data from history"))
    assert rig.lane(run_id)["status"] == "done", "what the lane did is kept"
    assert rig.tallied(run_id) == [0, 1]
    assert claims[Metric.STEP] == 2, "no step is taken again for it"
    assert claims[Metric.GIVEN_BACK] == 0
    types = [row["type"] for row in rig.rows("select type from history order by n")]
    assert types == ["accepted", "running", *["settle_failed"] * 5, "failed"]
    assert rig.rows("select name from signal") == [{"name": "run.failed"}]
    rig.pass_time(2 * HOUR)
    assert rig.counted[Metric.RUN_ENDED] == 1


@pytest.mark.full
@pytest.mark.parametrize(("broken", "said"), BROKEN[:3])
def test_a_deadline_ends_its_run_even_if_the_kind_raises(rig: Rig, broken: dict[str, Any], said: str) -> None:
    rig.kind = replace(rig.kind, **broken)
    run_id = rig.start(target=2, delays=[100 * DAY], time_limit_s=600)

    assert rig.run_to_end(run_id, within_s=3 * HOUR) == "failed"

    if "settle" in broken:
        assert rig.run(run_id)["outcome"] == "timed_out", "a deadline does not ask settle"
    else:
        assert said in rig.run(run_id)["error"]["message"]
    assert rig.lane(run_id)["status"] == "failed"


def test_a_kind_that_is_mended_in_time_ends_its_run_as_it_wanted(rig: Rig) -> None:
    mended, rig.kind = rig.kind, replace(rig.kind, settle=raising_settle)
    run_id = rig.start(target=2)
    rig.pass_time(600)
    assert rig.run(run_id)["status"] == "running"

    rig.kind = mended

    assert rig.run_to_end(run_id, within_s=HOUR) == "succeeded"


@pytest.mark.full
def test_every_phase_of_a_run_has_attempts_of_its_own(rig: Rig) -> None:
    """A run of weeks meets more than one bad deployment: those it got over are no reason to give up at the next."""
    mended, settled = rig.kind, list[str]()

    def in_phases(run: Run, lanes: Sequence[Lane]) -> Settlement:
        settled.append(lanes[-1].key)
        if settled.count(lanes[-1].key) <= SETTLE_ATTEMPTS - 1:
            raise Fault("a bad deployment")
        return mended.settle(run, lanes) if len(lanes) == 3 else NextPhase([NewLane(key=f"p{len(lanes)}")])

    rig.kind = replace(mended, settle=in_phases, take_step=lambda *_: Finish())
    run_id = rig.start()

    assert rig.run_to_end(run_id, within_s=9 * HOUR) == "succeeded"
    assert [settled.count(key) for key in ("l0", "p1", "p2")] == [SETTLE_ATTEMPTS] * 3


@pytest.mark.full
def test_a_run_that_ended_unsettled_can_be_retried_and_canceled_though_its_kind_still_raises(rig: Rig) -> None:
    mended, rig.kind = rig.kind, replace(rig.kind, settle=raising_settle)
    run_id = rig.start(target=2)
    rig.run_to_end(run_id, within_s=3 * HOUR)

    runs.retry_run(rig.ports, rig.kind, TENANT, run_id)
    assert rig.run(run_id)["status"] == "running"
    runs.cancel_run(rig.ports, rig.kind, TENANT, run_id)
    assert rig.run_to_end(run_id, within_s=3 * HOUR) == "canceled"
    assert rig.run(run_id)["outcome"] == "settle_failed"

    rig.kind = mended
    runs.retry_run(rig.ports, rig.kind, TENANT, run_id)
    assert rig.run(run_id)["status"] == "succeeded"
    assert rig.tallied(run_id) == [0, 1]


def test_a_conflict_while_a_run_is_settled_is_nobodys_fault(house: House) -> None:
    conflicts = iter([DatabaseError({"C": "40P01", "M": "deadlock detected"})])

    def on_end(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
        for conflict in conflicts:
            raise conflict
        return ()

    house.kind = replace(house.kind, on_end=on_end)
    run_id = house.start_running(target=1)

    assert house.take_turn(run_id) is StepOutcome.DONE
    assert house.history(run_id) == ["accepted", "succeeded"]


# 11. Times out of all proportion.

WITHIN = "now() + interval '11 years'"
NUMBERS = [1e12, math.inf, -5.0, 1e300]


def one_step(decide: Any) -> Kind:
    def start(tx: Tx, starting: Starting) -> NewRun:
        params = starting.params
        return NewRun(params=params, lanes=[NewLane(key="l0", **params.get("lane", {}))], **params.get("run", {}))

    def take_step(turn: Turn, outside: Outside) -> Decision:
        decision: Decision = decide()
        return decision

    return Kind(name="tally", take_step=take_step, start=start)


def now(house: House) -> datetime:
    found: datetime = house.value("select now()")
    return found


def throw(error: Exception) -> NoReturn:
    raise error


@pytest.mark.parametrize("seconds", NUMBERS, ids=str)
@pytest.mark.parametrize(
    ("decide", "outcome"),
    [
        (lambda s: lambda: Wait(after_s=s), StepOutcome.WAITED),
        (lambda s: lambda: Continue(cursor={}, after_s=s), StepOutcome.MOVED),
        (lambda s: lambda: throw(Throttled("api", s)), StepOutcome.THROTTLED),
        (lambda s: lambda: throw(Transient("busy", retry_after_s=s)), StepOutcome.RETRIED),
        (lambda s: lambda: Finish(lanes=[NewLane(key="l1", delay_s=s, time_limit_s=s)]), StepOutcome.DONE),
    ],
    ids=["wait", "continue", "throttled", "transient", "new lane"],
)
def test_a_delay_out_of_all_proportion_is_bounded_where_it_enters(
    house: House, decide: Any, outcome: StepOutcome, seconds: float
) -> None:
    house.kind = one_step(decide(seconds))
    run_id = runs.start_run(house.ports, house.kind, ALICE, {})

    assert house.take_turn(run_id) is outcome

    assert house.value(f"select bool_and(next_due_at between now() - interval '5 s' and {WITHIN}) from lane")
    assert house.value(f"select bool_and(deadline_at is null or deadline_at <= {WITHIN}) from lane")
    assert house.value("select bool_and(until <= now() + interval '2 days') from gate") is not False
    assert tick(house.ports, house.kinds).lanes["set_aside"] == 0


@pytest.mark.parametrize("where", ["lane", "run"])
@pytest.mark.parametrize("seconds", NUMBERS, ids=str)
def test_a_time_limit_out_of_all_proportion_is_bounded_where_it_enters(
    house: House, where: str, seconds: float
) -> None:
    house.kind = one_step(Finish)
    runs.start_run(house.ports, house.kind, ALICE, {where: {"time_limit_s": seconds}})

    assert house.value(f"select deadline_at between now() - interval '5 s' and {WITHIN} from {where}")


@pytest.mark.parametrize(
    "decide",
    [
        lambda: Wait(after_s=math.nan),
        lambda: throw(Throttled("api", math.nan)),
        lambda: throw(Transient("busy", retry_after_s=math.nan)),
        lambda: Finish(lanes=[NewLane(key="l1", delay_s=math.nan)]),
    ],
    ids=["wait", "throttled", "transient", "new lane"],
)
def test_a_delay_that_is_no_number_is_one_failed_attempt(house: House, decide: Any) -> None:
    house.kind = one_step(decide)
    run_id = runs.start_run(house.ports, house.kind, ALICE, {})

    assert house.take_turn(run_id) in (StepOutcome.RETRIED, StepOutcome.THROTTLED)

    lane = house.lane(run_id)
    assert 0 < (lane.next_due_at - now(house)).total_seconds() < 60
    assert lane.claims == 0


@pytest.mark.parametrize("column", ["next_due_at", "sent_at", "deadline_at", "cancel_at"])
@pytest.mark.parametrize("time", ["infinity", "-infinity", "20000-01-01Z"])
def test_one_row_with_an_impossible_time_stops_nobody(house: House, column: str, time: str) -> None:
    run_id = house.start_running(lanes=3)
    house.queue.purge(FIFO)
    hour_ago = "now() - interval '1 hour'"
    house.sql(f"update lane set next_due_at = {hour_ago}, sent_at = {hour_ago}, check_at = now()")
    house.set_lane(run_id, "l1", f"{column} = '{time}'")

    report = tick(house.ports, house.kinds)

    assert report.finished
    assert report.lanes["unclaimed"] >= 2
    assert report.lanes["set_aside"] == 0, "and it is judged like any other"
    assert {house.lane(run_id, key).resend_no for key in ("l0", "l2")} == {1}


def test_one_row_that_cannot_be_written_stops_nobody(house: House) -> None:
    """Its copies cannot be counted any further."""
    run_id = house.start_running(lanes=5)
    house.sql("update lane set sent_at = null, check_at = now() - interval '1 s'")
    house.set_lane(run_id, "l2", f"resend_no = {2**31 - 1}")

    report = tick(house.ports, house.kinds)

    assert (report.finished, report.lanes) == (True, {"unsent": 4, "set_aside": 1})
    assert {house.lane(run_id, f"l{n}").resend_no for n in (0, 1, 3, 4)} == {1}
    assert len(house.waiting(FIFO)) == 5 + 4
    assert tick(house.ports, house.kinds).lanes == {}, "and it is set aside"


# 12. Five minutes, also after a long silence.


@pytest.mark.full
def test_after_a_long_silence_and_a_purge_all_moves_again_within_five_minutes(rig: Rig) -> None:
    run_id = rig.start(lanes=3, target=1)
    for _ in range(150):
        rig.now += 60
        rig.tick()
    copies = len(rig.waiting())
    assert copies <= 3 * 12, "a queue that is not empty is not filled"

    rig.purge()
    rig.next_tick_at = rig.now + 60

    assert rig.run_to_end(run_id, within_s=300) == "succeeded"


def hold_one(rig: Rig, waited_s: float) -> None:
    """Somebody works on a turn that was taken so long after it was sent."""
    busy = rig.start(target=9)
    taken_at = BEGINNING + timedelta(seconds=rig.now)
    with rig.owner.connect() as connection:
        connection.execute(
            sa.text("""update lane set claim_token = id, lease_until = :until, sent_at = :sent, next_due_at = :sent,
                              check_at = :until where run_id = :id"""),
            {
                "id": busy,
                "sent": taken_at - timedelta(seconds=waited_s),
                "until": taken_at + timedelta(seconds=LEASE_S),
            },
        )


@pytest.mark.full
def test_after_a_long_silence_what_is_unclaimed_while_others_are_claimed_at_once_is_lost(rig: Rig) -> None:
    run_id = rig.start(lanes=3, target=1)
    for _ in range(150):
        rig.now += 60
        rig.tick()
    rig.purge()

    for _ in range(5):
        rig.now += 60
        hold_one(rig, waited_s=2)
        assert not rig.queue.is_empty(FIFO)
        rig.tick()
        rig.work_off()

    assert rig.run(run_id)["status"] == "succeeded"


@pytest.mark.full
def test_while_others_are_claimed_late_the_copies_stay_few(rig: Rig) -> None:
    run_id = rig.start()
    for _ in range(240):
        rig.now += 60
        hold_one(rig, waited_s=600)
        rig.purge()
        rig.tick()

    assert rig.lane(run_id)["resend_no"] <= 15, "one copy every three minutes would be 80"


@pytest.mark.full
def test_a_queue_that_does_not_say_whether_it_is_empty_is_not_filled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(queue: str) -> bool:
        raise QueueUnavailable(f"{queue} does not answer")

    monkeypatch.setattr(rig.queue, "is_empty", no_answer)
    run_id = rig.start()
    for _ in range(240):
        rig.now += 60
        rig.tick()

    assert rig.lane(run_id)["resend_no"] <= 15, "one copy every three minutes would be 80"


def test_one_turn_that_was_claimed_at_once_does_not_hide_a_backlog(rig: Rig) -> None:
    for waited_s in (600, 1):
        hold_one(rig, waited_s=waited_s)

    with rig.ports.store.begin(None) as tx:
        waits = tx.longest_waits(["tally"], rig.ports.relay.lease_s)

    assert waits["tally"] >= 599


# 14. A lane's own deadline.


def waiting_kind(after_s: float, time_limit_s: int, **lane: Any) -> Kind:
    def start(tx: Tx, starting: Starting) -> NewRun:
        return NewRun(params=starting.params, lanes=[NewLane(key="l0", time_limit_s=time_limit_s, **lane)])

    return Kind(name="tally", start=start, take_step=lambda *_: Wait(after_s=after_s))


@pytest.mark.parametrize("after_s", [300, 2000, DAY], ids=["in the delay queue", "unsent", "a day"])
def test_a_lane_that_waits_beyond_its_deadline_is_ended_by_the_tick(rig: Rig, after_s: float) -> None:
    rig.kind = waiting_kind(after_s, time_limit_s=60)
    run_id = rig.start()

    assert rig.run_to_end(run_id, within_s=240) == "failed"

    assert rig.lane(run_id)["last_error"]["code"] == "timed_out"
    assert rig.rows("select count(*) from repair")[0]["count"] == 0, "nothing was broken"


def test_a_lane_whose_first_turn_comes_after_its_deadline_is_ended_by_the_tick(rig: Rig) -> None:
    rig.kind = waiting_kind(0, time_limit_s=60, delay_s=DAY)
    run_id = rig.start()

    assert rig.run_to_end(run_id, within_s=240) == "failed"


def test_a_lane_that_waits_within_its_time_is_left_alone(rig: Rig) -> None:
    rig.kind = waiting_kind(500, time_limit_s=3600)
    run_id = rig.start()
    rig.pass_time(3550)
    assert rig.run(run_id)["status"] == "running"
    steps = rig.lane(run_id)["seq"]
    assert steps == 8

    assert rig.run_to_end(run_id, within_s=240) == "failed"


@pytest.mark.full
def test_the_deadline_of_a_lane_stands_still_while_its_run_is_paused(rig: Rig) -> None:
    rig.kind = waiting_kind(DAY, time_limit_s=600)
    run_id = rig.start()
    rig.pass_time(300)
    runs.pause_run(rig.ports, TENANT, run_id)
    before = rig.lane(run_id)
    rig.pass_time(3 * HOUR)
    after = rig.lane(run_id)
    assert (after["next_due_at"], after["resend_no"]) == (before["next_due_at"], before["resend_no"])

    runs.resume_run(rig.ports, TENANT, run_id)
    rig.pass_time(200)
    assert rig.run(run_id)["status"] == "running", "five of its ten minutes are left"
    assert rig.run_to_end(run_id, within_s=400) == "failed"
