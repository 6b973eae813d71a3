"""The minute-by-minute repair. It reads only the database, needs no leader and may run twice at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.clock import stopwatch
from shared.kernel.decide import expired, judge
from shared.kernel.deliver import deliver
from shared.kernel.log import logger
from shared.kernel.metrics import Metric
from shared.kernel.model import REPAIRS, Due, Ending, Problem, Run, RunStatus
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports, Tx
from shared.kernel.run import end, settle

SPARE_S = 5.0  # for the batch in hand when the time is over
LEAST_S = 1.0  # however little is left: a tick that does nothing at all would hide that
MOST_SUMMED_S = 3600.0  # what was not summed up for longer stays so
IDLE_S = 60.0  # the database ends a transaction that idles longer


@dataclass(slots=True)
class TickReport:
    lanes: Counter[str] = field(default_factory=Counter)
    runs_moved: int = 0
    finished: bool = True


def tick(ports: Ports, kinds: Catalogue) -> TickReport:
    """Mend what is overdue, oldest first, until nothing is or the time is over; the next tick goes on."""
    report, elapsed = TickReport(), stopwatch()
    time_limit_s = max(LEAST_S, min(ports.relay.tick_seconds, ports.time_left_s() - SPARE_S))
    while _mend_lanes(ports, report) == ports.relay.tick_batch:
        if elapsed() > time_limit_s:
            report.finished = False
            break
    for run_id, tenant_id, kind in ports.store.due_runs(ports.relay.tick_batch):
        if elapsed() > time_limit_s:
            report.finished = False
            break
        report.runs_moved += _move_run(ports, kinds.get(kind), run_id, tenant_id)
    ports.meter.count(Metric.TICK)
    return report


def roll_up(ports: Ports, since_last_s: float | None) -> None:
    """Sum up the minutes since the last tick, and those before it in which a step may have begun that it did not see yet."""
    since_s = MOST_SUMMED_S if since_last_s is None else min(since_last_s, MOST_SUMMED_S)
    ports.store.roll_up(since_s + ports.relay.step_timeout_s + IDLE_S)


def _mend_lanes(ports: Ports, report: TickReport) -> int:
    """One batch: lock, then judge in a second statement, because a run must be read after its lane is locked."""
    with ports.store.begin(None) as tx:
        lane_ids = tx.lock_due_lanes(ports.relay.tick_batch)
        if not lane_ids:
            return 0
        point(Point.TICK_LOCKED)
        judgements = [judge(facts) for facts in tx.facts(lane_ids)]
        tx.apply_judgements(judgements)
        point(Point.TICK_JUDGED)
    point(Point.TICK_COMMITTED)
    for judgement in judgements:
        report.lanes[judgement.verdict] += 1
        if judgement.verdict in REPAIRS:
            ports.meter.count(Metric.REPAIR, kind=judgement.lane.kind, why=judgement.verdict)
    deliver(ports, [judgement.due for judgement in judgements if judgement.send])
    point(Point.TICK_SENT)
    return len(lane_ids)


def _move_run(ports: Ports, kind: Kind | None, run_id: UUID, tenant_id: UUID) -> bool:
    """One run in one transaction: a broken one, or one of a kind not deployed here, must not stop the others."""
    try:
        if kind is None:
            raise LookupError("no such kind of work is deployed here")  # noqa: TRY301 - as any other reason
        with ports.store.begin(tenant_id) as tx:
            run = tx.lock_run(run_id, tenant_id)
            if run is None or run.status.ended:
                return False
            point(Point.TICK_RUN_LOCKED)
            dues = _time_out(tx, run, kind, ports) if expired(run) else _settle_or_leave(tx, run, kind, ports)
    except Exception:
        logger.exception("a run could not be moved on", extra={"run": str(run_id)})
        _set_aside(ports, run_id, tenant_id)
        return False
    point(Point.TICK_RUN_COMMITTED)
    deliver(ports, dues or [])
    return dues is not None


def _set_aside(ports: Ports, run_id: UUID, tenant_id: UUID) -> None:
    try:
        ports.store.set_run_aside(run_id, tenant_id)
    except Exception:
        logger.exception("a run could not be set aside", extra={"run": str(run_id)})


def _time_out(tx: Tx, run: Run, kind: Kind, ports: Ports) -> list[Due]:
    """The deadline closes the lanes that hold the run, so that a step still in flight commits nothing."""
    deadline = run.deadline_at.isoformat() if run.deadline_at else ""
    problem = Problem("timed_out", f"the run's deadline {deadline} has passed")
    tx.fail_open_lanes(run.id, problem)
    if run.cancel_requested_at is not None:
        return end(tx, run, Ending(RunStatus.CANCELED, "canceled", problem), kind, ports)
    return end(tx, run, Ending(RunStatus.FAILED, "timed_out", problem), kind, ports)


def _settle_or_leave(tx: Tx, run: Run, kind: Kind, ports: Ports) -> list[Due] | None:
    if tx.has_open_lanes(run.id):
        tx.look_at_run_later(run)
        return None
    return settle(tx, run, kind, ports)
