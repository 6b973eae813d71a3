"""Guards the words for what is wrong: no type of error that pydantic knows is told in pydantic's own words, and no value is repeated."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core.core_schema import ErrorType

from shared.kernel.wrong import in_words, unknown


class Cat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["cat"]
    lives: Annotated[int, Field(le=9)] = 9


class Dog(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["dog"]
    tricks: list[str] = []


class House(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None
    sizes: dict[str, str | int] = {}
    door: Annotated[Literal["red", "blue"], Field(alias="frontDoor")] = "red"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pet": {"lives": 3, "tricks": []}}, "`pet.kind` is required. Available: cat, dog."),
        ({"pet": {"kind": "fish", "fins": 2}}, "`pet.kind` must be one of: cat, dog."),
        ({"pet": {"kind": "cat", "lives": 10, "trick": 1, "tail": 2}},
         "`pet.lives` must be at most 9. Unknown field `pet.trick`. Available: kind, lives. Unknown field `pet.tail`."),
        ({"pet": {"kind": "dog", "tricks": [1]}}, "`pet.tricks.0` must be text."),
        ({"sizes": {"hall": []}}, "`sizes.hall` must be text or a whole number."),
        ({"frontDor": "red"}, "Unknown field `frontDor`. Available: frontDoor, pet, sizes."),
        ({"frontDoor": "green"}, "`frontDoor` must be one of: red, blue."),
        (7, "The house must be an object."),
    ],
)  # fmt: skip
def test_the_field_and_what_there_is(given: Any, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        House.model_validate(given)

    assert in_words(refused.value, House, whole="The house") == said


CONTEXT = {
    "gt": 1, "ge": 1, "lt": 1, "le": 1, "multiple_of": 2, "pattern": "^x$", "min_length": 2, "max_length": 2, "expected": "'a' or 'b'",
    "discriminator": "'kind'", "expected_tags": "'a', 'b'",
}  # fmt: skip


@pytest.mark.parametrize("type_", sorted({*get_args(ErrorType)} - {"value_error", "assertion_error"}))
def test_no_error_is_told_in_pydantics_words(type_: str) -> None:
    """But for those whose words are ours."""
    said = in_words([{"type": type_, "loc": ("a",), "msg": "Input should be another one", "ctx": CONTEXT}])

    assert "Input" not in said
    assert said.endswith(".")


def test_the_nearest_word_comes_first_and_not_all_of_many() -> None:
    assert unknown("kind", "row_jbo", ["job", "row_job"]) == "Unknown kind `row_jbo`. Available: row_job, job."
    assert unknown("kind", "x", []) == "Unknown kind `x`. There are none."
    assert unknown("kind", "x", map(str, range(99))).endswith(", 29, ….")
