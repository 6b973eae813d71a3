"""Once: every `*.patch` becomes an entry of a TOML file, and each is seen to make the same change as its patch.

`python -m tests.mutants.convert` writes the TOML files and prints a report; with `--names FILE` it takes new names and
reasons from a JSON object `{old name: {"name": …, "because": …}}`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from difflib import SequenceMatcher
from pathlib import Path

from tests.mutants.data import Change, Mutant, apply, load

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def room(file: str) -> str:
    """Which TOML file a mutant of `file` belongs to: one for each kind and for each module of the kernel."""
    parts = file.removesuffix(".py").split("/")
    match parts:
        case ["shared", "kernel", "api", *_]:
            return "kernel/api"
        case ["shared", "kernel", module]:
            return f"kernel/{module}"
        case ["shared", "job_queue", "triggers", *_]:
            return "triggers"
        case ["shared", "page_ingest", ("source" | "reader") as part, *_]:
            return f"source_{'files' if part == 'source' else 'reads'}"
        case ["shared", "search", "sheets", *_]:
            return "sheets"
        case ["shared", kind, *_]:
            return kind
        case ["infra", part, _, *_]:
            return part
        case _:
            return "workers"


def changes(before: str, after: str, file: str) -> list[Change]:
    """The least that has to be named, so that each text is there exactly once."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    blocks = [op[1:] for op in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if op[0] != "equal"]
    # Changes that are close together are one.
    joined: list[tuple[int, int, int, int]] = []
    for block in blocks:
        if joined and block[0] - joined[-1][1] <= 3:
            joined[-1] = (joined[-1][0], block[1], joined[-1][2], block[3])
        else:
            joined.append(block)
    return [_change(old, new, *block, before, file) for block in joined]


def _change(old: list[str], new: list[str], i1: int, i2: int, j1: int, j2: int, before: str, file: str) -> Change:
    if i2 - i1 == 1 and j2 - j1 == 1:
        was, becomes = old[i1].rstrip("\n"), new[j1].rstrip("\n")
        indent = len(was) - len(was.lstrip())
        if becomes[:indent] == was[:indent] and before.count(was[indent:]) == 1:
            return Change(file, was[indent:], becomes[indent:])
    up = False
    if i1 == i2:  # something is added: it is named by the line above it
        i1, j1 = i1 - 1, j1 - 1
    while True:
        was, becomes = "".join(old[i1:i2]), "".join(new[j1:j2])
        if before.count(was) == 1:
            return Change(file, was, becomes)
        if up and i1 > 0:
            i1, j1 = i1 - 1, j1 - 1
        elif i2 < len(old):
            i2, j2 = i2 + 1, j2 + 1
        up = not up


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", type=Path)
    args = parser.parse_args()
    names = json.loads(args.names.read_text()) if args.names else {}
    rooms: dict[str, list[Mutant]] = defaultdict(list)
    patches = sorted(HERE.glob("*.patch"))
    same = 0
    for patch in patches:
        text = patch.read_text()
        files = list(dict.fromkeys(re.findall(r"^\+\+\+ b/(\S+)", text, re.MULTILINE)))
        after = _patched(patch, files)
        every = [each for file in files for each in changes((ROOT / file).read_text(), after[file], file)]
        head = text.partition("--- a/")[0]
        because, _, killer = head.partition("killed by:")
        new = names.get(patch.stem, {})
        mutant = Mutant(
            new.get("name", patch.stem),
            " ".join((new.get("because") or because).split()),
            " ".join(killer.split()),
            tuple(every),
        )
        made = apply(mutant, ROOT)
        same += made == after
        if made != after:
            print("DIFFERS", patch.stem)
        rooms[room(files[0])].append(mutant)
    for name, found in rooms.items():
        path = HERE / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        found.sort(key=lambda mutant: (mutant.changes[0].file, _place(mutant)))
        path.write_text(dump(found))
        assert load(path) == found, path
    print(f"{same} of {len(patches)} equal to their patches, in {len(rooms)} files")
    return 0 if same == len(patches) else 1


def dump(mutants: list[Mutant]) -> str:
    return "\n".join("\n".join(_lines(mutant)) + "\n" for mutant in mutants)


def _lines(mutant: Mutant) -> list[str]:
    first, *rest = mutant.changes
    lines = [
        "[[mutant]]",
        *(f"{key} = {_string(getattr(mutant, key))}" for key in ("name", "because", "noticed_by")),
        *(f"{key} = {_string(getattr(first, key))}" for key in ("file", "old", "new")),
    ]
    for change in rest:
        lines += ["[[mutant.also]]", *(f"{key} = {_string(getattr(change, key))}" for key in ("file", "old", "new"))]
    return lines


def _string(text: str) -> str:
    if "\n" not in text:
        if "'" not in text and not text.isspace():
            quote = '"' if '"' not in text and "\\" not in text else "'"
            return f"{quote}{text}{quote}"
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if "'''" not in text and not text.endswith("'"):
        return f"'''\n{text}'''"
    return '"""\n' + text.replace("\\", "\\\\").replace('"""', '""\\"') + '"""'


def _place(mutant: Mutant) -> int:
    first = mutant.changes[0]
    return (ROOT / first.file).read_text().find(first.old)


def _patched(patch: Path, files: list[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
        subprocess.run(
            ["git", "apply", "--whitespace=nowarn", str(patch)],
            cwd=folder, check=True, env={"GIT_CEILING_DIRECTORIES": str(folder.parent), "GIT_DIR": "/dev/null", "PATH": "/usr/bin"},
        )  # fmt: skip
        return {file: (folder / file).read_text() for file in files}


if __name__ == "__main__":
    sys.exit(main())
