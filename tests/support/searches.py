"""Saved searches on a real Postgres, with their real adapters and stand-ins for the boards, under the rig's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from infra.local.standins.boards import AdzunaStandIn, Board, InfoJobsStandIn
from infra.local.standins.google_sheets import EMAIL, SPREADSHEET, GoogleSheetsStandIn, private_key
from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.clock import Chance
from shared.kernel.connections import Account, Provider
from shared.kernel.control import Paces
from shared.kernel.decide import Limits
from shared.kernel.http import new_pool
from shared.kernel.model import account_name
from shared.kernel.settings import Relay
from shared.kernel.signals import announced
from shared.kernel.tokens import Tokens
from shared.search.adapters.boards import Adzuna, InfoJobs
from shared.search.build import sheet_of, slot_of
from shared.search.model import CLIENTS, Job, SearchConfig, query_key
from shared.search.ports import Client, Ports
from shared.search.sheets.ports import SheetPorts
from shared.search.sheets.store import SheetStore
from shared.search.steps import search
from shared.search.store import SearchStore
from tests.support.rig import BEGINNING, FIFO, LEASE_S, QUEUES, TENANT, Rig, RigDatabase

OTHER_TENANT = UUID(int=0xB0)
SEARCH_TABLES = (
    "saved_search", "query_state", "search_backfill", "ingestion_runs", "companies", "offers", "search_quarantine",
    "search_cycle", "hearing", "search_sheet", "sheet_night", "sheet_row", "company_feedback", "account_token", "pace",
    "tenant",
)  # fmt: skip
CONNECTIONS = {"infojobs": UUID(int=0xC1), "adzuna": UUID(int=0xC2), "google_sheets": UUID(int=0xC3)}
DAY_S = 86_400.0

SAVE = """
insert into saved_search (id, tenant_id, name, client, connection, params, query_key, max_pages, max_offers, every_s,
                          fresh_within_s, seed_floor, created_at, updated_at)
values (:id, :tenant, :name, :client, :connection, cast(:params as jsonb), :query_key, :max_pages, :max_offers, :every_s,
        129600, cast(:floor as timestamptz), :now, :now)"""
SAVE_STATE = """
insert into query_state (tenant_id, query_key, search_id, client, account, zone, seed_floor, next_due_at, fresh_at)
values (:tenant, :query_key, :id, :client, :account, :zone, cast(:floor as timestamptz), :now, cast(:now as timestamptz) + interval '36 hours')"""


ADD_SHEET = """
insert into search_sheet (id, tenant_id, connection, tab, zone, opens, closes)
values (:id, :tenant, :connection, :tab, :zone, cast(:opens as time), cast(:closes as time))"""
ADD_COMPANIES = """
insert into companies (tenant_id, id, client, external_id, name, open_offers, first_seen_at, last_seen_at, dirty)
select :tenant, cast(lpad(to_hex(n), 32, '0') as uuid), 'infojobs', n::text, 'Company ' || n, n, cast(:now as timestamptz) + n * interval '1 second', :now, false
from generate_series(cast(:first as integer), cast(:last as integer)) n"""


class ServiceAccounts:
    """The connections of every tenant: the one service account that the stand-in knows."""

    def __init__(self, key: str | None = None) -> None:
        self._key = key or private_key()

    def of(self, tenant_id: UUID, provider: Provider, connection: str) -> Account:
        settings = {"client_email": EMAIL, "spreadsheet_id": SPREADSHEET}
        return provider.account(settings, {"private_key": self._key})


class SearchRig(Rig):
    """A relay whose only kind is the search cycle, and the two boards that it asks."""

    def __init__(self, worker: sa.Engine, owner: sa.Engine) -> None:
        super().__init__(worker, owner)
        ids = Random(7)
        clock: Any = {"clock": lambda: self.now, "began": BEGINNING}
        self.boards: dict[str, Board] = {"infojobs": InfoJobsStandIn(**clock), "adzuna": AdzunaStandIn(**clock)}
        self.urls = {name: board.start() for name, board in self.boards.items()}
        self.google = GoogleSheetsStandIn(clock=lambda: self.now, began=BEGINNING.timestamp())
        self.google_url = self.google.start()
        self.pool = new_pool()
        self.store = SearchStore(worker)
        self.chance = Chance(new_id=lambda: UUID(int=ids.getrandbits(128)), fraction=lambda: 0.5)
        self.ports = replace(
            self.ports, relay=Relay(step_timeout_s=30, lease_s=LEASE_S, fifo_queue=FIFO), chance=self.chance
        )
        self.configure()

    def configure(
        self, client: Callable[..., Client] | None = None, limits: Limits | None = None, **settings: Any
    ) -> None:
        config = SearchConfig(**settings)
        env, accounts = {"BATON_GOOGLE_SHEETS_BASE_URL": self.google_url}, ServiceAccounts()
        sheet: Any = partial(sheet_of, env, accounts, Tokens(self.engine), pool=self.pool)  # type: ignore[arg-type]
        slot = partial(slot_of, accounts, Paces(self.engine))  # type: ignore[arg-type]
        sheets = SheetPorts(sheet=sheet, slot=slot, store=SheetStore(self.engine), meter=self)
        ports = Ports(client=client or self.client, store=self.store, sheets=sheets, config=config, meter=self)
        self.kind = search(ports, limits)
        self.ports = announced(self.ports, self.kinds)

    def client(self, tenant: UUID, job: Job, time_left_s: Callable[[], float]) -> Client:
        board = self.boards[job.client]
        make = InfoJobs if job.client == "infojobs" else Adzuna
        return make(
            self.urls[job.client], board.client_id, board.client_secret, time_left_s=time_left_s, gate=job.account,
            pool=self.pool,
        )  # fmt: skip

    @property
    def infojobs(self) -> Board:
        return self.boards["infojobs"]

    @property
    def adzuna(self) -> Board:
        return self.boards["adzuna"]

    def save(
        self, client: str = "infojobs", *, days: float = 0, tenant: UUID = TENANT, name: str | None = None,
        max_pages: int = 20, max_offers: int = 1_000, every_s: int = 86_400, **params: Any,
    ) -> str:  # fmt: skip
        """Save a search whose history begins so many days ago; answers its query key."""
        key = query_key(client, params)
        search_id = UUID(bytes=bytes.fromhex(key[:30]) + bytes([tenant.int & 255]))
        told = {
            "id": search_id, "tenant": tenant, "name": name or f"{client} {key[:6]}", "client": client,
            "connection": CONNECTIONS[client], "params": db.jsonb(params), "query_key": key, "max_pages": max_pages,
            "max_offers": max_offers, "every_s": every_s, "floor": self.at(self.now - days * DAY_S), "now": self.at(self.now),
            "zone": CLIENTS[client].zone, "account": account_name(client, str(CONNECTIONS[client])),
        }  # fmt: skip
        self.write(SAVE, **{k: v for k, v in told.items() if k not in ("zone", "account")})
        self.write(
            SAVE_STATE,
            **{k: told[k] for k in ("tenant", "query_key", "id", "client", "account", "zone", "floor", "now")},
        )
        return key

    def start(self, tenant: UUID = TENANT, **params: Any) -> UUID:
        return runs.start_run(self.ports, self.kind, tenant, params)

    # --- the sheet

    def add_sheet(
        self, number: int = 1, *, tenant: UUID = TENANT, tab: str = "Companies", zone: str = "Europe/Madrid",
        opens: str = "03:00", closes: str = "06:00",
    ) -> UUID:  # fmt: skip
        """A sheet whose first night is waited for."""
        told = {"tab": tab, "zone": zone, "opens": opens, "closes": closes, "connection": CONNECTIONS["google_sheets"]}
        sheet = UUID(int=0xEE00 + number)
        self.write(ADD_SHEET, id=sheet, tenant=tenant, **told)
        self.start(tenant, sheet=str(sheet))
        return sheet

    def add_companies(self, first: int, last: int, tenant: UUID = TENANT) -> None:
        self.write(ADD_COMPANIES, tenant=tenant, first=first, last=last, now=self.at(self.now))

    def nights(self, sheet: UUID) -> list[Any]:
        return list(self.rows("select * from sheet_night where sheet_id = :s order by night", s=sheet))

    def feedback(self) -> dict[int, str]:
        rows = self.rows("select company_id, feedback from company_feedback where feedback is not null order by 1")
        return {row["company_id"].int: row["feedback"] for row in rows}

    def at(self, seconds: float) -> datetime:
        return BEGINNING + timedelta(seconds=seconds)

    def seconds(self, at: datetime) -> float:
        return (at - BEGINNING).total_seconds()

    def write(self, sql: str, **params: Any) -> None:
        with self.owner.connect() as connection:
            connection.execute(sa.text(sql), params)

    def state(self, key: str, tenant: UUID = TENANT) -> Any:
        (row,) = self.rows("select * from query_state where query_key = :key and tenant_id = :t", key=key, t=tenant)
        return row

    def covered(self, key: str) -> list[tuple[float, float]]:
        rows = self.rows(
            """select lower(r) as lo, upper(r) as hi from query_state q, unnest(q.covered) as r
               where q.query_key = :key order by 1""", key=key,
        )  # fmt: skip
        return [(self.seconds(row["lo"]), self.seconds(row["hi"])) for row in rows]

    def executions(self, key: str | None = None) -> list[Any]:
        return list(
            self.rows(
                "select * from ingestion_runs where cast(:key as text) is null or query_key = :key order by started_at, id",
                key=key,
            )
        )

    def offers(self, client: str) -> set[str]:
        return {row["external_id"] for row in self.rows("select external_id from offers where client = :c", c=client)}

    def signals(self, name: str) -> list[Any]:
        return [
            row["payload"] for row in self.rows("select payload from signal where name = :name order by id", name=name)
        ]

    def go(self, seconds: float) -> None:
        """Let so much time pass, from one thing that is due to the next: days take as long as what happens in them."""
        end = self.now + seconds
        while True:
            self.work_off(100_000)
            self.tick()
            self.work_off(100_000)
            changes = [self.queue.next_change(queue) for queue in QUEUES]
            (row,) = self.rows(
                "select min(l.next_due_at) as at from lane l join run r on r.id = l.run_id where l.status = 'active' and r.paused_at is null"
            )
            due = [] if row["at"] is None else [max(self.seconds(row["at"]), self.now + 1)]
            at = min([end, *due, *(change for change in changes if change is not None)])
            self.now = max(self.now, at)
            if self.now >= end:
                return


@pytest.fixture
def searches(rig_database: RigDatabase) -> Iterator[SearchRig]:
    rig_database.empty(*SEARCH_TABLES)
    with rig_database.follows(SearchRig(rig_database.worker, rig_database.owner)) as rig:
        yield rig
    rig.pool.clear()
    rig.google.stop()
    for board in rig.boards.values():
        board.stop()
    surprises = [each for standin in (*rig.boards.values(), rig.google) for each in standin.surprises]
    assert not surprises, surprises


__all__ = ["UTC", "SearchRig", "searches"]
