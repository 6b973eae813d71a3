"""Page ingestion under the simulation's hostile world, on Postgres: whatever dies or is lost, no stone is."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest

from shared.kernel import db
from tests.simulation.backends import prepare_database
from tests.simulation.faults import Fault, OneFault
from tests.simulation.scenario import Scenario, draw_scenario, operator_scenario
from tests.support.databases import ServerAdmin, as_user
from tests.support.ingest_world import IngestWorld, ingest_store

RunSchedule = Callable[[str], IngestWorld]


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


@pytest.fixture(scope="module")
def run_schedule(postgres_server: ServerAdmin, template: str) -> Iterator[RunSchedule]:
    name = postgres_server.create_from_template(template)
    url = postgres_server.url(name)
    prepare_database(url)
    engines = db.connect_engine(as_user(url, "baton_worker")), db.connect_engine(url)
    logging.disable(logging.CRITICAL)

    def run(schedule: str) -> IngestWorld:
        scenario, fault = scenario_of(schedule)
        world = IngestWorld(scenario, ingest_store(engines), engines, fault)
        try:
            world.run()
        except BaseException as error:
            raise AssertionError(f"{schedule}: {error!r}") from error
        finally:
            world.store.forget()  # type: ignore[attr-defined]
        return world

    yield run
    logging.disable(logging.NOTSET)
    for engine in engines:
        engine.dispose()
    postgres_server.drop(name)


def run_all(run_schedule: RunSchedule, names: list[str]) -> Counter[str]:
    seen: Counter[str] = Counter()
    for name in names:
        seen.update(run_schedule(name).seen)
    return seen


@pytest.mark.parametrize("share", range(2))
def test_no_schedule_loses_a_stone(run_schedule: RunSchedule, share: int) -> None:
    run_all(run_schedule, [f"random:{share * 1_000 + n}" for n in range(5)] + [f"operators:{share}"])


@pytest.mark.parametrize("share", range(2))
def test_no_single_fault_loses_a_stone(run_schedule: RunSchedule, share: int) -> None:
    run_all(run_schedule, single_faults(run_schedule, share, 6))


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_hundreds_of_schedules_lose_no_stone_and_meet_everything(run_schedule: RunSchedule) -> None:
    names = [f"random:{n}" for n in range(10_000, 10_250)] + [f"operators:{n}" for n in range(10_000, 10_050)]
    seen = run_all(run_schedule, names)
    seen += run_all(run_schedule, [each for n in range(10) for each in single_faults(run_schedule, n, 30)])

    wanted = ("ended complete", "ended canceled", "Overtaken", "Refused.stale", "purge", "upstream too big", "crash")
    assert not [each for each in wanted if not seen[each]]


def single_faults(run_schedule: RunSchedule, seed: int, most: int) -> list[str]:
    """Some of all the faults at all the port calls of one plain schedule."""
    calls = run_schedule(f"single:{seed}").call_no
    chance = Random(seed)
    return [f"single:{seed}:{chance.randrange(1, calls)}:{chance.choice(list(Fault))}" for _ in range(most)]
