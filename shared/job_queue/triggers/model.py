"""Triggers as types: what starts a job by itself, and what became of each time it should. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

TriggerType = Literal["event", "schedule"]
CatchUp = Literal["skip", "once", "all"]
Overlap = Literal["skip", "queue"]

USUAL_WINDOW_S = 300
LONGEST_WINDOW_S = 86_400
# The tick comes every minute: what is no later than this was not missed.
ON_TIME_S = 150
USUAL_LATENESS_S = 86_400
LONGEST_LATENESS_S = 7 * 86_400  # so that no outage, however long, has more due times to choose from than a week's
USUAL_MOST_CAUGHT_UP = 10
MOST_CAUGHT_UP = 100
MOST_LOOKED_AT = 5_000  # due times of one trigger in one transaction; the next one goes on
# Jobs that start jobs: a circle of triggers ends here.
LONGEST_CHAIN = 16


class FiringStatus(StrEnum):
    STARTED = "started"  # it has a job of its own
    JOINED = "joined"  # a job that had not begun yet does it
    WAITING = "waiting"  # its job follows when the one that is running has ended
    SKIPPED = "skipped"  # by policy; `reason` says which
    REFUSED = "refused"  # the job could not be added; `error` says why


class Skipped(StrEnum):
    TOO_LATE = "too_late"  # later than the trigger's limit
    MISSED = "missed"  # its policy is to skip what was missed
    SUPERSEDED = "superseded"  # a later due time was started in its place
    OVER_CAP = "over_cap"  # more were missed than may be caught up
    OVERLAP = "overlap"  # the job before it has not ended
    LOOP = "loop"  # its own job caused it, or a chain of jobs grew too long
    SWITCHED_OFF = "switched_off"  # or made to listen to another event, before it had heard this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    id: UUID
    tenant_id: UUID
    label: str
    trigger_type: TriggerType
    is_enabled: bool
    event_name: str | None
    event_filter: Mapping[str, Any]
    cron_expr: str | None
    timezone: str | None
    definition_key: str
    payload_template: Mapping[str, Any]
    dedupe_window_seconds: int
    catch_up: CatchUp
    max_lateness_seconds: int
    catch_up_most: int
    overlap: Overlap
    next_fire_at: datetime | None


@dataclass(frozen=True, slots=True)
class Passed:
    """Due times in a row that are not started, and why."""

    first: datetime
    last: datetime
    count: int
    reason: Skipped


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about the due times of a schedule: start these, note those, and look again at `next_at`."""

    fire: list[datetime]
    passed: list[Passed]
    next_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastJob:
    """The newest job of a trigger with the same payload, as it is now."""

    run_id: UUID
    state: Literal["waiting", "running", "ended"]  # waiting: nobody has begun it
    began_window_at: datetime  # when it began, or was added


@dataclass(frozen=True, slots=True)
class StartNow:
    pass


@dataclass(frozen=True, slots=True)
class StartAt:
    at: datetime


@dataclass(frozen=True, slots=True)
class Join:
    run_id: UUID


@dataclass(frozen=True, slots=True)
class Follow:
    """One more run when this one has ended."""

    run_id: UUID


@dataclass(frozen=True, slots=True)
class Pass:
    reason: Skipped


Verdict = StartNow | StartAt | Join | Follow | Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What a template may look into."""

    event: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] | None = field(default=None)
