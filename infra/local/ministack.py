"""Guards that the local AWS is one call away: MiniStack on a free loopback port, with an environment of its own, gone with its starter."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Self

import urllib3

from infra.local import guard, private
from infra.local.child import HOST, KILL, Child, Stops, free_port
from shared.kernel.aws import DEFAULT_REGION

START_SECONDS = 60
PORT_ATTEMPTS = 10
ROOT = Path(__file__).resolve().parents[2]
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH")


class MiniStackError(RuntimeError):
    """The local AWS cannot do what was asked; the message says what to do."""


class MiniStack(Stops):
    """One running MiniStack. It keeps nothing: after an end of any kind it starts empty, on the same port."""

    def __init__(self, directory: Path, *, enforce_iam: bool = False) -> None:
        self.directory = directory
        self.access_key = f"BATON{secrets.token_hex(16).upper()}"  # no account number, so it is the default account's
        self.port = 0
        self._enforce_iam = enforce_iam
        self._child = Child(directory / "ministack.log")

    @classmethod
    def start(cls, directory: Path, *, port: int | None = None, enforce_iam: bool = False) -> Self:
        """`enforce_iam`: every call needs the permission that it would need in AWS."""
        cloud = cls(directory, enforce_iam=enforce_iam)
        for folder in ("", "tmp", "s3", "state"):
            private.folder(directory / folder)
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            cloud.port = port or free_port()
            try:
                cloud.launch()
            except MiniStackError:
                if port is None and attempts_left and "already in use" in cloud.log_tail():
                    continue
                raise
            break
        return cloud

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self._child.running

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def workers(self, function: str) -> list[int]:
        """The processes that run a function's code, if there are any now."""
        return workers(self.pid, function)

    def stop(self) -> None:
        """It has nothing to write down, so it is killed, and what it started with it."""
        self._child.order(KILL)

    def crash(self) -> None:
        """What kill -9 does to it: queues, functions and stacks are gone."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGKILL)
        self.stop()

    def launch(self) -> None:
        """Start (again), empty, on the same port."""
        self._child.launch([sys.executable, "-m", "infra.local.guarded_ministack"], env=self._environment())
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def log_tail(self, lines: int = 20) -> str:
        return self._child.log_tail(lines)

    def _environment(self) -> dict[str, str]:
        # Functions inherit what MiniStack has: a DATABASE_URL or an AWS profile of the shell must not reach them.
        return {name: os.environ[name] for name in INHERITED if name in os.environ} | {
            "BIND_HOST": HOST,  # its default is every interface
            "IOT_MTLS_ENABLED": "0",  # else a second listener, on every interface
            "GATEWAY_PORT": str(self.port),
            "LOG_LEVEL": "WARNING",
            "AUTH": str(self._enforce_iam).lower(),
            "MINISTACK_REGION": DEFAULT_REGION,
            "AWS_DEFAULT_REGION": DEFAULT_REGION,
            "TMPDIR": str(self.directory / "tmp"),
            "S3_DATA_DIR": str(self.directory / "s3"),
            "STATE_DIR": str(self.directory / "state"),
            "PYTHONPATH": str(ROOT),  # the guard's own module; `python -m` would only look where it is started
            **credentials(self.access_key),
            # Functions get the account's number as their key, and this beside it. Where IAM is enforced each gets a
            # session of its role, which the emulator itself checks.
            **({} if self._enforce_iam else {"AWS_SESSION_TOKEN": self.access_key}),
        }

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not answers(f"{self.url}/_ministack/health"):
            if not self.running:
                raise self._failure("MiniStack ended while it was starting")
            if time.monotonic() > deadline:
                raise self._failure(f"MiniStack did not answer within {START_SECONDS} seconds")
            time.sleep(0.05)
        if not self.running:  # then somebody else answered
            raise self._failure("MiniStack ended while it was starting: the port is already in use")

    def _failure(self, what: str) -> MiniStackError:
        return MiniStackError(
            f"{what} on {self.url}. `make setup` installs it; choose another port if this one is taken. "
            f"Its last output:\n{self.log_tail()}"
        )


def workers(ministack: int | None, function: str) -> list[int]:
    """The processes that run a function's code now, by the pid of their MiniStack."""
    children = guard.children(ministack) if ministack else []
    return [child for child in children if f"-{function}-" in _command_of(child)]


def credentials(access_key: str) -> dict[str, str]:
    """What a client of this cloud has in its environment: the one secret, twice."""
    return {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": access_key}


def answers(url: str) -> bool:
    """Whether somebody answers there now."""
    try:
        return urllib3.request("GET", url, timeout=2, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
