"""The one redactor: what is stored or logged about a failure passes here first."""

from __future__ import annotations

import re
from typing import Any

LONGEST = 2_000
# Of a text that nobody has bounded, patterns see no more than this: the answer is cut far shorter anyway.
_LOOKED_AT = 4 * LONGEST

_NAMES = r"[\w-]{0,60}?(?:passw|pwd|passphrase|secret|token|(?:api|private|access)[_-]?key|authorization|signature|credential|cookie|\bsig\b)[\w-]{0,60}"
_VALUE = r"\[[^\]]*\]?|\\+\"[^\"]*\"?|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^\s,;&}<\"']+"

# "user name and password: upstream answered 400" is a sentence. These words go on with one, so they are no value.
_GOES_ON = (
    "a|an|and|are|answered|cannot|check|could|does|expected|extra|failed|field|for|had|has|have|http|in|input|invalid|is|it|its|may|missing|"
    "must|no|not|of|or|please|refused|rejected|request|required|server|service|see|should|status|string|that|the|there|they|this|to|"
    "try|unknown|upstream|value|was|we|were|will|with|wrong|you|your"
)
_NO_SENTENCE = rf"(?!\s{{1,4}}(?:{_GOES_ON})(?=[\s.,;:?!)]|$))"

_SECRETS = (
    (
        re.compile(r"(?i)\b(bearer|basic)\s+(?!(?:authentication|authorization|credentials)\b)[\w\-.~+/]{8,}=*"),
        r"\1 ***",
    ),
    (re.compile(r"\beyJ[\w-]{5,2000}\.[\w-]{5,2000}\.[\w-]*"), "***"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "***"),
    # Known by how they begin, wherever they stand: our own tokens, and those that others made to be found.
    (
        re.compile(
            r"(?<![\w-])(?:baton_[\w-]{40}|gh[oprsu]_\w{30}|xox[abprs]-[\w-]{10}|[rs]k_(?:live|test)_\w{10}|AIza[\w-]{30})[\w-]*"
        ),
        "***",
    ),
    (re.compile(r"-----BEGIN ([A-Z0-9 ]{0,40})PRIVATE KEY-----[^-]*(?:-----END \1PRIVATE KEY-----)?"), "***"),
    (re.compile(r"(://[^/\s:@]{0,100}):\S{1,200}@"), r"\1:***@"),
    (re.compile(rf"(?i)(<{_NAMES}(?:\s[^<>]{{0,200}})?>)[^<]+"), r"\1***"),
    (
        re.compile(rf"(?i)(?<![\w-])([\"']?{_NAMES}[\"'\\]{{0,4}}\s{{0,4}}(?:=|:{_NO_SENTENCE})\s{{0,4}})(?:{_VALUE})"),
        r"\1***",
    ),
)


_NAMED = re.compile(rf"(?i){_NAMES}")


def redact_json(value: Any) -> Any:
    """The same for a value as it is shown to people: what has the name of a secret is masked whole."""
    match value:
        case dict():
            return {
                name: "***" if held is not None and _NAMED.fullmatch(str(name)) else redact_json(held)
                for name, held in value.items()
            }
        case list():
            return [redact_json(each) for each in value]
        case str():
            return redact(value)
        case _:
            return value


def redact(text: str) -> str:
    """Mask what looks like a secret, drop what Postgres cannot store, and keep it short."""
    clean = redact_all(text[:_LOOKED_AT])
    return (
        clean if len(clean) <= LONGEST and len(text) <= _LOOKED_AT else clean[: LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
    )


def redact_all(text: str) -> str:
    """The same of however much it is: for whoever has bounded it already."""
    clean = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
    for pattern, masked in _SECRETS:
        clean = pattern.sub(masked, clean)
    return clean
