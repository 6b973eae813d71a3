"""Single words that a run and the API are asked with. Everybody who knows the API imports this, so it needs next to nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, Field


def instant(text: str) -> datetime:
    """A time of a cursor: ISO 8601 in UTC."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _is_a_moment(text: str) -> str:
    try:
        instant(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{text} is not a day or a time") from None
    return text


Moment = Annotated[
    str, Field(pattern=r"^\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?)?$"), AfterValidator(_is_a_moment)
]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
