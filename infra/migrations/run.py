"""Guards that a database has the newest schema: the same call for tests, for the local cloud and for a deployment.

Each revision is committed by itself. What stopped half-way goes on with the revision that it was at, when it is asked again.
"""

from __future__ import annotations

import time
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from infra.migrations.head import VERSIONS, newest_revision
from shared.kernel import db

HERE = Path(__file__).resolve().parent
LOCK_TIMEOUT_S = 3
PAUSE_S = 2.0  # whoever had to wait for us is let through
WITHIN_S = 270.0
LOCK_NOT_AVAILABLE, CANCELED = "55P03", "57014"


class Unfinished(Exception):
    """Not all revisions were applied; those that were stay. The message says what to do."""


def migrate(url: str, versions: Path = VERSIONS, within_s: float = WITHIN_S) -> str | None:
    """Bring the database at `url` to the newest revision of the folder `versions`.

    One that a newer release has migrated is left alone, for this code works with it: its revision is the answer.
    """
    ends = time.monotonic() + within_s
    while True:
        try:
            _upgrade(url, versions, ends)
        except CommandError:  # it knows no such revision
            found = _revision(url)
            if found is None or found <= newest_revision(versions):
                raise
            return found
        except sa.exc.DBAPIError as error:
            state = db.sqlstate(error)
            if state == LOCK_NOT_AVAILABLE and time.monotonic() + PAUSE_S + LOCK_TIMEOUT_S < ends:
                time.sleep(PAUSE_S)
                continue
            if state == LOCK_NOT_AVAILABLE:
                raise Unfinished(
                    f"The schema is at {_reached(url)}. The next revision needs a table that other transactions did not let go "
                    f"of within {within_s:.0f} s; nothing of it was written. Deploy again once they have ended: "
                    "select pid, xact_start, application_name from pg_stat_activity where state <> 'idle' order by 2"
                ) from error
            if state == CANCELED:
                raise Unfinished(
                    f"The schema is at {_reached(url)}. The next revision was stopped when the {within_s:.0f} s for all of them were "
                    "over; nothing of it was written but what is built concurrently. Deploy again to go on from there."
                ) from error
            raise
        return None


def within(ends: float) -> str:
    """No statement from here on goes on beyond `ends`, on this process's clock."""
    return f"set statement_timeout = {int(max(1.0, ends - time.monotonic()) * 1000)}"


def _upgrade(url: str, versions: Path, ends: float) -> None:
    # As attributes: a `%` in a password means nothing special.
    config = Config(attributes={"url": url, "ends": ends})
    config.set_main_option("script_location", _literal(HERE))
    config.set_main_option("version_locations", _literal(versions))
    config.set_main_option("path_separator", "newline")
    command.upgrade(config, "head")


def _reached(url: str) -> str:
    found = _revision(url)
    return "no revision" if found is None else f"revision {found}"


def _revision(url: str) -> str | None:
    with open_engine(url).connect() as connection:
        known = connection.exec_driver_sql("select to_regclass('public.alembic_version') is not null").scalar_one()
        row = connection.exec_driver_sql("select version_num from public.alembic_version").first() if known else None
    return None if row is None else str(row[0])


def open_engine(url: str) -> sa.Engine:
    """The plain driver, which takes whole scripts, with the same verified TLS as the functions."""
    where = db.location(url)
    socket = {name: value for name, value in where.query.items() if name == "unix_sock"}
    tls = {"ssl_context": db.tls_for(where)}
    return sa.create_engine(where.set(query=socket), connect_args=tls, poolclass=sa.NullPool)


def _literal(path: Path) -> str:
    return str(path).replace("%", "%%")
