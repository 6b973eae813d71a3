"""Is the proof awake? Break one rule at a time and see that a proof notices.

`python -m tests.mutants.run [name …]`. Every `*.patch` beside this file is a mutant; drop in another one and it is tried.
Its first lines say what is broken. A line `killed by:` names the proof that must notice:

- `memory`, `postgres`   the simulation, perhaps with the one mode of schedules that shows it, as in `memory blackout`;
- `races`                two connections, perhaps with an expression for `pytest -k`;
- `tests PATH …`         tests by path or expression, as pytest takes them.

A patch without that line is judged by all of them, cheap ones first, until one notices: tests nearby (those that notice the
mutants beside it, and those that name what it changes), simulation in memory and on Postgres, races, then the tests of what it
touches. What it touches in the front door is asked of the tests of that.

Only a broken promise or a failed test counts. A mutant that cannot run proves nothing and is an error: a patch that does
not fit, code that does not compile or names what is not there, SQL that Postgres does not understand, tests that do not
start, no end in sight.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.support.databases import TEMPLATE, ServerAdmin, scratch_server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LEFT_OUT = shutil.ignore_patterns(
    ".*", "node_modules"
)  # what is compiled comes along, and still fits all but the patched files
KINDS = ("memory", "postgres", "races", "tests")
SCHEDULES = {"memory": 6_000, "postgres": 2_000}
SCHEDULES_OF_ONE_MODE = {"memory": 2_000, "postgres": 600}
# Ten patches that nobody notices take less than ten minutes on two cores.
SCHEDULES_OF_A_STRANGER = {"memory": 5_000, "postgres": 500}
LONGEST_S = 600
NEAREST = 12  # mutants of the same file
MOST_NAMING = 3  # files of tests: a name that more of them have says little

# What the memory store is a second writing of: a change here cannot be seen with it.
ONLY_ON_POSTGRES = re.compile(r"shared/kernel/(sql|store|db|direct|flights)\.py|infra/migrations/")
# The tests of the relay, as far as they are quick; those of a kind are found by its name.
TESTS_OF_THE_KERNEL = [
    "tests/unit/test_decide.py", "tests/unit/test_retry.py", "tests/integration/test_store.py",
    "tests/integration/test_store_calls.py",
    "tests/integration/test_relay.py", "tests/integration/test_tick_fairness.py", "tests/integration/test_cancel_waits.py",
    "tests/integration/test_retention.py", "tests/integration/test_room_for_kinds.py", "tests/integration/test_failover.py",
    "tests/integration/test_broken_kinds.py", "tests/integration/test_pull.py", "tests/flaws/test_platform_flaws.py",
    "tests/integration/test_tokens.py", "tests/integration/test_pulse.py", "tests/contract/test_http.py",
]  # fmt: skip
# The front door: no simulation comes through it.
FRONT_DOOR = "shared/kernel/api/"
TESTS_OF_THE_FRONT_DOOR = [
    f"tests/api/test_{name}.py" for name in ("hostile", "people", "connections", "runs", "now", "failures", "stream")
]


class Word(StrEnum):
    KILLED = "killed"
    SURVIVED = "SURVIVED"
    DID_NOT_RUN = "DID NOT RUN"


@dataclass(frozen=True, slots=True)
class Mutant:
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def killer(self) -> list[str]:
        """The proof that must notice, and its arguments; empty for a patch of which nobody said."""
        for line in self.path.read_text().splitlines():
            if line.startswith("---"):
                break
            if line.startswith("killed by:"):
                return shlex.split(line.removeprefix("killed by:"))
        return []

    @property
    def words(self) -> list[str]:
        """Names of ours in the lines that it takes out."""
        gone = re.findall(r"^-(?!-- )(.*)", self.path.read_text(), re.MULTILINE)
        return sorted({word for line in gone for word in re.findall(r"\b[a-zA-Z]\w*_\w+\b", line)})

    @property
    def touches(self) -> list[str]:
        return [path for path, _ in self.places]

    @property
    def places(self) -> list[tuple[str, int]]:
        """The files that it changes, and the first line that it changes there."""
        found: list[tuple[str, int]] = []
        file, line = "", 0
        for each in self.path.read_text().splitlines():
            if each.startswith("+++ b/"):
                file = each.removeprefix("+++ b/").split()[0]
            elif hunk := re.match(r"@@ -(\d+)", each):
                line = int(hunk[1])
            elif file and each[:1] in ("-", "+") and not each.startswith(("--- ", "+++ ")):
                if file not in dict(found):
                    found.append((file, line))
            elif file:
                line += 1
        return found


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    word: Word
    proof: str
    how: str
    took_s: float


def mutants(names: list[str]) -> list[Mutant]:
    found = [Mutant(path) for path in sorted(HERE.glob("*.patch"))]
    unknown = set(names) - {mutant.name for mutant in found}
    if unknown:
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    return [mutant for mutant in found if not names or mutant.name in names]


def proofs(mutant: Mutant) -> Iterator[tuple[str, list[str]]]:
    """Each proof to ask, with its command."""
    if mutant.killer:
        kind, *arguments = mutant.killer
        yield (
            shlex.join(mutant.killer),
            _command(kind, arguments, SCHEDULES_OF_ONE_MODE if arguments else SCHEDULES),
        )
        return
    if close := nearby(mutant):
        yield "tests nearby", _command("tests", close, SCHEDULES_OF_A_STRANGER)
    kinds = {path.split("/")[1] for path in mutant.touches if re.match(r"shared/(?!kernel/)\w+/", path)}
    at_the_door = any(path.startswith(FRONT_DOOR) for path in mutant.touches)
    in_the_kernel = [p for p in mutant.touches if p.startswith("shared/kernel/") and not p.startswith(FRONT_DOOR)]
    kernel = bool(in_the_kernel) or not (kinds or at_the_door)
    if kernel and not all(map(ONLY_ON_POSTGRES.match, mutant.touches)):
        yield "memory", _command("memory", [], SCHEDULES_OF_A_STRANGER)
    if kernel:
        yield "postgres", _command("postgres", [], SCHEDULES_OF_A_STRANGER)
        yield "races", _command("races", [], SCHEDULES_OF_A_STRANGER)
        tests = [path for path in TESTS_OF_THE_KERNEL if (ROOT / path).exists()]
        yield "tests of the kernel", _command("tests", tests, SCHEDULES_OF_A_STRANGER)
    if at_the_door:
        yield "tests of the front door", _command("tests", TESTS_OF_THE_FRONT_DOOR, SCHEDULES_OF_A_STRANGER)
    for kind in sorted(filter(tests_of, kinds)):
        yield f"tests of {kind}", _command("tests", tests_of(kind), SCHEDULES_OF_A_STRANGER)


def nearby(mutant: Mutant) -> list[str]:
    """The tests that notice the nearest mutants of the same files, and the few that name what is changed."""
    found: dict[str, None] = {}
    for file, line in mutant.places:
        beside = [
            (abs(there - line), argument)
            for other in mutants([])
            if other.killer[:1] == ["tests"]
            for path, there in other.places
            if path == file
            for argument in other.killer[1:]
            if argument.startswith("tests/")
        ]
        found |= dict.fromkeys(argument for _, argument in sorted(beside)[:NEAREST])
        for name in [*_names_at(file, line), *mutant.words]:
            word = re.compile(rf"\b{re.escape(name)}\b")
            naming = [path for path in _files_of_tests() if word.search(path.read_text())]
            if len(naming) <= MOST_NAMING:
                found |= dict.fromkeys(str(path.relative_to(ROOT)) for path in naming)
    whole = {each for each in found if "::" not in each}
    return [each for each in found if each in whole or each.partition("::")[0] not in whole]


def _names_at(file: str, line: int) -> list[str]:
    """What the line belongs to: the function or the constant."""
    path = ROOT / file
    if path.suffix != ".py" or not path.exists():
        return []
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.Assign | ast.AnnAssign) and node.lineno <= line <= (
            node.end_lineno or 0
        ):
            if isinstance(node, ast.FunctionDef):
                names.append(node.name)
            else:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names += [each.id for each in targets if isinstance(each, ast.Name) and each.id.isupper()]
    return names


def _files_of_tests() -> list[Path]:
    return [
        path
        for place in ("unit", "contract", "integration", "flaws", "races", "api")
        for path in sorted((ROOT / "tests" / place).glob("test_*.py"))
    ]


def tests_of(kind: str) -> list[str]:
    """The tests that bear a kind's name, quick ones first."""
    places = ("unit", "contract", "integration", "flaws", "races")
    found = [
        path for place in places for path in sorted((ROOT / "tests" / place).glob(f"test_*{kind.rstrip('s')}*.py"))
    ]
    return [str(path.relative_to(ROOT)) for path in found]


def _command(kind: str, arguments: list[str], schedules: dict[str, int]) -> list[str]:
    if kind in schedules:
        mode = ["--mode", *arguments] if arguments else []
        simulation = [sys.executable, "-m", "tests.simulation.simulate", "--store", kind, "--jobs", "1"]
        return [*simulation, "--schedules", str(schedules[kind]), *mode]
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.mutants.witness"]
    if kind == "races":
        return [*pytest, "tests/races", *(["-k", " ".join(arguments)] if arguments else [])]
    return [*pytest, *arguments]


def attempt(mutant: Mutant, database_url: str, template: str) -> Verdict:
    began = time.monotonic()

    def verdict(word: Word, proof: str, how: str) -> Verdict:
        return Verdict(mutant, word, proof, how, time.monotonic() - began)

    with tempfile.TemporaryDirectory(prefix=f"baton-{mutant.name}-") as temporary:
        folder = Path(temporary)
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT, dirs_exist_ok=True)
        problem = apply(mutant, folder) or _does_not_compile(mutant, folder)
        if problem:
            return verdict(Word.DID_NOT_RUN, "", problem)
        for proof, command in proofs(mutant):
            migrates = any(path.startswith("infra/") for path in mutant.touches)
            word, how = _ask(
                command, folder, {"DATABASE_URL": database_url} | ({} if migrates else {TEMPLATE: template})
            )
            if word is not Word.SURVIVED:
                return verdict(word, proof, how)
    return verdict(Word.SURVIVED, shlex.join(mutant.killer) or "all", "")


def apply(mutant: Mutant, folder: Path) -> str:
    """Put the wrong rule in place; answers why it cannot be done."""
    applied = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(mutant.path)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent), "GIT_DIR": "/dev/null"},
    )
    return applied.stderr.strip()[:200] if applied.returncode else ""


def _does_not_compile(mutant: Mutant, folder: Path) -> str:
    """A name that is not there would be caught as a surprise somewhere and look like a discovery."""
    changed = [path for path in mutant.touches if path.endswith(".py") and (folder / path).exists()]
    if not changed:
        return ""
    ruff = [
        str(Path(sys.executable).with_name("ruff")),
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "E9,F821,F823",
    ]
    checked = subprocess.run(
        [*ruff, "--output-format", "concise", *changed], cwd=folder, capture_output=True, text=True, check=False
    )
    return checked.stdout.splitlines()[0] if checked.returncode else ""


def _ask(command: list[str], folder: Path, where: dict[str, str]) -> tuple[Word, str]:
    env = {**os.environ, **where, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=LONGEST_S
        )
    except subprocess.TimeoutExpired:
        return Word.DID_NOT_RUN, f"no end after {LONGEST_S} s"
    if done.returncode == 0:
        return Word.SURVIVED, ""
    lines = (done.stderr + "\n" + done.stdout).splitlines()
    for word, sign in ((Word.DID_NOT_RUN, "DID NOT RUN "), (Word.KILLED, "VIOLATION "), (Word.KILLED, "NOTICED ")):
        named = [line for line in lines if line.startswith(sign)]
        if named:
            return word, named[0].removeprefix(sign)
    return Word.DID_NOT_RUN, " | ".join([f"exit {done.returncode}", *(line for line in lines[-4:] if line.strip())])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutants to try; all without any")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    chosen = mutants(args.names)
    verdicts: list[Verdict] = []
    with scratch_server({"max_connections": "300"}) as server, ThreadPoolExecutor(args.jobs) as pool:
        template = ServerAdmin(server.url()).create_template()
        for future in as_completed([pool.submit(attempt, mutant, server.url(), template) for mutant in chosen]):
            verdicts.append(future.result())
            _print(verdicts[-1])
    counted = {word: sum(verdict.word is word for verdict in verdicts) for word in Word}
    print(", ".join(f"{count} {word}" for word, count in counted.items()), f"of {len(verdicts)} mutants")
    for verdict in verdicts:
        if verdict.word is not Word.KILLED:
            _print(verdict)
    return 0 if verdicts and counted[Word.KILLED] == len(verdicts) else 1


def _print(verdict: Verdict) -> None:
    name, proof = verdict.mutant.name, verdict.proof[:24]
    print(f"{verdict.word:11s}  {name:46s} {verdict.took_s:6.1f} s  {proof:24s}  {verdict.how[:120]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
