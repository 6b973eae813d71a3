"""The one redactor: what is stored or logged about a failure passes here first."""

from __future__ import annotations

import re

LONGEST = 2_000

_SECRETS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w\-.~+/]{8,}=*"), r"\1 ***"),
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*"), "***"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "***"),
    (re.compile(r"(?i)(://[^/\s:@]*):[^/\s@]+@"), r"\1:***@"),
    (
        re.compile(
            r"(?i)([\"']?\b[\w-]*(?:password|passwd|secret|token|api[_-]?key|authorization|signature|credential)[\w-]*[\"']?\s*[=:]\s*)"
            r"(\"[^\"]*\"|'[^']*'|[^\s,;&}\"']+)"
        ),
        r"\1***",
    ),
)


def redact(text: str) -> str:
    """Mask what looks like a secret, drop what Postgres cannot store, and keep it short."""
    clean = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
    for pattern, masked in _SECRETS:
        clean = pattern.sub(masked, clean)
    return clean if len(clean) <= LONGEST else clean[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
