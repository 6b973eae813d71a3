"""Who asks, in which tenant, and what he may do. Nothing here trusts the request: tenant and role come from rows."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from shared.kernel.clock import read_id

TOKEN_PREFIX = "baton_"  # noqa: S105 - says what a token is, so that scanners of leaked secrets know ours


class Role(StrEnum):
    VIEWER = "viewer"  # sees the tenant's runs
    MEMBER = "member"  # starts runs, sees and moves its own
    ADMIN = "admin"  # everything of the tenant
    WORKER = "worker"  # a machine that takes jobs


# What an operation asks for. A super admin may do whatever an admin may, in every tenant.
READS = frozenset({Role.VIEWER, Role.MEMBER, Role.ADMIN})
STARTS = frozenset({Role.MEMBER, Role.ADMIN})
MANAGES = frozenset({Role.ADMIN})
WORKS = frozenset({Role.WORKER})
ANYBODY = frozenset(Role)
SUPERS: frozenset[Role] = frozenset()  # what belongs to no tenant: no role of one is enough


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody at work in one tenant."""

    actor: str
    tenant_id: UUID
    tenant: str
    role: Role
    is_super: bool = False

    @property
    def owner(self) -> str | None:
        """Whose runs alone are there for him; None: all of the tenant."""
        return self.actor if self.role is Role.MEMBER and not self.is_super else None

    def may(self, allowed: frozenset[Role]) -> bool:
        return self.role in allowed or (self.is_super and (Role.ADMIN in allowed or not allowed))


@dataclass(frozen=True, slots=True)
class Membership:
    tenant_id: UUID
    tenant: str
    role: Role
    is_super: bool


@dataclass(frozen=True, slots=True)
class Invitation:
    """A tenant that wants somebody, who has not said yes: until then it means nothing."""

    tenant_id: UUID
    tenant: str
    role: Role
    invited_by: str


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody we know, and the tenants where they may act."""

    actor: str
    memberships: list[Membership]
    invitations: list[Invitation]
    answer: Callable[[UUID, bool], bool]


class Unknown(Exception):
    """Nobody we know: no token, a wrong one, or one that is over."""


@dataclass
class Elsewhere(Exception):
    """Somebody we know, but not in this tenant, or in several without saying which."""

    code: str
    message: str


class Register(Protocol):
    """Where people and tokens are looked up before a tenant is known."""

    def memberships(self, subject: str) -> list[Membership]: ...
    def membership(self, subject: str, tenant_id: UUID) -> Membership | None: ...
    def invitations(self, subject: str) -> list[Invitation]: ...
    def answer_invitation(self, subject: str, tenant_id: UUID, accepts: bool) -> bool: ...
    def use_token(self, token_hash: bytes) -> tuple[UUID, Membership] | None: ...


def token_hash(token: str) -> bytes:
    """Tokens are 256 random bits: a plain hash cannot be guessed backwards."""
    return hashlib.sha256(token.encode()).digest()


def by_claims(claims: Mapping[str, Any] | None, wanted: str | None, register: Register) -> Principal:
    """A person whose token the HTTP API's authorizer has checked; `wanted` is the tenant he asks for."""
    subject = _subject(claims)
    if wanted is None:
        found = register.memberships(subject)
        if not found:
            raise Elsewhere(
                "no_tenant",
                "You aren't a member of any tenant yet. Accept an invitation (GET /me lists yours), or ask an admin for one.",
            )
        if len(found) > 1:
            raise Elsewhere("which_tenant", "You are a member of several tenants. Name one in the X-Tenant-Id header.")
        return _principal(f"user:{subject}", found[0])
    tenant_id = read_id(wanted)
    member = None if tenant_id is None else register.membership(subject, tenant_id)
    if member is None:
        raise Elsewhere("not_your_tenant", "You aren't a member of the tenant named in X-Tenant-Id.")
    return _principal(f"user:{subject}", member)


def by_machine_token(token: str | None, wanted: str | None, register: Register) -> Principal:
    """A machine: its token says its tenant, and the header may only agree."""
    token_id, member = _used(token, register)
    if wanted is not None and read_id(wanted) != member.tenant_id:
        raise Elsewhere("not_your_tenant", "This token doesn't belong to the tenant named in X-Tenant-Id.")
    return _principal(f"token:{token_id}", member)


def visitor_by_claims(claims: Mapping[str, Any] | None, register: Register) -> Visitor:
    subject = _subject(claims)
    return Visitor(
        f"user:{subject}",
        register.memberships(subject),
        register.invitations(subject),
        lambda tenant_id, accepts: register.answer_invitation(subject, tenant_id, accepts),
    )


def visitor_by_token(token: str | None, register: Register) -> Visitor:
    token_id, member = _used(token, register)
    return Visitor(f"token:{token_id}", [member], [], lambda *_: False)  # nobody invites a machine


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def _subject(claims: Mapping[str, Any] | None) -> str:
    subject = (claims or {}).get("sub")
    if not isinstance(subject, str) or not subject:
        raise Unknown
    return subject


def _used(token: str | None, register: Register) -> tuple[UUID, Membership]:
    found = register.use_token(token_hash(token)) if token and token.startswith(TOKEN_PREFIX) else None
    if found is None:
        raise Unknown
    return found


def _principal(actor: str, member: Membership) -> Principal:
    return Principal(actor, member.tenant_id, member.tenant, member.role, member.is_super)
