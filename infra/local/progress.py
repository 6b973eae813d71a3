"""A run as one sees it: a bar for each partition on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from infra.local.runs import Progress as RunProgress
from infra.local.runs import Runs

LINE_EVERY_S = 2.0
LOOK_EVERY_S = 0.2


class View(Protocol):
    def show(self, now: RunProgress) -> None: ...
    def note(self, text: str) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Bars:
    """One bar per partition, and what else is at work in words below."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", justify="left"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def show(self, now: RunProgress) -> None:
        for lane in now.lanes:
            key = lane["key"]
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task(label(key), total=lane["total"], state="")
            total = lane["total"] or (1 if lane["status"] == "done" else None)
            done = total if lane["status"] == "done" else lane["done"]
            self._bars.update(self._tasks[key], completed=done or 0, total=total, state=state(lane))
            if lane["status"] != "active":
                self._bars.stop_task(self._tasks[key])

    def note(self, text: str) -> None:
        self._bars.console.print(text)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


class Lines:
    """For a log: one line every two seconds, and one for every note."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def show(self, now: RunProgress) -> None:
        if time.monotonic() < self._next and not now.ended:
            return
        self._next = time.monotonic() + LINE_EVERY_S
        counts = {word: sum(lane["status"] == word for lane in now.lanes) for word in ("done", "active", "failed")}
        said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        busy = [f"{label(lane['key'])} {state(lane)}" for lane in now.lanes if lane["status"] == "active"]
        waiting = f"; {busy[0]}" if len(busy) == 1 else ""
        self._console.print(f"run {now.run['status']}: {now.rows:,} rows, lanes: {said}{waiting}", soft_wrap=True)

    def note(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def view(console: Console) -> View:
    return Bars(console) if console.is_terminal else Lines(console)


def watch(
    runs: Runs, run_id: UUID, shown: View, *, seconds: float, meanwhile: Callable[[RunProgress], None] | None = None
) -> RunProgress:
    """Show a run until it has ended, or until the time is over; `meanwhile` is called at every look."""
    deadline = time.monotonic() + seconds
    while True:
        now = runs.progress(run_id)
        shown.show(now)
        if now.ended or time.monotonic() > deadline:
            return now
        if meanwhile is not None:
            meanwhile(now)
        time.sleep(LOOK_EVERY_S)


def label(key: str) -> str:
    """`part:0000000200-0000005150` is prices for people: $200 to $5,150."""
    name, _, rest = key.partition(":")
    if name != "part":
        return name
    prices, _, crawl = rest.partition("#")
    low, high = (int(price) for price in prices.split("-"))
    return f"${low:,} to ${high:,}" + (f" (crawl {crawl})" if crawl else "")


def state(lane: Mapping[str, Any]) -> str:
    if lane["status"] != "active":
        return str(lane["status"])
    if lane["at_work"]:
        return "taken over" if lane["claims"] > 1 else "running"
    if lane["claims"]:
        return "its process was killed"
    if lane["due_in_s"] >= 1:
        return f"due in {lane['due_in_s']:.0f} s"
    return "queued"
