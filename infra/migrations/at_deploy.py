"""Brings a deployment's database up to date: the schema, then how the functions' roles may enter.

The function that calls this has the owner's way in (DATABASE_URL or BATON_DB_*, as everywhere). The roles enter by IAM
if BATON_ROLES_IAM is true, and by the passwords in the secrets that `SECRETS` lists, where they are named.
Neither is named for a database whose roles are somebody else's to manage.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping

import orjson
import sqlalchemy as sa
from scramp import ScramMechanism

from infra.migrations.head import newest_revision
from infra.migrations.run import WITHIN_S, migrate, open_engine
from shared.kernel import aws, db
from shared.kernel.clock import new_id
from shared.kernel.live import live_url
from shared.kernel.log import logger
from shared.kernel.settings import BadSettings

SECRETS = {
    "baton_worker": "BATON_WORKER_SECRET_ARN",
    "baton_api": "BATON_API_SECRET_ARN",
    "baton_people": "BATON_PEOPLE_SECRET_ARN",
}

FOUND = sa.text("select version_num from public.alembic_version")
HAS_SMOKE = sa.text("select exists (select from job_definitions where key = 'smoke')")
DEFINE_SMOKE = sa.text("select put_job_definition('deployment', cast(:definition as jsonb))")
SMOKE = {
    "key": "smoke",
    "description": "Says that it ran: what `baton smoke` starts",
    "command": "smoke",
    "arg_schema": {"type": "object", "properties": {}, "additionalProperties": False},
    "timeout_seconds": 60,
    "max_attempts": 3,
    "queue": "default",
    "executor": "lambda",
    "concurrency_limit": None,
    "is_active": True,
    "version": 1,
}
HAS_IAM = sa.text("select exists (select from pg_roles where rolname = 'rds_iam')")


def bring_up_to_date(within_s: float = WITHIN_S, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Idempotent; answers the revision that the database has now. Settings are checked first: no other function changes before
    this one is done, so what makes no sense is refused with the whole deployment, and reaches none of them."""
    # Whoever only wants a verifier (a local server does) need not know all functions.
    from functions.catalogue import all_settings  # noqa: PLC0415
    from shared.kernel.settings import check_settings  # noqa: PLC0415

    check_settings(env, all_settings())
    url, password = live_url(env)
    if password is not None:
        url = db.location(url).set(password=password()).render_as_string(hide_password=False)
    migrate(url, within_s=within_s)
    engine = open_engine(url)
    with engine.begin() as connection:
        _let_in(connection, env)
        _define_smoke(connection)
        revision = str(connection.execute(FOUND).scalar_one())
    logger.info("the schema is up to date", extra={"revision": revision, "newest": newest_revision()})
    return {"Revision": revision}


def _let_in(connection: sa.Connection, env: Mapping[str, str]) -> None:
    if env.get("BATON_ROLES_IAM") == "true":
        if not connection.execute(HAS_IAM).scalar_one():
            raise BadSettings("DatabaseIamAuth is true, but this database has no role rds_iam: is it RDS or Aurora?")
        connection.exec_driver_sql("grant rds_iam to baton_worker, baton_api, baton_people")
        return
    for role, name in SECRETS.items():
        if arn := env.get(name):
            # Hashed here, so that the password itself is in no statement that a server may log.
            verifier = scram_verifier(str(aws.secret(arn)["password"]))
            connection.exec_driver_sql(f"alter role {role} password '{verifier}'")


def _define_smoke(connection: sa.Connection) -> None:
    """The job that `baton smoke` runs, in every deployment and once. By the way of super admins, of whom the deployment is
    one until this transaction ends."""
    if connection.execute(HAS_SMOKE).scalar_one():
        return
    connection.exec_driver_sql("set local role baton_owner")
    connection.exec_driver_sql("insert into super_admin (subject) values ('deployment')")
    written = connection.execute(DEFINE_SMOKE, {"definition": orjson.dumps({**SMOKE, "id": str(new_id())}).decode()})
    assert written.scalar_one(), "the definition of the smoke job was not written"
    connection.exec_driver_sql("delete from super_admin where subject = 'deployment'")
    connection.exec_driver_sql("reset role")


def scram_verifier(password: str, salt: str | None = None) -> str:
    """A password as Postgres keeps it: only letters, digits and `$:+/=-`, so it may stand in a statement."""
    given = None if salt is None else base64.b64decode(salt)
    salted, stored, server, rounds = ScramMechanism("SCRAM-SHA-256").make_auth_info(password, salt=given)
    told = [base64.b64encode(part).decode() for part in (salted, stored, server)]
    return f"SCRAM-SHA-256${rounds}:{told[0]}${told[1]}:{told[2]}"
