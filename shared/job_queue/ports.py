"""What jobs need from outside: the list of commands, a runner of processes, their own rows, and a heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from shared.job_queue.model import LONGEST_ON_LAMBDA_S, Command, Finished, Word
from shared.kernel.model import Turn


class Runner(Protocol):
    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        timeout_s: float,
        beat: Callable[[int, str, str], Word],
    ) -> Finished:
        """Run a command to its end. `beat` is called now and then with its process id and what it printed last."""


class Reader(Protocol):
    def exists(self, tenant_id: UUID, what: str, which: str) -> bool:
        """Whether the tenant has this thing: a run, or a connection of a provider, that is ready for use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    commands: Mapping[str, Command]
    runner: Runner
    reader: Reader
    validate: Callable[[Mapping[str, Any], Mapping[str, Any]], None]  # raises Refused
    beat: Callable[[Turn], Word]
    worker_id: str
    environ: Mapping[str, str]
    longest_on_lambda_s: int = LONGEST_ON_LAMBDA_S
