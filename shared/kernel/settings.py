"""Every limit of the relay in one place, with its unit in its name and its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shared.kernel.wrong import in_words


class BadSettings(ValueError):
    """The environment does not make sense; the message says which variable and why."""


class Settings(BaseModel):
    """A group of settings, read once from environment variables with the group's prefix."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def from_env(cls, env: Mapping[str, str], prefix: str = "BATON_") -> Self:
        # An empty variable is an unset one: `sam local` and compose files have no other way to leave one out.
        given = {name: value for name in cls.model_fields if (value := env.get(prefix + name.upper()))}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise BadSettings(in_words(error, cls, called=lambda name: f"{prefix}{name.upper()}", most=20)) from None


class Relay(Settings):
    """How the relay runs. A lease outlives the function, so that a takeover means that the old process is dead."""

    step_timeout_s: Annotated[int, Field(ge=1, le=900)] = 60
    lease_s: Annotated[int, Field(ge=2, le=1000)] = 70
    tick_batch: Annotated[int, Field(ge=1, le=5000)] = 500
    tick_seconds: Annotated[int, Field(ge=1, le=600)] = 45
    delay_queue: str = "baton-delay"
    fifo_queue: str = "baton-{kind}.fifo"
    wake_queue: str | None = None  # of functions that pull; without it nobody is woken, and workers look for themselves
    asset_grace_s: Annotated[int, Field(ge=0, le=30 * 86_400)] = 3600

    @model_validator(mode="after")
    def lease_outlives_the_function(self) -> Self:
        if self.lease_s <= self.step_timeout_s:
            raise ValueError(f"lease_s ({self.lease_s}) must be longer than step_timeout_s ({self.step_timeout_s})")
        return self

    def queue_of(self, kind: str) -> str:
        return self.fifo_queue.format(kind=kind.replace("_", "-"))


# How long rows are kept, in days. Runs take their lanes, steps, history and remote calls with them.
RETENTION_DAYS: Mapping[str, int] = {
    "step": 14,
    "pulse": 14,
    "repair": 30,
    "signal": 14,
    "hearing": 14,
    "answered": 2,
    "pace_decision": 14,
    "run": 90,
}
