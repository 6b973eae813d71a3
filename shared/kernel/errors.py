"""What can go wrong in a step, sorted by one question: who tries again?

StepError
├── Transient      the same lane, a little later; spends an attempt
├── Throttled      everyone who uses that upstream, when its gate opens; spends nothing
└── Permanent      nobody: the lane fails
Any other exception is a surprise: the same lane, slower, and it spends an attempt too.

Unsettled          the kind failed where its run was to be settled; the tick tries again, and ends it in the end
Overtaken          another turn moved the lane first; whatever this one wrote is rolled back
Refused            an operator's action that the run's state does not allow
NotFound           there is no such run or lane, or it is another tenant's
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


class StepError(Exception):
    """A known failure of a step."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False)
class Transient(StepError):
    """The upstream did not answer properly this time."""

    message: str
    code: str = "transient"
    retry_after_s: float | None = None


@dataclass(eq=False)
class Throttled(StepError):
    """The upstream asks everyone to stay away for a while."""

    gate: str
    retry_after_s: float
    message: str = "the upstream asks to wait"
    shared: bool = False


@dataclass(eq=False)
class Permanent(StepError):
    """Trying again cannot help."""

    message: str
    code: str = "permanent"
    data: dict[str, object] = field(default_factory=dict)


@dataclass(eq=False)
class Unsettled(Exception):
    """A kind raised while its run was settled or ended; the exception is the cause of this one."""

    what: Literal["settle", "on_end"]


class Overtaken(Exception):
    """Another turn moved this lane first."""


@dataclass(eq=False)
class Refused(Exception):
    """The run's state does not allow this action."""

    code: str
    message: str


class NotFound(Exception):
    """There is no such run or lane for this tenant."""
