"""Guards jobs on Lambda: wakes name a queue and are always acknowledged, the tick tops them up, and no function takes what it
has no time for. And the end of a job that takes the next one with it, with Postgres killed in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from infra.local.postgres import Postgres
from shared.job_queue.build import JobFunction, longest_turn_s
from shared.job_queue.model import Finished, Word
from shared.kernel import db, sql
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.entry import wake_handler
from shared.kernel.offers import PgOffers
from shared.kernel.queue import Outgoing
from shared.kernel.settings import BadSettings
from shared.kernel.tick import tick
from shared.kernel.wake import read_wake
from tests.support.databases import ServerAdmin, as_user, scratch_server
from tests.support.house import ALICE, BOB
from tests.support.jobs import Office, a_taking, job_office
from tests.support.lambda_calls import FakeContext

WAKES = "baton-job"


class Sent:
    """A queue that only remembers."""

    def __init__(self) -> None:
        self.wakes: list[tuple[str | None, int]] = []
        self.breaks = False

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        assert queue == WAKES
        if self.breaks:
            raise OSError("no queue today")
        self.wakes += [(read_wake(each.body), each.delay_s) for each in messages]
        return []

    def is_empty(self, queue: str) -> bool:
        raise NotImplementedError

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:
        raise NotImplementedError

    def used(self) -> list[tuple[str | None, int]]:
        wakes, self.wakes = self.wakes, []
        return wakes


@pytest.fixture(scope="module")
def shared_office(postgres_server: ServerAdmin, template: str) -> Iterator[Office]:
    with job_office(postgres_server, template) as office:
        yield office


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def office(shared_office: Office, sent: Sent) -> Iterator[Office]:
    shared_office.empty()
    relay = shared_office.relay.model_copy(update={"wake_queue": WAKES})
    shared_office.ports = replace(shared_office.ports, queue=sent, relay=relay)
    yield shared_office
    shared_office.send_guests_home()


def invoke(office: Office, body: str | None = None, seconds: float = 900, longest_s: float = 855) -> Any:
    body = json.dumps({"v": 1, "queue": "default@lambda"}) if body is None else body
    handler = wake_handler(office.ports, Catalogue(office.job), "lambda:1", 60, longest_s)
    return handler({"Records": [{"messageId": "m1", "body": body}]}, FakeContext(left_ms=int(seconds * 1000)))


def test_a_job_for_lambda_wakes_its_queue_and_one_for_workers_nobody(office: Office, sent: Sent) -> None:
    office.define("slow", executor="worker")
    office.define("quick", executor="lambda")
    office.add(key="slow")
    assert sent.used() == []
    office.add(key="quick")
    assert sent.used() == [("default@lambda", 0)]


def test_a_wake_runs_what_is_due_and_nothing_of_the_workers(office: Office, sent: Sent) -> None:
    office.define("slow", executor="worker")
    office.define("quick", executor="lambda")
    slow, quick = office.add(key="slow"), [office.add(key="quick") for _ in range(3)]
    sent.used()

    assert invoke(office) == {"batchItemFailures": []}

    assert [office.seen(job).status for job in quick] == ["succeeded"] * 3
    assert office.seen(slow).status == "queued"
    assert office.attempts(quick[0])[0].worker_id == "lambda:1"
    # One more was woken for the second job; nothing is left at the end.
    assert sent.used() == [("default@lambda", 0)]


@pytest.mark.parametrize("body", ["", "{}", '{"v":2,"queue":"default"}', '{"v":1,"queue":"' + "x" * 300 + '"}', "null"])
def test_a_wake_that_says_nothing_is_acknowledged(office: Office, body: str) -> None:
    assert invoke(office, body) == {"batchItemFailures": []}


def test_a_wake_is_acknowledged_whatever_fails(office: Office, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    office.define("quick", executor="lambda")
    office.add(key="quick")
    sent.breaks = True

    def fail(*_: object) -> None:
        raise OSError("no database today")

    monkeypatch.setattr(PgOffers, "take", fail)
    assert invoke(office) == {"batchItemFailures": []}


def test_a_function_without_time_for_the_longest_takes_nothing_and_wakes_another(office: Office, sent: Sent) -> None:
    office.define("quick", executor="lambda")
    job = office.add(key="quick")
    sent.used()

    invoke(office, seconds=800)

    assert office.seen(job).status == "queued"
    assert sent.used() == [("default@lambda", 0)]


def test_what_a_cap_holds_back_wakes_nobody_in_circles(office: Office, sent: Sent) -> None:
    office.define("quick", executor="lambda", concurrency_limit=1)
    for _ in range(3):
        office.add(key="quick")
    assert len(PgOffers(office.store._engine).take("default@lambda", 1, new_id(), 60, "another")) == 1
    sent.used()

    invoke(office)

    assert sent.used() == []


def test_a_retry_is_woken_when_its_time_comes(office: Office, sent: Sent) -> None:
    office.define("quick", executor="lambda", max_attempts=2)
    job = office.add(key="quick")
    office.runner.ends = lambda *_: Finished(exit_code=1)
    sent.used()

    invoke(office)
    ((queue, delay_s),) = sent.used()
    assert (queue, 1 <= delay_s <= 20) == ("default@lambda", True)

    office.pass_time()
    office.runner.ends = lambda *_: Finished(exit_code=0)
    invoke(office)
    assert office.seen(job).status == "succeeded"


def test_the_tick_tops_wakes_up(office: Office, sent: Sent) -> None:
    office.define("quick", executor="lambda")
    office.define("off", executor="lambda", queue="idle", is_active=True)
    for tenant in (ALICE, BOB):
        for _ in range(8):
            office.add(tenant, key="quick")
    sent.used()
    office.ports = replace(office.ports, time_left_s=lambda: 60.0)

    tick(office.ports, Catalogue(office.job))

    assert sent.used() == [("default@lambda", 0)] * 10  # as many as are due, and no more than ten at once


def test_a_command_has_the_time_of_its_function_and_no_more(office: Office) -> None:
    office.define("quick", executor="lambda", timeout_seconds=840)
    given: list[float] = []

    def ends(_: object, __: object, timeout_s: float, ___: object) -> Finished:
        given.append(timeout_s)
        return Finished(exit_code=0)

    office.runner.ends = ends
    office.add(key="quick")
    invoke(office, seconds=300, longest_s=100)
    assert given[0] <= 285


def test_the_functions_time_says_what_is_too_long() -> None:
    assert JobFunction.from_env({}, "BATON_JOB_").timeout_s == 900
    assert longest_turn_s({"BATON_JOB_TIMEOUT_S": "300"}) == 255
    with pytest.raises(BadSettings, match="BATON_JOB_TIMEOUT_S"):
        longest_turn_s({"BATON_JOB_TIMEOUT_S": "901"})


# --- the end of one and the take of the next, in one flight ---


def test_the_end_of_a_job_takes_the_next(office: Office) -> None:
    office.define()
    first, second = office.add(), office.add()
    taking = a_taking()
    office.do_together([office.take_one()], taking)

    assert office.seen(first).status == "succeeded"
    assert [turn.run_id for turn in taking.taken] == [second]
    assert office.seen(second).status == "running"
    last = a_taking()
    office.do_together(taking.taken, last)
    assert (office.seen(second).status, last.taken) == ("succeeded", [])


def test_the_end_of_a_job_makes_room_under_its_cap_for_the_next(office: Office) -> None:
    office.define(concurrency_limit=1)
    first, second = office.add(), office.add()
    taking = a_taking(2)
    office.do_together([office.take_one()], taking)

    assert office.seen(first).status == "succeeded"
    assert [turn.run_id for turn in taking.taken] == [second]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_take_that_fails_takes_nothing_and_what_has_ended_ends_all_the_same(office: Office, jobs: int) -> None:
    """They share a transaction: what was rolled back with the take is committed by itself."""
    office.define()
    ended = [office.add() for _ in range(jobs)]
    waits, taking = office.add(), a_taking()
    turns = office.take(jobs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "TAKE_OFFERS", sa.text("select 1 / (cast(:most as integer) - cast(:most as integer))"))
        outcomes = office.do_together(turns, taking)

    assert (outcomes, taking.taken) == (["done"] * jobs, [])
    for job in ended:
        assert office.endings(job) == ["succeeded"]
        assert [each.status for each in office.attempts(job)] == ["succeeded"]
    assert office.seen(waits).status == "queued"


@pytest.mark.full
def test_postgres_killed_between_the_commits_loses_no_job_and_runs_none_twice_at_once(template: str) -> None:
    """The last of the transactions waits for the disk. It is held up here, and the server killed: what was committed
    before it may be lost or kept, both are whole, and nobody was told of the take."""
    with scratch_server({"fsync": "on", "wal_writer_delay": "10s", "synchronous_commit": "on"}) as server:
        assert isinstance(server, Postgres)
        admin = ServerAdmin(server.url())
        try:
            with job_office(admin, admin.create_template()) as office:
                _killed_between(office, server)
        finally:
            admin.close()


def _killed_between(office: Office, server: Postgres) -> None:
    office.define()
    jobs = [office.add() for _ in range(5)]
    turns, taking = office.take(2), a_taking(2)
    held_up = "select pg_advisory_xact_lock(4711), pg_logical_emit_message(true, 'baton', '')"
    blocker = db.connect_engine(as_user(office.url, "baton_worker"), pool="none")
    hold = blocker.connect()
    with pytest.MonkeyPatch.context() as patch:
        hold.execute(sa.text("select pg_advisory_lock(4711)"))
        patch.setattr(sql, "ON_DISK", sa.text(held_up))
        answers: list[object] = []
        working = threading.Thread(target=lambda: answers.extend(office.do_together(turns, taking)), daemon=True)
        working.start()
        for _ in range(200):
            waiting = office.value(
                "select count(*) from pg_locks where database = (select oid from pg_database where datname = current_database()) and locktype = 'advisory' and not granted"
            )
            if waiting:
                break
            threading.Event().wait(0.05)
        assert waiting == 1
        assert answers == []  # nobody knows of the take yet
        server.kill()
        hold.invalidate()
        server.restart()
        patch.undo()
        working.join(60)
    for engine in office._own_engines:
        engine.dispose()
    assert len(answers) == 2
    assert set(answers) <= {"done", "given_back"}
    while turns := [*taking.taken, *office.take()]:
        taking.taken.clear()
        for each in turns:
            office.do(each)
    for job in jobs:
        lane = office.sql("select * from lane where run_id = :id", id=job)[0]
        if lane.status == "active":  # taken by nobody who knows: its lease tells
            office.sql("update lane set lease_until = now() - interval '1 s' where id = :id", id=lane.id)
    office.ticks()
    office.pass_time()
    office.work()
    for job in jobs:
        assert office.endings(job) == ["succeeded"]
        assert [each.attempt_no for each in office.attempts(job)] == list(range(1, len(office.attempts(job)) + 1))


def test_a_heartbeat_hears_of_a_cancel_on_lambda(office: Office) -> None:
    office.define("quick", executor="lambda")
    job = office.add(key="quick")

    def ends(_: object, __: object, ___: float, beat: Any) -> Finished:
        office.sql("update lane set cancel_at = now() where run_id = :id", id=job)
        return Finished(exit_code=None, canceled=beat(1, "", "") is Word.CANCEL)

    office.runner.ends = ends
    invoke(office)
    assert office.seen(job).status == "canceled"
