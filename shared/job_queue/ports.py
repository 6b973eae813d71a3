"""What jobs need from outside: the list of commands, a runner of processes, their own rows, and a heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from shared.job_queue.model import LONGEST_ON_LAMBDA_S, Command, Finished, Word
from shared.kernel.metrics import Meter, NoMeter
from shared.kernel.model import By, Json, RunCommand, Turn


class JobMetric(StrEnum):
    """How many and how long. Depths are told by the API: a tenant is never a dimension."""

    ENQUEUED = "JobEnqueued"  # by definition
    ATTEMPT = "JobAttempt"  # one that ended, by definition and status
    DEAD_LETTER = "JobDeadLetter"  # by definition
    QUEUE_MS = "JobQueueMilliseconds"  # from when it could have been taken until it was, by definition
    RUN_MS = "JobRunMilliseconds"  # of one attempt, by definition


class Runner(Protocol):
    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        timeout_s: float,
        beat: Callable[[int, str, str], Word],
        left_s: Callable[[], float],
    ) -> Finished:
        """Run a command to its end. `beat` is called now and then with its process id and what it printed last; `left_s` says
        how much longer nobody else can have the job."""


class Reader(Protocol):
    def next_attempt(self, turn: Turn) -> int | None:
        """The number of the attempt that this turn is; None: it is somebody else's by now."""

    def exists(self, tenant_id: UUID, what: str, which: str) -> bool:
        """Whether the tenant has this thing: a run, or a connection of a provider, that is ready for use."""


class Starter(Protocol):
    def start(self, tenant_id: UUID, command: RunCommand, params: Json, by: By, run_id: UUID) -> UUID:
        """Start a run under this id; answers the run that does the work, which may be an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    commands: Mapping[str, Command]
    runner: Runner
    reader: Reader
    validate: Callable[[Mapping[str, Any], Mapping[str, Any]], None]  # raises Refused
    beat: Callable[[Turn], Word]
    worker_id: str
    environ: Mapping[str, str]
    lease_s: float = 60.0  # after so long without a heartbeat, a job may be somebody else's
    starter: Starter | None = None  # without one, no command can start runs here
    longest_on_lambda_s: int = LONGEST_ON_LAMBDA_S
    meter: Meter = field(default_factory=NoMeter)
