"""What must hold after every step of every schedule. The numbers are those of the test plan (I1-I14)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shared.kernel.errors import Permanent, Throttled
from shared.kernel.model import (
    Cancel,
    Continue,
    Decision,
    Fail,
    Finish,
    Judgement,
    LaneChange,
    StepOutcome,
    Turn,
    Verdict,
    Wait,
    idempotency_key,
)
from tests.simulation.scenario import CANARY, DELAY

if TYPE_CHECKING:
    from tests.simulation.world import World

MOST_CLAIMS = 6
REPAIRED_WITHIN_S = 300.0
IN_PEACE_WITHIN_S = 20.0
ENDED = ("succeeded", "failed", "canceled")
OUTCOMES: dict[type[Decision], StepOutcome] = {
    Continue: StepOutcome.MOVED,
    Wait: StepOutcome.WAITED,
    Finish: StepOutcome.DONE,
    Fail: StepOutcome.FAILED,
    Cancel: StepOutcome.CANCELED,
}


class Violation(BaseException):
    """A promise was broken. No product code may catch it on its way out."""


def require(holds: object, rule: str, *details: object) -> None:
    if not holds:
        raise Violation(f"{rule}: {', '.join(map(str, details))}")


def _patience_s(resends: int) -> float:
    """How long the tick may wait for a claim: written again here, so that the product cannot move its own goal."""
    return min(1800.0, 180.0 * 2.0 ** max(0, resends - 4))


def _place(row: Any) -> tuple[Any, ...]:
    """What changes when somebody deals with a row."""
    return (row.status, row.epoch, row.check_at, getattr(row, "seq", 0), getattr(row, "resend_no", 0))


@dataclass(frozen=True, slots=True)
class Commit:
    """A step as it was written: whose, what, and when."""

    turn: Turn
    change: LaneChange
    at: datetime
    disturbed: bool


@dataclass(frozen=True, slots=True)
class Due:
    """What a tick finds when it begins."""

    lanes: dict[UUID, tuple[Any, ...]]
    runs: dict[UUID, tuple[Any, ...]]


class Invariants:
    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: dict[UUID, SimpleNamespace] = {}
        self.lanes: dict[UUID, SimpleNamespace] = {}
        self.gates: dict[Any, SimpleNamespace] = {}
        self.moved_at: dict[UUID, float] = {}
        self.unclaimed: Counter[UUID] = Counter()
        self.owner: dict[UUID, UUID | None] = {}
        self.openers: set[UUID] = set()
        self.tick_sent: dict[str, float] = {}
        self.made_for: dict[str, tuple[UUID, int]] = {}
        self.repaired_at: dict[UUID, float] = {}
        self.run_lane_ids: dict[UUID, list[UUID]] = defaultdict(list)
        self.kind_of: dict[UUID, str] = {}
        self.tenants: dict[UUID, UUID] = {}
        self.answers: dict[UUID, tuple[str, Decision | Exception]] = {}
        self.commits: dict[tuple[UUID, int, int], Commit] = {}
        self.claimants: dict[tuple[UUID, int, int], set[UUID]] = defaultdict(set)
        self.given_back: set[UUID] = set()
        self.judged: dict[Any, dict[UUID, float]] = defaultdict(dict)
        self.resumed_at: dict[UUID, float] = {}
        self.born_at: dict[UUID, float] = {}
        self._rows_before: dict[UUID, SimpleNamespace] = {}
        self.asked_by: dict[tuple[UUID, int, str], UUID] = {}
        self.step_at: dict[UUID, dict[int, datetime]] = defaultdict(dict)
        self.pruned_at: dict[str, datetime] = {}
        self._written: list[Callable[[], None]] = []
        self._once_committed: list[Callable[[], None]] = []

    # Around the statements. A transaction is one move, so what it wrote is told by a flag of its own.

    def begun(self) -> None:
        self._once_committed.clear()

    def committed(self) -> None:
        for note in self._once_committed:
            note()
        self._once_committed.clear()

    def before(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "pass_gates":
            self._look()
        elif name in ("open_gates", "reclose_gates"):
            self.openers.add(args[2])
        elif name == "release":
            self.given_back.add(args[1])

    def after(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        match name:
            case "claim" if isinstance(result, Turn):
                self._claimed(result)
            case "commit_turn" if result is not None:
                self._committed(args[0], args[1])
            case "intend" if result is not None:
                turn, key = args[0], args[1]
                asked = self.asked_by.setdefault((turn.run_id, turn.run_epoch, key), turn.lane_id)
                self.world.seen["two lanes intend the same key"] += asked != turn.lane_id
                made_for = (turn.run_id, turn.run_epoch)
                known = self.made_for.setdefault(idempotency_key(turn.run_id, turn.run_epoch, key), made_for)
                require(known == made_for, "the key of a call is its epoch's own", key, known, made_for)
            case "pass_gates":
                self._passed(args[0], args[1], result)
                self._look()
                self._check_held(args[0])
            case "prune_runs":
                self._forget_pruned()
            case "prune":
                self.pruned_at[args[0]] = self.world.clock() - timedelta(days=args[1])
            case "lock_run" if self.world.current is not None and self.world.current.ticks:
                self.judged[self.world.current][args[0]] = self.world.now
            case "apply_judgements":
                self._judged(args[0])

    def _claimed(self, turn: Turn) -> None:
        world, lane = self.world, self.lanes.get(turn.lane_id)
        if lane is None:
            return
        run = self.runs[turn.run_id]
        named, actual = (turn.epoch, turn.seq), (lane.epoch, lane.seq)
        require(named == actual, "only the message of the current turn gives a turn", turn.key, named, actual)
        ahead = (lane.next_due_at - world.clock()).total_seconds()
        require(ahead <= 1.0, "a turn is taken when it is due", turn.key, ahead)
        self._punctual(turn, lane, -ahead)
        require(run.paused_at is None or turn.cancel_at is not None, "a paused run takes no turn", turn.key)
        holder = self.owner.get(turn.lane_id)
        if holder is not None and holder != turn.token and lane.lease_until is not None:
            require(lane.lease_until < world.clock(), "I6 one live claim", turn.key)
        self.owner[turn.lane_id] = turn.token
        self.claimants[turn.lane_id, turn.epoch, turn.seq].add(turn.token)
        self._bounded(turn)

    def _punctual(self, turn: Turn, lane: SimpleNamespace, late: float) -> None:
        """While nothing went wrong at all, no turn waits for a repair."""
        world = self.world
        slow = any(shut.slow_s for shut in world.scenario.shut)
        in_peace = world.scenario.tick and world.scenario.sends and not slow and not world.fault_count
        in_peace = in_peace and not world.fault_at(turn.kind)
        if in_peace and turn.claims == 1 and turn.kind in world.watched:
            late = min(late, world.now - self.moved_at[turn.lane_id])
            require(late <= IN_PEACE_WITHIN_S, "in peace every turn is taken on time", turn.key, late)

    def answered(self, turn: Turn, source: str, answer: Decision | Exception) -> None:
        """What the kind itself said in this turn."""
        self.answers[turn.token] = (source, answer)
        if turn.cancel_at is not None:
            require(source == "on_cancel", "a canceled lane does not work on", turn.key)

    def used(self, turn: Turn, remote_id: str) -> None:
        run, lane = self.runs.get(turn.run_id), self.lanes.get(turn.lane_id)
        if run is None or lane is None:
            return
        at_work = run.status not in ENDED and lane.epoch == turn.epoch and self.owner[turn.lane_id] == turn.token
        if at_work:
            self.world.seen["asset handed out"] += 1
            require(remote_id in self.world.things.values(), "an asset handed out exists", turn.key, remote_id)

    def _bounded(self, lane: Any) -> None:
        """Nobody works after the fifth claim; only claimants that the world itself killed may follow the sixth."""
        require(lane.claims <= MOST_CLAIMS + self.world.fault_count, "I13 claims are bounded", lane.key, lane.claims)

    def _committed(self, turn: Turn, change: LaneChange) -> None:
        require(self.owner.get(turn.lane_id) == turn.token, "I6 only the holder of the turn commits", turn.key)
        self.commits[turn.lane_id, turn.epoch, turn.seq] = Commit(
            turn, change, self.world.clock(), self.world.is_disturbed()
        )
        if turn.claims >= MOST_CLAIMS:
            require(change.outcome is StepOutcome.FAILED, "the sixth claimant commits the failure", change.outcome)
        if turn.cancel_at is not None and change.problem is not None:
            own = change.problem.code in ("timed_out", "max_steps")
            require(not own, "a canceled lane is asked to stop, whatever it has spent", turn.key, change.problem.code)
        if change.problem is not None and change.problem.code == "poison":
            died = self.claimants[turn.lane_id, turn.epoch, turn.seq] - self.given_back
            require(len(died) >= MOST_CLAIMS, "only deaths make poison", turn.key, len(died))
            self.world.seen["poison"] += 1

    def _passed(self, turn: Turn, keys: list[str], result: Any) -> None:
        now, held, blocked = self.world.clock(), False, False
        for gate in self.gates.values():
            if gate.key not in keys or gate.tenant_id not in (turn.tenant_id, None) or gate.state == "open":
                continue
            if gate.until > now and gate.holder != turn.token:
                blocked = True
                require(result.wait_s is not None, "nobody passes a closed gate", gate.key, gate.state)
            elif result.wait_s is None:
                held = True
                self.world.seen["gate probed"] += 1
                self.world.seen["shared gate probed"] += gate.tenant_id is None
                require(gate.key in result.probes, "one lane passes as the probe", gate.key)
        if not blocked:
            require(result.wait_s is None, "a gate whose time has come lets its probe through", keys, result.wait_s)
            self.world.seen["twin gates probed"] += held and self._twins(turn, keys, now)

    def _check_held(self, turn: Turn) -> None:
        for gate in self.gates.values():
            if gate.holder == turn.token:
                left = (gate.until - self.world.clock()).total_seconds()
                require(left >= 30, "a probe holds its gate for as long as it may work", gate.key, left)

    def _twins(self, turn: Turn, keys: list[str], now: datetime) -> bool:
        due = [g.key for g in self.gates.values() if g.tenant_id in (turn.tenant_id, None) and g.state != "open"]
        return any(due.count(key) > 1 for key in keys)

    def _judged(self, judgements: list[Judgement]) -> None:
        world = self.world
        judged = self.judged[world.current]
        for judgement in judgements:
            world.seen[f"tick {judgement.verdict}"] += 1
            lane = judgement.lane
            # Moved at the very instant of the first look, as by a cancel: it is another turn.
            again = judged.get(lane.lane_id, -1.0) > self.moved_at[lane.lane_id]
            require(not again, "no lane twice in one tick", lane.lane_id, judgement.verdict)
            self._once_committed.append(partial(judged.__setitem__, lane.lane_id, world.now))
            if judgement.verdict is Verdict.UNCLAIMED:
                self.unclaimed[lane.lane_id] += 1
            if judgement.send:
                if judgement.verdict is not Verdict.EXPIRED:
                    self._once_committed.append(partial(self._spaced, lane))
                known = self.lanes[lane.lane_id]
                holds = known.lease_until is not None and known.lease_until >= world.clock()
                require(not holds, "the tick does not disturb whoever works", lane.lane_id, judgement.verdict)
                require(
                    not lane.run_paused or lane.cancel_at is not None, "the tick feeds no paused lane", lane.lane_id
                )

    def _spaced(self, lane: Any) -> None:
        """A lane that did not move since it was repaired is left alone for a while."""
        lane_id = lane.lane_id
        again, self.repaired_at[lane_id] = self.repaired_at.get(lane_id, -1e9), self.world.now
        if again >= self.moved_at[lane_id] and again > self.world.fault_at(lane.kind):
            require(self.world.now - again >= 100, "repairs are spaced", lane_id, self.world.now - again)

    def tick_begins(self) -> Due:
        now = self.world.clock()
        return Due(
            {lane.id: _place(lane) for lane in self.lanes.values() if lane.status == "active" and lane.check_at <= now},
            {run.id: _place(run) for run in self.runs.values() if run.status not in ENDED and run.check_at <= now},
        )

    def tick_ends(self, due: Due, report: Any, *, disturbed: bool) -> None:
        """Whatever was due when the tick began had its turn, in however many batches, whoever's queue is shut."""
        self._look()
        handled = self.judged.pop(self.world.current, {})
        if disturbed:
            return
        self.world.seen["tick of more than a batch"] += len(due.lanes) > self.world.scenario.tick_batch
        passed_over = [
            lane
            for lane, place in due.lanes.items()
            if lane not in handled and lane in self.lanes and _place(self.lanes[lane]) == place
        ]
        if report.finished:
            closed = {shut.queue for shut in self.world.scenario.shut}
            kinds = {self.lanes[lane].kind for lane in passed_over} & self.world.watched
            open_to = [kind for kind in kinds if not closed & {self.world.ports.relay.queue_of(kind), DELAY}]
            require(not open_to, "every due lane has its turn in the tick", open_to)
        waiting = [run for run, place in due.runs.items() if run not in handled and _place(self.runs[run]) == place]
        require(not waiting or not report.finished, "every due run has its turn in the tick", waiting)
        if len(due.runs) <= self.world.scenario.tick_batch:
            require(not waiting, "runs have their turn however long lanes take", waiting)

    def visited(self, turn: Turn) -> None:
        require(turn.params["canary"] == CANARY, "the step reads its run's params", turn.key)

    def made(self, key: str, *, by_a_zombie: bool) -> None:
        world, (run_id, _) = self.world, self.made_for[key]
        excused = by_a_zombie or key in world.zombie_things or self._shares_its_asset(run_id)
        require(excused or key not in world.things, "I7 nothing is made twice", key)

    def removed(self, key: str) -> None:
        """Clean-up is for what an ended try has left; what the present try made is in use."""
        run_id, epoch = self.made_for[key]
        run = self.runs.get(run_id)
        in_use = run is not None and run.status in ("queued", "running") and run.epoch == epoch
        require(not in_use, "nothing in use is removed", key, epoch)

    def delivered(self, body: str, dedup_id: str | None) -> None:
        self.tick_sent.pop(dedup_id or "", None)
        require(CANARY not in body, "I11 no secret in a message", body)

    # After a move.

    def after_a_move(self) -> None:
        self._look()

    def after_a_jump(self) -> None:
        """I14: after the last fault, nothing that is due stays still for longer than the promise."""
        world = self.world
        if not world.scenario.tick:
            return
        for lane in self.lanes.values():
            if lane.status == "active":
                self._check_time_of_lane(lane)
        for run in self.runs.values():
            if run.status not in ENDED and run.deadline_at is not None and run.paused_at is None:
                if any(self._raised(run)):
                    continue
                since = max(self._virtual(run.deadline_at), world.last_fault_at, self.resumed_at.get(run.id, 0.0))
                require(world.now - since <= 240, "a run's deadline fires on time", world.now - since)

        for dedup_id, sent_at in list(self.tick_sent.items()):
            if world.last_fault_at >= sent_at or self._is_outgrown(dedup_id):
                del self.tick_sent[dedup_id]
            else:
                require(world.now - sent_at <= 100, "a repair waits behind nobody", dedup_id, world.now - sent_at)

    def _virtual(self, moment: datetime) -> float:
        return (moment - self.world.clock()).total_seconds() + self.world.now

    def _check_time_of_lane(self, lane: SimpleNamespace) -> None:
        world, run = self.world, self.runs[lane.run_id]
        if run.paused_at is not None and lane.cancel_at is None:
            return
        fault_at, resumed_at = world.fault_at(lane.kind), self.resumed_at.get(run.id, 0.0)
        quiet_since = max(self._virtual(lane.next_due_at), self.moved_at[lane.id], fault_at)
        patience = max(REPAIRED_WITHIN_S, _patience_s(self.unclaimed[lane.id]) + 120)
        if not world.scenario.sends:
            patience += 300
        elif world.scenario.shut and not world.fault_count and lane.kind in world.watched:
            patience = 180.0  # what a queue refused is known: the next tick sends it
        late = world.now - quiet_since
        require(late <= patience, "I14 repaired in time", lane.key, late, patience)
        if lane.deadline_at is not None and lane.cancel_at is None:
            late = world.now - max(self._virtual(lane.deadline_at), fault_at, resumed_at)
            require(late <= patience, "a lane's deadline fires on time", lane.key, late)

    def _is_outgrown(self, dedup_id: str) -> bool:
        """A tick that was held up may send what its lane has left behind: nobody needs that, wherever it waits."""
        lane_id, epoch, seq, resend_no = dedup_id.split(":")
        lane = self.lanes.get(UUID(lane_id))
        return lane is None or (lane.epoch, lane.seq, lane.resend_no) != (int(epoch), int(seq), int(resend_no))

    def _look(self) -> None:
        world = self.world
        if not world.store.has_changed():  # type: ignore[attr-defined]
            return
        for kind, row in world.store.changed():  # type: ignore[attr-defined]
            if kind == "lane":
                self._check_lane(row)
            elif kind == "gate":
                self._check_gate(row)
        for _, row in world.store.changed_runs():  # type: ignore[attr-defined]
            self._check_run(row)
        self._rows_before.clear()
        if self._written:
            written, self._written = self._written, []
            for check in written:
                check()

    def _check_lane(self, lane: SimpleNamespace) -> None:
        world, before = self.world, self.lanes.get(lane.id)
        self.lanes[lane.id] = lane
        self.owner[lane.id] = lane.claim_token
        if before is None:
            self.run_lane_ids[lane.run_id].append(lane.id)
            self.born_at[lane.id] = world.now
            self.moved_at[lane.id] = world.now
            require(lane.key != "final" or lane.cancel_at is None, "a run being canceled opens no next phase")
            return
        self._rows_before[lane.id] = before
        self._check_absorbed(before, lane)
        require(lane.resend_no >= before.resend_no, "resend_no never goes back", lane.key)
        self._bounded(lane)
        require(lane.tenant_id == before.tenant_id, "I10 a lane keeps its tenant", lane.key)
        frugal = lane.steps <= lane.max_steps or lane.cancel_at is not None
        require(frugal, "no lane takes more steps than it may", lane.key, lane.steps)
        moved = ("epoch", "seq", "claims", "cancel_at", "next_due_at")
        if any(getattr(lane, name) != getattr(before, name) for name in moved):
            self.moved_at[lane.id] = world.now
            self.unclaimed[lane.id] = 0
        if lane.seq != before.seq:
            require(lane.claims <= 1 or lane.claim_token is not None, "every commit clears the claims", lane.key)
            self._check_ledger(before, lane)
        elif lane.claim_token is None and before.claim_token is not None:
            self._check_freed(before, lane)
        if lane.epoch != before.epoch:
            require(
                (lane.claims, lane.attempts, lane.cancel_at, lane.steps) == (0, 0, None, 0),
                "a new epoch begins fresh", lane.key,
            )  # fmt: skip
            fresh = lane.deadline_at is None or lane.deadline_at > world.clock()
            require(fresh, "a new epoch has its time again", lane.key, lane.deadline_at)
        elif lane.deadline_at != before.deadline_at:
            self.world.seen["deadline of a lane moved"] += 1

    def _check_freed(self, before: SimpleNamespace, lane: SimpleNamespace) -> None:
        live = before.lease_until >= self.world.clock() and (lane.epoch, lane.status) == (before.epoch, "active")
        ours = before.claim_token in self.given_back
        require(not live or ours, "only its holder gives a lease back", lane.key)

    def _check_absorbed(self, before: SimpleNamespace, lane: SimpleNamespace) -> None:
        require((lane.epoch, lane.seq) >= (before.epoch, before.seq), "I3 epoch and seq only grow", lane.key)
        if before.status != "active" and lane.epoch == before.epoch:
            same = (lane.status, lane.seq) == (before.status, before.seq)
            require(same, "I3 terminal states absorb", lane.key, before.status, lane.status)
        if lane.status != "active":
            require(lane.claim_token is None, "every ending clears the token", lane.key)

    def _check_ledger(self, before: SimpleNamespace, lane: SimpleNamespace) -> None:
        steps = self.world.store.steps_of(lane.id)  # type: ignore[attr-defined]
        seqs = sorted(seq for _, seq, _ in steps)
        commit = self.commits.get((lane.id, lane.epoch, before.seq))
        self.step_at[lane.id][before.seq] = self.world.clock() if commit is None else commit.at
        kept = [seq for seq in range(lane.seq) if self._is_kept("step", self.step_at[lane.id].get(seq))]
        complete = seqs[len(seqs) - len(kept) :] == kept and len(set(seqs)) == len(seqs)
        require(complete, "I2 the ledger has no gap and no double", lane.key, seqs, kept)
        self._check_rows(lane)
        if lane.seq != before.seq + 1 or lane.epoch != before.epoch:
            return
        outcome = next(outcome for _, seq, outcome in steps if seq == before.seq)
        self.world.seen[f"step {outcome}"] += 1
        spent = (lane.attempts, lane.steps)
        match outcome:
            case "waited" | "throttled":
                require(spent == (before.attempts, before.steps), "a wait spends nothing", lane.key, spent)
            case "moved" | "done":
                # A kind may renew the budget of a lane that is meant to live.
                require(spent in ((0, before.steps + 1), (0, 0)), "progress clears the attempts", lane.key, spent)
            case "retried":
                require(spent == (before.attempts + 1, before.steps), "a retry spends an attempt", lane.key, spent)
                require(lane.cursor == before.cursor, "a retry keeps its place", lane.key)
        if commit is not None:
            self._check_written(before, lane, commit)

    def _check_rows(self, lane: SimpleNamespace) -> None:
        """The tally's own: its cursor says how many rows there are."""
        counted = sorted(self.world.store.tally_of(lane.run_id, lane.key))  # type: ignore[attr-defined]
        expected = [(lane.tenant_id, n) for n in range(lane.cursor.get("n", 0))]
        require(counted == expected, "I1 every row once, and of its tenant", lane.key, counted, expected)

    def _is_kept(self, table: str, at: datetime | None) -> bool:
        """Whether no sweep may have taken it."""
        return table not in self.pruned_at or (at is not None and at >= self.pruned_at[table])

    def _check_written(self, before: SimpleNamespace, lane: SimpleNamespace, commit: Commit) -> None:
        """What stands in the row is what the kind said, and it is due when it said."""
        change, turn = commit.change, commit.turn
        source, answer = self.answers.get(turn.token, ("", None))
        if lane.status == "active":
            woken = lane.resends > 0  # its claim made that 0: a wake of the run came meanwhile
            surprised = turn.cancel_at is None and (lane.cancel_at is not None or woken)
            self.world.seen["a step is woken on its way"] += woken
            due = commit.at if surprised else commit.at + timedelta(seconds=change.delay_s)
            off = abs((lane.next_due_at - due).total_seconds())
            require(off < 0.001, "the next turn is due when the step said", lane.key, change.outcome, off)
            self.world.seen["canceled lane waits"] += turn.cancel_at is not None and change.delay_s > 0
        if turn.cancel_at is not None:
            self.world.seen[f"on_cancel {change.outcome}"] += bool(source)
        self._written.append(lambda: self._check_gates_after(commit, answer))
        if turn.kind not in self.world.watched:
            return
        if not source or answer is None:
            require(lane.cursor == before.cursor, "what the kind did not see keeps its place", lane.key)
            blamed = change.outcome in (StepOutcome.RETRIED, StepOutcome.THROTTLED) and not commit.disturbed
            require(not blamed, "no attempt is spent where nothing was attempted", lane.key, change.outcome)
            return
        undone = change.outcome in (StepOutcome.RETRIED, StepOutcome.FAILED)
        if isinstance(answer, Exception) or (undone and not isinstance(answer, Fail)):
            kept = isinstance(answer, Exception) or commit.disturbed
            require(kept, "what the kind decided is committed", lane.key, change.outcome, type(answer).__name__)
            require(lane.cursor == before.cursor, "a failure keeps its place", lane.key)
            self._check_failure(answer, change)
            return
        require(
            change.outcome is OUTCOMES[type(answer)], "what the kind decided is committed", lane.key, change.outcome
        )
        cursor = getattr(answer, "cursor", None)
        require(lane.cursor == (before.cursor if cursor is None else cursor), "the cursor is the kind's", lane.key)
        if isinstance(answer, Continue | Wait):
            require(change.delay_s == answer.after_s, "the kind's wait is kept", lane.key, change.delay_s)
            self.world.seen["wait made by a kind"] += isinstance(answer, Wait)
        made = [new.key for new in getattr(answer, "lanes", ())]
        if made:
            self._written.append(lambda: self._check_made(lane.run_id, made))

    def _check_failure(self, answer: Any, change: LaneChange) -> None:
        match answer:
            case Throttled():
                # A commit that the database broke off is noted as an attempt.
                kept = change.outcome is StepOutcome.THROTTLED or self.world.fault_count
                require(kept, "throttled is no failure", change.outcome)
            case Permanent():
                require(change.outcome is StepOutcome.FAILED, "what cannot be helped fails at once", change.outcome)

    def _check_made(self, run_id: UUID, keys: list[str]) -> None:
        there = {self.lanes[lane_id].key for lane_id in self.run_lane_ids[run_id]}
        require(there.issuperset(keys), "lanes are made with the step that wants them", keys)

    def _check_gates_after(self, commit: Commit, answer: Any) -> None:
        turn, change, at = commit.turn, commit.change, commit.at
        for gate in self.gates.values():
            # Whoever did not hear that it is the probe leaves the gate to the next one, a lease later.
            holds = gate.holder == turn.token and not commit.disturbed
            require(not holds, "a probe that has committed holds no gate", gate.key, change.outcome)
        if turn.probes and change.outcome is StepOutcome.RETRIED:
            until = at + timedelta(seconds=change.delay_s - 0.001)
            due = [g.key for g in self.gates.values() if g.key in turn.probes and self._is_ours(g, turn, at, until)]
            require(not due, "a failed probe closes its gate for a while", due, change.delay_s)
        if isinstance(answer, Throttled) and change.outcome is StepOutcome.THROTTLED:
            shut = self.gates.get((answer.gate, None if answer.shared else turn.tenant_id))
            until = at + timedelta(seconds=answer.retry_after_s)
            closed = shut is not None and shut.state == "closed" and shut.until >= until
            require(closed, "a 429 closes its gate", answer.gate, shut)
            self.world.seen["shared gate closed"] += answer.shared

    def _is_ours(self, gate: SimpleNamespace, turn: Turn, at: datetime, until: datetime) -> bool:
        """Whether this gate was closed by that commit, and opens before its time."""
        return gate.tenant_id in (turn.tenant_id, None) and gate.state == "closed" and at <= gate.until < until

    def _check_gate(self, gate: SimpleNamespace) -> None:
        key, now = (gate.key, gate.tenant_id), self.world.clock()
        before = self.gates.get(key)
        self.gates[key] = gate
        if before is None:
            return
        if gate.state == "open" and before.state != "open":
            ours = before.state == "probing" and before.holder in self.openers
            require(ours, "only its probe opens a gate", before.state, before.holder)
            self._check_probe(before.holder, gate)
            self.world.seen["gate opened"] += 1
        elif gate.state != "open" and before.state != "open" and before.until > now:
            ours = before.holder is not None and before.holder in self.openers
            require(gate.until >= before.until or ours, "nobody shortens a closed gate", before.until, gate.until)
            self.world.seen["gate closed again by its probe"] += ours

    def _check_probe(self, token: UUID, gate: SimpleNamespace) -> None:
        """Only an answer of the upstream opens a gate: no failure on the way to it, and no 429."""
        _, answer = self.answers.get(token, ("", None))
        failed = isinstance(answer, Exception) and not isinstance(answer, Permanent)
        require(not failed, "a failed probe closes its gate again", gate.key, type(answer).__name__)

    def _check_run(self, run: SimpleNamespace) -> None:
        before = self.runs.get(run.id)
        self.runs[run.id] = run
        if run.leaving_since is not None:
            require(run.status in ENDED, "only an ended run leaves", run.status)
            return
        self.kind_of[run.id], self.tenants[run.id] = run.kind, run.tenant_id
        lanes = [self.lanes[lane_id] for lane_id in self.run_lane_ids[run.id]]
        is_open = any(lane.status == "active" and lane.holds_run for lane in lanes)
        ended = run.status in ENDED
        # A kind that raises where its run is settled leaves it to the tick.
        unsettled = not ended and not is_open and any(self._raised(run))
        require(ended != is_open or unsettled, "I5 a run is open exactly as long as a lane holds it", run.status)
        require(all(lane.tenant_id == run.tenant_id for lane in lanes), "I10 lanes belong to their run's tenant")
        terminal = [(epoch, type_) for epoch, type_ in run.lines if type_ in ENDED]
        expected = list(range(1, run.epoch + ended))
        require([epoch for epoch, _ in terminal] == expected, "I4 one terminal line per ended epoch", run.lines)
        if ended:
            # A lane that does not hold the run may be helped after the end.
            last = next(line for line in reversed(run.lines) if line[1] not in ("lane_woken", "lane_restarted"))
            require(last == (run.epoch, run.status), "the last line says how it ended", last, run.status)
            require(run.paused_at is None, "every ending clears the pause")
        if run.cancel_requested_at is not None and not ended:
            born = [lane.key for lane in lanes if lane.status == "active" and lane.holds_run and lane.cancel_at is None]
            require(not born, "every open lane of a canceled run is canceled", born)
        if any(lane.cancel_at is not None and not lane.holds_run for lane in lanes):
            raise Violation("cancel does not touch clean-up lanes")
        if before is not None:
            self._check_run_moves(before, run, lanes)

    def _raised(self, run: SimpleNamespace) -> list[int]:
        return [self.world.raised[run.id, run.epoch, what] for what in ("settle", "on_end")]

    def _check_run_moves(self, before: SimpleNamespace, run: SimpleNamespace, lanes: list[SimpleNamespace]) -> None:
        was_ended = before.status in ENDED
        require(run.epoch >= before.epoch, "I3 a run's epoch only grows")
        if was_ended and run.epoch == before.epoch:
            require(run.status == before.status, "I3 terminal states absorb", before.status, run.status)
            return
        if run.epoch > before.epoch:
            require(was_ended or before.epoch == 0, "only an ended run is tried again", before.status)
            require(run.cancel_requested_at is None, "a new epoch knows no cancel")
            fresh = run.deadline_at is None or run.deadline_at > self.world.clock() or run.status in ENDED
            require(fresh, "a new epoch has its time again", run.deadline_at)
        if run.status in ENDED:
            self._check_ending(before, run, lanes)
        if before.paused_at is not None and run.paused_at is None:
            if run.deadline_at is not None and run.cancel_requested_at is None and run.status not in ENDED:
                kept = run.deadline_at - before.deadline_at >= self.world.clock() - before.paused_at - timedelta(
                    seconds=60  # it is looked at a little after it was resumed
                )
                require(kept, "a pause takes no time from a run", run.deadline_at, before.deadline_at)
            self.resumed_at[run.id] = self.world.now
            for lane in lanes:
                self.moved_at[lane.id] = self.world.now
                self.unclaimed[lane.id] = 0
                self._check_lanes_time(before, lane)
                self.world.seen["side lane woken"] += not lane.holds_run and lane.status == "active"

    def _check_lanes_time(self, before: SimpleNamespace, lane: SimpleNamespace) -> None:
        if lane.status != "active" or lane.deadline_at is None or lane.cancel_at is not None:
            return
        # It is looked at after the batons were sent, and a queue that takes nothing takes its time.
        paused_s = min(self.world.now - self._virtual(before.paused_at), self.world.now - self.born_at[lane.id]) - 15
        was = self._rows_before.get(lane.id, lane)
        if was.epoch == lane.epoch:
            longer_s = (lane.deadline_at - was.deadline_at).total_seconds()
            require(longer_s >= paused_s, "a pause takes no time from a lane", lane.key, longer_s, paused_s)

    def _check_ending(self, before: SimpleNamespace, run: SimpleNamespace, lanes: list[SimpleNamespace]) -> None:
        late = (
            lane for lane in lanes if (lane.last_error or {}).get("code") == "timed_out" and lane.status == "failed"
        )
        for lane in late:
            limits = [moment for moment in (lane.deadline_at, run.deadline_at) if moment is not None]
            if not limits:
                continue  # a budget of the kind's own, by a remote clock
            early = not any(moment <= self.world.clock() for moment in limits)
            require(not early, "nothing times out early", lane.key)
            self.world.seen["lane timed out"] += 1
        if run.outcome == "timed_out" and run.deadline_at is not None:
            told = any((lane.last_error or {}).get("code") == "timed_out" for lane in lanes if lane.status == "failed")
            require(told or any(self._raised(run)), "lanes say that their run's time was over", run.id)
            require(before.paused_at is None or run.cancel_requested_at, "the deadline spares paused runs")
            require(run.deadline_at <= self.world.clock(), "nothing times out early")
            self.world.seen["run timed out"] += 1
        signals = self.world.store.signals_of(run.id)  # type: ignore[attr-defined]
        ours = [name for epoch, name in signals if epoch == run.epoch and name.startswith("run.")]
        require(ours == [f"run.{run.status}"], "every ending leaves its signal, once", ours, run.status)
        undone = [lane.key for lane in lanes if lane.holds_run and lane.status != "done"]
        if run.cancel_requested_at is not None and undone:
            require(run.status == "canceled", "what a cancel cuts short is canceled", run.status, run.outcome)
            if run.deadline_at is not None and run.deadline_at <= self.world.clock():
                self.world.seen["canceled run past its deadline"] += 1
        ours_to_clean = run.kind in self.world.watched and run.params.get("assets")
        if ours_to_clean and not run.params.get("leaks") and not self._raised(run)[1]:
            cleans = any(lane.key == f"cleanup/{run.epoch}" for lane in lanes)
            require(cleans, "every ending leaves its clean-up", run.status)
        self.world.seen["run ended before its side lane"] += any(
            lane.status == "active" and lane.key.startswith("side") for lane in lanes
        )

    # Retention.

    def _forget_pruned(self) -> None:
        """What is gone was over, long enough ago, and nothing of it was still at work or outside."""
        world = self.world
        runs, lanes = world.store.present()  # type: ignore[attr-defined]
        kept = timedelta(days=world.scenario.retention.get("run", 0))
        for lane_id in [lane_id for lane_id in self.lanes if lane_id not in lanes]:
            lane = self.lanes.pop(lane_id)
            require(lane.status != "active", "no lane is pruned that works", lane.key)
            self.run_lane_ids[lane.run_id].remove(lane_id)
            self._check_may_leave(self.runs[lane.run_id], kept)
        for run_id in [run_id for run_id in self.runs if run_id not in runs]:
            self._check_may_leave(self.runs.pop(run_id), kept)
            require(not self.run_lane_ids[run_id], "a run leaves after its lanes", run_id)
            if self.kind_of[run_id] == "count":
                left = world.store.rows_left(run_id)  # type: ignore[attr-defined]
                require(not left, "a kind's own rows leave with its run", left)
            world.seen["run pruned"] += 1

    def _check_may_leave(self, run: SimpleNamespace, kept: timedelta) -> None:
        require(run.status in ENDED, "only an ended run leaves", run.status)
        require(run.finished_at <= self.world.clock() - kept, "a run stays for its retention", run.finished_at)
        outside = [call for call in self.world.store.left_outside() if call.run_id == run.id]  # type: ignore[attr-defined]
        require(not outside, "a run stays while an asset of it is outside", outside)

    def sweep_ends(self, *, disturbed: bool) -> None:
        """A sweep that nothing disturbed leaves nothing that is too old."""
        self._look()
        self._forget_pruned()
        world, retention = self.world, self.world.scenario.retention
        if disturbed or not retention:
            return
        world.seen["sweep"] += 1
        now, day = world.clock(), timedelta(days=1)
        for table, oldest in world.store.oldest().items():  # type: ignore[attr-defined]
            spared = day if table == "step" else timedelta()  # the ledger leaves by whole days
            limit = now - retention[table] * day - spared - timedelta(seconds=1)
            require(oldest is None or oldest >= limit, "what is too old is gone", table, oldest, limit)
        require(not world.store.rows_of_nobody(), "nothing stays of what is gone", world.store.rows_of_nobody())  # type: ignore[attr-defined]

    # What the world asks.

    def open_work(self) -> list[str]:
        open_runs = [f"run {run.status}" for run in self.runs.values() if run.status in ("queued", "running")]
        lanes = [f"lane {lane.key} {lane.epoch}/{lane.seq}" for lane in self.lanes.values() if lane.status == "active"]
        return open_runs + lanes

    def next_look_at(self) -> float:
        """When a tick would next find anything."""
        lanes = [lane.check_at for lane in self.lanes.values() if lane.status == "active"]
        looks = lanes + [run.check_at for run in self.runs.values() if run.status not in ENDED]
        return self._virtual(min(looks)) if looks else math.inf

    def something_to_look_at(self) -> bool:
        """Whether a tick would find anything."""
        now = self.world.clock()
        lanes = any(lane.status == "active" and lane.check_at <= now for lane in self.lanes.values())
        return lanes or any(run.status in ("queued", "running") and run.check_at <= now for run in self.runs.values())

    def is_paused(self, run_id: UUID) -> bool:
        return run_id in self.runs and self.runs[run_id].paused_at is not None

    def tenant_of(self, run_id: UUID) -> UUID:
        return self.tenants[run_id]

    def lane_ids(self, run_id: UUID) -> list[UUID]:
        return sorted(self.run_lane_ids[run_id])

    def at_the_end(self) -> None:
        world = self.world
        for run in self.runs.values():
            lanes = [self.lanes[lane_id] for lane_id in self.run_lane_ids[run.id] if self.lanes[lane_id].holds_run]
            if run.status == "succeeded":
                lanes = [lane for lane in lanes if "cancel" not in lane.cursor]
                complete = all(lane.status == "done" and lane.cursor["n"] == run.params["target"] for lane in lanes)
                require(complete, "a run that succeeded has done all its work", [lane.cursor for lane in lanes])
            begin, end = world.scenario.burst
            if end > begin:
                surprised = [lane for lane in lanes if (lane.last_error or {}).get("code") == "unexpected"]
                failed = [lane.key for lane in surprised if lane.status == "failed"]
                require(not failed, "a bad minute fails no lane", failed)
        if world.scenario.redelivery:
            require(not self.open_work(), "redelivery alone is enough", self.open_work())
        if world.scenario.tick:
            self._nothing_left_outside()

    def _shares_its_asset(self, run_id: UUID) -> bool:
        """Also of a run whose start was never answered."""
        run = self.runs.get(run_id)
        return run_id in self.world.one_asset or bool(run is not None and run.params.get("same_asset"))

    def _nothing_left_outside(self) -> None:
        """I7: what was made outside was made once per key, and is gone or still listed."""
        world = self.world
        listed = {
            idempotency_key(call.run_id, call.epoch, call.key)
            for call in world.store.left_outside()  # type: ignore[attr-defined]
        }
        # Two lanes may ask for the same asset at once: both pass the same key, and the upstream knows it.
        shared = {key for key, (run, _) in self.made_for.items() if self._shares_its_asset(run)}
        twice = {key for key, times in world.made.items() if times > 1} - world.zombie_things - shared
        require(not twice, "I7 nothing is made twice", twice)
        forgotten = set(world.things) - listed - world.zombie_things
        require(not forgotten, "I7 nothing is left outside unlisted", forgotten)
        if not world.seen["CleanFailed"]:  # else it is put off for a while
            left = set(world.things) - world.zombie_things
            require(not left, "what a run left outside is removed in the end", left)
