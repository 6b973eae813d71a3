"""Guards that a local cloud has one keeper: it holds the lock, reports a part that dies, and takes everything with it when it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from botocore.exceptions import BotoCoreError, ClientError

from infra.local import kept_secrets, private
from infra.local.cloud import STATE, Address, Cloud, Say
from infra.local.deploy import ROOT
from shared.kernel.clock import stopwatch

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOG = "supervisor.log"
END_SECONDS = 30
A_MOMENT_S = 0.05
SAVE_EVERY_S = 15.0


class CloudError(RuntimeError):
    """The local cloud cannot do what was asked; the message says what to do."""


def supervise(home: Path, say: Say, start: Callable[[], Cloud], *, ephemeral: bool = False) -> None:
    """Bring the cloud up and keep it until a signal comes. Nothing is left running, whatever ends this."""
    private.home(home)
    _lock(home)
    with signals_end_it():
        cloud = start()
        try:
            deployed = cloud.deploy(say)
            address = cloud.address(os.getpid(), deployed.outputs)
            kept_secrets.restore(address.client("secretsmanager"), home)
            address.write(home)
            _watch(cloud, say, lambda: kept_secrets.save(address.client("secretsmanager"), home))
        except KeyboardInterrupt:
            say("stopping")
        finally:
            _ignore_signals()
            cloud.stop()
            if ephemeral:
                shutil.rmtree(cloud.postgres.directory, ignore_errors=True)
                (home / kept_secrets.FILE).unlink(missing_ok=True)  # of connections that no database knows any more


def _watch(cloud: Cloud, say: Say, save: Callable[[], None]) -> None:
    reported: set[str] = set()
    elapsed = stopwatch()
    try:
        while True:
            if elapsed() > SAVE_EVERY_S:
                elapsed = stopwatch()
                _saved(save)
            _report(cloud, say, reported)
            time.sleep(0.5)
    finally:
        _saved(save)


def _saved(save: Callable[[], None]) -> None:
    """An emulator that is gone has nothing to save; what was saved before stays."""
    with suppress(ClientError, BotoCoreError):
        save()


def _report(cloud: Cloud, say: Say, reported: set[str]) -> None:
    for name, last_words in cloud.dead_parts().items():
        if name not in reported:
            reported.add(name)
            say(f"{name} has ended by itself. `baton up` starts it again; the database is kept.\n{last_words}")


def spawn(home: Path, arguments: Sequence[str], show: Say) -> Address:
    """Start a keeper of its own session, show what it says until all is up, and leave it running."""
    private.home(home)
    with private.open_file(home / LOG, "wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "infra.local.cli", "--home", str(home), "up", "--foreground", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        return _up_at_last(keeper, home, show)
    except BaseException:
        keeper.terminate()
        keeper.wait(END_SECONDS)
        raise


def _up_at_last(keeper: subprocess.Popen[bytes], home: Path, show: Say) -> Address:
    with (home / LOG).open() as said:
        while True:
            address, ended = _of(keeper.pid, home), keeper.poll() is not None
            if ended:
                raise CloudError(f"the local cloud did not start.\n{said.read()}".strip())
            for line in said:
                show(line.rstrip("\n"))
            if address is not None:
                return address
            time.sleep(A_MOMENT_S)


def running(home: Path) -> Address | None:
    """The cloud that is up there, after a moment of patience with one that is just starting."""
    while is_held(home):
        if (address := Address.read(home)) is not None:
            return address
        time.sleep(A_MOMENT_S)
    return None


def end(home: Path) -> bool:
    """End the cloud that is up there; False if there is none."""
    if not is_held(home):
        (home / STATE).unlink(missing_ok=True)
        return False
    address = running(home)
    elapsed = stopwatch()
    if address is not None:
        os.kill(address.pid, signal.SIGTERM)
    while is_held(home):
        if elapsed() > END_SECONDS and address is not None:
            os.kill(address.pid, signal.SIGKILL)  # the guards then end the parts
        time.sleep(A_MOMENT_S)
    return True


def is_held(home: Path) -> bool:
    """Whether a keeper lives: its lock dies with it, by kill -9 too."""
    try:
        with (home / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _of(pid: int, home: Path) -> Address | None:
    address = Address.read(home)
    return address if address is not None and address.pid == pid else None


def _lock(home: Path) -> None:
    """Held until the process has ended, not a moment less: who sees it free may say that nothing is running."""
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise CloudError(f"another local cloud is up or starting in {home}: `baton status`, `baton down`") from None
    (home / STATE).unlink(missing_ok=True)  # of a keeper that was killed


@contextmanager
def signals_end_it() -> Iterator[None]:
    def end_it(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the shape of a handler
        raise KeyboardInterrupt

    before: Mapping[signal.Signals, object] = {number: signal.signal(number, end_it) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def _ignore_signals() -> None:
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
