"""The kinds of work by name. The composition root passes the table; a kind never imports another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from shared.kernel.decide import Limits, all_or_nothing
from shared.kernel.errors import Refused
from shared.kernel.model import (
    Cancel,
    Decision,
    Ending,
    Json,
    Lane,
    NewLane,
    NewRun,
    RemoteCall,
    Run,
    Settlement,
    Turn,
)
from shared.kernel.ports import Tx


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
    ) -> str:
        """Make a call that must not happen twice; answers its remote id. Both get the stable key."""

    def assets(self) -> list[RemoteCall]:
        """What the run had left outside when this lane was created: the work of a clean-up lane."""

    def note_cleaned(self, asset: RemoteCall) -> None:
        """Note that an asset is gone."""


def _start_nothing(tx: Tx, tenant_id: UUID, params: Json) -> NewRun:  # noqa: ARG001 - the shape of a start
    raise Refused("cannot_start", "this kind of work cannot be started")


def _cancel(turn: Turn, outside: Outside) -> Decision:  # noqa: ARG001 - the shape of a cancel
    return Cancel()


def _no_gates(turn: Turn) -> Sequence[str]:  # noqa: ARG001 - the shape of gates
    return ()


def nothing_left(tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:  # noqa: ARG001 - the shape of on_end
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of work: how it starts, takes a step, goes on and ends."""

    name: str
    take_step: Callable[[Turn, Outside], Decision]
    start: Callable[[Tx, UUID, Json], NewRun] = _start_nothing
    settle: Callable[[Run, Sequence[Lane]], Settlement] = all_or_nothing
    on_end: Callable[[Tx, Run, Ending], Sequence[NewLane]] = nothing_left
    on_cancel: Callable[[Turn, Outside], Decision] = _cancel
    gates: Callable[[Turn], Sequence[str]] = _no_gates
    clean: Callable[[RemoteCall], None] | None = None
    # At most so many of the kind's own rows of a run past its retention; answers how many went. Asked until fewer go.
    prune: Callable[[Tx, Run, int], int] | None = None
    limits: Limits = field(default_factory=Limits)


class Catalogue(Mapping[str, Kind]):
    def __init__(self, *kinds: Kind) -> None:
        self._kinds = {kind.name: kind for kind in kinds}

    def __getitem__(self, name: str) -> Kind:
        return self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)
