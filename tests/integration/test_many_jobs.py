"""Guards jobs in numbers: many are enqueued by one statement, and many ends are handed in by one flight, each judged by itself."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.job_queue.model import Finished
from shared.job_queue.ports import JobMetric
from shared.job_queue.steps import JobKind, job_kind
from shared.job_queue.worker import Worker
from shared.kernel import db, run
from shared.kernel.catalogue import Catalogue
from shared.kernel.errors import Refused
from shared.kernel.metrics import Metric, NoMeter
from shared.kernel.model import By
from shared.kernel.offers import PgOffers
from shared.kernel.store import PgStore
from tests.integration.test_job_starts import change, driver
from tests.integration.test_workers import wait_until
from tests.races.test_unknown_commits import lines
from tests.support.databases import ServerAdmin, as_user
from tests.support.house import ALICE, BOB
from tests.support.jobs import Office, a_taking, job_office

BY = By(source="api")
TEST = {"definition_key": "test"}


@pytest.fixture(scope="module")
def shared_office(postgres_server: ServerAdmin, template: str) -> Iterator[Office]:
    with job_office(postgres_server, template) as office:
        yield office


@pytest.fixture
def office(shared_office: Office) -> Iterator[Office]:
    shared_office.empty()
    shared_office.runner.ends = lambda *_: Finished(exit_code=0)
    yield shared_office
    shared_office.send_guests_home()


def start(
    office: Office, *asked: dict[str, Any], kind: Any = None, tenant: UUID = ALICE
) -> list[run.Started | Refused]:
    return run.start_runs(office.ports, kind or office.job, tenant, asked, BY)


def ids(started: list[run.Started | Refused]) -> list[UUID | str]:
    return [each.code if isinstance(each, Refused) else each.run_id for each in started]


def test_many_are_enqueued_in_one_flight_and_look_as_if_one_by_one(office: Office) -> None:
    office.define()
    kind: JobKind = office.job
    alone = run.start_run(office.ports, kind, ALICE, {**TEST, "payload": {"n": 1}}, BY)
    line = driver(office)

    before = line.flights
    (many, delayed) = ids(
        start(office, {**TEST, "payload": {"n": 1}}, {**TEST, "scheduled_for": "2026-01-01T00:00:00Z"}, kind=kind)
    )

    assert line.flights - before == 2, "and one to ask for the time"
    rows = {
        table: office.sql(
            f"""select to_jsonb(t) - '{{id,run_id,lane_id,created_at,updated_at,next_due_at,sent_at,check_at,queued_at,scheduled_for,at}}'::text[]
                as body from {table} t where {key} = any(cast(:ids as uuid[])) order by {key} = cast(:first as uuid)""",
            ids=[str(alone), str(many)], first=str(alone),
        )
        for table, key in (("run", "id"), ("lane", "run_id"), ("offer", "run_id"), ("history", "run_id"))
    }  # fmt: skip
    for table, (one, other) in rows.items():
        assert one.body == other.body, table
    assert len(office.take(5)) == 3
    assert office.value("select count(*) from run where id = :id", id=delayed) == 1


def test_what_is_for_later_waits_and_what_is_refused_leaves_nothing(office: Office) -> None:
    office.define()
    later = office.value("select to_char(now() + interval '2 h', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')")

    first, bad, waits, unknown = ids(
        start(office, TEST, {**TEST, "payload": {"n": "x"}}, {**TEST, "scheduled_for": later}, {"definition_key": "y"})
    )

    assert (bad, unknown) == ("bad_payload", "unknown_definition")
    assert [turn.run_id for turn in office.take(5)] == [first]
    assert {row.id for row in office.sql("select id from run")} == {first, waits}
    assert not office.value("select due from offer where run_id = :id", id=waits)


def test_many_are_taken_in_the_order_in_which_they_were_asked_for(office: Office) -> None:
    office.define()
    jobs = ids(start(office, *[TEST] * 12))

    assert [office.take_one().run_id for _ in jobs] == jobs


def test_of_one_key_one_is_made(office: Office) -> None:
    office.define()
    there = office.add(dedupe_key="a")

    started = start(office, {**TEST, "dedupe_key": "b"}, {**TEST, "dedupe_key": "a"}, {**TEST, "dedupe_key": "b"})
    elsewhere = start(office, {**TEST, "dedupe_key": "a"}, tenant=BOB)

    made, found, twin = started
    assert isinstance(made, run.Started)
    assert (found, twin) == (run.Started(there, already=True), run.Started(made.run_id, already=True))
    assert isinstance(elsewhere[0], run.Started)
    assert not elsewhere[0].already


class Enqueued(NoMeter):
    def __init__(self) -> None:
        self.jobs = 0.0

    def count(self, metric: str, value: float = 1, /, **_: str) -> None:
        self.jobs += value if metric == JobMetric.ENQUEUED else 0


def test_an_outdated_definition_is_read_again_and_each_job_is_counted_once(office: Office) -> None:
    definition = office.define()
    meter = Enqueued()
    kind = job_kind(replace(office.job.jobs.ports, meter=meter))
    start(office, TEST, kind=kind)
    change(office, definition, timeout_seconds=77)

    jobs = ids(start(office, TEST, TEST, kind=kind))
    change(office, definition, timeout_seconds=78)
    jobs.append(run.start_run(office.ports, kind, ALICE, TEST, BY))

    assert [office.seen(job).version for job in jobs if isinstance(job, UUID)] == [2, 2, 3]
    assert meter.jobs == 4


@pytest.mark.parametrize("happened", [True, False])
def test_many_whose_answer_is_lost_are_there_once(office: Office, happened: bool) -> None:
    office.define()
    kind: JobKind = office.job
    with lines(int(sa.make_url(office.url).port or 0)) as relay:
        through = sa.make_url(office.url).set(port=relay.port).render_as_string(hide_password=False)
        ports = office.ports_of(PgStore(office.engine(url=through, name="cut")))
        run.start_runs(ports, kind, ALICE, [TEST], BY)
        if happened:
            relay.lose_next_answer()
        else:
            office.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'cut'"
            )
        run.start_runs(ports, kind, ALICE, [TEST] * 3, BY)

    for table in ("run", "offer", "history"):
        assert office.value(f"select count(*) from {table}") == 4


# --- ends ---


def test_many_end_in_one_flight_each_for_itself(office: Office) -> None:
    """Of two tenants; one was taken over meanwhile, one was canceled meanwhile and fails, one prints what cannot be kept."""
    office.define(max_attempts=1)
    jobs = [office.add(tenant) for tenant in (ALICE, ALICE, ALICE, ALICE, BOB, BOB)]
    turns = {turn.run_id: turn for turn in [*office.take(6), *office.take(6)]}
    fine, lost, canceled, nul, bobs, fails = jobs
    office.sql("update lane set claim_token = gen_random_uuid() where run_id = :id", id=lost)
    office.sql("update lane set cancel_at = now() where run_id = :id", id=canceled)

    def ends(_: object, env: dict[str, str], *__: object) -> Finished:
        job = UUID(env["BATON_JOB_ID"])
        return Finished(exit_code=int(job in {canceled, fails}), stdout="\x00" if job == nul else "said")

    office.runner.ends = ends
    line = driver(office)
    before = line.flights
    outcomes = dict(zip(jobs, office.do_together([turns[job] for job in jobs]), strict=True))

    # Together; and of the transaction in which something could not be kept each by itself, that one a second time.
    assert line.flights - before == 1 + 4 + 1
    assert outcomes == {
        fine: "done",
        lost: "overtaken",
        canceled: "failed",
        nul: "failed",
        bobs: "done",
        fails: "failed",
    }
    assert {job: office.seen(job).status for job in jobs} == {
        fine: "succeeded", lost: "running", canceled: "canceled", nul: "dead_letter", bobs: "succeeded",
        fails: "dead_letter",
    }  # fmt: skip
    assert [len(office.attempts(job)) for job in jobs] == [1, 0, 1, 0, 1, 1]
    assert office.attempts(bobs)[0].stdout_tail == "said"
    assert office.endings(bobs) == ["succeeded"]


def test_ends_in_one_flight_leave_what_ends_one_by_one_do(office: Office) -> None:
    office.define(max_attempts=2)
    office.runner.ends = lambda *_: Finished(exit_code=3, stderr="it broke")
    jobs = [office.add() for _ in range(4)]
    for turn in office.take(4):
        office.do(turn)
    office.pass_time()
    for turn in office.take(2):
        office.do(turn)
    office.do_together(office.take(2))

    told = []
    for job in jobs:
        attempts = office.sql(
            "select attempt_no, worker_id, exit_code, status, stdout_tail, stderr_tail, error_text from job_attempts "
            "where job_id = :id order by 1",
            id=job,
        )
        (row,) = office.sql("select status, outcome, error, epoch from run where id = :id", id=job)
        (lane,) = office.sql(
            "select status, seq, attempts, steps, last_error, claims from lane where run_id = :id", id=job
        )
        lines_ = office.sql("select n, epoch, type, data from history where run_id = :id order by n", id=job)
        steps = office.sql("select epoch, seq, outcome, rows from step where lane_id in (select id from lane where run_id = :id) order by seq", id=job)  # fmt: skip
        signals = office.sql("select name, payload - 'run_id' as body from signal where payload ->> 'run_id' = :id", id=str(job))  # fmt: skip
        told.append((attempts, row, lane, lines_, steps, signals))
    assert told[0][1].status == "failed"
    assert all(each == told[0] for each in told)


def test_what_fails_among_many_ends_is_counted_for_the_alarm(office: Office) -> None:
    office.define(max_attempts=1)
    fine, *_ = [office.add() for _ in range(3)]
    office.runner.ends = lambda _, env, *__: Finished(exit_code=int(UUID(env["BATON_JOB_ID"]) != fine))
    counted: Counter[str] = Counter()

    class Counting(NoMeter):
        def count(self, metric: str, value: float = 1, /, **_: str) -> None:
            counted[metric] += int(value)

    office.do_together(office.take(3), ports=replace(office.ports, meter=Counting()))

    assert (counted[Metric.RUN_ENDED], counted[Metric.RUNS_FAILED]) == (3, 2)


def test_what_was_taken_with_the_ends_is_in_hand(office: Office) -> None:
    office.define()
    jobs = [office.add() for _ in range(5)]
    taking = a_taking(2)

    office.do_together(office.take(3), taking)

    assert [office.seen(job).status for job in jobs] == ["succeeded"] * 3 + ["running"] * 2
    assert [turn.run_id for turn in taking.taken] == jobs[3:]
    assert len({turn.token for turn in taking.taken}) == 1


def test_after_a_lost_answer_it_is_looked_up_whether_they_ended(office: Office) -> None:
    office.define()
    kind: JobKind = office.job
    with lines(int(sa.make_url(office.url).port or 0)) as relay:
        through = sa.make_url(office.url).set(port=relay.port).render_as_string(hide_password=False)
        ports = office.ports_of(PgStore(office.engine(url=through, name="cut")))
        jobs = [office.add() for _ in range(4)]
        turns, taking = office.take(2), a_taking(2)
        office.do_together(office.take(1), ports=ports, kind=kind)  # the connection is there
        relay.lose_next_answer()

        assert office.do_together(turns, taking, ports, kind) == ["done", "done"]

    assert [office.endings(job) for job in jobs[:2]] == [["succeeded"]] * 2
    assert [turn.run_id for turn in taking.taken] == jobs[3:]


# --- a worker ---


def a_worker(office: Office, concurrency: int) -> Worker:
    assert isinstance(office.store, PgStore)
    engine = db.connect_engine(as_user(office.url, "baton_worker"), pool_size=4)
    office._own_engines.append(engine)
    ports = replace(office.ports, store=PgStore(engine), offers=PgOffers(engine))
    return Worker(engine, ports, Catalogue(office.job), "w1", ["default"], concurrency=concurrency, poll_s=0.05)


@pytest.fixture
def runs_worker() -> Iterator[Callable[[Worker], threading.Thread]]:
    begun: list[tuple[Worker, threading.Thread]] = []

    def begin(worker: Worker) -> threading.Thread:
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        begun.append((worker, thread))
        return thread

    yield begin
    for worker, thread in begun:
        worker.ask_to_stop()
        thread.join(60)
        assert not thread.is_alive()
        assert worker.in_hand == 0


@pytest.mark.full
def test_a_worker_does_many_short_jobs_in_few_flights(
    office: Office, runs_worker: Callable[[Worker], threading.Thread]
) -> None:
    office.define()
    jobs = [job for job in ids(start(office, *[TEST] * 300)) if isinstance(job, UUID)]
    worker = a_worker(office, 50)
    handed_in: list[int] = []
    end_together = PgOffers.end_together

    def counted(self: PgOffers, ends: Any, taking: Any = None) -> Any:
        handed_in.append(len(ends))
        return end_together(self, ends, taking)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PgOffers, "end_together", counted)
        runs_worker(worker)
        wait_until(lambda: office.value("select count(*) from run where finished_at is null") == 0)

    assert {office.seen(job).status for job in jobs} == {"succeeded"}
    assert sum(handed_in) == 300
    assert len(handed_in) < 100
    assert office.value("select count(*) from job_attempts") == 300


def test_what_has_ended_is_told_while_others_still_run(
    office: Office, runs_worker: Callable[[Worker], threading.Thread]
) -> None:
    """However they are spread over the threads: three that take long, one that does not."""
    office.define()
    jobs = [office.add() for _ in range(4)]
    long, go_on = set(jobs) - {jobs[0]}, threading.Event()
    at_once: set[UUID] = set()

    def ends(_: object, env: dict[str, str], *__: object) -> Finished:
        job = UUID(env["BATON_JOB_ID"])
        if job in long:
            at_once.add(job)
            assert go_on.wait(60)
        return Finished(exit_code=0)

    office.runner.ends = ends
    worker = a_worker(office, 4)
    runs_worker(worker)
    wait_until(lambda: office.seen(jobs[0]).status == "succeeded" and at_once == long)
    assert {office.seen(job).status for job in long} == {"running"}
    go_on.set()
    wait_until(lambda: worker.in_hand == 0)
    assert {office.seen(job).status for job in jobs} == {"succeeded"}


def test_what_ends_during_a_flight_does_not_wait_for_the_next_long_job(
    office: Office, runs_worker: Callable[[Worker], threading.Thread]
) -> None:
    """The first is handed in, and the third taken with it; meanwhile the second ends. Whoever goes on with the third calls
    somebody for the second."""
    office.define()
    first, second, third = (office.add() for _ in range(3))
    in_flight, go_on = threading.Event(), threading.Event()

    def ends(_: object, env: dict[str, str], *__: object) -> Finished:
        job = UUID(env["BATON_JOB_ID"])
        assert (go_on if job == third else in_flight).wait(300) if job != first else True
        return Finished(exit_code=0)

    office.runner.ends = ends
    worker = a_worker(office, 2)
    end_together = PgOffers.end_together

    def held_up(self: PgOffers, handed_in: Any, taking: Any = None) -> Any:
        if not in_flight.is_set():
            in_flight.set()
            wait_until(lambda: worker._ended)
        return end_together(self, handed_in, taking)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PgOffers, "end_together", held_up)
        runs_worker(worker)
        try:
            wait_until(lambda: office.seen(third).status == "running")
            wait_until(lambda: office.seen(second).status == "succeeded", 60)
        finally:
            go_on.set()
        wait_until(lambda: office.seen(third).status == "succeeded")
    assert office.endings(first) == ["succeeded"]


def test_a_worker_that_stops_puts_back_what_it_has_not_begun(office: Office) -> None:
    office.define()
    job = office.add()
    worker = a_worker(office, 2)
    (turn,) = worker._take("default", 1)
    worker.stop.set()

    worker._begin(turn, "default")

    lane = office.sql("select claim_token, claims, attempts from lane where run_id = :id", id=job)[0]
    assert (lane.claim_token, lane.claims, lane.attempts) == (None, 0, 0)
    assert (office.take_one().run_id, office.runner.asked, office.attempts(job)) == (job, [], [])
