"""What a remote query needs from outside: the remote system, tokens for it, its own rows, a meter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from shared.kernel.clock import Chance
from shared.kernel.files import Files
from shared.kernel.metrics import Meter, NoMeter
from shared.kernel.model import RemoteCall, Turn
from shared.kernel.tokens import Token, TokenSource
from shared.query_run.model import ActivityStatus, Column, PollConfig, QueryParams, Rowset, Validation


class QueryMetric(StrEnum):
    POLL = "QueryPoll"
    REST_CHECK = "QueryIsRunningCheck"
    NOT_RUNNING = "QueryNotRunningConfirmation"
    READY_RETRY = "QueryRowsetReadinessRetry"
    PROBE = "QueryRowProbe"
    FAST_PATH = "QueryFastPathCompletion"
    STUCK = "QueryStuckFallback"
    TIMED_OUT = "QueryTimedOut"
    READY = "QueryReady"  # by how many polls it took: a histogram
    VALIDATION_SKIPPED = "QueryValidationSkipped"
    LATE = "QueryAdoptedLate"
    STARTED_AGAIN = "QueryStartedAgain"  # after a start that left no trace
    EXPORTED = "QueryExported"


class Remote(Protocol):
    """A system that runs queries. What is not understood raises: it is unknown, never an answer."""

    def authenticate(self) -> Token: ...
    def validate(self, token: Token, sql: str) -> Validation: ...
    def create_target(self, token: Token, key: str, columns: Sequence[Column], kept_days: int) -> str: ...
    def find_target(self, token: Token, key: str) -> str | None: ...
    def create_query(self, token: Token, key: str, sql: str, target_key: str, target_id: str) -> str: ...
    def find_query(self, token: Token, key: str) -> str | None: ...
    def start(self, token: Token, object_id: str) -> str: ...
    def status(self, token: Token, task_id: str) -> ActivityStatus | None: ...
    def is_running(self, token: Token, object_id: str) -> bool: ...
    def rows(self, token: Token, key: str, page: int, size: int) -> Rowset: ...
    def delete_query(self, token: Token, object_id: str) -> None: ...
    def delete_target(self, token: Token, key: str) -> None: ...
    def keys(self, token: Token, type_: str, prefix: str, most: int) -> list[str]: ...


class Memory(Protocol):
    """What steps read beside their commit."""

    def has_slot(self, turn: Turn) -> bool: ...

    def expected(self, turn: Turn) -> list[str]:
        """The keys of everything of this tenant that may be in a remote system now."""

    def results_are_kept(self, asset: RemoteCall) -> bool:
        """Whether somebody may still read the results that this asset belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """`remote` makes the client of a tenant's account for one step, bounded by the time that the step has left."""

    remote: Callable[[UUID, QueryParams, Callable[[], float]], Remote]
    tokens: TokenSource
    store: Memory
    files: Files
    config: PollConfig = field(default_factory=PollConfig)
    meter: Meter = field(default_factory=NoMeter)
    chance: Chance = field(default_factory=Chance)
    needs_connection: bool = False
