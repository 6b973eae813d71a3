"""Sources on a real Postgres, over real HTTP to the stand-ins, under the clock of the rig."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.local.standins.sources import ACCOUNTS, APIS, Anything, Api, SourcesStandIn
from infra.migrations.tenancy import tenant_table
from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.clock import Chance
from shared.kernel.connections import secret_name
from shared.kernel.decide import Limits
from shared.kernel.settings import Relay
from shared.kernel.tokens import Tokens
from shared.page_ingest.ports import Ports as IngestPorts
from shared.page_ingest.reader import wire
from shared.page_ingest.reader.build import Clients
from shared.page_ingest.reader.files import Files
from shared.page_ingest.reader.steps import Ports
from shared.page_ingest.reader.store import SourceStore
from shared.page_ingest.source.compile import Compiled, compile_source
from shared.page_ingest.source.migration import table_sql
from shared.page_ingest.steps import page_ingest
from shared.page_ingest.store import PageStore
from tests.support.rig import BEGINNING, FIFO, LEASE_S, TENANT, Rig, RigDatabase

EXAMPLES = Path(__file__).parents[2] / "docs" / "example-sources"
OWN_TABLES = ("source_raw", "source_quarantine", "source_mark", "account_token", "connection", "pace")
NAMES = sorted(APIS)


class MemoryVault:
    """Every version that was put can be got until the whole secret is deleted, as the real one promises."""

    def __init__(self) -> None:
        self.kept: dict[str, list[dict[str, str]]] = {}
        self.puts: list[Mapping[str, str]] = []

    def put(self, name: str, secret: Mapping[str, str]) -> str:
        self.puts.append(dict(secret))
        self.kept.setdefault(name, []).append(dict(secret))
        return f"v{len(self.kept[name])}"

    def renew(self, name: str, secret: Mapping[str, str]) -> str:
        assert name in self.kept, "there is no such secret"
        return self.put(name, secret)

    def get(self, name: str, version: str) -> dict[str, str] | None:
        versions = self.kept.get(name, [])
        at = int(version[1:]) - 1
        return dict(versions[at]) if at < len(versions) else None

    def delete(self, name: str) -> None:
        self.kept.pop(name, None)


def nobody(*_: object) -> Any:
    raise AssertionError("the built-in catalogue is not asked")


class SourceRig(Rig):
    """A relay that reads sources, and the stand-ins of their upstreams."""

    def __init__(self, worker: sa.Engine, owner: sa.Engine, folder: Path) -> None:
        super().__init__(worker, owner)
        ids = Random(7)
        self.folder = folder
        self.vault = MemoryVault()
        self.anything = Anything(rows=[])
        self.standin = SourcesStandIn(apis={})
        self.store = SourceStore(worker)
        self.files = Files(folder)
        self.connections: dict[str, str] = {}
        self.made = 0
        self.ports = replace(
            self.ports,
            relay=Relay(step_timeout_s=30, lease_s=LEASE_S, fifo_queue=FIFO),
            chance=Chance(new_id=lambda: UUID(int=ids.getrandbits(128)), fraction=lambda: 0.5),
        )

    def open(self, apis: Mapping[str, Api], limits: Limits | None = None) -> SourcesStandIn:
        """Put these APIs behind their hosts."""
        self.standin.stop()
        self.standin = SourcesStandIn(apis={**apis, "anything": self.anything})
        for api in apis.values():
            api.now = lambda: BEGINNING + timedelta(seconds=self.now)
        url = self.standin.start()
        clients = Clients(self.engine, self.vault, self.store, url)
        made = Ports(files=self.files, client=clients, tokens=Tokens(self.engine), store=self.store, pages_per_step=8)
        built_in = IngestPorts(upstream=nobody, tokens=Tokens(self.engine), store=PageStore(self.engine))
        self.kind = page_ingest(built_in, limits, lambda: made)
        return self.standin

    def deploy(self, text: str, name: str | None = None) -> Compiled:
        """A file with its tables, as a deployment would make them."""
        compiled = compile_source("test.toml", text.encode())
        (self.folder / f"{name or compiled.source.name}.toml").write_text(text)
        self.files._known = None
        with self.owner.connect() as connection:
            for each in compiled.resources:
                connection.exec_driver_sql(f"drop table if exists {each.table}")
                connection.exec_driver_sql("set search_path to public; set role baton_owner")
                connection.exec_driver_sql(table_sql(each))
                connection.exec_driver_sql(
                    tenant_table(each.table, worker="select, insert, update", api="select", run="run_id")
                )
                connection.exec_driver_sql("reset role; reset search_path")
        return compiled

    def example(self, name: str, **changes: str) -> Compiled:
        text = (EXAMPLES / f"{name}.toml").read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        compiled = self.deploy(text)
        settings, secret = ACCOUNTS[name]
        if settings or secret:
            self.connect(name, settings, secret)
        return compiled

    def connect(
        self, source: str, settings: Mapping[str, Any], secret: Mapping[str, str], tenant: UUID = TENANT
    ) -> str:
        self.made += 1
        connection = UUID(int=0xC0 + self.made)
        version = self.vault.put(secret_name(tenant, connection), dict(secret))
        self.rows(
            """insert into connection (id, tenant_id, provider, name, settings, secret_ref, created_by)
               values (:id, :tenant, :source, :name, cast(:settings as jsonb), :version, 'test') returning id""",
            id=connection, tenant=tenant, source=source, name=f"{source}-{self.made}",
            settings=db.jsonb(dict(settings)), version=version,
        )  # fmt: skip
        self.connections[source] = str(connection)
        return str(connection)

    def start(self, source: str = "", **params: Any) -> UUID:
        tenant = params.pop("tenant", TENANT)
        named = {"connection": self.connections[source]} if source in self.connections else {}
        return runs.start_run(self.ports, self.kind, tenant, {"source": source, **named, **params})

    def read(self, source: str, **params: Any) -> str:
        """Run a source to its end; what it says."""
        run_id = self.start(source, **params)
        return self.finish(run_id)

    def finish(self, run_id: UUID, within_s: float = 24 * 3600) -> str:
        self.run_to_end(run_id, within_s)
        run = self.run(run_id)
        return f"{run['status']} {run['outcome']}"

    def work_off(self, most: int = 10**9) -> int:
        return super().work_off(most)

    # What is the case.

    def table(self, name: str, *, gone: bool = False) -> list[Any]:
        return list(
            self.rows(f"select * from {name} where (gone_at is not null) = :gone order by source_key", gone=gone)
        )

    def keys(self, name: str, *, gone: bool = False) -> list[str]:
        return [row["source_key"] for row in self.table(name, gone=gone)]

    def lanes(self, run_id: UUID, prefix: str) -> list[Any]:
        found = self.rows(
            "select *, check_at::text as check_at from lane where run_id = :id and key like :like order by key",
            id=run_id,
            like=f"{prefix}%",
        )
        return list(found)

    def error(self, run_id: UUID) -> str:
        return str((self.run(run_id)["error"] or {}).get("message"))


def simple(page: str, *more: str, query: str = "", auth: str = '"none"', head: Sequence[str] = ()) -> str:
    """A source of one list at the API that can do anything."""
    return "\n".join(
        [
            'source = "any"', 'hosts = ["api.example.com"]', f"auth = {auth}", *head,
            "[resources.items]", 'get = "/items"', f"query = {{ {query} }}", f"page = {{ {page} }}", 'rows = "/items"',
            'key = ["/id"]', *more,
        ]
    )  # fmt: skip


@pytest.fixture
def sources(rig_database: RigDatabase, tmp_path: Path) -> Iterator[SourceRig]:
    rig_database.empty(*OWN_TABLES)
    with rig_database.follows(SourceRig(rig_database.worker, rig_database.owner, tmp_path)) as rig:
        yield rig
    wire._own_pool().clear()
    rig.standin.stop()
