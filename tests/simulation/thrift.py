"""A connection that has every statement parsed and planned once: a simulation asks the same few hundred thousands of times.

The statements are the product's own, word for word. Only who keeps their plans differs: the product names just those of
every step, because a pooler may stand in between and tables grow. Here nothing stands in between and tables stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import sqlalchemy as sa
from pg8000.core import BIND_COMPLETE, NULL_BYTE, PARSE_COMPLETE, READY_FOR_QUERY, Context
from pg8000.exceptions import InterfaceError

from shared.kernel import db
from shared.kernel.flights import HEADER, READ_AT_ONCE, STATEMENT_ENDS, Connection

NO_NEWS = frozenset({PARSE_COMPLETE, BIND_COMPLETE})


class ThriftyConnection(Connection):
    _named: dict[tuple[str, tuple[int, ...]], bytes]
    _on_their_way: dict[tuple[str, tuple[int, ...]], bytes]
    _names: int
    _time_told: str
    _came: bytes

    def tell_the_time(self, now: str) -> None:
        """Ahead of the next statement, unless the session has it already: what is rolled back takes the time along."""
        if now != self._time_told:
            self.before_next("select set_config('sim.now', $1, false)", now)
            self._time_told = now

    def _end(self, verb: str) -> None:
        if self._ahead or verb == "rollback":
            self._time_told = ""
        super()._end(verb)

    def _bound(self, sql: str, vals: Sequence[Any] = (), oids: Sequence[int] = ()) -> bytes:
        statement = (sql, tuple(oids))
        name = self._named.get(statement)
        if name is not None:
            return self._bind(vals, name)
        self._names += 1  # never used before: nobody knows whether a flight that failed made its plan
        name = self._on_their_way[statement] = b"thrift_%d" % self._names + NULL_BYTE
        return self._parse(sql, name, oids) + self._bind(vals, name)

    def _fly(self, messages: bytes, *args: Any) -> None:
        """Only what surely arrived is known by its name: what was to ride ahead may have been dropped."""
        on_board = {statement: name for statement, name in self._on_their_way.items() if name in messages}
        self._on_their_way = {}
        now, self._time_told = self._time_told, ""
        super()._fly(messages, *args)
        self._named |= on_board
        self._time_told = now

    def _read_answers(self, contexts: Sequence[Context]) -> None:
        """As the product does, but as much at once as has come."""
        waiting = iter(contexts)
        context, code, came, at = next(waiting), None, self._came, 0
        while code != READY_FOR_QUERY:
            while len(came) - at < HEADER.size or len(came) - at <= HEADER.unpack_from(came, at)[1]:
                more = self._usock.recv(READ_AT_ONCE)
                if not more:
                    raise InterfaceError("network error")
                came, at = came[at:] + more, 0
            code, length = HEADER.unpack_from(came, at)
            if code not in NO_NEWS:
                self.message_types[code](came[at + HEADER.size : at + 1 + length], context)
            at += 1 + length
            if code in STATEMENT_ENDS:
                context = next(waiting, context)
        self._came = came[at:]

    def execute_often(self, statement: str, vals: Sequence[Any]) -> Context:
        return self.execute_unnamed(statement, vals)


class ThriftyPool(db.KeptPool):
    """`clock` says what time it is for whoever asks through it."""

    clock: Callable[[], str] | None = None

    def lend(self) -> db.Loan:
        loan = super().lend()
        if self.clock is not None:
            cast("ThriftyConnection", db.connection_of(loan)).tell_the_time(self.clock())
        return loan

    def take_back(self, record: db.Loan, error: BaseException | None) -> None:
        """Whoever lost it was told so by the simulation: nothing is wrong with it, and its plans are worth keeping."""
        super().take_back(record, error if db.connection_of(record).closed else None)


def connect_thriftily(url: str) -> sa.Engine:
    engine = db.connect_engine(url)
    sa.event.listen(engine, "connect", _make_thrifty)
    engine.pool.__class__ = ThriftyPool
    return engine


def tell_the_time(engine: sa.Engine, clock: Callable[[], str] | None) -> None:
    cast("ThriftyPool", engine.pool).clock = clock


def _make_thrifty(connection: Connection, _: object) -> None:
    connection.__class__ = ThriftyConnection
    connection.__dict__.update(_named={}, _on_their_way={}, _names=0, _time_told="", _came=b"")
    # Nobody dies here, and no plan depends on how many rows there are: there are few.
    connection.execute_simple("set synchronous_commit = off; set plan_cache_mode = force_generic_plan")
