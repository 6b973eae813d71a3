"""The real ports of folder sync, built from the environment.

BATON_DROPBOX_BASE_URL: where Dropbox is, for a stand-in; without it, its own address. A run names the tenant's connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import sqlalchemy as sa
from pydantic import Field, SecretStr

from shared.folder_sync.model import KIND, PROVIDER, FolderCursor
from shared.folder_sync.ports import Ports
from shared.folder_sync.steps import folder_sync
from shared.kernel.catalogue import Kind
from shared.kernel.connections import Account, Accounts, Provider, Strict
from shared.kernel.errors import Permanent
from shared.kernel.model import Json, RunCommand, Turn, account_name
from shared.kernel.settings import Settings
from shared.kernel.tokens import Tokens, TokenSource
from shared.kernel.vault import live_vault

if TYPE_CHECKING:
    from shared.folder_sync.adapters.dropbox import Dropbox


class DropboxPlace(Settings):
    base_url: str = "https://api.dropboxapi.com"


class App(Strict):
    app_key: Annotated[str, Field(max_length=200)]


class AppSecret(Strict):
    app_secret: Annotated[SecretStr, Field(min_length=1, max_length=1024)]
    refresh_token: Annotated[SecretStr, Field(min_length=1, max_length=2048)]


def kind(engine: sa.Engine) -> Kind:
    env: Mapping[str, str] = os.environ
    folder = partial(folder_of, env, Accounts(engine, live_vault(env)), Tokens(engine))
    return folder_sync(Ports(folder=folder))


def providers() -> list[Provider]:
    return [dropbox_provider()]


def commands() -> list[RunCommand]:
    return [RunCommand("sync-dropbox", KIND, asked_of)]


def asked_of(payload: Json) -> Json:
    """`provider_id`: the connection's name or id; `path_prefix`: the folder."""
    return {"connection": payload.get("provider_id", ""), "path": payload.get("path_prefix", "")}


def dropbox_provider(env: Mapping[str, str] = os.environ) -> Provider:
    def ask(account: Account, time_left_s: Callable[[], float]) -> str:
        _log_in(env, account, gate=PROVIDER, time_left_s=time_left_s)
        return "Connected."

    return Provider(name=PROVIDER, settings=App, secret=AppSecret, check=ask)


def folder_of(
    env: Mapping[str, str], accounts: Accounts, tokens: TokenSource, turn: Turn, cursor: FolderCursor,
    time_left_s: Callable[[], float],
) -> Dropbox:  # fmt: skip
    """The adapter is imported by who asks Dropbox: the tick and the API never do."""
    from shared.folder_sync.adapters.dropbox import Dropbox  # noqa: PLC0415

    account = accounts.of(turn.tenant_id, dropbox_provider(env), cursor.connection)
    how: Any = {"gate": account_name(PROVIDER, cursor.connection), "time_left_s": time_left_s}
    token = tokens.of(turn, how["gate"], lambda: _log_in(env, account, **how))
    forget = partial(tokens.forget, turn, how["gate"], token)
    return Dropbox(_base_url(env), token, on_refused=forget, **how)


def _log_in(env: Mapping[str, str], account: Account, **how: Any) -> Any:
    from shared.folder_sync.adapters.dropbox import log_in  # noqa: PLC0415 - as above

    secret = account.secret
    key, refresh = secret.app_secret.get_secret_value(), secret.refresh_token.get_secret_value()
    try:
        return log_in(_base_url(env), account.settings.app_key, key, refresh, **how)
    except ValueError as error:
        raise Permanent(f"BATON_DROPBOX_BASE_URL: {error}", "bad_settings") from None


def _base_url(env: Mapping[str, str]) -> str:
    return DropboxPlace.from_env(env, "BATON_DROPBOX_").base_url
