"""Guards that an installation is the one that was tested: exact versions with hashes, from whatever index the machine uses."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
RUNTIME, DEV = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"

REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)(\[[\w,-]+\])?==(?P<version>[\w.!+]+)( ; (?P<marker>[^:/@]+?))? \\"
)
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
REASON = re.compile(r"    #( via)?( +(-c )?[\w.-]+(\[[\w,-]+\])?)?( \((pyproject\.toml(:\w+)?|workspace)\))?")
HOST = re.compile(r"://|@|\blocalhost\b|\b\d+\.\d+\.\d+\.\d+:\d+|\.(com|org|net|io|dev|cloud|internal|local)\b")


def pinned(lock: Path) -> dict[str, set[str]]:
    """The versions of each package; a package may have several, one for each kind of machine."""
    found: dict[str, set[str]] = {}
    for match in map(REQUIREMENT.fullmatch, lock.read_text().splitlines()):
        if match:
            found.setdefault(canonicalize_name(match["name"]), set()).add(match["version"])
    return found


def test_there_is_a_lock_for_the_product_and_one_for_its_development() -> None:
    assert {RUNTIME, DEV} <= set(LOCKS)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_has_only_exact_versions_hashes_and_reasons(lock: Path) -> None:
    shapes = (REQUIREMENT, HASH, REASON)

    strange = [line for line in lock.read_text().splitlines() if not any(shape.fullmatch(line) for shape in shapes)]

    assert strange == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_requirement_is_followed_by_a_hash(lock: Path) -> None:
    lines = lock.read_text().splitlines()

    naked = [
        line
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if line[:1].isalnum() and "--hash=sha256:" not in after
    ]

    assert naked == []
    assert pinned(lock)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_names_no_host_and_no_index(lock: Path) -> None:
    assert [line for line in lock.read_text().splitlines() if HOST.search(line) or line.startswith("-")] == []


def test_the_tests_run_on_the_versions_that_the_product_ships() -> None:
    dev = pinned(DEV)

    assert {name: versions for name, versions in pinned(RUNTIME).items() if dev.get(name) != versions} == {}


def test_every_dependency_of_the_product_is_locked_within_its_bounds() -> None:
    locked = pinned(RUNTIME)
    declared = [
        Requirement(text) for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ]

    outside = [
        str(wanted)
        for wanted in declared
        if not any(version in wanted.specifier for version in locked.get(canonicalize_name(wanted.name), ()))
    ]

    assert declared
    assert outside == []


def test_the_makefile_installs_the_uv_that_the_lock_names() -> None:
    in_makefile = re.search(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert in_makefile is not None
    assert pinned(DEV)["uv"] == {in_makefile[1]}
