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
from tests.kinds.parcel import kind as parcels
from tests.support import tally
from tests.support.subject import subjects

TABLES = (
    "run",
    "lane",
    "step",
    "history",
    "remote_call",
    "gate",
    "repair",
    "signal",
    "hearing",
    "tally",
    "thing",
    "visit",
    "carried",
    "offer",
    "pull_line",
)


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
        """A truncate would take ten times as long for so few rows."""
        with self.connect() as connection:
            tables = [*TABLES, *(table for subject in subjects().values() for table in subject.tables)]
            connection.exec_driver_sql("; ".join(f"delete from {table}" for table in tables))


@contextmanager
def open_stage(url: str) -> Iterator[Stage]:
    """On a migrated database, entered as its superuser."""
    engine = db.connect_engine(url, connect_seconds=5)
    try:
        with db.autocommit(engine).connect() as connection:
            connection.exec_driver_sql(tally.SCHEMA)
            connection.exec_driver_sql(outside.SCHEMA)
            connection.exec_driver_sql(parcels.SCHEMA)
            connection.exec_driver_sql(parcels.CLASSES)
            for subject in subjects().values():
                if subject.schema:
                    connection.exec_driver_sql(subject.schema)
        with Zygote() as zygote:
            yield Stage(url, engine, zygote)
    finally:
        engine.dispose()


# Time passes: the queues' clock goes forward and every stored moment that is compared with now() goes back by the same
# amount, so a tick that waits three minutes for a lost message is tested in milliseconds. now() itself stays real.
# While workers are at work, a lease or a probe that somebody may hold keeps its real time.
LANES = """
update lane set next_due_at = next_due_at - {by}, sent_at = sent_at - {by}, check_at = check_at - {by},
                deadline_at = deadline_at - {by}
where status = 'active'
"""
RUNS = """
update run set check_at = check_at - {by}, deadline_at = deadline_at - {by}, paused_at = paused_at - {by}
where finished_at is null
"""
GATES = "update gate set until = until - {by} where state <> 'probing'"
LEASES = "update lane set lease_until = lease_until - {by} where lease_until is not null"
PROBES = "update gate set until = until - {by} where state = 'probing'"
CALLS = (
    "update remote_call set intended_at = intended_at - {by}, looked_at = looked_at - {by}, clean_at = clean_at - {by}"
)
CALLS_OF_THE_IDLE = (
    CALLS
    + """
where not exists (select from lane where lane.run_id = remote_call.run_id and lane.lease_until is not null)
"""
)
HEARINGS = "update hearing set due_at = due_at - {by}"
A_CALL_IS_OVER_S = 17 * 60


def pass_time(connection: sa.Connection, hub: Hub, seconds: float) -> None:
    """For a stage on which nobody works."""
    clocks = [clock for subject in subjects().values() for clock in subject.clocks]
    _shift(connection, seconds, LANES, RUNS, GATES, LEASES, PROBES, CALLS, HEARINGS, *clocks)
    hub.skip(seconds)


def pass_time_for_the_idle(connection: sa.Connection, seconds: float) -> None:
    """For a stage on which somebody may be at work."""
    _shift(connection, seconds, LANES, RUNS, GATES, CALLS_OF_THE_IDLE, HEARINGS)


def let_calls_end(connection: sa.Connection) -> None:
    """A quarter of an hour passes: no function can still be making a call that it never confirmed."""
    _shift(connection, A_CALL_IS_OVER_S, CALLS)


def _shift(connection: sa.Connection, seconds: float, *statements: str) -> None:
    # One flight, but a transaction each: together they would lock lanes before runs, as nobody may.
    each = (statement.format(by=f"interval '{seconds} s'") for statement in statements)
    connection.exec_driver_sql("; ".join(f"begin; {statement}; commit" for statement in each))
