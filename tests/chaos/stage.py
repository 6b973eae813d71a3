"""A database, its queues and a family of worker processes: what the kill matrix and the chaos run have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from shared.kernel import db
from tests.chaos import outside
from tests.chaos.hub import Hub
from tests.chaos.zygote import Zygote
from tests.support import tally

TABLES = "run, lane, step, history, remote_call, gate, repair, signal, tally, thing, visit"


@dataclass(frozen=True, slots=True)
class Stage:
    url: str
    engine: sa.Engine
    zygote: Zygote

    @contextmanager
    def connect(self) -> Iterator[sa.Connection]:
        """As superuser, each statement on its own."""
        with db.autocommit(self.engine).connect() as connection:
            yield connection

    def clear(self) -> None:
        with self.connect() as connection:
            connection.exec_driver_sql(f"truncate {TABLES} restart identity")


@contextmanager
def open_stage(url: str) -> Iterator[Stage]:
    """On a migrated database, entered as its superuser."""
    engine = db.connect_engine(url, connect_seconds=5)
    try:
        with db.autocommit(engine).connect() as connection:
            connection.exec_driver_sql(tally.SCHEMA)
            connection.exec_driver_sql(outside.SCHEMA)
        with Zygote() as zygote:
            yield Stage(url, engine, zygote)
    finally:
        engine.dispose()


# Time passes: the queues' clock goes forward and every stored moment that is compared with now() goes back by the same
# amount, so a tick that waits three minutes for a lost message is tested in milliseconds. now() itself stays real.
PASS_TIME = """
update lane set next_due_at = next_due_at - :by, sent_at = sent_at - :by, check_at = check_at - :by,
                deadline_at = deadline_at - :by, lease_until = lease_until - :by where status = 'active';
update run set check_at = check_at - :by, deadline_at = deadline_at - :by, paused_at = paused_at - :by
where finished_at is null;
update gate set until = until - :by
"""
# The same while workers are at work: a lease or a probe that somebody may hold keeps its real time.
PASS_TIME_FOR_THE_IDLE = """
update lane set next_due_at = next_due_at - :by, sent_at = sent_at - :by, check_at = check_at - :by,
                deadline_at = deadline_at - :by where status = 'active';
update run set check_at = check_at - :by, deadline_at = deadline_at - :by, paused_at = paused_at - :by
where finished_at is null;
update gate set until = until - :by where state <> 'probing'
"""


def pass_time(connection: sa.Connection, hub: Hub, seconds: float, *, nobody_works: bool) -> None:
    script = PASS_TIME if nobody_works else PASS_TIME_FOR_THE_IDLE
    connection.exec_driver_sql(script.replace(":by", f"interval '{seconds} s'"))
    hub.skip(seconds)
