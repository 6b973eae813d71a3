"""Mutants as data: each names a text of the product that is there exactly once, and the wrong text that takes its place.

One TOML file for each kind and for each module of the kernel:

    [[mutant]]
    name = "a-canceled-pause-uses-up-time"    # the broken rule, in plain words
    because = "A pause that is canceled counts against the run's time."
    noticed_by = "tests tests/integration/test_pause.py::test_a_pause_costs_no_time"
    file = "shared/kernel/decide.py"
    old = 'paused_for = now - lane.paused_at'
    new = 'paused_for = timedelta(0)'

A mutant that needs a second change has `[[mutant.also]]` with `file`, `old` and `new`. `noticed_by` names the proof that
must notice the mutant, as `tests/mutants/run.py` describes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FIELDS = {"name", "because", "noticed_by", "file", "old", "new", "also"}


class BadMutant(Exception):
    """The message says which one, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Change:
    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """`noticed_by` is empty for a stranger: the runner looks for a proof."""

    name: str
    because: str
    noticed_by: str
    changes: tuple[Change, ...]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(change.file for change in self.changes))


def load(path: Path) -> list[Mutant]:
    try:
        table = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadMutant(f"{path}: {error}") from error
    entries = table.get("mutant")
    if set(table) != {"mutant"} or not isinstance(entries, list):
        raise BadMutant(f"{path}: expected [[mutant]] tables and nothing else")
    return [_mutant(entry, path) for entry in entries]


def _mutant(entry: dict[str, Any], path: Path) -> Mutant:
    name = entry.get("name", "?")
    unknown = set(entry) - FIELDS
    if unknown:
        raise BadMutant(f"{path}: {name}: unknown {', '.join(sorted(unknown))}")
    try:
        changes = tuple(Change(each["file"], each["old"], each["new"]) for each in [entry, *entry.get("also", [])])
        return Mutant(entry["name"], entry.get("because", ""), entry.get("noticed_by", ""), changes)
    except KeyError as missing:
        raise BadMutant(f"{path}: {name}: {missing} is missing") from missing


def apply(mutant: Mutant, root: Path) -> dict[str, str]:
    """The text of each changed file, as the mutant has it."""
    changed: dict[str, str] = {}
    for change in mutant.changes:
        if change.file not in changed:
            try:
                changed[change.file] = (root / change.file).read_text()
            except OSError as error:
                raise BadMutant(f"{mutant.name}: {change.file}: {error.strerror}") from error
        times = changed[change.file].count(change.old) if change.old else 0
        if times != 1:
            raise BadMutant(f"{mutant.name}: {change.file} has its `old` {times} times: {change.old.strip()[:80]!r}")
        if change.old == change.new:
            raise BadMutant(f"{mutant.name}: `new` is the same as `old`")
        changed[change.file] = changed[change.file].replace(change.old, change.new)
    return changed


def places(mutant: Mutant, root: Path) -> list[tuple[str, int]]:
    """Each file that the mutant changes, with the number of the first changed line."""
    return [(file, _first_difference((root / file).read_text(), text)) for file, text in apply(mutant, root).items()]


def _first_difference(before: str, after: str) -> int:
    pairs = zip_longest(before.splitlines(), after.splitlines())
    return next((number for number, (old, new) in enumerate(pairs, 1) if old != new), 1)


def from_patch(path: Path, root: Path) -> Mutant:
    """A patch as `git diff` prints it; its line numbers may be off, its context may not."""
    text = path.read_text()
    files = sorted({line[6:].split("\t")[0] for line in text.splitlines() if line.startswith("+++ b/")})
    missing = [file for file in files if not (root / file).is_file()]
    if missing or not files:
        raise BadMutant(f"{path}: a mutant changes files that exist; not found: {', '.join(missing) or 'any file'}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, folder / file)
        applied = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", str(path.resolve())],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent), "GIT_DIR": "/dev/null"},
        )
        if applied.returncode:
            raise BadMutant(f"{path}: {applied.stderr.strip()[:200]}")
        changes = [Change(file, (root / file).read_text(), (folder / file).read_text()) for file in files]
    return Mutant(path.stem, "", "", tuple(changes))
