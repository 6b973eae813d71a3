"""The hostile world with any kind of work as its subject, on Postgres.

`python -m tests.simulation.subjects KIND --schedules 200` runs it while you write one.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from shared.kernel import db
from shared.kernel import run as runs
from shared.kernel.catalogue import Catalogue
from tests.simulation.backends import PgBackend, prepare_database
from tests.simulation.faults import Fault, Faults, OneFault
from tests.simulation.invariants import Invariants
from tests.simulation.scenario import Scenario, draw_scenario, operator_scenario
from tests.simulation.thrift import connect_thriftily
from tests.simulation.world import FIFO, RELAY, TENANTS, FaultyStore, World
from tests.support.databases import as_user, server_admin
from tests.support.subject import Subject, subjects

Engines = tuple[sa.Engine, sa.Engine]
RunSchedule = Callable[[str], "SubjectWorld"]


class SubjectWorld(World):
    """`owner` sees every row; `faulty` puts a store of the kind's own behind the adversary."""

    def __init__(self, subject: Subject, scenario: Scenario, engines: Engines, faults: Faults | None) -> None:
        super().__init__(scenario, lambda world: PgBackend(world, *engines), faults)
        self.worker, owner = engines
        self.owner = db.autocommit(owner)
        with self.owner.connect() as connection:
            for table in subject.tables:
                connection.exec_driver_sql(f"delete from {table}")
        self.simulated = subject.simulate(self)
        self.kind = self.simulated.kind
        self.kinds = Catalogue(self.kind)
        self.ports = replace(self.ports, relay=RELAY.model_copy(update={"fifo_queue": FIFO}))
        self.invariants = SubjectInvariants(self)

    def faulty(self, store: Any) -> Any:
        return FaultyStore(self, store)

    def rows(self, sql: str, **params: Any) -> list[Any]:
        with self.owner.connect() as connection:
            return list(connection.execute(sa.text(sql), params).mappings().all())

    def _starter(self, params: dict[str, Any]) -> Callable[[], None]:
        wanted = self.simulated.params(params)

        def start() -> None:
            run_id = runs.start_run(self.ports, self.kind, TENANTS[params["tenant"]], wanted)
            if run_id not in self.run_ids:
                self.run_ids.append(run_id)

        return start


class SubjectInvariants(Invariants):
    """What holds for every relay while it works, and what the kind says of itself at the end."""

    world: SubjectWorld

    def something_to_look_at(self) -> bool:
        return super().something_to_look_at() or self._signals_wait() or self.world.simulated.waits_for_a_tick()

    def open_work(self) -> list[str]:
        mine = ["signals"] if self._signals_wait() else []
        return [*super().open_work(), *mine, *(["a tick"] if self.world.simulated.waits_for_a_tick() else [])]

    def _signals_wait(self) -> bool:
        return bool(self.world.kind.listens and self.world.store.unheard)  # type: ignore[attr-defined]

    def _check_rows(self, lane: SimpleNamespace) -> None:
        """A kind's own cursor means what the kind says, and its rows are judged at the end."""

    def at_the_end(self) -> None:
        self.world.simulated.at_the_end()
        self._nothing_left_outside()


def scenario_of(name: str) -> tuple[Scenario, OneFault | None]:
    mode, seed, *rest = name.split(":")
    match mode:
        case "random":
            return draw_scenario(int(seed)), None
        case "operators":
            return operator_scenario(int(seed)), None
        case _:
            plain = Scenario(seed=int(seed), runs=[{"tenant": 0}], actions=[], workers=2, stall_s=80.0)
            return plain, OneFault(int(rest[0]), Fault(rest[1])) if rest else None


@contextmanager
def schedules_of(subject: Subject, url: str) -> Iterator[RunSchedule]:
    """On a database that was prepared for simulation."""
    engines = connect_thriftily(as_user(url, "baton_worker")), connect_thriftily(url)
    if subject.schema:
        with db.autocommit(engines[1]).connect() as connection:
            connection.exec_driver_sql(subject.schema)

    def run(schedule: str) -> SubjectWorld:
        scenario, fault = scenario_of(schedule)
        world = SubjectWorld(subject, scenario, engines, fault)
        try:
            world.run()
        except BaseException as error:
            raise AssertionError(f"{subject.name} {schedule}: {error!r}") from error
        finally:
            world.store.forget()  # type: ignore[attr-defined]
        return world

    try:
        yield run
    finally:
        for engine in engines:
            engine.dispose()


def some_schedules(run: RunSchedule, count: int, base: int) -> Iterator[str]:
    """Half of them random, a tenth about operators, the rest single faults of plain ones."""
    for n in range(count // 2):
        yield f"random:{base + n}"
    for n in range(count // 10):
        yield f"operators:{base + n}"
    chance = Random(base)
    left = count - count // 2 - count // 10
    while left > 0:
        seed = base + left
        calls = run(f"single:{seed}").call_no
        for _ in range(min(left, 20)):
            yield f"single:{seed}:{chance.randrange(1, calls)}:{chance.choice(list(Fault))}"
        left -= 20


def main() -> int:
    """One kind, as often as wanted, or one schedule of it by name."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kind", choices=sorted(subjects()))
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--base", type=int, default=0)
    parser.add_argument("--replay", help="a schedule by its name, for example random:17")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with server_admin() as server:
        url = server.url(server.create_from_template(server.create_template()))
        prepare_database(url)
        with schedules_of(subjects()[options.kind], url) as run:
            names = [options.replay] if options.replay else some_schedules(run, options.schedules, options.base)
            ended = Counter(outcome for name in names for outcome in run(name).seen.elements() if "RunEnded" in outcome)
    print(f"{options.kind}: no promise was broken. {dict(ended)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
