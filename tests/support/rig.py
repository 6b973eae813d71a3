"""The relay on a real Postgres and a strict queue under one clock that the test turns: hours pass in milliseconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.clock import Chance
from shared.kernel.dead_letter import note_dead_letter
from shared.kernel.handle import handle_baton, handle_delayed
from shared.kernel.ports import Ports
from shared.kernel.queue import Received
from shared.kernel.queue_memory import MemoryQueue, QueueSettings
from shared.kernel.settings import Relay
from shared.kernel.store import PgStore
from shared.kernel.tick import TickReport, tick
from tests.simulation.backends import prepare_database
from tests.support.databases import ServerAdmin, as_user
from tests.support.tally import QuietWorld, tally_kind

FIFO, DEAD, DELAY = "baton-tally.fifo", "baton-tally-dead.fifo", "baton-delay"
QUEUES = (FIFO, DEAD, DELAY)
TENANT = UUID(int=0xA0)
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_S, VISIBILITY_S, MAX_RECEIVES = 40, 180, 10
TABLES = ("tally", "run", "lane", "step", "history", "remote_call", "gate", "repair", "signal", "beat", "pulse")

QUEUE_SETTINGS = {
    FIFO: QueueSettings(
        fifo=True,
        visibility_s=VISIBILITY_S,
        max_receive_count=MAX_RECEIVES,
        dead_letter=DEAD,
        dedup_scope="messageGroup",
    ),
    DEAD: QueueSettings(fifo=True, visibility_s=VISIBILITY_S),
    DELAY: QueueSettings(fifo=False, visibility_s=60),
}


class Rig:
    """One relay, one kind (the tally unless a test gives another), one clock."""

    def __init__(self, worker: sa.Engine, owner: sa.Engine, settings: dict[str, QueueSettings] | None = None) -> None:
        self.now = 0.0
        self.tick_every_s = 60.0
        self.next_tick_at = 60.0
        self.owner = db.autocommit(owner)
        self.engine = worker
        self.world = QuietWorld()
        self.kind: Kind = tally_kind(self.world)
        self.counted: Counter[str] = Counter()
        self.queue = MemoryQueue(settings or QUEUE_SETTINGS, lambda: self.now, Random(11))
        self.ports = Ports(
            store=PgStore(worker),
            queue=self.queue,
            chance=Chance(fraction=lambda: 0.5),
            meter=self,
            relay=Relay(step_timeout_s=30, lease_s=LEASE_S),
        )

    def count(self, metric: str, value: float = 1, /, **dimensions: str) -> None:
        self.counted[metric] += int(value)

    def tell_the_time(self, connection: Any, *_: object) -> None:
        clock = BEGINNING + timedelta(seconds=self.now)
        connection.before_next("select set_config('sim.now', $1, false)", clock.isoformat())

    @property
    def kinds(self) -> Catalogue:
        return Catalogue(self.kind)

    # What happens.

    def start(self, **params: Any) -> UUID:
        return runs.start_run(self.ports, self.kind, TENANT, {"lanes": 1, "target": 3, **params})

    def receive(self, queue: str = FIFO) -> Received | None:
        received = self.queue.receive(queue)
        return received[0] if received else None

    def expect(self, queue: str = FIFO) -> Received:
        message = self.receive(queue)
        assert message is not None, f"nothing to receive from {queue}"
        return message

    def work(self, message: Received, queue: str = FIFO) -> bool:
        """What a function and its event source mapping do with one message."""
        if queue == FIFO:
            done = handle_baton(self.ports, self.kind, message)
        elif queue == DELAY:
            done = handle_delayed(self.ports, message)
        else:
            note_dead_letter(self.ports, message.body, message.receive_count)
            done = True
        if done:
            self.queue.delete(queue, message.receipt)
        return done

    def work_off(self, most: int = 1000) -> int:
        """Deliver what is visible until nothing is, or `most` messages were delivered."""
        delivered = 0
        while delivered < most:
            for queue in QUEUES:
                message = self.receive(queue)
                if message is not None:
                    self.work(message, queue)
                    delivered += 1
                    break
            else:
                break
        return delivered

    def tick(self) -> TickReport:
        return tick(self.ports, self.kinds)

    def pass_time(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen that happens by itself; no further than the first event after which `until` holds."""
        end = self.now + seconds
        missed = self.now - self.next_tick_at
        if missed > 0:  # the test set the clock forward, and nobody ticks in the past
            self.next_tick_at += self.tick_every_s * math.ceil(missed / self.tick_every_s)
        while True:
            self.work_off()
            if until():
                return
            changes = [self.queue.next_change(queue) for queue in QUEUES]
            at = min([self.next_tick_at, *(change for change in changes if change is not None)])
            if at > end:
                self.now = end
                return
            self.now = at
            if at == self.next_tick_at:
                self.next_tick_at += self.tick_every_s
                self.tick()

    def run_to_end(self, run_id: UUID, within_s: float) -> str:
        self.pass_time(within_s, until=lambda: self.run(run_id)["status"] not in ("queued", "running"))
        self.pass_time(1)  # whatever comes next, it is later
        return str(self.run(run_id)["status"])

    def purge(self) -> None:
        for queue in QUEUES:
            self.queue.purge(queue)

    # What is the case.

    def rows(self, sql: str, **params: Any) -> Sequence[Any]:
        with self.owner.connect() as connection:
            return connection.execute(sa.text(sql), params).mappings().all()

    def run(self, run_id: UUID) -> Any:
        return self.rows("select * from run where id = :id", id=run_id)[0]

    def lane(self, run_id: UUID, key: str = "l0") -> Any:
        # A parked lane's check_at is infinity, which Python cannot hold.
        found = self.rows("select *, check_at::text as check_at from lane where run_id = :id and key = :key", id=run_id, key=key)  # fmt: skip
        return found[0]

    def tallied(self, run_id: UUID, key: str = "l0") -> list[int]:
        found = self.rows("select n from tally where run_id = :id and lane = :key order by n", id=run_id, key=key)
        return [row["n"] for row in found]

    def waiting(self) -> list[str]:
        """The bodies of all messages that nobody holds."""
        contents = [self.queue.messages(queue) for queue in (FIFO, DELAY)]
        return [stored.body for each in contents for stored in (*each.visible, *each.delayed)]


MakeRig = Callable[..., Rig]
AnyRig = TypeVar("AnyRig", bound=Rig)


class RigDatabase:
    """A database for one test after the other. Its connections stay open: a new one costs more than most of what is asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.worker, self.owner = db.connect_engine(as_user(url, "baton_worker")), db.connect_engine(url)

    def empty(self, *tables: str) -> None:
        with db.autocommit(self.owner).connect() as connection:
            connection.exec_driver_sql("; ".join(f"delete from {table}" for table in (*tables, *TABLES)))

    @contextmanager
    def follows(self, rig: AnyRig) -> Iterator[AnyRig]:
        """While the rig is used, its clock is the database's."""
        sa.event.listen(self.worker, "checkout", rig.tell_the_time)
        try:
            yield rig
        finally:
            sa.event.remove(self.worker, "checkout", rig.tell_the_time)

    def close(self) -> None:
        self.worker.dispose()
        self.owner.dispose()


@pytest.fixture(scope="session")
def rig_database(postgres_server: ServerAdmin, template: str) -> Iterator[RigDatabase]:
    url = postgres_server.url(postgres_server.create_from_template(template))
    prepare_database(url)
    database = RigDatabase(url)
    yield database
    database.close()


@pytest.fixture
def make_rig(rig_database: RigDatabase) -> Iterator[MakeRig]:
    rig_database.empty()
    with ExitStack() as rigs:

        def make(**settings: QueueSettings) -> Rig:
            rig = Rig(rig_database.worker, rig_database.owner, {**QUEUE_SETTINGS, **settings})
            return rigs.enter_context(rig_database.follows(rig))

        yield make


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()
