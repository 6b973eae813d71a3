"""The kinds of work by name. The composition root passes the table; a kind never imports another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shared.kernel.decide import Limits, all_or_nothing
from shared.kernel.errors import Refused, StepError, Transient
from shared.kernel.model import (
    Already,
    Cancel,
    Decision,
    Due,
    Effect,
    Ending,
    Json,
    Lane,
    LaneChange,
    Looks,
    NewLane,
    NewRun,
    RemoteCall,
    Run,
    Settlement,
    Signal,
    Start,
    Starting,
    Statement,
    Turn,
)
from shared.kernel.ports import Ports, Row, Tx

NO_CAP = -1


class TickPart(Protocol):
    """What a kind does of its own each minute, a batch at a time."""

    def take_a_batch(self, in_time: Callable[[], bool]) -> bool:
        """False: there are no more."""


@dataclass(frozen=True, slots=True)
class Subscribers:
    """Listeners that are rows. Each that wants a signal gets a hearing of its own, so that one that fails holds up no other.

    `find`: of `:signal_ids`, the `signal_id` and the `subscriber` (a text) that wants it, of all tenants. `tell` gets one
    subscriber and what it has not heard yet, oldest first, in their tenant's transaction, and answers the batons to send after
    it. What raises there is told once more, one signal at a time.
    """

    find: Statement
    tell: Callable[[Tx, Ports, Kind, str, Sequence[Signal]], Sequence[Due]]


class Outside(Protocol):
    """What a step may use while it looks outside."""

    def time_left_s(self) -> float: ...

    def once(
        self,
        key: str,
        *,
        kind: str,
        call: Callable[[str], str],
        look: Callable[[str], str | None],
        leaves_asset: bool = False,
        looks: Looks = Looks(),  # noqa: B008 - frozen
    ) -> str:
        """Make a call that must not happen twice; answers its remote id. Both get the stable key.

        Raises `Later` between two looks for the trace of a call whose answer was lost.
        """

    def write(self, effect: Effect) -> list[Row]:
        """Write before the commit, only if this turn is still ours; else `Overtaken`.

        For what must be seen or reserved while the step works. It is not taken back if the step fails.
        """

    def assets(self) -> list[RemoteCall]:
        """What the run had left outside when this lane was created: the work of a clean-up lane."""

    def note_cleaned(self, asset: RemoteCall) -> None:
        """Note that an asset is gone."""


def _start_nothing(tx: Tx, starting: Starting) -> NewRun | Already:  # noqa: ARG001 - the shape of a start
    raise Refused("cannot_start", "this kind of work cannot be started")


def _cancel(turn: Turn, outside: Outside) -> Decision:  # noqa: ARG001 - the shape of a cancel
    return Cancel()


def _no_gates(turn: Turn) -> Sequence[str]:  # noqa: ARG001 - the shape of gates
    return ()


def _no_beginning(key: str, cursor: Json) -> None:  # noqa: ARG001 - the shape of from_start
    return None


def _lost(turn: Turn) -> StepError:  # noqa: ARG001 - the shape of on_lost
    return Transient("The worker stopped responding. The work was given to another.", "worker_lost")


def nothing_left(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:  # noqa: ARG001 - the shape of on_end
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of work: how it starts, takes a step, goes on and ends."""

    name: str
    take_step: Callable[[Turn, Outside], Decision]
    # Runs inside the transaction that creates the run: it may read, write rows under the run's id, or answer `Already`.
    start: Callable[[Tx, Starting], NewRun | Already] = _start_nothing
    # `start` for many at once, which is asked to read in few flights; what it refuses it answers in its place. For runs of one
    # lane that is pulled, of a kind that has no cap.
    start_many: Callable[[Tx, Sequence[Starting]], Sequence[NewRun | Already | Refused]] | None = None
    settle: Callable[[Run, Sequence[Lane]], Settlement] = all_or_nothing
    on_end: Callable[[Tx, Run, Ending], Sequence[NewLane]] = nothing_left
    # Before an ended run goes on, by a retry or an action of the kind: raises Conflict if there is nothing to go on with.
    on_reopen: Callable[[Tx, Run], None] | None = None
    # Of a lane that can be done again from its beginning, by its key and cursor: the cursor that it began with, and what would be
    # done again, for whoever asks first. None: it has no beginning to go back to.
    from_start: Callable[[str, Json], tuple[Json, str] | None] = _no_beginning
    # What somebody is told who retries a run that succeeded and has nothing to resume.
    to_do_again: str = "To do its work again, start a new run."
    on_cancel: Callable[[Turn, Outside], Decision] = _cancel
    gates: Callable[[Turn], Sequence[str]] = _no_gates
    # What a lane says that it waits for (`Wait.waits_for`), and the kind's own action that frees it. Anything else is woken.
    freed_by: Mapping[str, str] = field(default_factory=dict)
    # What a step does at a closed gate instead of waiting for it: for lanes that have work at other upstreams. None: it waits.
    at_closed_gate: Callable[[Turn], Decision | None] | None = None
    # Removes what a run left outside; gets the run's parameters and the seconds that are left.
    clean: Callable[[RemoteCall, Json, Callable[[], float]], None] | None = None
    # At most so many of the kind's own rows of a run past its retention; answers how many went. Asked until fewer go.
    prune: Callable[[Tx, Run, int], int] | None = None
    # How far runs are in what they count, as it was counted last: of `:run_ids`, the `run_id`, and how many are `done`, `failed` and
    # there in `total`; null: nobody knows how many there will be.
    rows: Statement | None = None
    counts: str = "rows"
    # What it reacts to, by the signal's name or a prefix that ends in `*`. Heard once each, in the tenant's transaction.
    listens: Mapping[str, Callable[[Tx, Signal], Sequence[Start]]] = field(default_factory=dict)
    subscribers: Subscribers | None = None
    each_tick: Callable[[Ports, Kind], TickPart] | None = None
    # Prefixes of the signals that it says beside `<name>.`; nobody outside may use any of them.
    says: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    # The limits of one lane, where they differ.
    limits_of: Callable[[Turn], Limits] | None = None
    # `push`: batons go through a queue to a function. `pull`: they are offered, and workers take them best first.
    delivery: Literal["push", "pull"] = "push"
    # For runs of one lane that is pulled: what the end of the lane means for the run. Both then end in one flight.
    # It must say what `settle` would; a lane that failed after a cancel is canceled anyway.
    ending: Callable[[Turn, LaneChange], Ending] | None = None
    # What is committed for a pulled turn whose worker did not come back.
    on_lost: Callable[[Turn], StepError] = _lost
    # How many runs a tenant may have open at once; None: as the tenant's row says; NO_CAP: any number, and none is counted.
    most_open_runs: int | None = None

    def limits_for(self, turn: Turn) -> Limits:
        return self.limits if self.limits_of is None else self.limits_of(turn)

    @property
    def own_signals(self) -> tuple[str, ...]:
        return (f"{self.name}.", *self.says)


class Catalogue(Mapping[str, Kind]):
    """Kinds by name. One that is given as a function is built when it is first asked for: a cold start imports no more
    than it uses."""

    def __init__(self, *kinds: Kind, **later: Callable[[], Kind]) -> None:
        self._kinds: dict[str, Kind | Callable[[], Kind]] = {kind.name: kind for kind in kinds}
        self._kinds.update(later)

    def __getitem__(self, name: str) -> Kind:
        kind = self._kinds[name]
        if not isinstance(kind, Kind):
            kind = self._kinds[name] = kind()
        return kind

    def __contains__(self, name: object) -> bool:
        return name in self._kinds

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)
