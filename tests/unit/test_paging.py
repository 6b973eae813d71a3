"""Guards that a cursor is good for the list, the filter and the reader that it was made for, and only as it was made."""

from __future__ import annotations

import base64

import orjson
import pytest

from shared.kernel.paging import BadCursor, Pager

KEY = b"k" * 32
PLACE = ["2026-11-17T12:00:00+00:00", "01a1e92e-eff8-7274-ba1e-206dafe9ad34"]


def pager(key: bytes = KEY, scope: tuple[str, ...] = ("runs", "acme", ""), **question: str) -> Pager:
    return Pager(key, scope, question)


def test_a_cursor_leads_to_its_place() -> None:
    assert pager(kind="job").place(pager(kind="job").cursor(PLACE)) == PLACE


@pytest.mark.parametrize(
    "other",
    [
        pager(b"x" * 32),
        pager(scope=("audit", "acme", "")),
        pager(scope=("runs", "globex", "")),
        pager(scope=("runs", "acme", "user:max")),
        pager(status="failed"),
    ],
    ids=["key", "list", "tenant", "owner", "filter"],
)
def test_a_cursor_of_another_is_broken(other: Pager) -> None:
    with pytest.raises(BadCursor):
        pager().place(other.cursor(PLACE))


def test_a_signature_counts_to_its_last_letter() -> None:
    body, signature = pager().cursor(PLACE).split(".")
    for n, letter in enumerate(signature):
        changed = signature[:n] + ("A" if letter != "A" else "B") + signature[n + 1 :]
        with pytest.raises(BadCursor):
            pager().place(f"{body}.{changed}")
        with pytest.raises(BadCursor):
            pager().place(f"{body}.{signature[:n]}")


def test_a_place_that_was_changed_is_broken() -> None:
    _, signature = pager().cursor(PLACE).split(".")
    elsewhere = base64.urlsafe_b64encode(orjson.dumps(["1970-01-01T00:00:00+00:00", PLACE[1]])).decode().rstrip("=")

    with pytest.raises(BadCursor):
        pager().place(f"{elsewhere}.{signature}")
