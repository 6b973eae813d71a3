"""The minute-by-minute repair. It reads only the database, needs no leader and may run twice at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from shared.kernel import db
from shared.kernel.catalogue import Catalogue, Kind, TickPart
from shared.kernel.clock import stopwatch
from shared.kernel.decide import PATIENT_RESENDS, expired, judge
from shared.kernel.deliver import deliver
from shared.kernel.errors import Overtaken, Unsettled
from shared.kernel.log import logger
from shared.kernel.metrics import Metric
from shared.kernel.model import (
    BEFORE_ALL,
    REPAIRS,
    Due,
    DueRun,
    Ending,
    Judgement,
    Place,
    Problem,
    Run,
    RunStatus,
    Verdict,
)
from shared.kernel.points import Point, point
from shared.kernel.ports import Offers, Ports, Tx
from shared.kernel.run import end, leave_unsettled, settle, settling
from shared.kernel.signals import dispatch
from shared.kernel.step import commit_lost
from shared.kernel.wake import MOST_WAKES, wake

SPARE_S = 5.0  # for the batch in hand when the time is over
LEAST_S = 1.0  # however little is left: a tick that does nothing at all would hide that
MOST_SUMMED_S = 3600.0  # what was not summed up for longer stays so
TICK_S = 60.0  # from one to the next
IDLE_S = 60.0  # the database ends a transaction that idles longer
HANDS_IN_S = 3.0  # for whoever waited for the database to say how a turn ended: they try every two seconds
BACKLOG_S = 120.0  # turns that waited so long to be taken stood in a queue behind others
# In the report, beside the verdicts: lanes whose baton the queue did not take, and lanes that could not be judged.
REFUSED, SET_ASIDE = "refused", "set_aside"


@dataclass(slots=True)
class TickReport:
    lanes: Counter[str] = field(default_factory=Counter)
    runs_moved: int = 0
    signals_heard: int = 0
    finished: bool = True


def tick(ports: Ports, kinds: Catalogue) -> TickReport:
    """Mend what is overdue, oldest first, until nothing is or the time is over; the next tick goes on.

    Runs, lanes and signals take turns, a batch each: none waits for another's backlog, nor fails with it.
    """
    report, elapsed = TickReport(), stopwatch()
    time_limit_s = max(LEAST_S, min(ports.relay.tick_seconds, ports.time_left_s() - SPARE_S))
    parts: list[TickPart] = [_Lanes(ports, report), _Runs(ports, kinds, report), _Signals(ports, kinds, report)]
    parts += [kind.each_tick(ports, kind) for kind in kinds.values() if kind.each_tick is not None]
    if ports.offers is not None:
        parts += [_Lost(ports, ports.offers, kinds, report), _Wakes(ports, ports.offers)]
    failures: list[Exception] = []
    while parts and elapsed() < time_limit_s:
        for part in tuple(parts):
            half_time_s = (elapsed() + time_limit_s) / 2
            try:
                more = part.take_a_batch(lambda: elapsed() < half_time_s)  # noqa: B023 - it is used up in this round
            except Exception as error:
                logger.exception("a part of the tick failed")
                failures.append(error)
                more = False
            if not more:
                parts.remove(part)
    if failures:
        raise failures[0]
    report.finished = not parts
    ports.meter.count(Metric.TICK)
    return report


def repair_lost(ports: Ports, kinds: Catalogue) -> TickReport:
    """The part of the tick that needs no queue: turns that were pulled and not brought back."""
    report = TickReport()
    if ports.offers is not None:
        lost = _Lost(ports, ports.offers, kinds, report)
        while lost.take_a_batch(lambda: True):
            pass
    return report


def roll_up(ports: Ports, since_last_s: float | None) -> None:
    """Sum up the minutes since the last tick, and those before it in which a step may have begun that it did not see yet."""
    since_s = MOST_SUMMED_S if since_last_s is None else min(since_last_s, MOST_SUMMED_S)
    ports.store.roll_up(since_s + ports.relay.step_timeout_s + IDLE_S)


@dataclass(slots=True)
class _Lanes:
    """The lanes that were due when the tick began, each once, whatever becomes of it."""

    ports: Ports
    report: TickReport
    place: Place = field(default_factory=Place)
    closed_to: set[str] = field(default_factory=set)  # kinds whose queue takes nothing
    closed_to_delays: bool = False
    backlogs: dict[str, bool] = field(default_factory=dict)

    def take_a_batch(self, in_time: Callable[[], bool]) -> bool:
        """False: there are no more."""
        places: list[Place] = []

        def lock(tx: Tx) -> list[UUID]:
            batch = self.ports.relay.tick_batch
            places[:] = tx.lock_due_lanes(batch, self.place, sorted(self.closed_to), self.closed_to_delays)
            return [place.id for place in places]

        try:
            judgements = self._judge(lock)
        except Exception as error:
            if db.is_disconnect(error) or not places:
                raise
            logger.exception("a batch of lanes could not be judged; they are judged one by one")
            judgements = self._judge_each(places, in_time)
        if not places:
            return False
        point(Point.TICK_COMMITTED)
        self.place = places[-1]
        self._send(judgements)
        point(Point.TICK_SENT)
        return len(places) == self.ports.relay.tick_batch

    def _judge_each(self, places: Sequence[Place], in_time: Callable[[], bool]) -> list[Judgement]:
        """A lane that cannot be judged is left for later: it must not stand in the way of the others."""
        judgements: list[Judgement] = []
        for lane_id in (place.id for place in places):
            try:
                judgements += self._judge(lambda tx: [lane_id] if tx.lock_lane(lane_id) else [])  # noqa: B023 - used up
            except Exception as error:
                logger.exception("a lane could not be judged", extra={"lane": str(lane_id)})
                if db.is_disconnect(error):
                    break
                self.report.lanes[SET_ASIDE] += 1
                _quietly(lambda: self.ports.store.set_lane_aside(lane_id), "a lane could not be set aside")  # noqa: B023
            if not in_time():
                break
        return judgements

    def _judge(self, lock: Callable[[Tx], list[UUID]]) -> list[Judgement]:
        """Lock, then judge in a second statement, because a run must be read after its lane is locked.

        Where it matters whether there is a backlog, that is found out first, and with no lock held.
        """
        while True:
            with self.ports.store.begin(None) as tx:
                lane_ids = lock(tx)
                if not lane_ids:
                    return []
                point(Point.TICK_LOCKED)
                facts = tx.facts(lane_ids)
                doubtful = {lane.kind for lane in facts if lane.resends > PATIENT_RESENDS} - self.backlogs.keys()
                if not doubtful:
                    judgements = [judge(lane, backlog=self.backlogs.get(lane.kind, False)) for lane in facts]
                    tx.apply_judgements(judgements)
                    point(Point.TICK_JUDGED)
                    return judgements
                waits = tx.longest_waits(sorted(doubtful), self.ports.relay.lease_s)
            self.backlogs |= {kind: self._has_backlog(kind, waits.get(kind)) for kind in sorted(doubtful)}

    def _has_backlog(self, kind: str, waited_s: float | None) -> bool:
        """Whether batons that nobody has claimed may still lie in the queue. They do not where turns are taken soon after
        they are sent; where none is taken, the queue is asked; without its answer nothing is multiplied."""
        if waited_s is not None:
            return waited_s >= BACKLOG_S
        try:
            return not self.ports.queue.is_empty(self.ports.relay.queue_of(kind))
        except Exception:
            logger.exception("a queue does not say whether it is empty", extra={"kind": kind})
            return True

    def _send(self, judgements: Sequence[Judgement]) -> None:
        """A queue that takes nothing is left alone for the rest of the tick, and so are the lanes that need it."""
        sends = {judgement.due.baton.lane_id: judgement for judgement in judgements if judgement.send}
        missed = {due.baton.lane_id for due in deliver(self.ports, [each.due for each in sends.values()])}
        self._close({_queue(each) for each in sends.values()} - {
            _queue(each) for lane_id, each in sends.items() if lane_id not in missed
        })  # fmt: skip
        for judgement in judgements:
            self.report.lanes[REFUSED if judgement.lane.lane_id in missed else judgement.verdict] += 1
        repairs = [each for lane_id, each in sends.items() if lane_id not in missed and each.verdict in REPAIRS]
        for repair in repairs:
            self.ports.meter.count(Metric.REPAIR, kind=repair.lane.kind, why=repair.verdict)
        if repairs:
            _quietly(lambda: self.ports.store.note_repairs(repairs), "repairs could not be noted")

    def _close(self, queues: set[str | None]) -> None:
        self.closed_to_delays |= None in queues
        self.closed_to |= {kind for kind in queues if kind is not None}


def _queue(judgement: Judgement) -> str | None:
    """Which queue its baton goes through: that of its kind, or (None) the delay queue of all."""
    return judgement.lane.kind if judgement.due.delay_s <= 0 else None


@dataclass(slots=True)
class _Runs:
    """The runs that were to be looked at when the tick began, each once."""

    ports: Ports
    kinds: Catalogue
    report: TickReport
    place: Place = field(default_factory=Place)

    def take_a_batch(self, in_time: Callable[[], bool]) -> bool:
        """False: there are no more."""
        runs = self.ports.store.due_runs(self.ports.relay.tick_batch, self.place)
        dues: list[Due] = []
        try:
            for run in runs:
                if not run.at_work:
                    dues += self._move(run)
                self.place = run.place
                if not in_time():
                    return True
        finally:
            if dues:
                deliver(self.ports, dues)
        return len(runs) == self.ports.relay.tick_batch

    def _move(self, due: DueRun) -> list[Due]:
        """One run in one transaction: a broken one, or one of a kind not deployed here, must not stop the others."""
        try:
            kind = self.kinds.get(due.kind)
            if kind is None:
                raise LookupError("no such kind of work is deployed here")  # noqa: TRY301 - as any other reason
            dues = settling(lambda failed: _move_run(self.ports, kind, due, failed))
        except Exception:
            logger.exception("a run could not be moved on", extra={"run": str(due.id)})
            _quietly(lambda: self.ports.store.set_run_aside(due.id, due.tenant_id), "a run could not be set aside")
            return []
        point(Point.TICK_RUN_COMMITTED)
        self.report.runs_moved += dues is not None
        return dues or []


def _move_run(ports: Ports, kind: Kind, due: DueRun, failed: Unsettled | None) -> list[Due] | None:
    """None: there was nothing to do."""
    with ports.store.begin(due.tenant_id) as tx:
        run = tx.lock_run(due.id, due.tenant_id)
        if run is None or run.status.ended:
            return None
        point(Point.TICK_RUN_LOCKED)
        if expired(run):
            return _time_out(tx, run, kind, ports, failed)
        if tx.has_open_lanes(run.id):
            tx.look_at_run_later(run)
            return None
        return settle(tx, run, kind, ports, failed)


def _time_out(tx: Tx, run: Run, kind: Kind, ports: Ports, failed: Unsettled | None) -> list[Due]:
    """The deadline closes the lanes that hold the run, so that a step still in flight commits nothing."""
    if failed is not None:
        return leave_unsettled(tx, run, kind, ports, failed)
    deadline = run.deadline_at.isoformat() if run.deadline_at else ""
    problem = Problem("timed_out", f"the run's deadline {deadline} has passed")
    tx.fail_open_lanes(run.id, problem)
    if run.cancel_requested_at is not None:
        return end(tx, run, Ending(RunStatus.CANCELED, "canceled", problem), kind, ports)
    return end(tx, run, Ending(RunStatus.FAILED, "timed_out", problem), kind, ports)


@dataclass(slots=True)
class _Signals:
    """What happened and was not told yet, because whoever wrote it did not come so far."""

    ports: Ports
    kinds: Catalogue
    report: TickReport

    def take_a_batch(self, in_time: Callable[[], bool]) -> bool:
        """False: there are no more."""
        self.report.signals_heard += dispatch(self.ports, self.kinds, in_time)
        return not in_time()


@dataclass(slots=True)
class _Lost:
    """Turns that were pulled and whose worker did not come back: each is taken over and committed as a failed attempt, so
    that a lost worker, a time-out and a failure are one transition.

    Leases run out while the database is away, and this tick may be the first to find it back: what has ended meanwhile is not
    to be called lost, so whoever did it gets a moment to hand it in.
    """

    ports: Ports
    offers: Offers
    kinds: Catalogue
    report: TickReport
    after: UUID = BEFORE_ALL
    waited: bool = False

    def take_a_batch(self, in_time: Callable[[], bool]) -> bool:
        """False: there are no more."""
        lost, further = self.offers.lost(self.after, self.ports.relay.tick_batch)
        if lost and not self.waited:
            self.ports.pause(max(0.0, min(HANDS_IN_S, self.ports.time_left_s() - SPARE_S)))
            self.waited = True
        for lane_id, name in lost:
            self._commit(lane_id, name)
            self.after = lane_id
            if not in_time():
                return True
        self.after = further or self.after
        return further is not None

    def _commit(self, lane_id: UUID, name: str) -> None:
        kind = self.kinds.get(name)
        if kind is None:
            logger.error(
                "a lost turn is of a kind that is not deployed here", extra={"lane": str(lane_id), "kind": name}
            )
            self.report.lanes[SET_ASIDE] += 1
            return
        try:
            turn = self.offers.take_over(lane_id, self.ports.chance.new_id(), self.ports.relay.lease_s)
            if turn is None:
                return  # its worker, or another tick, was faster
            point(Point.TICK_TOOK_OVER)
            commit_lost(turn, kind, self.ports)
        except Overtaken:
            return
        except Exception as error:
            if db.is_disconnect(error):
                raise
            logger.exception("a lost turn could not be committed", extra={"lane": str(lane_id)})
            self.report.lanes[SET_ASIDE] += 1
            return
        point(Point.TICK_LOST_COMMITTED)
        self.report.lanes[Verdict.LEASE_RAN_OUT] += 1
        self.ports.meter.count(Metric.REPAIR, kind=name, why=Verdict.LEASE_RAN_OUT)
        _quietly(
            lambda: self.ports.store.note_repair(lane_id, turn.tenant_id, Verdict.LEASE_RAN_OUT),
            "a repair could not be noted",
        )


@dataclass(slots=True)
class _Wakes:
    """Functions that pull are woken for what is due, and for what will be before the next tick."""

    ports: Ports
    offers: Offers

    def take_a_batch(self, in_time: Callable[[], bool]) -> bool:  # noqa: ARG002 - one look is enough
        """False: there are no more."""
        if self.ports.relay.wake_queue is not None:
            wake(self.ports, self.offers.to_wake(MOST_WAKES, TICK_S))
        return False


def _quietly(note: Callable[[], None], otherwise: str) -> None:
    """What is only noted may fail: the next tick finds the rows as they are."""
    try:
        note()
    except Exception:
        logger.exception(otherwise)
