"""What is wrong with something that was asked for or written down, in our words: the field, what it must be, and what there is.

The one place that knows how pydantic says it. No sentence repeats a value: it may be a secret.

    try: Params.model_validate(given)
    except ValidationError as error: raise Refused("bad_params", in_words(error, Params))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ValidationError

MOST_TOLD: Final = 5
MOST_LISTED: Final = 30
Errors = Sequence[Mapping[str, Any]]

# What a value must be, by the type of pydantic's error. Those with a limit in them are below.
WANTED: Final = {
    "string_type": "text", "string_sub_type": "text", "string_unicode": "text", "int_type": "a whole number", "int_parsing": "a whole number",
    "int_from_float": "a whole number", "int_parsing_size": "a smaller number", "float_type": "a number", "float_parsing": "a number",
    "finite_number": "a number that isn't infinite", "bool_type": "true or false", "bool_parsing": "true or false", "list_type": "a list",
    "tuple_type": "a list", "set_type": "a list", "dict_type": "an object", "mapping_type": "an object", "model_type": "an object",
    "model_attributes_type": "an object", "dataclass_type": "an object", "none_required": "null", "uuid_type": "an ID (a UUID)",
    "uuid_parsing": "an ID (a UUID)", "date_type": "a date, such as 2026-11-16", "date_parsing": "a date, such as 2026-11-16",
    "date_from_datetime_parsing": "a date, such as 2026-11-16", "date_from_datetime_inexact": "a date, such as 2026-11-16",
    "time_type": "a time of day, such as 03:00", "time_parsing": "a time of day, such as 03:00",
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "datetime_object_invalid", "timezone_aware"),
                    "a date and a time with its zone, such as 2026-11-16T08:00:00Z"),
}  # fmt: skip
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'")


@dataclass(frozen=True, slots=True)
class Wrong:
    """`place`: where pydantic found it. `name`: as people know the field; empty for the whole. `said`: a sentence."""

    place: tuple[str | int, ...]
    name: str
    said: str


def in_words(error: ValidationError | Errors, shape: Any = None, **how: Any) -> str:
    """All that is wrong, in sentences. `how`: as `problems` takes it."""
    return " ".join(each.said for each in problems(error, shape, **how))


def problems(
    error: ValidationError | Errors,
    shape: Any = None,
    *,
    whole: str = "This",
    under: str = "",
    called: Callable[[str], str] | None = None,
    most: int = MOST_TOLD,
) -> list[Wrong]:
    """What is wrong, one for each field. `shape`: what was wanted, so that a sentence can say what there is. `whole`: what all of it
    is called, `under`: what its fields belong to. A shape may also be a mapping of names to shapes. `called`: what people know a field as, if not by its name."""
    errors = error.errors(include_url=False, include_input=False) if isinstance(error, ValidationError) else error
    found = [(each, _Found.at(shape, tuple(each["loc"]))) for each in errors]
    tags = {place.holder for each, place in found if place.is_tag and each["type"] in ("missing", "literal_error")}
    by_name: dict[str, list[tuple[Mapping[str, Any], _Found]]] = {}
    for each, place in found:
        # What comes with another tag belongs to something else: only the tag is wrong.
        if place.holder not in tags or place.is_tag:
            by_name.setdefault(".".join(map(str, place.names)), []).append((each, place))
    told: list[Wrong] = []
    listed: set[tuple[str | int, ...]] = set()
    for name, group in list(by_name.items())[:most]:
        full = ".".join(filter(None, (under, name)))
        error_, place = group[0]
        if error_["type"] == "extra_forbidden" and place.holder in listed:  # what there is, is said once
            told.append(Wrong(tuple(error_["loc"]), full, f"Unknown field `{full[:100]}`."))
            continue
        listed |= {place.holder} if error_["type"] == "extra_forbidden" else set()
        said = _sentence(group, f"`{called(full) if called else full}`" if full else whole, full)
        told.append(Wrong(tuple(group[0][0]["loc"]), full, said))
    return told


def unknown(what: str, name: str | Sequence[str], known: Iterable[str]) -> str:
    """`Unknown field `lmit`. Available: limit, cursor.`: the nearest word comes first."""
    names = [name] if isinstance(name, str) else name
    said = ", ".join(f"`{each[:100]}`" for each in names[:MOST_TOLD])
    return f"Unknown {what} {said}. {available(known, names[0]) or 'There are none.'}"


def available(known: Iterable[str], like: str = "") -> str:
    words = list(dict.fromkeys(map(str, known)))
    near = get_close_matches(like.rpartition(".")[2], words, 1) if like else []
    words = [*near, *(word for word in words if word not in near)]
    more = ", …" if len(words) > MOST_LISTED else ""
    return f"Available: {', '.join(words[:MOST_LISTED])}{more}." if words else ""


def _sentence(group: Sequence[tuple[Mapping[str, Any], _Found]], name: str, full: str) -> str:
    wanted = list(dict.fromkeys(filter(None, (_must(each) for each, _ in group))))
    if len(group) > 1 and len(wanted) > 1:  # one of several kinds would do
        return f"{name} must be {' or '.join(wanted)}."
    error, place = group[0]
    context = error.get("ctx") or {}
    match error["type"]:
        case "missing":
            return " ".join(filter(None, (f"{name} is required.", available(_choices(place.shape)))))
        case "extra_forbidden":
            return unknown("field", full, _fields(place.holder_shape))
        case "union_tag_not_found" | "union_tag_invalid":
            tag = str(context.get("discriminator", "")).strip("'")
            values = _tags(place.shape, tag) or _QUOTED.findall(str(context.get("expected_tags", "")))
            inner = f"`{full}.{tag}`" if full else f"`{tag}`"
            if error["type"] == "union_tag_not_found":
                return " ".join(filter(None, (f"{inner} is required.", available(values))))
            return f"{inner} must be one of: {', '.join(map(str, values))}."
        case "value_error" | "assertion_error":
            said = str(context.get("error") or error.get("msg", "")).removeprefix("Value error, ")
            text = said if said.endswith((".", "!", "?")) else f"{said}."
            return f"{name}: {text}" if full else text[:1].upper() + text[1:] if text.split()[0].isalpha() else text
        case "json_invalid":
            return f"{name} isn't valid JSON."
    must = _must(error)
    return f"{name} must be {must}." if must else f"{name} {_limit(error['type'], context)}."


def _must(error: Mapping[str, Any]) -> str | None:
    if error["type"] in ("literal_error", "enum"):
        values = _QUOTED.findall(str((error.get("ctx") or {}).get("expected", "")))
        return None if not values else values[0] if len(values) == 1 else f"one of: {', '.join(values[:MOST_LISTED])}"
    return WANTED.get(error["type"])


def _limit(type_: str, context: Mapping[str, Any]) -> str:
    for of, most, least in (("too_long", "max_length", ""), ("too_short", "", "min_length")):
        if type_.endswith(of):
            count = int(context.get(most or least, 0))
            what = "characters" if type_.startswith("string") else "entries"
            if least and count == 1:
                return "must not be empty"
            return f"must have at {'most' if most else 'least'} {count:,} {what}"
    said = {
        "greater_than": "must be more than {gt}", "greater_than_equal": "must be at least {ge}", "less_than": "must be less than {lt}",
        "less_than_equal": "must be at most {le}", "multiple_of": "must be a multiple of {multiple_of}",
        "string_pattern_mismatch": "must have the form {pattern}",
    }.get(type_)  # fmt: skip
    plain = {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
    return said.format(**plain) if said else "isn't valid"


@dataclass(frozen=True, slots=True)
class _Found:
    """A place in what was wanted. `names`: without what pydantic adds to tell the members of a union apart."""

    names: tuple[str | int, ...]
    shape: Any
    holder: tuple[str | int, ...]
    holder_shape: Any
    is_tag: bool

    @classmethod
    def at(cls, shape: Any, place: tuple[str | int, ...]) -> _Found:
        names: list[str | int] = []
        holder: tuple[str | int, ...] = ()
        here, holder_shape, is_tag = shape, shape, False
        for part in place:
            here, is_label = _member(here, part)
            if is_label:
                continue
            holder, holder_shape = tuple(names), here
            if not (isinstance(part, str) and part == "[key]"):
                names.append(part)
            here, is_tag = _inside(here, part)
        return cls(tuple(names), here, holder, holder_shape, is_tag)


def _member(shape: Any, part: str | int) -> tuple[Any, bool]:
    """The member of a union that a part of a place is about, and whether the part only says which one that is."""
    members = _members(shape)
    if len(members) <= 1:
        return (members[0] if members else shape), False
    for each in members:
        if part in _choices_of_tag(each) or part == getattr(each, "__name__", None) or str(part).startswith(str(each)):
            return each, True
    return members[0], True


def _members(shape: Any) -> list[Any]:
    """Without null, and without what is only said about a type."""
    bare = _bare(shape)
    if get_origin(bare) in (Union, UnionType):
        return [inner for each in get_args(bare) if each is not type(None) for inner in _members(each)]
    return [bare]


def _bare(shape: Any) -> Any:
    while get_origin(shape) is Annotated:
        shape = get_args(shape)[0]
    return shape


def _inside(shape: Any, part: str | int) -> tuple[Any, bool]:
    """What stands at a part of a place, and whether it is a tag: text that can only be one."""
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        field = next((each for name, each in shape.model_fields.items() if part in (name, _public(name, each))), None)
        choices = [] if field is None else _choices(field.annotation)
        return (None if field is None else field.annotation), len(choices) == 1 and choices[0] is not True
    if isinstance(shape, Mapping):
        return shape.get(part), False
    inner = get_args(shape)
    return (inner[-1] if inner and get_origin(shape) is dict else inner[0] if inner else None), False


def _public(name: str, field: Any) -> str:
    alias = field.validation_alias or field.alias
    if isinstance(alias, AliasChoices):
        alias = alias.choices[0]
    return alias if isinstance(alias, str) else name


def _fields(shape: Any) -> list[str]:
    members = _members(shape)
    return [
        _public(name, field)
        for each in members
        if isinstance(each, type) and issubclass(each, BaseModel)
        for name, field in each.model_fields.items()
    ]


def _choices(shape: Any) -> list[Any]:
    found: list[Any] = []
    for each in _members(shape):
        if get_origin(each) is Literal:
            found += get_args(each)
        elif isinstance(each, type) and issubclass(each, Enum):
            found += [member.value for member in each]
    return found


def _choices_of_tag(shape: Any) -> set[Any]:
    if not (isinstance(shape, type) and issubclass(shape, BaseModel)):
        return set()
    return {
        value
        for field in shape.model_fields.values()
        if len(choices := _choices(field.annotation)) == 1
        for value in choices
    }


def _tags(shape: Any, tag: str) -> list[Any]:
    models = [each for each in _members(shape) if isinstance(each, type) and issubclass(each, BaseModel)]
    return [
        value for each in models if tag in each.model_fields for value in _choices(each.model_fields[tag].annotation)
    ]
