"""The world outside the relay, kept in tables of its own: what was made there survives the process that made it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from shared.kernel import db
from shared.kernel.errors import Throttled, Transient
from shared.kernel.model import Turn
from tests.support.tally import EasyWorld

SCHEMA = """
create table thing (key text primary key, creates integer not null, present boolean not null);
create table visit (run_id uuid, lane text, n integer, times integer not null, primary key (run_id, lane, n))
"""

CREATE = sa.text("""
insert into thing as t (key, creates, present) values (:key, 1, true)
on conflict (key) do update set creates = t.creates + 1, present = true
""")
FIND = sa.text("select key from thing where key = :key and present")
REMOVE = sa.text("update thing set present = false where key = :key")
VISIT = sa.text("""
insert into visit as v (run_id, lane, n, times) values (:run_id, :lane, :n, 1)
on conflict (run_id, lane, n) do update set times = v.times + 1
returning times
""")

GATE = "upstream"


class PgWorld(EasyWorld):
    """Answers to the tally's World. `trouble` in a run's params says what its first visits meet, per lane."""

    def __init__(self, url: str) -> None:
        self._engine = db.connect_engine(url, connect_seconds=2)
        self._each = db.autocommit(self._engine)

    def visit(self, turn: Turn, n: int) -> None:
        if turn.key in turn.params.get("killers", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        trouble = turn.params.get("trouble", {}).get(turn.key)
        if trouble is None or self._visits(turn, n) > 1:
            return
        match trouble:
            case "throttled":
                raise Throttled(GATE, 1.0)
            case "transient":
                raise Transient("no answer")
            case _:
                raise KeyError("surprise")

    def create(self, key: str) -> str:
        with self._connected() as connection:
            connection.execute(CREATE, {"key": key})
        return f"thing-{key}"

    def find(self, key: str) -> str | None:
        with self._connected() as connection:
            found = connection.execute(FIND, {"key": key}).scalar_one_or_none()
        return None if found is None else f"thing-{found}"

    def remove(self, remote_id: str | None, key: str) -> None:
        with self._connected() as connection:
            connection.execute(REMOVE, {"key": key})

    def _visits(self, turn: Turn, n: int) -> int:
        params: Mapping[str, Any] = {"run_id": turn.run_id, "lane": turn.key, "n": n}
        with self._connected() as connection:
            return int(connection.execute(VISIT, params).scalar_one())

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        try:
            with self._each.connect() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise Transient("the outside did not answer") from error
