"""Pull delivery on Postgres: turns are taken best first, renewed while they are worked on, and ended in one flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct, sql
from shared.kernel.direct import Row
from shared.kernel.model import Ending, LaneChange, LaneStatus, Renewed, RunStatus, Turn
from shared.kernel.store import check_names, held, interval


class PgOffers:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

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
        with direct.alone(self._engine) as line:
            line.ahead(sql.LOCK_TAKES, {"queue": queue})
            taken = [_turn(row, token) for row in line.all(sql.TAKEN, params)]
        return taken or self._take(params, token)

    def _take(self, params: Row, token: UUID) -> list[Turn]:
        with direct.alone(self._engine) as line:
            return [_turn(row, token) for row in line.all(sql.TAKE_OFFERS, params)]

    def renew(self, turns: Sequence[Turn], lease_s: float) -> list[Renewed]:
        """Those that are still held, with what was asked of them meanwhile."""
        params = {
            "lane_ids": [str(turn.lane_id) for turn in turns],
            "tokens": sorted({str(turn.token) for turn in turns}),
            "lease": interval(lease_s),
        }

        def renew() -> list[Renewed]:
            with direct.alone(self._engine) as line:
                return [Renewed(**row) for row in line.all(sql.RENEW, params)]

        return db.again_if_disconnected(renew)

    def end(self, turn: Turn, change: LaneChange, ending: Ending, ms: int) -> RunStatus | LaneStatus | None:
        """End the lane and, unless another lane holds it, the run; None: the turn was lost and nothing was written."""
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
        statement = sql.end_turn(tuple(effect.statement for effect in change.effects))
        with direct.alone(self._engine, turn.tenant_id) as line:
            line.ahead(sql.LOCK_RUNS, {"run_ids": [str(turn.run_id)]})
            row = line.often(statement, params)
        if row is None:
            return None
        return LaneStatus(row["lane_status"]) if row["run_status"] is None else RunStatus(row["run_status"])

    def lost(self, after: UUID, window: int) -> tuple[list[tuple[UUID, str]], UUID | None]:
        """Of the next so many turns in hand those whose lease has run out, with their kinds; and where to go on."""

        def look() -> tuple[list[tuple[UUID, str]], UUID | None]:
            with direct.alone(self._engine) as line:
                place = {"after": after, "window": window}
                found = [(row["id"], row["kind"]) for row in line.all(sql.LOST_LANES, place)]
                (seen,) = line.all(sql.TAKEN_AFTER, place)
                return found, seen["last"] if seen["n"] == window else None

        return db.again_if_disconnected(look)

    def take_over(self, lane_id: UUID, token: UUID, lease_s: float) -> Turn | None:
        with direct.alone(self._engine) as line:
            row = line.one(sql.TAKE_OVER, {"lane_id": lane_id, "token": token, "lease": interval(lease_s)})
        return None if row is None else _turn(row, token)


def _turn(row: Row, token: UUID) -> Turn:
    return Turn(**{**row, "run_status": RunStatus(row["run_status"]), "token": token, "pulled": True})
