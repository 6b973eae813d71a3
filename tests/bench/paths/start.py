"""The start of a wide run: all its lanes in one transaction, then their batons."""

from __future__ import annotations

from shared.kernel.run import start_run
from tests.bench.figures import Figure
from tests.bench.limits.start import start
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.pages import PAGES, params
from tests.bench.place import TENANT, Place


def measure(place: Place, *, lanes: int, rounds: int) -> list[Figure]:
    def product() -> int:
        start_run(place.ports, PAGES, TENANT, params(lanes=lanes))
        return lanes

    def limit() -> int:
        start(place.limit, TENANT, lanes)
        return lanes

    def prepare_product() -> Act:
        place.queue.bodies.clear()
        return product

    found = race(
        [
            Side("product", prepare_product, place.product_connection),
            Side("limit", lambda: limit, place.bare_connection),
        ],
        rounds,
    )
    return [
        versus(f"start of a run with {lanes:,} lanes, against insert select", "lanes/s", found, "product", "limit"),
        *cpu("start, per lane", found, "product", "limit"),
    ]
