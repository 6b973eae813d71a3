"""Triggers at work: an event or a due time becomes a job, once, or a line that says why not.

Whoever lets a trigger fire holds its row. Under it he looks whether it was done already, decides, and writes the job and the
firing in the same transaction: it happens with them or not at all, whoever comes second, and whoever is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from shared.job_queue.store import PRUNE_WORKERS
from shared.job_queue.triggers import decide, store
from shared.job_queue.triggers.model import (
    Cause,
    FiringStatus,
    Follow,
    Join,
    LastJob,
    Pass,
    Passed,
    Skipped,
    StartAt,
    StartNow,
    Trigger,
    Verdict,
)
from shared.job_queue.triggers.template import fits, render
from shared.kernel import db
from shared.kernel.catalogue import Kind, Subscribers
from shared.kernel.clock import read_id
from shared.kernel.db import jsonb
from shared.kernel.deliver import deliver
from shared.kernel.errors import Refused
from shared.kernel.log import logger
from shared.kernel.model import BEFORE_ALL, By, Due, Effect, Problem, RunStatus, Signal
from shared.kernel.points import point
from shared.kernel.ports import Ports, Row, Tx
from shared.kernel.run import create_run, create_runs

REF = "trigger:"  # of a run: then the trigger's id, a slash, and the firing's
ENDS = frozenset({RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELED})
RETENTION_DAYS = 90
BATCH = 100
PRUNE_BATCH = 1_000


class TriggerPoint(StrEnum):
    LOCKED = "trigger.locked"
    NOTED = "trigger.noted"
    ADVANCED = "trigger.advanced"
    COMMITTED = "trigger.committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """What one time of firing is about, before it is decided."""

    trigger: Trigger
    cause: Literal["event", "schedule", "manual"]
    about: Cause
    fire_at: datetime
    now: datetime
    signal_id: int | None = None
    chain: int = 0
    actor: str | None = None

    def by(self, firing_id: UUID) -> By:
        source = "api" if self.cause == "manual" else self.cause
        seen_as = None if self.signal_id is None else f"event:{self.signal_id}"
        ref = f"{REF}{self.trigger.id}/{firing_id}"
        return By(self.actor, source=source, source_ref=ref, correlation_id=seen_as)


@dataclass(frozen=True, slots=True)
class _Asked:
    """`key`: equal for what may share a job. `said`: why there is none, as it is written down."""

    firing: Firing
    key: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Fired:
    status: FiringStatus
    run_id: UUID | None = None
    problem: Problem | None = None
    dues: Sequence[Due] = ()


def fire(tx: Tx, ports: Ports, kind: Kind, firing: Firing) -> Fired | None:
    """Decide and write it down, together with its job. The trigger's row is held. None: this was done before."""
    trigger = firing.trigger
    try:
        payload = render(trigger.payload_template, firing.about)
    except Refused as refused:
        return _refuse(tx, ports, firing, refused)
    key = "" if trigger.trigger_type == "schedule" else decide.payload_key(payload)
    key = store.BY_HAND + key if firing.cause == "manual" else key
    ((_, last),) = _last_jobs(tx, [_Asked(firing, key, payload)])
    if last["done"]:
        return None
    verdict = _verdict(firing, last)
    match verdict:
        case StartNow() | StartAt():
            return _start(tx, ports, kind, firing, key, payload, verdict)
        case Join():
            _note(tx, ports, firing, key=key, status=FiringStatus.JOINED, run_id=verdict.run_id)
            return Fired(FiringStatus.JOINED, verdict.run_id)
        case Follow():
            waits = {"waits_for": verdict.run_id, "payload": payload}
            _note(tx, ports, firing, key=key, status=FiringStatus.WAITING, **waits)
            return Fired(FiringStatus.WAITING)
        case Pass():
            _note(tx, ports, firing, key=key, status=FiringStatus.SKIPPED, reason=verdict.reason)
            return Fired(FiringStatus.SKIPPED)


def _last_jobs(tx: Tx, asked: Sequence[_Asked]) -> list[tuple[_Asked, Row]]:
    """What there is already of each; all are of one trigger and cause."""
    first = asked[0].firing
    wanted = [
        {"n": n, "key": each.key, "signal_id": each.firing.signal_id, "fire_at": each.firing.fire_at}
        for n, each in enumerate(asked)
    ]
    which = {"id": first.trigger.id, "cause": first.cause, "definition_key": first.trigger.definition_key}
    rows = tx.read(store.LAST_JOBS, {**which, "asked": jsonb(wanted)})
    return [(asked[row["n"]], row) for row in rows]


def _verdict(firing: Firing, last: Row) -> Verdict:
    trigger, job = firing.trigger, _last_job(last)
    if firing.cause == "manual":
        return StartNow()
    verdict = decide.on_due(job, trigger.overlap)
    if trigger.overlap == "queue" and last["waiting"]:
        # Those that wait go first, even if nothing keeps them any more.
        verdict = Follow(job.run_id) if job is not None else verdict
    if isinstance(verdict, Follow) and last["waiting"] >= trigger.catch_up_most:
        return Pass(Skipped.OVER_CAP)
    return verdict


def _last_job(row: Row) -> LastJob | None:
    if row["run_id"] is None:
        return None
    return LastJob(run_id=row["run_id"], state=row["state"], began_window_at=row["began_window_at"])


def _start(
    tx: Tx, ports: Ports, kind: Kind, firing: Firing, key: str, payload: Mapping[str, Any], verdict: StartNow | StartAt
) -> Fired:
    firing_id = ports.chance.new_id()
    asked = _asked(firing.trigger, payload, verdict)
    try:
        started = create_run(tx, ports, kind, firing.trigger.tenant_id, asked, firing.by(firing_id))
    except Refused as refused:
        return _refuse(tx, ports, firing, refused, key)
    _note(tx, ports, firing, id=firing_id, key=key, status=FiringStatus.STARTED, run_id=started.run_id)
    point(TriggerPoint.NOTED)
    return Fired(FiringStatus.STARTED, started.run_id, dues=started.dues)


def _asked(trigger: Trigger, payload: Mapping[str, Any], verdict: StartNow | StartAt) -> dict[str, Any]:
    asked: dict[str, Any] = {"definition_key": trigger.definition_key, "payload": dict(payload)}
    return asked | ({"scheduled_for": verdict.at.isoformat()} if isinstance(verdict, StartAt) else {})


def _refuse(tx: Tx, ports: Ports, firing: Firing, refused: Refused, key: str = "") -> Fired:
    """The kind writes nothing before it refuses, so the line is all there is. People see it, and nothing is tried again."""
    problem = Problem(refused.code, refused.message)
    _note(tx, ports, firing, key=key, status=FiringStatus.REFUSED, error=problem.to_json())
    return Fired(FiringStatus.REFUSED, problem=problem)


def _refused(refused: Refused) -> dict[str, Any]:
    return {"status": FiringStatus.REFUSED, "error": Problem(refused.code, refused.message).to_json()}


def _note(tx: Tx, ports: Ports, firing: Firing, **said: Any) -> None:
    tx.apply(Effect(store.NOTE, {"firings": jsonb([_line(ports, firing, **said)])}))


def _line(ports: Ports, firing: Firing, **said: Any) -> dict[str, Any]:
    return {
        "trigger_id": firing.trigger.id, "id": ports.chance.new_id(), "tenant_id": firing.trigger.tenant_id,
        "cause": firing.cause, "signal_id": firing.signal_id, "fire_at": firing.fire_at, "chain": firing.chain, **said,
    }  # fmt: skip


# Events.


def tell(tx: Tx, ports: Ports, kind: Kind, subscriber: str, signals: Sequence[Signal]) -> Sequence[Due]:
    """One trigger hears what happened, oldest first. Events that ask for the same share a job. What it wanted to hear when it was
    written, and does no more, is listed as that."""
    tenant_id = signals[0].tenant_id
    rows = tx.read(store.LOCK_TRIGGER, {"id": subscriber, "tenant_id": tenant_id})
    if not rows:
        return ()  # it was deleted meanwhile
    point(TriggerPoint.LOCKED)
    trigger, now = store.trigger_of(rows[0]), rows[0]["now"]
    asked: list[_Asked] = []
    for signal, (event, caused_by, chain) in _about(tx, signals):
        if fits(trigger.event_filter, event):
            firing = Firing(
                trigger=trigger, cause="event", about=Cause(event=event), fire_at=signal.at, now=now, signal_id=signal.id,
                chain=chain,
            )  # fmt: skip
            is_on = trigger.is_enabled and signal.at >= rows[0]["active_since"]
            asked.append(_event(firing, caused_by) if is_on else _Asked(firing, said=SWITCHED_OFF))
    if not asked:
        return ()
    lines, dues = _fire_events(tx, ports, kind, asked)
    if lines:
        tx.apply(Effect(store.NOTE, {"firings": jsonb(lines)}))
        point(TriggerPoint.NOTED)
    return dues


SWITCHED_OFF = {"status": FiringStatus.SKIPPED, "reason": Skipped.SWITCHED_OFF}


def _event(firing: Firing, caused_by: UUID | None) -> _Asked:
    if decide.loops(firing.trigger.id, caused_by, firing.chain):
        return _Asked(firing, said={"status": FiringStatus.SKIPPED, "reason": Skipped.LOOP})
    try:
        payload = render(firing.trigger.payload_template, firing.about)
    except Refused as refused:
        return _Asked(firing, said=_refused(refused))
    return _Asked(firing, decide.payload_key(payload), payload)


def _fire_events(
    tx: Tx, ports: Ports, kind: Kind, asked: Sequence[_Asked]
) -> tuple[list[dict[str, Any]], Sequence[Due]]:
    """The lines of all that were not fired before, and the batons of their jobs. The first of a key decides for the others:
    the job that it starts or waits for has not begun when they are read, so it will see what they are about."""
    new = [(each, last) for each, last in _last_jobs(tx, asked) if not last["done"]]
    firsts: dict[str, tuple[_Asked, Row]] = {}
    for each, last in new:
        if each.said is None:
            firsts.setdefault(each.key, (each, last))
    said: dict[str, Mapping[str, Any]] = {}  # of the first of each key
    starts: list[tuple[str, UUID, dict[str, Any], By]] = []
    for key, (each, last) in firsts.items():
        firing = each.firing
        verdict = decide.on_event(_last_job(last), firing.trigger.dedupe_window_seconds, firing.now)
        if isinstance(verdict, StartNow | StartAt):
            firing_id = ports.chance.new_id()
            starts.append((key, firing_id, _asked(firing.trigger, each.payload, verdict), firing.by(firing_id)))
        elif isinstance(verdict, Join):
            said[key] = {"status": FiringStatus.JOINED, "run_id": verdict.run_id}
        elif last["waiting_id"] is not None:
            # One more run serves all events that come before it begins.
            said[key] = {"status": FiringStatus.JOINED, "joined_to": last["waiting_id"]}
        else:
            assert isinstance(verdict, Follow)
            waits = {"waits_for": verdict.run_id, "payload": each.payload}
            said[key] = {"id": ports.chance.new_id(), "status": FiringStatus.WAITING, **waits}
    dues: Sequence[Due] = ()
    if starts:
        wanted = [(params, by) for _, _, params, by in starts]
        started, dues = create_runs(tx, ports, kind, asked[0].firing.trigger.tenant_id, wanted)
        for (key, firing_id, _, _), came in zip(starts, started, strict=True):
            if isinstance(came, Refused):
                said[key] = _refused(came)
            else:
                said[key] = {"id": firing_id, "status": FiringStatus.STARTED, "run_id": came.run_id}
    return [_line(ports, each.firing, key=each.key, **_said(each, firsts, said)) for each, _ in new], dues


def _said(
    each: _Asked, firsts: Mapping[str, tuple[_Asked, Row]], said: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any]:
    if each.said is not None:
        return each.said
    return said[each.key] if each is firsts[each.key][0] else _shared(said[each.key])


def _shared(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an event becomes that asks for the same as the one of which this was said."""
    match said["status"]:
        case FiringStatus.STARTED:
            return {"status": FiringStatus.JOINED, "run_id": said["run_id"]}
        case FiringStatus.WAITING:
            return {"status": FiringStatus.JOINED, "joined_to": said["id"]}
    return said


def _about(tx: Tx, signals: Sequence[Signal]) -> Iterator[tuple[Signal, tuple[dict[str, Any], UUID | None, int]]]:
    """Each event, the trigger whose job caused it, and how many jobs have started each other before. A run that a job has
    started is that job's doing, and so is whatever its kind says of it."""
    named = {each.id: run_id for each in signals if (run_id := read_id(str(each.payload.get("run_id")))) is not None}
    runs: dict[int, Row] = {}
    if named:
        asked = {"signal_ids": [str(each) for each in named], "run_ids": [str(each) for each in named.values()]}
        found = tx.read(store.RUNS, {**asked, "tenant_id": signals[0].tenant_id})
        runs = {row["signal_id"]: row for row in found}
    causes = {signal_id: _cause(row["source_ref"]) for signal_id, row in runs.items()}
    firings = [each for each in causes.values() if each is not None]
    chains: dict[tuple[UUID, UUID], int] = {}
    if firings:
        which = {"trigger_ids": [str(each) for each, _ in firings], "ids": [str(each) for _, each in firings]}
        chains = {(row["trigger_id"], row["id"]): row["chain"] for row in tx.read(store.CHAINS, which)}
    for signal in signals:
        event, run = dict(signal.payload), runs.get(signal.id)
        what = signal.name.rpartition(".")[2]
        if run is not None and signal.name in (f"run.{what}", f"{run['kind']}.{what}") and what in ENDS:
            # The same is known of every end, whoever said it.
            known = {name: run[name] for name in ("kind", "label", "definition_key")}
            event = {"status": what, **event, **known}
        cause = causes.get(signal.id)
        yield signal, (event, None, 0) if cause is None else (event, cause[0], 1 + chains.get(cause, 0))


def _cause(source_ref: str | None) -> tuple[UUID, UUID] | None:
    """The trigger and the firing that started a run."""
    trigger, _, firing = (source_ref or "").removeprefix(REF).partition("/")
    trigger_id, firing_id = read_id(trigger), read_id(firing)
    return None if trigger_id is None or firing_id is None else (trigger_id, firing_id)


SUBSCRIBERS = Subscribers(find=store.SUBSCRIBED, tell=tell)


# Schedules.


@dataclass(slots=True)
class KeepTime:
    """The schedules that were due when the tick began, what waited for a job that has ended, and what is past its retention."""

    ports: Ports
    kind: Kind
    at: datetime | str = "-infinity"
    after: UUID = BEFORE_ALL
    released: tuple[UUID, UUID] = (BEFORE_ALL, BEFORE_ALL)
    fired: int = field(default=0)

    def take_a_batch(self, in_time: Callable[[], bool]) -> bool:
        """False: there are no more."""
        more = self._release(in_time)
        more |= self._fire_due(in_time)
        with self.ports.store.begin(None) as tx:
            pruned = tx.apply(Effect(store.PRUNE, {"days": RETENTION_DAYS, "most": PRUNE_BATCH}))
            tx.apply(Effect(PRUNE_WORKERS, {"most": PRUNE_BATCH}))
        return more or pruned == PRUNE_BATCH

    def _fire_due(self, in_time: Callable[[], bool]) -> bool:
        with self.ports.store.begin(None) as tx:
            rows = tx.read(store.DUE, {"at": self.at, "after": self.after, "most": BATCH})
        for row in rows:
            if not in_time():
                return True
            self.at, self.after = row["next_fire_at"], row["id"]
            _alone("a schedule could not be kept", row["id"], lambda: fire_due(self.ports, self.kind, row))  # noqa: B023
        return len(rows) == BATCH

    def _release(self, in_time: Callable[[], bool]) -> bool:
        after_trigger, after = self.released
        with self.ports.store.begin(None) as tx:
            rows = tx.read(store.RELEASABLE, {"after_trigger": after_trigger, "after": after, "most": BATCH})
        for row in rows:
            if not in_time():
                return True
            self.released = (row["trigger_id"], row["id"])
            _alone("a waiting job could not be added", row["id"], lambda: release(self.ports, self.kind, row))  # noqa: B023
        return len(rows) == BATCH


def _alone(otherwise: str, which: UUID, act: Callable[[], None]) -> None:
    """One that fails must not stand in the way of the others; the next tick finds it as it is."""
    try:
        act()
    except Exception as error:
        if db.is_disconnect(error):
            raise
        logger.exception(otherwise, extra={"trigger": str(which)})


def fire_due(ports: Ports, kind: Kind, row: Row) -> None:
    """All due times of one schedule: started, waiting, or listed as passed over; in one transaction with what comes next."""
    dues: list[Due] = []
    with ports.store.begin(row["tenant_id"]) as tx:
        found = tx.read(store.LOCK_DUE, {"id": row["id"], "tenant_id": row["tenant_id"]})
        if not found:
            return  # another tick was faster
        point(TriggerPoint.LOCKED)
        trigger, now = store.trigger_of(found[0]), found[0]["now"]
        try:
            plan = decide.plan(trigger, _schedule(trigger, now), now)
        except Refused as refused:
            # Its zone or its expression is not understood any more. It stands still, and says why.
            tx.apply(Effect(store.ADVANCE, {"id": trigger.id, "next_at": None, "problem": refused.message}))
            return
        if plan.passed:
            tx.apply(Effect(store.NOTE, {"firings": jsonb([_passed(ports, trigger, each) for each in plan.passed])}))
        for at in plan.fire:
            about = {"fire_at": at.isoformat(), "trigger_id": str(trigger.id)}
            firing = Firing(trigger=trigger, cause="schedule", about=Cause(schedule=about), fire_at=at, now=now)
            fired = fire(tx, ports, kind, firing)
            dues += () if fired is None else fired.dues
        tx.apply(Effect(store.ADVANCE, {"id": trigger.id, "next_at": plan.next_at, "problem": None}))
        point(TriggerPoint.ADVANCED)
    point(TriggerPoint.COMMITTED)
    deliver(ports, dues)


def _schedule(trigger: Trigger, now: datetime) -> Any:
    from shared.job_queue.triggers.cron import read_schedule  # noqa: PLC0415 - only the tick and the API need cronsim

    assert trigger.cron_expr is not None
    assert trigger.timezone is not None
    assert trigger.next_fire_at is not None
    schedule = read_schedule(trigger.cron_expr, trigger.timezone, now)
    return schedule.after(trigger.next_fire_at - timedelta(seconds=1))


def _passed(ports: Ports, trigger: Trigger, passed: Passed) -> dict[str, Any]:
    return {
        "trigger_id": trigger.id, "id": ports.chance.new_id(), "tenant_id": trigger.tenant_id, "cause": "schedule",
        "fire_at": passed.first, "through": passed.last, "due_count": passed.count, "status": FiringStatus.SKIPPED,
        "reason": passed.reason,
    }  # fmt: skip


def release(ports: Ports, kind: Kind, row: Row) -> None:
    """The job that a firing waited for has ended: its own is added, or waits for another that came between."""
    dues: Sequence[Due] = ()
    with ports.store.begin(row["tenant_id"]) as tx:
        locked = tx.read(store.LOCK_TRIGGER, {"id": row["trigger_id"], "tenant_id": row["tenant_id"]})
        which = {"trigger_id": row["trigger_id"], "id": row["id"]}
        found = tx.read(store.WAITING, which)
        if not found:
            return
        if not locked:  # it was deleted meanwhile
            problem = Problem("trigger_deleted", "The trigger was deleted while this waited.")
            tx.apply(
                Effect(store.RELEASE, {**which, "status": "refused", "run_id": None, "error": jsonb(problem.to_json())})
            )
            return
        point(TriggerPoint.LOCKED)
        dues = _release(tx, ports, kind, store.trigger_of(locked[0]), locked[0]["now"], found[0])
    point(TriggerPoint.COMMITTED)
    deliver(ports, dues)


def _release(tx: Tx, ports: Ports, kind: Kind, trigger: Trigger, now: datetime, waited: Row) -> Sequence[Due]:
    key, cause, which = waited["key"], waited["cause"], {"trigger_id": trigger.id, "id": waited["id"]}
    asked = {"cause": cause, "definition_key": trigger.definition_key, "asked": jsonb([{"n": 0, "key": key}])}
    (last,) = tx.read(store.LAST_JOBS, {"id": trigger.id, **asked})
    job = _last_job(last)
    window_s = trigger.dedupe_window_seconds
    verdict = decide.on_event(job, window_s, now) if cause == "event" else decide.on_due(job, "queue")
    if isinstance(verdict, Follow):
        tx.apply(Effect(store.WAIT_ON, {**which, "run_id": verdict.run_id}))
        return ()
    if isinstance(verdict, Join):
        tx.apply(Effect(store.RELEASE, {**which, "status": "joined", "run_id": verdict.run_id, "error": None}))
        return ()
    assert not isinstance(verdict, Pass)
    by = By(source=cause, source_ref=f"{REF}{trigger.id}/{waited['id']}", correlation_id=_seen_as(waited["signal_id"]))
    try:
        started = create_run(tx, ports, kind, trigger.tenant_id, _asked(trigger, waited["payload"], verdict), by)
    except Refused as refused:
        error = jsonb(Problem(refused.code, refused.message).to_json())
        tx.apply(Effect(store.RELEASE, {**which, "status": "refused", "run_id": None, "error": error}))
        return ()
    tx.apply(Effect(store.RELEASE, {**which, "status": "started", "run_id": started.run_id, "error": None}))
    return started.dues


def _seen_as(signal_id: int | None) -> str | None:
    return None if signal_id is None else f"event:{signal_id}"
