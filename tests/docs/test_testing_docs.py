"""Guards that docs/testing.md names tests and mutants that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.mutants.run import choose

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()
ROWS = [line.split("|")[1:4] for line in PAGE.splitlines() if line.startswith("| ") and "`tests/" in line]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_every_promise_names_tests_and_mutants_that_exist() -> None:
    names = {mutant.name for mutant in choose([])}

    assert len(ROWS) >= 18
    for promise, tests, mutants in ROWS:
        assert quoted(tests), promise
        assert [path for path in quoted(tests) if not (ROOT / path).exists()] == []
        assert len(quoted(mutants)) >= 2, promise
        assert [name for name in quoted(mutants) if name not in names] == []


def test_the_promises_of_the_readme_are_all_there() -> None:
    readme = (ROOT / "README.md").read_text()
    promises = readme.partition("## What it promises")[2].partition("\n**Limits.**")[0]
    faults = readme.partition("| If this happens |")[2].partition("\n\n")[0].splitlines()[2:]

    assert len(faults) >= 7
    assert len(ROWS) >= promises.count("\n- ") + len(faults)
