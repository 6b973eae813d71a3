"""What requests and answers of several routes are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar
from uuid import UUID

from aws_lambda_powertools.event_handler.openapi.params import Header, Path, Query
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from shared.kernel.paging import LARGEST_PAGE

Item = TypeVar("Item", bound=BaseModel)
DATE_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}")
DAY_OR_TIME = re.compile(r"\d{4}-\d{2}-\d{2}\Z|\d{2}:\d{2}")


def _spelled_out(value: Any) -> Any:
    """A bare number would be taken for seconds since 1970, which nobody means."""
    if not isinstance(value, datetime) and not (isinstance(value, str) and DATE_TIME.match(value)):
        raise ValueError("a date and a time with its zone, as 2026-11-16T08:00:00Z")
    return value


def _in_utc(value: datetime) -> datetime:
    """The first and the last day of the calendar are not there in every zone."""
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("between the years 1 and 9999, in UTC too") from None


Instant = Annotated[AwareDatetime, BeforeValidator(_spelled_out), AfterValidator(_in_utc)]
RunId = Annotated[UUID, Path(description="The run's id")]
LaneId = Annotated[UUID, Path(description="The lane's id")]
Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="How many at most")]
Cursor = Annotated[str | None, Query(max_length=1000, description="`next` of the page before")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="The same key with the same body gets the same answer, for a day at least",
    ),
]
Short = Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class Form:
    """How a text is written. Whoever writes it otherwise is told in words; programs read the pattern in the OpenAPI document."""

    pattern: str
    said: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": self.pattern}

    def _checked(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise ValueError(self.said)
        return text


class Told(BaseModel):
    """What we answer."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, defer_build=True)


LARGEST_ANSWER = 4_000_000  # a function answers at most 6 MB, which includes headers and what is around the body


def fitting(page: Iterable[Item]) -> list[Item]:
    """As many of a page as an answer may hold, and at least one. The body travels as a string, where quotes take two bytes."""
    kept: list[Item] = []
    size = 0
    for each in page:
        written = each.model_dump_json().encode()
        size += len(written) + written.count(b'"') + written.count(b"\\")
        if kept and size > LARGEST_ANSWER:
            break
        kept.append(each)
    return kept


def _as_written(schema: Any) -> Any:
    """The same schema for JSON's own types alone. (`strict=True` would refuse ids, roles and dates too: they are texts.)"""
    if isinstance(schema, list):
        return [_as_written(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    walked = {name: each if name in {"metadata", "default"} else _as_written(each) for name, each in schema.items()}
    match walked.get("type"):
        case "int" | "float" | "bool":
            return {**walked, "strict": True}
        case "date" | "time":
            return core_schema.no_info_before_validator_function(_text, walked)
        case _:
            return walked


def _text(value: Any) -> Any:
    """A number would be taken for seconds since midnight, or since 1970."""
    if isinstance(value, date | time) or (isinstance(value, str) and DAY_OR_TIME.match(value)):
        return value
    raise ValueError("must be a day or a time of day as a text, such as 2026-11-16 or 03:00")


class Asked(BaseModel):
    """What we are asked: nothing unknown is passed over, and nothing is taken for what it is not. `true` is no number, and
    neither are "1" and 1.0; "no" is no truth; and 3600 is no time of day."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler, /) -> CoreSchema:
        found: CoreSchema = _as_written(handler(source))
        return found


class Changes(Asked):
    """What is to be otherwise; what is left out stays as it is. `null` would be taken for left out, but for `emptied`."""

    emptied: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        given = self.model_fields_set - self.emptied
        if empty := sorted(name for name in given if getattr(self, name) is None):
            raise ValueError(f"{', '.join(empty)}: must not be null. What is left out stays as it is.")
        return self


class Because(Asked):
    """Why somebody acts; it is kept in the run's history and in the audit."""

    reason: Annotated[str, Field(max_length=500)] = ""


class Done(Told):
    done: Literal[True] = True


class Reasoned(Asked):
    """An act that touches more than one's own run says why."""

    reason: Annotated[str, Field(min_length=1, max_length=500)]
