"""Guards that a database has the newest schema: the same call for tests, for the local cloud and for a deployment."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

HERE = Path(__file__).resolve().parent
VERSIONS = HERE / "versions"


def migrate(url: str, versions: Path = VERSIONS) -> None:
    """Bring the database at `url` to the newest revision of the folder `versions`."""
    config = Config(attributes={"url": url})  # as an attribute: a `%` in a password means nothing special
    config.set_main_option("script_location", _literal(HERE))
    config.set_main_option("version_locations", _literal(versions))
    config.set_main_option("path_separator", "newline")
    command.upgrade(config, "head")


def _literal(path: Path) -> str:
    return str(path).replace("%", "%%")
