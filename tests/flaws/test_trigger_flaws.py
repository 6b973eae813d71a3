"""Guards against the flaws that triggers and schedulers are born with: each test is named for one, and a mutant puts it back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from shared.job_queue.model import Finished
from shared.kernel.clock import new_id
from shared.kernel.tick import tick
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


def test_a_change_that_a_waiting_job_will_see_needs_no_other(office: TriggerOffice) -> None:
    trigger = office.trigger(payload_template=WHAT)
    for folder in ("/a", "/a", "/b", "/a"):
        office.happens({"folder": folder})
    office.told()
    assert office.statuses(trigger) == ["started", "joined", "started", "joined"]
    assert sorted(job.payload["what"] for job in office.jobs()) == ["/a", "/b"]


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
        assert office.value("select next_fire_at > now() from job_triggers where id = :id", id=trigger)
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
