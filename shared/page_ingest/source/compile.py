"""From the bytes of a source file to what a run would do and can prove; or every fault with its line. Pure: no I/O.

    compiled = compile_source("github.toml", data)   # raises Refused

`compiled.digest` is what a run pins: it names what the file means, so comments and layout do not change it.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.page_ingest.source import plan, shapes
from shared.page_ingest.source.claim import RANK, Best, best_claim
from shared.page_ingest.source.lines import Path, key_lines, line_of
from shared.page_ingest.source.model import Claim, Fault, Refused, Resource, Source
from shared.page_ingest.source.read import read_source
from shared.page_ingest.source.rules import faults_of

MOST_BYTES = 256 * 1024
MOST_FAULTS = 20
MEANING = "baton-source/1"  # changes when the same file comes to mean something else


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledResource:
    resource: Resource
    table: str
    best: Best
    phases: Sequence[plan.Phase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    source: Source
    digest: str
    resources: Sequence[CompiledResource]  # parents first

    @property
    def claim(self) -> Claim:
        """The best that a run of all resources can say: that of the weakest."""
        return min((each.best.claim for each in self.resources), key=RANK.__getitem__)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source.name,
            "digest": self.digest,
            "claim": self.claim,
            "resources": [_told(each) for each in self.resources],
        }


def compile_source(file: str, data: bytes) -> Compiled:
    """What the file means, or `Refused` with each fault by file, line and key."""
    text = _text(file, data)
    tables = _tables(file, text)
    lines = key_lines(text)
    found: list[tuple[Path, str]] = []
    source = read_source(tables, lambda path, message: found.append((path, message)))
    if not found:
        found = faults_of(source)
    if found:
        faults = {Fault(file, line_of(lines, path), key_name(path), printable(message)) for path, message in found}
        raise Refused(sorted(faults)[:MOST_FAULTS])
    return compiled(source, digest(tables))


def compiled(source: Source, pinned: str) -> Compiled:
    """What a source that breaks no rule means."""
    return Compiled(
        source=source,
        digest=pinned,
        resources=tuple(_compiled(source, resource) for resource in plan.in_order(source.resources)),
    )


def digest(tables: Mapping[str, Any]) -> str:
    meaning = json.dumps(tables, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(f'{MEANING} {meaning}'.encode()).hexdigest()}"


def printable(message: str) -> str:
    """What a file says is quoted in messages; nothing in it may move a terminal's cursor."""
    return message if message.isprintable() else message.encode("unicode_escape").decode()


def key_name(path: Path) -> str:
    """A key as people write it: `resources.issues.page.size` is `issues.page.size`."""
    parts = path[1:] if len(path) > 1 and path[0] == "resources" else path
    said = ""
    for part in parts:
        said += f"[{part}]" if isinstance(part, int) else f".{shapes.named(part)}" if said else shapes.named(part)
    return said or "source"


def _compiled(source: Source, resource: Resource) -> CompiledResource:
    best = best_claim(resource, source.resources)
    return CompiledResource(
        resource=resource,
        table=plan.table(source, resource),
        best=best,
        phases=plan.phases(source, resource, best),
    )


def _told(each: CompiledResource) -> dict[str, Any]:
    return {
        "name": each.resource.name,
        "table": each.table,
        "claim": each.best.claim,
        "reason": each.best.reason,
        "better": each.best.better,
        "endings": list(each.best.endings),
        "steps": [{"phase": phase.name, "does": phase.does} for phase in each.phases],
    }


# --- the text ---------------------------------------------------------------------------------------------------------


def _text(file: str, data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise Refused([Fault(file, 1, "file", f"has {len(data):,} bytes; at most {MOST_BYTES:,} are read.")])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Refused([Fault(file, line, "file", "is not UTF-8. Save it as UTF-8.")]) from None
    if text.startswith("\ufeff"):
        raise Refused([Fault(file, 1, "file", "starts with a byte order mark. Save it as UTF-8 without one.")])
    return text


def _tables(file: str, text: str) -> dict[str, Any]:
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise Refused([Fault(file, _deepest_line(text), "toml", "is nested too deeply.")]) from None
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        raise Refused([_syntax(file, text, str(error))]) from None
    deep = _too_deep(tables)
    if deep is not None:
        line = line_of(key_lines(text), deep)
        raise Refused([Fault(file, line, key_name(deep[:3]), f"is nested deeper than {shapes.DEEPEST} levels.")])
    return tables


def _syntax(file: str, text: str, said: str) -> Fault:
    place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", said)
    if place is None:
        long = re.search(r"[0-9_]{1000}", text)
        line = text.count("\n", 0, long.start()) + 1 if long else 1
        return Fault(file, line, _key_on(text, line), "has a number with too many digits.")
    line = int(place[1]) if place[1] else text.rstrip("\n").count("\n") + 1
    what = printable(said[: place.start()].rstrip("."))
    return Fault(file, line, _key_on(text, line), f"is not valid TOML: {what[:1].lower()}{what[1:]}.")


def _key_on(text: str, line: int) -> str:
    """The key that a line begins with, as far as one can tell from text that is not TOML."""
    lines = text.replace("\r\n", "\n").split("\n")
    begins = re.match(r"\s*\[{0,2}\s*([A-Za-z0-9_.-]{1,60})", lines[line - 1] if line <= len(lines) else "")
    return begins[1] if begins else "toml"


def _deepest_line(text: str) -> int:
    """The line with the most brackets: where people nest too deeply, they do it there."""
    lines = text.split("\n")
    return max(range(len(lines)), key=lambda n: lines[n].count("[") + lines[n].count("{")) + 1


def _too_deep(value: Any, path: Path = ()) -> Path | None:
    if len(path) > shapes.DEEPEST:
        return path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for name, each in inner if (found := _too_deep(each, (*path, name))) is not None), None)
