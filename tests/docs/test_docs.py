"""Guards that the documents say what is true: their code runs, their links lead somewhere, their targets exist."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.kernel import run as runs
from tests.support.rig import TENANT, Rig, make_rig, rig, rig_database

__all__ = ["make_rig", "rig", "rig_database"]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def test_the_kind_of_work_in_the_guide_runs(rig: Rig) -> None:
    (code,) = blocks(ROOT / "docs" / "relay.md", "python")
    names: dict[str, Any] = {}
    exec(code, names)
    rig.kind = replace(names["COUNT"], name="tally")  # the rig's queue has this name

    run_id = runs.start_run(rig.ports, rig.kind, TENANT, {"target": 3})

    assert rig.run_to_end(run_id, within_s=600) == "succeeded"
    assert rig.tallied(run_id, "a") == rig.tallied(run_id, "b") == [0, 1, 2]


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
