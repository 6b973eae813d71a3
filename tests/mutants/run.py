"""Is the proof awake? Break one rule at a time and see that a proof notices.

`python -m tests.mutants.run [WHICH …]`, or `make mutants ARGS="WHICH …"`; without any, all of them. WHICH is

- the name of a mutant, `kernel/decide` or `search` (a TOML file beside this one), or `shared/kernel/decide.py` (what it breaks);
- a file that somebody else wrote, anywhere: `strangers.toml`, or `stranger.patch` as `git diff` prints it.

`noticed_by` names the proof that must notice a mutant:

- `memory`, `postgres`   the simulation, perhaps with the one mode of schedules that shows it, as in `memory blackout`;
- `races`                two connections, perhaps with an expression for `pytest -k`;
- `tests PATH …`         tests by path or expression, as pytest takes them.

A stranger has no `noticed_by` and is judged by all of them, cheap ones first, until one notices: tests nearby (those that
notice the mutants beside it, and those that name what it changes), simulation in memory and on Postgres, races, then the tests
of the module that it changes. Changes of the API are judged by the API's tests.

Only a broken promise or a failed test counts. A mutant that can't run proves nothing and is an error: a text that isn't
there exactly once, code that doesn't compile or uses undefined names, SQL that Postgres can't parse, tests that don't start,
no end in sight.
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.data import HERE, ROOT, BadMutant, Mutant, apply, from_patch, load, places
from tests.support.databases import TEMPLATE, ServerAdmin, scratch_server

LEFT_OUT = shutil.ignore_patterns(
    ".*", "node_modules"
)  # what is compiled comes along, and still fits all but the patched files
KINDS = ("memory", "postgres", "races", "tests")
SCHEDULES = {"memory": 6_000, "postgres": 2_000}
SCHEDULES_OF_ONE_MODE = {"memory": 2_000, "postgres": 600}
# Ten patches that nobody notices take less than ten minutes on two cores.
SCHEDULES_OF_A_STRANGER = {"memory": 5_000, "postgres": 500}
LONGEST_S = 600
SECONDS_EACH = 3  # on two idle cores; what is printed before a run
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
class Verdict:
    mutant: Mutant
    word: Word
    proof: str
    how: str
    took_s: float


@cache
def ours() -> dict[str, list[Mutant]]:
    """All mutants, by the name of their TOML file."""
    return {str(path.relative_to(HERE).with_suffix("")): load(path) for path in sorted(HERE.rglob("*.toml"))}


def choose(which: list[str]) -> list[Mutant]:
    """The mutants that somebody names; all of ours without a name."""
    every = [mutant for room in ours().values() for mutant in room]
    chosen = [mutant for each in which for mutant in _named(each, every)] if which else every
    return list(dict.fromkeys(chosen))


def _named(which: str, every: list[Mutant]) -> list[Mutant]:
    if which in ours():
        return ours()[which]
    if which.endswith((".patch", ".diff")):
        return [from_patch(Path(which), ROOT)]
    if which.endswith(".toml"):
        return load(Path(which))
    found = [mutant for mutant in every if which == mutant.name or which in mutant.files]
    if not found:
        raise BadMutant(f"no mutant, module or file is called {which!r}")
    return found


def killer(mutant: Mutant) -> list[str]:
    """The proof that must notice, and its arguments."""
    return shlex.split(mutant.noticed_by)


def proofs(mutant: Mutant) -> Iterator[tuple[str, list[str]]]:
    """Each proof to ask, with its command."""
    if mutant.noticed_by:
        kind, *arguments = killer(mutant)
        yield mutant.noticed_by, _command(kind, arguments, SCHEDULES_OF_ONE_MODE if arguments else SCHEDULES)
        return
    if close := nearby(mutant):
        yield "tests nearby", _command("tests", close, SCHEDULES_OF_A_STRANGER)
    kinds = {path.split("/")[1] for path in mutant.files if re.match(r"shared/(?!kernel/)\w+/", path)}
    at_the_door = any(path.startswith(FRONT_DOOR) for path in mutant.files)
    in_the_kernel = [p for p in mutant.files if p.startswith("shared/kernel/") and not p.startswith(FRONT_DOOR)]
    kernel = bool(in_the_kernel) or not (kinds or at_the_door)
    if kernel and not all(map(ONLY_ON_POSTGRES.match, mutant.files)):
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
    for file, line in places(mutant, ROOT):
        beside = [
            (abs(there - line), argument)
            for other in choose([file])
            if killer(other)[:1] == ["tests"]
            for path, there in places(other, ROOT)
            if path == file
            for argument in killer(other)[1:]
            if argument.startswith("tests/")
        ]
        found |= dict.fromkeys(argument for _, argument in sorted(beside)[:NEAREST])
        for name in [*_names_at(file, line), *_words(mutant)]:
            word = re.compile(rf"\b{re.escape(name)}\b")
            naming = [path for path in _files_of_tests() if word.search(path.read_text())]
            if len(naming) <= MOST_NAMING:
                found |= dict.fromkeys(str(path.relative_to(ROOT)) for path in naming)
    whole = {each for each in found if "::" not in each}
    return [each for each in found if each in whole or each.partition("::")[0] not in whole]


def _words(mutant: Mutant) -> list[str]:
    """Our names in the lines that it takes out."""
    gone: set[str] = set()
    for file, text in apply(mutant, ROOT).items():
        gone |= set((ROOT / file).read_text().splitlines()) - set(text.splitlines())
    return sorted({word for line in gone for word in re.findall(r"\b[a-zA-Z]\w*_\w+\b", line)})


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


@contextmanager
def mutated(mutant: Mutant, folder: Path) -> Iterator[None]:
    """`folder`, a copy of the project, with the wrong rule in place for as long as it is looked at."""
    for file, text in apply(mutant, folder).items():
        (folder / file).write_text(text)
    try:
        yield
    finally:
        for file in mutant.files:
            shutil.copy2(ROOT / file, folder / file)


def judge(mutant: Mutant, folder: Path, database_url: str, template: str) -> Verdict:
    started = time.monotonic()

    def verdict(word: Word, proof: str, how: str) -> Verdict:
        return Verdict(mutant, word, proof, how, time.monotonic() - started)

    try:
        with mutated(mutant, folder):
            if problem := _does_not_compile(mutant, folder):
                return verdict(Word.DID_NOT_RUN, "", problem)
            migrates = any(path.startswith("infra/") for path in mutant.files)
            where = {"DATABASE_URL": database_url} | ({} if migrates else {TEMPLATE: template})
            for proof, command in proofs(mutant):
                word, how = _ask(command, folder, where)
                if word is not Word.SURVIVED:
                    return verdict(word, proof, how)
    except BadMutant as error:
        return verdict(Word.DID_NOT_RUN, "", str(error))
    return verdict(Word.SURVIVED, mutant.noticed_by or "all", "")


def _does_not_compile(mutant: Mutant, folder: Path) -> str:
    """A name that is not there would be caught as a surprise somewhere and look like a discovery."""
    changed = [path for path in mutant.files if path.endswith(".py") and (folder / path).exists()]
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


@contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """So many copies of the project, each for one mutant at a time."""
    free: SimpleQueue[Path] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(count):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-mutant-")))
            shutil.copytree(ROOT, folder, ignore=LEFT_OUT, dirs_exist_ok=True)
            free.put(folder)
        yield free


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", help="names, modules or files; all mutants without any")
    parser.add_argument("--jobs", type=int, default=3, help="how many at once; many tests wait")
    parser.add_argument("--part", default="1/1", help="2/5 is the second fifth of them")
    args = parser.parse_args()
    try:
        chosen = part(choose(args.which), args.part)
    except (BadMutant, OSError) as error:
        parser.exit(2, f"{error}\n")
    print(f"{len(chosen)} mutants, about {max(1, round(len(chosen) * SECONDS_EACH / 60))} minutes", flush=True)
    verdicts: list[Verdict] = []
    with (
        scratch_server({"max_connections": "300"}) as server,
        copies(args.jobs) as free,
        ThreadPoolExecutor(args.jobs) as pool,
    ):
        template = ServerAdmin(server.url()).create_template()

        def attempt(mutant: Mutant) -> Verdict:
            folder = free.get()
            try:
                return judge(mutant, folder, server.url(), template)
            finally:
                free.put(folder)

        for future in as_completed([pool.submit(attempt, mutant) for mutant in chosen]):
            verdicts.append(future.result())
            _print(verdicts[-1])
    counted = {word: sum(verdict.word is word for verdict in verdicts) for word in Word}
    print(", ".join(f"{count} {word}" for word, count in counted.items()), f"of {len(verdicts)} mutants")
    for verdict in verdicts:
        if verdict.word is not Word.KILLED:
            _print(verdict)
    return 0 if verdicts and counted[Word.KILLED] == len(verdicts) else 1


def part(chosen: list[Mutant], which: str) -> list[Mutant]:
    """Every n-th of them, so that each part has some of each module."""
    found = re.fullmatch(r"([1-9]\d?)/([1-9]\d?)", which)
    if not found or int(found[1]) > int(found[2]):
        raise BadMutant(f"--part is one of several, as in 2/5: {which!r}")
    return chosen[int(found[1]) - 1 :: int(found[2])]


def _print(verdict: Verdict) -> None:
    name, proof = verdict.mutant.name, verdict.proof[:24]
    print(f"{verdict.word:11s}  {name:64s} {verdict.took_s:6.1f} s  {proof:24s}  {verdict.how[:120]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
