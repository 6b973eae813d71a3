"""Where everything is measured: one server, one migrated database, the product's ports and a bare connection to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import sqlalchemy as sa

from infra.local.postgres import NO_SETTINGS
from shared.kernel import db
from shared.kernel.baton import Baton, read_baton
from shared.kernel.flights import Connection
from shared.kernel.ports import Ports
from shared.kernel.queue import Outgoing
from shared.kernel.store import PgStore
from tests.bench import rows
from tests.bench.limits import bare
from tests.support.databases import ServerAdmin, as_user, scratch_server, server_admin

TENANT = UUID("0199a0b0-0000-7000-8000-00000000000a")


class ListQueue:
    """The queue as a list: what it costs is the product's own work on a message."""

    def __init__(self) -> None:
        self.bodies: list[str] = []

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        self.bodies.extend(message.body for message in messages)
        return []

    def is_empty(self, queue: str) -> bool:
        return not self.bodies

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:
        """Nothing comes back here."""

    def next_baton(self) -> Baton:
        return read_baton(self.bodies.pop())


@dataclass(slots=True)
class Place:
    admin: ServerAdmin
    url: str
    engine: sa.Engine
    owner: sa.Engine
    limit: Connection
    limit_with_plans: Connection
    ports: Ports
    queue: ListQueue

    def owner_runs(self, *statements: str) -> None:
        """Prepare something as the superuser, outside of what is timed."""
        with db.autocommit(self.owner).connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def product_connection(self) -> Connection:
        """The one connection in the product's pool."""
        with self.engine.connect() as connection:
            return cast("Connection", connection.connection.dbapi_connection)

    def bare_connection(self) -> Connection:
        return self.limit


def trips(driver: Connection, act: Callable[[], int]) -> tuple[float, float]:
    """Network flights and statements per operation. Every statement is bound once or sent as a simple query; those that ride ahead of another count too."""
    statements = 0
    bind, simple = driver._bind, driver.execute_simple

    def count(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            nonlocal statements
            statements += 1
            return call(*args)

        return counted

    watched: Any = driver
    watched._bind, watched.execute_simple = count(bind), count(simple)
    flights = driver.flights
    try:
        done = act()
    finally:
        del watched._bind, watched.execute_simple
    return (driver.flights - flights) / done, statements / done


@contextmanager
def place(settings: Mapping[str, str] = NO_SETTINGS) -> Iterator[Place]:
    """On the server that DATABASE_URL names, unless `settings` ask for a server of their own."""
    with ExitStack() as stack:
        if settings:
            admin = ServerAdmin(stack.enter_context(scratch_server(settings)).url())
            stack.callback(admin.close)
        else:
            admin = stack.enter_context(server_admin())
        url = admin.url(admin.create_from_template(admin.create_template()))
        engine, owner = db.connect_engine(as_user(url, "baton_worker")), db.connect_engine(url)
        stack.callback(engine.dispose)
        stack.callback(owner.dispose)
        limit = bare.connect(url)
        stack.callback(limit.close)
        with_plans = bare.connect(url, keeps_plans=True)
        stack.callback(with_plans.close)
        queue = ListQueue()
        found = Place(admin, url, engine, owner, limit, with_plans, Ports(store=PgStore(engine), queue=queue), queue)
        found.owner_runs(rows.SCHEMA)
        yield found
