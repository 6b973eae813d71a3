"""Jobs as types: what a definition says, what a job asks for, and how an attempt ended. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from shared.kernel.model import RunCommand

KIND = "job"
LANE = "run"
ON_LAMBDA = "@lambda"  # behind the name of a queue: its jobs that functions run
USUAL_PRIORITY = 100
# By role: a number below this is for those who run the tenant, and one below zero for nobody.
FIRST_PRIORITY_OF_MEMBERS = 50
LAST_PRIORITY = 1_000
LARGEST_PAYLOAD = 64 * 1024
LARGEST_SCHEMA = 16 * 1024
LONGEST_ON_LAMBDA_S = 14 * 60  # unless its function was given less time
TAIL_BYTES = 64 * 1024
MOST_AHEAD = 1_000  # jobs that are counted before one that waits
RESOLVES = "x-baton-resolves"  # in a schema: this string names something of the tenant


class AttemptStatus(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class Command:
    """What may be run: an exact argv, to which a job adds `--tenant-id=…` and its payload as `--name=value`; or a run of
    another kind, which is started with the payload as its parameters."""

    key: str
    argv: Sequence[str] = ()
    env: Sequence[str] = ()  # names of variables that it gets from the worker
    starts: RunCommand | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    id: UUID
    key: str
    command: str
    description: str = ""
    arg_schema: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: int = 3600
    max_attempts: int = 3
    queue: str = "default"
    executor: Literal["lambda", "worker"] = "worker"
    concurrency_limit: int | None = None
    is_active: bool = True
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a process ended. `exit_code` is None where it did not end by itself; a signal is a negative number."""

    exit_code: int | None
    timed_out: bool = False
    canceled: bool = False
    lost: bool = False  # the turn is somebody else's by now
    stopped: bool = False  # the worker is to stop
    stdout: str = ""
    stderr: str = ""


class Word(StrEnum):
    """What a running command hears at its heartbeat."""

    GO_ON = "go_on"
    CANCEL = "cancel"
    LOST = "lost"
    STOP = "stop"
