"""Adds people with the rights of whoever deploys: a tenant's first person cannot be added by anyone else. Also the login that
the local cloud creates for whoever started it."""

from __future__ import annotations

import argparse
import getpass
import json
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from botocore.exceptions import BotoCoreError, ClientError

from infra.client.session import KEPT, Place, keep, log_in, read
from infra.local.cloud import Address
from infra.local.runs import TENANT
from infra.local.supervise import CloudError
from shared.kernel import aws, db
from shared.kernel.auth import Role
from shared.kernel.people import Person, add_person
from shared.kernel.redact import redact

LOCAL_USER, LOCAL_TENANT = "you@baton.local", "local"


@dataclass(frozen=True, slots=True)
class Stack:
    """A deployment, local or in AWS: its outputs, and clients to speak to it."""

    client: Callable[[str], Any]
    outputs: Mapping[str, str]

    @classmethod
    def named(cls, name: str) -> Stack:
        """By the credentials of the shell, as `aws` and `sam` would."""
        try:
            (found,) = aws.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
        except (ClientError, BotoCoreError) as error:
            raise CloudError(f"the stack {name} can't be read: {redact(str(error))}") from None
        return cls(aws.client, {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])})


def add_user(options: argparse.Namespace, address: Callable[[], Address], say: Callable[[str], None] = print) -> None:
    """A user of the pool, the tenant if there is none of this name, and the role in it."""
    if options.stack:
        stack = Stack.named(options.stack)
    else:
        here = address()
        stack = Stack(here.client, here.outputs)
    password, subject, client_id = None, options.subject, stack.outputs.get("UserPoolClientId")
    if subject is None:
        if client_id is None:
            raise CloudError(
                "this stack has no user pool. Give --subject: the `sub` of the person's tokens at your issuer"
            )
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", options.email):
            raise CloudError(f"{options.email!r} is not an email address")
        pool, pool_id = stack.client("cognito-idp"), stack.outputs["UserPoolId"]
        password = _password(options)
        if options.makes_password and (subject := _known(pool, pool_id, options.email)) is not None:
            password = None  # they have one, and did not ask for another
        else:
            subject = pool_user(pool, pool_id, options.email, password)
    person = {"tenant": options.tenant, "subject": subject, "role": options.role, "name": options.email}
    added = _invoke(stack, {**person, "super_admin": options.super_admin})
    made = {"password": password} if password and options.makes_password else {}
    if options.json:
        say(json.dumps({"subject": subject, "tenant_id": added["tenant_id"], "role": options.role, **made}))
        return
    say(
        f"{options.email} ({subject}) is now {'an' if options.role == 'admin' else 'a'} {options.role} of {options.tenant} ({added['tenant_id']})"
    )
    if made:
        say(f"password: {password}   (shown this once)")
    elif options.subject is None and password is None:
        say("They had a login already and keep its password. To set another, give it with --password-stdin.")
    if options.stack and client_id is not None:
        region = stack.client("cognito-idp").meta.region_name
        say(f"console:  {stack.outputs['ConsoleUrl']}")
        say(
            f"next:     baton login {options.email} --url {stack.outputs['ApiUrl']} --client-id {client_id} --region {region}"
        )


def _invoke(stack: Stack, person: Mapping[str, Any]) -> Any:
    function = stack.outputs["PeopleFunctionName"]
    answer = stack.client("lambda").invoke(FunctionName=function, Payload=json.dumps(person).encode())
    told = json.load(answer["Payload"])
    if "FunctionError" in answer:
        raise CloudError(f"{function} could not add the person: {redact(str(told.get('errorMessage', told)))}")
    return told


def _known(pool: Any, pool_id: str, email: str) -> str | None:
    """The subject of somebody who has a login already."""
    try:
        found = pool.admin_get_user(UserPoolId=pool_id, Username=email)
    except ClientError as error:
        if error.response["Error"]["Code"] != "UserNotFoundException":
            raise
        return None
    return _sub(found)


def _sub(user: Mapping[str, Any]) -> str:
    return str(next(each["Value"] for each in user["UserAttributes"] if each["Name"] == "sub"))


def pool_user(pool: Any, pool_id: str, email: str, password: str) -> str:
    """The subject of the pool's user, who is created if they don't exist; their password is set."""
    attributes = [{"Name": "email", "Value": email}, {"Name": "email_verified", "Value": "true"}]
    try:
        pool.admin_create_user(UserPoolId=pool_id, Username=email, MessageAction="SUPPRESS", UserAttributes=attributes)
    except ClientError as error:
        if error.response["Error"]["Code"] != "UsernameExistsException":
            raise
    pool.admin_set_user_password(UserPoolId=pool_id, Username=email, Password=password, Permanent=True)
    return _sub(pool.admin_get_user(UserPoolId=pool_id, Username=email))


def let_in(
    owner_url: str,
    subject: str,
    role: str,
    tenant: str,
    name: str,
    *,
    is_super: bool = False,
    new_tenant_id: UUID | None = None,
) -> UUID:
    engine = db.connect_engine(owner_url, pool="none", application_name="baton-people")
    try:
        person = Person(tenant=tenant, subject=subject, role=Role(role), name=name, super_admin=is_super)
        return add_person(engine, person, new_tenant_id)
    finally:
        engine.dispose()


def first_login(home: Path) -> None:
    """Whoever can read this folder can do everything to the cloud in it anyway: they get the login of a super admin."""
    address, place = Address.read(home), Place.of_cloud(home)
    if address is None or place is None:
        raise CloudError("no local cloud is running. Start one with `baton up`")
    password = read(home / KEPT).get("password") or _new_password()  # the same one after every `baton up`
    subject = pool_user(address.client("cognito-idp"), address.outputs["UserPoolId"], LOCAL_USER, password)
    let_in(address.database_url, subject, Role.ADMIN, LOCAL_TENANT, LOCAL_USER, is_super=True, new_tenant_id=TENANT)
    log_in(place, home / KEPT, LOCAL_USER, password)
    # For `baton console`; and the tenant that is meant, because a super admin may act in all.
    known = {"email": LOCAL_USER, "password": password, "tenant": str(TENANT)}
    keep(home / KEPT, {**read(home / KEPT), **known})


def _password(options: argparse.Namespace) -> str:
    options.makes_password = False
    if options.password_stdin:
        return sys.stdin.readline().rstrip("\n")
    if sys.stdin.isatty():
        given = getpass.getpass("password (leave empty to create one): ")
        if given:
            return given
    options.makes_password = True
    return _new_password()


def _new_password() -> str:
    """Of every kind of character that a pool may ask for."""
    return secrets.token_urlsafe(18) + "aA1-"


if __name__ == "__main__":
    first_login(Path(sys.argv[1]))
