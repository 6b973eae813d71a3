"""Pull delivery on Postgres: turns are taken best first, renewed while they are worked on, and ended in one flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct, sql
from shared.kernel.direct import Row
from shared.kernel.model import Ending, LaneChange, LaneStatus, Renewed, RunStatus, Turn
from shared.kernel.store import check_names, held, interval


class PgOffers:
    """With a tenant, only its turns are there: for whoever works on behalf of one, through the API."""

    def __init__(self, engine: sa.Engine, tenant_id: UUID | None = None) -> None:
        self._engine = engine
        self._tenant_id = tenant_id

    def take(self, queue: str, most: int, token: UUID, lease_s: float, worker: str) -> list[Turn]:
        """The best turns of a queue, in fair turns between tenants and within every cap. They hold the same token.

        If the answer is lost, what was taken is asked for first: a turn that nobody knows of would be called lost work.
        """
        params = {"queue": queue, "most": most, "token": token, "lease": interval(lease_s), "worker": worker}
        try:
            return self._take(params, token)
        except Exception as error:
            if not db.is_disconnect(error):
                raise
        return self._taken(params, token) or self._take(params, token)

    def _taken(self, params: Row, token: UUID) -> list[Turn]:
        """What was taken with this token, once no take is under way."""
        with direct.alone(self._engine, self._tenant_id) as line:
            line.ahead(sql.LOCK_TAKES, params)
            return [_turn(row, token) for row in line.all(sql.TAKEN, params)]

    def _take(self, params: Row, token: UUID) -> list[Turn]:
        take = sql.TAKE_OFFERS if self._tenant_id is None else sql.TAKE_OWN_OFFERS
        with direct.alone(self._engine, self._tenant_id) as line:
            return [_turn(row, token) for row in line.all(take, params)]

    def renew(self, turns: Sequence[Turn], lease_s: float) -> list[Renewed]:
        """Those that are still held, with what was asked of them meanwhile."""
        params = {
            "lane_ids": [str(turn.lane_id) for turn in turns],
            "tokens": sorted({str(turn.token) for turn in turns}),
            "lease": interval(lease_s),
        }

        def renew() -> list[Renewed]:
            with direct.alone(self._engine, self._tenant_id) as line:
                return [Renewed(**row) for row in line.all(sql.RENEW, params)]

        return db.again_if_disconnected(renew)

    def end(self, turn: Turn, change: LaneChange, ending: Ending, ms: int) -> RunStatus | LaneStatus | None:
        """End the lane and, unless another lane holds it, the run; None: the turn was lost and nothing was written."""
        statement, params = _end(turn, change, ending, ms)
        with direct.alone(self._engine, turn.tenant_id) as line:
            line.ahead(sql.LOCK_RUNS, {"run_ids": [str(turn.run_id)]})
            row = line.often(statement, params)
        return _ended(row)

    def end_and_take(
        self, turn: Turn, change: LaneChange, ending: Ending, ms: int, taking: Taking
    ) -> tuple[RunStatus | LaneStatus | None, list[Turn]]:
        """`end` one turn and `take` the next in one flight that waits for the disk once.

        Both are committed before they are on the disk, so that nobody waits for the take's locks meanwhile; what comes
        behind them waits until they are. Without its answer nobody works on what was taken: a crash may lose it.
        """
        statement, params = _end(turn, change, ending, ms)
        token = taking.new_token()
        tenant, run = {"tenant_id": str(turn.tenant_id)}, {"run_ids": [str(turn.run_id)]}
        parts: list[list[tuple[sa.TextClause, Row]]] = [
            [(sql.AS_TENANT_NOT_YET_ON_DISK, tenant), (sql.LOCK_RUNS, run), (statement, params)],
            [(sql.TAKE_NOT_YET_ON_DISK, taking.params(token))],
            [(sql.ON_DISK, {})],
        ]
        try:
            with direct.alone(self._engine) as line:
                ended, taken, flushed = line.apart(parts)
        except Exception as error:
            if db.is_disconnect(error):
                with suppress(Exception):
                    taking.keep(self._taken(taking.params(token), token))
            raise
        if isinstance(flushed, Exception):
            raise flushed
        turns = [] if isinstance(taken, Exception) else [_turn(row, token) for row in taken]
        if isinstance(ended, Exception):
            taking.keep(turns)
            raise ended
        return _ended(ended[0] if ended else None), turns

    def lost(self, after: UUID, window: int) -> tuple[list[tuple[UUID, str]], UUID | None]:
        """Of the next so many turns in hand those whose lease has run out, with their kinds; and where to go on."""

        def look() -> tuple[list[tuple[UUID, str]], UUID | None]:
            with direct.alone(self._engine) as line:
                place = {"after": after, "window": window}
                found = [(row["id"], row["kind"]) for row in line.all(sql.LOST_LANES, place)]
                (seen,) = line.all(sql.TAKEN_AFTER, place)
                return found, seen["last"] if seen["n"] == window else None

        return db.again_if_disconnected(look)

    def to_wake(self, most: int, within_s: float, queue: str | None = None) -> list[tuple[str, float]]:
        """The queues whose takers are to be woken, and in how many seconds: once for each thing to take, up to `most`."""
        params = {"most": most, "within": interval(within_s), "queue": queue}

        def look() -> list[tuple[str, float]]:
            with direct.alone(self._engine) as line:
                return [(row["queue"], row["delay_s"]) for row in line.all(sql.TO_WAKE, params)]

        return db.again_if_disconnected(look)

    def held(self, run_id: UUID, token: UUID) -> Turn | None:
        """The turn of a run that is held with this token."""
        with direct.alone(self._engine, self._tenant_id) as line:
            row = line.one(sql.HELD_TURN, {"run_id": run_id, "token": token})
        return None if row is None else _turn(row, token)

    def take_over(self, lane_id: UUID, token: UUID, lease_s: float) -> Turn | None:
        with direct.alone(self._engine) as line:
            row = line.one(sql.TAKE_OVER, {"lane_id": lane_id, "token": token, "lease": interval(lease_s)})
        return None if row is None else _turn(row, token)


@dataclass(slots=True)
class Taking:
    """What is to be taken with the end of a turn, and what was."""

    queue: str
    lease_s: float
    worker: str
    new_token: Callable[[], UUID]
    taken: list[Turn] = field(default_factory=list)

    def params(self, token: UUID) -> dict[str, Any]:
        lease = interval(self.lease_s)
        return {"queue": self.queue, "most": 1, "token": token, "lease": lease, "worker": self.worker}

    def keep(self, turns: Sequence[Turn]) -> None:
        self.taken.extend(turns)


class TakingOffers(PgOffers):
    """Offers for one turn: whoever ends it with them has taken the next one too, if there is one."""

    def __init__(self, engine: sa.Engine, taking: Taking) -> None:
        super().__init__(engine)
        self.taking = taking

    def end(self, turn: Turn, change: LaneChange, ending: Ending, ms: int) -> RunStatus | LaneStatus | None:
        if self.taking.taken:
            return super().end(turn, change, ending, ms)  # tried once more: the next one is in hand already
        ended, turns = self.end_and_take(turn, change, ending, ms, self.taking)
        self.taking.keep(turns)
        return ended


def _end(turn: Turn, change: LaneChange, ending: Ending, ms: int) -> tuple[sa.TextClause, dict[str, Any]]:
    params: dict[str, Any] = {
        **held(turn),
        "status": change.status,
        "cursor": None if change.cursor is None else db.jsonb(change.cursor),
        "progress": change.spent,
        "attempts": change.attempts,
        "error": None if change.problem is None else db.jsonb(change.problem.to_json()),
        "outcome": change.outcome,
        "rows": change.rows,
        "ms": ms,
        "run_status": ending.status,
        "run_outcome": ending.outcome,
        "run_error": None if ending.problem is None else db.jsonb(ending.problem.to_json()),
    }
    for effect in change.effects:
        check_names(params, effect)
        params |= effect.params
    return sql.end_turn(tuple(effect.statement for effect in change.effects)), params


def _ended(row: Row | None) -> RunStatus | LaneStatus | None:
    if row is None:
        return None
    return LaneStatus(row["lane_status"]) if row["run_status"] is None else RunStatus(row["run_status"])


def _turn(row: Row, token: UUID) -> Turn:
    return Turn(**{**row, "run_status": RunStatus(row["run_status"]), "token": token, "pulled": True})
