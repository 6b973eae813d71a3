"""Guards that an answer which is not as expected is said to be so in plain words: where, what came, and what should have."""

from __future__ import annotations

from typing import Any

import pytest

from shared.kernel.answers import Shape, shaped
from shared.kernel.errors import Transient


class _Offer(Shape):
    id: str
    price: int


class _Page(Shape):
    items: list[_Offer]


GOOD = {"id": "a", "price": 7}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "items is missing."),
        ([], "the answer is a list instead of an object."),
        ({"items": {}}, "items is an object instead of a list."),
        ({"items": [GOOD, "a stone"]}, "items.1 is text instead of an object."),
        ({"items": [None]}, "items.0 is null instead of an object."),
        ({"items": [GOOD | {"id": 5}]}, "items.0.id is a number instead of text."),
        ({"items": [GOOD | {"price": "7"}]}, "items.0.price is text instead of a whole number."),
        ({"items": [GOOD | {"price": 7.5}]}, "items.0.price is a number instead of a whole number."),
        ({"items": [{}]}, "items.0.id is missing (1 more problems)."),
    ],
)
def test_what_is_wrong_with_an_answer_is_said_in_plain_words(answer: Any, said: str) -> None:
    with pytest.raises(Transient) as caught:
        shaped(_Page, answer)

    assert caught.value.code == "bad_answer"
    assert caught.value.message == f"The answer doesn't have the expected shape: {said}"
