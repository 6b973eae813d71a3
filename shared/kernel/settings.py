"""Every limit of the relay in one place, with its unit in its name and its bounds, and how a group of settings is read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from shared.kernel.wrong import in_words

LISTED = "BATON_SETTINGS"


class BadSettings(ValueError):
    """The environment does not make sense; the message says which variable and why."""


class Settings(BaseModel):
    """A group of settings, read once from environment variables with the group's prefix.

    A field with a description is an operator's to change: it may also stand in BATON_SETTINGS, the one variable that a
    deployment gives to all functions. A variable of its own wins. The other fields are the template's to set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)
    ordered: ClassVar[Sequence[tuple[str, str]]] = ()  # fields of which the first must not be above the second

    @model_validator(mode="after")
    def bounds_are_in_order(self) -> Self:
        for low, high in self.ordered:
            if (least := getattr(self, low)) > (most := getattr(self, high)):
                raise ValueError(f"{low} ({least}) is above {high} ({most})")
        return self

    @classmethod
    def from_env(cls, env: Mapping[str, str], prefix: str = "BATON_") -> Self:
        also = listed(env)
        given: dict[str, str] = {}
        for name, field in cls.model_fields.items():
            variable = prefix + name.upper()
            # An empty variable is an unset one: `sam local` and compose files have no other way to leave one out.
            if value := env.get(variable) or (also.get(variable) if field.description else None):
                given[name] = value
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise BadSettings("; ".join(cls._said(each, given, prefix) for each in error.errors())) from None

    @classmethod
    def _said(cls, error: ErrorDetails, given: Mapping[str, str], prefix: str) -> str:
        if not error["loc"]:  # of several fields: each by its variable
            names = "|".join(cls.model_fields)
            return re.sub(rf"\b({names})\b", lambda found: prefix + found[0].upper(), str(error["ctx"]["error"]))
        name = str(error["loc"][0])
        variable, field = prefix + name.upper(), cls.model_fields[name]
        if field.description and name in given:  # else it may be a password
            return f"{variable}={given[name][:100]}: must be {cls.allowed(name)}"
        return in_words([error], cls, called=lambda _: variable)

    @classmethod
    def operators(cls) -> dict[str, FieldInfo]:
        """The fields that may stand in BATON_SETTINGS."""
        return {name: field for name, field in cls.model_fields.items() if field.description}

    @classmethod
    def allowed(cls, name: str) -> str:
        """What a field may be, in words."""
        schema: dict[str, Any] = cls.model_json_schema()["properties"][name]
        schema = schema.get("anyOf", [schema])[0]
        if "enum" in schema:
            return " or ".join(schema["enum"])
        if schema["type"] == "boolean":
            return "true or false"
        if schema["type"] == "string":
            return "a text"
        low = schema["minimum"] if "minimum" in schema else f"above {schema['exclusiveMinimum']}"
        return f"{'a whole number, ' if schema['type'] == 'integer' else ''}{low} to {schema['maximum']}"


Groups = Sequence[tuple[str, type[Settings]]]  # each with its prefix


def listed(env: Mapping[str, str]) -> dict[str, str]:
    """What BATON_SETTINGS holds: pairs of NAME=value, separated by commas or blanks."""
    pairs = [each.partition("=") for each in re.split(r"[,\s]+", env.get(LISTED, "")) if each]
    for name, _, value in pairs:
        if not value:
            raise BadSettings(f"{LISTED}: {name} has no value; write NAME=value, separated by commas")
    found = {name: value for name, _, value in pairs}
    if len(found) < len(pairs):
        raise BadSettings(f"{LISTED}: a name is there twice: {', '.join(name for name, _, _ in pairs)}")
    return found


def check_settings(env: Mapping[str, str], groups: Groups) -> None:
    """Refuses a name in BATON_SETTINGS that nobody reads, and a value in any group that makes no sense."""
    problems = [*_unknown(env, groups)]
    for prefix, group in groups:
        try:
            group.from_env(env, prefix)
        except BadSettings as error:
            problems.append(str(error))
    if problems:
        raise BadSettings("; ".join(problems))


def _unknown(env: Mapping[str, str], groups: Groups) -> Iterator[str]:
    known = [prefix + name.upper() for prefix, group in groups for name in group.operators()]
    others = {prefix + name.upper() for prefix, group in groups for name in group.model_fields}
    for name in listed(env).keys() - set(known):
        if name in others:
            yield f"{LISTED}: {name} can't be set there, a parameter of the template sets it"
            continue
        near = difflib.get_close_matches(name, known, n=1)
        yield f"{LISTED}: unknown setting {name} ({f'did you mean {near[0]}?' if near else 'see docs/settings.md'})"


class Relay(Settings):
    """How the relay runs. A lease outlives the function, so that a takeover means that the old process is dead."""

    step_timeout_s: Annotated[int, Field(ge=1, le=900)] = 60
    lease_s: Annotated[int, Field(ge=2, le=1000)] = 70
    tick_batch: Annotated[int, Field(ge=1, le=5000, description="Lanes or runs that the tick repairs in one go")] = 500
    tick_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=600,
            description="Seconds that a tick or a sweep takes at most; its function's time-out is a bound too",
        ),
    ] = 45
    delay_queue: str = "baton-delay"
    fifo_queue: str = "baton-{kind}.fifo"
    wake_queue: str | None = None  # of functions that pull; without it nobody is woken, and workers look for themselves
    asset_grace_s: Annotated[
        int,
        Field(
            ge=0,
            le=30 * 86_400,
            description="Seconds after a run's end before the sweep removes what it left at an upstream",
        ),
    ] = 3600

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
