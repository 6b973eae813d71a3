"""A whole tiny run, from its start over a few steps of one row to its end."""

from __future__ import annotations

from shared.kernel.run import start_run
from shared.kernel.step import take_turn
from tests.bench.figures import Figure
from tests.bench.limits.whole_run import Run
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.pages import PAGES, params
from tests.bench.place import TENANT, Place, trips

STEPS = 3


def measure(place: Place, *, runs: int, rounds: int) -> list[Figure]:
    sides = [_product(place, runs), _limit(place, runs, tight=False), _limit(place, runs, tight=True)]
    found = race(sides, rounds)
    flights, _ = trips(place.product_connection(), sides[0].prepare())
    plain_flights, tight_flights = (trips(place.limit, side.prepare())[0] for side in sides[1:])
    return [
        versus("a run of 3 steps, against the same statements bare", "runs/s", found, "product", "one by one"),
        versus("a run of 3 steps, against the tightest statements", "runs/s", found, "product", "tightest"),
        *cpu("a run of 3 steps", found, "product", "one by one"),
        Figure(name="network flights per run of 3 steps", value=flights, unit="", against=plain_flights),
        Figure(name="network flights per run, tightest", value=flights, unit="", against=tight_flights),
    ]


def _product(place: Place, runs: int) -> Side:
    def prepare() -> Act:
        place.queue.bodies.clear()
        return act

    def act() -> int:
        for _ in range(runs):
            start_run(place.ports, PAGES, TENANT, params(steps=STEPS, size=1))
            while place.queue.bodies:
                take_turn(place.queue.next_baton(), PAGES, place.ports)
        return runs

    return Side("product", prepare, place.product_connection)


def _limit(place: Place, runs: int, *, tight: bool) -> Side:
    def act() -> int:
        for _ in range(runs):
            run = Run(place.limit, TENANT, size=1)
            if tight:
                run.tightest(STEPS)
            else:
                run.one_by_one(STEPS)
        return runs

    return Side("tightest" if tight else "one by one", lambda: act, place.bare_connection)
