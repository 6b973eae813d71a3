"""IDs as people type them: whole, or the beginning of one that no other has.

The ID of a run begins with the time when it was made, so its beginning says where in the list to look, however old it is.
"""

from __future__ import annotations

import argparse
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from infra.client.http import Client, Refusal

LEAST = 4
SLACK = timedelta(minutes=10)  # between the clock that makes IDs and that of the database
MOST = 1_000  # rows to look through
TIME_BITS, REST_BITS = 48, 80
LATEST_MS = 253_402_300_000_000  # where datetime ends
LISTS: Mapping[str, tuple[str, str]] = {
    "connection": ("/connections", "connections"),
    "invitation": ("/me", "invitations"),
    "company": ("/search-companies", "companies"),
    "search": ("/searches", "searches"),
    "sheet": ("/search-sheets", "sheets"),
    "token": ("/tokens", "tokens"),
    "trigger": ("/jobs/triggers", "triggers"),
}


def an_id(text: str) -> str:
    """For argparse: something that can be an ID or the beginning of one."""
    given = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f-]{1,36}", given) or len(given.replace("-", "")) < LEAST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an ID. An ID looks like 0197a3b2-1c2d-7e3f-8a4b-5c6d7e8f9a0b; its first characters are enough"
        )
    return given


def whole(client: Client, given: str, what: str) -> str:
    """The ID that begins so. `what`: `run`, `job`, or one of the lists above."""
    try:
        return str(uuid.UUID(given))
    except ValueError:
        pass
    found = _runs(client, given, what) if what in {"run", "job"} else _listed(client, given, *LISTS[what])
    return one(found, given, what)


def one(found: Sequence[str], given: str, what: str) -> str:
    if len(found) == 1:
        return found[0]
    if not found:
        raise Refusal(f"no {what} starts with {given!r}")
    raise Refusal(f"several {what}s start with {given!r}: {', '.join(found[:5])}{', …' if len(found) > 5 else ''}")


def _runs(client: Client, given: str, what: str) -> list[str]:
    digits = given.replace("-", "")
    low, high = (int(digits.ljust(32, fill), 16) >> REST_BITS for fill in "0f")
    if low > LATEST_MS:
        return []
    wanted: dict[str, Any] = {
        "created_from": (_time(low) - SLACK).isoformat(),
        "created_before": (_time(min(high, LATEST_MS)) + SLACK).isoformat(),
    }
    wanted |= {"kind": "job"} if what == "job" else {}
    return [row["id"] for row in client.pages("/runs", "runs", MOST, **wanted) if row["id"].startswith(_dashed(digits))]


def _listed(client: Client, given: str, path: str, name: str) -> list[str]:
    begin = _dashed(given.replace("-", ""))
    if name in {"invitations", "sheets"}:  # there are few: the list has no pages
        return [row["id"] for row in client.get(path)[name] if row["id"].startswith(begin)]
    return [row["id"] for row in client.pages(path, name, MOST) if row["id"].startswith(begin)]


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(max(milliseconds, 86_400_000) / 1000, UTC)


def _dashed(digits: str) -> str:
    """`0197a3b21c2d` as it stands in an ID: 0197a3b2-1c2d."""
    cuts = (0, 8, 12, 16, 20, 32)
    return "-".join(part for begin, end in pairwise(cuts) if (part := digits[begin:end]))
