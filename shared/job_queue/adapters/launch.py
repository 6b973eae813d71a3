"""Runs one command and stays beside it: when the worker is gone, however it died, or stands still for longer than its lease, all
that came of the command is killed.

Started by the runner with the descriptor of a pipe whose other end only the worker has, and through which it tells until when the
job is its own. Without this a command would live on after a worker that was killed or stopped, while another worker runs the
same job. It imports nothing of the product.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

NOT_FOUND = 127
PR_SET_CHILD_SUBREAPER = 36
LINE = 32  # bytes of a line on the lifeline
LONGEST_LOOK_S = 3600.0
KILLED_WITHIN_S = 2.0  # a process of somebody else, or one that the kernel holds, cannot be ended from here


def main() -> None:
    lifeline = int(sys.argv[1])
    # A handler, not SIG_IGN: what is ignored would be ignored by the command too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    _adopt_orphans()
    try:
        command = subprocess.Popen(sys.argv[2:])
    except OSError as error:
        print(f"The command could not be started: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(NOT_FOUND)

    def watch() -> None:
        _wait_for_the_end(lifeline)
        until = time.monotonic() + KILLED_WITHIN_S
        while _kill_descendants() and time.monotonic() < until:
            time.sleep(0.001)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    pid, status = os.wait()
    while pid != command.pid:  # an orphan that was adopted
        pid, status = os.wait()
    _end_the_rest()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _wait_for_the_end(lifeline: int) -> None:
    """Returns when nobody holds the other end any more, or at the time that was told last, by the clock of this machine."""
    until = float("inf")
    told = select.poll()
    told.register(lifeline, select.POLLIN)
    while (left_s := until - time.monotonic()) > 0:
        if told.poll(min(left_s, LONGEST_LOOK_S) * 1000):
            said = os.read(lifeline, 100 * LINE)  # no part of a line
            if not said:
                return
            until = float(said.split()[-1])


def _adopt_orphans() -> None:
    """Whoever leaves the command's group or session, or outlives its parent, is a child of this process then. Linux alone
    knows that; elsewhere the group is all that is ended."""
    import ctypes  # noqa: PLC0415 - for this process alone: the worker knows the file by name only

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_the_rest() -> None:
    until = time.monotonic() + KILLED_WITHIN_S
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        _kill_descendants()
        time.sleep(0.001)


def _kill_descendants() -> int:
    """All at once, as often as it takes: what was forked meanwhile is found by the next look."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH112, PTH208 - pathlib is slow to import
        with suppress(ValueError, OSError, IndexError), open(f"/proc/{int(name)}/stat", "rb") as stat:  # noqa: PTH123
            state, parent = stat.read().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(name))
    found = children.get(os.getpid(), [])
    for pid in found:  # it grows meanwhile
        found += children.get(pid, [])
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


if __name__ == "__main__":
    main()
