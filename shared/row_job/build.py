"""The real ports of row jobs, built from the environment.

BATON_BUCKET: where uploads are. BATON_ROWS_…: the bounds and the provider's knobs, under the names of `RowSettings`;
BATON_ROWS_PROVIDER_URL is where the product search is. A job names the tenant's connection, which holds the key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import sqlalchemy as sa
from pydantic import Field, SecretStr

from shared.kernel.catalogue import Kind
from shared.kernel.connections import Account, Accounts, Provider, Strict
from shared.kernel.control import Paces
from shared.kernel.errors import Permanent
from shared.kernel.metrics_emf import NAMESPACE, EmfMeter
from shared.kernel.model import Json, RunCommand
from shared.kernel.settings import Groups
from shared.kernel.vault import live_vault
from shared.row_job.adapters.hands import Threads, in_a_thread
from shared.row_job.adapters.s3 import S3Files
from shared.row_job.model import FTP, KIND, SCAN, UPSTREAM, Item, RowJobParams, RowSettings, ScanParams, Strategy
from shared.row_job.ports import Inbox, Ports, Search
from shared.row_job.steps import row_job
from shared.row_job.store import RowStore

if TYPE_CHECKING:
    from shared.row_job.adapters.inbox import FtpServer
    from shared.row_job.adapters.search import HttpSearch

PREFIX = "BATON_ROWS_"


class SearchName(Strict):
    """What a connection says of an account. `account` is for people: a key has no name of its own."""

    account: Annotated[str, Field(max_length=200)]


class SearchKey(Strict):
    api_key: Annotated[SecretStr, Field(min_length=1, max_length=1024)]


def build_ports(engine: sa.Engine, env: Mapping[str, str] = os.environ) -> Ports:
    memory_mb = env.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")
    return Ports(
        files=S3Files(env.get("BATON_BUCKET", "")),
        search=partial(search, env, Accounts(engine, live_vault(env))),
        hands=partial(Threads, memory_mb=int(memory_mb) if memory_mb else None),
        pace=Paces(engine),
        reads=RowStore(engine),
        settings=RowSettings.from_env(env, PREFIX),
        meter=EmfMeter(env.get("POWERTOOLS_METRICS_NAMESPACE", NAMESPACE)),
        beside=in_a_thread,
        needs_connection=True,
        inbox=partial(inbox, env, Accounts(engine, live_vault(env))),
    )


def kind(engine: sa.Engine) -> Kind:
    return row_job(build_ports(engine))


def commands() -> list[RunCommand]:
    return [RunCommand("row_jobs.ingest", KIND), RunCommand("row_jobs.scan", KIND, scanned)]


def scanned(payload: Json) -> Json:
    """Of a job's payload: {"source": "s3"}, as the API takes it."""
    return {SCAN if name == "source" else name: value for name, value in payload.items()}


def settings() -> Groups:
    return [(PREFIX, RowSettings)]


def providers() -> list[Provider]:
    return [search_provider(), ftp_provider()]


def search_provider(env: Mapping[str, str] = os.environ) -> Provider:
    def check(account: Account, time_left_s: Callable[[], float]) -> str:
        params = RowJobParams(file_id=UUID(int=0))
        item = Item(row_no=0, attempts=1, normalized={"title": "connection check"})
        answer = _connected(env, account, params, time_left_s).find(item, Strategy.TITLE_ONLY, [], "check")
        if answer.what in ("found", "not_found", "throttled"):
            return "Connected."
        raise Permanent(answer.message or "The product search doesn't accept this key.", "not_connected")

    return Provider(name=UPSTREAM, settings=SearchName, secret=SearchKey, check=check)


class FtpPlace(Strict):
    """`directory`: where the files are. `tls`: false for a server that can't do better; names and passwords are then sent as
    they are."""

    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:-]{1,253}$")]
    user: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]+$")]
    port: Annotated[int, Field(ge=1, le=65_535)] = 21
    directory: Annotated[str, Field(max_length=500, pattern=r"^/?([^/.\x00-\x1f][^/\x00-\x1f]*/?)*$")] = ""
    tls: bool = True


class FtpPassword(Strict):
    password: Annotated[SecretStr, Field(min_length=1, max_length=1024)]


def ftp_provider(env: Mapping[str, str] = os.environ) -> Provider:
    def check(account: Account, time_left_s: Callable[[], float]) -> str:  # noqa: ARG001 - a server answers within its own limit
        server = _ftp_server(env, account)
        with server.connected():
            return f"Connected: {len(list(server.listed())):,} files."

    return Provider(name=FTP, settings=FtpPlace, secret=FtpPassword, check=check)


def _ftp_server(env: Mapping[str, str], account: Account) -> FtpServer:
    from shared.row_job.adapters.inbox import FtpServer  # noqa: PLC0415 - as below

    return FtpServer(
        **account.settings.model_dump(), password=account.secret.password.get_secret_value(), private=_is_local(env)
    )


def inbox(env: Mapping[str, str], accounts: Accounts, tenant_id: UUID, scan: ScanParams) -> Inbox:
    from shared.row_job.adapters.inbox import Folder, Pumped, S3Inbox  # noqa: PLC0415 - who scans nothing need not import it

    bucket = env.get("BATON_BUCKET", "")
    if scan.scan == "s3":
        return S3Inbox(bucket, tenant_id)
    if scan.server is not None:
        return Pumped(bucket, _ftp_server(env, accounts.of(tenant_id, ftp_provider(env), scan.server)))
    folder = RowSettings.from_env(env, PREFIX).folder
    if not folder or not _is_local(env):
        raise Permanent("A folder can only be scanned where Baton runs on your own machine.", "no_inbox")
    return Pumped(bucket, Folder(Path(folder), tenant_id))


def _is_local(env: Mapping[str, str]) -> bool:
    return env.get("BATON_STAGE") == "local"


def search(
    env: Mapping[str, str], accounts: Accounts, tenant_id: UUID, params: RowJobParams, time_left_s: Callable[[], float]
) -> Search:
    if params.connection is None:
        raise Permanent("The job names no connection to a product search. Start a new one that does.", "no_connection")
    return _connected(env, accounts.of(tenant_id, search_provider(env), params.connection), params, time_left_s)


def _connected(
    env: Mapping[str, str], account: Account, params: RowJobParams, time_left_s: Callable[[], float]
) -> HttpSearch:
    """Only the deployment says where the product search is: a tenant cannot send us elsewhere."""
    from shared.row_job.adapters.search import HttpSearch  # noqa: PLC0415 - who asks no upstream need not import its client

    settings = RowSettings.from_env(env, PREFIX)
    if not settings.provider_url:
        raise Permanent(f"{PREFIX}PROVIDER_URL isn't set: nobody knows where the product search is.", "bad_settings")
    try:
        return HttpSearch(
            settings.provider_url,
            account.secret.api_key.get_secret_value(),
            locale=params.locale,
            currency=params.currency,
            time_left_s=time_left_s,
            longest_s=settings.provider_timeout_ms / 1000,
        )
    except ValueError as error:
        raise Permanent(f"{PREFIX}PROVIDER_URL: {error}", "bad_settings") from None
