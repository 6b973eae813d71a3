"""What each statement of a story costs: every one is explained just before it is sent, and taken back.

One whose plan the server keeps is run by the plan that was made when the state began, without a look at its parameters. That is the
plan which turns bad: nothing tells the server that a table has grown until it is analyzed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from pg8000.converters import make_param
from pg8000.exceptions import DatabaseError

from shared.kernel.flights import Asked, Connection, Part, sqlstate
from tests.support.plans import counted

EXPLAIN = "explain (analyze, buffers, timing off, format json)"
EXPLAINED = re.compile(r"\s*(with|select|insert|update|delete)\b", re.IGNORECASE)
ROWS_OF_A_PAGE = 50
TOOK_TOO_LONG = "57014"
SETS_A_SETTING = re.compile(r"\s*select set_config\(")


class Watch:
    """Costs of the statements of one connection, by their text, in the state that `state` names."""

    def __init__(self, connection: Connection) -> None:
        self.state = ""
        self.pages: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.plans: dict[tuple[str, str], Any] = {}
        self._connection: Any = connection
        self._kept: dict[tuple[str, str], str] = {}
        self._execute, self._fly = connection.execute_unnamed, connection._fly_planned

    @contextmanager
    def watching(self, state: str) -> Iterator[None]:
        self.state = state
        self._connection.execute_unnamed, self._connection._fly_planned = self._unnamed, self._planned
        try:
            yield
        finally:
            del self._connection.execute_unnamed, self._connection._fly_planned

    def _unnamed(self, statement: str, vals: Sequence[Any] = (), oids: Sequence[int] = (), stream: Any = None) -> Any:
        if EXPLAINED.match(statement) and not SETS_A_SETTING.match(statement):
            self._look(statement, vals, self._connection._ahead, kept=False)
        return self._execute(statement, vals, oids, stream)

    def _planned(self, parts: Sequence[Part]) -> Any:
        for unheard, heard in parts:
            before = list(unheard)
            for statement, vals in heard:
                self._look(statement, vals, before, kept=True)
                before.append((statement, vals))
        return self._fly(parts)

    def _look(self, statement: str, vals: Any, ahead: Sequence[Asked], *, kept: bool) -> None:
        before = list(ahead)
        if not kept:
            self._count(statement, f"{EXPLAIN} {statement}", vals, before)
        else:
            name = self._kept.get((statement, self.state))
            if name is None:
                name = self._kept[statement, self.state] = f"young_{id(self)}_{len(self._kept)}"
                self._connection.execute_simple(f"prepare {name} as {statement}")
            given = ", ".join(_literal(self._connection, value) for value in vals)
            self._count(statement, f"{EXPLAIN} execute {name}{f'({given})' if vals else ''}", (), before)

    def _count(self, statement: str, explained: str, vals: Sequence[Any], before: Sequence[Asked]) -> None:
        """The second time: the first one also reads what the session then knows of tables and functions."""
        connection = self._connection
        ahead, connection._ahead = connection._ahead, []
        try:
            self._explained(explained, vals, before)
            answer = self._explained(explained, vals, before)
        except DatabaseError as error:
            if sqlstate(error) == TOOK_TOO_LONG:
                raise
            return  # refused, as it will be when it is really sent
        finally:
            connection._ahead = ahead
        pages = counted(answer).buffers + rows(answer["Plan"]) // ROWS_OF_A_PAGE
        found = self.pages[statement][self.state]
        if not found or pages > max(found):
            self.plans[statement, self.state] = answer["Plan"]
        found.append(pages)

    def _explained(self, explained: str, vals: Sequence[Any], before: Sequence[Asked]) -> Any:
        """Nothing of it stays."""
        connection = self._connection
        within = connection.in_transaction
        connection.execute_simple("savepoint look" if within else "begin")
        try:
            connection.execute_simple("set local plan_cache_mode = force_generic_plan")
            for text, given in before:
                self._execute(text, given)
            ((answer,),) = self._execute(explained, vals).rows
            (plan,) = orjson.loads(answer) if isinstance(answer, str) else answer
            return plan
        finally:
            connection.execute_simple("rollback to savepoint look; release savepoint look" if within else "rollback")


def _literal(connection: Any, value: Any) -> str:
    spelled = value if isinstance(value, str) else make_param(connection.py_types, value)
    return "null" if spelled is None else "'" + str(spelled).replace("'", "''") + "'"


def rows(plan: Mapping[str, Any]) -> int:
    """All rows that any part of a plan looked at: what costs time without a page being touched."""
    mine = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
    return int(mine * plan["Actual Loops"]) + sum(rows(below) for below in plan.get("Plans", ()))


def outline(plan: Mapping[str, Any], depth: int = 0) -> str:
    """A plan in few words: its nodes with the index, the conditions and how many pages each touched."""
    words = [plan["Node Type"], *(plan[key] for key in ("Relation Name", "Index Name", "CTE Name") if key in plan)]
    conditions = [f"[{plan[key]}]" for key in ("Index Cond", "Filter", "Join Filter", "Hash Cond") if key in plan]
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    line = f"{'  ' * depth}{' '.join(words)} x{plan['Actual Loops']}: {pages} pages, {plan['Actual Rows']:.0f} rows {' '.join(conditions)}"
    return "\n".join([line, *(outline(below, depth + 1) for below in plan.get("Plans", ()))])
