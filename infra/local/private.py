"""Guards that what a local cloud keeps is its owner's alone: files nobody else can read, and a password per database role."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa

UMASK = 0o077
ROLES = ("baton_worker", "baton_api", "baton_people")


def folder(path: Path, *, passable: bool = False) -> Path:
    """Made if need be, for nobody else. `passable`: others may go through it, and still not see what is in it; Postgres
    under another account must."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o711 if passable else 0o700)
    return path


def home(path: Path) -> Path:
    """The folder of a cloud."""
    return folder(path, passable=os.geteuid() == 0)


def open_file(path: Path, mode: str) -> IO[Any]:
    """Born with 0600; an older one that others could read is closed to them now."""
    opened = open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - Path has no opener
    os.fchmod(opened.fileno(), 0o600)
    return opened


def secret(path: Path) -> str:
    """The secret in a file, made the first time."""
    if not path.exists():
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        with open_file(part, "x") as file:
            file.write(secrets.token_hex(24))
        part.rename(path)
    return path.read_text()


def password_of(role: str, superuser_password: str) -> str:
    """One way only: a function that knows its own password cannot work out the superuser's."""
    return hmac.new(superuser_password.encode(), role.encode(), "sha256").hexdigest()


def url_as(url: str, role: str) -> str:
    """The same database for another role, with that role's own password; without one where the url has none."""
    where = sa.make_url(url)
    password = None if where.password is None else password_of(role, str(where.password))
    other = sa.URL.create(where.drivername, role, password, where.host, where.port, where.database, where.query)
    return other.render_as_string(hide_password=False)


def give_passwords(superuser_url: str) -> None:
    """After a migration: the roles that it made get the passwords that `url_as` says. Nothing to do without passwords."""
    from infra.migrations.at_deploy import scram_verifier  # noqa: PLC0415 - only who starts a server pays for it
    from infra.migrations.run import open_engine  # noqa: PLC0415

    password = sa.make_url(superuser_url).password
    if password is None:
        return
    with open_engine(superuser_url).begin() as connection:
        known = connection.scalars(sa.text("select rolname from pg_roles")).all()
        for role in ROLES:
            if role in known:
                verifier = scram_verifier(password_of(role, str(password)))
                connection.exec_driver_sql(f"alter role {role} password '{verifier}'")
