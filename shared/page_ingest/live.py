"""The real ports of page ingestion, built from the environment.

BATON_NIVODA_BASE_URL, and the account: BATON_NIVODA_SECRET_ARN, or _USERNAME and _PASSWORD where there are no secrets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

import sqlalchemy as sa
from pydantic import SecretStr

from shared.kernel import aws
from shared.kernel.clock import stopwatch
from shared.kernel.errors import Permanent
from shared.kernel.model import Turn
from shared.kernel.settings import BadSettings, Settings
from shared.page_ingest.adapters.nivoda import Nivoda
from shared.page_ingest.ports import Ports, Upstream
from shared.page_ingest.store import PageStore

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


def live(engine: sa.Engine, env: Mapping[str, str] = os.environ) -> Ports:
    """The account is read when a step first needs it: the tick, which asks no upstream, does without."""
    return Ports(upstream=partial(_upstream, env, SecretAccount()), store=PageStore(engine))


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
    secret: SecretAccount,
    source: str,
    turn: Turn,  # noqa: ARG001 - later the account will be the tenant's own
    time_left_s: Callable[[], float],
) -> Upstream:
    if source != "nivoda":
        raise Permanent(f"there is no source {source}", "unknown_source")
    try:
        place = NivodaPlace.from_env(env, PREFIX)
        account = secret.read(place.secret_arn) if place.secret_arn else NivodaAccount.from_env(env, PREFIX)
        password = account.password.get_secret_value()
        return Nivoda(place.base_url, account.username, password, time_left_s=time_left_s)
    except BadSettings as error:
        raise Permanent(f"the upstream's account is not set: {error}", "bad_settings") from None
    except ValueError as error:
        raise Permanent(f"{PREFIX}BASE_URL: {error}", "bad_settings") from None
