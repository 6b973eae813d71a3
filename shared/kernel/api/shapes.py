"""What requests and answers of several routes are made of."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from aws_lambda_powertools.event_handler.openapi.params import Header, Path, Query
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from shared.kernel.paging import LARGEST_PAGE

DATE_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}")


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


class Told(BaseModel):
    """What we answer."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class Asked(BaseModel):
    """What we are asked: nothing unknown is passed over."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class Because(Asked):
    """Why somebody acts; it is kept in the run's history and in the audit."""

    reason: Annotated[str, Field(max_length=500)] = ""


class Done(Told):
    done: Literal[True] = True


class Reasoned(Asked):
    """An act that touches more than one's own run says why."""

    reason: Annotated[str, Field(min_length=1, max_length=500)]
