"""What the API answers, for people to read: tables, and bars while a run is going on.

On a terminal a table never wraps: IDs are cut to a prefix that is still unique (`infra/client/ids.py` takes it back), texts are
cut with an ellipsis, and what there is no room for is left out and named below. In a pipe or a log everything is whole.
"""

from __future__ import annotations

import os
import re
import sys
import time
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from infra.client import discover
from infra.client.http import Client, Patient

LOOK_EVERY_S = 1.0
LINE_EVERY_S = 2.0
ENDED = frozenset({"succeeded", "failed", "canceled"})
RED, GREEN, YELLOW, BOLD, DIM = "31", "32", "33", "1", "2"
COLOURS = {"succeeded": GREEN, "failed": RED, "dead_letter": RED, "retrying": YELLOW, "stalled": YELLOW, "throttled": YELLOW,
           "canceled": YELLOW, "paused": YELLOW}  # fmt: skip

# A text may be cut on a terminal; these are short, or are typed again, and are shown whole.
WHOLE = frozenset(
    {"action", "kind", "status", "state", "key", "provider", "client", "role", "argument", "type", "n", "night"}
)
NAMES_ONE = frozenset({"target", "held_by", "actor"})  # these have an ID in them
# What an action of the API is called here: `baton run wake`.
COMMANDS = {"wake": "run wake", "restart": "run restart", "open_gate": "rate-limit open"}
TITLES = {"sentence": "why", "held_by": "blocked by"}
GAP = 2
MOST_TABLES = 15
LEAST = 8  # what is left of a text that is cut
READABLE = 20  # what is left of it while something else can be left out
PREFIX_OF_TIME = 13  # of a UUID with its time in front: milliseconds
PREFIX = 8
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class Console:
    """Standard output, as it is at the moment of writing."""

    @property
    def is_terminal(self) -> bool:
        return sys.stdout.isatty()

    @property
    def width(self) -> int | None:
        """None: a log or a pipe has no edge."""
        if not self.is_terminal:
            return None
        try:
            return os.get_terminal_size(sys.stdout.fileno()).columns or 80
        except OSError:
            return 80

    @property
    def height(self) -> int:
        try:
            return os.get_terminal_size(sys.stdout.fileno()).lines or 24
        except OSError:
            return 24

    def print(self, text: str = "") -> None:
        print(text, flush=True)

    def style(self, text: str, code: str) -> str:
        plain = not self.is_terminal or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        return text if plain or not text else f"\x1b[{code}m{text}\x1b[0m"


console = Console()


# --- tables -----------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Mapping[str, Any]], *columns: str, optional: Sequence[str] = (), below: str = "") -> None:
    """One line per row; a column `why.sentence` looks into an object. `optional` is left out first if the terminal is narrow.
    `below`: a sentence that has to be read whole; where there is no room for it, it stands under its row."""
    if not rows:
        console.print("Nothing to show.")
        return
    width = console.width
    shown = [_Column(column, [_at(row, column) for row in rows], narrow=width is not None) for column in columns]
    if width is not None:  # a column without anything in it only takes room
        shown = [column for column in shown if any(column.cells)] or shown[:1]
    sentences = None if width is None else _taken_out(shown, width, below)
    left_out = [] if width is None else _fit(shown, width, optional)
    console.print(_line([console.style(_fill(c.title, c.width), BOLD) for c in shown]))
    for row in range(len(rows)):
        cells = [(c, _cut(c.cells[row], c.width)) for c in shown]
        console.print(_line([console.style(_fill(text, c.width), c.colours[row]) if c.colours[row] else _fill(text, c.width)
                             for c, text in cells]))  # fmt: skip
        if sentences and width is not None and sentences[row]:
            for line in _wrapped(sentences[row], width - GAP):
                console.print(" " * GAP + line)
    if left_out:
        console.print(console.style(f"(no room for: {', '.join(left_out)}; --json has it all)", DIM))


class _Column:
    """One column with its cells as text, and how wide it is now."""

    def __init__(self, name: str, values: Sequence[Any], *, narrow: bool) -> None:
        self.name = name
        self.title = title(name)
        self.is_id = is_id = narrow and (name == "id" or name.endswith("_id")) and _are_ids(values)
        size = _prefix(values) if is_id else None
        self.cells = [str(value)[:size] if is_id and value else cell(value, name, short=narrow) for value in values]
        names_one = narrow and name in NAMES_ONE
        if names_one:  # `run:<id>`: what is left of the ID is still its beginning
            size = _prefix([found for text in self.cells for found in UUID.findall(text)])
            self.cells = [UUID.sub(lambda found: found[0][:size], text) for text in self.cells]
        self.colours = [COLOURS.get(str(value), "") if name in {"status", "state"} else "" for value in values]
        self.width = max([_wide(self.title), *map(_wide, self.cells)])
        numbers = all(value is None or isinstance(value, int | float) for value in values)
        self.can_shrink = not (
            is_id or names_one or numbers or name in WHOLE or name.endswith(("_at", "until", "since"))
        )


def _taken_out(columns: list[_Column], width: int, name: str) -> list[str] | None:
    """The cells of this column, if a line with all of it is too long: then it is no column any more."""
    found = next((c for c in columns if c.name == name), None)
    if found is None or sum(c.width for c in columns) + GAP * (len(columns) - 1) <= width:
        return None
    columns.remove(found)
    return found.cells


def _fit(columns: list[_Column], width: int, optional: Sequence[str]) -> list[str]:
    """Shrink texts, then leave out columns, until a line fits. What was left out."""
    left_out: list[str] = []
    while True:
        over = sum(c.width for c in columns) + GAP * (len(columns) - 1) - width
        least = READABLE if any(c.name in optional for c in columns) else LEAST
        spare = [c.width - max(least, _wide(c.title)) for c in columns if c.can_shrink]
        if over <= 0 or over <= sum(max(0, each) for each in spare):
            break
        can_go = (
            [c for c in columns if c.name in optional]
            or [c for c in columns[1:] if c.can_shrink]
            or [c for c in columns[1:] if not c.is_id and c.name != "key"]
        )
        if not can_go:
            break
        columns.remove(can_go[-1])
        left_out.insert(0, can_go[-1].title)
    while over > 0 and (wide := [c for c in columns if c.can_shrink and c.width > max(LEAST, _wide(c.title))]):
        max(wide, key=lambda c: c.width).width -= 1
        over -= 1
    return left_out


def _are_ids(values: Sequence[Any]) -> bool:
    return all(value is None or UUID.fullmatch(str(value)) for value in values)


def _prefix(values: Sequence[Any]) -> int:
    """So many characters tell these IDs apart, and most probably any others."""
    ids = {str(value) for value in values if value}
    size = max((PREFIX_OF_TIME if each[14] == "7" else PREFIX for each in ids), default=PREFIX)
    while size < 36 and len({each[:size] for each in ids}) < len(ids):
        size += 1
    return size + 1 if any(each[size - 1 : size] == "-" for each in ids) else size


def title(column: str) -> str:
    """`why.sentence` is a why, `created_at` is when it was created."""
    name = column.partition(".")[0]
    return TITLES.get(name) or name.removesuffix("_at").removesuffix("_key").replace("_", " ")


def _line(cells: Sequence[str]) -> str:
    return (" " * GAP).join(cells).rstrip()


def _wide(text: str) -> int:
    """Columns of a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _fill(text: str, width: int) -> str:
    return text + " " * (width - _wide(text))


def _cut(text: str, width: int) -> str:
    if _wide(text) <= width:
        return text
    while text and _wide(text) >= width:
        text = text[:-1]
    return f"{text}…"


def facts(row: Mapping[str, Any]) -> None:
    """A name and a value per line; what is empty is left out."""
    told = [(title(name), cell(value, name)) for name, value in row.items() if value not in (None, [], {}, "")]
    indent = max((_wide(name) for name, _ in told), default=0) + GAP
    room = None if console.width is None else max(20, console.width - indent)
    for name, value in told:
        for number, line in enumerate(_wrapped(value, room)):
            console.print(_fill("" if number else name, indent) + line)


def _wrapped(text: str, room: int | None) -> list[str]:
    """At blanks where there are some; in the middle of a word that is wider than the line."""
    lines: list[str] = []
    for part in text.split("\n"):
        line = part
        while room is not None and _wide(line) > room:
            fits = _fitting(line, room)
            at = line.rfind(" ", 1, fits + 1)
            at = at if at > 0 else fits
            lines.append(line[:at].rstrip())
            line = line[at:].lstrip()
        lines.append(line)
    return lines


def _fitting(text: str, room: int) -> int:
    """So many of its characters fit; some take two columns. At least one, or it would never end."""
    at, taken = 0, 0
    while at < len(text) and (taken := taken + _wide(text[at])) <= room:
        at += 1
    return max(at, 1)


def cell(value: Any, column: str = "", *, short: bool = False) -> str:
    """Plain text on one line: what comes from outside cannot move the cursor."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and column.endswith(
        ("_at", "at", "until", "eta", "since", "_due", "_from", "_to", "_for")
    ):
        return instant(value, short=short)
    if isinstance(value, dict):
        return ", ".join(
            f"{name.replace('_', ' ')}: {cell(each, name)}" for name, each in value.items() if each is not None
        )
    if isinstance(value, list):
        return "; ".join(cell(each) for each in value)
    return COMMANDS.get(value, plain(str(value))) if column == "action" else plain(str(value))


def plain(text: str) -> str:
    return CONTROL.sub(" ", text)


def instant(text: str, *, short: bool = False) -> str:
    """In UTC, which the Z says; on a terminal without the parts that go without saying."""
    try:
        at = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return plain(text)
    if not short:
        return at.strftime("%Y-%m-%d %H:%M:%SZ")
    now = datetime.now(UTC)  # noqa: TID251 - how much of a time a reader needs
    if at.date() == now.date():
        return at.strftime("%H:%M:%SZ")
    return at.strftime("%b %d %H:%MZ" if at.year == now.year else "%Y-%m-%d")


def _at(row: Mapping[str, Any], column: str) -> Any:
    value: Any = row
    for name in column.split("."):
        value = None if value is None else value.get(name)
    return value


# --- whole pages ------------------------------------------------------------------------------------------------------


def now(told: Mapping[str, Any]) -> None:
    """What needs attention first; a part with nothing in it is left out."""
    opened = told["open"]
    more = "at least " if opened["more"] else ""
    count = opened["queued"] + opened["running"] + opened["paused"]
    states = ", ".join(f"{opened[name]} {name}" for name in ("running", "queued", "paused") if opened[name])
    console.print(
        f"{more}{count} open{states and f' ({states})'}, {told['moving']} made progress in the last 5 minutes"
    )
    console.print(_ago("scheduler", told["tick_age_s"]))
    trouble = {"overdue": told["late"]["count"], "failed": told["failing"]["count"], "waiting": len(told["waiting"])}
    if calm := [f"nothing {name}" for name, count in trouble.items() if not count]:
        console.print(", ".join(calm))
    steps, failed, rows = (sum(each[name] for each in told["throughput"]) for name in ("steps", "failed", "rows"))
    # They are summed up every minute: what a first run has just done is not among them yet.
    console.print(f"hour up to two minutes ago: {steps:,} steps, {failed:,} failed, {rows:,} rows")
    if line := _blocks([m["steps"] for m in told["throughput"]]):
        console.print(line)
    _part("overdue", told["late"]["runs"], "id", "kind", "status", "since", "label", "sentence", below="sentence")
    _part("failed in the last 24 hours", told["failing"]["groups"], "count", "run_id", "kind", "last_at", "code", "message",
          optional=("code",), below="message")  # fmt: skip
    _part(
        "waiting",
        told["waiting"],
        "runs",
        "run_id",
        "until",
        "sentence",
        "action",
        "held_by",
        optional=("held_by",),
        below="sentence",
    )
    _part(
        "rate limits",
        told["gates"],
        "key",
        "state",
        "until",
        "reason",
        "is_shared",
        optional=("is_shared",),
        below="reason",
    )
    _part("repairs", told["repairs"], "at", "run_id", "kind", "why", "lane_key", optional=("lane_key",))


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
            "messages given up": f"{dead['count']} in 24 hours",
            "deliveries given up": f"{told['unheard']['count']:,}",
            "repairs": f"{repairs['count']} in 24 hours{repaired and f' ({repaired})'}",
        }
    )
    _part("messages given up", dead["latest"], "at", "run_id", "kind", "lane_key", optional=("lane_key",))
    unheard = [{**each, "reason": (each["error"] or {}).get("message", "")} for each in told["unheard"]["latest"]]
    _part("deliveries given up", unheard, "at", "signal", "listener", "attempts", below="reason")
    _part("repairs", repairs["latest"], "at", "run_id", "kind", "why", "lane_key", optional=("lane_key",))
    everywhere = told["everywhere"]
    if everywhere:
        console.print("\nall tenants")
        facts({name.replace("_", " "): str(value) for name, value in everywhere.items() if name != "tables"})
        largest = everywhere["tables"][: None if console.width is None else MOST_TABLES]
        table([{**each, "size": size(each["bytes"])} for each in largest], "name", "size", "rows", "dead_rows")
        if len(largest) < len(everywhere["tables"]):
            console.print(f"and {len(everywhere['tables']) - len(largest)} smaller tables; --json has them all")


def _part(
    heading: str, rows: Sequence[Mapping[str, Any]], *columns: str, optional: Sequence[str] = (), below: str = ""
) -> None:
    if rows:
        console.print(f"\n{heading}")
        table(rows, *columns, optional=optional, below=below)


def size(count: float) -> str:
    """`1.6 MB`"""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 10 else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def _ago(what: str, seconds: float | None) -> str:
    return f"{what} not run yet" if seconds is None else f"{what} ran {seconds:,.0f} s ago"


def _blocks(values: Sequence[int]) -> str:
    """A line of blocks, a minute each."""
    most = max(values, default=0)
    return (
        "".join(" " if not value else "▁▂▃▄▅▆▇█"[(value * 8 - 1) // most] for value in values).rstrip() if most else ""
    )


# --- a run while it is going on ---------------------------------------------------------------------------------------


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


def watch(client: Client, run_id: str, view: LiveBars | Lines | None = None) -> Any:
    """Show a run until it has ended; what it is then. An API that does not answer for a moment ends nothing."""
    view = view or (LiveBars() if console.is_terminal else Lines())
    run = client.get(f"/runs/{run_id}")
    patient = Patient.like(client, view.note)
    progress = getattr(discover.found().get(run["kind"]), "progress", None)
    with view:
        while True:
            view.show(run, progress(patient, run) if progress else Bars())
            if run["status"] in ENDED:
                return run
            pause()
            run = patient.get(f"/runs/{run_id}")


def plural(count: int, one: str) -> str:
    """`1 step`, `2 steps`"""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def how_far(progress: Mapping[str, Any]) -> str:
    """`92 of 710 rows`, or in lanes where nothing else is counted."""
    if rows := progress.get("rows"):
        done = rows["done"] + rows["failed"]
        return f"{done:,} {rows['unit']}" if rows["all"] is None else f"{done:,} of {rows['all']:,} {rows['unit']}"
    return f"{progress['lanes_ended']:,} of {progress['lanes']:,} lanes" if progress["lanes"] > 1 else ""


def summary(run: Mapping[str, Any]) -> str:
    began, ended = (datetime.fromisoformat(run[name]) for name in ("created_at", "finished_at"))
    progress = run["progress"]
    more = "more than " if progress["more_lanes"] else ""
    said = f"{plural(progress['steps'], 'step')} in {more}{plural(progress['lanes'], 'lane')}"
    outcome = f" ({run['outcome']})" if run["outcome"] not in (None, run["status"]) else ""
    why = f"\ncause: {plain(str(run['error'].get('message')))}" if run["error"] else ""
    return f"{run['status']}{outcome} after {(ended - began).total_seconds():.1f} s: {said}{why}{_way_out(run)}"


def _way_out(run: Mapping[str, Any]) -> str:
    """What to do about a run that failed, in the order of doing it."""
    if run["status"] != "failed" or not run["error"]:
        return ""
    again = f"`baton retry {run['id'][:PREFIX_OF_TIME]}`"
    if run.get("fix") is None:
        return f"\nfix:   {again} tries again when the cause is gone"
    change = f"`baton connection change {run['fix']['target'][:PREFIX_OF_TIME]}"
    return f"\nfix:   {change} --new-secret` (or --set NAME=VALUE), then {again}"


BAR = 24
NAME = 26
STATE = 9  # `succeeded`


def bar(done: int, total: int | None, width: int = BAR) -> str:
    """`━━━━━━━━╌╌╌╌`; without a total nothing is filled."""
    filled = 0 if not total else min(width, width * done // total)
    return console.style("━" * filled, GREEN) + console.style("╌" * (width - filled), DIM)


class LiveBars(AbstractContextManager["LiveBars"]):
    """One bar for the run's lanes, and one for each part that its kind tells of, redrawn in place."""

    def __init__(self) -> None:
        self._drawn = 0

    def show(self, run: Mapping[str, Any], bars: Bars) -> None:
        progress = run["progress"]
        why = "" if run["why"] is None or run["status"] in ENDED else plain(run["why"]["sentence"])
        self.draw([Bar("lanes", progress["lanes_ended"], progress["lanes"], run["state"]), *bars.parts], why)

    def draw(self, parts: Sequence[Bar], why: str = "") -> None:
        """`why`: what it waits for, whole, below the bars."""
        said = _wrapped(why, console.width or 200) if why else []
        room = max(3, console.height - 2 - len(said))
        shown = list(parts)
        if len(shown) > room:  # what is done says least
            shown = sorted(parts, key=lambda part: part.total is not None and part.done >= part.total)[: room - 1]
        lines = [self._line(part) for part in shown]
        lines += [f"… and {len(parts) - len(shown):,} more"] if len(shown) < len(parts) else []
        lines += said
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        sys.stdout.write(up + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        self._drawn = len(lines)

    def note(self, text: str) -> None:
        """A line that stays, above the bars."""
        up = f"\x1b[{self._drawn}A\x1b[J" if self._drawn else ""
        sys.stdout.write(f"{up}{text}\n")
        sys.stdout.flush()
        self._drawn = 0

    def _line(self, part: Bar) -> str:
        """Never wider than the terminal: a line that wraps would stay there when the bars are drawn again."""
        count = f"{part.done:,}/{'?' if part.total is None else f'{part.total:,}'}"
        rest = f" {count:>13} "
        room = (console.width or 200) - len(rest) - STATE - 2
        bar_width = max(LEAST, min(BAR, room // 2))
        name = max(LEAST, min(NAME, room - bar_width))
        head = f"{_fill(_cut(plain(part.name), name), name)} "
        left = (console.width or 200) - _wide(head) - bar_width - len(rest) - 1
        return f"{head}{bar(part.done, part.total, bar_width)}{rest}{_cut(plain(part.state), max(0, left))}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Lines(AbstractContextManager["Lines"]):
    """For a log: a line when something has changed, not more often than every two seconds."""

    def __init__(self) -> None:
        self._next = 0.0
        self._last = ""

    def __exit__(self, *_: object) -> None:
        pass

    def note(self, text: str) -> None:
        console.print(plain(text))

    def show(self, run: Mapping[str, Any], bars: Bars) -> None:
        progress = run["progress"]
        lanes = f"{progress['lanes_ended']:,} of {plural(progress['lanes'], 'lane')}"
        said = f"{run['state']}: {lanes}, {plural(progress['steps'], 'step')}"
        said += f", {bars.line}" if bars.line else ""
        said += f"; {run['why']['sentence']}" if run["why"] and run["status"] not in ENDED else ""
        if said == self._last or (time.monotonic() < self._next and run["status"] not in ENDED):
            return
        self._next, self._last = time.monotonic() + LINE_EVERY_S, said
        console.print(plain(said))


class Nothing(Lines):
    """For a program, which only wants the end."""

    def note(self, text: str) -> None:
        """It would not be JSON."""

    def show(self, run: Mapping[str, Any], bars: Bars) -> None:
        """As above."""
