"""Guards that a real Postgres is one call away: on a free loopback port, with honest commits, gone when its starter is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self
from urllib.parse import quote

import pg8000.dbapi

from infra.local import guard, private
from infra.local.binaries import PostgresError, bin_directory, reachable_directory, server_account
from infra.local.child import FAST, HOST, IMMEDIATE, KILL, Child, Stops, free_port

START_SECONDS = 30
PORT_ATTEMPTS = 10

# Without fsync a killed server still keeps every commit, because the operating system has it; without
# synchronous_commit it would lose some, and a crash test would report losses that production does not have.
SETTINGS = MappingProxyType(
    {
        "fsync": "off",
        "full_page_writes": "off",
        "synchronous_commit": "on",
        "max_connections": "200",
        "shared_buffers": "128MB",
        "jit": "off",
        "autovacuum": "on",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_checkpoints": "off",
        # What a statement was given is somebody's data: neither parameters nor the DETAIL and CONTEXT that quote them.
        "log_parameter_max_length": "0",
        "log_parameter_max_length_on_error": "0",
        "log_error_verbosity": "terse",
    }
)
HBA = f"# Written by infra/local/postgres.py.\nhost all all {HOST}/32 scram-sha-256\n"
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class Postgres(Stops):
    """One running server. `directory` holds its data and its log; it is the wanted one wherever its account can reach it."""

    def __init__(self, binaries: Path, directory: Path, uid: int, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self.port = 0
        self._binaries = binaries
        self._uid = uid
        self._settings = {**SETTINGS, **settings}
        self._has_password = directory.joinpath("password").exists()
        self._password = private.secret(directory / "password")
        self._child = Child(directory / "server.log")

    @classmethod
    def start(cls, data_dir: Path, *, port: int | None = None, settings: Mapping[str, str] = NO_SETTINGS) -> Self:
        """Start a server on `data_dir`, which is filled on the first start; `settings` are laid over SETTINGS."""
        uid = server_account()
        server = cls(bin_directory(uid), reachable_directory(data_dir, uid), uid, settings)
        server._initialise()
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            server.port = port or free_port()
            try:
                server._launch()
            except PostgresError:
                if port is None and attempts_left and "Address already in use" in server.log_tail():
                    continue
                raise
            break
        return server

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """With the password in it: for connections, not for a command line or a screen."""
        url = f"postgresql+pg8000://postgres:{self._password}@{HOST}:{self.port}/{quote(database)}"
        return url if user == "postgres" else private.url_as(url, user)

    @property
    def running(self) -> bool:
        return self._child.running

    @property
    def pid(self) -> int:
        """The pid of the postmaster."""
        return int(self._data.joinpath("postmaster.pid").read_text().split()[0])

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """End the server: `fast` writes everything down first, `immediate` leaves a recovery to the next start."""
        self._child.order(FAST if mode == "fast" else IMMEDIATE)

    def kill(self) -> None:
        """SIGKILL the server and all its children, as a crash of the machine's memory would."""
        self._child.order(KILL)

    def restart(self) -> None:
        """Start again on the same port and data, after an end of whatever kind."""
        self.stop()
        self._launch()

    def log_tail(self, lines: int = 20) -> str:
        """The end of what the server wrote since its last start."""
        return self._child.log_tail(lines)

    @property
    def _data(self) -> Path:
        return self.directory / "pgdata"

    def _initialise(self) -> None:
        if not self._data.exists():
            self._make_cluster()
        hba = self._data / "pg_hba.conf"
        # Just made, or by a version that let every local user in; or somebody lost the password.
        if hba.read_text() != HBA or not self._has_password:
            self._set_password()
            hba.write_text(HBA)

    def _set_password(self) -> None:
        """Before anybody can connect: a server for one user, which reads statements and listens nowhere."""
        from infra.migrations.at_deploy import scram_verifier  # noqa: PLC0415 - only once in the life of a server

        command = [str(self._binaries / "postgres"), "--single", "-D", str(self._data), "postgres"]
        statement = f"alter role postgres password '{scram_verifier(self._password)}'\n"
        done = subprocess.run(
            command, cwd="/", input=statement, capture_output=True, text=True, check=False, **guard.account(self._uid)
        )
        if done.returncode != 0 or "ERROR" in done.stderr:
            raise PostgresError(f"No password could be set in {self.directory}. The server's output:\n{done.stderr}")

    def _make_cluster(self) -> None:
        unfinished = self.directory / "pgdata.unfinished"  # renamed at the end: a killed initdb leaves no half server
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if self._uid != guard.OWN_ACCOUNT:
            os.chown(unfinished, self._uid, self._uid)
        command = [str(self._binaries / "initdb"), "-D", str(unfinished), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        made = subprocess.run(
            [*command, "--locale=C.UTF-8", "--no-sync"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **guard.account(self._uid),
        )
        if made.returncode != 0:
            raise PostgresError(
                f"initdb failed in {self.directory}. It needs room on the disk and an account that is in /etc/passwd; "
                f"or set DATABASE_URL to a running server. Its output:\n{made.stdout}"
            )
        unfinished.rename(self._data)

    def _launch(self) -> None:
        self._child.launch(self._command(), uid=self._uid)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop("immediate")
            raise

    def _command(self) -> list[str]:
        where = {"listen_addresses": HOST, "port": str(self.port), "unix_socket_directories": ""}
        options = [part for name, value in {**self._settings, **where}.items() for part in ("-c", f"{name}={value}")]
        return [str(self._binaries / "postgres"), "-D", str(self._data), *options]

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if not self.running:
                raise self._failure("Postgres ended while it was starting")
            if time.monotonic() > deadline:
                raise self._failure(f"Postgres did not answer within {START_SECONDS} seconds")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            connection = pg8000.dbapi.connect(
                user="postgres", password=self._password, host=HOST, port=self.port, timeout=START_SECONDS
            )
        except (pg8000.dbapi.Error, OSError):
            return False
        try:
            cursor = connection.cursor()
            cursor.execute("show data_directory")
            # Somebody else's server may sit on the port that ours is about to fail to take.
            return bool(cursor.fetchone() == [str(self._data)])
        except (pg8000.dbapi.Error, OSError):
            return False
        finally:
            connection.close()

    def _failure(self, what: str) -> PostgresError:
        return PostgresError(
            f"{what} on {HOST}:{self.port} in {self.directory}. If the folder is from another version or is damaged, "
            f"remove it; or set DATABASE_URL to a running server. The server's last output:\n{self.log_tail()}"
        )
