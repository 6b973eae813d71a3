"""Calls in threads of their own, timed by the process's clock."""

from __future__ import annotations

import queue
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from shared.kernel.clock import stopwatch
from shared.kernel.log import logger
from shared.row_job.decide import Answered
from shared.row_job.ports import Call

T = TypeVar("T")


def in_a_thread(work: Callable[[], T], /) -> Callable[[], T]:
    """Begun at once, in a thread that ends with it."""
    with_one = ThreadPoolExecutor(1, thread_name_prefix="beside")
    begun = with_one.submit(work)
    with_one.shutdown(wait=False)
    return begun.result


class Threads:
    """As many calls at once as there are threads. What a call raises is an answer too: none is lost."""

    def __init__(self, most: int, memory_mb: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="call")
        self._done: queue.SimpleQueue[tuple[Call, Answered]] = queue.SimpleQueue()
        self._memory_mb = memory_mb
        self.now = stopwatch()

    def submit(self, call: Callable[[], Answered], made_for: Call) -> None:
        def run() -> None:
            elapsed = stopwatch()
            try:
                answer = call()
            except Exception as error:
                logger.exception("a call failed unexpectedly", extra={"row": made_for.item.row_no})
                message = f"The call failed unexpectedly ({type(error).__name__})."
                answer = Answered(what="failed", ms=int(elapsed() * 1000), message=message)
            self._done.put((made_for, answer))

        self._pool.submit(run)

    def collect(self, timeout_s: float) -> list[tuple[Call, Answered]]:
        """What has been answered; waits for the first as long as it may."""
        found: list[tuple[Call, Answered]] = []
        try:
            found.append(self._done.get(timeout=timeout_s) if timeout_s > 0 else self._done.get_nowait())
            while True:
                found.append(self._done.get_nowait())
        except queue.Empty:
            return found

    def pressure(self) -> float:
        """How far the function's memory is used beyond three quarters, from 0 to 1."""
        if not self._memory_mb:
            return 0.0
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / self._memory_mb
        return min(1.0, max(0.0, (used - 0.75) * 4))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
