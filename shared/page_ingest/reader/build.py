"""The real ports of sources: their files, the tenants' accounts, the wire.

BATON_SOURCES_STANDIN: where the local cloud plays the hosts of all sources. It must be on this machine.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import control, direct, sql
from shared.kernel.clock import process_time, read_id, stopwatch
from shared.kernel.connections import Account, Accounts, NoVault, Vault, secret_name
from shared.kernel.errors import Later, Permanent
from shared.kernel.model import Turn, account_name
from shared.kernel.tokens import Tokens
from shared.kernel.vault import live_vault
from shared.page_ingest.model import INGEST_PREFIX, IngestSettings
from shared.page_ingest.reader import plan, walk
from shared.page_ingest.reader.client import OAUTH, Client
from shared.page_ingest.reader.files import folder_of
from shared.page_ingest.reader.model import ReadCursor, SourceParams
from shared.page_ingest.reader.providers import PREFIX, Place, deployed, provider
from shared.page_ingest.reader.steps import Ports
from shared.page_ingest.reader.store import SourceStore
from shared.page_ingest.source.compile import Compiled
from shared.page_ingest.source.model import Pace

PATIENCE_S = 0.25  # a slot so near is waited for; for any other the lane waits
LONGEST_PAUSE_S = 10.0  # of a person who tries a source and watches


def source_ports(engine: sa.Engine, env: Mapping[str, str] = os.environ) -> Ports:
    store = SourceStore(engine)
    vault = live_vault(env)
    make = Clients(engine, vault, store, Place.from_env(env, PREFIX).standin)
    pages = IngestSettings.from_env(env, INGEST_PREFIX).pages_per_step
    return Ports(files=deployed(folder_of(env)), client=make, tokens=Tokens(engine), store=store, pages_per_step=pages)


def check(compiled: Compiled, standin: str | None, account: Account, time_left_s: Callable[[], float]) -> str:
    """Ask for the first page of a list that needs no other."""
    source = compiled.source
    client = client_of(
        compiled, account.settings.model_dump(), revealed(account.secret), gate=source.name, time_left_s=time_left_s,
        standin=standin,
    )  # fmt: skip
    if source.auth.way == "refresh_token":
        return "Saved. The first run signs in; every login may replace the refresh token, so this check does not."
    if source.auth.way in OAUTH:
        client.token = client.log_in().value
    resource = next(each.resource for each in compiled.resources if plan.parent_of(each.resource) is None)
    now = process_time()
    part = plan.roots(resource, plan.said(now - timedelta(days=31)), None, now)[-1]
    cursor = ReadCursor(part=part, t=plan.said(now), scope="", limit=resource.page.size)
    page = client.page(resource, part, None, walk.request(resource, cursor))
    return f"Connected: the first page of {resource.name} has {len(page.rows)} rows."


def revealed(secret: Any) -> dict[str, str]:
    return {name: getattr(secret, name).get_secret_value() for name in type(secret).model_fields}


def client_of(
    compiled: Compiled, settings: Mapping[str, Any], secret: Mapping[str, str], *, gate: str,
    time_left_s: Callable[[], float], standin: str | None = None,
) -> Client:  # fmt: skip
    from shared.page_ingest.reader.fill import placed  # noqa: PLC0415
    from shared.page_ingest.reader.wire import HttpWire  # noqa: PLC0415 - by who asks

    source = compiled.source
    hosts = [placed(source, f"https://{host}/", settings)[0] for host in source.hosts]
    wire = HttpWire(
        source.name, hosts, gate=gate, time_left_s=time_left_s, secrets=list(secret.values()), standin=standin
    )  # fmt: skip
    return Client(
        source=source, settings=settings, secret=secret, wire=wire, before=unhurried(source.rate.pace, time_left_s)
    )


def unhurried(pace: Pace | None, time_left_s: Callable[[], float]) -> Callable[[], None]:
    """The file's pace for who tries a source or checks a connection. Steps of runs share theirs by the account instead."""
    if pace is None:
        return lambda: None
    asked: deque[float] = deque(maxlen=pace.requests)
    elapsed = stopwatch()

    def wait() -> None:
        if len(asked) == pace.requests:
            wait_s = asked[0] + pace.per - elapsed()
            if wait_s > min(LONGEST_PAUSE_S, time_left_s()):
                raise Later(wait_s, f"the pace of the file, {pace.text}")
            time.sleep(max(0.0, wait_s))
        asked.append(elapsed())

    return wait


@dataclass(slots=True)
class Clients:
    """Makes the client of a run's account."""

    engine: sa.Engine
    vault: Vault
    store: SourceStore
    standin: str | None

    def __call__(
        self, compiled: Compiled, params: SourceParams, turn: Turn, time_left_s: Callable[[], float]
    ) -> Client:
        account, settings, secret = Account(None, None), {}, {}
        if params.connection is not None:
            account = Accounts(self.engine, self.vault).of(turn.tenant_id, provider(compiled), params.connection)
            settings, secret = account.settings.model_dump(), revealed(account.secret)
        client = client_of(
            compiled, settings, secret, gate=params.account, time_left_s=time_left_s, standin=self.standin
        )  # fmt: skip
        if params.connection is not None and compiled.source.auth.way == "refresh_token":
            rotation = Rotation(self, compiled.source.name, turn.tenant_id, params.connection)
            client.newest, client.save = rotation.newest, rotation.save
        client.before = self._pace(compiled, params, turn)
        return client

    def _pace(self, compiled: Compiled, params: SourceParams, turn: Turn) -> Callable[[], None]:
        pace = compiled.source.rate.pace
        if pace is None:
            return lambda: None
        even = control.Even(per_minute=pace.requests * 60 / pace.per)
        paced = control.Paced(account_name(params.source, params.connection), compiled.source.hosts[0], turn.tenant_id)
        paces = control.Paces(self.engine)

        def wait() -> None:
            (slot_s,) = paces.take(paced, even, 1, PATIENCE_S)
            time.sleep(slot_s)

        return wait


@dataclass(slots=True)
class Rotation:
    """Keeps a refresh token that its upstream has changed: a new version of the secret, and the row that names it. A log-in
    begins with the version that the row names then, and its answer replaces no other."""

    clients: Clients
    provider: str
    tenant_id: UUID
    connection: str
    before: str = ""
    secret: Mapping[str, str] = field(default_factory=dict, repr=False)

    def newest(self) -> Mapping[str, str]:
        params = {"tenant_id": self.tenant_id, "provider": self.provider, "id": self._id}
        with direct.alone(self.clients.engine, self.tenant_id) as line:
            row = line.one(sql.CONNECTION, params)
        held = None if row is None else self.clients.vault.get(secret_name(self.tenant_id, self._id), row["secret_ref"])
        if row is None or held is None:
            raise Permanent(
                "The connection was deleted, so its refresh token can't be read. Add a connection, and start a new run.",
                "connection_gone",
            )
        self.before, self.secret = row["secret_ref"], held
        return held

    def save(self, field: str, value: str) -> None:
        version = self.clients.vault.renew(secret_name(self.tenant_id, self._id), {**self.secret, field: value})
        if not self.clients.store.rotate(self.tenant_id, self.provider, self._id, self.before, version):
            raise NoVault("The connection was changed during a login. If it no longer works, connect it again.")

    @property
    def _id(self) -> UUID:
        found = read_id(self.connection)
        assert found is not None
        return found
