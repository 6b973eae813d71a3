"""The real ports of saved searches, built from the environment.

BATON_INFOJOBS_BASE_URL, BATON_ADZUNA_BASE_URL: where the boards are, for stand-ins; without them, their own addresses.
BATON_GOOGLE_SHEETS_BASE_URL: where both Google's log-in and Sheets are, for a stand-in; without it, their own addresses.
GOOGLE_SHEETS_SPREADSHEET_ID: the spreadsheet of connections that name none.
BATON_SEARCH_…: the settings of `SearchConfig`. A search names the tenant's connection to use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import sqlalchemy as sa
from pydantic import Field, SecretStr

from shared.kernel.catalogue import Kind
from shared.kernel.clock import process_time
from shared.kernel.connections import Account, Accounts, Provider, Strict
from shared.kernel.control import Paced, Paces, Plain
from shared.kernel.errors import Later, Permanent
from shared.kernel.metrics_emf import NAMESPACE, EmfMeter
from shared.kernel.model import RunCommand, Turn, account_name
from shared.kernel.settings import Groups, Settings
from shared.kernel.tokens import Token, Tokens, TokenSource
from shared.kernel.vault import live_vault
from shared.search.model import KIND, Job, SearchConfig
from shared.search.ports import Client, Ports
from shared.search.sheets.model import BURST, PATIENCE_S, PER_MINUTE, PROVIDER, SheetCursor
from shared.search.sheets.ports import SheetPorts
from shared.search.sheets.store import SheetStore
from shared.search.steps import search
from shared.search.store import SearchStore

if TYPE_CHECKING:
    from shared.kernel.http import Pool
    from shared.search.adapters.boards import Adzuna, InfoJobs
    from shared.search.adapters.google_sheets import GoogleSheet

PREFIX = "BATON_SEARCH_"


class InfoJobsPlace(Settings):
    base_url: str = "https://api.infojobs.net"


class AdzunaPlace(Settings):
    base_url: str = "https://api.adzuna.com"


class SheetsPlace(Settings):
    base_url: str | None = None


class SheetsDefault(Settings):
    spreadsheet_id: Annotated[str, Field(max_length=200)] | None = None


class ServiceAccount(Strict):
    client_email: Annotated[str, Field(max_length=320, pattern=r"^[^@\s]+@[^@\s]+$")]
    spreadsheet_id: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_-]+$")] | None = None


class ServiceKey(Strict):
    private_key: Annotated[SecretStr, Field(min_length=1, max_length=4096)]


class InfoJobsName(Strict):
    client_id: Annotated[str, Field(max_length=200, pattern=r"^[^:\s]+$")]


class InfoJobsKey(Strict):
    client_secret: Annotated[SecretStr, Field(min_length=1, max_length=1024)]


class AdzunaName(Strict):
    app_id: Annotated[str, Field(max_length=200)]


class AdzunaKey(Strict):
    app_key: Annotated[SecretStr, Field(min_length=1, max_length=1024)]


def build_ports(engine: sa.Engine, env: Mapping[str, str] = os.environ) -> Ports:
    accounts, meter = Accounts(engine, live_vault(env)), EmfMeter(env.get("POWERTOOLS_METRICS_NAMESPACE", NAMESPACE))
    config = SearchConfig.from_env(env, PREFIX)
    sheet, slot = partial(sheet_of, env, accounts, Tokens(engine)), partial(slot_of, accounts, Paces(engine))
    return Ports(
        client=partial(client_of, env, accounts),
        store=SearchStore(engine),
        sheets=SheetPorts(sheet=sheet, slot=slot, store=SheetStore(engine), retries=config.retries, meter=meter),
        config=config,
        meter=meter,
    )


def kind(engine: sa.Engine) -> Kind:
    return search(build_ports(engine))


def settings() -> Groups:
    return [(PREFIX, SearchConfig)]


def providers() -> list[Provider]:
    return [*board_providers().values(), sheets_provider()]


def commands() -> list[RunCommand]:
    """What is due is searched for; a cycle that is open already does it."""
    return [RunCommand("searches.cycle", KIND)]


def sheets_provider(env: Mapping[str, str] = os.environ) -> Provider:
    def ask(account: Account, time_left_s: Callable[[], float]) -> str:
        from shared.search.adapters.google_sheets import log_in  # noqa: PLC0415 - as below

        sheets_url, token_url = sheets_urls(env)
        key = account.secret.private_key.get_secret_value()
        email = account.settings.client_email
        token = log_in(token_url, email, key, process_time(), gate=PROVIDER, time_left_s=time_left_s)
        _sheet(env, sheets_url, account, token, gate=PROVIDER, time_left_s=time_left_s).look("")
        return "Connected."

    return Provider(name=PROVIDER, settings=ServiceAccount, secret=ServiceKey, check=ask)


def sheet_of(
    env: Mapping[str, str], accounts: Accounts, tokens: TokenSource, turn: Turn, cursor: SheetCursor,
    time_left_s: Callable[[], float], pool: Pool | None = None,
) -> GoogleSheet:  # fmt: skip
    """The sheet of a connection, logged in."""
    from shared.search.adapters.google_sheets import log_in  # noqa: PLC0415 - as below

    sheets_url, token_url = sheets_urls(env)
    account = accounts.of(turn.tenant_id, sheets_provider(env), cursor.connection)
    email, name = account.settings.client_email, account_name(PROVIDER, cursor.connection)
    key = account.secret.private_key.get_secret_value()
    how: Any = {"gate": name, "time_left_s": time_left_s, "pool": pool}
    token = tokens.of(turn, name, lambda: log_in(token_url, email, key, turn.now, **how))
    return _sheet(
        env, sheets_url, account, token, **how,
        on_refused=lambda: tokens.forget(turn, name, token),
    )  # fmt: skip


def slot_of(accounts: Accounts, paces: Paces, turn: Turn, cursor: SheetCursor) -> float:
    """Connections of one service account share its quota, so the slots are the account's and not the connection's."""
    account = accounts.of(turn.tenant_id, sheets_provider(), cursor.connection)
    paced = Paced(f"{PROVIDER}:{account.settings.client_email}", "Google Sheets", turn.tenant_id)
    plain = Plain(per_minute=PER_MINUTE, burst=BURST)
    slots = paces.take(paced, plain, want=cursor.requests, patience_s=PATIENCE_S)
    if len(slots) < cursor.requests:
        raise Later(PATIENCE_S / 2, "its turn at Google Sheets")
    return slots[-1]


def sheets_urls(env: Mapping[str, str]) -> tuple[str, str]:
    """Where Sheets is, and where its log-in is."""
    from shared.search.adapters.google_sheets import SHEETS_URL, TOKEN_URL  # noqa: PLC0415 - as below

    place = SheetsPlace.from_env(env, "BATON_GOOGLE_SHEETS_")
    return (SHEETS_URL, TOKEN_URL) if place.base_url is None else (place.base_url, place.base_url)


def _sheet(env: Mapping[str, str], base_url: str, account: Account, token: Token, **how: Any) -> GoogleSheet:
    from shared.search.adapters.google_sheets import GoogleSheet  # noqa: PLC0415 - as below

    usual = SheetsDefault.from_env(env, "GOOGLE_SHEETS_").spreadsheet_id
    spreadsheet_id = account.settings.spreadsheet_id or usual
    if spreadsheet_id is None:
        said = "The connection names no spreadsheet_id, and this deployment has none of its own."
        raise Permanent(said, "bad_settings")
    try:
        return GoogleSheet(base_url, spreadsheet_id, token, client_email=account.settings.client_email, **how)
    except ValueError as error:
        raise Permanent(f"BATON_GOOGLE_SHEETS_BASE_URL: {error}", "bad_settings") from None


def board_providers(env: Mapping[str, str] = os.environ) -> dict[str, Provider]:
    def check(name: str) -> Callable[[Account, Callable[[], float]], str]:
        def ask(account: Account, time_left_s: Callable[[], float]) -> str:
            _connected(env, name, account, time_left_s, name).page({}, 1, 1)
            return "Connected."

        return ask

    return {
        "infojobs": Provider(name="infojobs", settings=InfoJobsName, secret=InfoJobsKey, check=check("infojobs")),
        "adzuna": Provider(name="adzuna", settings=AdzunaName, secret=AdzunaKey, check=check("adzuna")),
    }


def client_of(
    env: Mapping[str, str], accounts: Accounts, tenant_id: UUID, job: Job, time_left_s: Callable[[], float]
) -> Client:
    account = accounts.of(tenant_id, board_providers(env)[job.client], job.connection)
    return _connected(env, job.client, account, time_left_s, job.account)


def _connected(
    env: Mapping[str, str], name: str, account: Account, time_left_s: Callable[[], float], gate: str
) -> InfoJobs | Adzuna:
    """The adapter is imported by who asks the board: the tick and most of the API never do."""
    from shared.search.adapters.boards import Adzuna, InfoJobs  # noqa: PLC0415

    try:
        if name == "infojobs":
            place, secret = InfoJobsPlace.from_env(env, "BATON_INFOJOBS_"), account.secret.client_secret
            return InfoJobs(
                place.base_url,
                account.settings.client_id,
                secret.get_secret_value(),
                time_left_s=time_left_s,
                gate=gate,
            )
        where, key = AdzunaPlace.from_env(env, "BATON_ADZUNA_"), account.secret.app_key
        return Adzuna(
            where.base_url, account.settings.app_id, key.get_secret_value(), time_left_s=time_left_s, gate=gate
        )
    except ValueError as error:
        raise Permanent(f"BATON_{name.upper()}_BASE_URL: {error}", "bad_settings") from None
