"""Guards that a local server never outlives the process that started it: a small parent process that ends it when its starter is gone."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

OWN_ACCOUNT = -1
PATIENCE_SECONDS = 10
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# Each order is the row of signals to try before SIGKILL; the end of the pipe means the first of them.
ORDERS = {
    b"": (signal.SIGINT, signal.SIGQUIT),
    b"f": (signal.SIGINT, signal.SIGQUIT),
    b"i": (signal.SIGQUIT,),
    b"k": (),
}


def main(arguments: list[str]) -> int:
    """Run `<pid of the starter> <uid> <command…>` and obey the orders that arrive on standard input."""
    starter, uid, *command = arguments
    _inherit_orphans()
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_the_guard,  # noqa: PLW1509 - the guard has one thread
        **account(int(uid)),
    )
    signal.signal(signal.SIGTERM, lambda *_: server.send_signal(signal.SIGINT))
    while server.poll() is None:
        order = _next_order(int(starter))
        if order is not None:
            _end(server, ORDERS[order])
    _bury_orphans()
    return server.returncode


def account(uid: int) -> dict[str, Any]:
    """The arguments that make a child of `subprocess` run as `uid`."""
    return {} if uid == OWN_ACCOUNT else {"user": uid, "group": uid, "extra_groups": []}


def _next_order(starter: int) -> bytes | None:
    # A pipe closes whenever its holder dies, by kill -9 too, whereas PR_SET_PDEATHSIG follows the starting thread.
    # A forked child of the starter holds the pipe as well: hence the look at the parent's pid.
    readable, _, _ = select.select([0], [], [], 0.2)
    if readable:
        return os.read(0, 1)
    return None if os.getppid() == starter else b""


def _end(server: subprocess.Popen[bytes], signals: tuple[signal.Signals, ...]) -> None:
    for number in signals:
        server.send_signal(number)
        try:
            server.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return
    server.kill()
    server.wait()


def _bury_orphans() -> None:
    """A server cannot start again on data that a child of the dead one still holds."""
    while orphans := children(os.getpid()):
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_the_name = stat.read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(after_the_name[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def _inherit_orphans() -> None:
    # Elsewhere than on Linux the children of a killed Postgres notice its death and end by themselves.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _die_with_the_guard() -> None:
    # The second line: somebody may kill -9 the guard. It is set after the change of uid, which would clear it.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
