"""Guards the short way of a job: one flight in, one through; what is remembered of its definition is never out of date, and
what is said of it in logs and metrics names it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import orjson
import pytest
import sqlalchemy as sa

from shared.job_queue import store
from shared.job_queue.model import Finished
from shared.job_queue.ports import JobMetric
from shared.job_queue.steps import JobKind, job_kind
from shared.kernel import run
from shared.kernel.errors import Refused
from shared.kernel.flights import Connection
from shared.kernel.log import logger
from shared.kernel.model import By
from shared.kernel.step import do_turn
from shared.kernel.store import PgStore
from tests.races.test_unknown_commits import lines
from tests.support.databases import ServerAdmin
from tests.support.house import ALICE
from tests.support.jobs import Office, a_taking, job_office

BY = By(source="api")


@pytest.fixture(scope="module")
def shared_office(postgres_server: ServerAdmin, template: str) -> Iterator[Office]:
    with job_office(postgres_server, template) as office:
        yield office


@pytest.fixture
def office(shared_office: Office) -> Iterator[Office]:
    shared_office.empty()
    yield shared_office
    shared_office.send_guests_home()


def add(office: Office, kind: JobKind, **asked: Any) -> UUID:
    return run.start_run(office.ports, kind, ALICE, {"definition_key": "test", **asked}, BY)


def change(office: Office, definition: UUID, **said: Any) -> None:
    (row,) = office.sql("select to_jsonb(d) as body from job_definitions d where id = :id", id=definition)
    text = orjson.dumps({**row.body, **said, "version": row.body["version"] + 1}).decode()
    with office._own_engines[0].begin() as connection:
        assert connection.execute(store.PUT_DEFINITION, {"subject": "ada", "definition": text}).scalar_one()


def driver(office: Office) -> Connection:
    assert isinstance(office.store, PgStore)
    with office.store._engine.connect() as connection:
        return cast("Connection", connection.connection.dbapi_connection)


def test_a_job_is_enqueued_in_one_flight_and_run_in_another(office: Office) -> None:
    office.define()
    kind: JobKind = office.job
    add(office, kind)
    turn, line = office.take_one(), driver(office)

    before = line.flights
    add(office, kind)
    assert line.flights - before == 1

    taking = a_taking()
    office.do_together([turn], taking, kind=kind)
    assert line.flights - before == 2
    assert len(taking.taken) == 1


def test_whoever_remembers_a_definition_makes_jobs_of_the_latest_version(office: Office) -> None:
    definition = office.define()
    kind: JobKind = office.job
    add(office, kind)
    wider = {"type": "object", "additionalProperties": False, "properties": {"more": {"type": "string"}}}

    change(office, definition, timeout_seconds=77)
    job = add(office, kind)
    assert (office.seen(job).version, kind.jobs.known["test"].timeout_seconds) == (2, 77)

    change(office, definition, arg_schema=wider)
    job = add(office, kind, payload={"more": "x"})
    assert office.seen(job).version == 3, "what the old version would refuse is asked of the new one"


def test_whoever_remembers_a_definition_adds_nothing_once_it_is_inactive(office: Office) -> None:
    definition = office.define()
    kind: JobKind = office.job
    add(office, kind)
    change(office, definition, is_active=False)

    with pytest.raises(Refused) as error:
        add(office, kind)

    assert error.value.code == "inactive_definition"
    assert office.value("select count(*) from run where kind = 'job'") == 1


@pytest.mark.parametrize("happened", [True, False])
def test_a_start_whose_answer_is_lost_is_one_job(office: Office, happened: bool) -> None:
    office.define()
    kind: JobKind = office.job
    url = sa.make_url(office.url)
    assert url.port is not None
    with lines(url.port) as relay:
        through = url.set(port=relay.port).render_as_string(hide_password=False)
        ports = office.ports_of(PgStore(office.engine(url=through, name="cut")))
        first = run.start_run(ports, kind, ALICE, {"definition_key": "test"}, BY)
        if happened:
            relay.lose_next_answer()
        else:
            office.sql(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'cut'"
            )

        second = run.start_run(ports, kind, ALICE, {"definition_key": "test"}, BY)

    assert {row.id for row in office.sql("select id from run")} == {first, second}
    assert office.value("select count(*) from offer") == 2
    assert office.value("select count(*) from history") == 2


class Counts:
    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []

    def count(self, metric: str, value: float = 1, /, **dimensions: str) -> None:
        self.seen.append((metric, dimensions))


def test_metrics_count_what_comes_is_tried_and_is_given_up(office: Office) -> None:
    office.define(max_attempts=2)
    meter = Counts()
    kind = job_kind(replace(office.job.jobs.ports, meter=meter))
    office.runner.ends = lambda *_: Finished(exit_code=1)
    add(office, kind)
    for _ in range(2):
        do_turn(office.take_one(), kind, office.ports)
        office.pass_time()
    office.runner.ends = lambda *_: Finished(exit_code=0)
    add(office, kind)
    do_turn(office.take_one(), kind, office.ports)

    by_definition = {"definition": "test"}
    counted = [(metric, said) for metric, said in meter.seen if metric not in (JobMetric.QUEUE_MS, JobMetric.RUN_MS)]
    assert counted == [
        (JobMetric.ENQUEUED, by_definition),
        (JobMetric.ATTEMPT, {**by_definition, "status": "failed"}),
        (JobMetric.ATTEMPT, {**by_definition, "status": "failed"}),
        (JobMetric.DEAD_LETTER, by_definition),
        (JobMetric.ENQUEUED, by_definition),
        (JobMetric.ATTEMPT, {**by_definition, "status": "succeeded"}),
    ]
    measured = [metric for metric, _ in meter.seen if metric in (JobMetric.QUEUE_MS, JobMetric.RUN_MS)]
    assert measured == [JobMetric.QUEUE_MS, JobMetric.RUN_MS] * 3


def test_every_log_line_of_an_attempt_says_whose_it_is(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    office.define(max_attempts=3)
    office.runner.ends = lambda *_: Finished(exit_code=1)
    job = office.add()
    with caplog.at_level(logging.INFO, logger="baton"):
        office.work()
        office.pass_time()
        office.work()

    said = [vars(record) for record in caplog.records if record.getMessage().startswith("job attempt")]
    names = ("job_id", "tenant_id", "definition_key", "attempt_no", "worker_id")
    assert [tuple(each[name] for name in names) for each in said] == [
        (str(job), str(ALICE), "test", number, "w1") for number in (1, 1, 2, 2)
    ]
    assert [each["exit_code"] for each in said[1::2]] == [1, 1]
    assert {(each["run"], each["tenant"], each["kind"]) for each in said} == {(str(job), str(ALICE), "job")}


def test_every_line_of_a_step_says_its_run_and_none_after_it(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    """Also those that know nothing of runs: a library that warns, a traceback."""

    def breaks(*_: object) -> Finished:
        logger.warning("somebody deep inside")
        raise KeyError("surprise")

    office.define(max_attempts=2)
    office.runner.ends = breaks
    with caplog.at_level(logging.INFO, logger="baton"):
        asked = {"definition_key": "test"}
        job = run.start_run(office.ports, office.job, ALICE, asked, By(source="api", correlation_id="order-7"))
        office.work()
        logger.warning("afterwards")

    *within, after = [vars(record) for record in caplog.records]
    mine = [each for each in within if each.get("run") == str(job)]
    assert {"somebody deep inside"} <= {str(each["msg"]) for each in mine}
    assert any(each["exc_info"] for each in mine)
    assert {(each["tenant"], each["correlation_id"]) for each in mine} == {(str(ALICE), "order-7")}
    assert "run" not in after
