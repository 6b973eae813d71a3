"""The real ports of page ingestion, built from the environment: BATON_NIVODA_BASE_URL, _USERNAME and _PASSWORD."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

import sqlalchemy as sa
from pydantic import SecretStr

from shared.kernel.errors import Permanent
from shared.kernel.model import Turn
from shared.kernel.settings import BadSettings, Settings
from shared.page_ingest.adapters.nivoda import Nivoda
from shared.page_ingest.ports import Ports, Upstream
from shared.page_ingest.store import PageStore

PREFIX = "BATON_NIVODA_"


class NivodaAccount(Settings):
    """Where the upstream is and who we are there."""

    base_url: str
    username: str
    password: SecretStr


def live(engine: sa.Engine, env: Mapping[str, str] = os.environ) -> Ports:
    """The account is read when a step first needs it: the tick, which asks no upstream, does without."""
    return Ports(upstream=partial(_upstream, env), store=PageStore(engine))


def _upstream(env: Mapping[str, str], source: str, turn: Turn, time_left_s: Callable[[], float]) -> Upstream:  # noqa: ARG001 - later the account will be the tenant's own
    if source != "nivoda":
        raise Permanent(f"there is no source {source}", "unknown_source")
    try:
        account = NivodaAccount.from_env(env, PREFIX)
        password = account.password.get_secret_value()
        return Nivoda(account.base_url, account.username, password, time_left_s=time_left_s)
    except BadSettings as error:
        raise Permanent(f"the upstream's account is not set: {error}", "bad_settings") from None
    except ValueError as error:
        raise Permanent(f"{PREFIX}BASE_URL: {error}", "bad_settings") from None
