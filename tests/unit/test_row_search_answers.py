"""Guards what an answer of the product search is taken for, also one that contradicts itself."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from shared.kernel.http import Answer
from shared.row_job.adapters.search import _read
from shared.row_job.decide import Answered


def read(status: int, told: Any, **headers: str) -> Answered:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return _read(Answer(status, named, orjson.dumps(told)), lambda what, **more: Answered(what=what, ms=1, **more))


def test_something_found_that_is_not_shown_is_a_failure() -> None:
    """Neither an offer nor the word that there is none: the row is asked for again."""
    assert read(200, {"status": "FOUND", "results": []}).what == "failed"
    assert read(200, {"status": "NOT_FOUND", "results": [{"title": "x"}]}).what == "not_found"


@pytest.mark.parametrize(
    ("told", "headers", "seconds"),
    [
        ({"error": {"code": "slow_down", "retry_after_ms": 2_000}}, {"retry_after": "30"}, 30.0),
        ({"error": {"code": "slow_down", "retry_after_ms": 90_000}}, {"retry_after": "30"}, 90.0),
        ({"error": {"code": "slow_down", "retry_after_ms": -1}}, {}, 0.0),
        ("busy", {"retry_after": "7"}, 7.0),
        ({"error": {"code": "slow_down", "retry_after_ms": 1e300}}, {}, 3_600.0),
    ],
)
def test_the_longer_of_two_waits_counts_and_none_is_for_ever(
    told: Any, headers: dict[str, str], seconds: float
) -> None:
    answered = read(429, told, **headers)
    assert (answered.what, answered.retry_after_s) == ("throttled", seconds)
