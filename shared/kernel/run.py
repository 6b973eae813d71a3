"""A run as a whole: start, go on, end, and what an operator may do to it. The run is always locked before its lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal, TypeVar, assert_never
from uuid import UUID

from shared.kernel import db
from shared.kernel.catalogue import NO_CAP, Kind, nothing_left
from shared.kernel.decide import bounded_s, settlement, with_cause
from shared.kernel.deliver import deliver, deliver_unsent
from shared.kernel.errors import Conflict, NoRoom, NotFound, Refused, Unsettled
from shared.kernel.metrics import Meter, Metric, NoMeter
from shared.kernel.model import (
    Already,
    AuditEntry,
    By,
    Due,
    Ending,
    Json,
    NewLane,
    NewRun,
    NextPhase,
    Problem,
    Run,
    RunStatus,
    Say,
    Starting,
)
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports, Tx
from shared.kernel.redact import redact
from shared.kernel.sql import LANE_IS_OPEN

NOBODY = By()
TOO_OLD = "the run is past its retention and being removed; start a new one"
T = TypeVar("T")
# About an hour, in which a broken deployment can be taken back: 2, 4, 8, 16 and 32 minutes after each other.
UNIQUE = "23505"
OUTDATED = "BT001"  # of `start_pulled_run`
SETTLE_ATTEMPTS = 6
FIRST_SETTLE_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Started:
    """`already`: the run was there before; nothing was created and nothing is to be sent."""

    run_id: UUID
    dues: Sequence[Due] = ()
    already: bool = False


# What came of each that was to be started, and the batons of all.
StartedMany = tuple[list[Started | Refused], Sequence[Due]]


def start_run(ports: Ports, kind: Kind, tenant_id: UUID, params: Json, by: By = NOBODY) -> UUID:
    """Create a run with its first lanes in one transaction, then send their batons. Answers the run that does the work."""
    run_id = ports.chance.new_id()
    starting = Starting(run_id=run_id, tenant_id=tenant_id, params=params, by=by, may_remember=True)
    started = _up_to_date([starting], lambda startings: _start(ports, kind, startings[0]))
    point(Point.START_COMMITTED)
    deliver(ports, started.dues)
    return started.run_id


def start_runs(
    ports: Ports, kind: Kind, tenant_id: UUID, asked: Sequence[Json], by: By = NOBODY
) -> list[Started | Refused]:
    """`start_run` for many: one transaction. What is refused is answered in its place, and the others are started."""
    startings = _startings(ports, tenant_id, [(params, by) for params in asked], may_remember=True)
    started, dues = _up_to_date(startings, lambda startings: _start_many(ports, kind, startings))
    point(Point.START_COMMITTED)
    deliver(ports, dues)
    return started


def _up_to_date(startings: Sequence[Starting], start: Callable[[Sequence[Starting]], T]) -> T:
    """With what is remembered; where that is outdated, once more without."""
    try:
        return start(startings)
    except Exception as error:
        if db.sqlstate(error) != OUTDATED:
            raise
    return start([replace(each, may_remember=False) for each in startings])


def _start(ports: Ports, kind: Kind, starting: Starting) -> Started:
    with ports.store.begin(starting.tenant_id) as tx:
        started = _create_run(tx, ports, kind, starting)
        point(Point.START_WRITTEN)
    return started


def _start_many(ports: Ports, kind: Kind, startings: Sequence[Starting]) -> StartedMany:
    with ports.store.begin(startings[0].tenant_id) as tx:
        started = _create_runs(tx, ports, kind, startings)
        point(Point.START_WRITTEN)
    return started


def create_run(
    tx: Tx, ports: Ports, kind: Kind, tenant_id: UUID, params: Json, by: By = NOBODY, label: str | None = None
) -> Started:
    """Start a run inside the caller's transaction; the caller delivers the batons after its commit."""
    starting = Starting(run_id=ports.chance.new_id(), tenant_id=tenant_id, params=params, by=by)
    return _create_run(tx, ports, kind, starting, label)


def create_runs(tx: Tx, ports: Ports, kind: Kind, tenant_id: UUID, asked: Sequence[tuple[Json, By]]) -> StartedMany:
    """Start many runs inside the caller's transaction; the caller delivers the batons after its commit."""
    return _create_runs(tx, ports, kind, _startings(ports, tenant_id, asked))


def _startings(
    ports: Ports, tenant_id: UUID, asked: Sequence[tuple[Json, By]], *, may_remember: bool = False
) -> list[Starting]:
    return [
        Starting(run_id=run_id, tenant_id=tenant_id, params=params, by=by, may_remember=may_remember)
        for run_id, (params, by) in zip(_new_ids(ports, len(asked)), asked, strict=True)
    ]


def _new_ids(ports: Ports, how_many: int) -> list[UUID]:
    """In order: what was asked for at once is listed, and taken, in the order in which it was asked for."""
    return sorted((ports.chance.new_id() for _ in range(how_many)), key=attrgetter("int"))


def _create_runs(tx: Tx, ports: Ports, kind: Kind, startings: Sequence[Starting]) -> StartedMany:
    if kind.start_many is None or kind.most_open_runs != NO_CAP:
        raise ValueError(f"{kind.name} cannot start many runs at once")
    started: list[Started | Refused] = []
    runs: list[tuple[UUID, UUID, NewRun]] = []
    lane_ids = iter(_new_ids(ports, len(startings)))
    for starting, new in zip(startings, kind.start_many(tx, startings), strict=True):
        if isinstance(new, Refused):
            started.append(new)
        elif isinstance(new, Already):
            started.append(Started(new.run_id, already=True))
        else:
            if not _is_one_offer(kind, new):
                raise ValueError(f"many runs of {kind.name} are started at once: each has one lane, which is offered")
            runs.append((starting.run_id, next(lane_ids), _bounded_offer(_caused(new, starting.by))))
            started.append(Started(starting.run_id))
    if not runs:
        return started, []
    tenant_id, audited = startings[0].tenant_id, dict[By, list[str]]()
    dues = tx.insert_pulled_runs(tenant_id, kind.name, runs, kind.limits.max_steps)
    by = {starting.run_id: starting.by for starting in startings}
    for run_id, _, _ in runs:
        if by[run_id].actor is not None:
            audited.setdefault(by[run_id], []).append(f"run:{run_id}")
    for who, targets in audited.items():
        tx.add_audits(_start_entry(runs[0][0], tenant_id, kind, who), targets)
    return started, dues


def _caused(new: NewRun, by: By, label: str | None = None) -> NewRun:
    return replace(
        new,
        created_by=by.actor or new.created_by,
        correlation_id=by.correlation_id or new.correlation_id,
        label=label or new.label,
        source=by.source or new.source,
        source_ref=by.source_ref or new.source_ref,
        time_limit_s=_limit(new.time_limit_s),
    )


def _bounded_offer(new: NewRun) -> NewRun:
    (lane,) = new.lanes
    if lane.delay_s == 0:
        return new
    return replace(new, lanes=[replace(lane, delay_s=bounded_s(lane.delay_s))])


def _create_run(tx: Tx, ports: Ports, kind: Kind, starting: Starting, label: str | None = None) -> Started:
    run_id, tenant_id, by = starting.run_id, starting.tenant_id, starting.by
    new = kind.start(tx, starting)
    if isinstance(new, Already):
        return Started(new.run_id, already=True)
    _check_room(tx, kind, tenant_id)
    new = _caused(new, by, label)
    if not any(lane.holds_run for lane in new.lanes):
        raise ValueError(f"a run of {kind.name} needs at least one lane that holds it")
    if _is_one_offer(kind, new):
        pulled = _bounded_offer(new)
        dues = tx.insert_pulled_run(run_id, tenant_id, kind.name, pulled, ports.chance.new_id(), kind.limits.max_steps)
        _audit_start(tx, run_id, tenant_id, kind, by)
        return Started(run_id, dues)
    run = tx.insert_run(run_id, tenant_id, kind.name, new)
    tx.add_history(run, "accepted", {"lanes": len(new.lanes)})
    _audit_start(tx, run.id, tenant_id, kind, by)
    return Started(run.id, create_lanes(tx, run, new.lanes, kind, ports))


def _is_one_offer(kind: Kind, new: NewRun) -> bool:
    """Most of what is pulled is one lane: its start is one statement."""
    if kind.delivery != "pull" or len(new.lanes) != 1:
        return False
    (lane,) = new.lanes
    return lane.offer is not None and lane.holds_run and lane.time_limit_s is None


def _check_room(tx: Tx, kind: Kind, tenant_id: UUID) -> None:
    """Starts and retries of one tenant and kind stand in line here until their transactions end: none passes the cap.

    After the kind's own rows, before the run's: everybody in this order.
    """
    if kind.most_open_runs == NO_CAP:
        return
    room = tx.room(tenant_id, kind.name, kind.most_open_runs)
    if room.open >= room.most:
        raise NoRoom(
            "too_many_runs", f"{room.most} runs of {kind.name} are already open. Wait until some end, or cancel some."
        )


def create_lanes(tx: Tx, run: Run, lanes: Sequence[NewLane], kind: Kind, ports: Ports) -> list[Due]:
    """Lanes are born under the run's lock; those that hold a run being canceled are born canceled."""
    if not lanes:
        return []
    if run.status.ended and any(lane.holds_run for lane in lanes):
        raise ValueError(f"run {run.id} has ended: only lanes that do not hold it may follow")
    if any((lane.offer is None) == (kind.delivery == "pull") for lane in lanes):
        raise ValueError(
            f"{kind.name} is {kind.delivery}ed: its lanes need {'an offer' if kind.delivery == 'pull' else 'none'}"
        )
    if any(lane.offer is not None and lane.time_limit_s is not None for lane in lanes):
        raise ValueError("a lane that waits to be pulled has no time limit of its own; give the run one")
    bounded = [replace(each, delay_s=bounded_s(each.delay_s), time_limit_s=_limit(each.time_limit_s)) for each in lanes]
    return tx.insert_lanes(run, [(ports.chance.new_id(), lane) for lane in bounded], kind.limits.max_steps)


def _limit(time_limit_s: float | None) -> int | None:
    return None if time_limit_s is None else int(bounded_s(time_limit_s))


def mark_running(tx: Tx, run: Run) -> Run:
    """The first committed step of a run says that it runs."""
    if run.status is not RunStatus.QUEUED or not tx.mark_running(run):
        return run
    tx.add_history(run, "running", {})
    return replace(run, status=RunStatus.RUNNING)


def settle(tx: Tx, run: Run, kind: Kind, ports: Ports, failed: Unsettled | None = None) -> list[Due]:
    """The last lane out moves the run on. Asked in a statement of its own, after the run's lock was taken:
    in one statement two lanes that finish together would each see the other still open."""
    if run.status.ended or tx.has_open_lanes(run.id):
        return []
    if failed is not None:
        return leave_unsettled(tx, run, kind, ports, failed)
    lanes = tx.lanes(run.id)
    with _word_of_the_kind("settle"):
        verdict = with_cause(settlement(run, lanes, kind.settle(run, lanes)), lanes)
        if isinstance(verdict, NextPhase):
            if not any(lane.holds_run for lane in verdict.lanes):
                raise ValueError(f"a next phase of {kind.name} needs at least one lane that holds the run")
            tx.add_history(run, "phase", {"lanes": len(verdict.lanes), "first": verdict.lanes[0].key})
            return create_lanes(tx, run, verdict.lanes, kind, ports)
        if not isinstance(verdict, Ending):
            assert_never(verdict)
    return end(tx, run, verdict, kind, ports)


def settling(act: Callable[[Unsettled | None], T]) -> T:
    """Do in a transaction of its own what may settle a run. If the kind raises there, everything is rolled back and done
    once more with that noted in place of the kind's word: what else there is to commit must not wait for it."""
    failed: Unsettled | None = None
    for _ in range(2):
        try:
            return act(failed)
        except Unsettled as error:
            failed = error
    return act(failed)


def leave_unsettled(tx: Tx, run: Run, kind: Kind, ports: Ports, failed: Unsettled) -> list[Due]:
    """The tick tries again, later each time; at last the run ends in spite of its kind, and says why."""
    cause = failed.__cause__
    problem = Problem("settle_failed", f"{failed.what} of {kind.name} raised {type(cause).__name__}: {cause}")
    attempt = tx.settle_failures(run) + 1
    if attempt < SETTLE_ATTEMPTS:
        tx.add_history(run, "settle_failed", {"attempt": attempt, "error": problem.to_json()})
        tx.look_at_run_in(run, FIRST_SETTLE_WAIT_S * 2 ** (attempt - 1))
        return []
    tx.fail_open_lanes(run.id, problem)
    ending = Ending(
        RunStatus.FAILED if run.cancel_requested_at is None else RunStatus.CANCELED, "settle_failed", problem
    )
    quiet = kind if failed.what == "settle" else replace(kind, on_end=nothing_left)
    return end(tx, run, ending, quiet, ports)


@contextmanager
def _word_of_the_kind(what: Literal["settle", "on_end"]) -> Iterator[None]:
    """What goes wrong here is the kind's doing, unless the database broke the transaction off."""
    try:
        yield
    except Exception as error:
        if db.is_disconnect(error) or db.is_conflict(error):
            raise
        raise Unsettled(what) from error


def end(tx: Tx, run: Run, ending: Ending, kind: Kind, ports: Ports) -> list[Due]:
    """The one way a run ends: its row, its terminal line, its signal, and what the kind leaves behind."""
    if not tx.end_run(run, ending):
        return []
    ended = replace(run, status=ending.status, outcome=ending.outcome, paused_at=None)
    data: dict[str, object] = {"outcome": ending.outcome}
    if ending.problem is not None:
        data["error"] = ending.problem.to_json()
    tx.add_history(ended, ending.status, data)
    tx.add_signal(
        run.tenant_id,
        f"run.{ending.status}",
        {"run_id": str(run.id), "kind": run.kind, "epoch": run.epoch, "outcome": ending.outcome},
    )
    _wake_paused(tx, run)  # side lanes live on; the tick sends what it finds awake
    with _word_of_the_kind("on_end"):
        dues = create_lanes(tx, ended, kind.on_end(tx, ended, ending), kind, ports)
    count_ended(ports.meter, run.kind, ending.status)
    return dues


def count_ended(meter: Meter, kind: str, status: RunStatus) -> None:
    meter.count(Metric.RUN_ENDED, kind=kind, status=status)
    if status is RunStatus.FAILED:
        meter.count(Metric.RUNS_FAILED)


def say(tx: Tx, kind: Kind, tenant_id: UUID, said: Sequence[Say]) -> None:
    """Write what a kind says; a name that is not its own would be taken for another's word."""
    for each in said:
        if not each.name.startswith(kind.own_signals):
            raise ValueError(f"{kind.name} may say {' and '.join(kind.own_signals)}…, not {each.name}")
        tx.add_signal(tenant_id, each.name, each.payload)


def cancel_run(ports: Ports, kind: Kind, tenant_id: UUID, run_id: UUID, by: By = NOBODY) -> None:
    """Ask every lane that holds the run to stop at its next turn, and make that turn due now."""
    settling(lambda failed: _cancel_run(ports, kind, tenant_id, run_id, by, failed))


def _cancel_run(ports: Ports, kind: Kind, tenant_id: UUID, run_id: UUID, by: By, failed: Unsettled | None) -> None:
    with changing(ports, tenant_id, run_id) as (tx, run, dues):
        if run.status.ended:
            raise Conflict("already_ended", f"the run has already {run.status}")
        if run.cancel_requested_at is not None:
            return
        tx.request_cancel(run)
        tx.add_history(run, "cancel_requested", _said(by))
        _audit(tx, run, "cancel", by)
        if kind.delivery == "pull":
            tx.end_unclaimed(run.id)
        canceled = tx.cancel_lanes(run.id)
        dues.extend([*canceled, *_wake_paused(tx, run)])
        if not canceled:
            dues.extend(settle(tx, replace(run, cancel_requested_at=run.now, paused_at=None), kind, ports, failed))


def pause_run(ports: Ports, tenant_id: UUID, run_id: UUID, by: By = NOBODY) -> None:
    """No lane takes a new turn until resume; turns in progress still commit."""
    with changing(ports, tenant_id, run_id) as (tx, run, _):
        if run.status.ended:
            raise Conflict("already_ended", f"the run has already {run.status}")
        if run.cancel_requested_at is not None:
            raise Conflict("being_canceled", "the run is being canceled")
        if run.paused_at is None:
            tx.pause_run(run)
            tx.add_history(run, "paused", _said(by))
            _audit(tx, run, "pause", by)


def resume_run(ports: Ports, tenant_id: UUID, run_id: UUID, by: By = NOBODY) -> None:
    """Go on where the pause began: due times stay, deadlines move by the time it took."""
    with changing(ports, tenant_id, run_id) as (tx, run, dues):
        if run.paused_at is None:
            raise Conflict("not_paused", "the run is not paused")
        paused_s = tx.resume_run(run)
        tx.add_history(run, "resumed", {"paused_s": round(paused_s), **_said(by)})
        _audit(tx, run, "resume", by)
        dues.extend(tx.resume_lanes(run.id, paused_s))


def _wake_paused(tx: Tx, run: Run) -> list[Due]:
    """However a pause ends, every lane that slept through it is looked at again, with the time it slept."""
    return [] if run.paused_at is None else tx.resume_lanes(run.id, (run.now - run.paused_at).total_seconds())


def retry_run(ports: Ports, kind: Kind, tenant_id: UUID, run_id: UUID, by: By = NOBODY) -> None:
    """Open the next epoch of an ended run: what failed or was canceled goes on where it stopped. A run that succeeded is refused,
    unless its lanes are done again as a whole (what is pulled), or its kind has another phase for it."""
    try:
        settling(lambda failed: _retry_run(ports, kind, tenant_id, run_id, by, failed))
    except Exception as error:
        if kind.delivery != "pull" or db.sqlstate(error) != UNIQUE:
            raise
        raise Conflict(
            "already_active", "Another run with the same dedupe key is active. Wait until it ends, or cancel it."
        ) from None


def _retry_run(ports: Ports, kind: Kind, tenant_id: UUID, run_id: UUID, by: By, failed: Unsettled | None) -> None:
    with changing(ports, tenant_id, run_id) as (tx, run, dues):
        if not run.status.ended:
            raise Conflict("not_ended", "only a run that has ended can be retried")
        reopened = reopen(tx, run, kind, by)
        dues.extend(tx.reopen_lanes(run.id))
        if not dues:
            if not tx.lanes(run.id):
                raise Conflict("too_old", TOO_OLD)
            # An end of what succeeded is taken back below: it is not counted.
            counts = replace(ports, meter=NoMeter()) if run.status is RunStatus.SUCCEEDED else ports
            dues.extend(settle(tx, reopened, kind, counts, failed))
            if run.status is RunStatus.SUCCEEDED and _has_ended(tx, run):
                # Whoever listens would hear of another end, of work that nobody did.
                raise Conflict(
                    "nothing_failed", f"The run succeeded, so there is nothing to resume. {kind.to_do_again}"
                )


def _has_ended(tx: Tx, run: Run) -> bool:
    now = tx.lock_run(run.id, run.tenant_id)
    return now is not None and now.status.ended


def reopen(tx: Tx, run: Run, kind: Kind, by: By) -> Run:
    """Open the next epoch of an ended run under its lock; the caller sees to its lanes."""
    if kind.on_reopen is not None:
        kind.on_reopen(tx, run)
    _check_room(tx, kind, run.tenant_id)
    reopened = tx.reopen_run(run)
    if reopened is None:
        raise Conflict("too_old", TOO_OLD)
    tx.add_history(reopened, "retried", _said(by))
    _audit(tx, run, "retry", by, before={"status": run.status, "outcome": run.outcome, "epoch": run.epoch})
    return reopened


def note_action(tx: Tx, run: Run, action: str, by: By, data: Json) -> None:
    """A line of history, and one of the audit, for what a person did to a run in the words of its kind."""
    tx.add_history(run, action, {**data, **_said(by)})
    _audit(tx, run, action, by, after=data)


def wake_lane(ports: Ports, tenant_id: UUID, lane_id: UUID, by: By = NOBODY) -> None:
    """Make a waiting lane's turn due now, with a fresh copy of its baton."""
    ended = Conflict("lane_ended", "the lane has ended; restart it instead")
    _lane_action(ports, tenant_id, lane_id, "lane_woken", by, lambda tx: tx.wake_lane(lane_id), ended)


def wake_run(ports: Ports, tenant_id: UUID, run_id: UUID, by: By = NOBODY) -> int:
    """Make the turns of a run's waiting lanes due now; answers how many. Whoever is due already is left alone, and whoever is at
    work takes its next turn at once."""
    with changing(ports, tenant_id, run_id) as (tx, run, dues):
        if run.status.ended:
            raise Conflict("already_ended", f"the run has already {run.status}; retry it instead")
        if run.cancel_requested_at is not None:
            raise Conflict("being_canceled", "the run is being canceled")
        if run.paused_at is not None:
            raise Conflict("paused", "the run is paused; resume it instead")
        woken = tx.wake_lanes(run.id)
        if woken:
            tx.add_history(run, "woken", {"lanes": len(woken), **_said(by)})
            _audit(tx, run, "wake", by, after={"lanes": len(woken)})
        dues.extend(woken)
    return len(woken)


def restart_lane(
    ports: Ports,
    tenant_id: UUID,
    lane_id: UUID,
    cursor: Json | None = None,
    by: By = NOBODY,
    *,
    only_open: bool = False,
) -> None:
    """Open the next epoch of one lane, of a run that goes on or of one that the lane does not hold; None keeps its place.

    `only_open`: not one that has ended. What follows all lanes may be under way by then, and counts on what they did.
    """
    at_work = Conflict("at_work", "a worker has this; wait until its attempt ends, or cancel the run and retry it")

    def act(tx: Tx) -> Due | None:
        if only_open and not tx.read(LANE_IS_OPEN, {"lane_id": lane_id, "tenant_id": tenant_id}):
            raise Conflict("lane_ended", "the lane has ended: what it did may be in use by now")
        return tx.restart_lane(lane_id, cursor)

    _lane_action(ports, tenant_id, lane_id, "lane_restarted", by, act, at_work)


def _lane_action(
    ports: Ports,
    tenant_id: UUID,
    lane_id: UUID,
    name: str,
    by: By,
    act: Callable[[Tx], Due | None],
    otherwise: Conflict,
) -> None:
    with ports.store.begin(tenant_id) as tx:
        found = tx.lane_run(lane_id, tenant_id)
    if found is None:
        raise NotFound
    run_id, holds_run = found
    with changing(ports, tenant_id, run_id) as (tx, run, dues):
        # A lane that does not hold its run may outlive it: a clean-up that is stuck can be helped after the end.
        if holds_run and run.status.ended:
            raise Conflict("already_ended", f"the run has already {run.status}; retry the run instead")
        if holds_run and run.cancel_requested_at is not None:
            raise Conflict("being_canceled", "the run is being canceled")
        due = act(tx)
        if due is None:
            raise otherwise
        tx.add_history(run, name, {"lane_id": str(lane_id), **_said(by)})
        _audit(tx, run, name, by, after={"lane_id": str(lane_id)})
        dues.append(due)


@contextmanager
def changing(ports: Ports, tenant_id: UUID, run_id: UUID) -> Iterator[tuple[Tx, Run, list[Due]]]:
    """An operator's change under the run's lock; the batons it makes due are sent after its commit."""
    dues: list[Due] = []
    with ports.store.begin(tenant_id) as tx:
        run = tx.lock_run(run_id, tenant_id)
        if run is None:
            raise NotFound
        point(Point.ACTION_RUN_LOCKED)
        yield tx, run, dues
        point(Point.ACTION_WRITTEN)
    point(Point.ACTION_COMMITTED)
    deliver_unsent(ports, dues)
    ports.announce(ports)


def _said(by: By) -> dict[str, object]:
    """What a line of history tells of whoever acted."""
    said: dict[str, object] = {"reason": redact(by.reason)}
    return said | {"by": by.actor} if by.actor else said


def _audit_start(tx: Tx, run_id: UUID, tenant_id: UUID, kind: Kind, by: By) -> None:
    if by.actor is not None:
        tx.add_audit(_start_entry(run_id, tenant_id, kind, by))


def _start_entry(run_id: UUID, tenant_id: UUID, kind: Kind, by: By) -> AuditEntry:
    assert by.actor is not None
    return AuditEntry(
        tenant_id=tenant_id, actor=by.actor, action="run.start", target=f"run:{run_id}", after={"kind": kind.name},
        reason=by.reason,
    )  # fmt: skip


def _audit(tx: Tx, run: Run, action: str, by: By, before: Json | None = None, after: Json | None = None) -> None:
    if by.actor is not None:
        entry = AuditEntry(
            tenant_id=run.tenant_id, actor=by.actor, action=f"run.{action}", target=f"run:{run.id}",
            before=before, after=after, reason=by.reason,
        )  # fmt: skip
        tx.add_audit(entry)
