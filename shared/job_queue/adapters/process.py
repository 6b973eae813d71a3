"""Runs a command in a session of its own: no shell, a bare environment, bounded output, and an end in any case, of all that
came of it."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from shared.job_queue import decide
from shared.job_queue.adapters import launch
from shared.job_queue.model import TAIL_BYTES, Finished, Word
from shared.kernel.errors import Later, Overtaken
from shared.kernel.log import logger

Beat = Callable[[int, str, str], Word]
LAUNCHER = str(Path(launch.__file__))
BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}
SIGNALED = 128
CANNOT_START_S = 30.0  # until a job is offered again that could not be started here
KILLS_S = 2.0  # for the launcher to be done with it, on a machine that is busy
FIRST_BEAT_S = 1.0  # soon: from then on people see that it runs
LOOKS_S = 0.05  # at the command, while a heartbeat has no answer
ANSWERED_S = 120.0  # by then the question has failed, if nothing else


class ProcessRunner:
    """`beat_s`: how often the caller hears of it. `grace_s`: from TERM to KILL."""

    def __init__(self, beat_s: float = 10.0, grace_s: float = 10.0) -> None:
        self._beat_s = beat_s
        self._grace_s = grace_s

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        timeout_s: float,
        beat: Beat,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> Finished:
        with ExitStack() as stack:
            try:
                process, lifeline = _start(argv, env, left_s(), stack)
            except OSError as error:
                if error.errno == errno.E2BIG:
                    raise
                # A full disk, too many processes or files: that is this machine's trouble, and no failure of the command.
                logger.exception("a command could not be started on this machine")
                raise Later(CANNOT_START_S, f"a worker that can start it: {error.strerror}") from error
            return _Running(process, lifeline, self._grace_s, left_s).to_its_end(timeout_s, self._beat_s, beat)


def _start(
    argv: Sequence[str], env: Mapping[str, str], left_s: float, stack: ExitStack
) -> tuple[subprocess.Popen[bytes], _Lifeline]:
    read_end, write_end = os.pipe()
    lifeline = _Lifeline(write_end)
    stack.callback(lifeline.cut)
    lifeline.holds_for(left_s)
    try:
        # What cannot be removed stays: it says nothing about how the command ended.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-job-", ignore_cleanup_errors=True))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", LAUNCHER, str(read_end), *argv],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
            env={**BARE, "TMPDIR": folder, **env}, start_new_session=True, pass_fds=[read_end],
        )  # fmt: skip
    finally:
        os.close(read_end)
    return process, lifeline


class _Lifeline:
    """Without its other end, the launcher kills all that came of the command, and itself. So it does when the time is over that
    it was told last: this process may stand still, and the job is somebody else's then."""

    def __init__(self, end: int) -> None:
        os.set_blocking(end, False)
        self._end = end

    def holds_for(self, seconds: float) -> None:
        with suppress(OSError):  # it has ended, or does not listen
            os.write(self._end, f"{time.monotonic() + seconds:<{launch.LINE - 1}}\n".encode())

    def cut(self) -> None:
        end, self._end = self._end, -1
        if end >= 0:
            os.close(end)


class _Running:
    def __init__(
        self, process: subprocess.Popen[bytes], lifeline: _Lifeline, grace_s: float, left_s: Callable[[], float]
    ) -> None:
        self._process = process
        self._lifeline = lifeline
        self._grace_s = grace_s
        self._left_s = left_s
        assert process.stdout is not None
        assert process.stderr is not None
        self._out, self._err = _Tail(process.stdout), _Tail(process.stderr)
        self._asked: _Asked | None = None

    def to_its_end(self, timeout_s: float, beat_s: float, beat: Beat) -> Finished:
        deadline = time.monotonic() + timeout_s
        word, timed_out, wait_s = Word.GO_ON, False, min(FIRST_BEAT_S, beat_s)
        try:
            while not self._ended(min(wait_s, max(0.0, deadline - time.monotonic()))):
                wait_s = beat_s
                if time.monotonic() >= deadline:
                    timed_out = True
                    break
                word = self._say(beat, deadline)
                if word is not Word.GO_ON:
                    break
                self._lifeline.holds_for(self._left_s())
        finally:
            # Nobody renews the lease from here on. After it the job is somebody else's: it gets not a moment more.
            code = self._end(0.0 if word is Word.LOST else max(0.0, min(self._grace_s, self._left_s())))
            if self._asked is not None:  # a function has one connection, and the commit needs it
                self._asked.answered(ANSWERED_S)
        by_itself = not timed_out and word is Word.GO_ON
        # The launcher did not wait for this process.
        lost = word is Word.LOST or (by_itself and code == -signal.SIGKILL and self._left_s() <= 0)
        return Finished(
            exit_code=code if by_itself and not lost else None,
            timed_out=timed_out,
            canceled=word is Word.CANCEL,
            lost=lost,
            stopped=word is Word.STOP,
            stdout=self._out.text(),
            stderr=self._err.text(),
        )

    def _say(self, beat: Beat, deadline: float) -> Word:
        """What is heard. An answer may take long, and neither the command's end nor its time nor its lease waits for it. What
        ended by itself meanwhile was not stopped by anybody: it counts as it is."""
        asked = self._asked = _Asked(lambda: beat(self._process.pid, self._out.text(), self._err.text()))
        while not asked.answered(LOOKS_S):
            if time.monotonic() >= deadline or self._ended(0):
                return Word.GO_ON
            if self._left_s() <= 0:
                return Word.LOST
        word = asked.word()
        return Word.GO_ON if word is not Word.LOST and self._ended(0) else word

    def _ended(self, within_s: float) -> bool:
        """Seen, but not reaped yet: until then its group's number cannot be anybody else's."""
        until = time.monotonic() + within_s
        pause = 0.001
        while True:
            flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
            if os.waitid(os.P_PID, self._process.pid, flags) is not None:
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 2, 0.05)

    def _end(self, grace_s: float) -> int:
        """End the whole group: asked first, then killed. Whatever the command left behind goes with it, by the launcher; if
        that was killed itself, the group does."""
        if not self._ended(0):
            self._signal(signal.SIGTERM)
            if not self._ended(grace_s):
                self._lifeline.cut()
                self._ended(launch.KILLED_WITHIN_S + KILLS_S)
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        for tail in (self._out, self._err):
            tail.join(5)
        return SIGNALED - code if SIGNALED < code < SIGNALED + signal.NSIG else code

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class _Asked:
    """A question on a thread of its own."""

    def __init__(self, ask: Callable[[], Word]) -> None:
        self._ask = ask
        self._word: Word | Exception = Word.LOST
        self._answered = threading.Event()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def _run(self) -> None:
        try:
            self._word = self._ask()
        except Exception as error:
            self._word = error
        self._answered.set()

    def answered(self, within_s: float) -> bool:
        return self._answered.wait(within_s)

    def word(self) -> Word:
        if isinstance(self._word, Overtaken):
            return Word.LOST
        if isinstance(self._word, Exception):
            raise self._word
        return self._word


class _Tail:
    """The last bytes of a stream, read as they come, so that no command ever waits for us."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept, self._cut = stream, bytearray(), False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream as stream:
            while chunk := os.read(stream.fileno(), 65_536):
                with self._lock:
                    self._kept += chunk
                    if len(self._kept) > TAIL_BYTES:
                        del self._kept[:-TAIL_BYTES]
                        self._cut = True

    def text(self) -> str:
        with self._lock:
            kept, cut = bytes(self._kept), self._cut
        return decide.tail(kept, cut=cut)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)
