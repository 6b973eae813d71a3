"""What saved searches need from outside: the clients, the sheet, their own rows, a meter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from shared.kernel.metrics import Meter, NoMeter
from shared.kernel.model import Json, Turn
from shared.search.model import Job, Page, SearchConfig
from shared.search.sheets.ports import SheetPorts

Row = Mapping[str, Any]


class SearchMetric(StrEnum):
    STALE = "SearchesNotFresh"  # active searches that miss their freshness objective
    EXECUTION = "SearchExecution"


class Client(Protocol):
    """A job board. What is not understood raises: it is unknown, never an empty page."""

    def page(self, params: Json, bucket: int, number: int) -> Page: ...


class Memory(Protocol):
    """What steps read beside their commit."""

    def next_job(self, turn: Turn) -> Row | None: ...
    def too_early_s(self, turn: Turn, gap_s: float) -> float: ...
    def replays(self, turn: Turn, most: int) -> list[Row]: ...
    def dirty_companies(self, turn: Turn, most: int) -> list[UUID]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """`client` makes the client of a tenant's account for one step, bounded by the time that the step has left."""

    client: Callable[[UUID, Job, Callable[[], float]], Client]
    store: Memory
    sheets: SheetPorts
    config: SearchConfig = field(default_factory=SearchConfig)
    meter: Meter = field(default_factory=NoMeter)
