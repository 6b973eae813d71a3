"""What one request works with: who asks, the rows he may see, the relay's actions, and signed cursors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.kernel import db, direct
from shared.kernel.api import sql
from shared.kernel.api.room import Room
from shared.kernel.auth import MANAGES, Invitation, Membership, Principal, Role
from shared.kernel.catalogue import Catalogue
from shared.kernel.direct import Line, Row
from shared.kernel.errors import Refused
from shared.kernel.model import AuditEntry, By, Json
from shared.kernel.paging import Pager
from shared.kernel.ports import Ports
from shared.kernel.store import PgStore, PgTx


class PgRegister:
    """Looks up people and tokens before a tenant is known, through functions that tell no more than that."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def memberships(self, subject: str) -> list[Membership]:
        return [_membership(row) for row in self._all(sql.MEMBERSHIPS, {"subject": subject})]

    def membership(self, subject: str, tenant_id: UUID) -> Membership | None:
        rows = self._all(sql.MEMBERSHIP, {"subject": subject, "tenant_id": tenant_id})
        return _membership(rows[0]) if rows else None

    def invitations(self, subject: str) -> list[Invitation]:
        rows = self._all(sql.INVITATIONS, {"subject": subject})
        return [Invitation(**{**row, "role": Role(row["role"])}) for row in rows]

    def answer_invitation(self, subject: str, tenant_id: UUID, accepts: bool) -> bool:
        params = {"subject": subject, "tenant_id": tenant_id, "accepts": accepts}
        return bool(self._all(sql.ANSWER_INVITATION, params)[0]["answered"])

    def use_token(self, token_hash: bytes) -> tuple[UUID, Membership] | None:
        rows = self._all(sql.USE_TOKEN, {"hash": token_hash})
        return (rows[0]["id"], _membership({**rows[0], "is_super": False})) if rows else None

    def cursor_key(self) -> bytes:
        (row,) = self._all(sql.CURSOR_KEY, {})
        return bytes(row["key"])

    def _all(self, statement: sa.TextClause, params: Row) -> list[Row]:
        """The first statement of every request."""

        def ask() -> list[Row]:
            with direct.alone(self._engine) as line:
                return line.all(statement, params)

        return db.again_if_disconnected(ask)


@dataclass(slots=True)
class Front:
    """What a process keeps between requests."""

    engine: sa.Engine
    ports: Ports
    kinds: Catalogue
    streams: Room | None = None  # without it, everybody may look as often as they like
    register: PgRegister = field(init=False)
    _cursor_key: bytes | None = None

    def __post_init__(self) -> None:
        self.register = PgRegister(self.engine)

    def desk(self, principal: Principal, correlation_id: str) -> Desk:
        ports = replace(self.ports, store=PgStore(self.engine, principal.owner))
        return Desk(principal, self.engine, ports, self.kinds, correlation_id, self.cursor_key, self.streams)

    def cursor_key(self) -> bytes:
        if self._cursor_key is None:
            self._cursor_key = self.register.cursor_key()
        return self._cursor_key


@dataclass(frozen=True, slots=True)
class Desk:
    principal: Principal
    engine: sa.Engine
    ports: Ports
    kinds: Catalogue
    correlation_id: str
    cursor_key: Callable[[], bytes]
    streams: Room | None = None

    @property
    def tenant_id(self) -> UUID:
        return self.principal.tenant_id

    def by(self, reason: str = "") -> By:
        manages = self.principal.may(MANAGES)
        return By(self.principal.actor, reason, self.correlation_id or None, source="api", manages=manages)

    def own(self) -> dict[str, Any]:
        """The filter of somebody who sees only their own runs."""
        return {} if self.principal.owner is None else {"owner": self.principal.owner}

    def pager(self, name: str, question: Mapping[str, Any]) -> Pager:
        scope = (name, str(self.tenant_id), self.principal.owner or "")
        return Pager(self.cursor_key(), scope, question)

    def all(self, statement: sa.TextClause, **params: Any) -> list[Row]:
        with direct.alone(self.engine, self.tenant_id, self.principal.owner) as line:
            return line.all(statement, {"tenant_id": self.tenant_id, **params})

    def one(self, statement: sa.TextClause, **params: Any) -> Row | None:
        rows = self.all(statement, **params)
        return rows[0] if rows else None

    def audit(
        self,
        tx: PgTx,
        action: str,
        target: str,
        before: Json | None = None,
        after: Json | None = None,
        reason: str = "",
    ) -> None:
        """Write who does this, in the transaction that does it."""
        tx.add_audit(
            AuditEntry(
                tenant_id=self.tenant_id,
                actor=self.principal.actor,
                action=action,
                target=target,
                before=before,
                after=after,
                reason=reason,
            )
        )

    @contextmanager
    def begin(self) -> Iterator[tuple[Line, PgTx]]:
        """One transaction for the API's own statements and the relay's."""
        with direct.together(self.engine, self.tenant_id, self.principal.owner) as line:
            yield line, PgTx(line)

    def once(self, line: Line, key: str | None, request: bytes) -> Kept | None:
        """What was answered to this key before; None: nothing, and the key is ours until the transaction ends."""
        if key is None:
            return None
        mine = {"tenant_id": self.tenant_id, "actor": self.principal.actor, "key": key}
        if line.run(sql.CLAIM_KEY, {**mine, "request_hash": hashlib.sha256(request).digest()}):
            return None
        kept = _kept(line.one(sql.ANSWERED, mine), request)
        assert kept is not None
        return kept

    def answered(self, key: str | None, request: bytes) -> Kept | None:
        """The same as a question, for who must do something outside before he can keep an answer."""
        if key is None:
            return None
        return _kept(self.one(sql.ANSWERED, actor=self.principal.actor, key=key), request)

    def keep(self, line: Line, key: str | None, status: int, body: str) -> None:
        if key is not None:
            mine = {"tenant_id": self.tenant_id, "actor": self.principal.actor, "key": key}
            line.run(sql.KEEP_ANSWER, {**mine, "status": status, "body": body})


@dataclass(frozen=True, slots=True)
class Kept:
    status: int
    body: str


def _kept(row: Row | None, request: bytes) -> Kept | None:
    if row is None:
        return None
    if bytes(row["request_hash"]) != hashlib.sha256(request).digest():
        raise Refused("key_reused", "This Idempotency-Key was already used for another request. Use a new one.")
    return Kept(row["status"], row["body"])


def _membership(row: Row) -> Membership:
    return Membership(row["tenant_id"], row["tenant"], Role(row["role"]), row["is_super"])
