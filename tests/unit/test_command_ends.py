"""How a command ends when its heartbeat is slow, or heard too late: nothing is done twice, and nothing outlives its lease."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from shared.job_queue.adapters.process import ProcessRunner
from shared.job_queue.model import Finished, Word

# Ends when somebody has asked for it.
SHORT = [
    sys.executable, "-S", "-c",
    "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.005)\nprint('done', flush=True)",
]  # fmt: skip
# It says so if it was left alone for long.
STUBBORN = [
    sys.executable, "-S", "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(8); print('outlived')",
]  # fmt: skip
LONG_S = 600.0


def ended(pid: int) -> None:
    """Returns when this child has ended. It may be reaped by then."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def run(argv: list[str], beat: Callable[[int, str, str], Word], **given: object) -> Finished:
    options = {"timeout_s": LONG_S, "grace_s": LONG_S, **given}
    runner = ProcessRunner(beat_s=0.001, grace_s=float(str(options.pop("grace_s"))))
    return runner.run(argv, {}, beat=beat, **options)  # type: ignore[arg-type]


def when_it_is_over(word: Word, go: Path | None = None) -> Callable[[int, str, str], Word]:
    def beat(pid: int, *_: str) -> Word:
        if go is not None:
            go.touch()
        ended(pid)
        return word

    return beat


@pytest.mark.parametrize("word", [Word.STOP, Word.CANCEL])
def test_a_command_that_ended_before_it_could_be_stopped_has_ended_by_itself(word: Word, tmp_path: Path) -> None:
    """Put back, it would do its work a second time; canceled, it would deny what it has done."""
    go = tmp_path / "go"
    came = run([*SHORT, str(go)], when_it_is_over(word, go))
    assert (came.exit_code, came.stopped, came.canceled, came.stdout) == (0, False, False, "done\n")


def test_a_command_whose_job_is_somebody_elses_says_nothing_of_its_end() -> None:
    assert run(STUBBORN, lambda *_: Word.LOST).exit_code is None


def test_a_heartbeat_without_an_answer_keeps_no_command_beyond_its_time() -> None:
    came = run(STUBBORN, when_it_is_over(Word.GO_ON), timeout_s=0.5, grace_s=0.0)
    assert came.timed_out
    assert "outlived" not in came.stdout


def test_a_heartbeat_without_an_answer_keeps_no_command_beyond_its_lease() -> None:
    """No grace either: the next worker may have begun."""
    asked = threading.Event()

    def too_late(pid: int, *_: str) -> Word:
        asked.set()
        ended(pid)
        return Word.GO_ON

    came = run(STUBBORN, too_late, left_s=lambda: 0.0 if asked.is_set() else LONG_S)
    assert came.lost
    assert "outlived" not in came.stdout


def test_a_command_whose_job_is_lost_gets_no_grace() -> None:
    def deaf_and_lost(_: int, out: str, __: str) -> Word:
        return Word.LOST if out else Word.GO_ON

    came = run(STUBBORN, deaf_and_lost)
    assert (came.lost, came.stdout) == (True, "deaf\n")


def test_the_grace_of_a_command_is_over_with_its_lease() -> None:
    """Nobody renews a lease while a command takes its time to end."""
    asked = threading.Event()

    def cancel(_: int, out: str, __: str) -> Word:
        if out:
            asked.set()
        return Word.CANCEL if out else Word.GO_ON

    came = run(STUBBORN, cancel, left_s=lambda: 0.1 if asked.is_set() else LONG_S)
    assert (came.canceled, came.stdout) == (True, "deaf\n")


def test_a_command_outlives_no_lease_though_its_worker_stands_still() -> None:
    """The next worker may have begun, and nobody looks here. What was killed for that says nothing of its end."""
    until = time.monotonic() + 0.3

    def never(*_: object) -> Word:
        raise AssertionError("it was over before its first heartbeat")

    came = ProcessRunner(beat_s=LONG_S).run(STUBBORN, {}, LONG_S, never, lambda: until - time.monotonic())
    assert (came.lost, came.exit_code) == (True, None)


@pytest.mark.full
def test_a_command_goes_on_while_its_lease_is_renewed() -> None:
    until = time.monotonic() + 1.5

    def renewed(*_: object) -> Word:
        nonlocal until
        until = time.monotonic() + 1.5
        return Word.GO_ON

    long = [sys.executable, "-S", "-c", "import time; time.sleep(3)"]
    came = ProcessRunner(beat_s=0.05).run(long, {}, LONG_S, renewed, lambda: until - time.monotonic())
    assert (came.lost, came.exit_code) == (False, 0)


def test_a_question_under_way_is_over_before_the_end_is_told(tmp_path: Path) -> None:
    """A function has one connection: the commit would wait for it in vain, and the command be run again."""
    over, go = threading.Event(), tmp_path / "go"

    def slow(pid: int, *_: str) -> Word:
        go.touch()
        ended(pid)
        over.wait(0.2)  # whoever does not wait goes on here
        over.set()
        return Word.GO_ON

    assert run([*SHORT, str(go)], slow).exit_code == 0
    assert over.is_set()


def test_what_a_heartbeat_raises_is_raised_and_ends_the_command() -> None:
    def broken(*_: object) -> Word:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run([sys.executable, "-S", "-c", "import time; time.sleep(8)"], broken)
