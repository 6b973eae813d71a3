"""What the API answers, as people read it: tables, and bars while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from infra.client.http import Client

LOOK_EVERY_S = 1.0
LINE_EVERY_S = 2.0
ENDED = frozenset({"succeeded", "failed", "canceled"})
COLOURS = {"succeeded": "green", "failed": "red", "canceled": "yellow", "paused": "yellow"}

NEVER_FOLDED = frozenset({"id", "kind", "status", "outcome", "at", "created_at", "key", "provider", "name", "action"})

console = Console(highlight=False, soft_wrap=True)
if not console.is_terminal:
    console.width = 200  # a log or a pipe has no edge


def table(rows: Sequence[Mapping[str, Any]], *columns: str) -> None:
    """One line per row; a column `why.sentence` looks into an object."""
    if not rows:
        console.print("none")
        return
    made = Table(box=None, pad_edge=False)
    for column in columns:
        made.add_column(column.partition(".")[0], overflow="fold", no_wrap=column in NEVER_FOLDED)
    for row in rows:
        made.add_row(*(cell(_at(row, column), column) for column in columns))
    console.print(made)


def facts(row: Mapping[str, Any]) -> None:
    made = Table(show_header=False, box=None, pad_edge=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in row.items():
        if value not in (None, [], {}):
            made.add_row(name, cell(value, name))
    console.print(made)


def cell(value: Any, column: str = "") -> str:
    if value is None:
        return ""
    if column == "status":
        colour = COLOURS.get(str(value))
        return f"[{colour}]{value}[/]" if colour else str(value)
    if column.endswith(("_at", "at", "until", "eta")) and isinstance(value, str):
        return datetime.fromisoformat(value).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, dict):
        return ", ".join(f"{name}={cell(each)}" for name, each in value.items() if each is not None)
    if isinstance(value, list):
        return "; ".join(cell(each) for each in value)
    return escape(str(value))


def _at(row: Mapping[str, Any], column: str) -> Any:
    value: Any = row
    for name in column.split("."):
        value = None if value is None else value.get(name)
    return value


def pause() -> None:
    time.sleep(LOOK_EVERY_S)


def watch(client: Client, run_id: str) -> Any:
    """Show a run until it has ended; what it is then."""
    view = Bars() if console.is_terminal else Lines()
    with view:
        while True:
            run = client.get(f"/runs/{run_id}")
            parts = (
                list(client.pages(f"/page-ingestions/{run_id}/partitions", "partitions", 200))
                if _has_parts(run)
                else []
            )
            view.show(run, parts)
            if run["status"] in ENDED:
                return run
            pause()


def _has_parts(run: Mapping[str, Any]) -> bool:
    return bool(run["kind"] == "page_ingest")


def summary(run: Mapping[str, Any]) -> str:
    began, ended = (datetime.fromisoformat(run[name]) for name in ("created_at", "finished_at"))
    progress = run["progress"]
    more = " at least" if progress["more_lanes"] else ""
    said = f"{progress['steps']:,} steps in {progress['lanes']:,}{more} lanes"
    outcome = f" ({run['outcome']})" if run["outcome"] else ""
    why = f"\nwhy: {run['error'].get('message')}" if run["error"] else ""
    return f"{run['status']}{outcome} after {(ended - began).total_seconds():.1f} s: {said}{why}"


class Bars(AbstractContextManager["Bars"]):
    """One bar for the run's lanes, and one for each partition if it has any."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"),
            console=console,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}

    def show(self, run: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
        progress = run["progress"]
        why = run["why"]["sentence"] if run["why"] else run["status"]
        self._bar("lanes", progress["lanes_ended"], progress["lanes"], why)
        for part in parts:
            total = part["counted"]
            done = total if part["status"] == "done" else min(part["offset"], total or 0)
            self._bar(f"${part['low']:,} to ${part['high']:,}{crawl(part)}", done or 0, total, part["status"])

    def _bar(self, name: str, done: int, total: int | None, state: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, state="")
        self._bars.update(self._tasks[name], completed=done, total=total, state=escape(state))

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


class Lines(AbstractContextManager["Lines"]):
    """For a log: a line when something has changed, not more often than every two seconds."""

    def __init__(self) -> None:
        self._next = 0.0
        self._last = ""

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, run: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
        progress = run["progress"]
        said = f"{run['status']}: {progress['lanes_ended']}/{progress['lanes']} lanes, {progress['steps']} steps"
        said += f", {sum(part['offset'] for part in parts):,} rows walked" if parts else ""
        said += f"; {run['why']['sentence']}" if run["why"] and run["status"] not in ENDED else ""
        if said == self._last or (time.monotonic() < self._next and run["status"] not in ENDED):
            return
        self._next, self._last = time.monotonic() + LINE_EVERY_S, said
        console.print(escape(said))


def crawl(part: Mapping[str, Any]) -> str:
    return "" if part["crawl"] == 1 else f" (crawl {part['crawl']})"
