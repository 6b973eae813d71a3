"""Guards the relay as a whole on a real Postgres: whatever is lost on the way, every run ends right and once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from shared.kernel import run as runs
from shared.kernel.catalogue import Catalogue
from shared.kernel.dead_letter import note_dead_letter
from shared.kernel.decide import Limits, all_or_nothing
from shared.kernel.errors import Conflict, Permanent, Refused, Throttled, Transient
from shared.kernel.handle import handle_baton, handle_delayed
from shared.kernel.model import By, Ending, NewLane, NextPhase, Run, StepOutcome, Turn
from shared.kernel.ports import Ports, Tx
from shared.kernel.queue import Outgoing, QueueUnavailable
from shared.kernel.queue_memory import QueueSettings
from shared.kernel.tick import TickReport, tick
from tests.support.house import ALICE, BOB, DELAY, FIFO, House, new_queue
from tests.support.tally import QuietWorld, tally_kind

DEAD = "baton-tally-dead.fifo"


class Driver:
    """Receive, handle, delete, until nothing comes any more. Time passes only in the rows, when it is told to."""

    def __init__(self, house: House, ports: Ports | None = None) -> None:
        self.house, self.ports = house, ports or house.ports
        self.handled = 0

    def drain(self, most: int = 1000) -> int:
        """Handle what is there and what comes of it; answers how many messages it were."""
        before = self.handled
        while self.handled - before < most and (self._one(FIFO) or self._one(DELAY)):
            pass
        return self.handled - before

    def _one(self, queue: str) -> bool:
        received = self.house.queue.receive(queue)
        for message in received:
            self.handled += 1
            if queue == FIFO:
                done = handle_baton(self.ports, self.house.kind, message)
            else:
                done = handle_delayed(self.ports, message)
            if done:
                self.house.queue.delete(queue, message.receipt)
        return bool(received)

    def tick(self, after_s: int = 0) -> TickReport:
        """Let time pass, then tick."""
        pass_time(self.house, after_s)
        return tick(self.ports, self.house.kinds)


def pass_time(house: House, seconds: int) -> None:
    """Shift every time of the open rows back: the database's own clock cannot be turned."""
    back = f"- interval '{seconds} s'"
    house.sql(f"""
        update lane set next_due_at = next_due_at {back}, sent_at = sent_at {back}, check_at = check_at {back},
               lease_until = lease_until {back}, deadline_at = deadline_at {back} where status = 'active'""")
    house.sql(f"""
        update run set check_at = check_at {back}, deadline_at = deadline_at {back}, paused_at = paused_at {back}
        where status in ('queued', 'running')""")
    house.sql(f"update gate set until = until {back}")


class Lossy:
    """A queue that answers `ok` and keeps nothing, or does not answer at all."""

    def __init__(self, house: House, *, silent: bool) -> None:
        self.house, self.silent = house, silent

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        if not self.silent:
            raise QueueUnavailable("send")
        return []

    def is_empty(self, queue: str) -> bool:
        return True

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:
        raise AssertionError


def without_sends(house: House, *, silent: bool) -> Ports:
    return Ports(store=house.store, queue=Lossy(house, silent=silent), relay=house.relay)


@pytest.fixture
def driver(house: House) -> Driver:
    return Driver(house)


def assert_counted(house: House, run_id: UUID, target: int, *keys: str) -> None:
    assert house.run(run_id).status == "succeeded"
    assert house.endings(run_id) == ["succeeded"]
    for key in keys:
        assert house.tally(run_id, key) == list(range(target))
        assert [seq for _, seq, _ in house.ledger(run_id, key)] == list(range(house.lane(run_id, key).seq))


def test_a_run_counts_to_its_end(house: House, driver: Driver) -> None:
    run_id = house.start(lanes=2, target=3, splits=["l0"], final=True)

    driver.drain()

    assert_counted(house, run_id, 3, "l0", "l1", "l0/s", "final")
    assert house.history(run_id) == ["accepted", "running", "phase", "succeeded"]
    assert house.value("select name from signal") == "run.succeeded"
    assert house.value("select count(*) from repair") == 0


def test_every_copy_of_every_message_may_come_twice(house: House, driver: Driver) -> None:
    run_id = house.start(lanes=2, target=3)
    handled: list[bool] = []

    for _ in range(100):
        received = house.queue.receive(FIFO)
        if not received:
            break
        handled += [handle_baton(house.ports, house.kind, message) for message in (*received, *received)]
        house.queue.delete(FIFO, received[0].receipt)

    assert all(handled), "a copy is done with, not given back"
    assert_counted(house, run_id, 3, "l0", "l1")


@pytest.mark.parametrize("silent", [True, False], ids=["swallowed", "refused"])
def test_without_the_sends_of_steps_the_tick_alone_brings_a_run_to_its_end(house: House, silent: bool) -> None:
    mute = without_sends(house, silent=silent)
    run_id = runs.start_run(mute, house.kind, ALICE, {"lanes": 2, "target": 2, "final": True, "delays": [5]})
    muted, ticking = Driver(house, mute), Driver(house)

    for _ in range(20):
        if house.run(run_id).finished_at is not None:
            break
        ticking.tick(after_s=300)
        pass_time(house, 20)
        muted.drain()

    assert_counted(house, run_id, 2, "l0", "l1", "final")
    assert house.value("select count(*) from repair where why = :why", why="unclaimed" if silent else "unsent") > 0


def test_after_a_purge_of_all_queues_the_next_ticks_bring_everything_back(house: House, driver: Driver) -> None:
    run_ids = [house.start(tenant, lanes=2, target=3, delays=[0, 60]) for tenant in (ALICE, BOB)]
    driver.drain(most=3)
    house.queue.purge(FIFO)
    house.queue.purge(DELAY)
    assert driver.drain() == 0

    for _ in range(6):
        driver.tick(after_s=300)
        driver.drain()

    for run_id in run_ids:
        assert_counted(house, run_id, 3, "l0", "l1")


def test_a_lane_due_later_than_a_queue_can_wait_is_promoted_by_the_tick(house: House, driver: Driver) -> None:
    run_id = house.start(target=2, delays=[3600])
    driver.drain()
    assert house.lane(run_id).sent_at is None

    assert driver.tick(after_s=600).lanes == {"later": 1}
    assert driver.tick(after_s=0).lanes == {}, "nothing to look at for a long time"
    assert driver.tick(after_s=3600 - 600 - 60).lanes == {"promoted": 1}
    (waiting,) = house.queue.messages(DELAY).delayed
    assert waiting.body == house.baton(run_id).to_json()
    assert house.value("select count(*) from repair") == 0

    house.queue.purge(DELAY)
    driver.tick(after_s=300)
    driver.drain()
    assert_counted(house, run_id, 2, "l0")


@pytest.mark.parametrize("trouble", ["not deployed", "cannot be settled"])
def test_runs_that_cannot_be_moved_do_not_stand_before_those_that_can(house: House, trouble: str) -> None:
    stuck = [house.start() for _ in range(3)]
    house.sql("update run set deadline_at = now() - interval '1 hour', check_at = now() - interval '1 hour'")
    movable = house.start()
    house.sql("update run set deadline_at = now(), check_at = now() where id = :id", id=movable)
    kind = house.kind
    if trouble == "not deployed":
        house.sql("update run set kind = 'elsewhere' where id <> :id", id=movable)
    else:

        def on_end(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
            if run.id in stuck:
                raise RuntimeError("cannot be ended")
            return house.kind.on_end(tx, run, ending)

        kind = replace(kind, on_end=on_end)
    ports = replace(house.ports, relay=house.ports.relay.model_copy(update={"tick_batch": 3}))

    moved = [tick(ports, Catalogue(kind)).runs_moved for _ in range(2)]

    assert sum(moved) == 1 + (len(stuck) if trouble == "cannot be settled" else 0), "each is looked at once"
    assert house.run(movable).outcome == "timed_out"
    assert all(house.run(run_id).finished_at is None for run_id in stuck)
    assert house.value("select min(check_at) > now() + interval '1 minute' from run where finished_at is null")


def test_a_paused_run_stands_still_and_goes_on_where_it_was(house: House, driver: Driver) -> None:
    run_id = house.start(target=4)
    driver.drain(most=2)
    runs.pause_run(house.ports, ALICE, run_id)

    driver.drain()
    assert driver.tick(after_s=7200).lanes == {"parked": 1}
    assert driver.drain() == 0
    assert house.tally(run_id) == [0, 1]

    runs.resume_run(house.ports, ALICE, run_id)
    driver.drain()
    assert_counted(house, run_id, 4, "l0")
    assert house.history(run_id) == ["accepted", "running", "paused", "resumed", "succeeded"]


def test_the_clock_of_a_paused_run_stands_still(house: House, driver: Driver) -> None:
    run_id = house.start(target=2, time_limit_s=600)
    runs.pause_run(house.ports, ALICE, run_id)

    driver.tick(after_s=7200)
    assert house.run(run_id).status == "queued"
    runs.resume_run(house.ports, ALICE, run_id)
    driver.drain()

    assert_counted(house, run_id, 2, "l0")


def test_a_run_past_its_deadline_fails_and_its_lanes_with_it(house: House, driver: Driver) -> None:
    run_id = house.start(target=2, delays=[800], time_limit_s=600)
    driver.drain()

    driver.tick(after_s=601)
    driver.drain()

    run = house.run(run_id)
    assert (run.status, run.outcome, run.error["code"]) == ("failed", "timed_out", "timed_out")
    assert (house.lane(run_id).status, house.endings(run_id)) == ("failed", ["failed"])


@pytest.mark.parametrize("act", [runs.wake_lane, runs.restart_lane], ids=["wake", "restart"])
def test_a_lane_of_a_run_that_is_being_canceled_is_nobodys_to_move(
    house: House, act: Callable[[Ports, UUID, UUID], None]
) -> None:
    """A lane that began anew would know nothing of the cancel, and go on."""
    run_id = house.start()
    runs.cancel_run(house.ports, house.kind, ALICE, run_id)
    before = house.lane(run_id)

    with pytest.raises(Conflict, match="being canceled"):
        act(house.ports, ALICE, before.id)

    assert house.lane(run_id) == before


def test_a_canceled_run_ends_canceled_and_cleans_up(house: House, driver: Driver) -> None:
    run_id = house.start(lanes=2, target=3, assets=["l0"], delays=[600])
    driver.drain()
    assert len(house.world.things) == 1

    runs.cancel_run(house.ports, house.kind, ALICE, run_id, By(reason="enough"))
    driver.drain()

    assert (house.run(run_id).status, house.endings(run_id)) == ("canceled", ["canceled"])
    assert {house.lane(run_id, key).status for key in ("l0", "l1")} == {"canceled"}
    assert (house.world.things, house.lane(run_id, "cleanup/1").status) == ({}, "done")


def test_a_pause_that_a_cancel_ends_has_taken_none_of_the_runs_time(house: House, driver: Driver) -> None:
    """Its lanes have what was left of it to stop in: they are not closed as out of time."""
    run_id = house.start_running(target=3)
    house.sql("update run set deadline_at = now() + interval '1 hour' where id = :id", id=run_id)
    runs.pause_run(house.ports, ALICE, run_id)
    house.sql(
        """update run set paused_at = paused_at - interval '5 hours', deadline_at = deadline_at - interval '5 hours'
           where id = :id""",
        id=run_id,
    )

    runs.cancel_run(house.ports, house.kind, ALICE, run_id)

    left_s = house.value(
        "select extract(epoch from deadline_at - now()) from run where id = :id and check_at = deadline_at", id=run_id
    )
    assert 3_000 < left_s <= 3_600
    house.sql("update run set check_at = now() where id = :id", id=run_id)
    tick(house.ports, house.kinds)
    assert house.endings(run_id) == [], "it is looked at, and has time"
    driver.drain()
    assert (house.endings(run_id), house.lane(run_id).status) == (["canceled"], "canceled")


def test_a_deadline_closes_the_lanes_that_hold_the_run_and_no_others(house: House) -> None:
    """What cleans up after an earlier epoch, or writes somebody's file, goes on."""
    run_id = house.start_running(lanes=2)
    house.set_lane(run_id, "l1", "holds_run = false")
    house.pass_deadline(run_id)

    tick(house.ports, house.kinds)

    assert (house.endings(run_id), house.run(run_id).outcome) == (["failed"], "timed_out")
    assert [house.lane(run_id, key).status for key in ("l0", "l1")] == ["failed", "active"]


def test_a_cancel_whose_messages_are_lost_is_brought_by_the_tick(house: House, driver: Driver) -> None:
    run_id = house.start(target=3, delays=[600])
    driver.drain()
    runs.cancel_run(house.ports, house.kind, ALICE, run_id)
    house.queue.purge(FIFO)

    for _ in range(3):
        driver.tick(after_s=120)
        driver.drain()

    assert house.endings(run_id) == ["canceled"]


def test_a_run_that_succeeded_has_nothing_to_resume(house: House, driver: Driver) -> None:
    """Another end would be told to whoever listens, of work that nobody did."""
    run_id = house.start(lanes=2, target=1)
    driver.drain()
    assert house.endings(run_id) == ["succeeded"]

    with pytest.raises(Conflict, match=r"nothing to resume\. To do its work again, start a new run\.") as refused:
        runs.retry_run(house.ports, house.kind, ALICE, run_id)

    assert refused.value.code == "nothing_failed"
    assert (house.run(run_id).epoch, house.endings(run_id)) == (1, ["succeeded"])
    assert house.value("select count(*) from signal where name = 'run.succeeded'") == 1


def test_a_run_that_could_not_be_settled_is_settled_by_a_retry(house: House, driver: Driver) -> None:
    """Its lanes are done; the run failed all the same."""
    run_id = house.start(lanes=1, target=1)
    driver.drain()
    house.sql("update run set status = 'failed', outcome = 'settle_failed' where id = :id", id=run_id)

    runs.retry_run(house.ports, house.kind, ALICE, run_id)

    assert (house.run(run_id).status, house.run(run_id).epoch) == ("succeeded", 2)


def test_a_kind_with_another_phase_goes_on_with_a_run_that_succeeded(house: House, driver: Driver) -> None:
    kind = replace(
        house.kind,
        settle=lambda run, lanes: (
            NextPhase([NewLane(key="again", cursor={"n": 0, "target": 1})])
            if run.epoch > 1 and len(lanes) == 1
            else all_or_nothing(run, lanes)
        ),
    )
    run_id = house.start(lanes=1, target=1)
    driver.drain()

    runs.retry_run(house.ports, kind, ALICE, run_id)

    assert (house.run(run_id).status, house.run(run_id).epoch) == ("running", 2)


def test_a_failed_run_is_tried_again_where_it_stopped(house: House, driver: Driver) -> None:
    broken = True

    def visit(turn: Turn, n: int) -> None:
        if broken and (turn.key, n) == ("l0", 1):
            raise Permanent("no such thing", code="gone")

    house.visits = visit
    run_id = house.start(lanes=2, target=3)
    driver.drain()
    assert house.endings(run_id) == ["failed"]
    assert house.lane(run_id).last_error["code"] == "gone"
    with pytest.raises(Refused):
        runs.cancel_run(house.ports, house.kind, ALICE, run_id)

    broken = False
    runs.retry_run(house.ports, house.kind, ALICE, run_id)
    driver.drain()

    assert house.endings(run_id) == ["failed", "succeeded"]
    assert (house.run(run_id).epoch, house.lane(run_id).epoch, house.lane(run_id, "l1").epoch) == (2, 2, 1)
    assert house.tally(run_id) == [0, 1, 2]


def test_the_sixth_claim_of_a_turn_that_kills_its_process_fails_the_lane(house: House, driver: Driver) -> None:
    """Nobody comes back from this turn: it is claimed, then its lease runs out."""
    run_id = house.start_running()
    for claims in range(1, 6):
        assert house.claim(run_id).claims == claims
        assert driver.tick(after_s=300).lanes == {"lease_ran_out": 1}
    visited: list[int] = []
    house.visits = lambda _turn, n: visited.append(n)

    assert house.take_turn(run_id) is StepOutcome.FAILED

    assert visited == [], "the outside is not touched again"
    assert house.lane(run_id).last_error["code"] == "poison"
    assert (house.endings(run_id), house.tally(run_id)) == (["failed"], [])
    assert house.repairs(run_id) == ["lease_ran_out"] * 5


def test_a_repair_travels_in_a_group_of_its_own(house: House, driver: Driver) -> None:
    """The message of a dead process blocks its group until its visibility ends."""
    run_id = house.start_running(target=2)
    (held,) = house.queue.receive(FIFO)
    house.claim(run_id)

    driver.tick(after_s=300)

    assert driver.drain() >= 2
    assert_counted(house, run_id, 2, "l0")
    assert held.group == f"{house.lane(run_id).id}:0"


def test_a_transient_failure_comes_back_later_and_gives_up_in_the_end(house: House, driver: Driver) -> None:
    house.kind = tally_kind(
        QuietWorld(lambda *_: (_ for _ in ()).throw(Transient("no answer"))), Limits(max_attempts=3)
    )
    run_id = house.start_running()

    for attempt in (1, 2):
        assert house.take_turn(run_id) is StepOutcome.RETRIED
        assert house.lane(run_id).attempts == attempt
        pass_time(house, 600)

    assert house.take_turn(run_id) is StepOutcome.FAILED
    assert house.endings(run_id) == ["failed"]


def test_a_surprise_is_committed_and_comes_back(house: House, driver: Driver) -> None:
    surprises = iter([KeyError("what")])

    def visit(turn: Turn, n: int) -> None:
        for surprise in surprises:
            raise surprise

    house.visits = visit
    run_id = house.start_running(target=1)
    assert house.take_turn(run_id) is StepOutcome.RETRIED
    assert house.lane(run_id).last_error["code"] == "unexpected"

    pass_time(house, 60)
    assert house.take_turn(run_id) is StepOutcome.DONE
    assert_counted(house, run_id, 1, "l0")


def test_a_throttled_lane_closes_the_gate_for_the_others_and_its_probe_opens_it(house: House, driver: Driver) -> None:
    throttled = True

    def visit(turn: Turn, n: int) -> None:
        if throttled:
            raise Throttled("upstream", 40)

    house.visits = visit
    first, second = (house.start_running(target=2, gate="upstream") for _ in range(2))
    assert house.take_turn(first) is StepOutcome.THROTTLED
    assert house.take_turn(second) is StepOutcome.WAITED
    assert (house.tally(first), house.tally(second), house.lane(first).attempts) == ([], [], 0)

    throttled = False
    pass_time(house, 200)
    assert house.take_turn(first) is StepOutcome.MOVED
    assert house.value("select state from gate") == "open"
    assert house.take_turn(second) is StepOutcome.MOVED


def test_a_message_that_came_back_too_often_is_noted_and_its_lane_still_repaired(house: House) -> None:
    settings = {
        FIFO: QueueSettings(fifo=True, max_receive_count=2, dead_letter=DEAD),
        DEAD: QueueSettings(fifo=True),
        DELAY: QueueSettings(fifo=False),
    }
    house.queue = new_queue(settings)
    house.ports = house.ports_of(house.store)
    run_id = house.start_running(target=1)
    for _ in range(2):
        (message,) = house.queue.receive(FIFO)
        house.queue.change_visibility(FIFO, message.receipt, 0)
    assert house.queue.receive(FIFO) == []
    (dead,) = house.queue.receive(DEAD)

    assert note_dead_letter(house.ports, dead.body, dead.receive_count)

    assert house.lane(run_id).last_error["code"] == "dead_letter"
    driver = Driver(house)
    assert driver.tick(after_s=300).lanes == {"unclaimed": 1}
    driver.drain()
    assert_counted(house, run_id, 1, "l0")


def test_the_tick_resends_an_unclaimed_baton_in_a_new_copy_and_in_a_backlog_with_growing_patience(
    house: House, driver: Driver
) -> None:
    run_id = house.start_running()

    for resends in range(1, 7):
        assert driver.tick(after_s=1800).lanes == {"unclaimed": 1}
        lane = house.lane(run_id)
        assert (lane.resend_no, lane.resends) == (resends, resends)
    for _ in range(3):
        assert driver.tick(after_s=181).lanes == {"waiting": 1}, "the sixth copy may stay unclaimed for twelve minutes"
    assert driver.tick(after_s=181).lanes == {"unclaimed": 1}
    driver.drain()
    assert_counted(house, run_id, 2, "l0")
    assert house.lane(run_id).resends == 0
