"""Pull delivery on Postgres: turns are taken best first, renewed while they are worked on, and ended in one flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct, sql
from shared.kernel.clock import stopwatch
from shared.kernel.direct import Row
from shared.kernel.model import (
    Ended,
    Ending,
    Json,
    LaneChange,
    LaneStatus,
    Renewed,
    RunStatus,
    Statement,
    Taking,
    Turn,
    TurnEnd,
)
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
        params, since_s = _take(Taking(queue, lease_s, worker, token, most)), stopwatch()
        try:
            return self._take(params, token, since_s)
        except Exception as error:
            if not db.is_disconnect(error):
                raise
        return self._taken(params, token, since_s) or self._take(params, token, since_s)

    def taken(self, queue: str, token: UUID, worker: str) -> list[Turn]:
        """What this worker has taken with this token: for whoever did not hear the answer."""
        return self._taken({"queue": queue, "token": token, "worker": worker}, token, stopwatch())

    def _taken(self, params: Row, token: UUID, since_s: Callable[[], float]) -> list[Turn]:
        """What was taken with this token, once no take is under way."""
        with direct.alone(self._engine, self._tenant_id) as line:
            line.ahead(sql.LOCK_TAKES, params)
            return [_turn(row, token, since_s) for row in line.all(sql.TAKEN, params)]

    def _take(self, params: Row, token: UUID, since_s: Callable[[], float]) -> list[Turn]:
        take = sql.TAKE_OFFERS if self._tenant_id is None else sql.TAKE_OWN_OFFERS
        with direct.alone(self._engine, self._tenant_id) as line:
            return [_turn(row, token, since_s) for row in line.all(take, params, often=True)]

    def renew(self, turns: Sequence[Turn], lease_s: float) -> list[Renewed]:
        """Those that are still held, with what was asked of them meanwhile."""
        params = {
            "lane_ids": db.uuids(turn.lane_id for turn in turns),
            "tokens": db.uuids({turn.token for turn in turns}),
            "lease": interval(lease_s),
        }

        def renew() -> list[Renewed]:
            with direct.alone(self._engine, self._tenant_id) as line:
                return [Renewed(**row) for row in line.all(sql.RENEW, params)]

        return db.again_if_disconnected(renew)

    def end(self, turn: Turn, change: LaneChange, ending: Ending, ms: int) -> Ended:
        """End the lane and, unless another lane holds it, the run; None: the turn was lost and nothing was written."""
        statement, params = _end(TurnEnd(turn, change, ending, ms))
        with direct.alone(self._engine, turn.tenant_id) as line:
            line.ahead(sql.LOCK_THE_RUN, {"run_id": turn.run_id})
            return _ended(line.often(statement, params))

    def end_together(self, ends: Sequence[TurnEnd], taking: Taking | None = None) -> list[Ended | Exception]:
        """`end` several turns, and `take` the next ones, in one flight that waits for the disk once.

        What came of each: None, if the turn was lost; an error, if nothing was written because its transaction failed, for
        its own sake or a neighbour's. Turns of one tenant share a transaction, but no two of one run; the take shares the last.
        All are committed before they are on the disk, so that nobody waits for the take's locks meanwhile; what comes
        behind them waits until they are. Without its answer nobody works on what was taken: a crash may lose it.
        """
        since_s = stopwatch()
        groups = _together(ends)
        parts = [_part([ends[n] for n in group]) for group in groups]
        if taking is not None:
            before, asked = parts.pop() if parts else ([(sql.NOT_YET_ON_DISK, {})], [])
            parts.append((before, [*asked, (sql.TAKE_OFFERS, _take(taking))]))
        try:
            with direct.alone(self._engine) as line:
                *answers, flushed = line.apart([*parts, ([], [(sql.ON_DISK, {})])])
        except Exception as error:
            if taking is not None and db.is_disconnect(error):
                with suppress(Exception):
                    taking.taken += self._taken(_take(taking), taking.token, since_s)
            raise
        if isinstance(flushed, Exception):
            raise flushed
        if taking is not None and not isinstance(answers[-1], Exception):
            taking.taken += [_turn(row, taking.token, since_s) for row in answers[-1].pop()]
        told: list[Ended | Exception] = [None] * len(ends)
        for group, answer in zip(groups, answers, strict=False):  # a take without endings is no group
            for n, each in zip(group, _told([ends[n].turn for n in group], answer), strict=True):
                told[n] = each
        return told

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

    def give_back(self, turn: Turn) -> None:
        """A turn that was taken and not begun: it costs nothing, and whoever comes next has it."""
        with direct.alone(self._engine, self._tenant_id) as line:
            line.run(sql.RELEASE, held(turn))

    def take_over(self, lane_id: UUID, token: UUID, lease_s: float) -> Turn | None:
        with direct.alone(self._engine) as line:
            row = line.one(sql.TAKE_OVER, {"lane_id": lane_id, "token": token, "lease": interval(lease_s)})
        return None if row is None else _turn(row, token)


def _take(taking: Taking) -> dict[str, Any]:
    return {
        "queue": taking.queue,
        "most": taking.most,
        "token": taking.token,
        "lease": interval(taking.lease_s),
        "worker": taking.worker,
    }


def _together(ends: Sequence[TurnEnd]) -> list[list[int]]:
    """Which of them end in one statement: of one tenant, with the same writes, which can be written for many; and no two of
    one run, because neither would see that the other has ended."""
    groups: dict[tuple[object, ...], list[int]] = {}
    of_run: dict[UUID, int] = {}
    for n, each in enumerate(ends):
        of_run[each.turn.run_id] = place = of_run.get(each.turn.run_id, -1) + 1
        statements = _statements(each)
        alone = n if any(statement.many is None for statement in statements) else None
        groups.setdefault((each.turn.tenant_id, statements, place, alone), []).append(n)
    return list(groups.values())


def _statements(end: TurnEnd) -> tuple[Statement, ...]:
    return tuple(effect.statement for effect in end.change.effects)


def _part(ends: Sequence[TurnEnd]) -> direct.Part:
    """The transaction that ends them. The runs are locked first, in the order of their ids."""
    first = ends[0]
    tenant = {"tenant_id": str(first.turn.tenant_id)}
    if len(ends) == 1:
        run = {**tenant, "run_id": first.turn.run_id}
        return [(sql.LOCK_THE_RUN_NOT_YET_ON_DISK, run)], [_end(first)]
    runs = {"run_ids": db.uuids(each.turn.run_id for each in ends)}
    params = {"turns": db.jsonb([_asked(each) for each in ends])}
    ending = (sql.end_turns(_statements(first)), params)
    return [(sql.AS_TENANT_ONE_BY_ONE, tenant), (sql.LOCK_RUNS, runs)], [ending]


def _told(turns: Sequence[Turn], answer: list[list[Row]] | Exception) -> list[Ended | Exception]:
    if isinstance(answer, Exception):
        return [answer] * len(turns)
    (rows,) = answer
    if len(turns) == 1:
        return [_ended(rows[0] if rows else None)]
    (row,) = rows
    lanes, runs = row["lanes"], row["runs"]
    ids = [str(turn.lane_id) for turn in turns]
    return [
        _ended({"lane_status": lanes[each], "run_status": runs.get(each)} if each in lanes else None) for each in ids
    ]


def _ended(row: Row | None) -> Ended:
    if row is None:
        return None
    return LaneStatus(row["lane_status"]) if row["run_status"] is None else RunStatus(row["run_status"])


def _end(end: TurnEnd) -> tuple[sa.TextClause, dict[str, Any]]:
    params = {
        **_written(end, lambda value: None if value is None else db.jsonb(value)),
        "of_run": end.turn.run_id,
    }
    for effect in end.change.effects:
        check_names(params, effect)
        params |= effect.params
    return sql.end_turn(_statements(end)), params


def _asked(end: TurnEnd) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for effect in end.change.effects:
        check_names(given, effect)
        given |= effect.params
    return {**_written(end, lambda value: value), "given": given}


def _written(end: TurnEnd, as_json: Callable[[Json | None], Any]) -> dict[str, Any]:
    change, ending = end.change, end.ending
    return {
        **held(end.turn),
        "status": change.status,
        "cursor": as_json(change.cursor),
        "progress": change.spent,
        "attempts": change.attempts,
        "error": as_json(None if change.problem is None else change.problem.to_json()),
        "outcome": change.outcome,
        "rows": change.rows,
        "ms": end.ms,
        "run_status": ending.status,
        "run_outcome": ending.outcome,
        "run_error": as_json(None if ending.problem is None else ending.problem.to_json()),
    }


def _turn(row: Row, token: UUID, since_s: Callable[[], float] | None = None) -> Turn:
    known = {**row, "run_status": RunStatus(row["run_status"]), "token": token, "pulled": True}
    return Turn(**known, since_asked_s=since_s)
