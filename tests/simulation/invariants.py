"""What must hold after every step of every schedule. The numbers are those of the test plan (I1-I14)."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shared.kernel.model import Judgement, LaneChange, StepOutcome, Turn, Verdict, idempotency_key
from tests.simulation.scenario import CANARY

if TYPE_CHECKING:
    from tests.simulation.world import World

MOST_CLAIMS = 6
REPAIRED_WITHIN_S = 300.0


class Violation(BaseException):
    """A promise was broken. No product code may catch it on its way out."""


def require(holds: object, rule: str, *details: object) -> None:
    if not holds:
        raise Violation(f"{rule}: {', '.join(map(str, details))}")


def _patience_s(resends: int) -> float:
    """How long the tick may wait for a claim: written again here, so that the product cannot move its own goal."""
    return min(1800.0, 180.0 * 2.0 ** max(0, resends - 4))


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

    # Around the statements.

    def before(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "pass_gates":
            self._look()
        if name in ("open_gates", "reclose_gates"):
            self.openers.add(args[2])

    def after(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        match name:
            case "claim" if isinstance(result, Turn):
                self._claimed(result)
            case "commit_turn" if result is not None:
                self._committed(args[0], args[1])
            case "intend" if result is not None:
                turn, key = args[0], args[1]
                self.made_for[idempotency_key(turn.run_id, turn.run_epoch, key)] = (turn.run_id, turn.run_epoch)
            case "pass_gates":
                self._passed(args[0], args[1], result)
                self._look()
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
        require(ahead <= 1.0 or lane.cancel_at is not None, "a turn is taken when it is due", turn.key, ahead)
        require(run.paused_at is None or turn.cancel_at is not None, "a paused run takes no turn", turn.key)
        holder = self.owner.get(turn.lane_id)
        if holder is not None and holder != turn.token and lane.lease_until is not None:
            require(lane.lease_until < world.clock(), "I6 one live claim", turn.key)
        self.owner[turn.lane_id] = turn.token
        self._bounded(turn)

    def _bounded(self, lane: Any) -> None:
        """Nobody works after the fifth claim; only claimants that the world itself killed may follow the sixth."""
        require(lane.claims <= MOST_CLAIMS + self.world.fault_count, "I13 claims are bounded", lane.key, lane.claims)

    def _committed(self, turn: Turn, change: LaneChange) -> None:
        require(self.owner.get(turn.lane_id) == turn.token, "I6 only the holder of the turn commits", turn.key)
        if turn.claims >= MOST_CLAIMS:
            require(change.outcome is StepOutcome.FAILED, "the sixth claimant commits the failure", change.outcome)
        if turn.cancel_at is not None:
            allowed = (StepOutcome.CANCELED, StepOutcome.FAILED, StepOutcome.RETRIED, StepOutcome.THROTTLED)
            require(change.outcome in allowed, "a canceled lane does not work on", change.outcome)

    def _passed(self, turn: Turn, keys: list[str], result: Any) -> None:
        now = self.world.clock()
        for gate in self.gates.values():
            if gate.key not in keys or gate.tenant_id not in (turn.tenant_id, None) or gate.state == "open":
                continue
            if gate.until > now and gate.holder != turn.token:
                require(result.wait_s is not None, "nobody passes a closed gate", gate.key, gate.state)
            elif result.wait_s is None:
                self.world.seen["gate probed"] += 1
                require(gate.key in result.probes, "one lane passes as the probe", gate.key)

    def _judged(self, judgements: list[Judgement]) -> None:
        for judgement in judgements:
            self.world.seen[f"tick {judgement.verdict}"] += 1
            lane = judgement.lane
            if judgement.verdict is Verdict.UNCLAIMED:
                self.unclaimed[lane.lane_id] += 1
            if judgement.send:
                self._spaced(lane.lane_id)
                require(
                    not lane.run_paused or lane.cancel_at is not None, "the tick feeds no paused lane", lane.lane_id
                )

    def _spaced(self, lane_id: UUID) -> None:
        """A lane that did not move since it was repaired is left alone for a while."""
        again, self.repaired_at[lane_id] = self.repaired_at.get(lane_id, -1e9), self.world.now
        if again >= self.moved_at[lane_id] and again > self.world.last_fault_at:
            require(self.world.now - again >= 100, "repairs are spaced", lane_id, self.world.now - again)

    def visited(self, turn: Turn) -> None:
        require(turn.params["canary"] == CANARY, "the step reads its run's params", turn.key)

    def removed(self, key: str) -> None:
        """Clean-up is for what an ended try has left; what the present try made is in use."""
        run_id, epoch = self.made_for[key]
        run = self.runs[run_id]
        in_use = run.status in ("queued", "running") and run.epoch == epoch
        require(not in_use, "nothing in use is removed", key, run.status, epoch)

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
            run = self.runs[lane.run_id]
            if lane.status != "active" or (run.paused_at is not None and lane.cancel_at is None):
                continue
            due = (lane.next_due_at - world.clock()).total_seconds() + world.now
            if lane.cancel_at is not None:  # a cancel waits for nothing
                due = min(due, world.now)
            quiet_since = max(due, self.moved_at[lane.id], world.last_fault_at)
            patience = max(REPAIRED_WITHIN_S, _patience_s(self.unclaimed[lane.id]) + 120)
            if not world.scenario.sends:
                patience += 300
            require(
                world.now - quiet_since <= patience, "I14 repaired in time", lane.key, world.now - quiet_since, patience
            )

        for dedup_id, sent_at in list(self.tick_sent.items()):
            if world.last_fault_at >= sent_at or self._is_outgrown(dedup_id):
                del self.tick_sent[dedup_id]
            else:
                require(world.now - sent_at <= 100, "a repair waits behind nobody", dedup_id, world.now - sent_at)

    def _is_outgrown(self, dedup_id: str) -> bool:
        """A tick that was held up may send what its lane has left behind: nobody needs that, wherever it waits."""
        lane_id, epoch, seq, resend_no = dedup_id.split(":")
        lane = self.lanes[UUID(lane_id)]
        return (lane.epoch, lane.seq, lane.resend_no) != (int(epoch), int(seq), int(resend_no))

    def _look(self) -> None:
        world = self.world
        for kind, row in world.store.changed():  # type: ignore[attr-defined]
            if kind == "lane":
                self._check_lane(row)
            elif kind == "gate":
                self._check_gate(row)
        for _, row in world.store.changed_runs():  # type: ignore[attr-defined]
            self._check_run(row)

    def _check_lane(self, lane: SimpleNamespace) -> None:
        world, before = self.world, self.lanes.get(lane.id)
        self.lanes[lane.id] = lane
        self.owner[lane.id] = lane.claim_token
        if before is None:
            self.run_lane_ids[lane.run_id].append(lane.id)
            self.moved_at[lane.id] = world.now
            require(lane.key != "final" or lane.cancel_at is None, "a run being canceled opens no next phase")
            return
        self._check_absorbed(before, lane)
        require(lane.resend_no >= before.resend_no, "resend_no never goes back", lane.key)
        self._bounded(lane)
        require(lane.tenant_id == before.tenant_id, "I10 a lane keeps its tenant", lane.key)
        moved = ("epoch", "seq", "claims", "cancel_at", "next_due_at")
        if any(getattr(lane, name) != getattr(before, name) for name in moved):
            self.moved_at[lane.id] = world.now
            self.unclaimed[lane.id] = 0
        if lane.seq != before.seq:
            require(lane.claims <= 1 or lane.claim_token is not None, "every commit clears the claims", lane.key)
            self._check_ledger(before, lane)
        if lane.epoch != before.epoch:
            require(
                (lane.claims, lane.attempts, lane.cancel_at, lane.steps) == (0, 0, None, 0),
                "a new epoch begins fresh", lane.key,
            )  # fmt: skip

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
        require(seqs == list(range(lane.seq)), "I2 the ledger has no gap and no double", lane.key, seqs)
        counted = sorted(self.world.store.tally_of(lane.run_id, lane.key))  # type: ignore[attr-defined]
        expected = [(lane.tenant_id, n) for n in range(lane.cursor.get("n", 0))]
        require(counted == expected, "I1 every row once, and of its tenant", lane.key, counted, expected)
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
        if lane.status == "active" and before.cancel_at is not None:
            require(lane.next_due_at <= self.world.clock(), "a canceled lane comes back at once", lane.key)

    def _check_gate(self, gate: SimpleNamespace) -> None:
        key, now = (gate.key, gate.tenant_id), self.world.clock()
        before = self.gates.get(key)
        self.gates[key] = gate
        if before is None:
            return
        if gate.state == "open" and before.state != "open":
            ours = before.state == "probing" and before.holder in self.openers
            require(ours, "only its probe opens a gate", before.state, before.holder)
            self.world.seen["gate opened"] += 1
        elif gate.state != "open" and before.state != "open" and before.until > now:
            ours = before.holder is not None and before.holder in self.openers
            require(gate.until >= before.until or ours, "nobody shortens a closed gate", before.until, gate.until)

    def _check_run(self, run: SimpleNamespace) -> None:
        before = self.runs.get(run.id)
        self.runs[run.id] = run
        lanes = [self.lanes[lane_id] for lane_id in self.run_lane_ids[run.id]]
        is_open = any(lane.status == "active" and lane.holds_run for lane in lanes)
        ended = run.status in ("succeeded", "failed", "canceled")
        require(ended != is_open, "I5 a run is open exactly as long as a lane holds it", run.status)
        require(all(lane.tenant_id == run.tenant_id for lane in lanes), "I10 lanes belong to their run's tenant")
        lines = Counter(epoch for epoch, type_ in run.lines if type_ in ("succeeded", "failed", "canceled"))
        expected = Counter(dict.fromkeys(range(1, run.epoch + ended), 1))
        require(lines == expected, "I4 one terminal line per ended epoch", run.lines, run.epoch, run.status)
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

    def _check_run_moves(self, before: SimpleNamespace, run: SimpleNamespace, lanes: list[SimpleNamespace]) -> None:
        was_ended = before.status in ("succeeded", "failed", "canceled")
        require(run.epoch >= before.epoch, "I3 a run's epoch only grows")
        if was_ended and run.epoch == before.epoch:
            require(run.status == before.status, "I3 terminal states absorb", before.status, run.status)
            return
        if run.epoch > before.epoch:
            require(was_ended or before.epoch == 0, "only an ended run is tried again", before.status)
            require(run.cancel_requested_at is None, "a new epoch knows no cancel")
        if run.outcome == "timed_out" and not was_ended and run.deadline_at is not None:
            require(before.paused_at is None or run.cancel_requested_at, "the deadline spares paused runs")
            require(run.deadline_at <= self.world.clock(), "nothing times out early")
        if before.paused_at is not None and run.paused_at is None:
            for lane in lanes:
                self.moved_at[lane.id] = self.world.now
                self.unclaimed[lane.id] = 0

    # What the world asks.

    def open_work(self) -> list[str]:
        open_runs = [f"run {run.status}" for run in self.runs.values() if run.status in ("queued", "running")]
        lanes = [f"lane {lane.key} {lane.epoch}/{lane.seq}" for lane in self.lanes.values() if lane.status == "active"]
        return open_runs + lanes

    def something_to_look_at(self) -> bool:
        """Whether a tick would find anything."""
        now = self.world.clock()
        lanes = any(lane.status == "active" and lane.check_at <= now for lane in self.lanes.values())
        return lanes or any(run.status in ("queued", "running") and run.check_at <= now for run in self.runs.values())

    def is_paused(self, run_id: UUID) -> bool:
        return self.runs[run_id].paused_at is not None

    def tenant_of(self, run_id: UUID) -> UUID:
        tenant: UUID = self.runs[run_id].tenant_id
        return tenant

    def lane_ids(self, run_id: UUID) -> list[UUID]:
        return sorted(self.run_lane_ids[run_id])

    def at_the_end(self) -> None:
        world = self.world
        for run in self.runs.values():
            lanes = [self.lanes[lane_id] for lane_id in self.run_lane_ids[run.id] if self.lanes[lane_id].holds_run]
            if run.status == "succeeded":
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

    def _nothing_left_outside(self) -> None:
        """I7: what was made outside was made once per key, and is gone or still listed."""
        world = self.world
        listed = {
            idempotency_key(call.run_id, call.epoch, call.key)
            for call in world.store.left_outside()  # type: ignore[attr-defined]
        }
        twice = {key for key, times in world.made.items() if times > 1} - world.zombie_things
        require(not twice, "I7 nothing is made twice", twice)
        forgotten = set(world.things) - listed - world.zombie_things
        require(not forgotten, "I7 nothing is left outside unlisted", forgotten)
