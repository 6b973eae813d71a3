"""`python -m tests.releases.take v1.4`: keeps a release's code and its own tests of claim, commit and tick.

tests/integration/test_previous_release.py runs them on the schema of today: while a deployment goes on, the old functions
work on the new tables. An archive in the repository, because CI may have cloned nothing but the last commit.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ARCHIVE, COMMIT = HERE / "previous.tar.xz", HERE / "COMMIT"
KEPT = [
    "shared",
    "pyproject.toml",
    "tests/conftest.py",
    "tests/support",
    "tests/kinds/parcel",
    "tests/simulation/backends.py",
    "tests/simulation/memory_store.py",
    "tests/integration/conftest.py",
    "tests/integration/test_relay.py",
    "tests/integration/test_pull.py",
]


def main(release: str) -> None:
    commit = subprocess.run(["git", "rev-parse", f"{release}^{{commit}}"], capture_output=True, text=True, check=True)
    packed = subprocess.run(
        ["git", "archive", "--format=tar", commit.stdout.strip(), *KEPT], capture_output=True, check=True
    )
    ARCHIVE.write_bytes(lzma.compress(packed.stdout, preset=9))
    COMMIT.write_text(commit.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
