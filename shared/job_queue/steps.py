"""A job as a kind of work: one lane that is pulled, and whose one step is a command run to its end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from shared.job_queue import decide, store
from shared.job_queue.model import KIND, LANE, ON_LAMBDA, USUAL_PRIORITY, AttemptStatus, Definition, Finished, Word
from shared.job_queue.ports import JobMetric, Ports
from shared.job_queue.triggers.fire import SUBSCRIBERS, KeepTime
from shared.kernel.catalogue import NO_CAP, Catalogue, Kind, Outside
from shared.kernel.clock import read_id, stopwatch
from shared.kernel.decide import Limits
from shared.kernel.errors import NoRoom, Overtaken, Permanent, Refused, StepError, Transient
from shared.kernel.log import logger
from shared.kernel.metrics import write_out
from shared.kernel.model import (
    Already,
    By,
    Cancel,
    Decision,
    Effect,
    Ending,
    Finish,
    LaneChange,
    NewLane,
    NewRun,
    Offer,
    Run,
    RunCommand,
    Starting,
    Turn,
    Wait,
)
from shared.kernel.ports import Tx
from shared.kernel.retry import Backoff

BACKOFF = Backoff(first_s=10, most_s=3600)
LONGEST_KEY = 200
MOST_REMEMBERED = 1_000
LONGEST_DELAY_S = 366 * 86_400.0
ASKED = frozenset({"definition_key", "payload", "priority", "scheduled_for", "dedupe_key"})
SPARE_S = 15.0  # of a function's time, to end a command and to commit


@dataclass(frozen=True, slots=True)
class Jobs:
    ports: Ports
    known: dict[str, Definition] = field(default_factory=dict)  # by key, as last read; who uses it says the version

    def start(self, tx: Tx, starting: Starting) -> NewRun | Already:
        """Enqueue a job, unless the tenant has one of the same key that is not over."""
        asked = starting.params
        if unknown := asked.keys() - ASKED:
            raise Refused("unknown_field", f"Unknown: {', '.join(sorted(map(str, unknown)))[:200]}.")
        key = asked.get("definition_key")
        remembered = self.known.get(key) if starting.may_remember and isinstance(key, str) else None
        if remembered is not None:
            with suppress(Refused):  # by what the definition was: it is asked what it is
                return self._start(tx, starting, remembered)
        return self._start(tx, starting, self._definition(tx, key))

    def _start(self, tx: Tx, starting: Starting, definition: Definition) -> NewRun | Already:
        asked = starting.params
        payload = asked.get("payload", {})
        if not isinstance(payload, dict):
            raise Refused("bad_payload", "payload: must be an object.")
        decide.checked_payload(payload)
        self.ports.validate(definition.arg_schema, payload)
        self._resolve_inside(tx, starting.tenant_id, definition, payload)
        key = asked.get("dedupe_key")
        if key is not None:
            found = self._active(tx, starting.tenant_id, key)
            if found is not None:
                return Already(found)
        priority = asked.get("priority", USUAL_PRIORITY)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise Refused("bad_priority", "priority: must be a whole number.")
        decide.checked_priority(priority, manages=starting.by.manages)
        offer = Offer(
            class_id=definition.id,
            priority=priority,
            dedupe_key=key,
            version=definition.version if starting.may_remember else None,
            wakes=definition.queue + ON_LAMBDA if definition.executor == "lambda" else None,
        )
        lane = NewLane(key=LANE, delay_s=_delay_s(tx, asked.get("scheduled_for")), offer=offer)
        self.ports.meter.count(JobMetric.ENQUEUED, definition=definition.key)
        write_out(self.ports.meter)
        return NewRun(params=decide.snapshot(definition, payload), lanes=[lane], label=definition.key)

    def _definition(self, tx: Tx, key: object) -> Definition:
        rows = tx.read(store.FIND_DEFINITION, {"key": key}) if isinstance(key, str) else []
        if not rows:
            raise Refused("unknown_definition", f"definition_key: there is no job definition {str(key)[:80]!r}.")
        definition = store.definition_of(rows[0])
        if not definition.is_active:
            raise Refused("inactive_definition", f"definition_key: {definition.key!r} is inactive.")
        if definition.key in self.known or len(self.known) < MOST_REMEMBERED:
            self.known[definition.key] = definition
        return definition

    def _active(self, tx: Tx, tenant_id: UUID, key: object) -> UUID | None:
        if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY or "\x00" in key:
            raise Refused("bad_dedupe_key", f"dedupe_key: 1 to {LONGEST_KEY} characters.")
        mine = {"tenant_id": tenant_id, "key": key}
        tx.read(store.LOCK_KEY, mine)
        found = tx.read(store.FIND_KEY, mine)
        return found[0]["run_id"] if found else None

    def _resolve_inside(self, tx: Tx, tenant_id: UUID, definition: Definition, payload: dict[str, Any]) -> None:
        for name, what, which in decide.references(definition.arg_schema, payload):
            if what == "run":
                run_id = read_id(which)
                found = run_id is not None and bool(tx.read(store.RUN_EXISTS, {"tenant_id": tenant_id, "id": run_id}))
            else:
                found = tx.find_connection(tenant_id, what.partition(":")[2], which) is not None
            if not found:
                raise Refused("bad_payload", f"payload.{name}: not found in this tenant.")

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        try:
            return self._take_step(turn, outside)
        finally:
            write_out(self.ports.meter)

    def _take_step(self, turn: Turn, outside: Outside) -> Decision:
        params = turn.params
        if turn.queued_at is not None:
            waited_ms = (turn.now - turn.queued_at).total_seconds() * 1000
            self.ports.meter.count(JobMetric.QUEUE_MS, waited_ms, definition=params["definition_key"])
        attempt_no = self.begin(turn)
        command = self.ports.commands[params["command"]]
        if command.starts is not None:
            return self._start_run(turn, outside, command.starts)
        argv = decide.argv(command, turn.tenant_id, params["payload"])
        passed = {name: self.ports.environ[name] for name in command.env if name in self.ports.environ}
        env = {**passed, "BATON_JOB_ID": str(turn.run_id), "BATON_ATTEMPT_NO": str(attempt_no)}
        told: list[tuple[str, str]] = []

        def beat(pid: int, stdout: str, stderr: str) -> Word:
            word = self.ports.beat(turn)
            if word is Word.LOST:
                return word
            if told[-1:] != [(stdout, stderr)]:
                told[:] = [(stdout, stderr)]
                outside.write(Effect(store.TAILS, {"pid": pid, "stdout": stdout, "stderr": stderr}))
            return word

        timeout_s = min(params["timeout_seconds"], max(1.0, outside.time_left_s() - SPARE_S))
        said = {
            "job_id": str(turn.run_id),
            "tenant_id": str(turn.tenant_id),
            "definition_key": params["definition_key"],
            "attempt_no": attempt_no,
            "worker_id": self.ports.worker_id,
        }
        logger.info("job attempt started", extra=said)
        ran_s = stopwatch()
        ended = self.ports.runner.run(argv, env, timeout_s, beat)
        ms = round(ran_s() * 1000)
        logger.info(
            "job attempt ended",
            extra={
                **said,
                "exit_code": ended.exit_code,
                "timed_out": ended.timed_out,
                "canceled": ended.canceled,
                "ms": ms,
            },
        )
        self.ports.meter.count(JobMetric.RUN_MS, ms, definition=params["definition_key"])
        return self.decide(turn, outside, ended)

    def _start_run(self, turn: Turn, outside: Outside, command: RunCommand) -> Decision:
        """The run's id follows from the job and its epoch: however often this is tried, one run is started."""
        by = By(source="job", source_ref=str(turn.run_id), correlation_id=turn.correlation_id)
        starter = self.ports.starter
        if starter is None:
            raise _failed(Permanent, "unknown_command", f"{command.key!r} cannot be run by this worker.")
        try:
            started = outside.once(
                "run",
                kind=command.kind,
                call=lambda key: str(
                    starter.start(turn.tenant_id, command, command.params(turn.params["payload"]), by, UUID(hex=key))
                ),
                look=lambda key: key if self.ports.reader.exists(turn.tenant_id, "run", str(UUID(hex=key))) else None,
            )
        except NoRoom as error:
            raise _failed(Transient, error.code, error.message) from None
        except Refused as error:
            raise _failed(Permanent, "bad_payload", error.message) from None
        ended = Finished(exit_code=0, stdout=f"Started run {UUID(hex=started.replace('-', ''))} of {command.kind}.\n")
        return Finish(effects=[_end(AttemptStatus.SUCCEEDED, ended, None)])

    def begin(self, turn: Turn) -> int:
        """Look once more whether it may run; answers the number of the attempt."""
        params = turn.params
        command = self.ports.commands.get(params["command"])
        if command is None:
            raise _failed(Permanent, "unknown_command", f"{params['command']!r} is not an allowed command here.")
        for name, what, which in decide.references(params["arg_schema"], params["payload"]):
            if not self.ports.reader.exists(turn.tenant_id, what, which):
                raise _failed(Permanent, "bad_payload", f"payload.{name}: not found in this tenant.")
        try:
            decide.checked_payload(params["payload"])
        except Refused as error:
            raise _failed(Permanent, "bad_payload", error.message) from None
        # What was taken for the first time just now has no attempt yet, and nobody else can have it.
        first = turn.epoch == 1 and turn.seq == 0 and turn.claims == 1
        attempt_no = 1 if first else self.ports.reader.next_attempt(turn)
        if attempt_no is None:
            raise Overtaken
        return attempt_no

    def decide(self, turn: Turn, outside: Outside, ended: Finished) -> Decision:
        if ended.lost:
            raise Overtaken
        status = _status(ended)
        self.ports.meter.count(JobMetric.ATTEMPT, definition=turn.params["definition_key"], status=status)
        if ended.canceled:
            return Cancel(effects=[_end(AttemptStatus.CANCELED, ended, "Canceled.")])
        if ended.stopped:
            outside.write(_end(AttemptStatus.CANCELED, ended, "The worker was stopped. The job was put back."))
            return Wait(after_s=0)
        if status is AttemptStatus.SUCCEEDED:
            return Finish(effects=[_end(AttemptStatus.SUCCEEDED, ended, None)])
        problem = decide.problem_of(ended, turn.params["timeout_seconds"])
        raise Transient(problem.message, problem.code, effects=[_end(status, ended, problem.message)])

    def as_told(self, kind: Kind, ended: Finished) -> Kind:
        """The kind as it commits what a worker elsewhere says of a command that it ran."""
        return replace(
            kind,
            take_step=lambda turn, outside: self.decide(turn, outside, ended),
            on_cancel=lambda *_: Cancel(effects=[_end(AttemptStatus.CANCELED, ended, "Canceled.")]),
        )

    def on_lost(self, turn: Turn) -> StepError:  # noqa: ARG002 - the shape of on_lost
        return _failed(Transient, "worker_lost", "The worker stopped responding while it ran this job.")

    def on_cancel(self, turn: Turn, outside: Outside) -> Decision:  # noqa: ARG002 - the shape of a cancel
        """It was asked for while a worker had it, which is lost by now."""
        return Cancel(
            effects=[_end(AttemptStatus.CANCELED, Finished(exit_code=None), "Canceled; its worker was lost.")]
        )

    def ending(self, turn: Turn, change: LaneChange) -> Ending:
        ends = decide.ending(change.status, None if change.problem is None else change.problem.to_json())
        if ends.outcome == decide.DEAD_LETTER:
            self.ports.meter.count(JobMetric.DEAD_LETTER, definition=turn.params["definition_key"])
            write_out(self.ports.meter)
        return ends

    def prune(self, tx: Tx, run: Run, most: int) -> int:
        return tx.apply(Effect(store.PRUNE_ATTEMPTS, {"run_id": run.id, "most": most}))


def _status(ended: Finished) -> AttemptStatus:
    if ended.canceled or ended.stopped:
        return AttemptStatus.CANCELED
    if ended.timed_out:
        return AttemptStatus.TIMEOUT
    return AttemptStatus.SUCCEEDED if ended.exit_code == 0 else AttemptStatus.FAILED


def limits_of(turn: Turn) -> Limits:
    return Limits(max_attempts=turn.params["max_attempts"], backoff=BACKOFF)


def _failed(error: type[Permanent | Transient], code: str, message: str) -> StepError:
    return error(message, code, effects=[_end(AttemptStatus.FAILED, Finished(exit_code=None), message)])


def _end(status: AttemptStatus, ended: Finished, error: str | None) -> Effect:
    return Effect(
        store.END_ATTEMPT,
        {
            "attempt_status": status,
            "attempt_worker": "unknown",
            "exit_code": ended.exit_code,
            "stdout": ended.stdout or None,
            "stderr": ended.stderr or None,
            "attempt_error": error,
        },
    )


def _delay_s(tx: Tx, scheduled_for: object) -> float:
    """By the database's clock, as everything that is due."""
    if scheduled_for is None:
        return 0
    if not isinstance(scheduled_for, str):
        raise Refused("bad_schedule", "scheduled_for: must be a date and time with a zone.")
    try:
        at = datetime.fromisoformat(scheduled_for)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise Refused("bad_schedule", "scheduled_for: must be a date and time with a zone, as 2026-11-16T08:00:00Z.")
    (row,) = tx.read(store.SECONDS_UNTIL, {"at": at})
    if row["seconds"] > LONGEST_DELAY_S:
        raise Refused("bad_schedule", "scheduled_for: at most a year ahead.")
    return max(0.0, float(row["seconds"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind(Kind):
    """The kind, and for its routes what it is made of."""

    jobs: Jobs


def jobs_of(kinds: Catalogue) -> Jobs:
    kind = kinds[KIND]
    assert isinstance(kind, JobKind)
    return kind.jobs


def job_kind(ports: Ports) -> JobKind:
    jobs = Jobs(ports)
    return JobKind(
        name=KIND,
        jobs=jobs,
        take_step=jobs.take_step,
        start=jobs.start,
        settle=decide.settle,
        ending=jobs.ending,
        on_lost=jobs.on_lost,
        on_cancel=jobs.on_cancel,
        prune=jobs.prune,
        limits_of=limits_of,
        delivery="pull",
        most_open_runs=NO_CAP,
        subscribers=SUBSCRIBERS,
        each_tick=KeepTime,
    )
