"""Guards that the documents say what is true: their links lead somewhere, their targets exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_within_the_project_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())

    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_that_is_named_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", document.read_text(), re.MULTILINE))

    assert named - targets == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_exists(document: Path) -> None:
    named = re.findall(r"`((?:shared|infra|tests|docs|functions)/[\w./-]+)`", document.read_text())

    assert [name for name in named if not (ROOT / name).exists()] == []


# Where packages come from is the business of whoever installs them: a mirror, a cache, a folder.
REGISTRIES = re.compile(
    rb"pypi\.(?:org|python)|pythonhosted\.|npmjs\.|registry\.(?:npm|yarn)|unpkg\.|jsdelivr\.|docker\.io|ghcr\.io|quay\.io|crates\.io"
)


def test_no_file_names_the_host_of_a_package_registry() -> None:
    ours = [path for path in ROOT.iterdir() if path.name in {".ci", ".gitignore"} or not path.name.startswith(".")]
    files = [path for each in ours for path in ([each] if each.is_file() else each.rglob("*")) if path.is_file()]
    files = [path for path in files if "__pycache__" not in path.parts]

    assert len(files) > 300
    assert [str(path.relative_to(ROOT)) for path in files if REGISTRIES.search(path.read_bytes())] == []
