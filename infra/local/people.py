"""People, with the owner's rights: the first of a tenant cannot be let in by anybody else. Also the login that the local
cloud gives to whoever started it."""

from __future__ import annotations

import argparse
import getpass
import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from botocore.exceptions import ClientError

from infra.client.session import KEPT, Place, keep, log_in, read
from infra.local.cloud import Address
from infra.local.runs import TENANT
from infra.local.supervise import CloudError
from shared.kernel import aws, db
from shared.kernel.api.sql import PUT_MEMBER
from shared.kernel.auth import Role
from shared.kernel.clock import new_id

LOCAL_USER, LOCAL_TENANT = "you@baton.local", "local"

TENANT_NAMED = sa.text("select id from tenant where name = :name order by created_at limit 1")
ADD_TENANT = sa.text("insert into tenant (id, name) values (:id, :name) on conflict (id) do nothing")
ADD_SUPER_ADMIN = sa.text("insert into super_admin (subject) values (:subject) on conflict do nothing")


def add_user(options: argparse.Namespace, address: Callable[[], Address], say: Callable[[str], None] = print) -> None:
    """A user of the pool, the tenant if there is none of this name, and the role in it."""
    password = None
    if options.owner_url:
        pool, owner_url = aws.client("cognito-idp"), options.owner_url
        pool_id = options.user_pool
    else:
        here = address()
        pool, pool_id, owner_url = here.client("cognito-idp"), here.outputs["UserPoolId"], here.database_url
    subject = options.subject
    if subject is None:
        if not pool_id:
            raise CloudError("say who it is: --user-pool (the output UserPoolId), or --subject for another issuer")
        password = _password(options)
        subject = pool_user(pool, pool_id, options.email, password)
    tenant_id = let_in(owner_url, subject, options.role, options.tenant, options.email, is_super=options.super_admin)
    if options.json:
        told = {"subject": subject, "tenant_id": str(tenant_id), "role": options.role}
        say(json.dumps({**told, **({"password": password} if password and options.makes_password else {})}))
    else:
        say(f"{options.email} ({subject}) is {options.role} of {options.tenant} ({tenant_id})")
        if password is not None and options.makes_password:
            say(f"password: {password}   (shown this once)")


def pool_user(pool: Any, pool_id: str, email: str, password: str) -> str:
    """The subject of the pool's user, who is made if he is not there; his password is set."""
    attributes = [{"Name": "email", "Value": email}, {"Name": "email_verified", "Value": "true"}]
    try:
        pool.admin_create_user(UserPoolId=pool_id, Username=email, MessageAction="SUPPRESS", UserAttributes=attributes)
    except ClientError as error:
        if error.response["Error"]["Code"] != "UsernameExistsException":
            raise
    pool.admin_set_user_password(UserPoolId=pool_id, Username=email, Password=password, Permanent=True)
    found = pool.admin_get_user(UserPoolId=pool_id, Username=email)
    return str(next(each["Value"] for each in found["UserAttributes"] if each["Name"] == "sub"))


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
        with engine.begin() as connection:
            tenant_id: UUID = connection.scalar(TENANT_NAMED, {"name": tenant}) or new_tenant_id or new_id()
            connection.execute(ADD_TENANT, {"id": tenant_id, "name": tenant})
            member = {"tenant_id": tenant_id, "subject": subject, "role": role, "name": name, "added_by": "owner"}
            connection.execute(PUT_MEMBER, member)
            if is_super:
                connection.execute(ADD_SUPER_ADMIN, {"subject": subject})
    finally:
        engine.dispose()
    return tenant_id


def first_login(home: Path) -> None:
    """Whoever can read this folder can do everything to the cloud in it anyway: he gets an admin's login."""
    address, place = Address.read(home), Place.of_cloud(home)
    if address is None or place is None:
        raise CloudError("nothing is up. `baton up` starts it")
    password = _new_password()
    subject = pool_user(address.client("cognito-idp"), address.outputs["UserPoolId"], LOCAL_USER, password)
    let_in(address.database_url, subject, Role.ADMIN, LOCAL_TENANT, LOCAL_USER, new_tenant_id=TENANT)
    log_in(place, home / KEPT, LOCAL_USER, password)
    keep(home / KEPT, {**read(home / KEPT), "email": LOCAL_USER, "password": password})  # for `baton console`


def _password(options: argparse.Namespace) -> str:
    options.makes_password = False
    if options.password_stdin:
        return sys.stdin.readline().rstrip("\n")
    if sys.stdin.isatty():
        given = getpass.getpass("password (empty: one is made): ")
        if given:
            return given
    options.makes_password = True
    return _new_password()


def _new_password() -> str:
    """Of every kind of character that a pool may ask for."""
    return secrets.token_urlsafe(18) + "aA1-"


if __name__ == "__main__":
    first_login(Path(sys.argv[1]))
