"""Connections: the tenant's own accounts at upstreams. What is secret goes to the vault and never comes back from here.

Each order of writes leaves something honest if it stops half way: a row without a version of its secret is not ready and
nobody can use it, and whoever repeats the request goes on with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Any
from uuid import UUID

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Path, Query
from pg8000.exceptions import DatabaseError
from pydantic import Field, SecretStr

from shared.kernel import db
from shared.kernel.api import sql
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, creates, desk, operation, time_left_s
from shared.kernel.api.shapes import Asked, Cursor, Done, Form, Key, Limit, Short, Told
from shared.kernel.auth import MANAGES, READS
from shared.kernel.clock import stopwatch
from shared.kernel.connections import BadAccount, NoVault, Provider, Vault, checked, read_part, secret_name
from shared.kernel.db import jsonb
from shared.kernel.errors import NotFound
from shared.kernel.model import Json
from shared.kernel.paging import USUAL_PAGE
from shared.kernel.redact import redact
from shared.kernel.store import PgTx

LONGEST_CHECK_S = 12.0
SPARE_S = 3.0  # of the function's own time, for what is written after a check

ConnectionId = Annotated[UUID, Path(description="The connection's id")]
Name = Annotated[
    str,
    Form(
        r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$",
        "Use up to 100 letters from A to Z, digits, blanks, dots, hyphens and underscores. Start with a letter or a digit.",
    ),
]
Secret = Annotated[dict[Short, SecretStr], Field(max_length=20)]
Written = Annotated[dict[Short, Any], Field(max_length=50)]


class Connection(Told):
    """`ready`: its secret is kept. `works`: what the upstream said when it was last asked; null: it was not asked."""

    id: UUID
    provider: str
    name: str
    settings: dict[str, Any]
    ready: bool
    works: bool | None
    check_says: str | None
    checked_at: datetime | None
    created_by: str
    created_at: datetime
    updated_at: datetime


class Offered(Told):
    """An upstream to connect to: what its settings and its secret must look like, as JSON schemas."""

    name: str
    settings: dict[str, Any]
    secret: dict[str, Any]


class Providers(Told):
    providers: list[Offered]


class Connections(Told):
    connections: list[Connection]
    next: str | None


class MakeConnection(Asked):
    """`settings` may be read again, `secret` never."""

    provider: Short
    name: Name
    settings: Written = Field(default_factory=dict)
    secret: Secret


class PutConnection(Asked):
    """Without `secret` the one that is kept stays."""

    name: Name
    settings: Written = Field(default_factory=dict)
    secret: Secret | None = None


class MadeConnection(Told):
    id: UUID


class Checked(Told):
    works: bool
    says: str
    checked_at: datetime


def routes(providers: Callable[[], Iterable[Provider]], vault: Vault) -> Router:
    """The routes over the providers that the kinds of work bring. They are asked for once, by the first who needs them: every
    cold start would read all sources for it."""
    router = Router()  # type: ignore[no-untyped-call]

    @cache
    def office() -> Office:
        return Office({each.name: each for each in providers()}, vault)

    @operation(router, "GET", "/providers", READS, tag="connections")
    def list_providers() -> Providers:
        """List the upstreams to connect to, and what each connection needs."""
        offered = [
            Offered(name=name, settings=each.settings.model_json_schema(), secret=each.secret.model_json_schema())
            for name, each in sorted(office().providers.items())
        ]
        return Providers(providers=offered)

    @operation(router, "GET", "/connections", READS, tag="connections")
    def list_connections(
        provider: Annotated[str | None, Query(max_length=200)] = None, limit: Limit = USUAL_PAGE, cursor: Cursor = None
    ) -> Connections:
        """List connections, newest first."""
        here = desk(router)
        pager = here.pager("connections", {"provider": provider})
        place = pager.place(cursor)
        params: dict[str, Any] = {"most": limit + 1}
        params |= {} if provider is None else {"provider": provider}
        params |= {} if place is None else {"after_id": place[0]}
        rows = here.all(sql.list_connections(of_provider=provider is not None, after=place is not None), **params)
        page = [Connection(**row) for row in rows[:limit]]
        return Connections(connections=page, next=pager.cursor([str(page[-1].id)]) if len(rows) > limit else None)

    @operation(
        router, "POST", "/connections", MANAGES, tag="connections",
        answers=creates(MadeConnection), refuses=[409, 429],
    )  # fmt: skip
    def make_connection(asked: Annotated[MakeConnection, Body()], idempotency_key: Key = None) -> Response[str]:
        """Add a connection: an account at an upstream."""
        return office().make(desk(router), asked, idempotency_key)

    @operation(router, "GET", "/connections/<connection_id>", READS, tag="connections")
    def get_connection(connection_id: ConnectionId) -> Connection:
        """Get a connection, without its secret."""
        row = desk(router).one(sql.ONE_CONNECTION, id=connection_id)
        if row is None:
            raise NotFound
        return Connection(**row)

    @operation(router, "PUT", "/connections/<connection_id>", MANAGES, tag="connections", refuses=[409])
    def put_connection(connection_id: ConnectionId, asked: Annotated[PutConnection, Body()]) -> Done:
        """Change a connection. Runs that use it pick up the change at their next step."""
        office().put(desk(router), connection_id, asked)
        return Done()

    @operation(router, "DELETE", "/connections/<connection_id>", MANAGES, tag="connections", refuses=[409])
    def delete_connection(connection_id: ConnectionId) -> Done:
        """Delete a connection and its secret. Runs that use it fail at their next step."""
        office().delete(desk(router), connection_id)
        return Done()

    @operation(router, "POST", "/connections/<connection_id>/check", MANAGES, tag="connections", refuses=[409])
    def check_connection(connection_id: ConnectionId) -> Checked:
        """Check a connection: sign in to the upstream once."""
        most_s, elapsed = min(LONGEST_CHECK_S, time_left_s(router) - SPARE_S), stopwatch()
        return office().check(desk(router), connection_id, lambda: most_s - elapsed())

    return router


@dataclass(frozen=True, slots=True)
class Office:
    """What is done with rows and secrets, and in which order."""

    providers: Mapping[str, Provider]
    vault: Vault

    def make(self, here: Desk, asked: MakeConnection, key: str | None) -> Response[str]:
        """The row first, not ready; then the secret; then the row names its version. No secret is ever without a row."""
        secret = _plain(asked.secret)
        self._refuse_wrong(self._provider(asked.provider), asked.settings, secret)
        request = _fingerprint(here, asked, secret, key)
        if (kept := here.answered(key, request)) is not None:
            return Response(kept.status, "application/json", kept.body)
        connection_id, is_ready = self._reserve(here, asked)
        version = None if is_ready else self._keep(here, connection_id, secret)
        with here.begin() as (line, tx):
            kept = here.once(line, key, request)
            if kept is not None:
                return Response(kept.status, "application/json", kept.body)
            values = {"id": connection_id, "tenant_id": here.tenant_id, "created_by": here.principal.actor}
            values |= {"settings": jsonb(asked.settings), "secret_ref": version}
            if version is None or not line.run(sql.FINISH_CONNECTION, values):
                raise _taken(asked.name)
            body = jsonb({"id": str(connection_id)})
            after = {"provider": asked.provider, "name": asked.name, "settings": asked.settings, "secret": "changed"}
            here.audit(tx, "connection.make", f"connection:{connection_id}", after=after)
            _say(here, tx, connection_id, asked.provider, asked.name, "created")
            here.keep(line, key, 201, body)
        return Response(201, "application/json", body)

    def put(self, here: Desk, connection_id: UUID, asked: PutConnection) -> None:
        """The new version of the secret means nothing until the row names it, together with the new settings."""
        row = self._row(here, connection_id)
        provider = self._provider(row["provider"])
        secret = None if asked.secret is None else _plain(asked.secret)
        self._refuse_wrong(provider, asked.settings, secret)
        if secret is None and not row["ready"]:
            raise Problem(409, "no_secret", "This connection has no secret yet. Send one.")
        version = None if secret is None else self._keep(here, connection_id, secret)
        values = {"id": connection_id, "tenant_id": here.tenant_id, "name": asked.name}
        values |= {"settings": jsonb(asked.settings), "secret_ref": version}
        with _named_once(asked.name), here.begin() as (line, tx):
            changed = line.run(sql.CHANGE_CONNECTION, values)
            if changed:
                said = {} if secret is None else {"secret": "changed"}
                before = {"name": row["name"], "settings": row["settings"]}
                after = {"name": asked.name, "settings": asked.settings, **said}
                here.audit(tx, "connection.put", f"connection:{connection_id}", before=before, after=after)
                _say(here, tx, connection_id, row["provider"], asked.name, "changed")
        if not changed:  # deleted meanwhile: the version just kept must not outlive its row
            with _vault_answers():
                self.vault.delete(secret_name(here.tenant_id, connection_id))
            raise NotFound

    def delete(self, here: Desk, connection_id: UUID) -> None:
        """First nobody can use it any more, then the secret goes, then the row. Repeated, it goes on where it stopped."""
        row = self._row(here, connection_id)
        mine = {"id": connection_id, "tenant_id": here.tenant_id}
        with here.begin() as (line, _):
            line.run(sql.RETIRE_CONNECTION, mine)
        with _vault_answers():
            self.vault.delete(secret_name(here.tenant_id, connection_id))
        with here.begin() as (line, tx):
            if not line.run(sql.DELETE_CONNECTION, mine):
                raise Problem(409, "changed_meanwhile", "This connection was changed in the meantime. Try again.")
            before = {"provider": row["provider"], "name": row["name"], "settings": row["settings"]}
            here.audit(tx, "connection.delete", f"connection:{connection_id}", before=before)
            _say(here, tx, connection_id, row["provider"], row["name"], "deleted")

    def check(self, here: Desk, connection_id: UUID, left_s: Callable[[], float]) -> Checked:
        row = self._row(here, connection_id)
        provider, version = self._provider(row["provider"]), row["secret_ref"]
        with _vault_answers():
            secret = None if version is None else self.vault.get(secret_name(here.tenant_id, connection_id), version)
        if secret is None:
            raise Problem(409, "no_secret", "This connection has no secret. Change it and send one.")
        try:
            works, said = checked(provider, provider.account(row["settings"], secret), left_s)
        except BadAccount as error:
            works, said = False, str(error)
        values = {"id": connection_id, "tenant_id": here.tenant_id, "works": works, "secret_ref": version}
        values |= {"updated_at": row["updated_at"]}
        says = redact(said)[:500]
        with here.begin() as (line, tx):
            noted = line.one(sql.NOTE_CHECK, {**values, "says": says})
            if noted is None:
                raise Problem(409, "changed_meanwhile", "This connection was changed in the meantime. Check it again.")
            here.audit(tx, "connection.check", f"connection:{connection_id}", after={"works": works})
        return Checked(works=works, says=says, checked_at=noted["checked_at"])

    def _provider(self, name: str) -> Provider:
        found = self.providers.get(name)
        if found is None:
            known = ", ".join(sorted(self.providers))
            raise Problem(422, "unknown_provider", f"Unknown provider. Available: {known}.")
        return found

    def _refuse_wrong(self, provider: Provider, settings: Json, secret: Mapping[str, str] | None) -> None:
        said = []
        for what, model, given in (("settings", provider.settings, settings), ("secret", provider.secret, secret)):
            if given is not None:
                try:
                    read_part(what, model, given)
                except BadAccount as error:
                    said.append(str(error))
        if said:
            raise Problem(422, "invalid", " ".join(said))

    def _reserve(self, here: Desk, asked: MakeConnection) -> tuple[UUID, bool]:
        """The row of this name: a new one, or one that somebody left unready; and whether it is ready already."""
        values = {
            "id": here.ports.chance.new_id(), "tenant_id": here.tenant_id, "provider": asked.provider,
            "name": asked.name, "created_by": here.principal.actor, "most": sql.MOST_CONNECTIONS,
        }  # fmt: skip
        with here.begin() as (line, _):
            line.run(sql.RESERVE_CONNECTION, values)
            row = line.one(sql.NAMED_CONNECTION, values)
        if row is None:
            raise Problem(
                429,
                "too_many_connections",
                f"This tenant already has {sql.MOST_CONNECTIONS} connections. Delete some first.",
            )
        return row["id"], row["ready"]

    def _keep(self, here: Desk, connection_id: UUID, secret: Mapping[str, str]) -> str:
        with _vault_answers():
            return self.vault.put(secret_name(here.tenant_id, connection_id), secret)

    def _row(self, here: Desk, connection_id: UUID) -> dict[str, Any]:
        rows = here.all(sql.ONE_CONNECTION_WITH_REF, id=connection_id)
        if not rows:
            raise NotFound
        return dict(rows[0])


def _say(here: Desk, tx: PgTx, connection_id: UUID, provider: str, name: str, change: str) -> None:
    """Triggers may want to know. Neither its settings nor its secret are anybody's news."""
    said = {"connection_id": str(connection_id), "provider": provider, "name": name, "change": change}
    tx.add_signal(here.tenant_id, "provider.connection.changed", said)


@contextmanager
def _vault_answers() -> Iterator[None]:
    try:
        yield
    except NoVault:
        raise Problem(503, "no_vault", "Secrets Manager can't be reached. Try again in a minute.") from None


@contextmanager
def _named_once(name: str) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        if db.sqlstate(error) == "23505":
            raise _taken(name) from None
        raise


def _taken(name: str) -> Problem:
    return Problem(409, "name_taken", f"A connection named {name!r} to this provider already exists. Change that one.")


def _plain(secret: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in secret.items()}


def _fingerprint(here: Desk, asked: MakeConnection, secret: Mapping[str, str], key: str | None) -> bytes:
    """What tells a repeated request from another one. It is kept in a row, so nobody may be able to guess the secret by it."""
    if key is None:
        return b""
    salt = f"{here.tenant_id}:{key}".encode()
    hard = hashlib.scrypt(jsonb(dict(sorted(secret.items()))).encode(), salt=salt, n=2**14, r=8, p=1)
    return b"connection:" + asked.model_dump_json(exclude={"secret"}).encode() + hard
