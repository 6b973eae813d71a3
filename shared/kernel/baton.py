"""The baton: the message for one step. It carries ids only; tenant, cursor and secrets are read from the database."""

from __future__ import annotations

import json
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.kernel.wrong import in_words

# Postgres' integer and bigint: a number beyond them could never match a lane.
Int4 = Annotated[int, Field(ge=0, le=2**31 - 1)]
Int8 = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Baton(BaseModel):
    """One turn of one lane, named exactly. `resend_no` tells copies of it apart."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    v: Annotated[int, Field(ge=1, le=1)] = 1
    kind: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,59}$")]
    lane_id: UUID
    epoch: Int4
    seq: Int8
    resend_no: Int4

    def to_json(self) -> str:
        return self.model_dump_json()

    def group(self) -> str:
        """A repair travels in a group of its own: a message in the hands of a dead process blocks its group."""
        return f"{self.lane_id}:{self.resend_no}"

    def dedup_id(self) -> str:
        return f"{self.lane_id}:{self.epoch}:{self.seq}:{self.resend_no}"


_PAIRS = json.JSONDecoder(object_pairs_hook=list)  # pydantic takes the last of two equal keys; we take neither


class UnreadableBaton(ValueError):
    """A message that is no baton of a version this code knows."""


def read_baton(body: str) -> Baton:
    """Parse strictly. Every released version stays readable: tests/contract/messages holds one of each."""
    try:
        baton = Baton.model_validate_json(body)
    except ValidationError as error:
        raise UnreadableBaton(in_words(error, Baton, whole="The body")) from None
    if len(_PAIRS.decode(body)) != len(Baton.model_fields):
        raise UnreadableBaton("every field must be there exactly once")
    return baton
