"""The real ports of page ingestion, built from the environment.

BATON_NIVODA_BASE_URL, and the deployment's own account: BATON_NIVODA_SECRET_ARN, or _USERNAME and _PASSWORD where there
are no secrets. A run that names a connection uses that one's account instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import sqlalchemy as sa
from pydantic import Field, SecretStr

from shared.kernel import aws
from shared.kernel.catalogue import Kind
from shared.kernel.clock import stopwatch
from shared.kernel.connections import Account, Accounts, Provider, Strict
from shared.kernel.errors import Permanent
from shared.kernel.model import RunCommand, Turn, account_name
from shared.kernel.settings import BadSettings, Groups, Settings
from shared.kernel.tokens import Tokens
from shared.kernel.vault import live_vault
from shared.page_ingest.model import INGEST_PREFIX, KIND, IngestSettings
from shared.page_ingest.ports import Ports, Upstream
from shared.page_ingest.steps import page_ingest
from shared.page_ingest.store import PageStore

if TYPE_CHECKING:
    from shared.page_ingest.reader.steps import Ports as SourcePorts

PREFIX = "BATON_NIVODA_"
SECRET_KEPT_S = 300.0


class NivodaPlace(Settings):
    """Where the upstream is."""

    base_url: str
    secret_arn: str | None = None


class NivodaAccount(Settings):
    """Who we are there."""

    username: str
    password: SecretStr


class NivodaName(Strict):
    """What a connection says of an account. Only the deployment says where the upstream is: a tenant cannot send us elsewhere."""

    username: str


class NivodaKey(Strict):
    password: Annotated[SecretStr, Field(min_length=1, max_length=1024)]


def build_ports(engine: sa.Engine, env: Mapping[str, str] = os.environ) -> Ports:
    """The account is read when a step first needs it: the tick, which asks no upstream, does without."""
    accounts = Accounts(engine, live_vault(env))
    upstream = partial(_upstream, env, SecretAccount(), accounts)
    settings = IngestSettings.from_env(env, INGEST_PREFIX)
    return Ports(
        upstream=upstream, tokens=Tokens(engine), store=PageStore(engine), pages_per_step=settings.pages_per_step
    )


def kind(engine: sa.Engine) -> Kind:
    def sources() -> SourcePorts:
        from shared.page_ingest.reader.build import source_ports  # noqa: PLC0415 - only runs of source files need it

        return source_ports(engine)

    return page_ingest(build_ports(engine), sources=sources)


def commands() -> list[RunCommand]:
    return [RunCommand("page_ingest.start", KIND)]


def settings() -> Groups:
    return [(INGEST_PREFIX, IngestSettings)]


def providers() -> list[Provider]:
    from shared.page_ingest.reader.providers import source_providers  # noqa: PLC0415 - the steps of other kinds ask for none

    return [nivoda_provider(), *source_providers()]


def nivoda_provider(env: Mapping[str, str] = os.environ) -> Provider:
    def check(account: Account, time_left_s: Callable[[], float]) -> str:
        _connected(env, account, time_left_s, "nivoda").authenticate()
        return "Connected."

    return Provider(name="nivoda", settings=NivodaName, secret=NivodaKey, check=check)


class SecretAccount:
    """The account in a secret, asked again after some minutes: not at every page, and not for ever if it is rotated."""

    def __init__(self) -> None:
        self._kept: NivodaAccount | None = None
        self._age_s: Callable[[], float] = stopwatch()

    def read(self, arn: str) -> NivodaAccount:
        if self._kept is None or self._age_s() > SECRET_KEPT_S:
            held = aws.secret(arn)
            given = {PREFIX + name.upper(): str(held[name]) for name in NivodaAccount.model_fields if name in held}
            self._kept, self._age_s = NivodaAccount.from_env(given, PREFIX), stopwatch()
        return self._kept


def _upstream(
    env: Mapping[str, str],
    own: SecretAccount,
    accounts: Accounts,
    source: str,
    turn: Turn,
    time_left_s: Callable[[], float],
) -> Upstream:
    if source != "nivoda":
        raise Permanent(f"unknown source {source}", "unknown_source")
    connection = turn.params.get("connection")
    gate = account_name(source, connection)
    if connection is not None:
        with _named_problems():
            account = accounts.of(turn.tenant_id, nivoda_provider(env), str(connection))
        return _connected(env, account, time_left_s, gate)
    with _named_problems():
        place = NivodaPlace.from_env(env, PREFIX)
        found = own.read(place.secret_arn) if place.secret_arn else NivodaAccount.from_env(env, PREFIX)
        password = found.password.get_secret_value()
        return _nivoda(place.base_url, found.username, password, time_left_s, gate)


def _connected(env: Mapping[str, str], account: Account, time_left_s: Callable[[], float], gate: str) -> Upstream:
    with _named_problems():
        base_url = NivodaPlace.from_env(env, PREFIX).base_url
        password = account.secret.password.get_secret_value()
        return _nivoda(base_url, account.settings.username, password, time_left_s, gate)


def _nivoda(base_url: str, username: str, password: str, time_left_s: Callable[[], float], gate: str) -> Upstream:
    """The adapter is imported by who asks the upstream: the tick and most of the API never do."""
    from shared.page_ingest.adapters.nivoda import Nivoda  # noqa: PLC0415

    return Nivoda(base_url, username, password, time_left_s=time_left_s, gate=gate)


@contextmanager
def _named_problems() -> Iterator[None]:
    try:
        yield
    except BadSettings as error:
        hint = "deploy with NivodaBaseUrl and NivodaSecretArn, or start the run with a connection"
        raise Permanent(f"the upstream is not set up ({error}): {hint}", "bad_settings") from None
    except ValueError as error:
        raise Permanent(f"{PREFIX}BASE_URL: {error}", "bad_settings") from None
