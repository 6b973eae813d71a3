"""Guards that the documents work when pasted: every shell block, in order, in one fresh shell per document, in a local cloud. A
block of any kind is run by some test, or says why not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.cloud import throwaway_home
from infra.local.supervise import end
from tests.support.blocks import blocks_of, script_of

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

# Which test runs the blocks of a language in a document. `sh` is run here, unless another test is named.
RUN_BY = {
    ("README.md", "python"): "tests/docs/test_readme.py",
    ("api.md", "js"): "tests/browser/test_live.py",
    ("jobs.md", "http"): "tests/api/test_jobs_docs.py",
    ("jobs.md", "toml"): "tests/api/test_jobs_docs.py",
    ("kinds.md", "sh"): "tests/docs/test_kinds_guide.py",
    ("kinds.md", "python"): "tests/docs/test_kinds_guide.py",
    ("page-ingest.md", "http"): "tests/docs/test_api_docs.py",
    ("page-ingest.md", "python"): "tests/integration/test_page_ingest_docs.py",
    ("page-ingest.md", "sql"): "tests/integration/test_page_ingest_docs.py",
    ("queries.md", "http"): "tests/api/test_queries_docs.py",
    ("rows.md", "http"): "tests/api/test_rows_docs.py",
    ("searches.md", "http"): "tests/api/test_searches_docs.py",
    ("seed-calls.md", "http"): "tests/docs/test_seed_calls.py",
    ("seed-calls.md", "sql"): "tests/docs/test_seed_calls.py",
    ("sources.md", "python"): "tests/docs/test_sources_docs.py",
    ("sources.md", "text"): "tests/docs/test_sources_docs.py",
    ("sources.md", "toml"): "tests/docs/test_sources_docs.py",
    ("sources.md", "transcript"): "tests/docs/test_sources_docs.py",
    ("triggers.md", "http"): "tests/api/test_triggers_docs.py",
}
PASTED = ["README.md", "docs/api.md", "docs/console.md", "docs/jobs.md", "docs/local-cloud.md", "docs/operations.md",
          "docs/page-ingest.md", "docs/queries.md", "docs/rows.md", "docs/searches.md", "docs/sources.md",
          "docs/triggers.md"]  # fmt: skip


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_is_run_or_says_why_not(document: Path) -> None:
    nobodys = []
    for block in blocks_of(document):
        key = (document.name, block.language)
        is_pasted = block.language == "sh" and str(document.relative_to(ROOT)) in PASTED
        if block.why_not is None and not is_pasted and key not in RUN_BY:
            nobodys.append((block.language, block.text[:60]))

    assert nobodys == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_block_is_overlooked(document: Path) -> None:
    """A fence that is written otherwise, or a reason that is not right above its block, would be neither run nor missed."""
    text = document.read_text()
    fences, reasons = re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE), text.count("<!-- not run")
    found = blocks_of(document)

    assert len(fences) == 2 * len(found)
    assert reasons == sum(block.why_not is not None for block in found)


def test_the_tests_that_are_named_are_there() -> None:
    for (name, _), path in RUN_BY.items():
        assert name in (ROOT / path).read_text(), path


@pytest.fixture(scope="module")
def shell() -> Iterator[dict[str, str]]:
    """The environment of somebody who has just cloned the repository: nothing of ours in it, and a cloud of its own."""
    ours = ("BATON_", "AWS_", "PG", "DATABASE_URL")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    with throwaway_home() as home:
        try:
            yield {**environment, "BATON_HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
        finally:
            end(home)


@pytest.mark.long
@pytest.mark.parametrize("name", PASTED)
def test_a_document_works_when_pasted_into_a_fresh_shell(name: str, shell: dict[str, str]) -> None:
    script = script_of(ROOT / name)
    # A document may use the names of another one: each gets its own tenant's worth of nothing.
    subprocess.run(
        [sys.executable, "-m", "infra.cli", "reset"], cwd=ROOT, env=shell, capture_output=True, check=False, timeout=120
    )
    _forget_connections(shell)

    before = {*ROOT.iterdir()}
    # Whoever pastes it is asked, and answers as the document does.
    answers = re.findall(
        r"^.*: ?(.*)$", "".join(b.text for b in blocks_of(ROOT / name) if b.language == "transcript"), re.MULTILINE
    )
    try:
        told = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=ROOT,
            env=shell,
            input="".join(f"{answer}\n" for answer in answers),
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
    finally:
        for left in {*ROOT.iterdir()} - before:  # what the document has written beside itself
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    assert told.returncode == 0, f"{told.stdout[-4_000:]}\n{told.stderr[-2_000:]}"


def _forget_connections(shell: dict[str, str]) -> None:
    script = """for id in $(python -m infra.cli connection list --json --limit 100 | tr ',' '\\n' | sed -n 's/.*"id": "\\([^"]*\\)".*/\\1/p'); do
        python -m infra.cli connection delete "$id"; done"""
    path = f"{Path(sys.executable).parent}:{shell['PATH']}"
    subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env={**shell, "PATH": path}, capture_output=True, check=False, timeout=120
    )
