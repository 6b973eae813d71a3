"""Guards the list of a job's attempts: each that was made is in it, with its own number and log, and none that was not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shared.job_queue.model import Finished, Word
from shared.kernel.step import Lost
from shared.kernel.store import PgStore
from tests.support.databases import ServerAdmin
from tests.support.jobs import Office, job_office


@pytest.fixture(scope="module")
def shared_office(postgres_server: ServerAdmin, template: str) -> Iterator[Office]:
    with job_office(postgres_server, template) as office:
        yield office


@pytest.fixture
def jobs(shared_office: Office) -> Office:
    shared_office.empty()
    shared_office.runner.asked.clear()
    return shared_office


def away(*_: Any) -> Any:
    raise ConnectionResetError("the database is away")


def test_a_step_that_breaks_is_an_attempt_like_any_other(jobs: Office) -> None:
    """A job in the dead letters that has never been tried would be a riddle."""
    jobs.define(max_attempts=2)
    job = jobs.add()

    def broken(argv: Any, env: Any, timeout_s: float, beat: Any) -> Finished:
        beat(7, "so far", "")
        raise ZeroDivisionError("password=hunter2")

    jobs.runner.ends = broken
    jobs.work()
    jobs.pass_time()
    jobs.work()
    assert (jobs.seen(job).status, jobs.seen(job).attempt_count) == ("dead_letter", 2)
    assert [(each.attempt_no, each.status, each.stdout_tail, each.error_text) for each in jobs.attempts(job)] == [
        (n, "failed", "so far", "ZeroDivisionError: password=***") for n in (1, 2)
    ]


def test_a_worker_that_stops_while_the_database_is_away_costs_no_attempt(
    jobs: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.define()
    job = jobs.add()
    jobs.runner.ends = lambda *_: Finished(exit_code=None, stopped=True)
    turn = jobs.take_one()
    with monkeypatch.context() as outage:
        outage.setattr(PgStore, "write_held", away)
        jobs.do(turn)
    (lane,) = jobs.sql("select attempts, next_due_at <= now() as due from lane where run_id = :id", id=job)
    assert (lane.attempts, lane.due) == (0, True)


def test_an_attempt_whose_end_nobody_could_write_is_gone_on_with_and_its_log_is_not(
    jobs: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker gave it back without a word. The command hears the number that the list shows, and what the first one
    printed is not told as the second one's."""
    jobs.define()
    job = jobs.add()

    def begins(argv: Any, env: Any, timeout_s: float, beat: Any) -> Finished:
        assert beat(7, "of the first", "of the first") is Word.GO_ON
        return Finished(exit_code=None, stopped=True)

    jobs.runner.ends = begins
    turn = jobs.take_one()
    with monkeypatch.context() as outage:
        kept = PgStore.write_held
        outage.setattr(
            PgStore, "write_held",
            lambda self, turn, effect: (kept if effect.statement.name == "job.tails" else away)(self, turn, effect),
        )  # fmt: skip
        assert jobs.do(turn) is not Lost.GIVEN_BACK
    jobs.runner.ends = lambda *_: Finished(exit_code=0, stdout="of the second")
    jobs.work()
    (attempt,) = jobs.attempts(job)
    assert [env["BATON_ATTEMPT_NO"] for _, env in jobs.runner.asked] == ["1", "1"]
    assert (attempt.attempt_no, attempt.status) == (1, "succeeded")
    assert (attempt.stdout_tail, attempt.stderr_tail) == ("of the second", None)
