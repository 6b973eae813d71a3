"""Jobs under seeded schedules on Postgres: workers that die at any point, leases that run out, late answers, operators and
ticks, in any order. `python -m tests.simulation.jobs --schedules 10000`."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import UUID

from shared.job_queue.model import Finished
from shared.kernel import run
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.errors import NotFound, Refused
from shared.kernel.model import By, Turn
from shared.kernel.offers import Taking, TakingOffers
from shared.kernel.points import Point, watch_points
from shared.kernel.step import do_turn
from shared.kernel.store import PgStore
from shared.kernel.tick import repair_lost
from tests.support.databases import server_admin
from tests.support.depot import STRANDED
from tests.support.jobs import QUEUE, Office, job_office

MOST_ATTEMPTS = 3
ENDS = (
    Finished(exit_code=0), Finished(exit_code=0), Finished(exit_code=1), Finished(exit_code=None, timed_out=True),
    Finished(exit_code=None, stopped=True),
)  # fmt: skip
# Where somebody who works on jobs can die.
DEADLY = frozenset({
    Point.START_WRITTEN, Point.START_COMMITTED, Point.STEP_LOOKED, Point.STEP_COMMITTED, Point.STEP_SENT,
    Point.TURN_RUN_LOCKED, Point.TURN_WRITTEN, Point.TURN_SETTLED, Point.TICK_TOOK_OVER, Point.TICK_LOST_COMMITTED,
})  # fmt: skip


class Died(BaseException):
    """As by kill -9: nothing that would handle an error sees it."""


@dataclass
class Schedule:
    office: Office
    seed: int
    deaths: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.tenants = [new_id(), new_id()]
        self.jobs: list[tuple[UUID, UUID]] = []
        self.held: list[Turn] = []
        self.kind = self.office.job
        self.office.runner.ends = lambda *_: self.rng.choice(ENDS)

    def play(self, steps: int = 14) -> list[str]:
        self._add()
        acts: list[Callable[[], None]] = [
            self._add, self._take, self._take, self._work, self._work, self._work_and_take, self._lose, self._late, self._cancel,
            self._pause, self._resume, self._retry, self._tick, self._pass,
        ]  # fmt: skip
        for _ in range(steps):
            self._mortal(self.rng.choice(acts))
        self._drain()
        return self._violations()

    def _mortal(self, act: Callable[[], None]) -> None:
        """One in three acts may die at a point; whoever it was holds nothing any more."""
        left = [self.rng.randint(1, 4) if self.rng.random() < 0.5 else 0]
        at = ""

        def hook(name: str) -> None:
            nonlocal at
            left[0] -= name in DEADLY
            if left[0] == 0 and name in DEADLY:
                at = name
                raise Died

        watch_points(hook)
        try:
            act()
        except Died:
            self.deaths[at] += 1
        except (Refused, NotFound):
            pass
        finally:
            watch_points(None)

    def _add(self) -> None:
        tenant = self.rng.choice(self.tenants)
        key = self.rng.choice([None, None, "k"])
        asked = {"definition_key": "test", **({"dedupe_key": key} if key else {})}
        before = self.office.value("select count(*) from run where tenant_id = :t", t=tenant)
        try:
            job = run.start_run(self.office.ports, self.kind, tenant, asked, By(source="api"))
        finally:
            for row in self.office.sql("select id from run where tenant_id = :t", t=tenant):
                if (tenant, row.id) not in self.jobs:
                    self.jobs.append((tenant, row.id))
        assert (
            key is not None
            or self.office.value("select count(*) from run where tenant_id = :t", t=tenant) == before + 1
        )
        assert (tenant, job) in self.jobs

    def _take(self) -> None:
        assert self.office.ports.offers is not None
        self.held += self.office.ports.offers.take(QUEUE, self.rng.choice((1, 1, 2)), new_id(), 60, "w")

    def _work(self) -> None:
        if self.held:
            do_turn(self.held.pop(self.rng.randrange(len(self.held))), self.kind, self.office.ports)

    def _work_and_take(self) -> None:
        if self.held:
            assert isinstance(self.office.store, PgStore)
            taking = Taking(QUEUE, 60, "w", new_id)
            ports = replace(self.office.ports, offers=TakingOffers(self.office.store._engine, taking))
            turn = self.held.pop()
            try:
                do_turn(turn, self.kind, ports)
            finally:
                self.held += taking.taken if self.rng.random() < 0.8 else []

    def _lose(self) -> None:
        self._expire()
        if self.rng.random() < 0.7:
            self._tick()

    def _expire(self) -> None:
        self.office.sql(
            """update lane set lease_until = now() - interval '1 s'
               where claim_token is not null and tenant_id = any(cast(:t as uuid[]))""",
            t=[str(each) for each in self.tenants],
        )

    def _late(self) -> None:
        """Whoever lost its lease comes back, and a twin with the same turn."""
        if self.held:
            turn = self.rng.choice(self.held)
            do_turn(turn, self.kind, self.office.ports)

    def _one(self) -> tuple[UUID, UUID]:
        return self.rng.choice(self.jobs)

    def _cancel(self) -> None:
        run.cancel_run(self.office.ports, self.kind, *self._one())

    def _pause(self) -> None:
        run.pause_run(self.office.ports, *self._one())

    def _resume(self) -> None:
        run.resume_run(self.office.ports, *self._one())

    def _retry(self) -> None:
        run.retry_run(self.office.ports, self.kind, *self._one())

    def _tick(self) -> None:
        repair_lost(self.office.ports, Catalogue(self.kind))

    def _pass(self) -> None:
        self.office.pass_time()

    def _drain(self) -> None:
        self.office.runner.ends = lambda *_: Finished(exit_code=0)
        for tenant, job in self.jobs:
            if self.office.value("select paused_at is not null from run where id = :id", id=job):
                run.resume_run(self.office.ports, tenant, job)
        mine = [str(each) for each in self.tenants]
        for _ in range(2 * MOST_ATTEMPTS):
            self.office.work()
            if not self.office.value("select count(*) from offer where tenant_id = any(cast(:t as uuid[]))", t=mine):
                break
            self._expire()
            self._tick()
            self._pass()

    def _violations(self) -> list[str]:
        found = []
        mine = {"t": [str(each) for each in self.tenants]}
        sql = self.office.sql
        where = "tenant_id = any(cast(:t as uuid[]))"
        found += [
            f"{row.id} never ended" for row in sql(f"select id from run where {where} and finished_at is null", **mine)
        ]
        found += [f"{row.lane_id} is offered still" for row in sql(f"select lane_id from offer where {where}", **mine)]
        found += [f"{row.lane_id} is stranded" for row in sql(STRANDED)]
        twice = f"""select run_id, epoch from history where {where} and type in ('succeeded', 'failed', 'canceled')
                    group by 1, 2 having count(*) <> 1"""
        found += [f"{row.run_id} ended twice in epoch {row.epoch}" for row in sql(twice, **mine)]
        gaps = f"select job_id from job_attempts where {where} group by 1 having max(attempt_no) <> count(*) or min(attempt_no) <> 1"
        found += [f"{row.job_id} has gaps in its attempts" for row in sql(gaps, **mine)]
        open_ = f"select job_id from job_attempts where {where} and status = 'running'"
        found += [f"{row.job_id} has an attempt that never ended" for row in sql(open_, **mine)]
        won = f"""select r.id from run r where r.{where} and (
                      (select count(*) from job_attempts a where a.job_id = r.id and a.status = 'succeeded')
                      <> (select count(*) from history h where h.run_id = r.id and h.type = 'succeeded'))"""
        found += [f"{row.id} succeeded another number of times than its attempts" for row in sql(won, **mine)]
        many = f"""select r.id from run r where r.{where} and r.outcome = 'dead_letter'
                   and (select count(*) from job_attempts a where a.job_id = r.id and a.status in ('failed', 'timeout'))
                       > {MOST_ATTEMPTS} * r.epoch"""
        found += [f"{row.id} had more attempts than it may" for row in sql(many, **mine)]
        apart = f"""select r.id from run r join lane l on l.run_id = r.id where r.{where}
                    and (r.status, l.status) not in (('succeeded', 'done'), ('failed', 'failed'), ('canceled', 'canceled'))"""
        return found + [f"{row.id} and its lane do not agree" for row in sql(apart, **mine)]


def simulate(office: Office, schedules: range) -> tuple[list[str], Counter[str]]:
    """What was violated, by seed; and where somebody died."""
    office.empty()
    office.define(max_attempts=MOST_ATTEMPTS, arg_schema={})
    found: list[str] = []
    deaths: Counter[str] = Counter()
    for seed in schedules:
        schedule = Schedule(office, seed)
        found += [f"seed {seed}: {line}" for line in schedule.play()]
        deaths += schedule.deaths
        if seed % 50 == 49:  # what has ended is no matter any more
            office.empty()
            office.define(max_attempts=MOST_ATTEMPTS, arg_schema={})
    return found, deaths


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--base", type=int, default=0)
    options = parser.parse_args()
    with server_admin() as admin, job_office(admin, admin.create_template()) as office:
        found, deaths = simulate(office, range(options.base, options.base + options.schedules))
    print("\n".join(found[:50]))
    print(f"{options.schedules} schedules, {len(found)} violations, deaths: {dict(deaths)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
