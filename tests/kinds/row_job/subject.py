"""row_job as a subject of simulation, kill matrix and chaos."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from shared.kernel.catalogue import Kind
from shared.kernel.decide import Limits
from shared.kernel.retry import Backoff
from shared.row_job.model import KIND
from shared.row_job.steps import row_job
from tests.simulation.invariants import require
from tests.support.subject import Simulated, Subject

if TYPE_CHECKING:
    from tests.chaos.matrix import Play
    from tests.simulation.subjects import SubjectWorld

LIMITS = Limits(max_attempts=10, backoff=Backoff(first_s=0.5, most_s=2.0))

# What must hold once the work is done, as queries for the rows that break it.
RULES = {
    "a note is written once": "select run_id, n from row_job_note group by 1, 2 having count(*) > 1",
    "a run that succeeded wrote all of its notes": """
        select r.id from run r where r.kind = 'row_job' and r.status = 'succeeded'
          and (r.params ->> 'times')::int <> (select count(*) from row_job_note w where w.run_id = r.id)""",
    "notes have no gaps": """
        select run_id from row_job_note group by run_id having max(n) + 1 <> count(distinct n) or min(n) <> 0""",
    "a note belongs to the tenant of its run": """
        select w.run_id from row_job_note w join run r on r.id = w.run_id where r.tenant_id <> w.tenant_id""",
}


def simulate(world: SubjectWorld) -> Simulated:
    def params(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"text": "drink water", "times": world.rng.choice((1, 2, 4)), "every_s": world.rng.choice((0, 5, 1_000))}

    def judge() -> None:
        for rule, breaks_it in RULES.items():
            broken = world.rows(breaks_it)
            require(not broken, rule, broken)

    return Simulated(kind=row_job(Limits(max_attempts=12)), params=params, at_the_end=judge)


def build(engine: sa.Engine, address: Any, outside_url: str) -> Kind:
    """The kind in a process that is killed."""
    return row_job(LIMITS)


def two_notes(play: Play) -> None:
    run = play.start("succeeded", kind=KIND, text="drink water", times=2, every_s=30)
    play.work()
    play.act("pause", run)
    play.act("resume", run)
    play.pass_time(31)
    play.work()


def canceled_between_two_notes(play: Play) -> None:
    run = play.start("canceled", kind=KIND, text="drink water", times=2, every_s=600)
    play.work()
    play.act("cancel", run)
    play.work()


def order(rng: Random) -> dict[str, Any]:
    return {"text": "drink water", "times": rng.randint(1, 5), "every_s": rng.choice((0, 0, 1))}


SUBJECT = Subject(
    name=KIND,
    simulate=simulate,
    build=build,
    tables=("row_job_note",),
    rules=RULES,
    scenarios={each.__name__: each for each in (two_notes, canceled_between_two_notes)},
    order=order,
)
