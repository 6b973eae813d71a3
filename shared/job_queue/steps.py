"""A job as a kind of work: one lane that is pulled, and whose one step is a command run to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from shared.job_queue import decide, store
from shared.job_queue.model import KIND, LANE, ON_LAMBDA, USUAL_PRIORITY, AttemptStatus, Definition, Finished, Word
from shared.job_queue.ports import JobMetric, Ports
from shared.job_queue.triggers.fire import SUBSCRIBERS, KeepTime
from shared.kernel import db
from shared.kernel.catalogue import NO_CAP, Catalogue, Kind, Outside
from shared.kernel.clock import read_id, stopwatch
from shared.kernel.decide import Limits
from shared.kernel.errors import Later, NoRoom, Overtaken, Permanent, Refused, StepError, Transient
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
from shared.kernel.redact import redact
from shared.kernel.retry import Backoff

BACKOFF = Backoff(first_s=10, most_s=3600)
LONGEST_KEY = 200
MOST_REMEMBERED = 1_000
LONGEST_DELAY_S = 366 * 86_400.0
ASKED = frozenset({"definition_key", "payload", "priority", "scheduled_for", "dedupe_key"})
AWAY_S = 5.0  # until a job is looked at again that the database had no answer for
SPARE_S = 15.0  # of a function's time, to end a command and to commit


@dataclass(frozen=True, slots=True)
class Jobs:
    ports: Ports
    known: dict[str, Definition] = field(default_factory=dict)  # by key, as last read; who uses it says the version

    def start(self, tx: Tx, starting: Starting) -> NewRun | Already:
        """Enqueue a job, unless the tenant has one of the same key that is not over."""
        (started,) = self.start_many(tx, [starting])
        if isinstance(started, Refused):
            raise started
        return started

    def start_many(self, tx: Tx, startings: Sequence[Starting]) -> list[NewRun | Already | Refused]:
        """The same for many, each judged by itself. What all of them need to know is read at once."""
        definitions = self._definitions(tx, startings)
        known = _Read(tx, startings[0].tenant_id)
        wanted = [self._wanted(known, starting, definitions) for starting in startings]
        keys = [each.key for each in wanted if isinstance(each, _Wanted) and each.key is not None]
        active = self._active(tx, startings[0].tenant_id, keys) if keys else {}
        started: list[NewRun | Already | Refused] = []
        enqueued: Counter[str] = Counter()
        for starting, each in zip(startings, wanted, strict=True):
            if isinstance(each, Refused):
                started.append(each)
                continue
            if each.key is not None:
                found = active.setdefault(each.key, starting.run_id)
                if found != starting.run_id:
                    started.append(Already(found))
                    continue
            started.append(_job(starting, each))
            enqueued[each.definition.key] += 1
        if enqueued:
            tx.after_commit(lambda: self._count_enqueued(enqueued))
        return started

    def _count_enqueued(self, by_definition: Mapping[str, int]) -> None:
        for key, jobs in by_definition.items():
            self.ports.meter.count(JobMetric.ENQUEUED, jobs, definition=key)
        write_out(self.ports.meter)

    def _wanted(
        self, known: _Read, starting: Starting, definitions: Mapping[str, Definition | Refused]
    ) -> _Wanted | Refused:
        try:
            return self._judged(known, starting, definitions)
        except Refused as refused:
            return refused

    def _judged(self, known: _Read, starting: Starting, definitions: Mapping[str, Definition | Refused]) -> _Wanted:
        """What is asked for, by what is remembered; if that refuses it, by what is there."""
        if unknown := starting.params.keys() - ASKED:
            raise Refused("unknown_field", f"Unknown: {', '.join(sorted(map(str, unknown)))[:200]}.")
        key = starting.params.get("definition_key")
        remembered = self.known.get(key) if starting.may_remember and isinstance(key, str) else None
        if remembered is not None:
            with suppress(Refused):
                return self._checked(known, starting, remembered)
        return self._checked(known, starting, self._definition(known.tx, key, definitions))

    def _checked(self, known: _Read, starting: Starting, definition: Definition) -> _Wanted:
        asked = starting.params
        payload = asked.get("payload", {})
        if not isinstance(payload, dict):
            raise Refused("bad_payload", "payload: must be an object.")
        decide.checked_payload(payload)
        self.ports.validate(definition.arg_schema, payload)
        for name, what, which in decide.references(definition.arg_schema, payload):
            if not known.has(what, which):
                raise Refused("bad_payload", f"payload.{name}: not found in this tenant.")
        key = asked.get("dedupe_key")
        if key is not None and (not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY or "\x00" in key):
            raise Refused("bad_dedupe_key", f"dedupe_key: 1 to {LONGEST_KEY} characters.")
        priority = asked.get("priority", USUAL_PRIORITY)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise Refused("bad_priority", "priority: must be a whole number.")
        decide.checked_priority(priority, manages=starting.by.manages)
        return _Wanted(definition, payload, priority, key, _delay_s(known, asked.get("scheduled_for")))

    def _definitions(self, tx: Tx, startings: Sequence[Starting]) -> dict[str, Definition | Refused]:
        """Those that are not remembered, by their keys."""
        keys = {
            key
            for starting in startings
            if isinstance(key := starting.params.get("definition_key"), str)
            and not (starting.may_remember and key in self.known)
        }
        return self._read_definitions(tx, keys) if keys else {}

    def _definition(self, tx: Tx, key: object, definitions: Mapping[str, Definition | Refused]) -> Definition:
        if not isinstance(key, str):
            raise _unknown(key)
        found = definitions.get(key) or self._read_definitions(tx, {key})[key]
        if isinstance(found, Refused):
            raise found
        return found

    def _read_definitions(self, tx: Tx, keys: set[str]) -> dict[str, Definition | Refused]:
        found: dict[str, Definition | Refused] = {key: _unknown(key) for key in keys}
        for row in tx.read(store.FIND_DEFINITIONS, {"keys": sorted(key for key in keys if "\x00" not in key)}):
            definition = store.definition_of(row)
            found[definition.key] = definition
            if not definition.is_active:
                found[definition.key] = Refused(
                    "inactive_definition", f"definition_key: {definition.key!r} is inactive."
                )
            elif definition.key in self.known or len(self.known) < MOST_REMEMBERED:
                self.known[definition.key] = definition
        return found

    def _active(self, tx: Tx, tenant_id: UUID, keys: Sequence[str]) -> dict[str, UUID]:
        """The jobs that are not over, by their keys; nobody else enqueues one of these meanwhile."""
        mine = {"tenant_id": tenant_id, "keys": list(keys)}
        tx.read(store.LOCK_KEYS, mine)
        return {row["dedupe_key"]: row["run_id"] for row in tx.read(store.FIND_KEYS, mine)}

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        try:
            return self._take_step(turn, outside)
        except (StepError, Overtaken):
            raise
        except Exception as error:  # an attempt like any other: people look for it in the list
            logger.exception("a job failed unexpectedly", extra={"job_id": str(turn.run_id)})
            raise _failed(Transient, "unexpected", redact(f"{type(error).__name__}: {error}")) from error
        finally:
            write_out(self.ports.meter)

    def _take_step(self, turn: Turn, outside: Outside) -> Decision:
        params = turn.params
        if turn.queued_at is not None:
            waited_ms = (turn.now - turn.queued_at).total_seconds() * 1000
            self.ports.meter.count(JobMetric.QUEUE_MS, waited_ms, definition=params["definition_key"])
        try:
            attempt_no = self.begin(turn)
        except Exception as error:
            if db.is_disconnect(error) or db.is_busy(error):
                raise Later(AWAY_S) from error  # nothing was begun: it costs no attempt
            raise
        command = self.ports.commands[params["command"]]
        if command.starts is not None:
            return self._start_run(turn, outside, command.starts)
        argv = decide.argv(command, turn.tenant_id, params["payload"])
        passed = {name: self.ports.environ[name] for name in command.env if name in self.ports.environ}
        job_id = str(turn.run_id)
        env = {**passed, "BATON_JOB_ID": job_id, "BATON_ATTEMPT_NO": str(attempt_no)}
        told: tuple[str, str] | None = None
        # Its lease began when it was taken: what passed since then, on the way or in line, is nobody's to spend again.
        since_s = turn.since_asked_s or stopwatch()
        if since_s() >= self.ports.lease_s:
            raise Later(AWAY_S)  # nothing was begun: if nobody else has it, it costs no attempt

        def beat(pid: int, stdout: str, stderr: str) -> Word:
            nonlocal told, since_s
            asked_s = stopwatch()
            try:
                word = self.ports.beat(turn)
                since_s = asked_s
                if word is not Word.LOST and told != (stdout, stderr):
                    outside.write(Effect(store.TAILS, {"pid": pid, "stdout": stdout, "stderr": stderr}))
                    told = (stdout, stderr)
            except Exception as error:
                if not (db.is_disconnect(error) or db.is_busy(error)):
                    raise
                # A command is not ended because the database is away: it goes on as long as nobody else can have the job.
                logger.warning("a heartbeat was not answered", extra={"job_id": str(turn.run_id)}, exc_info=error)
                return Word.LOST if since_s() >= self.ports.lease_s else Word.GO_ON
            return word

        timeout_s = min(params["timeout_seconds"], max(1.0, outside.time_left_s() - SPARE_S))
        said = {
            "job_id": job_id,
            "tenant_id": str(turn.tenant_id),
            "definition_key": params["definition_key"],
            "attempt_no": attempt_no,
            "worker_id": self.ports.worker_id,
        }
        logger.info("job attempt started", extra=said)
        ran_s = stopwatch()
        ended = self.ports.runner.run(argv, env, timeout_s, beat, lambda: self.ports.lease_s - since_s())
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
        return self.decide(turn, outside, ended, timeout_s)

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

    def decide(self, turn: Turn, outside: Outside, ended: Finished, had_s: float | None = None) -> Decision:
        if ended.lost:
            raise Overtaken
        status = _status(ended)
        self.ports.meter.count(JobMetric.ATTEMPT, definition=turn.params["definition_key"], status=status)
        if ended.canceled:
            return Cancel(effects=[_end(AttemptStatus.CANCELED, ended, "Canceled.")])
        if ended.stopped:
            try:
                outside.write(_end(AttemptStatus.CANCELED, ended, "The worker was stopped. The job was put back."))
            except Exception as error:
                if not (db.is_disconnect(error) or db.is_busy(error)):
                    raise
                # It costs no attempt all the same: whoever takes it next goes on with this one.
                logger.warning("a job is put back without its log", extra={"job_id": str(turn.run_id)}, exc_info=error)
            return Wait(after_s=0)
        if status is AttemptStatus.SUCCEEDED:
            return Finish(effects=[_end(AttemptStatus.SUCCEEDED, ended, None)])
        problem = decide.problem_of(ended, turn.params["timeout_seconds"], had_s)
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


@dataclass(frozen=True, slots=True)
class _Wanted:
    definition: Definition
    payload: dict[str, Any]
    priority: int
    key: str | None
    delay_s: float


def _job(starting: Starting, wanted: _Wanted) -> NewRun:
    definition = wanted.definition
    offer = Offer(
        class_id=definition.id,
        priority=wanted.priority,
        dedupe_key=wanted.key,
        version=definition.version if starting.may_remember else None,
        wakes=definition.queue + ON_LAMBDA if definition.executor == "lambda" else None,
    )
    lane = NewLane(key=LANE, delay_s=wanted.delay_s, offer=offer)
    return NewRun(params=decide.snapshot(definition, wanted.payload), lanes=[lane], label=definition.key)


@dataclass(slots=True)
class _Read:
    """What the database says, once for all that are enqueued together."""

    tx: Tx
    tenant_id: UUID
    _found: dict[tuple[str, str], bool] = field(default_factory=dict)
    _now: datetime | None = None

    def now(self) -> datetime:
        if self._now is None:
            (row,) = self.tx.read(store.NOW, {})
            self._now = row["now"]
        assert self._now is not None
        return self._now

    def has(self, what: str, which: str) -> bool:
        """Whether the tenant has this thing."""
        if (what, which) not in self._found:
            self._found[what, which] = self._look(what, which)
        return self._found[what, which]

    def _look(self, what: str, which: str) -> bool:
        if what == "run":
            run_id = read_id(which)
            return run_id is not None and bool(
                self.tx.read(store.RUN_EXISTS, {"tenant_id": self.tenant_id, "id": run_id})
            )
        return self.tx.find_connection(self.tenant_id, what.partition(":")[2], which) is not None


def _unknown(key: object) -> Refused:
    return Refused("unknown_definition", f"definition_key: job definition {str(key)[:80]!r} not found.")


def _delay_s(known: _Read, scheduled_for: object) -> float:
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
    seconds = (at - known.now()).total_seconds()
    if seconds > LONGEST_DELAY_S:
        raise Refused("bad_schedule", "scheduled_for: at most a year ahead.")
    return max(0.0, seconds)


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
        start_many=jobs.start_many,
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
