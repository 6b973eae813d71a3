"""The real ports of saved searches, built from the environment.

BATON_INFOJOBS_BASE_URL, BATON_ADZUNA_BASE_URL: where the boards are, for stand-ins; without them, their own addresses.
BATON_SEARCH_…: the settings of `SearchConfig`. A search names the tenant's connection to use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import sqlalchemy as sa
from pydantic import Field, SecretStr

from shared.kernel.catalogue import Kind
from shared.kernel.connections import Account, Accounts, Provider, Strict
from shared.kernel.errors import Permanent
from shared.kernel.metrics_emf import NAMESPACE, EmfMeter
from shared.kernel.settings import Settings
from shared.kernel.vault import live_vault
from shared.search.model import Job, SearchConfig
from shared.search.ports import Client, Ports
from shared.search.steps import search
from shared.search.store import SearchStore

if TYPE_CHECKING:
    from shared.search.adapters.boards import Adzuna, InfoJobs

PREFIX = "BATON_SEARCH_"


class InfoJobsPlace(Settings):
    base_url: str = "https://api.infojobs.net"


class AdzunaPlace(Settings):
    base_url: str = "https://api.adzuna.com"


class InfoJobsName(Strict):
    client_id: Annotated[str, Field(max_length=200, pattern=r"^[^:\s]+$")]


class InfoJobsKey(Strict):
    client_secret: Annotated[SecretStr, Field(min_length=1, max_length=1024)]


class AdzunaName(Strict):
    app_id: Annotated[str, Field(max_length=200)]


class AdzunaKey(Strict):
    app_key: Annotated[SecretStr, Field(min_length=1, max_length=1024)]


def build_ports(engine: sa.Engine, env: Mapping[str, str] = os.environ) -> Ports:
    return Ports(
        client=partial(client_of, env, Accounts(engine, live_vault(env))),
        store=SearchStore(engine),
        config=SearchConfig.from_env(env, PREFIX),
        meter=EmfMeter(env.get("POWERTOOLS_METRICS_NAMESPACE", NAMESPACE)),
    )


def kind(engine: sa.Engine) -> Kind:
    return search(build_ports(engine))


def providers() -> list[Provider]:
    return list(board_providers().values())


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
