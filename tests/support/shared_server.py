"""One Postgres for all processes of a test run: whoever hands out the tests starts it while they are collected."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import scratch_directory, server_admin

KEY = "postgres"
PATIENCE_S = 300


class SharedServer:
    """A plugin of the process that starts the others. Each of them is told of a file, and finds there how to reach the server."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._note = self._open.enter_context(scratch_directory()) / "postgres.json"
        self._start = threading.Thread(target=self._begin)
        self._start.start()

    def _begin(self) -> None:
        try:
            admin = self._open.enter_context(server_admin())
            said = {"url": admin.url("postgres"), "template": admin.create_template()}
        except Exception as error:
            said = {"error": str(error)}
        self._note.with_suffix(".new").write_text(json.dumps(said))
        self._note.with_suffix(".new").rename(self._note)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[KEY] = str(self._note)

    def pytest_unconfigure(self) -> None:
        self._start.join()
        self._open.close()


def shared_by(config: pytest.Config) -> tuple[str, str] | None:
    """The URL and the template of the server that a process was told of; of one that was told nothing, None."""
    note = getattr(config, "workerinput", {}).get(KEY)
    if note is None:
        return None
    until = time.monotonic() + PATIENCE_S
    while not Path(note).exists():
        assert time.monotonic() < until, "nobody has started Postgres"
        time.sleep(0.05)
    said = json.loads(Path(note).read_text())
    if "error" in said:
        pytest.fail(said["error"], pytrace=False)
    return said["url"], said["template"]
