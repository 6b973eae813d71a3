"""The relay's Postgres store: runs the statements of `sql.py` and turns rows into types. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, TypeVar
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct, sql
from shared.kernel.baton import Baton
from shared.kernel.decide import LONGEST_QUEUE_DELAY_S
from shared.kernel.direct import Row
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
    Offer,
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
from shared.kernel.redact import redact

T = TypeVar("T")
RACED_S = 1.0
_FROM_THE_FIRST = Place()


class PgStore:
    """Every method but `begin` is one statement, one round trip, one transaction."""

    def __init__(self, engine: sa.Engine, owner: str | None = None) -> None:
        self._engine = engine
        self._whose = owner  # whose runs alone are there, for somebody who sees no others

    def begin(self, tenant_id: UUID | None) -> AbstractContextManager[PgTx]:
        return _Begun(direct.together(self._engine, tenant_id, self._whose))

    def claim(self, baton: Baton, token: UUID, lease_s: float) -> Turn | NoTurn:
        params = {
            **_named(baton),
            "kind": baton.kind,
            "token": token,
            "lease": interval(lease_s),
            "watch": interval(lease_s + 60),
        }
        row = self._often(sql.CLAIM, params)
        if row is not None:
            return _turn(row, baton, token)
        refused = self._one(sql.WHY_REFUSED, {"lane_id": baton.lane_id, "kind": baton.kind})
        return NoTurn.UNKNOWN if refused is None else _refusal(refused, baton)

    def commit_turn(self, turn: Turn, change: LaneChange, ms: int) -> Due | None:
        with direct.alone(self._engine, turn.tenant_id) as line:
            return _commit_turn(line, turn, change, ms)

    def release(self, baton: Baton, token: UUID) -> None:
        self._run(sql.RELEASE, {**_named(baton), "token": token})

    def lane_state(self, lane_id: UUID) -> LaneState | None:
        row = self._one(sql.LANE_STATE, {"lane_id": lane_id})
        if row is None:
            return None
        status = LaneStatus(row["status"])
        return LaneState(row["epoch"], row["seq"], status, row["claim_token"], due_of(row))

    def mark_sent(self, dues: Sequence[Due]) -> None:
        self._mark(sql.MARK_SENT, dues)

    def mark_unsent(self, dues: Sequence[Due]) -> None:
        self._mark(sql.MARK_UNSENT, dues)

    def _mark(self, statement: sa.TextClause, dues: Sequence[Due]) -> None:
        """Batons of one tenant are marked as that tenant: an operator's role sees no other way."""
        tenants = {due.tenant_id for due in dues}
        with direct.alone(self._engine, tenants.pop() if len(tenants) == 1 else None) as line:
            line.run(statement, {"batons": _batons([due.baton for due in dues])})

    def pass_gates(self, turn: Turn, keys: Sequence[str], probe_s: float) -> GatePass:
        params = {"keys": list(keys), "tenant_id": turn.tenant_id, "token": turn.token, "probe_s": probe_s}
        row = self._one(sql.PASS_GATES, params)
        assert row is not None
        if row["blocked_s"] is not None:
            return GatePass(row["blocked_s"], frozenset(), row["closed_by"])
        if row["passed"]:
            return GatePass(None, frozenset(row["probes"]))
        # Between our look and our update another lane took a probe, or opened a gate: give back the others, look again soon.
        if row["probes"]:
            mine = {"keys": row["probes"], "tenant_id": turn.tenant_id, "token": turn.token}
            self._run(sql.RECLOSE_GATES, {**mine, "for_s": 0})
        return GatePass(RACED_S, frozenset())

    def intend(self, turn: Turn, key: str, kind: str, leaves_asset: bool) -> Intent | None:
        params = {**held(turn), "run_epoch": turn.run_epoch, "key": key, "kind": kind, "leaves_asset": leaves_asset}
        # Whom another lane forestalled in the same moment does not see that one's row: he looks again.
        row = self._one(sql.INTEND, params) or self._one(sql.INTEND, params)
        return None if row is None else Intent(**row)

    def note_look(self, turn: Turn, key: str, looks: int) -> bool:
        params = {**held(turn), "run_epoch": turn.run_epoch, "key": key, "looks": looks}
        return self._run(sql.NOTE_LOOK, params) == 1

    def write_held(self, turn: Turn, effect: Effect) -> list[Row] | None:
        """None: the turn is not held any more, and nothing was written."""
        mine = held(turn)
        check_names(mine, effect)
        with direct.alone(self._engine, turn.tenant_id) as line:
            statement, params = sql.write_now(effect.statement), {**mine, **effect.params}
            if not effect.statement.returns:  # one row, if the turn is held; as often as a step has something to keep
                return None if line.often(statement, params) is None else []
            rows = line.all(statement, params)
        if not rows:
            return None
        # One row without a value stands for "held, and nothing to answer".
        return [row for row in rows if any(value is not None for value in row.values())]

    def confirm(self, call: RemoteCall, remote_id: str) -> None:
        self._run(sql.CONFIRM, {"run_id": call.run_id, "epoch": call.epoch, "key": call.key, "remote_id": remote_id})

    def note_cleaned(self, call: RemoteCall) -> None:
        self._run(sql.NOTE_CLEANED, {"run_id": call.run_id, "epoch": call.epoch, "key": call.key})

    def assets(self, lane_id: UUID) -> list[RemoteCall]:
        return [RemoteCall(**row) for row in self._all(sql.ASSETS, {"lane_id": lane_id})]

    def leaked_assets(self, most: int, grace_s: float) -> list[tuple[RemoteCall, Json]]:
        rows = [dict(row) for row in self._all(sql.LEAKED_ASSETS, {"most": most, "grace_s": grace_s})]
        return [(RemoteCall(**{name: row[name] for name in row if name != "params"}), row["params"]) for row in rows]

    def take_hearings(self, most: int, lease_s: float) -> list[Hearing]:
        """What one tenant has waited longest to have heard; nobody else gets it until the lease ends."""
        rows = self._all(sql.TAKE_HEARINGS, {"most": most, "window": 4 * most, "lease_s": lease_s})
        return [
            Hearing(
                Signal(row["id"], row["tenant_id"], row["name"], row["payload"], row["at"]),
                row["listener"],
                row["attempts"],
            )
            for row in rows
        ]

    def give_hearings_back(self, hearings: Sequence[Hearing], delay_s: float) -> None:
        self._run(sql.GIVE_HEARINGS_BACK, {"hearings": _hearings(hearings), "delay_s": delay_s})

    def note_unheard(self, hearing: Hearing, delay_s: float | None, problem: Problem) -> None:
        params = {"signal_id": hearing.signal.id, "listener": hearing.listener, "attempts": hearing.attempts}
        self._run(sql.NOTE_UNHEARD, {**params, "delay_s": delay_s, "error": db.jsonb(problem.to_json())})

    def put_off_cleaning(self, call: RemoteCall) -> bool:
        """Whether this asset is now ours to remove; if that fails, it is tried again later and later."""
        return self._run(sql.PUT_OFF_CLEANING, {"run_id": call.run_id, "epoch": call.epoch, "key": call.key}) == 1

    def due_runs(self, most: int, after: Place = _FROM_THE_FIRST) -> list[DueRun]:
        """The next runs to look at. Those that are at work within their time are put off already."""
        rows = self._all(sql.DUE_RUNS, {"most": most, **_place(after)})
        return [
            DueRun(
                id=row["id"],
                tenant_id=row["tenant_id"],
                kind=row["kind"],
                at_work=row["at_work"],
                place=_next_place(row, after),
            )
            for row in rows
        ]

    def set_run_aside(self, run_id: UUID, tenant_id: UUID) -> None:
        self._run(sql.SET_RUN_ASIDE, {"run_id": run_id, "tenant_id": tenant_id})

    def set_lane_aside(self, lane_id: UUID) -> None:
        self._run(sql.SET_LANE_ASIDE, {"lane_id": lane_id})

    def note_repairs(self, repairs: Sequence[Judgement]) -> None:
        rows = [
            {"lane_id": str(each.lane.lane_id), "tenant_id": str(each.lane.tenant_id), "why": each.verdict}
            for each in repairs
        ]
        self._run(sql.NOTE_REPAIRS, {"repairs": db.jsonb(rows)})

    def note_repair(self, lane_id: UUID, tenant_id: UUID, why: str) -> None:
        row = {"lane_id": str(lane_id), "tenant_id": str(tenant_id), "why": why}
        self._run(sql.NOTE_REPAIRS, {"repairs": db.jsonb([row])})

    def note_dead_letter(self, baton: Baton, problem: Problem) -> bool:
        params = {**_named(baton), "kind": baton.kind, "error": db.jsonb(problem.to_json())}
        return self._run(sql.NOTE_DEAD_LETTER, params) == 1

    def prune(self, table: str, older_than_days: int, most: int) -> int:
        forgotten = 0
        if table == "step":
            (row,) = self._all(sql.FORGET_STEPS, {"days": older_than_days})
            forgotten = row["forget_steps"]
        return forgotten + self._run(sql.PRUNE[table], {"days": older_than_days, "most": most})

    def prune_runs(self, with_rows: Sequence[str], older_than_days: int, most: int) -> PrunedRuns:
        row = self._one(sql.PRUNE_RUNS, {"with_rows": list(with_rows), "days": older_than_days, "most": most})
        assert row is not None
        left = [(UUID(run_id), UUID(tenant_id), kind) for run_id, tenant_id, kind in row["with_rows"]]
        return PrunedRuns(row["rows"], row["runs"], left)

    def put_off_pruning(self, run_id: UUID, tenant_id: UUID) -> None:
        self._run(sql.PUT_OFF_PRUNING, {"run_id": run_id, "tenant_id": tenant_id})

    def add_signal_once(self, event_id: UUID, tenant_id: UUID, name: str, payload: Json) -> bool:
        params = {"event_id": event_id, "tenant_id": tenant_id, "name": name, "payload": db.jsonb(payload)}
        return self._run(sql.ADD_SIGNAL_ONCE, params) == 1

    def beat(self, name: str) -> float | None:
        """Note that a scheduled function came to its end; the seconds since it last did."""
        with direct.alone(self._engine) as line:
            last: float | None = line.scalars(sql.BEAT, {"name": name})[0]
        return last

    def connections_used(self) -> float:
        """Of the connections that the server accepts, how many are in use, by everybody: in percent."""
        row = self._one(sql.CONNECTIONS_USED, {})
        assert row is not None
        return float(row["percent"])

    def roll_up(self, window_s: float) -> int:
        """Sum up the steps of so many seconds by the minute; how many sums are new."""
        return self._run(sql.ROLL_UP, {"window_s": window_s})

    def health(self) -> tuple[str | None, float | None]:
        """The revision of the schema, and the seconds since the last tick ended."""
        row = self._one(sql.HEALTH, {})
        assert row is not None
        return row["revision"], row["tick_age_s"]

    # A connection may have died while the function was frozen. Each of these may be asked again: what it wrote when its
    # answer was lost, it finds written.

    def _run(self, statement: sa.TextClause, params: Row) -> int:
        return self._ask(lambda line: line.run(statement, params))

    def _often(self, statement: sa.TextClause, params: Row) -> Row | None:
        return self._ask(lambda line: line.often(statement, params))

    def _all(self, statement: sa.TextClause, params: Row) -> Sequence[Row]:
        return self._ask(lambda line: line.all(statement, params))

    def _ask(self, question: Callable[[direct.Line], T]) -> T:
        def ask() -> T:
            with direct.alone(self._engine) as line:
                return question(line)

        return db.again_if_disconnected(ask)

    def _one(self, statement: sa.TextClause, params: Row) -> Row | None:
        rows = self._all(statement, params)
        return rows[0] if rows else None


class _Begun(AbstractContextManager["PgTx"]):
    """No generator, as the loan itself."""

    __slots__ = ("_loan",)

    def __init__(self, loan: AbstractContextManager[direct.Line]) -> None:
        self._loan = loan

    def __enter__(self) -> PgTx:
        return PgTx(self._loan.__enter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._loan.__exit__(kind, error, where)


class PgTx:
    """One transaction; each method is one statement. Lines of history, of the audit and signals, which answer nothing, ride
    with the statement that comes next, or with the commit.
    """

    def __init__(self, line: direct.Line) -> None:
        self._line = line

    def after_commit(self, then: Callable[[], None]) -> None:
        self._line.after_commit.append(then)

    def insert_run(self, run_id: UUID, tenant_id: UUID, kind: str, new: NewRun) -> Run:
        row = self._one(sql.INSERT_RUN, _new_run(run_id, tenant_id, kind, new))
        assert row is not None
        return _run(row)

    def insert_pulled_run(
        self, run_id: UUID, tenant_id: UUID, kind: str, new: NewRun, lane_id: UUID, max_steps: int
    ) -> list[Due]:
        """Answers what somebody has to be woken for."""
        (lane,) = new.lanes
        assert lane.offer is not None
        params = {
            **_new_run(run_id, tenant_id, kind, new),
            "lane_id": lane_id,
            "key": lane.key,
            "cursor": db.jsonb(lane.cursor),
            "delay": interval(lane.delay_s),
            "max_steps": lane.max_steps or max_steps,
            "class_id": lane.offer.class_id,
            "version": lane.offer.version,
            "priority": lane.offer.priority,
            "dedupe_key": lane.offer.dedupe_key,
        }
        self._line.ahead(sql.START_PULLED, params, twice_is_once=True)
        return [] if lane.offer.wakes is None else [_offered_due(tenant_id, kind, lane_id, lane)]

    def insert_pulled_runs(
        self, tenant_id: UUID, kind: str, runs: Sequence[tuple[UUID, UUID, NewRun]], max_steps: int
    ) -> list[Due]:
        """The same for many, each with its id and its lane's. Answers those that somebody has to be woken for."""
        rows, dues, known = [], [], {}
        for run_id, lane_id, new in runs:
            (lane,) = new.lanes
            offer = lane.offer
            assert offer is not None
            rows.append(
                {
                    "id": run_id,
                    "label": new.label,
                    "params": new.params,
                    "correlation_id": new.correlation_id,
                    "time_limit_s": new.time_limit_s,
                    "source": new.source,
                    "source_ref": new.source_ref,
                    "created_by": new.created_by,
                    "lane_id": lane_id,
                    "key": lane.key,
                    "cursor": lane.cursor,
                    "delay_s": lane.delay_s,
                    "max_steps": lane.max_steps or max_steps,
                    "class_id": offer.class_id,
                    "priority": offer.priority,
                    "dedupe_key": offer.dedupe_key,
                }
            )
            if offer.wakes is not None:
                dues.append(_offered_due(tenant_id, kind, lane_id, lane))
            if offer.version is not None:
                known[offer.class_id] = offer.version
        params = {
            "tenant_id": tenant_id,
            "kind": kind,
            "classes": db.uuids(known),
            "versions": list(known.values()),
            "runs": db.jsonb(rows),
        }
        self._line.ahead(sql.START_PULLED_MANY, params, twice_is_once=True)
        return dues

    def lock_run(self, run_id: UUID, tenant_id: UUID) -> Run | None:
        row = self._one(sql.LOCK_RUN, {"run_id": run_id, "tenant_id": tenant_id})
        return None if row is None else _run(row)

    def insert_lanes(self, run: Run, lanes: Sequence[tuple[UUID, NewLane]], max_steps: int) -> list[Due]:
        rows = [
            {
                "id": str(lane_id),
                "key": lane.key,
                "holds_run": lane.holds_run,
                "cursor": lane.cursor,
                "delay_s": lane.delay_s,
                "time_limit_s": lane.time_limit_s,
                "max_steps": lane.max_steps or max_steps,
                **_offered(lane.offer),
            }
            for lane_id, lane in sorted(lanes, key=lambda pair: pair[1].key)
        ]
        return self._dues(sql.INSERT_LANES, {"run_id": run.id, "lanes": db.jsonb(rows)})

    def commit_turn(self, turn: Turn, change: LaneChange, ms: int) -> Due | None:
        return _commit_turn(self._line, turn, change, ms)

    def mark_running(self, run: Run) -> bool:
        return self._run(sql.MARK_RUNNING, {"run_id": run.id}) == 1

    def has_open_lanes(self, run_id: UUID) -> bool:
        return bool(self._line.scalars(sql.HAS_OPEN_LANES, {"run_id": run_id})[0])

    def lanes(self, run_id: UUID) -> list[Lane]:
        rows = self._line.all(sql.LANES, {"run_id": run_id})
        return [Lane(**{**row, "status": LaneStatus(row["status"])}) for row in rows]

    def end_run(self, run: Run, ending: Ending) -> bool:
        error = None if ending.problem is None else db.jsonb(ending.problem.to_json())
        params = {"run_id": run.id, "status": ending.status, "outcome": ending.outcome, "error": error}
        return self._run(sql.END_RUN, params) == 1

    def fail_open_lanes(self, run_id: UUID, problem: Problem) -> None:
        self._run(sql.FAIL_OPEN_LANES, {"run_id": run_id, "error": db.jsonb(problem.to_json())})

    def forget_run(self, run: Run) -> None:
        self._run(sql.FORGET_RUN, {"run_id": run.id})

    def look_at_run_later(self, run: Run) -> None:
        self._run(sql.LOOK_AT_RUN_LATER, {"run_id": run.id})

    def look_at_run_in(self, run: Run, wait_s: float) -> None:
        self._run(sql.LOOK_AT_RUN_IN, {"run_id": run.id, "wait_s": wait_s})

    def add_history(self, run: Run, type_: str, data: Json) -> None:
        params = {"run_id": run.id, "tenant_id": run.tenant_id, "epoch": run.epoch, "type": type_}
        self._line.ahead(sql.ADD_HISTORY, {**params, "data": db.jsonb(data)})

    def add_edge(self, run: Run, type_: Literal["first_failure", "recovered"], data: Json) -> None:
        params = {
            "run_id": run.id,
            "tenant_id": run.tenant_id,
            "epoch": run.epoch,
            "type": type_,
            "data": db.jsonb(data),
        }
        self._line.ahead(sql.ADD_EDGE, params)

    def settle_failures(self, run: Run) -> int:
        """How often its kind has raised since the run last got on."""
        return int(self._line.scalars(sql.SETTLE_FAILURES, {"run_id": run.id, "epoch": run.epoch})[0])

    def add_audit(self, entry: AuditEntry) -> None:
        self._line.ahead(
            sql.ADD_AUDIT,
            {
                "tenant_id": entry.tenant_id,
                "actor": entry.actor,
                "action": entry.action,
                "target": entry.target,
                "before": None if entry.before is None else db.jsonb(entry.before),
                "after": None if entry.after is None else db.jsonb(entry.after),
                "reason": redact(entry.reason),
            },
        )

    def add_audits(self, entry: AuditEntry, targets: Sequence[str]) -> None:
        """One line for each target, else the same."""
        self._line.ahead(
            sql.ADD_AUDITS,
            {
                "tenant_id": entry.tenant_id,
                "actor": entry.actor,
                "action": entry.action,
                "targets": list(targets),
                "after": None if entry.after is None else db.jsonb(entry.after),
                "reason": redact(entry.reason),
            },
        )

    def add_signal(self, tenant_id: UUID, name: str, payload: Json) -> None:
        self._line.ahead(sql.ADD_SIGNAL, {"tenant_id": tenant_id, "name": name, "payload": db.jsonb(payload)})

    def find_connection(self, tenant_id: UUID, provider: str, wanted: str) -> UUID | None:
        """By id or name, among the tenant's that are ready for use."""
        params = {"tenant_id": tenant_id, "provider": provider, "wanted": wanted}
        found = self._line.scalars(sql.FIND_CONNECTION, params)
        return found[0] if found else None

    def apply(self, effect: Effect) -> int:
        return self._line.run(_text(effect.statement.sql), effect.params)

    def read(self, statement: Statement, params: Row) -> list[Row]:
        return self._line.all(_text(statement.sql), params)

    def room(self, tenant_id: UUID, kind: str, most: int | None) -> Room:  # noqa: ARG002 - the transaction's own
        row = self._one(sql.ROOM, {"kind": kind, "most": most})
        assert row is not None
        return Room(**row)

    def lock_new_signals(self, most: int, older_than_days: int) -> list[tuple[int, str]]:
        """Those of no name are past their retention: nobody hears them."""
        rows = self._line.all(sql.LOCK_NEW_SIGNALS, {"most": most, "days": older_than_days})
        return [(row["id"], "" if row["too_old"] else row["name"]) for row in rows]

    def fan_out(self, signal_ids: Sequence[int], heard_by: Sequence[tuple[int, str]]) -> None:
        rows = [{"signal_id": signal_id, "listener": listener} for signal_id, listener in heard_by]
        self._run(sql.FAN_OUT, {"signal_ids": [str(each) for each in signal_ids], "heard_by": db.jsonb(rows)})

    def note_heard(self, hearings: Sequence[Hearing]) -> bool:
        """Whether all of them were still ours."""
        return self._run(sql.NOTE_HEARD, {"hearings": _hearings(hearings)}) == len(hearings)

    def request_cancel(self, run: Run) -> None:
        self._run(sql.REQUEST_CANCEL, {"run_id": run.id})

    def end_unclaimed(self, run_id: UUID) -> int:
        return self._run(sql.END_UNCLAIMED, {"run_id": run_id})

    def cancel_lanes(self, run_id: UUID) -> list[Due]:
        return self._dues(sql.CANCEL_LANES, {"run_id": run_id})

    def pause_run(self, run: Run) -> None:
        self._run(sql.PAUSE_RUN, {"run_id": run.id})

    def resume_run(self, run: Run) -> float:
        return float(self._line.scalars(sql.RESUME_RUN, {"run_id": run.id})[0])

    def resume_lanes(self, run_id: UUID, paused_s: float) -> list[Due]:
        return self._dues(sql.RESUME_LANES, {"run_id": run_id, "paused_s": paused_s})

    def reopen_run(self, run: Run) -> Run | None:
        row = self._one(sql.REOPEN_RUN, {"run_id": run.id})
        return None if row is None else _run(row)

    def reopen_lanes(self, run_id: UUID) -> list[Due]:
        return self._dues(sql.REOPEN_LANES, {"run_id": run_id})

    def lane_run(self, lane_id: UUID, tenant_id: UUID) -> tuple[UUID, bool] | None:
        """Its run, and whether it holds it."""
        row = self._one(sql.LANE_RUN, {"lane_id": lane_id, "tenant_id": tenant_id})
        return None if row is None else (row["run_id"], row["holds_run"])

    def wake_lane(self, lane_id: UUID) -> Due | None:
        row = self._one(sql.WAKE_LANE, {"lane_id": lane_id})
        return None if row is None else due_of(row)

    def wake_lanes(self, run_id: UUID) -> list[Due]:
        return self._dues(sql.WAKE_LANES, {"run_id": run_id})

    def restart_lane(self, lane_id: UUID, cursor: Json | None) -> Due | None:
        row = self._one(sql.RESTART_LANE, {"lane_id": lane_id, "cursor": None if cursor is None else db.jsonb(cursor)})
        return None if row is None else due_of(row)

    def close_gate(self, tenant_id: UUID, closing: GateClosing) -> None:
        self._run(
            sql.CLOSE_GATE,
            {
                "tenant_id": None if closing.shared else tenant_id,
                "key": closing.key,
                "retry_after_s": closing.retry_after_s,
                "reason": closing.reason,
            },
        )

    def open_gates(self, tenant_id: UUID, keys: Iterable[str], token: UUID) -> None:
        self._run(sql.OPEN_GATES, {"keys": sorted(keys), "tenant_id": tenant_id, "token": token})

    def open_gate(self, tenant_id: UUID, key: str) -> None:
        """One of the tenant's own, whoever closed it."""
        self._run(sql.OPEN_GATE, {"tenant_id": tenant_id, "key": key})

    def wake_waiting(self, tenant_id: UUID, key: str) -> list[Due]:
        """What waits for a gate is due now: as many as can be sent at once, the others when their time comes."""
        return self._dues(sql.WAKE_WAITING, {"tenant_id": tenant_id, "key": key})

    def reclose_gates(self, tenant_id: UUID, keys: Iterable[str], token: UUID, for_s: float) -> None:
        self._run(sql.RECLOSE_GATES, {"keys": sorted(keys), "tenant_id": tenant_id, "token": token, "for_s": for_s})

    def lock_due_lanes(
        self, most: int, after: Place = _FROM_THE_FIRST, but_kinds: Sequence[str] = (), but_delayed: bool = False
    ) -> list[Place]:
        """The next lanes to look at, save those whose queue takes nothing: of some kinds, or all that are not due yet."""
        params = {"most": most, "but_kinds": list(but_kinds), "but_delayed": but_delayed, **_place(after)}
        return [_next_place(row, after) for row in self._line.all(sql.LOCK_DUE_LANES, params)]

    def lock_lane(self, lane_id: UUID) -> bool:
        """Not if it has ended, or somebody else is writing it."""
        return bool(self._line.scalars(sql.LOCK_LANE, {"lane_id": lane_id}))

    def facts(self, lane_ids: Sequence[UUID]) -> list[LaneFacts]:
        rows = self._line.all(sql.FACTS, {"lane_ids": db.uuids(lane_ids)})
        return [LaneFacts(**row) for row in rows]

    def longest_waits(self, kinds: Sequence[str], lease_s: float) -> dict[str, float]:
        """For each kind that is at work now: how long its turns in hand waited to be taken, at most."""
        params = {"kinds": list(kinds), "lease_s": lease_s, "watch_s": lease_s + 60}
        return {row["kind"]: row["waited_s"] for row in self._line.all(sql.LONGEST_WAITS, params)}

    def apply_judgements(self, judgements: Sequence[Judgement]) -> None:
        rows = [
            {
                "lane_id": str(judgement.lane.lane_id),
                "resend_no": judgement.resend_no,
                "resends": judgement.resends,
                "send": judgement.send,
                "due_now": judgement.due_now,
                "check_at": "infinity" if judgement.check_at is None else judgement.check_at.isoformat(),
            }
            for judgement in judgements
        ]
        self._run(sql.APPLY_JUDGEMENTS, {"judgements": db.jsonb(rows)})

    def _run(self, statement: sa.TextClause, params: Row) -> int:
        return self._line.run(statement, params)

    def _one(self, statement: sa.TextClause, params: Row) -> Row | None:
        return self._line.one(statement, params)

    def _dues(self, statement: sa.TextClause, params: Row) -> list[Due]:
        dues = [due_of(row) for row in self._line.all(statement, params)]
        return sorted(dues, key=lambda due: due.baton.lane_id.int)


def _new_run(run_id: UUID, tenant_id: UUID, kind: str, new: NewRun) -> dict[str, Any]:
    return {
        "id": run_id,
        "tenant_id": tenant_id,
        "kind": kind,
        "label": new.label,
        "params": db.jsonb(new.params),
        "correlation_id": new.correlation_id,
        "time_limit_s": new.time_limit_s,
        "source": new.source,
        "source_ref": new.source_ref,
        "created_by": new.created_by,
    }


@lru_cache(maxsize=256)
def _text(statement: str) -> sa.TextClause:
    return sa.text(statement)


def _commit_turn(line: direct.Line, turn: Turn, change: LaneChange, ms: int) -> Due | None:
    sends = change.delay_s <= LONGEST_QUEUE_DELAY_S
    params: dict[str, Any] = {
        **held(turn),
        "status": change.status,
        "cursor": None if change.cursor is None else db.jsonb(change.cursor),
        "progress": change.spent,
        "attempts": change.attempts,
        "error": None if change.problem is None else db.jsonb(change.problem.to_json()),
        "delay": interval(change.delay_s),
        "sends": sends,
        "look": interval(change.delay_s + (90 if sends else -120)),
        "outcome": change.outcome,
        "rows": change.rows,
        "ms": ms,
        "waits_for": change.waits_for,
    }
    for effect in change.effects:
        check_names(params, effect)
        params |= effect.params
    effects = tuple(effect.statement for effect in change.effects)
    statement = sql.commit_turn(effects, knows_cancel=turn.cancel_at is not None, pulled=turn.pulled)
    ask = line.often if all(each.keeps_plan for each in effects) else line.one
    row = ask(statement, params)
    if row is None:
        return None
    baton = Baton(kind=turn.kind, lane_id=turn.lane_id, epoch=turn.epoch, seq=turn.seq + 1, resend_no=row["resend_no"])
    return Due(baton, turn.tenant_id, round(float(change.delay_s), 6) if row["waits"] else 0.0, turn.pulled)


def _offered_due(tenant_id: UUID, kind: str, lane_id: UUID, lane: NewLane) -> Due:
    """Of a lane that is about to be made, and offered with it."""
    assert lane.offer is not None
    baton = Baton(kind=kind, lane_id=lane_id, epoch=1, seq=0, resend_no=0)
    return Due(baton, tenant_id, lane.delay_s, pulled=True, wakes=lane.offer.wakes)


def _offered(offer: Offer | None) -> dict[str, Any]:
    if offer is None:
        return {}
    return {"class_id": str(offer.class_id), "priority": offer.priority, "dedupe_key": offer.dedupe_key}


def check_names(taken: Mapping[str, Any], effect: Effect) -> None:
    if clash := taken.keys() & effect.params.keys():
        raise ValueError(f"{effect.statement.name} uses names that belong to the relay: {sorted(clash)}")


def _hearings(hearings: Sequence[Hearing]) -> str:
    return db.jsonb(
        [{"signal_id": each.signal.id, "listener": each.listener, "attempts": each.attempts} for each in hearings]
    )


def _place(after: Place) -> dict[str, Any]:
    return {"at": after.at, "id": after.id, "began": after.began}


def _next_place(row: Row, after: Place) -> Place:
    return Place(row["at"], row["id"], after.began or row["now"])


def interval(seconds: float) -> str:
    return f"{seconds:.6f} s"


def _named(baton: Baton) -> dict[str, Any]:
    return {"lane_id": baton.lane_id, "epoch": baton.epoch, "seq": baton.seq}


def held(turn: Turn) -> dict[str, Any]:
    return {"lane_id": turn.lane_id, "epoch": turn.epoch, "seq": turn.seq, "token": turn.token}


def _batons(batons: Sequence[Baton]) -> str:
    return db.jsonb([{**_named(baton), "resend_no": baton.resend_no} for baton in batons])


def due_of(row: Row) -> Due:
    baton = Baton(kind=row["kind"], lane_id=row["id"], epoch=row["epoch"], seq=row["seq"], resend_no=row["resend_no"])
    return Due(baton, row["tenant_id"], row["delay_s"], row["pulled"], row["wakes"])


def _run(row: Row) -> Run:
    return Run(**{**row, "status": RunStatus(row["status"])})


def _turn(row: Row, baton: Baton, token: UUID) -> Turn:
    return Turn(
        lane_id=baton.lane_id,
        run_id=row["run_id"],
        tenant_id=row["tenant_id"],
        kind=baton.kind,
        key=row["key"],
        holds_run=row["holds_run"],
        epoch=baton.epoch,
        seq=baton.seq,
        resend_no=row["resend_no"],
        token=token,
        cursor=row["cursor"],
        params=row["params"],
        claims=row["claims"],
        attempts=row["attempts"],
        steps=row["steps"],
        max_steps=row["max_steps"],
        deadline_at=row["deadline_at"],
        cancel_at=row["cancel_at"],
        run_status=RunStatus(row["run_status"]),
        run_epoch=row["run_epoch"],
        correlation_id=row["correlation_id"],
        now=row["now"],
        gated=row["gated"],
    )


def _refusal(row: Row, baton: Baton) -> NoTurn:
    """Why this message gives no turn, as the row stands now."""
    if (baton.epoch, baton.seq) < (row["epoch"], row["seq"]):
        return NoTurn.STALE
    if (baton.epoch, baton.seq) > (row["epoch"], row["seq"]):
        return NoTurn.AHEAD
    if row["status"] != LaneStatus.ACTIVE:
        return NoTurn.ENDED
    if row["paused"]:
        return NoTurn.PAUSED
    return NoTurn.EARLY if row["early"] else NoTurn.TWIN
