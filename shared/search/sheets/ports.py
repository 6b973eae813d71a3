"""What the nightly sheet needs from outside: the sheet itself and its own rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shared.kernel.metrics import Meter, NoMeter
from shared.kernel.model import Turn
from shared.search.sheets.model import Block, SheetCursor, Tab

Row = Mapping[str, Any]
RETRIES = 3


class Sheet(Protocol):
    """One tab of one spreadsheet. Whatever it writes may be written again: nothing is ever appended. `read` gives rows in the
    order of our titles; None: those are no longer over their columns."""

    def look(self, tab: str) -> Tab | None: ...
    def add_tab(self, tab: str) -> Tab: ...
    def grow(self, grid: int, rows: int) -> None: ...
    def titles(self, tab: str, width: int) -> Sequence[Any]: ...
    def read(self, tab: str, columns: Sequence[int], first: int, last: int) -> Sequence[Sequence[Any]] | None: ...
    def write(self, tab: str, columns: Sequence[int], blocks: Sequence[Block]) -> None: ...


class SheetMemory(Protocol):
    def night(self, turn: Turn) -> Row | None: ...
    def batch(self, turn: Turn, sheet: str, after: int, most: int) -> Sequence[Row]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetPorts:
    """`sheet` makes the sheet of a connection for one step, bounded by the time that the step has left. `slot` keeps a slot
    for one request of its account, and says in how many seconds it comes."""

    slot: Callable[[Turn, SheetCursor], float]
    sheet: Callable[[Turn, SheetCursor, Callable[[], float]], Sheet]
    store: SheetMemory
    retries: int = RETRIES
    meter: Meter = field(default_factory=NoMeter)
