"""Which revision is the newest, by the names of the files: the API asks, and Alembic takes long to import."""

from __future__ import annotations

from pathlib import Path

VERSIONS = Path(__file__).resolve().parent / "versions"


def newest_revision(versions: Path = VERSIONS) -> str:
    return max(path.name.partition("_")[0] for path in versions.glob("[0-9]*_*.py"))
