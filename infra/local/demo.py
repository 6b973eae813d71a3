"""The demonstration: a catalogue through the deployed queues and functions, a function killed on the way, every row compared."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.table import Table

from functions.catalogue import kind_asking
from infra.local.cloud import Cloud, throwaway_home
from infra.local.deploy import STACK
from infra.local.progress import View, label, view, watch
from infra.local.runs import Progress, Runs
from infra.local.standins.nivoda_faults import Operation
from infra.local.standins.nivoda_stones import Stone
from infra.local.supervise import signals_end_it
from shared.kernel.clock import stopwatch

LOW, HIGH = 200, 20_000
UPSTREAM = "nivoda"
KILL_AT_PAGE = 25
LONGEST_S = 240.0

ROWS = """
select external_id, offer_id, price_cents, carats, shape, color, clarity, lab, certificate, availability
from diamond where gone_at is null
"""


def demo(console: Console, *, stones: int, seed: int) -> int:
    """0 only if every row is exactly right."""
    elapsed = stopwatch()
    with signals_end_it(), throwaway_home() as home:
        console.print("[bold]Starting a cloud on this machine[/] (no Docker, no account; all of it is gone at the end)")
        console.print(
            "This takes a minute to a minute and a half: 20 s to start, 10 s for the rows, 30 s for a killed function."
        )
        with Cloud.start(home, console.print, stones=stones, seed=seed) as cloud:
            console.print("deploying    template.yaml, the one that goes to AWS")
            deployed = cloud.deploy(console.print)
            set_up_s = elapsed()
            with Runs(cloud.address(os.getpid(), deployed.outputs)) as runs:
                run_id, story, now = _run(console, cloud, runs, stones)
                wrong = differences(cloud.nivoda.stones, runs.sql(ROWS))
                figures = runs.figures(run_id)
            console.print("stopping everything")
    killed = f"{story.killed} process with -9, in the middle of a page; {_taken_over(story)}"
    return verdict(console, now, figures, killed, wrong, set_up_s=set_up_s, stones=stones, right=story.killed == 1)


def start_run(runs: Runs, stones: int) -> UUID:
    """The whole catalogue, in about seven partitions."""
    params = {"source": UPSTREAM, "low": LOW, "high": HIGH, "partition_records": max(200, stones // 7)}
    return runs.start(kind_asking(UPSTREAM), params)


def _run(console: Console, cloud: Cloud, runs: Runs, stones: int) -> tuple[UUID, Story, Progress]:
    killer = Killer(cloud)
    cloud.nivoda.before_each = killer
    run_id = start_run(runs, stones)
    console.print(f"\n[bold]Run {run_id}[/]: {stones:,} records of the catalogue, page by page, several prices at once")
    story = Story(killer)
    with view(console) as shown:
        now = watch(runs, run_id, shown, seconds=LONGEST_S, meanwhile=lambda seen: story.tell(seen, shown))
    return run_id, story, now


class Story:
    """Says when the function was killed, and when another process took its turn over."""

    def __init__(self, killer: Killer) -> None:
        self._killer = killer
        self._lane: str | None = None
        self.taken_over_after_s: float | None = None

    @property
    def killed(self) -> int:
        return len(self._killer.killed)

    def tell(self, now: Progress, shown: View) -> None:
        if self._lane is None and self._killer.killed:
            dead = [lane["key"] for lane in now.lanes if lane["claims"] and lane["status"] == "active"]
            self._lane = dead[0] if dead else ""
            self._elapsed = stopwatch()
            shown.note(
                f"[red]kill -9[/] of {self._killer.function}, pid {self._killer.killed[0]}, in the middle of a page of "
                f"{label(self._lane)}. Its message comes again after 30 s; the others go on meanwhile."
            )
        elif self._lane and self.taken_over_after_s is None:
            (lane,) = (lane for lane in now.lanes if lane["key"] == self._lane)
            if lane["claims"] != 1:
                self.taken_over_after_s = self._elapsed()
                shown.note(
                    f"[green]taken over[/]: another process goes on with {label(self._lane)} after {self.taken_over_after_s:.0f} s"
                )


class Killer:
    """Kills the function that asks for a certain page: it is then surely in the middle of a step."""

    def __init__(self, cloud: Cloud, at_page: int = KILL_AT_PAGE) -> None:
        self._cloud = cloud
        self._at_page = at_page
        self.function = f"{STACK}-{kind_asking(UPSTREAM)}"
        self._pages = 0
        self._lock = threading.Lock()
        self.killed: list[int] = []

    def __call__(self, operation: Operation, asked: Mapping[str, Any]) -> None:  # noqa: ARG002 - the shape of a hook
        with self._lock:
            self._pages += operation is Operation.PAGE
            if self._pages < self._at_page or self.killed:
                return
            # A FIFO mapping of MiniStack runs one function at a time, so this is the one that asks.
            for pid in self._cloud.ministack.workers(self.function):
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)


def differences(stones: Sequence[Stone], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the rows lack, have too much, or have otherwise than the catalogue."""
    expected = {
        stone.id: (
            stone.offer_id,
            stone.price_cents,
            Decimal(str(stone.carats)),
            stone.shape,
            stone.rest["color"],
            stone.rest["clarity"],
            stone.rest["lab"],
            stone.rest["certNumber"],
            stone.availability,
        )
        for stone in stones
        if LOW * 100 <= stone.price_cents < HIGH * 100
    }
    found = {row["external_id"]: tuple(row.values())[1:] for row in rows}
    wrong = [f"missing: {key}" for key in expected.keys() - found.keys()]
    wrong += [f"not in the catalogue: {key}" for key in found.keys() - expected.keys()]
    wrong += [f"twice: {key}" for key, count in Counter(row["external_id"] for row in rows).items() if count > 1]
    both = expected.keys() & found.keys()
    wrong += [f"{key}: {found[key]} instead of {expected[key]}" for key in both if found[key] != expected[key]]
    return sorted(wrong)


def _taken_over(story: Story) -> str:
    return "" if story.taken_over_after_s is None else f"taken over by another after {story.taken_over_after_s:.0f} s"


def verdict(
    console: Console,
    now: Progress,
    figures: Mapping[str, Any],
    killed: str,
    wrong: list[str],
    *,
    set_up_s: float,
    stones: int,
    right: bool,
) -> int:
    partitions = sum(lane["key"].startswith("part:") for lane in now.lanes)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("run", f"{now.run['status']} ({now.run['outcome']})")
    table.add_row("rows", f"{figures['rows']:,} in {partitions} partitions; {len(wrong)} differ from the catalogue")
    table.add_row("pages", f"{figures['pages']:,} in {figures['steps']:,} steps of the function")
    table.add_row("killed", killed)
    table.add_row("repaired", f"{figures['repairs']} repairs by the tick, {figures['retries']} retries")
    table.add_row("time", f"{figures['seconds']:.1f} s, and {set_up_s:.1f} s to start the cloud")
    console.print()
    console.print(table)
    right = right and now.run["status"] == "succeeded" and figures["rows"] == stones and not wrong
    for line in wrong[:10]:
        console.print(f"  {line}")
    if not right:
        console.print("\n[bold red]Something is wrong.[/] Please report it, with the lines above.")
        return 1
    console.print("\n[bold green]Exactly the catalogue's rows, each once.[/] Nothing is left running.")
    console.print(
        "Next: `make up` starts a cloud that stays; docs/local-cloud.md shows what to do with it; `make chaos` is rougher."
    )
    return 0
