"""Page ingestion on a real Postgres, with its real adapter and a stand-in for its upstream, under the clock of the rig."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.local.standins.nivoda import NivodaStandIn
from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.clock import Chance
from shared.kernel.decide import Limits
from shared.kernel.http import new_pool
from shared.kernel.model import RunStatus, Turn
from shared.kernel.settings import Relay
from shared.kernel.store import PgStore
from shared.kernel.tokens import Tokens
from shared.page_ingest.adapters.nivoda import Nivoda
from shared.page_ingest.ports import Ports as IngestPorts
from shared.page_ingest.ports import Upstream
from shared.page_ingest.steps import page_ingest
from shared.page_ingest.store import PageStore
from tests.support.rig import BEGINNING, FIFO, LEASE_S, TENANT, Rig, RigDatabase

OTHER_TENANT = UUID(int=0xB0)
LOW, HIGH = 200, 20_000


class IngestRig(Rig):
    """A relay whose only kind is page ingestion, and the catalogue that it reads. Most tests read several pages in a step: that is
    quicker, and the harder case."""

    pages_per_step = 8

    def __init__(self, worker: sa.Engine, owner: sa.Engine) -> None:
        super().__init__(worker, owner)
        ids = Random(7)
        self.standin = NivodaStandIn(stones=0)
        self.moments = count()
        self.store = PageStore(worker)
        self.tokens = Tokens(worker)
        self.base_url = ""
        self.pool = new_pool()
        self.use(self.nivoda)
        self.ports = replace(
            self.ports,
            relay=Relay(step_timeout_s=30, lease_s=LEASE_S, fifo_queue=FIFO),
            chance=Chance(new_id=lambda: UUID(int=ids.getrandbits(128)), fraction=lambda: 0.5),
        )

    def use(self, upstream: Callable[[str, Turn, Callable[[], float]], Upstream], limits: Limits | None = None) -> None:
        ports = IngestPorts(upstream=upstream, tokens=self.tokens, store=self.store, pages_per_step=self.pages_per_step)
        self.kind = page_ingest(ports, limits)

    def nivoda(self, source: str, turn: Turn, time_left_s: Callable[[], float]) -> Upstream:
        username, password = self.standin.username, self.standin.password
        return Nivoda(self.base_url, username, password, time_left_s=time_left_s, pool=self.pool)

    def stock(self, stones: int, seed: int = 0, low: int = LOW, high: int = HIGH, **options: Any) -> NivodaStandIn:
        """Put a new catalogue behind the upstream's address."""
        self.standin.stop()
        self.standin = NivodaStandIn(seed, stones=stones, low=low, high=high, clock=self.moment, **options)
        self.base_url = self.standin.start()
        return self.standin

    def moment(self) -> float:
        """Later at every look: what happens within one second of the virtual clock has an order too."""
        return self.now + next(self.moments) * 1e-6

    def start(self, **params: Any) -> UUID:
        tenant = params.pop("tenant", TENANT)
        wanted = {"source": "nivoda", "low": LOW, "high": HIGH, "partition_records": 100, **params}
        return runs.start_run(self.ports, self.kind, tenant, wanted)

    def work_off(self, most: int = 10**9) -> int:
        return super().work_off(most)

    def finish(self, run_id: UUID, within_s: float = 6 * 3600) -> str:
        self.run_to_end(run_id, within_s)
        run = self.run(run_id)
        return f"{run['status']} {run['outcome']}"

    @contextmanager
    def another_process(self) -> Iterator[IngestRig]:
        """The same relay with connections of its own: what two processes do at once must not meet in one pool."""
        worker = db.connect_engine(self.engine.url.render_as_string(hide_password=False))
        sa.event.listen(worker, "checkout", self.tell_the_time)
        other = copy(self)
        other.store = PageStore(worker)
        other.tokens = Tokens(worker)
        other.ports = replace(self.ports, store=PgStore(worker))
        other.use(other.nivoda)
        try:
            yield other
        finally:
            worker.dispose()

    # What is the case.

    def lanes(self, run_id: UUID, prefix: str = "part:") -> list[Any]:
        return list(
            self.rows(
                "select *, check_at::text as check_at from lane where run_id = :id and key like :like order by key",
                id=run_id,
                like=f"{prefix}%",
            )
        )

    def seen(self, run_id: UUID) -> list[str]:
        """Not a set: a stone that has two rows must show."""
        return [
            row["external_id"] for row in self.rows("select external_id from raw_item where run_id = :id", id=run_id)
        ]

    def diamonds(self, *, gone: bool = False) -> set[str]:
        found = self.rows("select external_id from diamond where (gone_at is not null) = :gone", gone=gone)
        return {row["external_id"] for row in found}

    def terminal_lines(self, run_id: UUID) -> list[tuple[int, str]]:
        lines = self.rows(
            "select epoch, type from history where run_id = :id and type in ('succeeded', 'failed', 'canceled') order by n",
            id=run_id,
        )
        return [(line["epoch"], line["type"]) for line in lines]

    def view(self, sql: str, tenant: UUID = TENANT, **params: Any) -> list[Any]:
        """What a person of the tenant sees through the views."""
        with self.owner.connect() as connection:
            connection.exec_driver_sql("set role baton_api")
            settings = {"tenant": str(tenant), "now": (BEGINNING + timedelta(seconds=self.now)).isoformat()}
            connection.execute(
                sa.text("select set_config('app.tenant', :tenant, false), set_config('sim.now', :now, false)"), settings
            )
            try:
                return list(connection.execute(sa.text(sql), params).mappings().all())
            finally:
                connection.exec_driver_sql("reset role")
                connection.exec_driver_sql("reset app.tenant")


def ids(standin: NivodaStandIn, low: int = LOW, high: int = HIGH) -> set[str]:
    """The stones that a run of this range must find."""
    return {stone.id for stone in standin.stones if low * 100 <= stone.price_cents < high * 100}


def at_once(work: Callable[[Any], Any], shares: Sequence[Any]) -> None:
    """Each share in a thread of its own."""
    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def a_turn(token: int, tenant: UUID = TENANT) -> Turn:
    return Turn(
        lane_id=UUID(int=1),
        run_id=UUID(int=2),
        tenant_id=tenant,
        kind="page_ingest",
        key="plan",
        holds_run=True,
        epoch=1,
        seq=0,
        resend_no=0,
        token=UUID(int=token),
        cursor={},
        params={},
        claims=1,
        attempts=0,
        steps=0,
        max_steps=10,
        deadline_at=None,
        cancel_at=None,
        run_status=RunStatus.RUNNING,
        run_epoch=1,
        correlation_id=None,
        now=BEGINNING,
    )


@pytest.fixture
def page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step reads one page, as a deployment's does unless it is told otherwise."""
    monkeypatch.setattr(IngestRig, "pages_per_step", 1)


@pytest.fixture
def ingest(rig_database: RigDatabase) -> Iterator[IngestRig]:
    rig_database.empty("raw_item", "diamond", "upstream", "account_token")
    with rig_database.follows(IngestRig(rig_database.worker, rig_database.owner)) as rig:
        yield rig
    rig.pool.clear()
    rig.standin.stop()
