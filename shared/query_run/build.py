"""The real ports of remote queries, built from the environment.

BATON_MCE_BASE_URL: where tokens come from, for a stand-in; without it, the connection's own subdomain of Marketing Cloud.
BATON_QUERY_…: the constants of polling, under the names of `PollConfig`. A run names the tenant's connection to use.
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
from shared.kernel.files import S3Files
from shared.kernel.metrics_emf import NAMESPACE, EmfMeter
from shared.kernel.model import RunCommand
from shared.kernel.settings import Groups, Settings
from shared.kernel.tokens import Tokens
from shared.kernel.vault import live_vault
from shared.query_run.model import DOMAIN, KIND, SUBDOMAIN, UPSTREAM, PollConfig, QueryParams
from shared.query_run.ports import Ports
from shared.query_run.steps import query_run
from shared.query_run.store import QueryStore

if TYPE_CHECKING:
    from shared.query_run.adapters.mce import Mce

PREFIX = "BATON_MCE_"


class McePlace(Settings):
    base_url: str | None = None


class MceName(Strict):
    """What a connection says of an account. `mid` is the business unit that a check logs in to."""

    subdomain: Annotated[str, Field(pattern=SUBDOMAIN)]
    client_id: Annotated[str, Field(max_length=200)]
    mid: Annotated[str, Field(pattern=r"^[0-9]{1,12}$")]


class MceKey(Strict):
    client_secret: Annotated[SecretStr, Field(min_length=1, max_length=1024)]


def build_ports(engine: sa.Engine, env: Mapping[str, str] = os.environ) -> Ports:
    return Ports(
        remote=partial(remote, env, Accounts(engine, live_vault(env))),
        tokens=Tokens(engine),
        store=QueryStore(engine),
        files=S3Files(env),
        config=PollConfig.from_env(env, "BATON_QUERY_"),
        meter=EmfMeter(env.get("POWERTOOLS_METRICS_NAMESPACE", NAMESPACE)),
        needs_connection=True,
    )


def kind(engine: sa.Engine) -> Kind:
    return query_run(build_ports(engine))


def commands() -> list[RunCommand]:
    """A job's payload is the run's parameters: `sql_text`, `mid`, `connection`."""
    return [RunCommand("query_runs.execute", KIND)]


def settings() -> Groups:
    return [("BATON_QUERY_", PollConfig)]


def providers() -> list[Provider]:
    return [mce_provider()]


def mce_provider(env: Mapping[str, str] = os.environ) -> Provider:
    def check(account: Account, time_left_s: Callable[[], float]) -> str:
        _connected(env, account, account.settings.mid, time_left_s, UPSTREAM).authenticate()
        return "Connected."

    return Provider(name=UPSTREAM, settings=MceName, secret=MceKey, check=check)


def remote(
    env: Mapping[str, str], accounts: Accounts, tenant_id: UUID, params: QueryParams, time_left_s: Callable[[], float]
) -> Mce:
    if params.connection is None:
        raise Permanent(
            "The run names no Marketing Cloud connection. Start a new one that does.", "no_connection_named"
        )
    account = accounts.of(tenant_id, mce_provider(env), params.connection)
    return _connected(env, account, params.mid, time_left_s, params.account)


def _connected(env: Mapping[str, str], account: Account, mid: str, time_left_s: Callable[[], float], gate: str) -> Mce:
    """Only the deployment says that the system is elsewhere: a tenant cannot send us anywhere but to Marketing Cloud."""
    from shared.query_run.adapters.mce import Mce  # noqa: PLC0415 - who asks no upstream need not import its client

    base_url = McePlace.from_env(env, PREFIX).base_url or f"https://{account.settings.subdomain}.auth{DOMAIN}"
    secret = account.secret.client_secret.get_secret_value()
    try:
        return Mce(base_url, account.settings.client_id, secret, mid, time_left_s=time_left_s, gate=gate)
    except ValueError as error:
        raise Permanent(f"{PREFIX}BASE_URL: {error}", "bad_settings") from None
