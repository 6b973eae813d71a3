"""What an upstream answered, read strictly: an answer that is not understood is an error, never an empty one.

`read_json` takes JSON and nothing else; `shaped` holds it to a pydantic model and says in plain words where it differs;
`storable` gives a value that jsonb takes. Every failure is a `Transient` with the code `bad_answer`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from shared.kernel import wrong
from shared.kernel.errors import bad_answer

DEEPEST: Final = 32
LONG_NUMBER: Final = b"0" * 19

_DIGITS_AS_ZERO = bytes.maketrans(b"0123456789", b"0" * 10)
_COLON_ESCAPED = re.compile(rb"\\u003[aA]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_TYPES = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


class Shape(BaseModel):
    """The part of an answer that we rely on. Whatever else comes with it is left alone; errors never repeat a value."""

    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)


ShapeT = TypeVar("ShapeT", bound=BaseModel)


def shaped(shape: type[ShapeT], value: Any) -> ShapeT:
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise bad_answer(f"The answer doesn't have the expected shape: {in_words(error)}") from None


def in_words(error: ValidationError) -> str:
    """The first thing that is wrong, where it is and what was expected there, as a person would say it."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the answer"
    more = f" ({error.error_count() - 1} more problems)" if error.error_count() > 1 else ""
    if first["type"] == "missing":
        return f"{where} is missing{more}."
    if first["type"] == "string_pattern_mismatch":
        return f"{where} doesn't have the expected form{more}."
    if first["type"] in wrong.WANTED:
        got = _TYPES.get(type(first["input"]), "something else")
        return f"{where} is {got} instead of {wrong.WANTED[first['type']]}{more}."
    return f"{wrong.in_words([first])}{more}"


def read_json(body: bytes) -> Any:
    """The value of a JSON text. Twin keys, NaN, numbers without end and anything behind the value are refused."""
    try:
        value = orjson.loads(body)
        # Of twin keys one is lost, and its colon with it; one that is written as an escape comes back as itself.
        colons = body.count(b":") + len(_COLON_ESCAPED.findall(body))
        if colons == orjson.dumps(value).count(b":") and LONG_NUMBER not in body.translate(_DIGITS_AS_ZERO):
            return value
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        pass
    return _read_slowly(
        body
    )  # a key may be there twice, a number too long for 64 bits, half a character; or it is no JSON


def _read_slowly(body: bytes) -> Any:
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_no_twins,
            parse_constant=_not_a_number,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError and a JSONDecodeError are ValueErrors
        looks = "an HTML page" if body.lstrip()[:1] == b"<" else f"{len(body)} bytes"
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise bad_answer(f"The answer is not JSON but {looks} ({reason}).") from None


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return fields


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def storable(value: Any) -> bytes:
    """The value as JSON that jsonb takes, always the same for the same value: no NUL, no lone surrogate, no integer of more
    than 64 bits, not nested without end.
    """
    try:
        body = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # lone surrogates and long integers
        return orjson.dumps(_fixed(value, DEEPEST), option=orjson.OPT_SORT_KEYS)
    if b"\\u0000" in body or body.count(b"{") + body.count(b"[") > DEEPEST:
        return orjson.dumps(_fixed(value, DEEPEST), option=orjson.OPT_SORT_KEYS)
    return body


def _fixed(value: Any, depth: int) -> Any:
    if depth < 0:
        raise bad_answer(f"An item is nested more than {DEEPEST} levels deep.")
    if isinstance(value, str):
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return _no_twins_left([(_fixed(key, depth), _fixed(inner, depth - 1)) for key, inner in value.items()])
    if isinstance(value, list):
        return [_fixed(inner, depth - 1) for inner in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value


def _no_twins_left(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    try:
        return _no_twins(pairs)
    except ValueError as error:
        raise bad_answer(f"An item cannot be stored: {error}.") from None
