"""Whether Postgres can keep a JSON value: what it cannot is refused where it enters, with its place, not deep inside."""

from __future__ import annotations

import math
from typing import Any

SMALLEST, LARGEST = -(2**63), 2**64 - 1  # what orjson writes; jsonb itself would take more


def unstorable(value: Any, deepest: int) -> str | None:
    """What is wrong with a value and where; None: nothing. Never repeats the value. Not recursive: it may be deep."""
    left: list[tuple[Any, str, int]] = [(value, "", 0)]
    while left:
        each, place, depth = left.pop()
        if depth > deepest:
            return f"nested more than {deepest} levels deep"
        match each:
            case bool() | None:
                continue
            case str():
                if problem := _text(each):
                    return f"{place or 'value'}: {problem}"
            case int():
                if not SMALLEST <= each <= LARGEST:
                    return f"{place or 'value'}: a number beyond 64 bits; send it as text"
            case float():
                if not math.isfinite(each):
                    return f"{place or 'value'}: not a finite number"
            case dict():
                for key, inner in each.items():
                    if problem := _text(key):
                        return f"{place or 'value'}: a key with {problem}"
                    left.append((inner, f"{place}.{key}"[:200].lstrip("."), depth + 1))
            case list():
                left.extend((inner, f"{place}[{n}]"[:200], depth + 1) for n, inner in enumerate(each))
            case _:
                return f"{place or 'value'}: not JSON"
    return None


def _text(value: str) -> str | None:
    if "\x00" in value:
        return "a NUL character"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    return None
