"""The relay's store in memory: a second writing of every statement, for simulations a hundred times faster.

Traces of shared seeds are compared with Postgres, so that the two cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from shared.kernel.baton import Baton
from shared.kernel.model import (
    AuditEntry,
    Due,
    DueRun,
    Effect,
    Ending,
    GateClosing,
    GatePass,
    Hearing,
    Intent,
    Json,
    Judgement,
    Lane,
    LaneChange,
    LaneFacts,
    LaneState,
    LaneStatus,
    NewLane,
    NewRun,
    NoTurn,
    Place,
    Problem,
    PrunedRuns,
    RemoteCall,
    Room,
    Run,
    RunStatus,
    Signal,
    Statement,
    Turn,
)
from shared.kernel.sql import MOST_EDGES

ACTIVE = LaneStatus.ACTIVE
NEVER = datetime.max.replace(tzinfo=UTC)
SELDOM = timedelta(days=1)
FROM_THE_FIRST = Place()
Row = SimpleNamespace
ApplyEffect = Callable[["MemoryStore", Any, Mapping[str, Any]], int | None]


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


class MemoryStore:
    """Rows are namespaces; a journal undoes what a failed transaction wrote."""

    def __init__(self, now: Callable[[], datetime], effects: Mapping[str, ApplyEffect]) -> None:
        self.now = now
        self.effects = effects
        self.runs: dict[UUID, Any] = {}
        self.lanes: dict[UUID, Any] = {}
        self.run_lanes: dict[UUID, list[Any]] = {}
        self.steps: dict[tuple[UUID, int, int], Any] = {}
        self.history: dict[UUID, list[Any]] = {}
        self.calls: dict[tuple[UUID, int, str], Any] = {}
        self.gates: dict[tuple[str, UUID | None], Any] = {}
        self.repairs: list[Any] = []
        self.signals: list[Any] = []
        self.told = 0  # how many of them were fanned out
        self.hearings: dict[tuple[int, str], Any] = {}
        self.tally: list[tuple[UUID, UUID, str, int]] = []
        self.touched: set[UUID] = set()
        self._undo: list[Callable[[], Any]] = []
        self._depth = 0

    # The journal.

    def write(self, row: Any, **changes: Any) -> None:
        before = {name: getattr(row, name) for name in changes}
        self._undo.append(lambda: row.__dict__.update(before))
        row.__dict__.update(changes)
        self.touched.add(row.id)

    def put(self, table: dict[Any, Any], key: Any, row: Any) -> None:
        assert key not in table, "duplicate key value violates unique constraint"
        table[key] = row
        self._undo.append(lambda: table.pop(key))

    def append(self, table: list[Any], row: Any) -> None:
        table.append(row)
        self._undo.append(table.pop)

    @contextmanager
    def begin(self, tenant_id: UUID | None) -> Iterator[MemoryTx]:
        assert self._depth == 0, "one connection, one transaction"
        self._undo.clear()
        self._depth = 1
        try:
            yield (tx := MemoryTx(self, tenant_id))
        except BaseException:
            for undo in reversed(self._undo):
                undo()
            raise
        finally:
            self._depth = 0
        for then in tx.then:
            then()

    # Statements of their own.

    def claim(self, baton: Baton, token: UUID, lease_s: float) -> Turn | NoTurn:
        lane = self.lanes.get(baton.lane_id)
        if lane is None or lane.kind != baton.kind:
            return NoTurn.UNKNOWN
        run, now = self.runs[lane.run_id], self.now()
        asked, actual = (baton.epoch, baton.seq), (lane.epoch, lane.seq)
        if asked != actual:
            return NoTurn.STALE if asked < actual else NoTurn.AHEAD
        if lane.status is not ACTIVE:
            return NoTurn.ENDED
        if run.paused_at is not None and lane.cancel_at is None:
            return NoTurn.PAUSED
        if lane.next_due_at > now + seconds(1):
            return NoTurn.EARLY
        if lane.claim_token not in (None, token) and lane.lease_until >= now:
            return NoTurn.TWIN
        claims = lane.claims + (lane.claim_token != token)
        check_at = min(lane.check_at, now + seconds(lease_s + 60))
        self.write(
            lane, claim_token=token, lease_until=now + seconds(lease_s), resends=0, claims=claims, check_at=check_at
        )
        return Turn(
            lane_id=lane.id, run_id=run.id, tenant_id=lane.tenant_id, kind=lane.kind, key=lane.key,
            holds_run=lane.holds_run, epoch=lane.epoch, seq=lane.seq, resend_no=lane.resend_no, token=token,
            cursor=lane.cursor, params=run.params, claims=claims, attempts=lane.attempts, steps=lane.steps,
            max_steps=lane.max_steps, deadline_at=lane.deadline_at, cancel_at=lane.cancel_at, run_status=run.status,
            run_epoch=run.epoch, correlation_id=run.correlation_id, now=now,
            gated=any(gate.state != "open" for (_, tenant), gate in self.gates.items() if tenant in (lane.tenant_id, None)),
        )  # fmt: skip

    def commit_turn(self, turn: Turn, change: LaneChange, ms: int) -> Due | None:
        with self.begin(turn.tenant_id) as tx:
            return tx.commit_turn(turn, change, ms)

    def release(self, baton: Baton, token: UUID) -> None:
        lane = self.lanes.get(baton.lane_id)
        if lane is not None and (lane.epoch, lane.seq, lane.claim_token) == (baton.epoch, baton.seq, token):
            self.write(lane, claim_token=None, lease_until=None, claims=lane.claims - 1)

    def lane_state(self, lane_id: UUID) -> LaneState | None:
        lane = self.lanes.get(lane_id)
        return None if lane is None else LaneState(lane.epoch, lane.seq, lane.status, lane.claim_token, self.due(lane))

    def mark_sent(self, dues: Sequence[Due]) -> None:
        for lane in self._named(dues):
            if lane.sent_at is None:
                self.write(lane, sent_at=self.now())

    def mark_unsent(self, dues: Sequence[Due]) -> None:
        for lane in self._named(dues):
            soon = max(lane.next_due_at - seconds(120), self.now() + seconds(1))
            self.write(lane, sent_at=None, check_at=min(lane.check_at, soon))

    def _named(self, dues: Sequence[Due]) -> Iterator[Any]:
        for due in dues:
            lane = self.lanes.get(due.baton.lane_id)
            if lane is not None and lane.status is ACTIVE and self.baton(lane) == due.baton:
                yield lane

    def pass_gates(self, turn: Turn, keys: Sequence[str], probe_s: float) -> GatePass:
        now = self.now()
        gates = [self.gates.get((key, tenant)) for key in keys for tenant in (turn.tenant_id, None)]
        shut = [gate for gate in gates if gate is not None and gate.state != "open"]
        blocking = [g for g in shut if g.until > now and not (g.state == "probing" and g.holder == turn.token)]
        if blocking:
            until = max(gate.until for gate in blocking)
            return GatePass(
                (until - now).total_seconds(), frozenset(), min(g.key for g in blocking if g.until == until)
            )
        for gate in shut:
            self.write(gate, state="probing", holder=turn.token, until=now + seconds(probe_s))
        return GatePass(None, frozenset(gate.key for gate in shut))

    def intend(self, turn: Turn, key: str, kind: str, leaves_asset: bool) -> Intent | None:
        if not self.holds(turn):
            return None
        call, now = self.calls.get((turn.run_id, turn.run_epoch, key)), self.now()
        if call is not None and call.cleaned_at is None:
            looked_s = None if call.looked_at is None else (now - call.looked_at).total_seconds()
            age_s = (now - call.intended_at).total_seconds()
            return Intent(False, call.confirmed_at is not None, call.remote_id, age_s, call.looks, looked_s)
        self.calls[turn.run_id, turn.run_epoch, key] = Row(
            id=turn.run_id, run_id=turn.run_id, tenant_id=turn.tenant_id, run_kind=turn.kind, epoch=turn.run_epoch, key=key,
            kind=kind, remote_id=None, leaves_asset=leaves_asset, intended_at=now, confirmed_at=None, cleaned_at=None,
            looks=0, looked_at=None, clean_at=None, clean_tries=0,
        )  # fmt: skip
        return Intent(True, False, None)

    def note_look(self, turn: Turn, key: str, looks: int) -> bool:
        call, now = self.calls.get((turn.run_id, turn.run_epoch, key)), self.now()
        if not self.holds(turn) or call is None or call.confirmed_at is not None:
            return False
        intended_at = call.intended_at if looks else now
        self.write(call, looks=looks, looked_at=now if looks else None, intended_at=intended_at)
        return True

    def write_held(self, turn: Turn, effect: Effect) -> list[Mapping[str, Any]] | None:
        if not self.holds(turn):
            return None
        self.effects[effect.statement.name](self, self.lanes[turn.lane_id], effect.params)
        return []

    def confirm(self, call: RemoteCall, remote_id: str) -> None:
        row = self.calls.get((call.run_id, call.epoch, call.key))
        if row is not None and row.confirmed_at is None:
            self.write(row, remote_id=remote_id, confirmed_at=self.now(), cleaned_at=None)

    def note_cleaned(self, call: RemoteCall) -> None:
        row = self.calls.get((call.run_id, call.epoch, call.key))
        if row is not None and row.cleaned_at is None:
            self.write(row, cleaned_at=self.now())

    def put_off_cleaning(self, call: RemoteCall) -> bool:
        row, now = self.calls.get((call.run_id, call.epoch, call.key)), self.now()
        if row is None or row.cleaned_at is not None or (row.clean_at is not None and row.clean_at > now):
            return False
        later = now + min(timedelta(days=1), timedelta(minutes=2 ** min(row.clean_tries, 20)))
        self.write(row, clean_at=later, clean_tries=row.clean_tries + 1)
        return True

    def assets(self, lane_id: UUID) -> list[RemoteCall]:
        lane = self.lanes.get(lane_id)
        if lane is None:
            return []
        rows = [c for c in self._left_outside() if c.run_id == lane.run_id and c.intended_at <= lane.created_at]
        return [self._call(row) for row in sorted(rows, key=lambda c: (c.epoch, c.key))]

    def leaked_assets(self, most: int, grace_s: float) -> list[tuple[RemoteCall, Json]]:
        def leaked(call: Any) -> bool:
            run = self.runs[call.run_id]
            ended = run.finished_at is not None and run.finished_at <= self.now() - seconds(grace_s)
            waits = call.clean_at is not None and call.clean_at > self.now()
            return ended and not waits and all(lane.status is not ACTIVE for lane in self.run_lanes[run.id])

        def place(call: Any) -> tuple[Any, ...]:
            return (
                call.clean_at is not None,
                call.clean_at or call.intended_at,
                call.intended_at,
                call.run_id.int,
                call.key,
            )

        rows = sorted(filter(leaked, self._left_outside()), key=place)
        return [(self._call(row), self.runs[row.run_id].params) for row in rows[:most]]

    def _left_outside(self) -> list[Any]:
        over = self.now() - timedelta(minutes=16)
        return [
            call
            for call in self.calls.values()
            if call.leaves_asset
            and call.cleaned_at is None
            and (call.confirmed_at is not None or call.intended_at < over)
        ]

    def _call(self, row: Any) -> RemoteCall:
        return RemoteCall(
            run_id=row.run_id, tenant_id=row.tenant_id, run_kind=row.run_kind, epoch=row.epoch, key=row.key,
            kind=row.kind, remote_id=row.remote_id,
        )  # fmt: skip

    def due_runs(self, most: int, after: Place = FROM_THE_FIRST) -> list[DueRun]:
        now = self.now()
        found = []
        for run, place in self.in_turn([run for run in self.runs.values() if not run.status.ended], most, after):
            over = run.paused_at is None and run.deadline_at is not None and run.deadline_at <= now
            at_work = not over and bool(self.open_lanes(run.id))
            found.append(
                DueRun(id=run.id, tenant_id=run.tenant_id, kind=run.kind, at_work=at_work, place=place)
            )  # fmt: skip
            if at_work:
                self.write(run, check_at=self.look_later(run))
        return found

    def in_turn(self, rows: Iterable[Any], most: int, after: Place) -> list[tuple[Any, Place]]:
        now = self.now()
        began: Any = after.began or now
        due = [row for row in rows if row.check_at <= began]
        if not isinstance(after.at, str):
            due = [row for row in due if (row.check_at, row.id.int) > (after.at, after.id.int)]
        due.sort(key=lambda row: (row.check_at, row.id.int))
        return [(row, Place(row.check_at, row.id, began)) for row in due[:most]]

    def look_later(self, run: Any) -> datetime:
        later = self.now() + SELDOM
        bounded = run.paused_at is None and run.deadline_at is not None
        return min(run.deadline_at, later) if bounded else later

    def set_run_aside(self, run_id: UUID, tenant_id: UUID) -> None:
        run = self.runs.get(run_id)
        if run is not None and run.check_at <= self.now():
            self.write(run, check_at=self.now() + seconds(120))

    def set_lane_aside(self, lane_id: UUID) -> None:
        self.write(self.lanes[lane_id], check_at=self.now() + seconds(120))

    def note_repairs(self, repairs: Sequence[Judgement]) -> None:
        self.repairs += [(repair.lane.lane_id, repair.verdict, self.now()) for repair in repairs]

    def note_repair(self, lane_id: UUID, tenant_id: UUID, why: str) -> None:
        raise NotImplementedError("what is pulled is simulated on Postgres")

    def note_dead_letter(self, baton: Baton, problem: Problem) -> bool:
        lane = self.lanes.get(baton.lane_id)
        if lane is None or lane.status is not ACTIVE or (lane.epoch, lane.seq) != (baton.epoch, baton.seq):
            return False
        self.write(lane, last_error=problem.to_json())
        self.repairs.append((lane.id, "dead_letter", self.now()))
        return True

    def due_hearings(self) -> list[Any]:
        now = self.now()
        rows = [row for row in self.hearings.values() if not row.given_up and row.due_at <= now]
        return sorted(rows, key=lambda row: (row.due_at, row.signal.id, row.listener))

    def take_hearings(self, most: int, lease_s: float) -> list[Hearing]:
        due = self.due_hearings()
        if not due:
            return []
        first = due[0]
        mine = [row for row in due if row.signal.tenant_id == first.signal.tenant_id and not row.attempts]
        taken = [first] if first.attempts else mine[:most]
        for row in taken:
            row.attempts, row.due_at = row.attempts + 1, self.now() + seconds(lease_s)
        return [Hearing(row.signal, row.listener, row.attempts) for row in taken]

    def give_hearings_back(self, hearings: Sequence[Hearing], delay_s: float) -> None:
        for row in filter(None, map(self.held_hearing, hearings)):
            row.attempts, row.due_at = row.attempts - 1, self.now() + seconds(delay_s)

    def note_unheard(self, hearing: Hearing, delay_s: float | None, problem: Problem) -> None:
        row = self.held_hearing(hearing)
        if row is not None:
            row.due_at, row.given_up = self.now() + seconds(delay_s or 0), delay_s is None

    def held_hearing(self, hearing: Hearing) -> Any:
        row = self.hearings.get((hearing.signal.id, hearing.listener))
        return row if row is not None and row.attempts == hearing.attempts else None

    def add_signal_once(self, event_id: UUID, tenant_id: UUID, name: str, payload: Json) -> bool:
        raise NotImplementedError("no schedule sends events")

    def connections_used(self) -> float:
        raise NotImplementedError("ticks are called, not scheduled")

    def beat(self, name: str) -> float | None:
        raise NotImplementedError("ticks are called, not scheduled")

    def roll_up(self, window_s: float) -> int:
        raise NotImplementedError("ticks are called, not scheduled")

    def prune(self, table: str, older_than_days: int, most: int) -> int:
        before = self.now() - timedelta(days=older_than_days)
        match table:
            case "step":
                return self._prune_steps(before)
            case "repair":
                kept: list[Any] = [row for row in self.repairs if row[2] >= before]
                pruned, self.repairs = len(self.repairs) - len(kept), kept
                return pruned
            case _:
                old = [n for n, row in enumerate(self.signals) if row is not None and row[3] < before]
                for n in old:
                    self.signals[n] = None  # its number stays taken
                    for key in [key for key in self.hearings if key[0] == n]:
                        del self.hearings[key]
                return len(old)

    def _prune_steps(self, before: datetime) -> int:
        """Whole days, and what is more than a day too old."""
        days: dict[int, list[Any]] = {}
        for key, row in self.steps.items():
            days.setdefault(row[2].toordinal() % 16, []).append((key, row[2]))
        old = [key for rows in days.values() if all(at < before for _, at in rows) for key, _ in rows]
        old += [key for rows in days.values() for key, at in rows if at < before - timedelta(days=1)]
        for key in set(old):
            del self.steps[key]
        return len(set(old))

    def prune_runs(self, with_rows: Sequence[str], older_than_days: int, most: int) -> PrunedRuns:
        now, rows = self.now(), 0
        before = now - timedelta(days=older_than_days)
        old = [run for run in self.runs.values() if run.finished_at is not None and run.finished_at < before]
        old = sorted(filter(self._may_leave, old), key=lambda run: (run.finished_at, run.id.int))[:most]
        empty = [run for run in old if run.leaving_since is not None and not self._has_rows(run)]
        for run in old:
            if run.leaving_since is None:
                self.write(run, leaving_since=now, check_at=now)
                rows += 1
            rows += self._prune_rows_of(run)
        gone = [run for run in empty if run.kind not in with_rows]
        for run in gone:
            del self.runs[run.id]
        left = [(run.id, run.tenant_id, run.kind) for run in empty if run.kind in with_rows]
        return PrunedRuns(rows, len(gone), sorted(left, key=lambda each: each[0].int))

    def _may_leave(self, run: Any) -> bool:
        waits = run.leaving_since is not None and run.check_at > self.now()
        outside = any(c.run_id == run.id and c.leaves_asset and c.cleaned_at is None for c in self.calls.values())
        return not waits and not outside and all(lane.status is not ACTIVE for lane in self.run_lanes[run.id])

    def _has_rows(self, run: Any) -> bool:
        calls = any(call.run_id == run.id for call in self.calls.values())
        return bool(self.run_lanes[run.id] or self.history[run.id] or calls)

    def _prune_rows_of(self, run: Any) -> int:
        """A lane goes when an earlier execution has left it no step."""
        lanes = {lane.id for lane in self.run_lanes[run.id]}
        steps = [key for key in self.steps if key[0] in lanes]
        free = [lane for lane in self.run_lanes[run.id] if all(key[0] != lane.id for key in steps)]
        calls = [key for key, call in self.calls.items() if call.run_id == run.id]
        rows = len(steps) + len(free) + len(calls) + len(self.history[run.id])
        for step in steps:
            del self.steps[step]
        for lane in free:
            del self.lanes[lane.id]
            self.run_lanes[run.id].remove(lane)
        for key in calls:
            del self.calls[key]
        self.history[run.id].clear()
        return rows

    def put_off_pruning(self, run_id: UUID, tenant_id: UUID) -> None:
        self.write(self.runs[run_id], check_at=self.now() + timedelta(hours=1))

    # What several statements share.

    def holds(self, turn: Turn) -> bool:
        lane = self.lanes.get(turn.lane_id)
        return (
            lane is not None
            and (lane.epoch, lane.seq, lane.claim_token) == (turn.epoch, turn.seq, turn.token)
            and lane.status is ACTIVE
        )

    def baton(self, lane: Any) -> Baton:
        return Baton.model_construct(
            v=1, kind=lane.kind, lane_id=lane.id, epoch=lane.epoch, seq=lane.seq, resend_no=lane.resend_no
        )

    def due(self, lane: Any) -> Due:
        return Due(self.baton(lane), lane.tenant_id, max(0.0, (lane.next_due_at - self.now()).total_seconds()))

    def dues(self, lanes: Iterable[Any]) -> list[Due]:
        return [self.due(lane) for lane in sorted(lanes, key=lambda lane: lane.id.int)]

    def open_lanes(self, run_id: UUID) -> list[Any]:
        return [lane for lane in self.run_lanes[run_id] if lane.status is ACTIVE and lane.holds_run]


class MemoryTx:
    def __init__(self, store: MemoryStore, tenant_id: UUID | None) -> None:
        self.s = store
        self.tenant_id = tenant_id
        self.then: list[Callable[[], None]] = []

    def after_commit(self, then: Callable[[], None]) -> None:
        self.then.append(then)

    def insert_pulled_run(
        self, run_id: UUID, tenant_id: UUID, kind: str, new: NewRun, lane_id: UUID, max_steps: int
    ) -> list[Due]:
        raise NotImplementedError("what is pulled is simulated on Postgres")

    def insert_pulled_runs(
        self, tenant_id: UUID, kind: str, runs: Sequence[tuple[UUID, UUID, NewRun]], max_steps: int
    ) -> list[Due]:
        raise NotImplementedError("what is pulled is simulated on Postgres")

    def insert_run(self, run_id: UUID, tenant_id: UUID, kind: str, new: NewRun) -> Run:
        now = self.s.now()
        limit = None if new.time_limit_s is None else seconds(new.time_limit_s)
        row = Row(
            id=run_id, tenant_id=tenant_id, kind=kind, status=RunStatus.QUEUED, outcome=None, epoch=1,
            params=new.params, correlation_id=new.correlation_id, cancel_requested_at=None, paused_at=None,
            time_limit_s=new.time_limit_s, deadline_at=None if limit is None else now + limit,
            check_at=now + (SELDOM if limit is None else min(SELDOM, limit)), error=None, finished_at=None,
            leaving_since=None,
        )  # fmt: skip
        self.s.put(self.s.runs, run_id, row)
        self.s.put(self.s.run_lanes, run_id, [])
        self.s.put(self.s.history, run_id, [])
        self.s.touched.add(run_id)
        return self._run(row)

    def _run(self, row: Any) -> Run:
        return Run(
            id=row.id, tenant_id=row.tenant_id, kind=row.kind, status=row.status, outcome=row.outcome, epoch=row.epoch,
            params=row.params, correlation_id=row.correlation_id, cancel_requested_at=row.cancel_requested_at,
            paused_at=row.paused_at, time_limit_s=row.time_limit_s, deadline_at=row.deadline_at, now=self.s.now(),
        )  # fmt: skip

    def lock_run(self, run_id: UUID, tenant_id: UUID) -> Run | None:
        row = self.s.runs.get(run_id)
        return None if row is None or row.tenant_id != tenant_id else self._run(row)

    def insert_lanes(self, run: Run, lanes: Sequence[tuple[UUID, NewLane]], max_steps: int) -> list[Due]:
        now, row = self.s.now(), self.s.runs[run.id]
        made = []
        for lane_id, new in lanes:
            assert all(lane.key != new.key for lane in self.s.run_lanes[run.id]), "duplicate lane key"
            cancel_at = row.cancel_requested_at if new.holds_run else None
            delay = 0 if cancel_at is not None else new.delay_s
            soon = delay <= 900
            deadline = None if new.time_limit_s is None else now + seconds(new.time_limit_s)
            look = now + seconds(delay + (90 if soon else -120))
            lane = Row(
                id=lane_id, run_id=run.id, tenant_id=row.tenant_id, kind=row.kind, key=new.key, holds_run=new.holds_run,
                status=ACTIVE, epoch=1, seq=0, resend_no=0, resends=0, cursor=dict(new.cursor),
                next_due_at=now + seconds(delay), sent_at=now if soon else None,
                check_at=look if deadline is None else min(look, deadline), cancel_at=cancel_at,
                time_limit_s=new.time_limit_s, deadline_at=deadline, steps=0,
                max_steps=new.max_steps or max_steps, claims=0, claim_token=None, lease_until=None, attempts=0,
                last_error=None, created_at=now,
            )  # fmt: skip
            self.s.put(self.s.lanes, lane_id, lane)
            self.s.append(self.s.run_lanes[run.id], lane)
            self.s.touched.add(lane_id)
            made.append(lane)
        return self.s.dues(made)

    def commit_turn(self, turn: Turn, change: LaneChange, ms: int) -> Due | None:
        if not self.s.holds(turn):
            return None
        lane, now = self.s.lanes[turn.lane_id], self.s.now()
        called = turn.cancel_at is None and (lane.cancel_at is not None or lane.resends > 0)
        soon = called or change.delay_s <= 900
        due = now if called else now + seconds(change.delay_s)
        look = now + seconds(90) if called else due + seconds(90 if soon else -120)
        self.s.write(
            lane, seq=lane.seq + 1, status=change.status,
            cursor=lane.cursor if change.cursor is None else dict(change.cursor), steps=lane.steps + change.spent,
            attempts=change.attempts, claims=0, claim_token=None, lease_until=None, next_due_at=due,
            last_error=lane.last_error if change.problem is None else change.problem.to_json(),
            sent_at=now if soon else None, check_at=min(lane.check_at, look),
        )  # fmt: skip
        key = (lane.id, turn.epoch, turn.seq)
        self.s.put(self.s.steps, key, (change.outcome, change.rows, now))
        for effect in change.effects:
            self._effect(effect, lane)
        return self.s.due(lane)

    def _effect(self, effect: Effect, lane: Any) -> None:
        assert self.tenant_id == lane.tenant_id, "row level security refuses the row"
        self.s.effects[effect.statement.name](self.s, lane, effect.params)

    def mark_running(self, run: Run) -> bool:
        row = self.s.runs[run.id]
        if row.status is not RunStatus.QUEUED:
            return False
        self.s.write(row, status=RunStatus.RUNNING)
        return True

    def has_open_lanes(self, run_id: UUID) -> bool:
        return bool(self.s.open_lanes(run_id))

    def lanes(self, run_id: UUID) -> list[Lane]:
        rows = sorted(self.s.run_lanes[run_id], key=lambda lane: lane.key)
        return [
            Lane(
                id=lane.id, key=lane.key, status=lane.status, holds_run=lane.holds_run, epoch=lane.epoch,
                cursor=lane.cursor, last_error=lane.last_error,
            )
            for lane in rows
        ]  # fmt: skip

    def end_run(self, run: Run, ending: Ending) -> bool:
        row = self.s.runs[run.id]
        if row.status.ended:
            return False
        self.s.write(
            row, status=RunStatus(ending.status), outcome=ending.outcome, finished_at=self.s.now(), paused_at=None
        )
        return True

    def fail_open_lanes(self, run_id: UUID, problem: Problem) -> None:
        for lane in self.s.open_lanes(run_id):
            self.s.write(
                lane, status=LaneStatus.FAILED, last_error=problem.to_json(), claim_token=None, lease_until=None
            )

    def look_at_run_later(self, run: Run) -> None:
        row = self.s.runs[run.id]
        self.s.write(row, check_at=self.s.look_later(row))

    def look_at_run_in(self, run: Run, wait_s: float) -> None:
        self.s.write(self.s.runs[run.id], check_at=self.s.now() + seconds(wait_s))

    def settle_failures(self, run: Run) -> int:
        lines = [type_ for epoch, type_ in self.s.history[run.id] if epoch == run.epoch]
        last_phase = max((n for n, type_ in enumerate(lines) if type_ == "phase"), default=-1)
        return lines[last_phase + 1 :].count("settle_failed")

    def add_history(self, run: Run, type_: str, data: Json) -> None:
        lines = self.s.history[run.id]
        if RunStatus.__members__.get(type_.upper(), RunStatus.QUEUED).ended:
            assert not any(line == (run.epoch, type_) for line in lines), "one terminal line per epoch"
        self.s.append(lines, (run.epoch, type_))
        self.s.touched.add(run.id)

    def add_edge(self, run: Run, type_: str, data: Json) -> None:
        told = [each for epoch, each in self.s.history[run.id] if epoch == run.epoch]
        edges = [each for each in told if each in ("first_failure", "recovered")]
        fails = any(lane.attempts > 0 for lane in self.s.open_lanes(run.id))
        if (
            (edges or ["recovered"])[-1] != type_
            and told.count(type_) < MOST_EDGES
            and not (type_ == "recovered" and fails)
        ):
            self.add_history(run, type_, {})

    def add_audit(self, entry: AuditEntry) -> None:
        """Nobody asks the oracle who did it."""

    def add_audits(self, entry: AuditEntry, targets: Sequence[str]) -> None:
        """Nor this."""

    def add_signal(self, tenant_id: UUID, name: str, payload: Json) -> None:
        self.s.append(self.s.signals, (tenant_id, name, payload, self.s.now()))

    def find_connection(self, tenant_id: UUID, provider: str, wanted: str) -> UUID | None:
        raise NotImplementedError("no schedule connects")

    def apply(self, effect: Effect) -> int:
        count: Any = self.s.effects[effect.statement.name](self.s, None, effect.params)
        return int(count)

    def forget_run(self, run: Run) -> None:
        row = self.s.runs.pop(run.id)
        self.s._undo.append(lambda: self.s.runs.__setitem__(run.id, row))

    def request_cancel(self, run: Run) -> None:
        if self.s.runs[run.id].paused_at is not None:
            self.resume_run(run)
        self.s.write(self.s.runs[run.id], cancel_requested_at=self.s.now())

    def end_unclaimed(self, run_id: UUID) -> int:
        raise NotImplementedError("what is pulled is simulated on Postgres")

    def cancel_lanes(self, run_id: UUID) -> list[Due]:
        now, lanes = self.s.now(), self.s.open_lanes(run_id)
        for lane in lanes:
            self.s.write(
                lane,
                cancel_at=now,
                next_due_at=now,
                resend_no=lane.resend_no + 1,
                resends=0,
                sent_at=None,
                check_at=now,
            )
        return self.s.dues(lanes)

    def pause_run(self, run: Run) -> None:
        self.s.write(self.s.runs[run.id], paused_at=self.s.now())

    def resume_run(self, run: Run) -> float:
        row, now = self.s.runs[run.id], self.s.now()
        paused = now - row.paused_at
        deadline = None if row.deadline_at is None else row.deadline_at + paused
        check_at = now + SELDOM if deadline is None else min(deadline, now + SELDOM)
        self.s.write(row, paused_at=None, deadline_at=deadline, check_at=check_at)
        return float(paused.total_seconds())

    def resume_lanes(self, run_id: UUID, paused_s: float) -> list[Due]:
        now = self.s.now()
        lanes = [lane for lane in self.s.run_lanes[run_id] if lane.status is ACTIVE and lane.cancel_at is None]
        for lane in lanes:
            deadline = None if lane.deadline_at is None else lane.deadline_at + seconds(paused_s)
            self.s.write(
                lane, resend_no=lane.resend_no + 1, resends=0, sent_at=None, check_at=now, deadline_at=deadline
            )
        return self.s.dues(lanes)

    def reopen_run(self, run: Run) -> Run | None:
        row, now = self.s.runs[run.id], self.s.now()
        if row.leaving_since is not None:
            return None
        limit = None if row.time_limit_s is None else seconds(row.time_limit_s)
        self.s.write(
            row, status=RunStatus.RUNNING, epoch=row.epoch + 1, outcome=None, finished_at=None,
            cancel_requested_at=None, paused_at=None, deadline_at=None if limit is None else now + limit,
            check_at=now + (SELDOM if limit is None else min(SELDOM, limit)),
        )  # fmt: skip
        return self._run(row)

    def reopen_lanes(self, run_id: UUID) -> list[Due]:
        ended = (LaneStatus.FAILED, LaneStatus.CANCELED)
        lanes = [lane for lane in self.s.run_lanes[run_id] if lane.status in ended and lane.holds_run]
        for lane in lanes:
            self._new_epoch(lane)
        return self.s.dues(lanes)

    def wake_lanes(self, run_id: UUID) -> list[Due]:
        woken, now = [], self.s.now()
        for lane in self.s.open_lanes(run_id):
            if lane.claim_token is not None:
                self.s.write(lane, resends=1)
            elif lane.next_due_at > now + seconds(1) or lane.sent_at is None:
                self.wake_lane(lane.id)
                woken.append(lane)
        return self.s.dues(woken)

    def _new_epoch(self, lane: Any, **more: Any) -> None:
        now = self.s.now()
        self.s.write(
            lane, status=ACTIVE, epoch=lane.epoch + 1, resend_no=lane.resend_no + 1, resends=0, claims=0, attempts=0,
            claim_token=None, lease_until=None, cancel_at=None, next_due_at=now, sent_at=None, check_at=now, steps=0,
            deadline_at=None if lane.time_limit_s is None else now + seconds(lane.time_limit_s), **more,
        )  # fmt: skip

    def lane_run(self, lane_id: UUID, tenant_id: UUID) -> tuple[UUID, bool] | None:
        lane = self.s.lanes.get(lane_id)
        return None if lane is None or lane.tenant_id != tenant_id else (lane.run_id, lane.holds_run)

    def read(self, statement: Statement, params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        raise NotImplementedError(statement.name)

    def room(self, tenant_id: UUID, kind: str, most: int | None) -> Room:
        runs = [run for run in self.s.runs.values() if (run.tenant_id, run.kind) == (tenant_id, kind)]
        return Room(sum(not run.status.ended for run in runs), most or 1000)

    def lock_new_signals(self, most: int, older_than_days: int) -> list[tuple[int, str]]:
        new = [n for n in range(self.s.told, len(self.s.signals)) if self.s.signals[n] is not None]
        return [(n, self.s.signals[n][1]) for n in new[:most]]

    def fan_out(self, signal_ids: Sequence[int], heard_by: Sequence[tuple[int, str]]) -> None:
        before, self.s.told = self.s.told, max(signal_ids) + 1
        self.s._undo.append(lambda: setattr(self.s, "told", before))
        for signal_id, listener in heard_by:
            tenant, name, payload, _ = self.s.signals[signal_id]
            signal = Signal(signal_id, tenant, name, payload, self.s.now())
            row = Row(id=None, signal=signal, listener=listener, due_at=self.s.now(), attempts=0, given_up=False)
            self.s.put(self.s.hearings, (signal_id, listener), row)

    def note_heard(self, hearings: Sequence[Hearing]) -> bool:
        held = [each for each in hearings if self.s.held_hearing(each) is not None]
        for each in held:
            key = (each.signal.id, each.listener)
            row = self.s.hearings.pop(key)
            self.s._undo.append(lambda key=key, row=row: self.s.hearings.__setitem__(key, row))  # type: ignore[misc]
        return len(held) == len(hearings)

    def wake_lane(self, lane_id: UUID) -> Due | None:
        lane, now = self.s.lanes.get(lane_id), self.s.now()
        if lane is None or lane.status is not ACTIVE:
            return None
        self.s.write(lane, next_due_at=now, resend_no=lane.resend_no + 1, resends=0, sent_at=None, check_at=now)
        return self.s.due(lane)

    def restart_lane(self, lane_id: UUID, cursor: Json | None) -> Due | None:
        lane = self.s.lanes.get(lane_id)
        if lane is None:
            return None
        self._new_epoch(lane, cursor=lane.cursor if cursor is None else dict(cursor))
        return self.s.due(lane)

    def close_gate(self, tenant_id: UUID, closing: GateClosing) -> None:
        key, until = (closing.key, None if closing.shared else tenant_id), self.s.now() + seconds(closing.retry_after_s)
        gate = self.s.gates.get(key)
        if gate is None:
            row = Row(id=UUID(int=0), key=closing.key, tenant_id=key[1], state="closed", until=until, holder=None)
            self.s.put(self.s.gates, key, row)
            self.s.touched.add(row.id)
        else:
            self.s.write(gate, state="closed", holder=None, until=max(gate.until, until))

    def open_gates(self, tenant_id: UUID, keys: Iterable[str], token: UUID) -> None:
        for gate in self._my_probes(tenant_id, keys, token):
            self.s.write(gate, state="open", holder=None, until=self.s.now())

    def open_gate(self, tenant_id: UUID, key: str) -> None:
        raise NotImplementedError("no simulated kind opens a gate by hand")

    def wake_waiting(self, tenant_id: UUID, key: str) -> list[Due]:
        raise NotImplementedError("no simulated kind opens a gate by hand")

    def reclose_gates(self, tenant_id: UUID, keys: Iterable[str], token: UUID, for_s: float) -> None:
        for gate in self._my_probes(tenant_id, keys, token):
            self.s.write(gate, state="closed", holder=None, until=self.s.now() + seconds(for_s))

    def _my_probes(self, tenant_id: UUID, keys: Iterable[str], token: UUID) -> list[Any]:
        gates = [self.s.gates.get((key, tenant)) for key in keys for tenant in (tenant_id, None)]
        return [gate for gate in gates if gate is not None and (gate.state, gate.holder) == ("probing", token)]

    def lock_due_lanes(
        self, most: int, after: Place = FROM_THE_FIRST, but_kinds: Sequence[str] = (), but_delayed: bool = False
    ) -> list[Place]:
        now = self.s.now()
        lanes = [
            lane
            for lane in self.s.lanes.values()
            if lane.status is ACTIVE
            and lane.kind not in but_kinds
            and (not but_delayed or min(lane.next_due_at, lane.deadline_at or NEVER) <= now)
        ]
        return [place for _, place in self.s.in_turn(lanes, most, after)]

    def lock_lane(self, lane_id: UUID) -> bool:
        return self.s.lanes[lane_id].status is ACTIVE

    def longest_waits(self, kinds: Sequence[str], lease_s: float) -> dict[str, float]:
        now = self.s.now()
        waits: dict[str, float] = {}
        for lane in self.s.lanes.values():
            soon = lane.status is ACTIVE and lane.check_at <= now + seconds(lease_s + 60)
            if lane.kind in kinds and soon and lane.lease_until is not None and lane.lease_until >= now:
                sent_at = max(lane.sent_at or lane.next_due_at, lane.next_due_at)
                waited = (lane.lease_until - seconds(lease_s) - sent_at).total_seconds()
                waits[lane.kind] = max(waited, waits.get(lane.kind, waited))
        return waits

    def facts(self, lane_ids: Sequence[UUID]) -> list[LaneFacts]:
        now = self.s.now()
        return [
            LaneFacts(
                lane_id=lane.id, tenant_id=lane.tenant_id, kind=lane.kind, epoch=lane.epoch, seq=lane.seq,
                resend_no=lane.resend_no, resends=lane.resends, next_due_at=lane.next_due_at, sent_at=lane.sent_at,
                lease_until=lane.lease_until, cancel_at=lane.cancel_at, deadline_at=lane.deadline_at,
                run_paused=self.s.runs[lane.run_id].paused_at is not None, now=now,
            )
            for lane in map(self.s.lanes.__getitem__, lane_ids)
        ]  # fmt: skip

    def apply_judgements(self, judgements: Sequence[Judgement]) -> None:
        now = self.s.now()
        for judgement in judgements:
            lane = self.s.lanes[judgement.lane.lane_id]
            check_at = judgement.check_at or NEVER
            self.s.write(lane, resend_no=judgement.resend_no, resends=judgement.resends, check_at=check_at)
            if judgement.send:
                self.s.write(lane, sent_at=now, claim_token=None, lease_until=None)
            if judgement.due_now:
                self.s.write(lane, next_due_at=now)
