"""Guards that a database has the newest schema: the same call for tests, for the local cloud and for a deployment."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from infra.migrations.head import VERSIONS
from shared.kernel import db

HERE = Path(__file__).resolve().parent


def migrate(url: str, versions: Path = VERSIONS) -> None:
    """Bring the database at `url` to the newest revision of the folder `versions`."""
    config = Config(attributes={"url": url})  # as an attribute: a `%` in a password means nothing special
    config.set_main_option("script_location", _literal(HERE))
    config.set_main_option("version_locations", _literal(versions))
    config.set_main_option("path_separator", "newline")
    command.upgrade(config, "head")


def open_engine(url: str) -> sa.Engine:
    """The plain driver, which takes whole scripts, with the same verified TLS as the functions."""
    where = db.location(url)
    socket = {name: value for name, value in where.query.items() if name == "unix_sock"}
    tls = {"ssl_context": db.tls_for(where)}
    return sa.create_engine(where.set(query=socket), connect_args=tls, poolclass=sa.NullPool)


def _literal(path: Path) -> str:
    return str(path).replace("%", "%%")
