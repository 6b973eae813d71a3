"""The real ports, built from the environment. What is missing or makes no sense is named by its variable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from pydantic import Field

from shared.kernel import aws, db
from shared.kernel.metrics_emf import NAMESPACE, EmfMeter
from shared.kernel.offers import PgOffers
from shared.kernel.ports import Ports
from shared.kernel.queue import Queue
from shared.kernel.settings import BadSettings, Relay, Settings
from shared.kernel.store import PgStore

PREFIX = "BATON_DB_"


class Database(Settings):
    """Where Postgres is, unless DATABASE_URL says it all: BATON_DB_SECRET_ARN or BATON_DB_IAM, and the rest.

    BATON_DB_USER names who enters, and wins over the url and the secret.
    """

    secret_arn: str | None = None
    iam: bool = False
    host: str | None = None
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    user: str | None = None
    name: str | None = None
    ca_file: str | None = None
    pool: Annotated[
        Literal["one", "none"],
        Field(
            description="`one` keeps a connection between calls; `none`, behind RDS Proxy or PgBouncer, makes one for each"
        ),
    ] = "one"


def live_ports(env: Mapping[str, str] = os.environ, engine: sa.Engine | None = None) -> Ports:
    """What a deployed function works with. The queue and the database are called only when they are first needed.

    A kind that has statements of its own shares its `engine` with the relay: a process has one connection.
    """
    engine = engine or live_engine(env)
    return Ports(
        store=PgStore(engine),
        offers=PgOffers(engine),
        queue=live_queue(env, engine),
        meter=EmfMeter(env.get("POWERTOOLS_METRICS_NAMESPACE", NAMESPACE)),
        relay=Relay.from_env(env),
        pause=time.sleep,
    )


def live_engine(env: Mapping[str, str] = os.environ) -> sa.Engine:
    url, password = live_url(env)
    name = env.get("AWS_LAMBDA_FUNCTION_NAME", "baton")[:63]
    pool = Database.from_env(env, PREFIX).pool
    return db.connect_engine(url, pool=pool, application_name=name, password=password)


def live_url(env: Mapping[str, str]) -> tuple[str, Callable[[], str] | None]:
    """Where Postgres is and who enters, and the password of the moment unless the url holds it."""
    settings = Database.from_env(env, PREFIX)
    if url := env.get("DATABASE_URL"):
        return (url if settings.user is None else db.as_user(url, settings.user)), None
    if settings.secret_arn is not None:
        return _by_secret(settings, settings.secret_arn)
    if settings.iam:
        return _by_iam(settings)
    raise BadSettings(f"DATABASE_URL, {PREFIX}SECRET_ARN or {PREFIX}IAM must say how to reach Postgres")


def live_queue(env: Mapping[str, str], engine: sa.Engine) -> Queue:
    """BATON_QUEUE=postgres: batons travel through the database, for workers that do the steps of every kind."""
    if env.get("BATON_QUEUE") == "postgres":
        from shared.kernel.queue_postgres import PgQueue  # noqa: PLC0415 - not in AWS

        return PgQueue(engine)
    # botocore is most of what a cold start imports: nothing but a deployed function should wait for it.
    from shared.kernel.queue_sqs import SqsQueue  # noqa: PLC0415

    # A send that does not answer soon is the tick's to repeat; a step's own time is too short to wait for it.
    return SqsQueue(aws.LaterClient("sqs", connect_s=2, read_s=5, attempts=2))


def _by_secret(settings: Database, arn: str) -> tuple[str, Callable[[], str]]:
    """The secret is read again for every new connection, because it may have been rotated."""

    def read() -> dict[str, Any]:
        return aws.secret(arn)

    if settings.host is None or settings.name is None or settings.user is None:
        secret = read()
        settings = settings.model_copy(
            update={
                "host": settings.host or secret.get("host"),
                "port": settings.port or secret.get("port"),
                "user": settings.user or secret.get("username"),
                "name": settings.name or secret.get("dbname"),
            }
        )
    return _url(settings, "the secret does not name it"), lambda: str(read()["password"])


def _by_iam(settings: Database) -> tuple[str, Callable[[], str]]:
    """A token lives for 15 minutes and opens one connection: each gets its own."""
    url = _url(settings, f"{PREFIX}IAM needs it")
    client = aws.client("rds")

    def token() -> str:
        return str(
            client.generate_db_auth_token(
                DBHostname=settings.host, Port=settings.port or 5432, DBUsername=settings.user
            )
        )

    return url, token


def _url(settings: Database, why: str) -> str:
    missing = [PREFIX + field.upper() for field in ("host", "user", "name") if not getattr(settings, field)]
    if missing:
        raise BadSettings(f"{', '.join(missing)} must be set: {why}")
    trusted = {"sslrootcert": settings.ca_file} if settings.ca_file else {}
    where = sa.URL.create(
        "postgresql", settings.user, None, settings.host, settings.port or 5432, settings.name, trusted
    )
    return where.render_as_string(hide_password=False)
