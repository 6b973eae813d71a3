"""The words of example_kind: what a run is asked for, and what a lane remembers. No I/O."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

KIND = "example_kind"
LANE = "notes"


class ExampleKindParams(BaseModel):
    """Write `text` down so many `times`, `every_s` seconds apart."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: Annotated[str, Field(min_length=1, max_length=500)]
    times: Annotated[int, Field(ge=1, le=1_000)] = 3
    every_s: Annotated[int, Field(ge=0, le=30 * 86_400)] = 60
