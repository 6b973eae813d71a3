"""Who is who in a tenant: me, members, machine tokens, and what everybody did."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import unquote
from uuid import UUID

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.openapi.params import Body, Path
from pydantic import Field

from shared.kernel.api import sql
from shared.kernel.api.desk import Desk
from shared.kernel.api.frame import Problem, creates, desk, operation, visitor
from shared.kernel.api.shapes import Asked, Cursor, Done, Key, Limit, Short, Told
from shared.kernel.auth import ANYBODY, MANAGES, Role, new_token, token_hash
from shared.kernel.db import jsonb
from shared.kernel.direct import Line
from shared.kernel.errors import Conflict, NotFound
from shared.kernel.model import Json
from shared.kernel.paging import LARGEST_PAGE, USUAL_PAGE

router = Router()  # type: ignore[no-untyped-call]

# What issuers call people: ids, mail addresses, `auth0|...`. The path carries it, perhaps percent-encoded.
SUBJECT = re.compile(r"[A-Za-z0-9_.@|:+=~-]{1,200}")
SubjectPath = Annotated[
    str,
    Path(
        max_length=600,
        description="Who: `sub` of the token",
        json_schema_extra={"pattern": f"^{SUBJECT.pattern}$", "minLength": 1, "maxLength": 200},  # of what is decoded
    ),
]
LAST_ADMIN = Conflict("last_admin", "A tenant needs at least one admin. Make someone else an admin first.")
TokenId = Annotated[UUID, Path(description="The token's id")]


class Tenant(Told):
    id: UUID
    name: str
    role: Role


class Me(Told):
    actor: str
    is_super_admin: bool
    tenants: list[Tenant]
    more_tenants: bool


class Member(Told):
    subject: str
    role: Role
    name: str | None
    added_by: str
    created_at: datetime


class Members(Told):
    members: list[Member]
    next: str | None


class PutMember(Asked):
    role: Role
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class Token(Told):
    """A machine token as it is known afterwards: without its secret."""

    id: UUID
    name: str
    role: Role
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class Tokens(Told):
    tokens: list[Token]
    next: str | None


class MakeToken(Asked):
    name: Short
    role: Role
    expires_in_days: Annotated[int, Field(ge=1, le=3650)] | None = None


class MemberInFull(Member):
    """`tokens`: what they made and is still in use, and what was made with that. It is revoked when they are removed."""

    tokens: list[Token]


class Revoked(Done):
    revoked_tokens: list[UUID]


class Made(Told):
    """The token is shown once. For a repeated request with the same key it is null: revoke that token and create another."""

    id: UUID
    token: str | None


class AuditLine(Told):
    id: int
    at: datetime
    actor: str
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str | None


class Audit(Told):
    lines: list[AuditLine]
    next: str | None


@operation(router, "GET", "/me", ANYBODY, tag="people")
def get_me() -> Me:
    """Who you are, and your tenants."""
    who = visitor(router)
    known = who.memberships[:LARGEST_PAGE]
    return Me(
        actor=who.actor,
        is_super_admin=any(each.is_super for each in known),
        tenants=[Tenant(id=each.tenant_id, name=each.tenant, role=each.role) for each in known],
        more_tenants=len(who.memberships) > len(known),
    )


@operation(router, "GET", "/members", MANAGES, tag="people")
def list_members(limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Members:
    """List members."""
    here = desk(router)
    pager = here.pager("members", {})
    place = pager.place(cursor)
    params = {"most": limit + 1, **({} if place is None else {"after_subject": place[0]})}
    rows = here.all(sql.list_members(after=place is not None), **params)
    page = [Member(**row) for row in rows[:limit]]
    return Members(members=page, next=pager.cursor([page[-1].subject]) if len(rows) > limit else None)


@operation(router, "GET", "/members/<subject>", MANAGES, tag="people")
def get_member(subject: SubjectPath) -> MemberInFull:
    """A member, with the tokens that are revoked when they are removed."""
    here, subject = desk(router), _subject(subject)
    row = here.one(sql.GET_MEMBER, subject=subject)
    if row is None:
        raise NotFound
    made = here.all(sql.TOKENS_MADE_BY, actor=f"user:{subject}")
    return MemberInFull(**row, tokens=[Token(**each) for each in made])


@operation(router, "PUT", "/members/<subject>", MANAGES, tag="people", refuses=[409, 429])
def put_member(subject: SubjectPath, asked: Annotated[PutMember, Body()]) -> Revoked:
    """Add a member, or change their role. Whoever is no longer an admin loses the tokens that they made."""
    here, subject = desk(router), _subject(subject)
    with here.begin() as (line, tx):
        before, is_last_admin = _locked(line, here, subject)
        if is_last_admin and asked.role is not Role.ADMIN:
            raise LAST_ADMIN
        if (
            before is None
            and line.run(sql.SOME_MEMBERS, {"tenant_id": here.tenant_id, "most": sql.MOST_MEMBERS}) >= sql.MOST_MEMBERS
        ):
            raise Problem(
                429, "too_many_members", f"This tenant already has {sql.MOST_MEMBERS} members. Remove some first."
            )
        after = {"role": str(asked.role), "name": asked.name}
        params = {"tenant_id": here.tenant_id, "subject": subject, "added_by": here.principal.actor, **after}
        line.run(sql.PUT_MEMBER, params)
        revoked = [] if asked.role is Role.ADMIN else _revoke_made_by(line, here, f"user:{subject}")
        here.audit(tx, "member.put", f"member:{subject}", before=before, after={**after, **_noted(revoked)})
    return Revoked(revoked_tokens=revoked)


@operation(router, "DELETE", "/members/<subject>", MANAGES, tag="people", refuses=[409])
def remove_member(subject: SubjectPath) -> Revoked:
    """Remove a member and revoke the tokens that they made. The last admin stays."""
    here, subject = desk(router), _subject(subject)
    with here.begin() as (line, tx):
        before, is_last_admin = _locked(line, here, subject)
        if before is None:
            raise NotFound
        if is_last_admin:
            raise LAST_ADMIN
        line.run(sql.REMOVE_MEMBER, {"tenant_id": here.tenant_id, "subject": subject})
        revoked = _revoke_made_by(line, here, f"user:{subject}")
        here.audit(tx, "member.remove", f"member:{subject}", before=before, after=_noted(revoked) or None)
    return Revoked(revoked_tokens=revoked)


@operation(router, "GET", "/tokens", MANAGES, tag="people")
def list_tokens(limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Tokens:
    """List tokens, newest first, including revoked and expired ones."""
    here = desk(router)
    pager = here.pager("tokens", {})
    place = pager.place(cursor)
    params = {"most": limit + 1, **({} if place is None else {"after_id": place[0]})}
    rows = here.all(sql.list_tokens(after=place is not None), **params)
    page = [Token(**row) for row in rows[:limit]]
    return Tokens(tokens=page, next=pager.cursor([str(page[-1].id)]) if len(rows) > limit else None)


@operation(router, "POST", "/tokens", MANAGES, tag="people", answers=creates(Made), refuses=[429])
def make_token(asked: Annotated[MakeToken, Body()], idempotency_key: Key = None) -> Response[str]:
    """Create a token. It is shown once.

    Only admins make tokens, and no role is above theirs: nobody can make one that may do more than he.
    """
    here, token = desk(router), new_token()
    with here.begin() as (line, tx):
        kept = here.once(line, idempotency_key, b"token:" + asked.model_dump_json().encode())
        if kept is not None:
            return Response(kept.status, "application/json", kept.body)
        if not _still_admin(line, here):
            raise Problem(403, "not_allowed", "This needs the role admin.")
        token_id = here.ports.chance.new_id()
        made = line.run(
            sql.MAKE_TOKEN,
            {
                "id": token_id, "tenant_id": here.tenant_id, "name": asked.name, "role": str(asked.role),
                "hash": token_hash(token), "created_by": here.principal.actor, "days": asked.expires_in_days,
                "most": sql.MOST_TOKENS, "most_kept": sql.MOST_KEPT_TOKENS,
            },
        )  # fmt: skip
        if not made:
            raise Problem(429, "too_many_tokens", sql.TOO_MANY_TOKENS)
        after = {"name": asked.name, "role": str(asked.role), "expires_in_days": asked.expires_in_days}
        here.audit(tx, "token.make", f"token:{token_id}", after=after)
        # What is kept for a repeated request must not hold the secret.
        here.keep(line, idempotency_key, 201, jsonb({"id": str(token_id), "token": None}))
    return Response(201, "application/json", jsonb({"id": str(token_id), "token": token}))


@operation(router, "DELETE", "/tokens/<token_id>", MANAGES, tag="people")
def revoke_token(token_id: TokenId) -> Revoked:
    """Revoke a token, and those that were made with it."""
    here = desk(router)
    with here.begin() as (line, tx):
        revoked = line.one(sql.REVOKE_TOKEN, {"tenant_id": here.tenant_id, "id": token_id})
        if revoked is None:
            raise NotFound
        children = _revoke_made_by(line, here, f"token:{token_id}")
        if revoked["just_now"] or children:
            here.audit(tx, "token.revoke", f"token:{token_id}", after=_noted(children) or None)
    return Revoked(revoked_tokens=children)


@operation(router, "GET", "/audit", MANAGES, tag="people")
def list_audit(limit: Limit = USUAL_PAGE, cursor: Cursor = None) -> Audit:
    """The audit log, newest first."""
    here = desk(router)
    pager = here.pager("audit", {})
    place = pager.place(cursor)
    params = {"most": limit + 1, **({} if place is None else {"after_id": place[0]})}
    rows = here.all(sql.list_audit(after=place is not None), **params)
    page = [AuditLine(**row) for row in rows[:limit]]
    return Audit(lines=page, next=pager.cursor([page[-1].id]) if len(rows) > limit else None)


def _subject(written: str) -> str:
    subject = unquote(written)
    if not SUBJECT.fullmatch(subject):
        raise Problem(422, "invalid", "path.subject: letters, digits and . @ | : + = ~ _ - only.")
    return subject


def _still_admin(line: Line, here: Desk) -> bool:
    """Whether the maker of a token is there until it is made. Super admins are nobody's to remove."""
    if here.principal.is_super:
        return True
    who, _, its_id = here.principal.actor.partition(":")
    row = line.one(sql.HOLD_TOKEN if who == "token" else sql.HOLD_MEMBER, {"tenant_id": here.tenant_id, "id": its_id})
    return row is not None and row["role"] == Role.ADMIN


def _revoke_made_by(line: Line, here: Desk, actor: str) -> list[UUID]:
    return line.scalars(sql.REVOKE_MADE_BY, {"tenant_id": here.tenant_id, "actor": actor})


def _noted(revoked: list[UUID]) -> Json:
    return {"revoked_tokens": [str(each) for each in revoked]} if revoked else {}


def _locked(line: Line, here: Desk, subject: str) -> tuple[Json | None, bool]:
    """The member as they are, and whether they are the tenant's last admin.

    The admins are locked first and in order: two who remove each other meet here, and the second finds himself alone.
    """
    admins = line.scalars(sql.LOCK_ADMINS, {"tenant_id": here.tenant_id})
    row = line.one(sql.LOCK_MEMBER, {"tenant_id": here.tenant_id, "subject": subject})
    return (None if row is None else {"role": row["role"], "name": row["name"]}), admins == [subject]
