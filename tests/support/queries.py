"""Remote queries on a real Postgres, with their real adapter and a stand-in for Marketing Cloud, under the rig's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.local.standins.mce import MceStandIn
from shared.kernel import run as runs
from shared.kernel.clock import Chance
from shared.kernel.http import new_pool
from shared.kernel.settings import Relay
from shared.kernel.tokens import Tokens
from shared.query_run.adapters.mce import Mce
from shared.query_run.model import PollConfig, QueryParams
from shared.query_run.ports import Ports, Remote
from shared.query_run.steps import query_run
from shared.query_run.store import QueryStore
from tests.support.files import MemoryFiles
from tests.support.rig import FIFO, LEASE_S, TENANT, Rig, RigDatabase

SQL = "select id, name from people"
OTHER_TENANT = UUID(int=0xB0)
KINDS_TABLES = ("query_run", "query_slot", "query_look", "query_stray", "account_token", "hearing")


def sql(**plan: Any) -> str:
    """A query that does in the stand-in what it is told."""
    told = "; ".join(f"{name}={value}" for name, value in plan.items())
    return f"/* {told} */ {SQL}"


class QueryRig(Rig):
    """A relay whose only kind is the remote query, and the system that it asks."""

    def __init__(self, worker: sa.Engine, owner: sa.Engine) -> None:
        super().__init__(worker, owner)
        ids = Random(7)
        self.moments = count()
        self.standin = MceStandIn(clock=self.moment)
        self.base_url = self.standin.start()
        self.pool = new_pool()
        self.tokens = Tokens(worker)
        self.store = QueryStore(worker)
        self.files = MemoryFiles()
        self.patience_s: float | None = None  # how long a call may take; None: as long as the step may
        self.chance = Chance(new_id=lambda: UUID(int=ids.getrandbits(128)), fraction=lambda: 0.5)
        self.ports = replace(
            self.ports,
            relay=Relay(step_timeout_s=30, lease_s=LEASE_S, fifo_queue=FIFO),
            chance=self.chance,
        )
        self.configure()

    def configure(self, **settings: Any) -> None:
        self.use(self.mce, **settings)

    def use(self, remote: Callable[[UUID, QueryParams, Callable[[], float]], Remote], **settings: Any) -> None:
        config = PollConfig(**settings)
        self.kind = query_run(
            Ports(
                remote=remote, tokens=self.tokens, store=self.store, files=self.files, config=config, meter=self,
                chance=replace(self.chance, fraction=lambda: 0.5),
            )
        )  # fmt: skip

    def mce(self, tenant: UUID, params: QueryParams, time_left_s: Callable[[], float]) -> Mce:
        client_id, secret = self.standin.client_id, self.standin.client_secret
        if (patience_s := self.patience_s) is not None:
            time_left_s = lambda: patience_s  # noqa: E731 - as short as it is
        return Mce(
            self.base_url, client_id, secret, params.mid, time_left_s=time_left_s, gate=params.account, pool=self.pool
        )

    def moment(self) -> float:
        return self.now + next(self.moments) * 1e-6

    def start(self, sql_text: str = SQL, **params: Any) -> UUID:
        tenant = params.pop("tenant", TENANT)
        return runs.start_run(self.ports, self.kind, tenant, {"sql_text": sql_text, "mid": "7281698", **params})

    def finish(self, run_id: UUID, within_s: float = 3_600) -> str:
        self.run_to_end(run_id, within_s)
        run = self.run(run_id)
        return f"{run['status']} {run['outcome']}"

    def cursor(self, run_id: UUID) -> Any:
        return self.lane(run_id, "query")["cursor"]

    def shown(self, run_id: UUID, tenant: UUID = TENANT) -> Any:
        """The run as a person of the tenant sees it."""
        with self.owner.connect() as connection:
            connection.exec_driver_sql("set role baton_api")
            connection.execute(sa.text("select set_config('app.tenant', :tenant, false)"), {"tenant": str(tenant)})
            try:
                found = connection.execute(sa.text("select * from shell_query_runs where id = :id"), {"id": run_id})
                return found.mappings().one_or_none()
            finally:
                connection.exec_driver_sql("reset role")
                connection.exec_driver_sql("reset app.tenant")

    def signals(self, name: str) -> list[Any]:
        return [row["payload"] for row in self.rows("select payload from signal where name = :name", name=name)]


@pytest.fixture
def queries(rig_database: RigDatabase) -> Iterator[QueryRig]:
    rig_database.empty(*KINDS_TABLES)
    with rig_database.follows(QueryRig(rig_database.worker, rig_database.owner)) as rig:
        yield rig
    rig.pool.clear()
    rig.standin.stop()
    assert not rig.standin.surprises, rig.standin.surprises
