"""One migrated Postgres for all processes of a test run: whoever hands out the tests prepares it, and each process starts a copy.

A server of one's own, because some of what a server does is for all of its databases: roles, and the oldest transaction that
is still open, for which exports wait.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.local.postgres import Postgres
from tests.support.databases import ServerAdmin, scratch_directory

KEY = "prepared"
PATIENCE_S = 300


class PreparedServer:
    """A plugin of the process that starts the others: each of them is told of a file, and finds there what was prepared."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._folder = self._open.enter_context(scratch_directory())
        self._start = threading.Thread(target=self._prepare)
        self._start.start()

    def _prepare(self) -> None:
        try:
            with Postgres.start(self._folder / "postgres") as server:
                admin = ServerAdmin(server.url())
                said = {"directory": str(server.directory), "template": admin.create_template()}
                admin.leave()
        except Exception as error:
            said = {"error": str(error)}
        new = self._folder / "new"
        new.write_text(json.dumps(said))
        new.rename(self._folder / KEY)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[KEY] = str(self._folder / KEY)

    def pytest_unconfigure(self) -> None:
        self._start.join()
        self._open.close()


def prepared_for(config: pytest.Config) -> dict[str, str] | None:
    """`directory` and `template`, once they are there; None in a process that was told of nothing."""
    note = getattr(config, "workerinput", {}).get(KEY)
    if note is None or os.environ.get("DATABASE_URL"):
        return None
    until = time.monotonic() + PATIENCE_S
    while not Path(note).exists():
        assert time.monotonic() < until, "nobody has prepared Postgres"
        time.sleep(0.05)
    said: dict[str, str] = json.loads(Path(note).read_text())
    if "error" in said:
        pytest.fail(said["error"], pytrace=False)
    return said


@contextmanager
def copied_server(directory: str) -> Iterator[ServerAdmin]:
    with scratch_directory() as path:
        # With its owner: the server has an account of its own where root starts it.
        subprocess.run(["cp", "-a", directory, path / "postgres"], check=True)
        with Postgres.start(path / "postgres") as server:
            admin = ServerAdmin(server.url())
            yield admin
            admin.close()
