"""One plain step: what the product makes of a message, against the same statements by hand."""

from __future__ import annotations

from shared.kernel.flights import Connection
from shared.kernel.model import StepOutcome
from shared.kernel.run import start_run
from shared.kernel.step import take_turn
from tests.bench.figures import Figure
from tests.bench.limits import step as limit
from tests.bench.measure import Act, Side, cpu, race, versus
from tests.bench.pages import PAGES, params
from tests.bench.place import TENANT, Place, trips


def measure(place: Place, *, steps: int, rounds: int, label: str = "") -> list[Figure]:
    ours, theirs = product_side(place, steps), limit_side(place, steps, "limit", place.limit)
    kept = limit_side(place, steps, "kept", place.limit_with_plans)
    found = race([ours, theirs, kept], rounds)
    flights, statements = trips(place.product_connection(), ours.prepare())
    bare_flights, bare_statements = trips(place.limit, theirs.prepare())
    return [
        versus(f"one step, against bare statements{label}", "steps/s", found, "product", "limit", ">= 0.8"),
        versus(f"one step, against bare statements with kept plans{label}", "steps/s", found, "product", "kept"),
        *cpu(f"one step{label}", found, "product", "limit"),
        Figure(name=f"network flights per step{label}", value=flights, unit="", against=bare_flights, goal="<= 4"),
        Figure(name=f"statements per step{label}", value=statements, unit="", against=bare_statements),
    ]


def product_side(place: Place, steps: int) -> Side:
    def prepare() -> Act:
        place.queue.bodies.clear()
        start_run(place.ports, PAGES, TENANT, params())
        _turn(place)  # the first step of a run says that it runs, and is not plain
        return act

    def act() -> int:
        for _ in range(steps):
            _turn(place)
        return steps

    return Side("product", prepare, place.product_connection)


def limit_side(place: Place, steps: int, name: str, connection: Connection) -> Side:
    def prepare() -> Act:
        lane = limit.Lane(connection, TENANT)
        lane.create()
        lane.step()

        def act() -> int:
            for _ in range(steps):
                lane.step()
            return steps

        return act

    return Side(name, prepare, lambda: connection)


def _turn(place: Place) -> None:
    outcome = take_turn(place.queue.next_baton(), PAGES, place.ports)
    assert outcome is StepOutcome.MOVED, outcome
