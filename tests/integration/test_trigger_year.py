"""Guards a virtual year of schedules: outages, ticks at once and ticks that die, and every due time is there exactly once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from random import Random
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.job_queue.triggers.cron import read_schedule
from shared.job_queue.triggers.fire import TriggerPoint
from shared.kernel.points import watch_points
from shared.kernel.tick import tick
from tests.simulation.backends import prepare_database
from tests.support.databases import ServerAdmin
from tests.support.triggers import TriggerOffice

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
END = BEGINNING + timedelta(days=365)
ZONES = ("UTC", "America/New_York", "Europe/Madrid", "Australia/Lord_Howe", "America/Havana", "Asia/Kolkata")
RARE = ("30 2 8 3 *", "15 1 1 11 *", "0 0 L * *", "0 9 1 */3 *", "45 23 15 * *", "0 12 * * 1#1", "@yearly")
OFTEN = ("30 2 * * 0", "0 9 * * 1-5", "15,45 1,2 * * *", "@hourly")


class Killed(BaseException):
    """As the end of a process: nothing catches it."""


class VirtualOffice(TriggerOffice):
    """An office whose database has our clock."""

    at = BEGINNING

    def __init__(self, url: str) -> None:
        super().__init__(url)
        for engine in self._own_engines:
            sa.event.listen(engine, "checkout", self._tell_the_time)

    def engine(self, *said: Any, **more: Any) -> sa.Engine:
        made = super().engine(*said, **more)
        sa.event.listen(made, "checkout", self._tell_the_time)
        return made

    def _tell_the_time(self, connection: Any, *_: object) -> None:
        connection.before_next("select set_config('sim.now', $1, false)", self.at.isoformat())

    def end_jobs(self, share: float, rng: Random) -> None:
        """Some of the jobs end, as if somebody had worked."""
        open_ = [row.id for row in self.sql("select id from run where finished_at is null order by id")]
        ended = [str(each) for each in open_ if rng.random() < share]
        self.sql("update lane set status = 'done' where run_id = any(cast(:ids as uuid[]))", ids=ended)
        self.sql(
            """update run set status = 'succeeded', started_at = now(), finished_at = now()
               where id = any(cast(:ids as uuid[]))""",
            ids=ended,
        )


@contextmanager
def virtual_office(server: ServerAdmin, template: str) -> Iterator[VirtualOffice]:
    name = server.create_from_template(template)
    prepare_database(server.url(name))
    office = VirtualOffice(server.url(name))
    try:
        yield office
    finally:
        office.close()
        server.drop(name)


def live_through(office: VirtualOffice, rng: Random, how_many: int) -> dict[UUID, tuple[str, str]]:
    triggers: dict[UUID, tuple[str, str]] = {}
    for n in range(how_many):
        cron, zone = rng.choice(OFTEN if n % 20 == 0 else RARE), rng.choice(ZONES)
        catch_up = rng.choice(["skip", "once", "all"])
        trigger = office.trigger(
            UUID(int=rng.randrange(1, 20)), cron_expr=cron, timezone=zone, catch_up=catch_up,
            overlap="queue" if catch_up == "all" else rng.choice(["skip", "queue"]),
            max_lateness_seconds=rng.choice([60, 86_400, 604_800]), catch_up_most=rng.choice([1, 10, 100]),
            next_fire_at=read_schedule(cron, zone, BEGINNING).next(BEGINNING),
        )  # fmt: skip
        triggers[trigger] = (cron, zone)
    others = [office.another(), office.another()]
    catalogue = office.catalogue
    while office.at < END:
        outage = rng.random() < 0.05
        office.at = min(END, office.at + timedelta(days=rng.uniform(5, 30) if outage else rng.uniform(0.01, 8)))
        office.end_jobs(0.5, rng)
        match rng.randrange(4):
            case 0:  # two at once
                both = [threading.Thread(target=tick, args=(ports, catalogue)) for ports in others]
                for each in both:
                    each.start()
                for each in both:
                    each.join()
            case 1:  # one dies on the way
                _tick_that_dies(office, rng)
            case _:
                office.ticks()
        office.ticks()
    return triggers


def _tick_that_dies(office: VirtualOffice, rng: Random) -> None:
    left = rng.randrange(1, 30)

    def count_down(name: str) -> None:
        nonlocal left
        left -= name in set(TriggerPoint)
        if left < 0:
            raise Killed

    watch_points(count_down)
    try:
        office.ticks()
    except Killed:
        pass
    finally:
        watch_points(None)


def check_year(office: VirtualOffice, triggers: dict[UUID, tuple[str, str]]) -> dict[str, int]:
    seen: dict[str, int] = {}
    for trigger, (cron, zone) in triggers.items():
        expected = list(takewhile(lambda at: at <= END, read_schedule(cron, zone, BEGINNING).after(BEGINNING)))
        got: list[datetime] = []
        for firing in office.firings(trigger):
            first, last = firing.fire_at.astimezone(UTC), firing.through.astimezone(UTC)
            within = [at for at in expected if first <= at <= last]
            assert len(within) == firing.due_count, (cron, zone, firing)
            got += within
            said = firing.reason or firing.status
            seen[said] = seen.get(said, 0) + firing.due_count
        assert got == expected, (cron, zone)
    started = office.sql("select run_id from trigger_firings where status = 'started'")
    assert len({each.run_id for each in started}) == len(started)
    assert office.value("select count(*) from run") == len(started)
    return seen


@pytest.mark.full
def test_a_year_of_schedules(postgres_server: ServerAdmin, template: str) -> None:
    with virtual_office(postgres_server, template) as office:
        seen = check_year(office, live_through(office, Random(18), 60))
    assert seen.keys() >= {"started", "superseded", "missed", "too_late", "overlap"}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_year_of_a_thousand_schedules(postgres_server: ServerAdmin, template: str) -> None:
    with virtual_office(postgres_server, template) as office:
        seen = check_year(office, live_through(office, Random(19), 1_000))
    assert seen.keys() >= {"started", "superseded", "missed", "too_late", "overlap", "over_cap"}
    assert sum(seen.values()) > 50_000
    print(seen)
