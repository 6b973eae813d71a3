"""Guards against the flaws that triggers and schedulers are born with: each test is named for one, and a mutant puts it back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from shared.job_queue.model import Finished
from shared.job_queue.triggers import store
from shared.job_queue.triggers.fire import Firing, fire, tell
from shared.job_queue.triggers.model import Cause
from shared.kernel.clock import new_id
from shared.kernel.db import jsonb
from shared.kernel.model import Signal
from shared.kernel.signals import dispatch
from shared.kernel.tick import tick
from tests.integration.test_job_starts import driver
from tests.support.databases import ServerAdmin
from tests.support.house import ALICE, BOB
from tests.support.triggers import TriggerOffice, trigger_office

WHAT = {"what": "{{event.folder}}"}
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="session")
def shared_office(postgres_server: ServerAdmin, template: str) -> Iterator[TriggerOffice]:
    with trigger_office(postgres_server, template) as office:
        yield office


@pytest.fixture
def office(shared_office: TriggerOffice) -> Iterator[TriggerOffice]:
    shared_office.empty()
    yield shared_office
    shared_office.send_guests_home()


# 3c: dedupe drops needed work


def test_a_change_during_a_running_job_is_worked_on_by_one_more(office: TriggerOffice) -> None:
    """It may have read that folder already: deduped against it, the change would never be seen."""
    trigger = office.trigger(payload_template=WHAT, dedupe_window_seconds=60)
    office.happens({"folder": "/a"})
    office.told()
    (turn,) = office.take()
    for _ in range(3):
        office.happens({"folder": "/a"})
    office.told()
    assert office.statuses(trigger) == ["started", "waiting", "joined", "joined"]
    office.ticks()
    assert len(office.jobs()) == 1  # not beside it

    office.do(turn)
    office.ticks()
    first, second = office.jobs()
    assert (first.status, second.status, second.payload) == ("succeeded", "queued", {"what": "/a"})
    assert second.scheduled_for >= first.started_at + timedelta(seconds=59)  # the window holds
    assert [each.run_id for each in office.firings(trigger)] == [first.id, second.id, second.id, second.id]
    office.happens({"folder": "/a"})
    office.told()
    assert office.statuses(trigger)[-1] == "joined"
    assert len(office.jobs()) == 2
    office.pass_time()
    office.work()
    assert [job.status for job in office.jobs()] == ["succeeded", "succeeded"]


def test_a_job_of_another_definition_is_not_joined(office: TriggerOffice) -> None:
    """It waits with the same payload, and does something else: the trigger was pointed at another job meanwhile."""
    trigger = office.trigger(payload_template=WHAT)
    office.happens({"folder": "/a"})
    office.told()
    office.work()
    office.happens({"folder": "/a"})  # within the window: its job waits for the end of it
    office.told()
    another = office.define("another")
    office.sql("update job_triggers set definition_id = :another where id = :id", another=another, id=trigger)
    for _ in range(2):
        office.happens({"folder": "/a"})
        office.told()
    assert office.statuses(trigger) == ["started", "started", "started", "joined"]
    assert [(job.definition_key, job.status) for job in office.jobs()] == [
        ("test", "succeeded"), ("test", "queued"), ("another", "queued"),
    ]  # fmt: skip


def test_what_joined_a_firing_that_is_refused_is_refused_with_it(office: TriggerOffice) -> None:
    """No job does it: `joined` would say that one does."""
    trigger = office.trigger(payload_template=WHAT)
    office.happens({"folder": "/a"})
    office.told()
    (turn,) = office.take()
    for _ in range(2):
        office.happens({"folder": "/a"})
    office.told()
    assert office.statuses(trigger) == ["started", "waiting", "joined"]
    office.do(turn)
    office.sql("update job_definitions set is_active = false, version = version + 1")
    try:
        office.ticks()
    finally:
        office.sql("update job_definitions set is_active = true, version = version + 1")
    assert office.statuses(trigger) == ["started", "refused", "refused"]
    assert {each.error["code"] for each in office.firings(trigger)[1:]} == {"inactive_definition"}


def test_a_change_that_a_waiting_job_will_see_needs_no_other(office: TriggerOffice) -> None:
    trigger = office.trigger(payload_template=WHAT)
    for folder in ("/a", "/a", "/b", "/a"):
        office.happens({"folder": folder})
    office.told()
    assert office.statuses(trigger) == ["started", "joined", "started", "joined"]
    assert sorted(job.payload["what"] for job in office.jobs()) == ["/a", "/b"]


@pytest.mark.parametrize("seed", range(6))
def test_events_that_are_told_together_become_what_they_become_one_by_one(office: TriggerOffice, seed: int) -> None:
    """Of folders whose job waits, runs, has just ended or was never there; some cannot be a job."""
    chance = Random(seed)
    triggers = {
        tenant: office.trigger(tenant, payload_template=WHAT, dedupe_window_seconds=window)
        for window in [chance.choice([0, 300])]
        for tenant in (ALICE, BOB)
    }
    for tenant in triggers:
        for folder in ("/waits", "/runs", "/ended"):
            office.happens({"folder": folder}, tenant=tenant)
    office.told()
    for turn in office.take(6) + office.take(6):
        if turn.params["payload"]["what"] == "/ended":
            office.do(turn)
        elif turn.params["payload"]["what"] == "/waits":
            office.store.release(turn.baton, turn.token)
    folders = [
        {"folder": "/waits"},
        {"folder": "/runs"},
        {"folder": "/ended"},
        {"folder": "/new"},
        {"folder": "-x"},
        {},
    ]
    events = chance.choices(folders, k=12)
    for event in events:
        office.happens(event, tenant=ALICE)
        office.told()
    for event in events:
        office.happens(event, tenant=BOB)
    office.told()

    def became(tenant: UUID) -> list[Any]:
        lines = sorted(office.firings(triggers[tenant]), key=lambda line: line.signal_id)
        runs = [line.run_id for line in lines if line.status == "started"]
        waiting = [line.id for line in lines if line.status == "waiting"]
        return [
            (
                line.status,
                line.reason,
                line.error and line.error["code"],
                line.run_id and runs.index(line.run_id),
                line.waits_for and runs.index(line.waits_for),
                line.joined_to and waiting.index(line.joined_to),
                line.payload,
            )
            for line in lines
        ]

    assert became(BOB) == became(ALICE)
    assert {line[0] for line in became(BOB)} >= {"started", "joined"}


def test_many_events_are_told_in_few_flights(office: TriggerOffice) -> None:
    office.trigger(payload_template=WHAT)
    line, flights = driver(office), []
    for many in (2, 100):
        for n in range(many):
            office.happens({"folder": f"/{many}/{n}"})
        before = line.flights
        office.told()
        flights.append(line.flights - before)
    assert len(office.jobs()) == 102
    assert flights[0] == flights[1] <= 15


def test_an_event_that_is_no_job_is_noted_once_though_it_is_told_twice(office: TriggerOffice) -> None:
    """The API tells it at once, and the dispatcher once more."""
    trigger = office.trigger(payload_template={"what": ["{{event.folder}}"]})
    office.happens({"no": "folder"})
    for _ in range(2):
        office.sql("update signal set dispatched_at = null where name = 'provider.folder.updated'")
        office.told()
    assert office.statuses(trigger) == ["refused"]
    assert office.value("select count(*) from hearing") == 0


# 3d: a window without a mechanism


def test_an_event_that_is_delivered_again_fires_once_however_fast_its_job_was(office: TriggerOffice) -> None:
    trigger = office.trigger(payload_template=WHAT, dedupe_window_seconds=0)
    assert office.happens({"folder": "/a"}, event_id="e1")["outcome"] == "taken"
    office.told()
    office.work()
    assert office.happens({"folder": "/a"}, event_id="e1")["outcome"] == "again"
    # And if the dispatcher itself were to tell it twice:
    office.sql("update signal set dispatched_at = null where name = 'provider.folder.updated'")
    office.told()
    assert office.statuses(trigger) == ["started"]
    assert len(office.jobs()) == 1


def test_events_within_the_window_share_a_job_that_begins_when_it_is_over(office: TriggerOffice) -> None:
    trigger = office.trigger(payload_template=WHAT, dedupe_window_seconds=120)
    office.happens({"folder": "/a"})
    office.told()
    office.work()
    for _ in range(3):
        office.happens({"folder": "/a"})
        office.told()
    first, second = office.jobs()
    assert office.statuses(trigger) == ["started", "started", "joined", "joined"]
    assert timedelta(seconds=115) < second.scheduled_for - first.started_at < timedelta(seconds=125)
    assert office.take() == []


# 3g: fires lost and doubled


def test_a_schedule_fires_once_per_due_time_under_ticks_at_once_and_after_an_outage(office: TriggerOffice) -> None:
    first = office.now().replace(second=0, microsecond=0) - 40 * MINUTE
    triggers = [
        office.trigger(cron_expr="* * * * *", catch_up=policy, overlap="queue", catch_up_most=5, next_fire_at=first)
        for policy in ("skip", "once", "all")
    ]
    elsewhere = [office.another() for _ in range(3)]
    catalogue = office.catalogue
    ticking = [threading.Thread(target=tick, args=(ports, catalogue)) for ports in elsewhere]
    for each in ticking:
        each.start()
    for each in ticking:
        each.join()
    office.ticks()

    for trigger in triggers:
        seen = [
            at
            for each in office.firings(trigger)
            for at in (each.fire_at.astimezone(UTC) + n * MINUTE for n in range(each.due_count))
        ]
        assert seen == [first + n * MINUTE for n in range(len(seen))]
        assert 41 <= len(seen) <= 43
        next_at = office.value("select next_fire_at from job_triggers where id = :id", id=trigger)
        assert next_at == first + len(seen) * MINUTE
    assert office.statuses(triggers[0])[0] == "missed"
    assert office.statuses(triggers[1])[0] == "superseded"
    assert office.statuses(triggers[2])[:2] == ["over_cap", "started"]


def test_a_due_time_that_a_killed_tick_had_begun_with_is_fired_by_the_next(office: TriggerOffice) -> None:
    from shared.job_queue.triggers.fire import TriggerPoint
    from shared.kernel.points import watch_points

    due = office.now().replace(second=0, microsecond=0)
    trigger = office.trigger(cron_expr=f"{due.minute} * * * *", next_fire_at=due)

    class Killed(BaseException):
        pass

    for at in (TriggerPoint.LOCKED, TriggerPoint.NOTED, TriggerPoint.ADVANCED, TriggerPoint.COMMITTED):
        done = len(office.jobs())

        def die(name: str, at: TriggerPoint = at) -> None:
            if name == at:
                raise Killed

        watch_points(die)
        try:
            with pytest.raises(Killed):
                office.ticks()
        finally:
            watch_points(None)
        assert len(office.jobs()) == done + (at is TriggerPoint.COMMITTED)
    office.ticks()
    assert office.statuses(trigger) == ["started"]
    assert len(office.jobs()) == 1


# 3h is guarded by tests/unit/test_trigger_cron.py; here the tick uses the same engine as the preview


def test_the_time_that_does_not_exist_in_spring_is_kept_by_the_tick(office: TriggerOffice) -> None:
    trigger = office.trigger(
        cron_expr="30 2 * * *",
        timezone="America/New_York",
        max_lateness_seconds=604_800,
        next_fire_at=datetime(2026, 3, 7, 7, 30, tzinfo=UTC),
    )
    office.ticks()
    missed = office.firings(trigger)[0]
    assert (missed.reason, missed.fire_at) == ("too_late", datetime(2026, 3, 7, 7, 30, tzinfo=UTC))
    days = (office.now() - missed.fire_at).days
    assert sum(each.due_count for each in office.firings(trigger)) in {days, days + 1}


# 3i: a lock that a frozen process keeps


def test_a_frozen_scheduler_holds_up_nothing_but_the_row_in_its_hands(office: TriggerOffice) -> None:
    due = office.now().replace(second=0, microsecond=0)
    held, free = (office.trigger(cron_expr=f"{due.minute} * * * *", next_fire_at=due) for _ in range(2))
    with office.locking(
        "select pg_advisory_lock_shared(0), id from job_triggers where id = :id for no key update", id=held
    ):
        office.ticks(office.another())
        assert (office.statuses(held), office.statuses(free)) == ([], ["started"])
    office.ticks()
    assert (office.statuses(held), office.statuses(free)) == (["started"], ["started"])


# 3j: an event lost between its transaction and its triggers


def test_an_accepted_event_fires_though_whoever_accepted_it_died(office: TriggerOffice) -> None:
    trigger = office.trigger(payload_template=WHAT)
    office.happens({"folder": "/a"})  # and the process is gone: nobody was told
    assert office.jobs() == []
    office.ticks()
    assert office.statuses(trigger) == ["started"]


def test_what_happened_before_a_trigger_was_made_or_switched_on_does_not_fire_it(office: TriggerOffice) -> None:
    office.happens({"folder": "/old"})
    trigger = office.trigger(payload_template=WHAT)
    office.told()
    assert office.firings(trigger) == []
    office.happens({"folder": "/new"})
    office.happens({"folder": "/other"}, tenant=BOB)
    office.told()
    assert [job.payload["what"] for job in office.jobs()] == ["/new"]


def test_one_trigger_that_cannot_start_its_job_holds_up_no_other(office: TriggerOffice) -> None:
    bad = office.trigger(payload_template={"n": "{{event.folder}}"})
    good = office.trigger(payload_template=WHAT)
    office.happens({"folder": "/a"})
    office.told()
    (firing,) = office.firings(bad)
    assert (firing.status, firing.error["code"]) == ("refused", "bad_payload")
    assert office.statuses(good) == ["started"]
    assert office.value("select count(*) from hearing") == 0


# 3n is guarded by tests/unit/test_trigger_template.py; here what an event carries is not taken for a template or an option


def test_what_an_event_carries_is_a_value_and_nothing_else(office: TriggerOffice) -> None:
    trigger = office.trigger(payload_template=WHAT)
    for attack in ("{{event.folder}}", "${HOME}", "'; drop table run; --"):
        office.happens({"folder": attack})
    office.happens({"folder": "--config=/etc/passwd"})
    office.told()
    assert [job.payload["what"] for job in office.jobs()] == ["{{event.folder}}", "${HOME}", "'; drop table run; --"]
    assert office.statuses(trigger) == ["started", "started", "started", "refused"]


# Chains


def test_jobs_follow_jobs_and_a_circle_ends(office: TriggerOffice) -> None:
    after = office.trigger(event_name="job.succeeded", event_filter={"definition_key": "test"}, dedupe_window_seconds=0)
    other = office.trigger(event_name="run.failed", payload_template={"what": "{{event.definition_key}}"})
    office.add()
    for _ in range(4):
        office.work()
        office.told()
    assert office.statuses(after) == ["started", "loop"]
    assert len(office.jobs()) == 2
    office.runner.ends = lambda *_: Finished(exit_code=1)
    office.sql("update job_triggers set is_enabled = false where id = :id", id=after)
    office.add(ALICE)
    for _ in range(3):
        office.work()
        office.pass_time()
    office.told()
    assert office.statuses(other) == ["started"]
    assert office.jobs()[-1].payload == {"what": "test"}
    assert office.jobs()[-1].source_ref.startswith(f"trigger:{other}/")
    assert new_id() != other


def test_a_run_that_a_job_has_started_is_part_of_its_circle(office: TriggerOffice) -> None:
    """Guards that a trigger whose job starts a run, whose end or word starts the trigger, goes round once; and that an event
    from outside that only names such a run is no part of it."""
    after = office.trigger(event_name="tally.succeeded", dedupe_window_seconds=0)
    word = office.trigger(event_name="tally.ready", dedupe_window_seconds=0)
    another_word = office.trigger(event_name="images.ingest.completed", dedupe_window_seconds=0)
    outside = office.trigger(event_name="somebody.says", dedupe_window_seconds=0)

    def ended(name: str, run_id: UUID, source_ref: str | None) -> None:
        office.sql(
            """insert into run (id, tenant_id, kind, status, params, source, source_ref, finished_at, outcome, check_at)
               values (:id, :t, 'tally', 'succeeded', '{}', 'job', :ref, now(), 'done', 'infinity')""",
            id=run_id, t=ALICE, ref=source_ref,
        )  # fmt: skip
        said = {"run_id": str(run_id), "kind": "tally"}
        if name == "somebody.says":
            office.happens(said, name)
            return
        office.sql(
            "insert into signal (tenant_id, name, payload) values (:t, :n, cast(:p as jsonb))",
            t=ALICE, n=name, p=jsonb(said),
        )  # fmt: skip

    def job_of(trigger: UUID) -> str:
        return str(
            office.value("select run_id from trigger_firings where trigger_id = :t and run_id is not null", t=trigger)
        )

    by_hand = str(office.add())
    circles = {"run.succeeded": after, "tally.ready": word, "images.ingest.completed": another_word}
    for name, trigger in {**circles, "somebody.says": outside}.items():
        ended(name, new_id(), by_hand)
        office.told()
        assert office.statuses(trigger) == ["started"]
        ended(name, new_id(), job_of(trigger))
        office.told()
    assert [office.statuses(each)[1] for each in circles.values()] == ["loop"] * 3
    assert office.statuses(outside) == ["started", "joined"]


# Overlap


def test_a_due_time_while_the_job_before_it_runs_is_skipped_or_queued(office: TriggerOffice) -> None:
    due = office.now().replace(second=0, microsecond=0)
    skips = office.trigger(cron_expr="* * * * *", overlap="skip", next_fire_at=due - MINUTE)
    office.ticks()
    assert office.statuses(skips)[:2] == ["started", "overlap"]
    office.sql("update job_triggers set is_enabled = false, next_fire_at = null where id = :id", id=skips)
    queues = office.trigger(cron_expr="* * * * *", overlap="queue", next_fire_at=due - MINUTE)
    office.ticks()
    assert office.statuses(queues)[:2] == ["started", "waiting"]
    office.work()
    office.ticks()
    assert office.statuses(queues)[:2] == ["started", "started"]
    assert all(each.payload is None for each in office.firings(queues)[:2])


@pytest.mark.parametrize(("overlap", "said"), [("skip", "overlap"), ("queue", "waiting")])
@pytest.mark.parametrize("times", [1, 12])
def test_a_job_that_runs_is_not_forgotten_for_those_that_were_run_by_hand(
    office: TriggerOffice, overlap: str, said: str, times: int
) -> None:
    """They are newer and have ended; the schedule's own still runs, and is not joined by another."""
    due = office.now().replace(second=0, microsecond=0)
    trigger = office.trigger(cron_expr=f"{due.minute} {due.hour} * * *", overlap=overlap, next_fire_at=due)
    office.ticks()
    (running,) = office.take()
    for _ in range(times):
        by_hand(office, trigger)
        (quick,) = office.take()
        office.do(quick)
    assert [job.status for job in office.jobs()] == ["running", *["succeeded"] * times]
    office.sql("update trigger_firings set fire_at = fire_at - interval '1 day' where cause = 'schedule'")
    office.due_since(trigger, due)
    office.ticks()
    assert [each.reason or each.status for each in office.firings(trigger) if each.cause == "schedule"] == [
        "started",
        said,
    ]
    assert len(office.jobs()) == 1 + times
    office.do(running)


def test_a_job_that_was_run_by_hand_is_not_forgotten_for_newer_ones(office: TriggerOffice) -> None:
    due = office.now().replace(second=0, microsecond=0)
    trigger = office.trigger(cron_expr=f"{due.minute} {due.hour} * * *", overlap="skip", next_fire_at=due + MINUTE)
    by_hand(office, trigger)
    (running,) = office.take()
    for _ in range(12):
        by_hand(office, trigger)
        (quick,) = office.take()
        office.do(quick)
    office.due_since(trigger, due)
    office.ticks()
    assert office.statuses(trigger)[0] == "overlap"
    office.do(running)


def test_an_event_meets_the_job_that_runs_whatever_was_run_by_hand_since(office: TriggerOffice) -> None:
    trigger = office.trigger(dedupe_window_seconds=0)
    office.happens()
    office.told()
    (running,) = office.take()
    for _ in range(12):
        by_hand(office, trigger)
        (quick,) = office.take()
        office.do(quick)
    office.happens()
    office.told()
    assert office.statuses(trigger)[-1] == "waiting"
    by_hand(office, trigger)
    office.happens()
    office.told()
    last = office.firings(trigger)[-1]
    assert (last.status, last.run_id) == ("joined", office.jobs()[-1].id), (
        "nobody has begun with it: it will see the change"
    )
    office.do(running)


def by_hand(office: TriggerOffice, trigger: UUID) -> None:
    with office.ports.store.begin(ALICE) as tx:
        (row,) = tx.read(store.LOCK_TRIGGER, {"id": trigger, "tenant_id": ALICE})
        about = Cause(event={}, schedule={})
        asked: Any = {"cause": "manual", "about": about, "fire_at": row["now"], "now": row["now"]}
        fired = fire(tx, office.ports, office.job, Firing(trigger=store.trigger_of(row), **asked))
    assert fired is not None
    assert fired.status == "started"


def test_no_more_due_times_wait_than_may(office: TriggerOffice) -> None:
    due = office.now().replace(second=0, microsecond=0)
    trigger = office.trigger(cron_expr="* * * * *", catch_up="all", catch_up_most=2, next_fire_at=due - 9 * MINUTE)
    office.ticks()

    assert office.statuses(trigger).count("started") == 1
    assert office.statuses(trigger).count("waiting") == 2
    assert office.statuses(trigger)[-1] == "over_cap"


def test_what_happened_before_a_trigger_was_switched_on_again_starts_nothing(office: TriggerOffice) -> None:
    """It was on when the event was written down for it, and again when it is told; but not all the time between."""
    trigger = office.trigger()
    office.happens()
    looks = iter([True])
    dispatch(office.ports, office.catalogue, lambda: next(looks, False))
    assert len(office.sql("select * from hearing")) == 1
    office.sql("update job_triggers set active_since = now() where id = :id", id=trigger)
    office.told()

    assert office.statuses(trigger) == ["switched_off"]
    assert office.jobs() == []


def test_an_event_that_was_not_heard_before_its_trigger_was_switched_off_says_so(office: TriggerOffice) -> None:
    """And only if it was meant for it. Told twice, it is one line."""
    trigger = office.trigger(event_filter={"folder": "/a"})
    office.happens({"folder": "/a"})
    office.happens({"folder": "/b"})
    looks = iter([True])
    dispatch(office.ports, office.catalogue, lambda: next(looks, False))
    office.sql("update job_triggers set is_enabled = false where id = :id", id=trigger)
    (signal, _) = office.sql("select id, tenant_id, name, payload, at from signal order by id")
    with office.ports.store.begin(ALICE) as tx:
        tell(tx, office.ports, office.job, str(trigger), [Signal(**vars(signal))])
    office.told()

    assert office.statuses(trigger) == ["switched_off"]
    assert office.jobs() == []
    assert office.sql("select * from hearing") == []


def test_a_worker_that_was_killed_is_not_listed_for_ever(office: TriggerOffice) -> None:
    """One that ends takes its line along. The tick that keeps the time of schedules keeps that of these too."""
    office.sql(
        """insert into job_workers (worker_id, hostname, last_seen_at)
           values ('killed', 'a', now() - interval '8 days'), ('away', 'b', now() - interval '6 days')"""
    )
    office.ticks()

    assert [row.worker_id for row in office.sql("select worker_id from job_workers where hostname in ('a', 'b')")] == [
        "away"
    ]
    office.sql("delete from job_workers where worker_id = 'away'")
