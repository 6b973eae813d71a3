"""What can go wrong in a step, sorted by one question: who tries again?

StepError
├── Transient      the same lane, a little later; spends an attempt
├── Throttled      everyone who uses that upstream, when its gate opens; spends nothing
├── Later          the same lane, when its time has come; spends nothing and proves nothing about the upstream
└── Permanent      nobody: the lane fails
Any other exception is a surprise: the same lane, slower, and it spends an attempt too.

Unsettled          the kind failed where its run was to be settled; the tick tries again, and ends it in the end
Overtaken          another turn moved the lane first; whatever this one wrote is rolled back
Refused            a request that makes no sense as it is
├── Conflict       an action that the state does not allow now
└── NoRoom         as much of this is open as may be
NotFound           there is no such run or lane, or it is another tenant's
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from shared.kernel.model import Effect


class StepError(Exception):
    """A known failure of a step. `effects` are rows that are committed with it."""

    message: str
    effects: Sequence[Effect] = ()

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class Transient(StepError):
    """The upstream did not answer properly this time."""

    message: str
    code: str = "transient"
    retry_after_s: float | None = None
    effects: Sequence[Effect] = ()


@dataclass(eq=False)
class Throttled(StepError):
    """The upstream asks everyone to stay away for a while."""

    gate: str
    retry_after_s: float
    message: str = "the upstream asks to wait"
    shared: bool = False


@dataclass(eq=False)
class Later(StepError):
    """Nothing can be done yet: a token is being fetched, a limiter has no slot, a trace may still appear.

    For adapters and caches deep inside a step, which cannot answer `Wait` themselves.
    """

    after_s: float
    waits_for: str | None = None  # for people, as in `Wait`

    message: str = field(init=False)

    def __post_init__(self) -> None:
        self.message = f"waits for {self.waits_for or 'its time'}"


@dataclass(eq=False)
class Permanent(StepError):
    """Trying again cannot help."""

    message: str
    code: str = "permanent"
    data: dict[str, object] = field(default_factory=dict)
    effects: Sequence[Effect] = ()


@dataclass(eq=False)
class Unsettled(Exception):
    """A kind raised while its run was settled or ended; the exception is the cause of this one."""

    what: Literal["settle", "on_end"]


class Overtaken(Exception):
    """Another turn moved this lane first."""


@dataclass(eq=False)
class Refused(Exception):
    """What was asked for makes no sense: parameters that do not fit, something that is not there."""

    code: str
    message: str


class Conflict(Refused):
    """The run's state does not allow this action now."""


class NoRoom(Refused):
    """As much of this is open as may be; when some of it has ended, there is room again."""


class NotFound(Exception):
    """There is no such run or lane for this tenant."""


def bad_answer(message: str) -> Transient:
    """An answer that is not understood: never a value, never an empty list."""
    return Transient(message, code="bad_answer")
