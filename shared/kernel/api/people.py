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


class Invitation(Told):
    id: UUID
    name: str
    role: Role
    invited_by: str


class Me(Told):
    """`invitations`: tenants that have added you. None of them counts before you accept it."""

    actor: str
    is_super_admin: bool
    tenants: list[Tenant]
    more_tenants: bool
    invitations: list[Invitation]


class AnswerInvitation(Asked):
    tenant_id: UUID
    accept: Annotated[bool, Field(strict=True)]


class Member(Told):
    """`accepted_at`: null while they have not accepted the invitation. Until then they have no access."""

    subject: str
    role: Role
    name: str | None
    added_by: str
    created_at: datetime
    accepted_at: datetime | None


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
    """`tokens`: what they made and is still in use, and what was made with that. It is revoked when they are removed.
    `invited`: whom they invited and who has not accepted. They are removed with them."""

    tokens: list[Token]
    invited: list[str]


class Revoked(Done):
    revoked_tokens: list[UUID]
    withdrawn_invitations: list[str]


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
        invitations=[
            Invitation(id=each.tenant_id, name=each.tenant, role=each.role, invited_by=each.invited_by)
            for each in who.invitations[:LARGEST_PAGE]
        ],
    )


@operation(router, "POST", "/me/invitations", ANYBODY, tag="people", refuses=[404])
def answer_invitation(asked: Annotated[AnswerInvitation, Body()]) -> Done:
    """Accept an invitation, and be a member from now on; or decline it."""
    if not visitor(router).answer(asked.tenant_id, asked.accept):
        raise NotFound
    return Done()


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
    invited = here.all(sql.INVITED_BY, actor=f"user:{subject}")
    return MemberInFull(**row, tokens=[Token(**each) for each in made], invited=[each["subject"] for each in invited])


@operation(router, "PUT", "/members/<subject>", MANAGES, tag="people", refuses=[409, 429])
def put_member(subject: SubjectPath, asked: Annotated[PutMember, Body()]) -> Revoked:
    """Invite someone, or change a member's role.

    An invitation counts once it is accepted. Whoever is no longer an admin loses the tokens that they made.
    """
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
        gone = Revoked(revoked_tokens=[], withdrawn_invitations=[])
        if asked.role is not Role.ADMIN:
            gone = _revoke_made_by(line, here, f"user:{subject}")
        here.audit(tx, "member.put", f"member:{subject}", before=before, after={**after, **_noted(gone)})
    return gone


@operation(router, "DELETE", "/members/<subject>", MANAGES, tag="people", refuses=[409])
def remove_member(subject: SubjectPath) -> Revoked:
    """Remove a member, revoke the tokens that they made and withdraw their invitations. The last admin stays."""
    here, subject = desk(router), _subject(subject)
    with here.begin() as (line, tx):
        before, is_last_admin = _locked(line, here, subject)
        if before is None:
            raise NotFound
        if is_last_admin:
            raise LAST_ADMIN
        line.run(sql.REMOVE_MEMBER, {"tenant_id": here.tenant_id, "subject": subject})
        gone = _revoke_made_by(line, here, f"user:{subject}")
        here.audit(tx, "member.remove", f"member:{subject}", before=before, after=_noted(gone) or None)
    return gone


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
        _refuse_who_was_removed(line, here)
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
        gone = _revoke_made_by(line, here, f"token:{token_id}")
        if revoked["just_now"] or _noted(gone):
            here.audit(tx, "token.revoke", f"token:{token_id}", after=_noted(gone) or None)
    return gone


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


def _refuse_who_was_removed(line: Line, here: Desk) -> None:
    """Whoever makes a way in is an admin until it is made: else nobody would find it who removes them meanwhile.

    Super admins are nobody's to remove.
    """
    if here.principal.is_super:
        return
    who, _, its_id = here.principal.actor.partition(":")
    row = line.one(sql.HOLD_TOKEN if who == "token" else sql.HOLD_MEMBER, {"tenant_id": here.tenant_id, "id": its_id})
    if row is None or row["role"] != Role.ADMIN:
        raise Problem(403, "not_allowed", "This needs the role admin.")


def _revoke_made_by(line: Line, here: Desk, actor: str) -> Revoked:
    """By any way in that they made: their tokens, what was made with these, and people who could still accept."""
    whose = {"tenant_id": here.tenant_id, "actor": actor}
    return Revoked(
        revoked_tokens=line.scalars(sql.REVOKE_MADE_BY, whose),
        withdrawn_invitations=sorted(line.scalars(sql.WITHDRAW_INVITED_BY, whose)),
    )


def _noted(gone: Revoked) -> Json:
    said = gone.model_dump(mode="json", include={"revoked_tokens", "withdrawn_invitations"})
    return {name: found for name, found in said.items() if found}


def _locked(line: Line, here: Desk, subject: str) -> tuple[Json | None, bool]:
    """The member as they are, and whether they are the tenant's last admin.

    The admins are locked first and in order: two who remove each other meet here, and the second finds nobody else left. Then
    whoever asks, and last the member: revoking a token goes the same way.
    """
    admins = line.scalars(sql.LOCK_ADMINS, {"tenant_id": here.tenant_id})
    _refuse_who_was_removed(line, here)
    row = line.one(sql.LOCK_MEMBER, {"tenant_id": here.tenant_id, "subject": subject})
    return (None if row is None else {"role": row["role"], "name": row["name"]}), admins == [subject]
