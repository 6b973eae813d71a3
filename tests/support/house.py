"""Guards that tests of the relay stand on the product's own store: a migrated Postgres with the tally kind in it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, run
from shared.kernel.baton import Baton
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.decide import Limits
from shared.kernel.model import Due, NoTurn, Turn
from shared.kernel.ports import Ports, Store
from shared.kernel.queue_memory import MemoryQueue, QueueSettings
from shared.kernel.settings import Relay
from shared.kernel.step import Outcome, take_turn
from shared.kernel.store import PgStore
from tests.support.databases import ServerAdmin, as_user
from tests.support.tally import SCHEMA, QuietWorld, tally_kind

FIFO, DELAY = "baton-tally.fifo", "baton-delay"
ALICE, BOB = UUID(int=0xA11CE), UUID(int=0xB0B)
TABLES = (
    "tally",
    "run",
    "lane",
    "step",
    "history",
    "remote_call",
    "gate",
    "repair",
    "signal",
    "hearing",
    "pulse",
    "beat",
    "answered",
)
RELAY = Relay(step_timeout_s=60, lease_s=70)


class House:
    """One database, the tally kind, and short ways to look at rows and to change them as time or fate would."""

    def __init__(self, superuser_url: str) -> None:
        self.url = superuser_url
        self._own_engines = [
            db.connect_engine(superuser_url, application_name="owner"),
            db.connect_engine(as_user(superuser_url, "baton_worker")),
        ]
        self._owner = db.autocommit(self._own_engines[0])
        self.store = PgStore(self._own_engines[1])
        self._guests: list[sa.Engine] = []
        self._furnish()

    def _furnish(self) -> None:
        self.relay = RELAY
        self.world = QuietWorld(self._visit)
        self.visits: Callable[[Turn, int], None] = lambda _turn, _n: None
        self.kind = tally_kind(self.world, Limits())
        self.kinds = Catalogue(self.kind)
        self.queue = new_queue()
        self.ports = self.ports_of(self.store)

    def _visit(self, turn: Turn, n: int) -> None:
        self.visits(turn, n)

    def empty(self) -> None:
        """Make it as good as new; its own two connections stay warm."""
        self.send_guests_home()
        self._furnish()
        with self._owner.connect() as connection:
            connection.exec_driver_sql("; ".join(f"delete from {table}" for table in TABLES))

    def send_guests_home(self) -> None:
        while self._guests:
            self._guests.pop().dispose()

    def close(self) -> None:
        self.send_guests_home()
        for engine in self._own_engines:
            engine.dispose()

    def engine(self, role: str = "baton_worker", name: str = "baton", url: str | None = None) -> sa.Engine:
        """A new engine with a connection of its own, entered as a role of the product, until the test ends."""
        self._guests.append(db.connect_engine(as_user(url or self.url, role), application_name=name))
        return self._guests[-1]

    def ports_of(self, store: Store) -> Ports:
        return Ports(store=store, queue=self.queue, relay=self.relay)

    def api_ports(self) -> Ports:
        return self.ports_of(PgStore(self.engine("baton_api")))

    # What the rows say, and what time does to them.

    def sql(self, text: str, **params: Any) -> list[SimpleNamespace]:
        """Run one statement as the superuser."""
        with self._owner.connect() as connection:
            result = connection.execute(sa.text(text), params)
            return [SimpleNamespace(**row) for row in result.mappings()] if result.returns_rows else []

    def value(self, text: str, **params: Any) -> Any:
        (row,) = self.sql(text, **params)
        (value,) = vars(row).values()
        return value

    @contextmanager
    def locking(self, text: str, **params: Any) -> Iterator[None]:
        """Hold whatever locks a statement takes until the block ends."""
        engine = db.connect_engine(self.url, application_name="holder")
        try:
            with engine.begin() as connection:
                connection.execute(sa.text(text), params)
                yield
        finally:
            engine.dispose()

    def start(self, tenant: UUID = ALICE, **params: Any) -> UUID:
        return run.start_run(self.ports, self.kind, tenant, {"lanes": 1, "target": 2, **params})

    def start_running(self, tenant: UUID = ALICE, **params: Any) -> UUID:
        """A run whose first step is behind it, so that its next ones are plain."""
        run_id = self.start(tenant, **params)
        self.sql("update run set status = 'running', started_at = now() where id = :id", id=run_id)
        return run_id

    def run(self, run_id: UUID) -> Any:
        (row,) = self.sql("select * from run where id = :id", id=run_id)
        return row

    def lane(self, run_id: UUID, key: str = "l0") -> Any:
        (row,) = self.sql(
            """select id, run_id, tenant_id, kind, key, holds_run, status, epoch, seq, resend_no, resends, cursor,
                      next_due_at, sent_at, nullif(check_at, 'infinity') as check_at, check_at = 'infinity' as parked,
                      cancel_at, time_limit_s, deadline_at, steps, max_steps, claims, claim_token, lease_until, attempts,
                      last_error, created_at
               from lane where run_id = :id and key = :key""",
            id=run_id,
            key=key,
        )
        return row

    def keys(self, run_id: UUID) -> list[str]:
        return [row.key for row in self.sql("select key from lane where run_id = :id order by key", id=run_id)]

    def baton(self, run_id: UUID, key: str = "l0") -> Baton:
        """The lane's current baton."""
        lane = self.lane(run_id, key)
        return Baton(kind="tally", lane_id=lane.id, epoch=lane.epoch, seq=lane.seq, resend_no=lane.resend_no)

    def due(self, run_id: UUID, key: str = "l0") -> Due:
        return Due(self.baton(run_id, key), self.lane(run_id, key).tenant_id, 0.0)

    def history(self, run_id: UUID) -> list[str]:
        return [row.type for row in self.sql("select type from history where run_id = :id order by n", id=run_id)]

    def endings(self, run_id: UUID) -> list[str]:
        return [type_ for type_ in self.history(run_id) if type_ in {"succeeded", "failed", "canceled"}]

    def tally(self, run_id: UUID, key: str = "l0") -> list[int]:
        rows = self.sql("select n from tally where run_id = :id and lane = :key order by n", id=run_id, key=key)
        return [row.n for row in rows]

    def ledger(self, run_id: UUID, key: str = "l0") -> list[tuple[int, int, str]]:
        lane_id = self.lane(run_id, key).id
        rows = self.sql("select epoch, seq, outcome from step where lane_id = :id order by epoch, seq", id=lane_id)
        return [(row.epoch, row.seq, row.outcome) for row in rows]

    def repairs(self, run_id: UUID, key: str = "l0") -> list[str]:
        lane_id = self.lane(run_id, key).id
        return [row.why for row in self.sql("select why from repair where lane_id = :id order by id", id=lane_id)]

    def waiting(self, queue: str = FIFO) -> list[str]:
        """The bodies of the messages that lie in a queue."""
        contents = self.queue.messages(queue)
        return [message.body for message in (*contents.visible, *contents.delayed)]

    def expire_lease(self, run_id: UUID, key: str = "l0") -> None:
        self.set_lane(run_id, key, "lease_until = now() - interval '1 s', check_at = now() - interval '1 s'")

    def set_lane(self, run_id: UUID, key: str, assignments: str) -> None:
        self.sql(f"update lane set {assignments} where run_id = :id and key = :key", id=run_id, key=key)

    def pass_deadline(self, run_id: UUID) -> None:
        self.sql("update run set deadline_at = now(), check_at = now() where id = :id", id=run_id)

    # What a worker does.

    def claim(self, run_id: UUID, key: str = "l0", lease_s: float = 70) -> Turn:
        turn = self.store.claim(self.baton(run_id, key), new_id(), lease_s)
        assert not isinstance(turn, NoTurn), turn
        return turn

    def take_turn(self, run_id: UUID, key: str = "l0", ports: Ports | None = None) -> Outcome:
        return take_turn(self.baton(run_id, key), self.kind, ports or self.ports)


def new_queue(settings: Mapping[str, QueueSettings] | None = None) -> MemoryQueue:
    usual = {FIFO: QueueSettings(fifo=True, visibility_s=360), DELAY: QueueSettings(fifo=False, visibility_s=60)}
    return MemoryQueue(settings or usual, time.monotonic, random.Random(0))


@contextmanager
def tally_database(server: ServerAdmin, template: str) -> Iterator[str]:
    """A copy of the template with the tally's table; its superuser's URL is the answer."""
    name = server.create_from_template(template)
    engine = db.connect_engine(server.url(name))
    with db.autocommit(engine).connect() as connection:
        connection.exec_driver_sql(SCHEMA)
    engine.dispose()
    yield server.url(name)
    server.drop(name)


@contextmanager
def tally_house(server: ServerAdmin, template: str) -> Iterator[House]:
    """A house that a session's tests share; each empties it first."""
    with tally_database(server, template) as url:
        house = House(url)
        try:
            yield house
        finally:
            house.close()
