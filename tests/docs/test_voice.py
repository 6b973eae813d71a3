"""Guards the voice of the product: words that nobody would say stay out of every text that a person sees.

A list like this cannot make a text good. It keeps what was once replaced from coming back.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTEAD = {
    r"\bmend(s|ed|ing)?\b": "fix, repair",
    r"\bbegun\b": "started",
    r"\bdied? of\b|\bdies of\b": "failed because of, grouped by cause",
    r"\b(let|lets|letting) (?:\w+ ){0,3}in(?: again)?(?=[.,;:]|$)|\blet in\b": "add, sign in, allow",
    r"\b(he|his|him|himself)\b": "they, their, them",
    r"nobody we know": "missing or invalid credentials",
    r"there is no such": "not found",
    r"there is no kind of work": "unknown kind",
    r"\bof the name\b": "named",
    r"\bwhat lies in\b": "what is in; queue depths",
    r"\bmachinery\b": "system health",
    r"until somebody acts": "needs action",
    r"what holds everywhere": "conventions",
    r"finding your way": "repository layout",
    r"taking it away": "uninstalling",
    r"\brows (walked|passed over)\b": "read, skipped",
    r"crawls again after drift": "max re-crawls",
    r"has not come yet": "not run yet",
    r"goes on where it stopped": "resumes from its last step",
    r"only mine": "my runs",
    r"to what\?": "target",
    r"\bacts on\b|\ban act\b|\bthe acts\b|\brun and acts\b": "action",
    r"\b(last|its|the server's) words\b": "last output",
    r"\bfor ever\b": "forever",
    r"(?<=[a-z] )\banew\b": "again",
    r"\bseldom\b|\bhitherto\b|\bthereof\b|\bwhence\b": "rarely, until now, of it, from where",
    r"\bacts? in (every|each|all)\b": "is an admin of",
    r"\bwhat came of\b": "how it went, which job it started",
    r"\bis well\b|\bare well\b": "is healthy, all is well only with proof",
    r"\bmisbehaviour that is known of\b": "known misbehaviour",
}
WORDS = {re.compile(pattern, re.IGNORECASE): better for pattern, better in INSTEAD.items()}
# The one that needs proof; docs/console.md says which. And `walked`, a claim of a source and a field of the API.
ALLOWED = re.compile(r'"?all is well"?|^walked$|\bwalked: "|\bof\.walked\b', re.IGNORECASE)

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = [ROOT / "infra/cli.py", ROOT / "infra/worker.py", ROOT / "infra/remote_worker.py", ROOT / "infra/new_kind.py",
            *sorted((ROOT / "infra/client").rglob("*.py")), *sorted((ROOT / "infra/local").glob("*.py"))]  # fmt: skip
ERRORS = sorted((ROOT / "shared").rglob("*.py"))
CONSOLE = sorted(path for path in (ROOT / "functions/api/console").rglob("*.js") if "vendor" not in path.parts)
MAKE = [ROOT / "Makefile", ROOT / "template.yaml", ROOT / "infra/sam/database.yaml"]


def said(path: Path) -> Iterator[tuple[int, str]]:
    """What people see of a file: all of a page, the texts of a program."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from _strings(ast.parse(text))
    elif path.suffix == ".md":
        for number, line in enumerate(
            re.sub(r"^```\w*\n.*?^```", _blank, text, flags=re.MULTILINE | re.DOTALL).splitlines(), 1
        ):
            yield number, re.sub(r"`[^`]*`", "", line)
    elif path.name == "Makefile":
        for number, line in enumerate(text.splitlines(), 1):
            yield (
                number,
                line.partition("## ")[2] if "## " in line else (line if "echo" in line or "sys.exit" in line else ""),
            )
    elif path.suffix == ".yaml":
        for number, line in enumerate(text.splitlines(), 1):
            yield number, line.partition("Description:")[2]
    else:
        for number, line in enumerate(text.splitlines(), 1):
            yield number, re.sub(r"//.*$|^\s*\*.*$|^\s*/\*.*$", "", line)


SQL = re.compile(r"\b(select|insert|update|delete|create|with)\b.*\b(from|into|set|table|as)\b", re.DOTALL)


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every text but docstrings and SQL."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docs:
            continue
        if " " in node.value and not SQL.search(node.value):
            yield node.lineno, node.value


@pytest.mark.parametrize(
    "files", [PAGES, COMMANDS, ERRORS, CONSOLE, MAKE], ids=["pages", "commands", "errors", "console", "make"]
)
def test_no_text_says_what_nobody_would_say(files: list[Path]) -> None:
    assert len(files) > 2
    found = [
        f"{path.relative_to(ROOT)}:{number}: {hit[0]!r} (better: {better}): {line.strip()[:100]}"
        for path in files
        for number, line in said(path)
        for word, better in WORDS.items()
        if (hit := word.search(ALLOWED.sub("", line)))
    ]

    assert found == []


def test_the_list_would_notice() -> None:
    assert any(word.search("The tick mends that.") for word in WORDS)
    assert any(word.search("He may not enter.") for word in WORDS)
    assert not any(word.search("Unknown kind 'foo'. Available: page_ingest, job.") for word in WORDS)
