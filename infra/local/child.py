"""Guards that a local server is one guarded child: it has a log, it obeys its starter, and it never outlives it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from infra.local import guard, private

HOST = "127.0.0.1"
END_SECONDS = 30
FAST, IMMEDIATE, KILL = b"f", b"i", b"k"  # the orders of the guard


class Stops:
    """What `with` stops at its end."""

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Child:
    """A process under the guard; `log` collects what all its lives wrote."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._guard: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def launch(
        self, command: Sequence[str], *, uid: int = guard.OWN_ACCOUNT, env: Mapping[str, str] | None = None
    ) -> None:
        with private.open_file(self.log, "ab") as log:
            self._log_start = log.tell()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(uid), *command],
                cwd="/",
                env=env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                umask=private.UMASK,
                start_new_session=True,  # Ctrl-C is for the starter, which then ends the server in its own time
            )

    @property
    def running(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    @property
    def pid(self) -> int | None:
        """The pid of the process itself, not of its guard."""
        if self._guard is None or not self.running:
            return None
        return next(iter(guard.children(self._guard.pid)), None)

    def order(self, order: bytes) -> None:
        """End it in the way of `order`, and wait until it and all that it started are gone."""
        if self._guard is None:
            return
        assert self._guard.stdin is not None
        try:
            with self._guard.stdin as leash:
                leash.write(order)
        except BrokenPipeError:
            pass  # it has already ended
        self._guard.wait(END_SECONDS)
        self._guard = None

    def log_tail(self, lines: int = 20) -> str:
        """The end of what it wrote since its last start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """A port below those that the system gives to clients: a restart finds it free again."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
