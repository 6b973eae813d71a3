"""Every kind of work under the simulation's hostile world, on Postgres: whatever dies or is lost, its own promise holds."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.backends import prepare_database
from tests.simulation.subjects import RunSchedule, schedules_of, some_schedules
from tests.support.databases import ServerAdmin
from tests.support.rings import tenths
from tests.support.subject import Subject, subjects

SHARES = 10
MANY = 10_000
NAMES = sorted(subjects())


@pytest.fixture(scope="module", params=NAMES)
def subject(request: pytest.FixtureRequest) -> Subject:
    return subjects()[request.param]


@pytest.fixture(scope="module")
def run_schedule(subject: Subject, postgres_server: ServerAdmin, template: str) -> Iterator[RunSchedule]:
    name = postgres_server.create_from_template(template)
    prepare_database(postgres_server.url(name))
    logging.disable(logging.CRITICAL)
    with schedules_of(subject, postgres_server.url(name)) as run:
        yield run
    logging.disable(logging.NOTSET)
    postgres_server.drop(name)


def seen_in(run: RunSchedule, count: int, base: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for name in some_schedules(run, count, base):
        seen.update(run(name).seen)
    return seen


@tenths()
def test_no_schedule_breaks_a_kinds_promise(subject: Subject, run_schedule: RunSchedule, tenths: range) -> None:
    assert seen_in(run_schedule, subject.schedules * len(tenths) // 10, 100_000 * tenths.start)


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("share", range(SHARES))
def test_ten_thousand_schedules_break_no_promise(subject: Subject, run_schedule: RunSchedule, share: int) -> None:
    seen = seen_in(run_schedule, MANY // SHARES, 50_000_000 + 100_000 * share)

    wanted = ("Overtaken", "Refused.stale", "purge", "crash", "RunEnded.canceled", "RunEnded.succeeded")
    assert not [each for each in wanted if not seen[each]]
