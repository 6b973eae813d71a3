"""Guards the promise against kill -9 at every named point: a fresh process goes on and nothing is lost or done twice."""

from __future__ import annotations

from random import Random

import pytest

from shared.kernel.points import Point
from tests.chaos.matrix import Kill, Result, check, play
from tests.chaos.scenarios import killed_by_us
from tests.chaos.stage import Stage
from tests.support.subject import subjects

pytestmark = pytest.mark.full

PAIRS = 300


@pytest.fixture(scope="module")
def recorded(stage: Stage) -> dict[str, Result]:
    """Every scenario without a kill: which points it passes, how often, and how long it takes."""
    return {name: play(stage, name) for name in killed_by_us()}


def kill(stage: Stage, clean: Result, name: str, *kills: Kill) -> list[str]:
    """The broken rules of one case, each with how to play it again."""
    broken = check(clean, play(stage, name, kills), kills)
    again = "; ".join(f"{point} hit {hit}" for point, hit in kills)
    return [f"{name}, killed at {again}: {rule}" for rule in broken]


def test_every_scenario_ends_well_when_nobody_is_killed(recorded: dict[str, Result]) -> None:
    assert [line for result in recorded.values() for line in result.violations] == []
    assert not any(result.deaths for result in recorded.values())


def test_lost_messages_are_sent_again_by_the_first_tick_after_three_minutes(recorded: dict[str, Result]) -> None:
    assert (recorded["lost_messages"].waited_s, recorded["a_dead_letter"].waited_s) == (190, 200)


@pytest.mark.parametrize("point", list(Point))
def test_a_process_killed_at_a_point_loses_nothing_and_does_nothing_twice(
    point: Point, stage: Stage, recorded: dict[str, Result]
) -> None:
    passing = [name for name, result in recorded.items() if result.hits[point]]
    assert passing, f"no scenario passes {point}"
    least = min(passing, key=lambda name: recorded[name].effort)

    assert kill(stage, recorded[least], least, (point, 1)) == []


@pytest.mark.parametrize("name", sorted(subjects()))
def test_a_kind_killed_at_each_of_its_points_keeps_its_promise(
    name: str, stage: Stage, recorded: dict[str, Result]
) -> None:
    """Half way through, at every point of its own, and at every third of the relay's: at the others its neighbours are killed.

    `make verify` kills every kind at all of them.
    """
    subject = subjects()[name]
    theirs = {scenario: recorded[f"{name}.{scenario}"] for scenario in subject.scenarios}
    passed = {point for clean in theirs.values() for point in clean.hits}
    assert subject.points <= passed, f"no scenario of {name} passes {sorted(subject.points - passed)}"

    broken = []
    turn = sorted(subjects()).index(name)
    for point in sorted(subject.points | set(sorted(passed - subject.points)[turn % 3 :: 3])):
        passing = [each for each in theirs if theirs[each].hits[point]]
        scenario = min(passing, key=lambda each: theirs[each].effort)
        clean = theirs[scenario]
        broken += kill(stage, clean, f"{name}.{scenario}", (point, (clean.hits[point] + 1) // 2))

    assert broken == []


def test_work_that_kills_every_process_ends_as_poison_and_harms_nobody_else(stage: Stage) -> None:
    result = play(stage, "work_that_kills_its_process")

    assert result.violations == []
    assert result.deaths == 5


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", killed_by_us())
def test_a_process_killed_at_any_hit_of_any_point_loses_nothing_and_does_nothing_twice(
    name: str, stage: Stage, recorded: dict[str, Result]
) -> None:
    hits = [(point, hit) for point, hits in recorded[name].hits.items() for hit in range(1, hits + 1)]

    broken = [line for each in hits for line in kill(stage, recorded[name], name, each)]

    assert broken == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_processes_killed_one_after_the_other_lose_nothing_and_do_nothing_twice(
    stage: Stage, recorded: dict[str, Result]
) -> None:
    rng, broken = Random(5), []
    for _ in range(PAIRS):
        name = rng.choice(killed_by_us())
        first, second = (_any_hit(rng, recorded[name]) for _ in range(2))
        broken += kill(stage, recorded[name], name, first, second)

    assert broken == []


def _any_hit(rng: Random, result: Result) -> Kill:
    point = rng.choice(sorted(result.hits))
    return point, rng.randint(1, result.hits[point])
