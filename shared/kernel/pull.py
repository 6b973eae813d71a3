"""One function's share of a pull queue: it takes a turn, does it, and goes on while there is time for another."""

from __future__ import annotations

from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.decide import LONGEST_QUEUE_DELAY_S
from shared.kernel.model import Turn
from shared.kernel.ports import Ports
from shared.kernel.step import Outcome, do_turn
from shared.kernel.wake import wake


def pull(ports: Ports, kinds: Catalogue, queue: str, worker: str, lease_s: float, longest_s: float) -> int:
    """How many turns were taken. What it leaves behind, another is woken for: now, if only its own time is over."""
    assert ports.offers is not None
    taken, more = 0, True
    while ports.time_left_s() >= longest_s:
        turns = ports.offers.take(queue, 1, ports.chance.new_id(), lease_s, worker)
        if not turns:
            more = False  # what is due and cannot be had, because of a cap, is for whoever makes room
            break
        taken += 1
        if taken == 1:
            wake(ports, ports.offers.to_wake(1, 0, queue)[:1])
        do_pulled(turns[0], kinds, ports)
    left = ports.offers.to_wake(1, LONGEST_QUEUE_DELAY_S, queue)
    wake(ports, [each for each in left if more or each[1] > 0][:1])
    return taken


def do_pulled(turn: Turn, kinds: Catalogue, ports: Ports) -> Outcome:
    """Do a turn that was taken."""
    return do_turn(turn, kind_of(turn, kinds, ports), ports)


def kind_of(turn: Turn, kinds: Catalogue, ports: Ports) -> Kind:
    """A turn of a kind that is not deployed here is given back."""
    kind = kinds.get(turn.kind)
    if kind is None:
        assert ports.offers is not None
        ports.offers.give_back(turn)
        raise LookupError(f"there is no kind {turn.kind} here")
    return kind
