"""Guards against the flaws that a job queue is born with: each test is named for one, and a mutant puts it back."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pg8000.exceptions import DatabaseError

from shared.job_queue.decide import tail
from shared.job_queue.model import Finished, Word
from shared.kernel import direct, run
from shared.kernel.clock import new_id
from shared.kernel.errors import Conflict, Refused
from shared.kernel.model import StepOutcome
from shared.kernel.offers import PgOffers
from shared.kernel.step import Lost, do_turn
from tests.support.databases import ServerAdmin
from tests.support.house import ALICE, BOB
from tests.support.jobs import Office, a_taking, job_office


@pytest.fixture(scope="session")
def shared_office(postgres_server: ServerAdmin, template: str) -> Iterator[Office]:
    with job_office(postgres_server, template) as office:
        yield office


@pytest.fixture
def office(shared_office: Office) -> Iterator[Office]:
    shared_office.empty()
    yield shared_office
    shared_office.send_guests_home()


def fails(*_: object) -> Finished:
    return Finished(exit_code=1, stderr="it broke")


def refused(office: Office, **asked: object) -> str:
    with pytest.raises(Refused) as error:
        office.add(**asked)  # type: ignore[arg-type]
    assert office.value("select count(*) from run where kind = 'job'") == 0
    return error.value.code


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


# 3a


def test_a_job_that_kills_its_worker_ends_in_the_dead_letters(office: Office) -> None:
    office.define(max_attempts=3)
    job = office.add()
    for _ in range(3):
        turn = office.take_one()
        office.lose(turn)
        office.ticks()
        office.pass_time()

    seen = office.seen(job)
    assert (seen.status, seen.attempt_count, office.take()) == ("dead_letter", 3, [])
    assert [(each.attempt_no, each.status, each.worker_id) for each in office.attempts(job)] == [
        (n, "failed", "w1") for n in (1, 2, 3)
    ]
    assert "stopped responding" in seen.last_error


# 3b


def test_a_heartbeat_keeps_a_long_job_and_a_late_worker_writes_nothing(office: Office) -> None:
    office.define()
    job = office.add()
    turn = office.take_one()

    heard: list[object] = []  # what fails inside a step is a failed step: it is judged outside

    def long(argv: object, env: object, timeout_s: float, beat: Callable[..., Word]) -> Finished:
        office.lose(turn)
        heard.append(beat(1, "", ""))
        heard.append(dict(office.ticks().lanes))
        office.lose(turn)
        heard.append(dict(office.ticks().lanes))
        heard.append(beat(1, "", ""))
        return Finished(exit_code=0)  # it had ended before it could be told

    office.runner.ends = long
    assert office.do(turn) is Lost.OVERTAKEN
    assert heard == [Word.GO_ON, {}, {"lease_ran_out": 1}, Word.LOST]
    assert (office.seen(job).status, [each.status for each in office.attempts(job)]) == ("queued", ["failed"])
    office.runner.ends = lambda *_: Finished(exit_code=0)
    office.pass_time()
    assert office.work() == [StepOutcome.DONE]
    assert [(each.attempt_no, each.status) for each in office.attempts(job)] == [(1, "failed"), (2, "succeeded")]


# 3e


def test_a_retry_numbers_its_attempts_on_and_has_a_fresh_budget(office: Office) -> None:
    office.define(max_attempts=2)
    job = office.add()
    office.runner.ends = fails
    for _ in range(2):
        for _ in range(2):
            office.work()
            office.pass_time()
        assert office.seen(job).status == "dead_letter"
        run.retry_run(office.ports, office.job, ALICE, job)
        assert office.seen(job).status == "queued"

    assert [each.attempt_no for each in office.attempts(job)] == [1, 2, 3, 4]


def test_a_job_has_started_when_its_last_attempt_did_and_its_worker_is_still_known(office: Office) -> None:
    """A job of 200 seconds was shown with none, and with no worker, as soon as it had ended."""
    office.define(max_attempts=2)
    job = office.add()
    assert (office.seen(job).started_at, office.seen(job).claimed_by_worker) == (None, None)
    office.runner.ends = lambda *_: Finished(exit_code=1)
    office.do(office.take_one())
    office.pass_time()
    turn = office.take_one()
    office.sql("update offer set taken_at = now() - interval '200 s' where lane_id = :id", id=turn.lane_id)
    office.runner.ends = lambda *_: Finished(exit_code=0)
    office.do(turn)

    seen, (_, last) = office.seen(job), office.attempts(job)
    assert (seen.status, seen.attempt_count, seen.claimed_by_worker) == ("succeeded", 2, "w1")
    assert seen.started_at == last.started_at
    assert 200 <= (seen.finished_at - seen.started_at).total_seconds() < 260


def test_a_retry_whose_key_is_taken_is_refused_and_hurts_nobody(office: Office) -> None:
    office.define(max_attempts=1)
    old = office.add(dedupe_key="nightly")
    office.runner.ends = fails
    office.work()
    new = office.add(dedupe_key="nightly")
    assert new != old
    assert office.add(dedupe_key="nightly") == new
    other = office.add()
    turns = office.take(2)
    for turn in turns:
        office.lose(turn)

    with pytest.raises(Conflict):
        run.retry_run(office.ports, office.job, ALICE, old)
    office.ticks()
    assert [office.seen(each).status for each in (old, new, other)] == ["dead_letter"] * 3


# 3f


def test_a_canceled_job_is_never_queued_again_by_a_failure(office: Office) -> None:
    office.define()
    job = office.add()
    turn = office.take_one()

    def cancel_then_fail(*_: object) -> Finished:
        run.cancel_run(office.ports, office.job, ALICE, job)
        return fails()

    office.runner.ends = cancel_then_fail
    office.do(turn)
    assert (office.seen(job).status, office.take(), office.endings(job)) == ("canceled", [], ["canceled"])


def test_a_running_job_hears_of_its_cancel_and_its_process_group_ends(office: Office) -> None:
    office.really = True
    office.define()
    job = office.add(payload={"what": "stubborn"})
    child = canceled_once_it_printed(office, job)
    assert (office.seen(job).status, [each.status for each in office.attempts(job)]) == ("canceled", ["canceled"])
    assert gone(child)


def canceled_once_it_printed(office: Office, job: UUID) -> int:
    """Runs it, and answers the number that it printed."""
    child: list[int] = []
    kind = office.job
    beat = kind.take_step.__self__.ports.beat

    def cancel_at_the_first_line(turn: object) -> Word:
        tails = [each.stdout_tail for each in office.attempts(job) if each.stdout_tail]
        if tails and not child:
            child.append(int(tails[0]))
            run.cancel_run(office.ports, kind, ALICE, job)
        return beat(turn)  # type: ignore[no-any-return]

    object.__setattr__(kind.take_step.__self__.ports, "beat", cancel_at_the_first_line)
    assert do_turn(office.take_one(), kind, office.ports) is StepOutcome.CANCELED
    return child[0]


def test_a_job_that_takes_too_long_is_ended_and_tried_again(office: Office) -> None:
    office.really = True
    office.define(timeout_seconds=1)
    job = office.add(payload={"what": "sleep"})
    assert office.do(office.take_one()) is StepOutcome.RETRIED
    (attempt,) = office.attempts(job)
    assert (attempt.status, attempt.exit_code, attempt.stdout_tail) == ("timeout", None, "sleeping\n")
    assert office.seen(job).status == "queued"


def test_what_a_command_leaves_behind_goes_with_it(office: Office) -> None:
    office.really = True
    office.define()
    job = office.add(payload={"what": "leaves"})
    assert office.work() == [StepOutcome.DONE]
    assert gone(int(office.attempts(job)[0].stdout_tail))


def test_what_leaves_the_commands_session_ends_with_it(office: Office) -> None:
    """Guards that nothing goes on after its job, though it has another session, another parent and no output in common:
    neither after a command that has ended, nor after one that had to be ended."""
    office.really = True
    office.define()
    ended = office.add(payload={"what": "escapes"})
    assert office.work() == [StepOutcome.DONE]
    assert gone(int(office.attempts(ended)[0].stdout_tail))
    assert gone(canceled_once_it_printed(office, office.add(payload={"what": "escapes", "n": 1})))


def test_a_folder_that_cannot_be_emptied_says_nothing_of_the_command(office: Office) -> None:
    """Guards that an attempt is told as it was, though somebody whom nobody could end goes on writing into its folder."""
    office.really = True
    office.define()
    job = office.add(payload={"what": "rebels"})
    assert office.work() == [StepOutcome.RETRIED]
    assert [(each.status, each.exit_code) for each in office.attempts(job)] == [("failed", -9)]


# 3k


def test_output_that_postgres_cannot_store_does_not_stop_the_job(office: Office) -> None:
    office.really = True
    office.define()
    job = office.add(payload={"what": "nul"})
    assert office.work() == [StepOutcome.DONE]
    assert office.attempts(job)[0].stdout_tail == "before\N{REPLACEMENT CHARACTER}after\N{REPLACEMENT CHARACTER}\n"


def test_only_the_last_of_much_output_is_kept(office: Office) -> None:
    office.really = True
    office.define()
    job = office.add(payload={"what": "flood"})
    office.work()
    kept = office.attempts(job)[0].stdout_tail
    assert kept.endswith("line 19999\n")
    assert 50_000 < len(kept.encode()) <= 65_536
    assert kept.startswith("line ")


def test_the_last_of_one_long_line_is_kept(office: Office) -> None:
    """Guards that output without a line break is not lost, and that what may be the rest of a secret is."""
    office.really = True
    office.define()
    job = office.add(payload={"what": "one-line"})
    office.work()
    kept = office.attempts(job)[0].stdout_tail
    assert kept.endswith("abcdefgh the end")
    assert 50_000 < len(kept.encode()) <= 65_536
    assert "sss" not in kept


@pytest.mark.parametrize(
    ("kept", "cut", "shown"),
    [
        ("s" * 4_000 + " x", True, ""),
        ("rest\nline", True, "line"),
        ("a" * 5_000, True, "a" * 904),
        ("a" * 5_000, False, "a" * 5_000),
        ("password=" + "s" * 4_500 + " told\nmore", True, "more"),
        ("\n" + "y " * 5_000 + "token=hunter22-canary", True, "y " * 5_000 + "token=***"),
    ],
)
def test_a_tail_shows_nothing_that_may_be_the_rest_of_a_secret(kept: str, cut: bool, shown: str) -> None:
    assert tail(kept.encode(), cut=cut) == shown


# A database that is away


def away() -> Exception:
    """What the driver says when nobody listens any more."""
    return ConnectionRefusedError("nobody listens")


def busy() -> Exception:
    """What the server says when it has waited for somebody's lock for too long."""
    said: Exception = DatabaseError({"S": "ERROR", "C": "55P03", "M": "canceling statement due to lock timeout"})
    return said


@pytest.mark.parametrize(
    ("lease_s", "told", "outcome"),
    [
        (60.0, [Word.GO_ON] * 6, StepOutcome.DONE),
        (0.0, [*[Word.GO_ON] * 4, Word.LOST], Lost.OVERTAKEN),
    ],
)
def test_a_command_goes_on_while_the_database_is_away_until_another_may_have_its_job(
    office: Office, lease_s: float, told: list[Word], outcome: object
) -> None:
    """Guards that a restart of Postgres does not end the commands of a worker, and that an outage longer than a lease does."""
    office.define()
    job = office.add()
    kind = office.job
    ports = kind.take_step.__self__.ports
    answers = ports.beat
    heard: list[Word] = []

    def no_answer(_: object) -> Word:
        raise away()

    def beats(_: object, __: object, ___: float, beat: Callable[..., Word]) -> Finished:
        heard.append(beat(1, "a", ""))
        object.__setattr__(ports, "beat", no_answer)
        heard.extend(beat(1, "b", "") for _ in range(3))
        object.__setattr__(ports, "lease_s", lease_s)
        heard.append(beat(1, "b", ""))
        object.__setattr__(ports, "beat", answers)
        if heard[-1] is Word.LOST:
            return Finished(exit_code=None, lost=True)
        heard.append(beat(1, "c", ""))
        return Finished(exit_code=0)

    office.runner.ends = beats
    assert do_turn(office.take_one(), kind, office.ports) is outcome
    assert heard == told
    assert office.seen(job).status == ("succeeded" if outcome is StepOutcome.DONE else "running")


def test_a_lease_is_counted_from_when_the_job_was_asked_for(office: Office) -> None:
    """Guards that time that passed before the command began, on the way or in line, is not counted on: with the database away,
    the command would go on while another worker has the job."""
    office.define()
    office.add()
    office.add()
    kind = office.job
    heard: list[Word] = []

    def no_answer(_: object) -> Word:
        raise away()

    def beats(_: object, __: object, ___: float, beat: Callable[..., Word]) -> Finished:
        heard.append(beat(1, "a", ""))
        return Finished(exit_code=None, lost=True)

    object.__setattr__(kind.take_step.__self__.ports, "beat", no_answer)
    office.runner.ends = beats
    ages = iter([59.0, 61.0])
    late = replace(office.take_one(), since_asked_s=lambda: next(ages))
    assert do_turn(late, kind, office.ports) is Lost.OVERTAKEN
    assert heard == [Word.LOST]


def test_a_job_whose_take_was_answered_too_late_is_not_begun_and_costs_no_attempt(office: Office) -> None:
    """Guards that another worker, who may have begun, is not joined; and that a database that stood still for a minute does not
    make dead letters of jobs that nobody has run."""
    office.define(max_attempts=1)
    job = office.add()
    too_late = replace(office.take_one(), since_asked_s=lambda: 60.0)
    assert office.do(too_late) is StepOutcome.WAITED
    assert (office.runner.asked, office.attempts(job), office.seen(job).status) == ([], [], "queued")
    office.pass_time()
    assert office.work() == [StepOutcome.DONE]
    assert [each.attempt_no for each in office.attempts(job)] == [1]

    taken_over = office.add()
    too_late = replace(office.take_one(), since_asked_s=lambda: 60.0)
    office.lose(too_late)
    office.ticks()
    assert (office.do(too_late), office.seen(taken_over).status) == (Lost.OVERTAKEN, "dead_letter")
    assert len(office.runner.asked) == 1


def test_a_turn_knows_when_it_was_asked_for_though_the_answer_took_long(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.define()
    office.add()
    office.add()
    taking = a_taking()

    def slow(what: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*given: Any, **more: Any) -> Any:
            time.sleep(0.2)
            return what(*given, **more)

        return answer

    monkeypatch.setattr(direct.Line, "all", slow(direct.Line.all))
    turn = office.take_one()
    monkeypatch.setattr(direct.Line, "apart", slow(direct.Line.apart))
    office.do_together([turn], taking)
    assert all(each.since_asked_s is not None and each.since_asked_s() >= 0.2 for each in (turn, *taking.taken))
    assert len(taking.taken) == 1


def test_a_job_that_could_not_be_begun_costs_no_attempt(office: Office) -> None:
    """Guards that a database that has no answer for a moment is no failure of a command that never ran."""
    office.define(max_attempts=1)
    job = office.add()
    office.do(office.take_one())
    run.retry_run(office.ports, office.job, ALICE, job)
    kind = office.job

    def no_answer(_: object) -> int:
        raise away()

    kind.take_step.__self__.ports.reader.next_attempt = no_answer
    assert do_turn(office.take_one(), kind, office.ports) is StepOutcome.WAITED
    office.pass_time()
    assert office.work() == [StepOutcome.DONE]
    assert [each.status for each in office.attempts(job)] == ["succeeded", "succeeded"]


def test_a_machine_that_can_start_nothing_fails_no_job(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards that a worker whose disk is full does not use up the attempts of every job it meets."""
    office.really = True
    office.define(max_attempts=1)
    job = office.add()
    with monkeypatch.context() as full:
        full.setattr(tempfile, "tempdir", "/nonexistent/disk")
        assert office.do(office.take_one()) is StepOutcome.WAITED
    assert (office.seen(job).status, office.attempts(job)) == ("queued", [])
    office.pass_time()
    assert office.work() == [StepOutcome.DONE]


@pytest.mark.parametrize("trouble", [away, busy])
def test_what_a_command_did_is_committed_when_the_database_is_back(
    office: Office, trouble: Callable[[], Exception]
) -> None:
    """Guards that a command that has ended is not run again because Postgres was away for a moment, alone or with others; and
    that nobody waits for it longer than a lease."""
    office.define(max_attempts=1)
    asked: list[float] = []

    def waits(spent_s: float) -> bool:
        asked.append(spent_s)
        return len(asked) <= 2

    class Away(PgOffers):
        def end(self, *given: Any) -> Any:
            if len(asked) < 2:
                raise trouble()
            return super().end(*given)

        def end_together(self, *given: Any) -> Any:
            raise trouble()

    offers = Away(office.store._engine)
    patient = replace(office.ports, offers=offers, waits_for_database=waits)
    alone, together, impatient = (office.add() for _ in range(3))
    assert do_turn(office.take_one(), office.job, patient) is StepOutcome.DONE
    asked.clear()
    assert office.do_together(office.take(1), ports=patient) == [StepOutcome.DONE]
    assert [office.seen(each).status for each in (alone, together)] == ["succeeded", "succeeded"]
    assert len(asked) == 2
    asked.clear()
    assert do_turn(office.take_one(), office.job, replace(office.ports, offers=offers)) is Lost.GIVEN_BACK
    assert office.seen(impatient).status == "queued"


def test_a_lock_that_was_waited_for_too_long_is_no_failure_of_the_command(office: Office) -> None:
    """Guards that what others do in the database is not noted as a failure of a command that has succeeded."""
    office.define(max_attempts=1)
    job = office.add()
    tries: list[int] = []

    class Locked(PgOffers):
        def end(self, *given: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                raise busy()
            return super().end(*given)

    patient = replace(office.ports, offers=Locked(office.store._engine), waits_for_database=lambda _: True)
    assert do_turn(office.take_one(), office.job, patient) is StepOutcome.DONE
    assert (office.seen(job).status, len(tries)) == ("succeeded", 2)


# 3l


CONNECTED = {
    "type": "object",
    "properties": {"account": {"type": "string", "x-baton-resolves": "connection:nivoda"}},
    "required": ["account"],
    "additionalProperties": False,
}


def connection(office: Office, tenant: UUID) -> str:
    connection_id = new_id()
    office.sql(
        """insert into connection (id, tenant_id, provider, name, settings, secret_ref, created_by)
           values (:id, :t, 'nivoda', :name, '{}', 'vault:x', 'user:x')""",
        id=connection_id,
        t=tenant,
        name=f"c{connection_id}",
    )
    return str(connection_id)


def test_a_payload_cannot_name_another_tenants_things(office: Office) -> None:
    office.define(arg_schema=CONNECTED)
    assert refused(office, payload={"account": connection(office, BOB)}) == "bad_payload"
    mine = connection(office, ALICE)
    job = office.add(payload={"account": mine})
    office.sql("update connection set tenant_id = :t where id = :id", t=BOB, id=mine)

    assert office.work() == [StepOutcome.FAILED]
    assert (office.seen(job).status, office.runner.asked) == ("failed", [])


# 3m


@pytest.mark.parametrize("value", ["--config=/etc/passwd", "-rf", "-"])
def test_a_value_is_never_an_option(office: Office, value: str) -> None:
    office.define()
    assert refused(office, payload={"what": value}) == "bad_payload"


def test_formats_are_enforced_and_words_stay_words(office: Office) -> None:
    office.define(
        arg_schema={
            "type": "object",
            "properties": {
                "provider_id": {"type": "string", "format": "uuid"},
                "what": {"type": "string"},
                "n": {"type": "integer"},
            },
            "additionalProperties": False,
        }
    )
    assert refused(office, payload={"provider_id": "help; rm -rf /"}) == "bad_payload"
    assert refused(office, payload={"else": 1}) == "bad_payload"
    assert refused(office, payload={"n": "1"}) == "bad_payload"
    assert refused(office, payload={"tenant_id": str(BOB)}) == "bad_payload"
    assert refused(office, payload={"what": "x" * 70_000}) == "payload_too_large"
    office.really = True
    job = office.add(payload={"what": "argv", "n": 5, "provider_id": str(BOB)})
    office.work()
    assert (
        office.attempts(job)[0].stdout_tail
        == f"['--tenant-id={ALICE}', '--n=5', '--what=argv', '--provider-id={BOB}']\n"
    )


def test_a_command_sees_none_of_the_workers_environment(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL_CANARY", "secret")
    office.really = True
    office.define()
    job = office.add(payload={"what": "env"})
    office.work()
    assert "CANARY" not in office.attempts(job)[0].stdout_tail
    assert "BATON_JOB_ID" in office.attempts(job)[0].stdout_tail


# 3o


def test_a_definition_that_was_switched_off_runs_nothing_more(office: Office) -> None:
    definition = office.define()
    job = office.add()
    office.sql("update pull_class set is_open = false where id = :id", id=definition)
    office.sql("update job_definitions set is_active = false")
    assert office.take() == []
    with pytest.raises(Refused) as error:
        office.add()
    assert (error.value.code, office.seen(job).status) == ("inactive_definition", "queued")


def test_a_command_that_is_not_on_the_list_is_not_run(office: Office) -> None:
    office.define(command="rm")
    job = office.add()
    assert office.work() == [StepOutcome.FAILED]
    assert (office.seen(job).status, [each.status for each in office.attempts(job)]) == ("failed", ["failed"])
    assert office.runner.asked == []


# 3p


def test_a_priority_is_bounded_and_one_tenant_starves_nobody(office: Office) -> None:
    office.define()
    assert refused(office, priority=-1) == "bad_priority"
    office.manages = False
    assert refused(office, priority=10) == "bad_priority"
    office.manages = True
    for _ in range(20):
        office.add(ALICE, priority=0)
    quiet = office.add(BOB)
    assert quiet in {turn.run_id for turn in (office.take_one(), office.take_one())}


# 3q


def test_no_secret_is_kept_of_what_a_command_prints(office: Office) -> None:
    office.really = True
    office.define(max_attempts=1)
    job = office.add(payload={"what": "secret"})
    office.work()
    kept = office.value(
        """select string_agg(t, ' ') from (
               select coalesce(stdout_tail, '') || coalesce(stderr_tail, '') || coalesce(error_text, '') as t from job_attempts
               union all select coalesce(error::text, '') from run union all select coalesce(last_error::text, '') from lane
               union all select data::text from history) x"""
    )
    assert "canary" not in kept
    assert "***" in kept
    assert office.seen(job).status == "dead_letter"


# And what else there is.


def test_an_unknown_definition_is_refused(office: Office) -> None:
    assert refused(office, key="nothing") == "unknown_definition"


def test_a_job_keeps_the_version_it_was_made_with(office: Office) -> None:
    office.define(max_attempts=1)
    job = office.add()
    office.sql("update job_definitions set max_attempts = 9, version = 2, command = 'rm'")
    office.runner.ends = fails
    office.work()
    assert (office.seen(job).status, office.seen(job).version) == ("dead_letter", 1)


def test_a_worker_that_stops_puts_its_job_back_without_spending_an_attempt(office: Office) -> None:
    office.really = office.stopping = True
    office.define(max_attempts=1)
    job = office.add(payload={"what": "sleep"})
    assert office.do(office.take_one()) is StepOutcome.WAITED
    assert (office.seen(job).status, [each.status for each in office.attempts(job)]) == ("queued", ["canceled"])
    office.really = office.stopping = False
    assert office.work() == [StepOutcome.DONE]
    assert [each.attempt_no for each in office.attempts(job)] == [1, 2]


def test_a_command_that_a_signal_ends_has_failed(office: Office) -> None:
    office.really = True
    office.define(max_attempts=1)
    job = office.add(payload={"what": "signal"})
    office.work()
    assert "signal 11" in office.seen(job).last_error


@pytest.mark.parametrize(("code", "said"), [(255, "exited with code 255"), (137, "was ended by signal 9")])
def test_only_what_a_signal_can_have_been_is_called_one(office: Office, code: int, said: str) -> None:
    office.really = True
    office.define(max_attempts=1)
    job = office.add(payload={"what": "exit", "n": code})
    office.work()
    assert said in office.seen(job).last_error
