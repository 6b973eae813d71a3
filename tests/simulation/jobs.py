"""Jobs under seeded schedules on Postgres: workers that die at any point, leases that run out, late answers, operators and
ticks, in any order. `python -m tests.simulation.jobs --schedules 10000`."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from shared.job_queue.model import Finished
from shared.kernel import run
from shared.kernel.catalogue import Catalogue
from shared.kernel.clock import new_id
from shared.kernel.errors import NotFound, Refused
from shared.kernel.model import By, Taking, Turn
from shared.kernel.points import Point, watch_points
from shared.kernel.step import do_turn
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

    def play(self, steps: int = 14) -> None:
        self._add()
        acts: list[Callable[[], None]] = [
            self._add, self._add_many, self._take, self._take, self._work, self._work, self._work_together, self._work_together, self._lose, self._late, self._cancel,
            self._pause, self._resume, self._retry, self._tick, self._pass,
        ]  # fmt: skip
        for _ in range(steps):
            self._mortal(self.rng.choice(acts))
        self._drain()

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
        before = len(self.jobs)
        try:
            job = run.start_run(self.office.ports, self.kind, tenant, asked, By(source="api"))
        finally:
            found = self.office.sql("select id from run where tenant_id = :t order by created_at", t=tenant)
            self.jobs += [(tenant, row.id) for row in found if (tenant, row.id) not in self.jobs]
        assert key is not None or len(self.jobs) == before + 1
        assert (tenant, job) in self.jobs

    def _add_many(self) -> None:
        """Some with the same key, and one that is refused."""
        tenant = self.rng.choice(self.tenants)
        asked = [{"definition_key": "test", **({"dedupe_key": key} if key else {})}
                 for key in self.rng.choices([None, "k", "l"], k=self.rng.randint(1, 4))]  # fmt: skip
        asked.insert(self.rng.randint(0, len(asked)), {"definition_key": "nobody's"})
        try:
            started = run.start_runs(self.office.ports, self.kind, tenant, asked, By(source="api"))
        finally:
            found = self.office.sql("select id from run where tenant_id = :t order by created_at", t=tenant)
            self.jobs += [(tenant, row.id) for row in found if (tenant, row.id) not in self.jobs]
        assert [isinstance(each, Refused) for each in started] == [each["definition_key"] != "test" for each in asked]
        assert all((tenant, each.run_id) in self.jobs for each in started if isinstance(each, run.Started))

    def _take(self) -> None:
        assert self.office.ports.offers is not None
        self.held += self.office.ports.offers.take(QUEUE, self.rng.choice((1, 1, 2, 3)), new_id(), 60, "w")

    def _work(self) -> None:
        if self.held:
            do_turn(self.held.pop(self.rng.randrange(len(self.held))), self.kind, self.office.ports)

    def _work_together(self) -> None:
        """Some of what is in hand is done and handed in together, a late twin among it, and the next is taken."""
        if self.held:
            some = self.rng.sample(self.held, self.rng.randint(1, len(self.held)))
            late = self.rng.random() < 0.3
            if not late:
                self.held = [turn for turn in self.held if turn not in some]
            taking = Taking(QUEUE, 60, "w", new_id(), len(some))
            try:
                self.office.do_together([*some, *(some[:1] if late else ())], taking, kind=self.kind)
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
        mine = [str(each) for each in self.tenants]
        paused = "select tenant_id, id from run where tenant_id = any(cast(:t as uuid[])) and paused_at is not null"
        for row in self.office.sql(paused, t=mine):
            run.resume_run(self.office.ports, row.tenant_id, row.id)
        for _ in range(2 * MOST_ATTEMPTS):
            self.office.work()
            if not self.office.value("select count(*) from offer where tenant_id = any(cast(:t as uuid[]))", t=mine):
                break
            self._expire()
            self._tick()
            self._pass()


# Whatever is not as promised: of which tenant, and what.
PROMISES = (
    "select tenant_id, id || ' never ended' as broken from run where finished_at is null",
    "select tenant_id, lane_id || ' is offered still' from offer",
    f"select tenant_id, lane_id || ' is stranded' from offer where lane_id in ({STRANDED})",
    """select tenant_id, run_id || ' ended twice in epoch ' || epoch from history
       where type in ('succeeded', 'failed', 'canceled') group by tenant_id, run_id, epoch having count(*) <> 1""",
    """select tenant_id, job_id || ' has gaps in its attempts' from job_attempts group by tenant_id, job_id
       having max(attempt_no) <> count(*) or min(attempt_no) <> 1""",
    "select tenant_id, job_id || ' has an attempt that never ended' from job_attempts where status = 'running'",
    """select tenant_id, id || ' succeeded another number of times than its attempts' from run r
       where (select count(*) from job_attempts a where a.job_id = r.id and a.status = 'succeeded')
             <> (select count(*) from history h where h.run_id = r.id and h.type = 'succeeded')""",
    f"""select tenant_id, id || ' had more attempts than it may' from run r
        where outcome = 'dead_letter' and {MOST_ATTEMPTS} * r.epoch < (
            select count(*) from job_attempts a where a.job_id = r.id and a.status in ('failed', 'timeout'))""",
    """select r.tenant_id, r.id || ' and its lane do not agree' from run r join lane l on l.run_id = r.id
       where (r.status, l.status) not in (('succeeded', 'done'), ('failed', 'failed'), ('canceled', 'canceled'))""",
)
BROKEN = " union all ".join(f"({each})" for each in PROMISES)
TOGETHER = 50  # schedules that are judged in one go, and then forgotten


def simulate(office: Office, schedules: range) -> tuple[list[str], Counter[str]]:
    """What was violated, by seed; and where somebody died."""
    found: list[str] = []
    deaths: Counter[str] = Counter()
    for first in range(schedules.start, schedules.stop, TOGETHER):
        office.empty()
        office.define(max_attempts=MOST_ATTEMPTS, arg_schema={})
        seeds: dict[UUID, int] = {}
        for seed in range(first, min(first + TOGETHER, schedules.stop)):
            schedule = Schedule(office, seed)
            seeds |= dict.fromkeys(schedule.tenants, seed)
            schedule.play()
            deaths += schedule.deaths
        found += [f"seed {seeds[row.tenant_id]}: {row.broken}" for row in office.sql(BROKEN)]
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
