"""Runs named SQL straight on the pooled driver connection: SQLAlchemy keeps the pool and reads `:names` once, no more.

On the way of every step its own execution costs more than the relay's whole Python: measured in `make bench`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


class Line:
    """A driver connection on loan from the pool; each call is one statement and one flight."""

    __slots__ = ("_driver",)

    def __init__(self, connection: driver.Connection) -> None:
        self._driver = connection

    def run(self, statement: sa.TextClause, params: Row) -> int:
        return int(self._execute(statement, params).row_count)

    def all(self, statement: sa.TextClause, params: Row) -> list[Row]:
        context = self._execute(statement, params)
        names = [column["name"] for column in context.columns]
        return [dict(zip(names, row, strict=True)) for row in context.rows]

    def one(self, statement: sa.TextClause, params: Row) -> Row | None:
        rows = self.all(statement, params)
        assert len(rows) < 2
        return rows[0] if rows else None

    def scalars(self, statement: sa.TextClause, params: Row) -> list[Any]:
        return [row[0] for row in self._execute(statement, params).rows]

    def _execute(self, statement: sa.TextClause, params: Row) -> Any:
        text, names = _positional(statement)
        return self._driver.execute_unnamed(text, [params[name] for name in names])


@contextmanager
def alone(engine: sa.Engine, tenant: UUID | None = None) -> Iterator[Line]:
    """Each statement is its own transaction; the tenant holds for the first."""
    with _loan(engine) as connection:
        connection.autocommit = True
        if tenant is not None:
            connection.before_next(db.SET_TENANT, str(tenant))
        yield Line(connection)


@contextmanager
def together(engine: sa.Engine, tenant: UUID | None) -> Iterator[Line]:
    """One transaction, committed at the end unless something is raised."""
    with _loan(engine) as connection:
        if tenant is not None:
            connection.before_next(db.SET_TENANT, str(tenant))
        yield Line(connection)
        connection.commit()


@contextmanager
def _loan(engine: sa.Engine) -> Iterator[driver.Connection]:
    loan = engine.raw_connection()
    connection = cast("driver.Connection", loan.dbapi_connection)
    try:
        yield connection
    except BaseException as error:
        if connection.closed or db.is_disconnect(error):
            loan.invalidate(error)
        raise
    finally:
        loan.close()  # the pool rolls back what is open and leaves autocommit


@lru_cache(maxsize=1024)
def _positional(statement: sa.TextClause) -> tuple[str, tuple[str, ...]]:
    compiled = statement.compile(dialect=NUMBERED)
    return compiled.string, tuple(compiled.positiontup or ())
