"""The raw driver as the worker's role. Never changed together with product code (see README.md)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from shared.kernel.flights import Connection
from tests.support.databases import as_user

SET_TENANT = "select set_config('app.tenant', $1, true)"


def connect(url: str, user: str = "baton_worker", *, keeps_plans: bool = False) -> Connection:
    """A connection on which each statement is its own transaction until `begin` is asked for."""
    parts = urlsplit(as_user(url, user))
    connection = Connection(
        user=user,
        password=parts.password,
        host=parts.hostname,
        port=parts.port or 5432,
        database=parts.path.lstrip("/"),
        keeps_plans=keeps_plans,
    )
    connection.autocommit = True
    return connection


def rows(connection: Connection, statement: str, *values: Any) -> list[Any]:
    """One statement, one flight."""
    found: list[Any] = connection.execute_unnamed(statement, values).rows or []
    return found


def rows_often(connection: Connection, statement: str, *values: Any) -> list[Any]:
    """The same for a statement whose plan the server keeps, if the connection was made for that."""
    found: list[Any] = connection.execute_often(statement, values).rows or []
    return found
