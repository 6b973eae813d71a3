"""Adds people to tenants on behalf of whoever deploys: the first of a tenant can be added by nobody in it."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.kernel import db, direct
from shared.kernel.auth import Role
from shared.kernel.clock import new_id
from shared.kernel.entry import Context, Event, Handler
from shared.kernel.log import logger
from shared.kernel.log_json import logged
from shared.kernel.wrong import in_words

ADD_PERSON = sa.text("""
select add_person(:tenant, cast(:new_tenant as uuid), :subject, :role, :name, cast(:super_admin as boolean)) as tenant_id
""")

Word = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Person(BaseModel):
    """`tenant`: by name, created if there is none. `subject`: `sub` of the person's tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    tenant: Word
    subject: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@|:+=~-]{1,200}$")]
    role: Role = Role.ADMIN
    name: Word | None = None
    super_admin: Annotated[bool, Field(strict=True)] = False


class BadRequest(Exception):
    """The event is not a person; the message says why, by field."""


def add_person(engine: sa.Engine, person: Person, new_tenant_id: UUID | None = None) -> UUID:
    """The tenant's id. Asked again it changes the role and the name, and nothing else."""
    params = {**person.model_dump(mode="json"), "new_tenant": new_tenant_id or new_id()}

    def ask() -> UUID:
        with direct.alone(engine) as line:
            row = line.one(ADD_PERSON, params)
        assert row is not None
        found: UUID = row["tenant_id"]
        return found

    return db.again_if_disconnected(ask)


def people_handler(engine: sa.Engine) -> Handler:
    """Adds the person that the event describes; who may call the function decides who may do that."""

    def handler(event: Event, context: Context) -> dict[str, Any]:  # noqa: ARG001 - Lambda passes it
        person = read_person(event)
        tenant_id = add_person(engine, person)
        logger.info(
            "a person was added", extra={"tenant": str(tenant_id), "subject": person.subject, "role": person.role}
        )
        return {"tenant_id": str(tenant_id), "subject": person.subject, "role": str(person.role)}

    return logged(handler)


def read_person(event: Event) -> Person:
    try:
        return Person.model_validate(dict(event))
    except ValidationError as error:
        raise BadRequest(in_words(error, Person, whole="The event")) from None
