"""A stale copy of a message: it must cost little, because at-least-once delivery brings many."""

from __future__ import annotations

from shared.kernel.model import NoTurn
from shared.kernel.run import start_run
from shared.kernel.step import take_turn
from tests.bench.figures import Figure
from tests.bench.limits.refused import look
from tests.bench.measure import Side, cpu, race, versus
from tests.bench.pages import PAGES, params
from tests.bench.place import TENANT, Place


def measure(place: Place, *, messages: int, rounds: int) -> list[Figure]:
    place.queue.bodies.clear()
    start_run(place.ports, PAGES, TENANT, params())
    stale = place.queue.next_baton()
    take_turn(stale, PAGES, place.ports)

    def product() -> int:
        for _ in range(messages):
            assert take_turn(stale, PAGES, place.ports) is NoTurn.STALE
        return messages

    def limit() -> int:
        for _ in range(messages):
            assert look(place.limit, stale.lane_id) > stale.seq
        return messages

    found = race(
        [
            Side("product", lambda: product, place.product_connection),
            Side("limit", lambda: limit, place.bare_connection),
        ],
        rounds,
    )
    return [
        versus("a stale message, against a bare select", "messages/s", found, "product", "limit"),
        *cpu("a stale message", found, "product", "limit"),
    ]
