"""One step of one lane: claim, look outside, decide, commit, send. In this order, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal
from uuid import UUID

from shared.kernel import db
from shared.kernel.baton import Baton
from shared.kernel.catalogue import Kind
from shared.kernel.clock import stopwatch
from shared.kernel.decide import LONGEST_QUEUE_DELAY_S, before_looking, change_after, change_for
from shared.kernel.deliver import deliver
from shared.kernel.errors import Overtaken, StepError, Unsettled
from shared.kernel.log import about, logger
from shared.kernel.metrics import Metric
from shared.kernel.model import (
    Decision,
    Due,
    Ended,
    Ending,
    Json,
    LaneChange,
    LaneState,
    LaneStatus,
    NoTurn,
    RunStatus,
    StepOutcome,
    Taking,
    Turn,
    TurnEnd,
    Wait,
)
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports, Tx
from shared.kernel.remote_call import Calls
from shared.kernel.retry import spread_s
from shared.kernel.run import count_ended, create_lanes, mark_running, say, settle, settling

COMMIT_TRIES = 3
LONGEST_GATE_WAIT_S = 900.0


class Lost(StrEnum):
    """A claimed turn that committed nothing."""

    OVERTAKEN = "overtaken"  # acknowledge: the lane moved without us
    GIVEN_BACK = "given_back"  # the database did not answer: the message must come again


Outcome = StepOutcome | NoTurn | Lost


def take_turn(baton: Baton, kind: Kind, ports: Ports) -> Outcome:
    """Do for this baton what its lane's row asks for. Only `GIVEN_BACK` wants the message again."""
    with about(lane=baton.lane_id, kind=kind.name):
        return _taken(baton, kind, ports)


def _taken(baton: Baton, kind: Kind, ports: Ports) -> Outcome:
    point(Point.STEP_RECEIVED)
    token = ports.chance.new_id()
    try:
        turn = ports.store.claim(baton, token, ports.relay.lease_s)
    except Exception:
        logger.exception("a turn could not be claimed", extra={"lane": str(baton.lane_id)})
        return _give_back(baton, token, ports)
    if isinstance(turn, NoTurn):
        ports.meter.count(Metric.REFUSED, kind=baton.kind, reason=turn)
        logger.info("turn", extra={"seq": baton.seq, "outcome": turn})
        return turn
    point(Point.STEP_CLAIMED)
    with _about(turn):
        outcome = _Step(turn, kind, ports).run()
        logger.info("turn", extra={"seq": baton.seq, "outcome": outcome})
        return outcome


def do_turn(turn: Turn, kind: Kind, ports: Ports) -> Outcome:
    """Do what a claimed turn asks for."""
    with _about(turn):
        return _Step(turn, kind, ports).run()


def look(turn: Turn, kind: Kind, ports: Ports) -> Looked | Lost:
    """The first half of `do_turn`: everything but the commit."""
    with _about(turn):
        return _Step(turn, kind, ports).look()


def _about(turn: Turn) -> AbstractContextManager[None]:
    """Whatever a step logs can be found by its run."""
    return about(
        run=turn.run_id, tenant=turn.tenant_id, lane=turn.lane_id, kind=turn.kind, correlation_id=turn.correlation_id
    )


def commit_together(looked: Sequence[Looked], ports: Ports, taking: Taking | None = None) -> list[Outcome]:
    """The other half for several steps. Those that end alone do so in one flight, which may take the next turns; the others
    are committed one by one, and so is what failed together: one must not suffer for its neighbour."""
    assert ports.offers is not None
    ends = {n: end for n, each in enumerate(looked) if (end := each.end()) is not None}
    told: list[Ended | Exception] = []
    if ends or taking is not None:
        try:
            told = ports.offers.end_together(list(ends.values()), taking)
        except Exception as error:
            logger.exception("endings could not be handed in together", extra={"endings": len(ends)})
            told = [error] * len(ends)
    came = dict(zip(ends, told, strict=True))
    outcomes = [each.ended(came[n]) if n in came else each.commit() for n, each in enumerate(looked)]
    if ends:
        ports.announce(ports)
    return outcomes


@dataclass(slots=True)
class Looked:
    """A step that was decided and is to be committed."""

    step: _Step
    change: LaneChange
    ms: int
    since_s: Callable[[], float]  # it was decided

    def commit(self) -> Outcome:
        return self._finish(lambda: self.step.commit_or_note(self.change, self.ms))

    def end(self) -> TurnEnd | None:
        """How the run ends with it; None: it does not, or not by this alone."""
        turn, kind = self.step.turn, self.step.kind
        ending = _ending(turn, self.change, kind) if _ends_alone(turn, self.change, kind) else None
        return None if ending is None else TurnEnd(turn, self.change, ending, self.ms)

    def ended(self, came: Ended | Exception) -> Outcome:
        """After it was handed in with others."""
        return self._finish(lambda: self.step.note_end(self.change, self.ms, came))

    def _finish(self, commit: Callable[[], StepOutcome]) -> Outcome:
        with _about(self.step.turn):
            return self.step.finish(commit, self.change, self.ms, self.since_s)


@dataclass(slots=True)
class _Step:
    turn: Turn
    kind: Kind
    ports: Ports

    def run(self) -> Outcome:
        elapsed = stopwatch()
        try:
            change = self._look_and_decide()
            point(Point.STEP_LOOKED)
        except Exception as error:
            return self._lost_by(error)
        ms = int(elapsed() * 1000)
        return self.finish(lambda: self.commit_or_note(change, ms), change, ms, stopwatch())

    def look(self) -> Looked | Lost:
        elapsed = stopwatch()
        try:
            change = self._look_and_decide()
            point(Point.STEP_LOOKED)
        except Exception as error:
            return self._lost_by(error)
        return Looked(self, change, int(elapsed() * 1000), stopwatch())

    def finish(
        self, commit: Callable[[], StepOutcome], change: LaneChange, ms: int, since_s: Callable[[], float]
    ) -> Outcome:
        while True:
            try:
                outcome = commit()
            except Exception as error:
                away = self.turn.pulled and (db.is_disconnect(error) or db.is_busy(error))
                if not (away and self.ports.waits_for_database(since_s())):
                    return self._lost_by(error)
                came = error
            else:
                self._count(outcome, ms)
                return outcome
            commit = lambda: self.note_end(change, ms, came)  # noqa: B023, E731 - it is called in this round

    def _lost_by(self, error: Exception) -> Lost:
        if isinstance(error, Overtaken):
            self.ports.meter.count(Metric.OVERTAKEN, kind=self.kind.name)
            return Lost.OVERTAKEN
        logger.error("a step could not be committed", extra={"lane": str(self.turn.lane_id)}, exc_info=error)
        return _give_back(self.turn.baton, self.turn.token, self.ports)

    def _count(self, outcome: StepOutcome, ms: int) -> None:
        self.ports.meter.count(Metric.STEP, kind=self.kind.name, outcome=outcome)
        self.ports.meter.count(Metric.STEP_MS, ms, kind=self.kind.name)

    def note_end(self, change: LaneChange, ms: int, came: Ended | Exception) -> StepOutcome:
        """What is left to do after an ending was handed in with others: all of it, if nothing was written."""
        if isinstance(came, Exception):
            if not db.is_disconnect(came) or self._is_still_ours():
                return self.commit_or_note(change, ms)
        elif came is None:
            raise Overtaken
        elif isinstance(came, RunStatus):
            count_ended(self.ports.meter, self.kind.name, came)
        point(Point.STEP_COMMITTED)
        return change.outcome

    def _is_still_ours(self) -> bool:
        """Asked after a lost answer: the row knows whether the commit happened."""
        state = self.ports.store.lane_state(self.turn.lane_id)
        return state is None or state.claim_token == self.turn.token

    def commit_lost(self) -> None:
        self.commit_or_note(self._change_by(self._lost), 0)

    def _look_and_decide(self) -> LaneChange:
        return self._change_by(lambda: change_for(self._decide(), self.turn))

    def _change_by(self, decide: Callable[[], LaneChange]) -> LaneChange:
        try:
            return decide()
        except Overtaken:
            raise
        except Exception as error:
            return self._after(error)

    def _lost(self) -> LaneChange:
        if self.turn.cancel_at is not None:
            return change_for(self.kind.on_cancel(self.turn, Calls(self.turn, self.ports)), self.turn)
        return self._after(self.kind.on_lost(self.turn))

    def _decide(self) -> Decision:
        turn, outside = self.turn, Calls(self.turn, self.ports)
        failure = before_looking(turn, self.kind.limits_for(turn))
        if failure is not None:
            return failure
        if turn.cancel_at is not None:
            return self.kind.on_cancel(turn, outside)
        closed = self._closed_gates()
        return closed if closed is not None else self.kind.take_step(self.turn, outside)

    def _closed_gates(self) -> Decision | None:
        keys = self.kind.gates(self.turn)
        if not keys or not self.turn.gated:
            return None
        passed = self.ports.store.pass_gates(self.turn, keys, self.ports.relay.lease_s)
        point(Point.STEP_GATED)
        if passed.wait_s is not None:
            instead = None if self.kind.at_closed_gate is None else self.kind.at_closed_gate(self.turn)
            if instead is not None:
                return instead
            wait_s = min(passed.wait_s, LONGEST_GATE_WAIT_S)
            gate = None if passed.closed_by is None else f"gate:{passed.closed_by}"
            return Wait(after_s=spread_s(wait_s, self.ports.chance.fraction()), waits_for=gate)
        self.turn = replace(self.turn, probes=passed.probes)
        return None

    def _after(self, error: Exception) -> LaneChange:
        if not isinstance(error, StepError):
            logger.exception("a step failed unexpectedly", extra={"lane": str(self.turn.lane_id)}, exc_info=error)
        fraction = self.ports.chance.fraction()
        try:
            return change_after(error, self.turn, self.kind.limits_for(self.turn), fraction)
        except Exception as worse:
            # A failure that cannot even be read, or limits that cannot be asked for, would come back for ever.
            logger.exception("a failure could not be judged", extra={"lane": str(self.turn.lane_id)})
            return change_after(worse, self.turn, self.kind.limits, fraction)

    def commit_or_note(self, change: LaneChange, ms: int) -> StepOutcome:
        """Commit the step; if its rows are the trouble, commit that it failed."""
        try:
            self._commit(change, ms)
        except Overtaken:
            raise
        except Exception as error:
            # A failure without rows has none to blame; noting it as one more attempt would clear the claims that found poison.
            gives_up = change.status is LaneStatus.FAILED
            # What took long outside is not called a failure because others keep the database busy.
            if db.is_disconnect(error) or (gives_up and not change.effects) or (self.turn.pulled and db.is_busy(error)):
                raise
            change = replace(change, effects=()) if gives_up else self._after(error)
            self._commit(change, ms)
        return change.outcome

    def _commit(self, change: LaneChange, ms: int) -> None:
        """Commit and send. After a lost answer the row is read: it knows whether the commit happened."""
        for tries_left in reversed(range(COMMIT_TRIES)):
            try:
                dues = commit(self.turn, change, self.kind, self.ports, ms)
            except Exception as error:
                if not tries_left or not (db.is_conflict(error) or db.is_disconnect(error)):
                    raise
                if not db.is_disconnect(error):
                    continue
                state = self.ports.store.lane_state(self.turn.lane_id)
                if state is None or state.claim_token == self.turn.token:
                    continue
                dues = _current(state)
            point(Point.STEP_COMMITTED)
            deliver(self.ports, dues)
            point(Point.STEP_SENT)
            if change.says or (change.status is not LaneStatus.ACTIVE and self.turn.holds_run):
                self.ports.announce(self.ports)
            return


def commit(turn: Turn, change: LaneChange, kind: Kind, ports: Ports, ms: int) -> list[Due]:
    """Write the step and everything that follows from it, or nothing. Answers the batons to send."""
    if _is_plain(turn, change) and _edge(turn, change) is None:
        due = ports.store.commit_turn(turn, change, ms)
        if due is None:
            raise Overtaken
        return [due]
    if _ends_alone(turn, change, kind) and (ending := _ending(turn, change, kind)) is not None:
        return _end_alone(turn, change, ending, ports, ms)
    return settling(lambda failed: _commit_and_settle(turn, change, kind, ports, ms, failed))


def commit_lost(turn: Turn, kind: Kind, ports: Ports) -> None:
    """Commit for a pulled turn that its worker was lost. Its kind looks outside only where the lane is canceled."""
    _Step(turn, kind, ports).commit_lost()


def _ends_alone(turn: Turn, change: LaneChange, kind: Kind) -> bool:
    """Whether a lane's end is its run's, so that one statement can say both."""
    return (
        turn.pulled
        and kind.ending is not None
        and change.status is not LaneStatus.ACTIVE
        and not change.lanes
        and not change.says
        and not turn.probes
        and change.closes_gate is None
    )


def _ending(turn: Turn, change: LaneChange, kind: Kind) -> Ending | None:
    """None: the kind raises. `settle` is asked instead, which is tried again and at last gone without."""
    assert kind.ending is not None
    try:
        return kind.ending(turn, change)
    except Exception:
        logger.exception("a kind does not say how a run ends", extra={"run": str(turn.run_id)})
        return None


def _end_alone(turn: Turn, change: LaneChange, ending: Ending, ports: Ports, ms: int) -> list[Due]:
    assert ports.offers is not None
    ended = ports.offers.end(turn, change, ending, ms)
    if ended is None:
        raise Overtaken
    if isinstance(ended, RunStatus):
        count_ended(ports.meter, turn.kind, ended)
    return []


def _commit_and_settle(
    turn: Turn, change: LaneChange, kind: Kind, ports: Ports, ms: int, failed: Unsettled | None
) -> list[Due]:
    with ports.store.begin(turn.tenant_id) as tx:
        run = tx.lock_run(turn.run_id, turn.tenant_id)
        if run is None:
            raise Overtaken
        point(Point.TURN_RUN_LOCKED)
        due = tx.commit_turn(turn, change, ms)
        if due is None:
            raise Overtaken
        dues = [due] if change.status is LaneStatus.ACTIVE else []
        _move_gates(tx, turn, change)
        point(Point.TURN_WRITTEN)
        run = mark_running(tx, run)
        if (edge := _edge(turn, change)) is not None:
            tx.add_edge(run, *edge)
        dues += create_lanes(tx, run, change.lanes, kind, ports)
        say(tx, kind, turn.tenant_id, change.says)
        # Nobody holds a pulled lane from here on: a cancel that was asked for meanwhile ends it now, not at another take.
        canceled = turn.pulled and run.cancel_requested_at is not None and tx.end_unclaimed(run.id) > 0
        if turn.holds_run and (canceled or change.status is not LaneStatus.ACTIVE):
            dues += settle(tx, run, kind, ports, failed)
        point(Point.TURN_SETTLED)
    return dues


def _is_plain(turn: Turn, change: LaneChange) -> bool:
    """A plain step never touches its run or a gate: one statement is enough."""
    return (
        change.status is LaneStatus.ACTIVE
        and turn.run_status is not RunStatus.QUEUED
        and not change.lanes
        and not change.says
        and not turn.probes
        and change.closes_gate is None
    )


def _edge(turn: Turn, change: LaneChange) -> tuple[Literal["first_failure", "recovered"], Json] | None:
    """What a step may have begun or ended for its whole run: attempts that fail. Pulled lanes keep a log of their attempts."""
    if turn.pulled or not turn.holds_run:
        return None
    if turn.attempts == 0 and change.outcome is StepOutcome.RETRIED:
        return "first_failure", {
            "lane": turn.key,
            "error": None if change.problem is None else change.problem.to_json(),
        }
    if turn.attempts > 0 and change.outcome in (StepOutcome.MOVED, StepOutcome.DONE):
        return "recovered", {"lane": turn.key, "attempts": turn.attempts}
    return None


def _move_gates(tx: Tx, turn: Turn, change: LaneChange) -> None:
    """A probe that worked opens its gates; one that failed closes them again; a throttled step closes one for all.

    A step that waited before it asked, or was throttled at another gate, knows nothing more: the next one is the probe.
    """
    if change.closes_gate is not None:
        tx.close_gate(turn.tenant_id, change.closes_gate)
    if not turn.probes:
        return
    if change.probe_undecided or change.closes_gate is not None:
        tx.reclose_gates(turn.tenant_id, turn.probes, turn.token, 0)
    elif change.outcome is StepOutcome.RETRIED:
        tx.reclose_gates(turn.tenant_id, turn.probes, turn.token, change.delay_s)
    else:
        tx.open_gates(turn.tenant_id, turn.probes, turn.token)


def _current(state: LaneState) -> list[Due]:
    sendable = state.status is LaneStatus.ACTIVE and state.due.delay_s <= LONGEST_QUEUE_DELAY_S
    return [state.due] if sendable else []


def _give_back(baton: Baton, token: UUID, ports: Ports) -> Lost:
    """Free the lane if the database lets us; if not, the lease runs out by itself. The API frees nothing here: its role sees no
    lane without a tenant, so a worker elsewhere keeps its job and tells the end again."""
    ports.meter.count(Metric.GIVEN_BACK, kind=baton.kind)
    try:
        ports.store.release(baton, token)
    except Exception:
        logger.exception("a lease could not be released", extra={"lane": str(baton.lane_id)})
    return Lost.GIVEN_BACK
