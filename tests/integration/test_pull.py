"""Guards pull delivery: offers follow their lanes, takes are fair and within caps, endings are one flight, nothing is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import pytest

from shared.kernel import run
from shared.kernel.clock import new_id
from shared.kernel.errors import Conflict, Transient
from shared.kernel.model import StepOutcome, Turn
from shared.kernel.step import Lost
from shared.kernel.tick import HANDS_IN_S, SPARE_S
from tests.kinds.parcel.kind import CARTS, VANS
from tests.support.databases import ServerAdmin
from tests.support.depot import Depot, parcel_depot
from tests.support.house import ALICE, BOB
from tests.support.together import do_together

CAROL = UUID(int=0xCA201)


@pytest.fixture(scope="session")
def shared_depot(postgres_server: ServerAdmin, template: str) -> Iterator[Depot]:
    with parcel_depot(postgres_server, template) as depot:
        yield depot


@pytest.fixture
def depot(shared_depot: Depot) -> Iterator[Depot]:
    shared_depot.empty()
    yield shared_depot
    shared_depot.check()
    shared_depot.send_guests_home()


def fails(turn: Turn) -> None:
    raise Transient("it fell down")


def test_a_lane_is_offered_when_it_is_made_and_nothing_is_sent(depot: Depot) -> None:
    run_id = depot.post(priority=7)

    offer = depot.offer(run_id)
    assert (offer.due, offer.taken_at, offer.priority, offer.class_id) == (True, None, 7, CARTS)
    assert depot.waiting() == []
    assert depot.lane(run_id, "carry").parked


def test_a_turn_is_taken_done_and_its_run_ended_in_one_flight(depot: Depot) -> None:
    run_id = depot.post()
    turn = depot.take_one()
    assert (turn.run_id, turn.pulled, turn.claims, turn.key) == (run_id, True, 1, "carry")
    assert depot.offer(run_id).worker == "a worker"
    connection = depot.store._engine.raw_connection()
    before = connection.dbapi_connection.flights  # type: ignore[union-attr]
    connection.close()

    assert depot.do(turn) is StepOutcome.DONE

    connection = depot.store._engine.raw_connection()
    assert connection.dbapi_connection.flights - before == 1  # type: ignore[union-attr]
    connection.close()
    ended = depot.run(run_id)
    assert (ended.status, ended.outcome, ended.error, depot.history(run_id)) == (
        "succeeded", "done", None, ["accepted", "succeeded"],
    )  # fmt: skip
    assert ended.started_at <= ended.finished_at
    assert (depot.offer(run_id), depot.carried(run_id), depot.ledger(run_id, "carry")) == (None, [0], [(1, 0, "done")])
    assert depot.value("select payload ->> 'outcome' from signal where name = 'run.succeeded'") == "done"


def test_an_ending_says_what_the_long_way_would_say(depot: Depot) -> None:
    """The one statement and the transaction of every other kind leave the same rows."""
    told = []
    for ending in (depot.parcel.ending, None):
        for carries in (lambda _: None, fails):
            depot.carries = carries
            depot.parcel = type(depot.parcel)(**{
                name: getattr(depot.parcel, name) for name in depot.parcel.__dataclass_fields__ if name != "ending"
            }, ending=ending)  # fmt: skip
            run_id = depot.post()
            for _ in range(3):
                depot.work()
                depot.pass_time(100)
            row, lane = depot.run(run_id), depot.lane(run_id, "carry")
            last = depot.sql(
                "select type, epoch, data from history where run_id = :id order by n desc limit 1", id=run_id
            )
            said = depot.sql("select name, payload - 'run_id' as payload from signal order by id desc limit 1")
            told.append(
                (row.status, row.outcome, row.error, row.paused_at, lane.status, lane.attempts, lane.steps, last, said)
            )

    assert told[:2] == told[2:]


def test_the_best_offer_of_a_tenant_comes_first(depot: Depot) -> None:
    late, first, urgent = depot.post(), depot.post(), depot.post(priority=1)
    depot.sql("update offer set queued_at = queued_at - interval '1 s' where run_id = :id", id=first)
    depot.sql("update pull_line set head = head - interval '2 s'")

    assert [depot.take_one().run_id for _ in range(3)] == [urgent, first, late]
    assert depot.take() == []


def test_an_offer_for_later_is_not_taken_before_its_time(depot: Depot) -> None:
    run_id = depot.post(delay_s=50_000)
    assert depot.take() == []
    assert not depot.offer(run_id).due

    depot.pass_time(50_000)

    assert depot.take_one().run_id == run_id


def test_a_step_that_goes_on_is_offered_again_and_one_that_fails_comes_back_later(depot: Depot) -> None:
    run_id = depot.post(stages=2)
    assert depot.do(depot.take_one()) is StepOutcome.MOVED
    assert depot.run(run_id).status == "running"
    depot.carries = fails
    assert depot.do(depot.take_one()) is StepOutcome.RETRIED
    assert depot.take() == []

    depot.carries = lambda _: None
    depot.pass_time(100)

    assert depot.work() == [StepOutcome.DONE]
    assert depot.carried(run_id) == [0, 1]


def test_the_last_attempt_ends_the_run_with_its_cause(depot: Depot) -> None:
    run_id = depot.post()
    depot.carries = fails
    for _ in range(3):
        depot.work()
        depot.pass_time(100)

    ended = depot.run(run_id)
    assert (ended.status, ended.outcome, ended.error["message"]) == ("failed", "dead_letter", "it fell down")
    assert depot.lane(run_id, "carry").attempts == 2


def test_a_lost_worker_is_a_failed_attempt_and_the_last_one_ends_the_run(depot: Depot) -> None:
    run_id = depot.post()
    for attempt in range(3):
        turn = depot.take_one()
        assert turn.attempts == attempt
        depot.lose(turn)
        report = depot.ticks()
        assert report.lanes == {"lease_ran_out": 1}
        assert depot.do(turn) is Lost.OVERTAKEN
        depot.pass_time(100)

    assert (depot.run(run_id).outcome, depot.repairs(run_id, "carry")) == ("dead_letter", ["lease_ran_out"] * 3)
    assert depot.take() == []
    assert depot.carried(run_id) == []


def test_the_tick_leaves_alone_what_is_being_worked_on(depot: Depot) -> None:
    depot.post()
    turn = depot.take_one()
    assert depot.ticks().lanes == {}
    assert depot.do(turn) is StepOutcome.DONE


def test_many_lost_turns_are_found_batch_by_batch(depot: Depot) -> None:
    for _ in range(7):
        depot.post()
    for turn in depot.take(7):
        depot.lose(turn)
    depot.relay = depot.relay.model_copy(update={"tick_batch": 2})
    depot.ports = depot.ports_of(depot.store)

    assert depot.ticks().lanes == {"lease_ran_out": 7}


def test_what_has_ended_is_handed_in_before_the_tick_calls_it_lost(depot: Depot) -> None:
    """After an outage longer than a lease, the tick may be the first to find the database back."""
    ended, gone = depot.post(), depot.post()
    turns = {turn.run_id: turn for turn in depot.take(2)}
    for turn in turns.values():
        depot.lose(turn)
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        assert depot.do(turns[ended]) is StepOutcome.DONE

    depot.relay = depot.relay.model_copy(update={"tick_batch": 1})
    depot.ports = replace(depot.ports_of(depot.store), pause=pause)

    assert depot.ticks().lanes == {"lease_ran_out": 1}
    assert waited == [HANDS_IN_S], "once, however many batches there are"
    assert (depot.run(ended).outcome, depot.repairs(ended, "carry")) == ("done", [])
    assert depot.repairs(gone, "carry") == ["lease_ran_out"]


def test_a_tick_waits_for_nobody_if_nothing_looks_lost_or_its_time_is_over(depot: Depot) -> None:
    waited: list[float] = []
    depot.ports = replace(depot.ports, pause=waited.append, time_left_s=lambda: SPARE_S + 1)
    depot.post()
    turn = depot.take_one()
    depot.ticks()
    assert waited == []

    depot.lose(turn)
    depot.ticks()
    assert waited == [1.0]

    depot.pass_time(100)
    depot.lose(depot.take_one())
    depot.ports = replace(depot.ports, time_left_s=lambda: 1.0)
    assert depot.ticks().lanes == {"lease_ran_out": 1}
    assert waited == [1.0, 0.0]


def test_a_renewal_moves_the_lease_and_hears_of_a_cancel_and_a_pause(depot: Depot) -> None:
    run_id = depot.post()
    turn = depot.take_one()
    before = depot.lane(run_id, "carry").lease_until

    (renewed,) = depot.offers.renew([turn], 500)
    assert (renewed.cancel_at, renewed.paused) == (None, False)
    assert depot.lane(run_id, "carry").lease_until > before
    run.pause_run(depot.ports, ALICE, run_id)
    assert depot.offers.renew([turn], 500)[0].paused
    run.cancel_run(depot.ports, depot.parcel, ALICE, run_id)
    assert depot.offers.renew([turn], 500)[0].cancel_at is not None
    assert depot.offer(run_id).taken_at is not None
    depot.lose(turn)
    depot.ticks()

    assert depot.offers.renew([turn], 500) == []
    assert depot.run(run_id).status == "canceled"


def test_whoever_lost_a_turn_does_not_renew_it_for_its_successor(depot: Depot) -> None:
    run_id = depot.post()
    lost = depot.take_one()
    depot.lose(lost)
    depot.ticks()
    depot.pass_time(100)
    successor = depot.take_one()
    before = depot.lane(run_id, "carry").lease_until

    assert depot.offers.renew([lost], 500) == []

    assert depot.lane(run_id, "carry").lease_until == before
    assert len(depot.offers.renew([successor], 500)) == 1


def post_two(depot: Depot) -> UUID:
    run_id = depot.post()
    depot.sql(
        """insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, check_at, max_steps, class_id, priority)
           select gen_random_uuid(), run_id, tenant_id, kind, 'other', true, cursor, now(), 'infinity', 9, class_id, priority
           from lane where run_id = :id""",
        id=run_id,
    )
    return run_id


def test_the_end_of_one_lane_is_not_its_runs_while_another_holds_it(depot: Depot) -> None:
    run_id = post_two(depot)
    first, last = depot.take(2)

    assert depot.do(first) is StepOutcome.DONE
    assert (depot.run(run_id).finished_at, depot.endings(run_id)) == (None, [])

    assert depot.do(last) is StepOutcome.DONE
    assert (depot.run(run_id).status, depot.endings(run_id)) == ("succeeded", ["succeeded"])


def test_two_lanes_of_one_run_that_end_together_end_it_once(depot: Depot) -> None:
    run_id, other = post_two(depot), depot.post()

    assert do_together(depot.take(3), depot.parcel, depot.ports) == [StepOutcome.DONE] * 3

    assert (depot.run(run_id).status, depot.endings(run_id)) == ("succeeded", ["succeeded"])
    assert depot.endings(other) == ["succeeded"]
    assert len(depot.carried(run_id)) == 2


def test_a_cancel_of_what_nobody_has_taken_ends_it_at_once(depot: Depot) -> None:
    waiting, later = depot.post(), depot.post(delay_s=600)
    for run_id in (waiting, later):
        run.cancel_run(depot.ports, depot.parcel, ALICE, run_id)
        assert (depot.run(run_id).status, depot.offer(run_id)) == ("canceled", None)
        assert depot.ledger(run_id, "carry") == []
    assert depot.take() == []


def test_a_step_that_fails_after_the_cancel_is_canceled_and_not_tried_again(depot: Depot) -> None:
    runs = [depot.post(), depot.post()]
    for run_id, wait in zip(runs, (fails, lambda _: None), strict=True):
        turn = depot.take_one()
        run.cancel_run(depot.ports, depot.parcel, ALICE, run_id)
        depot.carries = wait
        depot.do(turn)
    assert [depot.run(run_id).status for run_id in runs] == ["canceled", "succeeded"]
    assert [depot.endings(run_id) for run_id in runs] == [["canceled"], ["succeeded"]]
    assert depot.take() == []


def test_what_is_paused_is_set_aside_and_taken_after_the_resume(depot: Depot) -> None:
    paused, other = depot.post(priority=1), depot.post()
    run.pause_run(depot.ports, ALICE, paused)

    assert depot.take_one().run_id == other
    assert depot.offer(paused).aside
    run.resume_run(depot.ports, ALICE, paused)
    assert depot.take_one().run_id == paused


def test_a_long_line_of_what_is_paused_is_set_aside_piece_by_piece(depot: Depot) -> None:
    """All at once it would take the whole time of the take, be rolled back, and be in the way of every later one."""
    first = depot.post()
    depot.sql(
        """with made as (
               insert into run (id, tenant_id, kind, status, params, check_at, paused_at)
               select gen_random_uuid(), :tenant, 'parcel', 'queued', '{}', 'infinity', now() from generate_series(1, 4000)
               returning id, tenant_id)
           insert into lane (id, run_id, tenant_id, kind, key, holds_run, cursor, next_due_at, check_at, max_steps, class_id,
                             priority)
           select gen_random_uuid(), id, tenant_id, 'parcel', 'carry', true, '{"stage": 0}', now(), 'infinity', 9, :class, 50
           from made""",
        tenant=ALICE, **{"class": CARTS},
    )  # fmt: skip

    aside = []
    while not (taken := depot.take()):
        aside.append(depot.value("select count(*) from offer where scheduled_for = 'infinity'"))
        assert len(aside) < 20

    assert [turn.run_id for turn in taken] == [first]
    assert aside[0] < 2_000
    assert all(later > before for before, later in pairwise(aside))


def test_a_retry_offers_the_next_epoch(depot: Depot) -> None:
    run_id = depot.post()
    run.cancel_run(depot.ports, depot.parcel, ALICE, run_id)
    run.retry_run(depot.ports, depot.parcel, ALICE, run_id)

    turn = depot.take_one()
    assert (turn.epoch, turn.run_epoch, turn.attempts) == (2, 2, 0)
    assert depot.do(turn) is StepOutcome.DONE
    assert depot.endings(run_id) == ["canceled", "succeeded"]


def test_a_retry_that_meets_an_active_twin_is_refused(depot: Depot) -> None:
    old = depot.post(key="the only one")
    run.cancel_run(depot.ports, depot.parcel, ALICE, old)
    depot.post(key="the only one")
    depot.post(BOB, key="the only one")

    with pytest.raises(Conflict) as refused:
        run.retry_run(depot.ports, depot.parcel, ALICE, old)

    assert refused.value.code == "already_active"
    assert depot.run(old).status == "canceled"


def test_a_deadline_takes_the_offer_away(depot: Depot) -> None:
    run_id = depot.post(time_limit_s=3600)
    depot.pass_deadline(run_id)
    depot.ticks()
    assert (depot.run(run_id).outcome, depot.offer(run_id)) == ("timed_out", None)


def test_a_turn_that_is_given_back_can_be_taken_at_once(depot: Depot) -> None:
    run_id = depot.post()
    turn = depot.take_one()
    depot.store.release(turn.baton, turn.token)
    assert depot.take_one().run_id == run_id


def test_a_closed_class_gives_nothing_and_an_unknown_queue_neither(depot: Depot) -> None:
    depot.post()
    depot.sql("update pull_class set is_open = false where id = :id", id=CARTS)
    assert depot.take() == []
    assert depot.offers.take("nowhere", 5, new_id(), 70, "w") == []
    depot.sql("update pull_class set is_open = true")
    assert len(depot.take()) == 1


def test_tenants_take_turns_whatever_they_have_waiting(depot: Depot) -> None:
    for _ in range(30):
        depot.post(ALICE, priority=1)
    for tenant in (BOB, CAROL):
        for _ in range(4):
            depot.post(tenant)

    taken = [depot.take_one().tenant_id for _ in range(12)]

    for tenant in (ALICE, BOB, CAROL):
        places = [n for n, each in enumerate(taken) if each == tenant]
        assert len(places) == 4
        assert max(b - a for a, b in pairwise(places)) == 3


def test_a_batch_is_shared_between_the_tenants_and_the_next_one_goes_on_after_it(depot: Depot) -> None:
    for tenant in (ALICE, BOB, CAROL):
        for _ in range(20):
            depot.post(tenant)
    counts = [Counter(turn.tenant_id for turn in depot.take(4)) for _ in range(3)]
    assert sum(counts, Counter()) == Counter({ALICE: 4, BOB: 4, CAROL: 4})


def test_a_tenant_at_its_cap_waits_and_the_others_do_not(depot: Depot) -> None:
    depot.sql("insert into pull_tenant (tenant_id, most_running) values (:t, 2)", t=ALICE)
    for _ in range(5):
        depot.post(ALICE)
    depot.post(BOB)

    turns = depot.take(10)
    assert Counter(turn.tenant_id for turn in turns) == Counter({ALICE: 2, BOB: 1})
    assert depot.take(10) == []
    depot.do(next(turn for turn in turns if turn.tenant_id == ALICE))

    assert [turn.tenant_id for turn in depot.take(10)] == [ALICE]
    assert depot.take(10) == []


def test_a_class_at_its_limit_waits_and_the_others_do_not(depot: Depot) -> None:
    depot.sql("update pull_class set most_running = 2 where id = :id", id=CARTS)
    for tenant in (ALICE, BOB):
        for priority in (1, 2, 3):
            depot.post(tenant, priority=priority)
    depot.post(BOB, **{"class": str(VANS)})

    turns = [turn for _ in range(6) for turn in depot.take(3)]
    assert Counter(turn.params.get("class", str(CARTS)) for turn in turns) == Counter({str(CARTS): 2, str(VANS): 1})
    depot.do(turns[0])
    depot.do(turns[1])
    depot.do(turns[2])
    assert len(depot.take(1)) + len(depot.take(5)) == 2


def test_a_cap_counts_what_was_taken_before_it_was_set(depot: Depot) -> None:
    for _ in range(4):
        depot.post()
    depot.take(2)
    depot.sql("insert into pull_tenant (tenant_id, most_running) values (:t, 3)", t=ALICE)
    assert len(depot.take(10)) == 1
    assert depot.take(10) == []


def test_a_limit_holds_for_all_lines_of_a_class_together(depot: Depot) -> None:
    depot.sql("update pull_class set most_running = 2 where id = :id", id=CARTS)
    for priority in (1, 2, 3, 4):
        depot.post(priority=priority)
    assert len(depot.take(10)) == 2
    assert depot.take(10) == []
