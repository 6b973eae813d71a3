"""The fenced blocks of a document. One that cannot be run says why, in a comment on the line before it:

<!-- not run: it needs an AWS account -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str
    why_not: str | None


def blocks_of(document: Path) -> list[Block]:
    return [Block(found["language"], found["text"], found["why"]) for found in FENCE.finditer(document.read_text())]


def script_of(document: Path) -> str:
    """What somebody types who pastes every block, one after the other, into one shell."""
    return "\n".join(block.text for block in blocks_of(document) if block.language == "sh" and block.why_not is None)
