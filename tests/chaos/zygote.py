"""A warm process that forks workers in milliseconds, buries them, and takes them all along when its parent is gone."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]


class Zygote:
    """The parent's side."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.zygote"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the parent, and one killpg ends the whole family
        )
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            with suppress(BrokenPipeError):
                end.close()
        self._process.wait()

    def fork(self, duty: Any) -> int:
        """Start a worker; answers its pid."""
        return int(self._ask("fork", duty))

    def kill(self, pid: int) -> bool:
        """Kill -9 a worker and wait until it is gone; False if it had ended before."""
        return bool(self._ask("kill", pid))

    def wait_until_it_stops(self, pid: int) -> None:
        """Wait for a worker that stops itself at a point."""
        self._ask("wait_until_it_stops", pid)

    def go_on(self, pid: int) -> None:
        self._ask("go_on", pid)

    def ended(self) -> list[int]:
        """The workers that ended by themselves since the last question."""
        return list(self._ask("ended"))

    def _ask(self, name: str, *args: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((name, args), self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)


class Family:
    """The zygote's side: it alone knows which pids are still its own, so a reused pid is never hit."""

    def __init__(self) -> None:
        self._alive: set[int] = set()

    def fork(self, duty: Any) -> int:
        pid = os.fork()
        if pid == 0:
            _live(duty)
        self._alive.add(pid)
        return pid

    def kill(self, pid: int) -> bool:
        if pid not in self._alive:
            return False
        self._alive.discard(pid)
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return True

    def wait_until_it_stops(self, pid: int) -> None:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._alive.discard(pid)

    def go_on(self, pid: int) -> None:
        if pid in self._alive:
            os.kill(pid, signal.SIGCONT)

    def ended(self) -> list[int]:
        gone = [pid for pid in self._alive if os.waitpid(pid, os.WNOHANG)[0]]
        self._alive.difference_update(gone)
        return gone


def _live(duty: Any) -> None:
    """The child's whole life; it never returns into the zygote's loop."""
    from tests.chaos import worker

    status = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        worker.live(duty)
        status = 0
    except SystemExit:
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    from tests.chaos import worker

    worker.warm_up()
    family = Family()
    try:
        while True:
            name, args = pickle.load(sys.stdin.buffer)
            pickle.dump(getattr(family, name)(*args), sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except EOFError:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
