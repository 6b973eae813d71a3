"""What the API answers, for people to read: tables, and bars while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from infra.client import discover
from infra.client.http import Client

LOOK_EVERY_S = 1.0
LINE_EVERY_S = 2.0
ENDED = frozenset({"succeeded", "failed", "canceled"})
COLOURS = {"succeeded": "green", "failed": "red", "retrying": "yellow", "stalled": "yellow", "throttled": "yellow",
           "canceled": "yellow", "paused": "yellow"}  # fmt: skip

NEVER_FOLDED = frozenset(
    {"id", "kind", "status", "state", "outcome", "at", "created_at", "key", "provider", "name", "action"}
)

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
    if column in {"status", "state"}:
        colour = COLOURS.get(str(value))
        return f"[{colour}]{value}[/]" if colour else str(value)
    if column.endswith(("_at", "at", "until", "eta", "since", "_due")) and isinstance(value, str):
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


def now(told: Mapping[str, Any]) -> None:
    """What needs attention first; a part with nothing in it is left out."""
    opened = told["open"]
    more = "at least " if opened["more"] else ""
    count = opened["queued"] + opened["running"] + opened["paused"]
    states = ", ".join(f"{opened[name]} {name}" for name in ("running", "queued", "paused") if opened[name])
    console.print(
        f"{more}{count} open{states and f' ({states})'}, {told['moving']} made progress in the last 5 minutes; "
        f"{_ago('scheduler', told['tick_age_s'])}"
    )
    trouble = {"overdue": told["late"]["count"], "failed": told["failing"]["count"], "waiting": len(told["waiting"])}
    if calm := [f"nothing {name}" for name, count in trouble.items() if not count]:
        console.print(", ".join(calm))
    steps, failed, rows = (sum(each[name] for each in told["throughput"]) for name in ("steps", "failed", "rows"))
    console.print(
        f"last hour: {steps:,} steps, {failed:,} failed, {rows:,} rows  {_line([m['steps'] for m in told['throughput']])}"
    )
    _part("overdue", told["late"]["runs"], "id", "kind", "label", "status", "since", "sentence")
    _part(
        "failed in the last 24 hours",
        told["failing"]["groups"],
        "count",
        "kind",
        "code",
        "message",
        "last_at",
        "run_id",
    )
    _part("waiting", told["waiting"], "runs", "sentence", "until", "held_by", "action", "run_id")
    _part("rate limits", told["gates"], "key", "state", "until", "reason", "is_shared")
    _part("repairs", told["repairs"], "at", "why", "kind", "lane_key", "run_id")


def system(told: Mapping[str, Any]) -> None:
    console.print(
        f"schema {told['schema']}; {_ago('scheduler', told['tick_age_s'])}, {_ago('cleanup', told['sweep_age_s'])}"
    )
    dead, repairs = told["dead_letters"], told["repairs"]
    repaired = ", ".join(f"{by['why']} {by['count']}" for by in repairs["by"])
    facts(
        {
            "unsent messages": str(told["unsent"]),
            "oldest overdue step": cell(told["oldest_due"], "until") or "none",
            "dead letters": f"{dead['count']} in 24 hours",
            "repairs": f"{repairs['count']} in 24 hours{repaired and f' ({repaired})'}",
        }
    )
    _part("dead letters", dead["latest"], "at", "kind", "lane_key", "run_id")
    _part("repairs", repairs["latest"], "at", "why", "kind", "lane_key", "run_id")
    everywhere = told["everywhere"]
    if everywhere:
        console.print("\nall tenants")
        facts({name.replace("_", " "): str(value) for name, value in everywhere.items() if name != "tables"})
        table(everywhere["tables"], "name", "bytes", "rows", "dead_rows")


def _part(title: str, rows: Sequence[Mapping[str, Any]], *columns: str) -> None:
    if rows:
        console.print(f"\n{title}")
        table(rows, *columns)


def _ago(what: str, seconds: float | None) -> str:
    return f"{what} not run yet" if seconds is None else f"{what} ran {seconds:,.0f} s ago"


def _line(values: Sequence[int]) -> str:
    """A line of blocks, a minute each."""
    most = max(values, default=0)
    return (
        "".join(" " if not value else "▁▂▃▄▅▆▇█"[(value * 8 - 1) // most] for value in values).rstrip() if most else ""
    )


def pause() -> None:
    time.sleep(LOOK_EVERY_S)


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of a run: `total` None: nobody knows yet."""

    name: str
    done: int
    total: int | None
    state: str


@dataclass(frozen=True, slots=True)
class Bars:
    """What a kind shows of a run: a bar for each part, and one line about all of them."""

    parts: Sequence[Bar] = field(default_factory=tuple)
    line: str = ""


def watch(client: Client, run_id: str) -> Any:
    """Show a run until it has ended; what it is then."""
    view = LiveBars() if console.is_terminal else Lines()
    with view:
        while True:
            run = client.get(f"/runs/{run_id}")
            progress = getattr(discover.found().get(run["kind"]), "progress", None)
            view.show(run, progress(client, run) if progress else Bars())
            if run["status"] in ENDED:
                return run
            pause()


def summary(run: Mapping[str, Any]) -> str:
    began, ended = (datetime.fromisoformat(run[name]) for name in ("created_at", "finished_at"))
    progress = run["progress"]
    more = "more than " if progress["more_lanes"] else ""
    said = f"{progress['steps']:,} steps in {more}{progress['lanes']:,} lanes"
    outcome = f" ({run['outcome']})" if run["outcome"] else ""
    why = f"\ncause: {run['error'].get('message')}" if run["error"] else ""
    return f"{run['status']}{outcome} after {(ended - began).total_seconds():.1f} s: {said}{why}"


class LiveBars(AbstractContextManager["LiveBars"]):
    """One bar for the run's lanes, and one for each part that its kind tells of."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"),
            console=console,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}

    def show(self, run: Mapping[str, Any], bars: Bars) -> None:
        progress = run["progress"]
        why = run["why"]["sentence"] if run["why"] else run["state"]
        self._bar("lanes", progress["lanes_ended"], progress["lanes"], why)
        for part in bars.parts:
            self._bar(part.name, part.done, part.total, part.state)

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

    def show(self, run: Mapping[str, Any], bars: Bars) -> None:
        progress = run["progress"]
        said = f"{run['state']}: {progress['lanes_ended']}/{progress['lanes']} lanes, {progress['steps']} steps"
        said += f", {bars.line}" if bars.line else ""
        said += f"; {run['why']['sentence']}" if run["why"] and run["status"] not in ENDED else ""
        if said == self._last or (time.monotonic() < self._next and run["status"] not in ENDED):
            return
        self._next, self._last = time.monotonic() + LINE_EVERY_S, said
        console.print(escape(said))
