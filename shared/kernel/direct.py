"""Runs named SQL straight on the pooled driver connection: SQLAlchemy keeps the pool and reads `:names` once, no more.

On the way of every step its own execution costs more than the relay's whole Python: measured in `make bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.pg8000 import PGDialect_pg8000

from shared.kernel import db
from shared.kernel import flights as driver

Row = Mapping[str, Any]
# `$1` twice for a name that stands twice: it travels once.
NUMBERED = PGDialect_pg8000(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


# Ahead of a statement that takes the first rows off an index. The planner, which knows little of a table that grows, would rather sort
# all the rest.
IN_ORDER = sa.text("select set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true)")

# Statements that nobody reads the answers of, and then those that are read: one transaction.
Part = tuple[Sequence[tuple[sa.TextClause, Row]], Sequence[tuple[sa.TextClause, Row]]]


class Line:
    """A driver connection on loan from the pool; each call is one statement and one flight.

    The first one may find that its server is gone or writes no more; `renew` then answers another connection, or None.
    """

    __slots__ = ("_ahead", "_driver", "_may_be_repeated", "_renew", "after_commit")

    def __init__(
        self, connection: driver.Connection, renew: Callable[[Exception], driver.Connection | None] | None = None
    ) -> None:
        self._driver = connection
        self._renew = renew
        self._ahead: list[tuple[str, list[Any]]] = []
        self._may_be_repeated = True
        self.after_commit: list[Callable[[], None]] = []

    def ahead(self, statement: sa.TextClause, params: Row, *, twice_is_once: bool = False) -> None:
        """Send this just ahead of the next statement, or with the commit if none follows: one flight and one transaction, but
        a snapshot for each. `twice_is_once`: it may be sent again by whoever does not know whether it was committed."""
        text, names = _positional(statement)
        self._ahead.append((text, [params[name] for name in names]))
        self._may_be_repeated = self._may_be_repeated and twice_is_once

    def commit(self) -> None:
        """What still waits to be sent goes with it. A transaction that is nothing else is one flight."""
        if not self._ahead:
            self._driver.commit()
            return
        if self._driver.in_transaction:
            self._send_ahead()
            self._ahead.clear()
            self._driver.execute_unnamed("commit")
            return
        renew, self._renew = self._renew, None
        try:
            self._alone()
        except Exception as error:
            # Whether it was committed is not known; what the server never wrote surely was not.
            again = db.only_reads(error) or (self._may_be_repeated and db.is_disconnect(error))
            another = renew(error) if again and renew is not None else None
            if another is None:
                raise
            self._driver = another
            self._alone()

    def _alone(self) -> None:
        self._driver.autocommit = True
        self._last()

    def _last(self) -> None:
        *before, (text, values) = self._ahead
        for each, given in before:
            self._driver.before_next(each, *given)
        self._driver.execute_often(text, values)
        self._ahead.clear()

    def run(self, statement: sa.TextClause, params: Row) -> int:
        return int(self._execute(statement, params).row_count)

    def all(self, statement: sa.TextClause, params: Row, *, often: bool = False) -> list[Row]:
        """`often`: outside a transaction the server keeps its plan."""
        return _rows(self._execute(statement, params, often=often))

    def one(self, statement: sa.TextClause, params: Row) -> Row | None:
        rows = self.all(statement, params)
        assert len(rows) < 2
        return rows[0] if rows else None

    def often(self, statement: sa.TextClause, params: Row) -> Row | None:
        """`one`, for the statements of every step: outside a transaction the server keeps their plans."""
        context = self._execute(statement, params, often=True)
        if not context.rows:
            return None
        (row,) = context.rows
        return {column["name"]: value for column, value in zip(context.columns, row, strict=True)}

    def apart(self, parts: Sequence[Part]) -> list[list[list[Row]] | Exception]:
        """Transactions of their own, one behind the other in one flight: the rows of all that is read of each, or its error."""
        answers = self._driver.execute_apart([(_bound(unheard), _bound(heard)) for unheard, heard in parts])
        return [contexts[0].error or [_rows(context) for context in contexts] for contexts in answers]

    def scalars(self, statement: sa.TextClause, params: Row) -> list[Any]:
        return [row[0] for row in self._execute(statement, params).rows]

    def copy_out(self, statement: str) -> Iterator[list[bytes]]:
        """The rows that a `COPY … TO STDOUT` sends. It takes no parameters: the text is put together from ids and numbers."""
        self._send_ahead()
        self._ahead.clear()
        return self._driver.copy_out(statement)

    def _execute(self, statement: sa.TextClause, params: Row, *, often: bool = False) -> Any:
        text, names = _positional(statement)
        values = [params[name] for name in names]
        renew, self._renew = self._renew, None
        self._send_ahead()
        try:
            context = self._driver.execute_often(text, values) if often else self._driver.execute_unnamed(text, values)
        except Exception as error:
            another = None if renew is None else renew(error)
            if another is None:
                raise
            self._driver = another
        else:
            self._ahead.clear()
            return context
        self._send_ahead()
        self._ahead.clear()
        return self._driver.execute_unnamed(text, values)

    def _send_ahead(self) -> None:
        for text, values in self._ahead:
            self._driver.before_next(text, *values)


class _Loan(AbstractContextManager["Line"]):
    """A pooled connection for as long as a `with` lasts. No generator: this is entered twice in every step."""

    __slots__ = ("_commits", "_connection", "_engine", "_line", "_loan", "_owner", "_pool", "_tenant")

    def __init__(self, engine: sa.Engine, tenant: UUID | None, owner: str | None, *, commits: bool) -> None:
        self._engine = engine
        self._tenant = tenant
        self._owner = owner
        self._commits = commits
        self._borrow()

    def __enter__(self) -> Line:
        self._prepare()
        self._line = Line(self._connection, self._renew)
        return self._line

    def _borrow(self) -> None:
        self._pool = cast("db.Lends", self._engine.pool)
        loan = self._pool.lend()
        self._loan: db.Loan | None = loan
        self._connection = db.connection_of(loan)

    def _prepare(self) -> None:
        self._connection.autocommit = not self._commits
        try:
            if self._owner is not None:
                self._connection.before_next(db.SET_TENANT_AND_OWNER, str(self._tenant), self._owner)
            elif self._tenant is not None:
                self._connection.before_next(db.SET_TENANT, str(self._tenant))
        except BaseException:
            self._return(None)  # nobody leaves what he could not enter: the one connection would stay on loan
            raise

    def _renew(self, error: Exception) -> driver.Connection | None:
        """Another connection where the statement surely left nothing: a transaction just begun is gone with its server."""
        if not (db.is_disconnect(error) if self._commits else db.only_reads(error)):
            return None
        self._return(error)
        self._borrow()
        self._prepare()
        return self._connection

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is None and self._commits:
                self._line.commit()
        except BaseException as failed:
            error = failed
            raise
        finally:
            self._return(error)
        if error is None:
            for then in self._line.after_commit:
                then()

    def _return(self, error: BaseException | None) -> None:
        if self._loan is None:
            return  # the connection in its place could not be had
        loan, self._loan = self._loan, None
        self._pool.take_back(loan, error)


def alone(engine: sa.Engine, tenant: UUID | None = None, owner: str | None = None) -> _Loan:
    """Each statement is its own transaction; tenant and owner hold for the first."""
    return _Loan(engine, tenant, owner, commits=False)


def together(engine: sa.Engine, tenant: UUID | None, owner: str | None = None) -> _Loan:
    """One transaction, committed at the end unless something is raised. With an owner, only his runs are there."""
    return _Loan(engine, tenant, owner, commits=True)


def _bound(statements: Sequence[tuple[sa.TextClause, Row]]) -> list[driver.Asked]:
    bound: list[driver.Asked] = []
    for statement, params in statements:
        text, names = _positional(statement)
        bound.append((text, [params[name] for name in names]))
    return bound


def _rows(context: Any) -> list[Row]:
    if not context.rows:
        return []
    names = [column["name"] for column in context.columns]
    return [dict(zip(names, row, strict=True)) for row in context.rows]


@lru_cache(maxsize=1024)
def _positional(statement: sa.TextClause) -> tuple[str, tuple[str, ...]]:
    compiled = statement.compile(dialect=NUMBERED)
    return compiled.string, tuple(compiled.positiontup or ())
