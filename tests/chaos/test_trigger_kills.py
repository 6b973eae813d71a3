"""Guards the way from an event or a due time to its job: killed anywhere, nothing is lost and nothing happens twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest

from shared.job_queue.triggers.fire import TriggerPoint
from shared.kernel.model import RunStatus
from shared.kernel.points import Point, watch_points
from shared.kernel.ports import Ports
from shared.kernel.signals import dispatch
from shared.kernel.tick import tick
from tests.support.databases import ServerAdmin
from tests.support.house import ALICE, BOB
from tests.support.triggers import TriggerOffice, trigger_office

pytestmark = pytest.mark.full

WHAT = {"what": "{{event.folder}}"}
TO_A_JOB = (
    Point.SIGNAL_LOCKED, Point.SIGNAL_FANNED_OUT, Point.SIGNAL_TAKEN, TriggerPoint.LOCKED, TriggerPoint.NOTED,
    Point.SIGNAL_HEARD, Point.SIGNAL_COMMITTED,
)  # fmt: skip
OF_A_SCHEDULE = tuple(TriggerPoint)


@pytest.fixture(scope="module")
def shared_office(postgres_server: ServerAdmin, template: str) -> Iterator[TriggerOffice]:
    with trigger_office(postgres_server, template) as office:
        yield office


@pytest.fixture
def office(shared_office: TriggerOffice) -> Iterator[TriggerOffice]:
    shared_office.empty()
    yield shared_office
    shared_office.send_guests_home()


def killed_at(office: TriggerOffice, where: str, hit: int, act: Callable[[Ports], object]) -> None:
    """A process of its own does it, and is killed with -9 when it passes a point for so-manieth time."""
    pid = os.fork()
    if pid == 0:
        left = hit

        def die(name: str) -> None:
            nonlocal left
            left -= name == where
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            ports = office.another()
            watch_points(die)
            act(ports)
        finally:
            os._exit(3)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"{where} was not passed {hit} times"
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("where", TO_A_JOB)
def test_an_event_whose_dispatcher_is_killed_starts_its_job_once(office: TriggerOffice, where: str, hit: int) -> None:
    triggers = [office.trigger(payload_template=WHAT), office.trigger(payload_template=WHAT), office.trigger(BOB)]
    for n in range(2):
        office.happens({"folder": f"/{n}"})
        office.happens({"folder": f"/{n}"}, tenant=BOB)
    catalogue = office.catalogue
    once_a_batch = {Point.SIGNAL_LOCKED, Point.SIGNAL_FANNED_OUT}
    killed_at(office, where, 1 if where in once_a_batch else hit, lambda ports: dispatch(ports, catalogue))
    for _ in range(600):  # what the dead held is free when the server has noticed
        office.sql("update hearing set due_at = least(due_at, now())")  # the time of the dead one is over
        office.told()
        if len(office.jobs()) == 5:
            break
        time.sleep(0.1)
    assert [office.statuses(each) for each in triggers] == [["started"] * 2, ["started"] * 2, ["started", "joined"]]
    assert len(office.jobs()) == 5
    assert office.value("select count(*) from hearing") == 0


@pytest.mark.parametrize("where", OF_A_SCHEDULE)
def test_a_due_time_whose_tick_is_killed_starts_its_job_once(office: TriggerOffice, where: str) -> None:
    due = office.now().replace(second=0, microsecond=0)
    triggers = [office.trigger(cron_expr=f"{due.minute} * * * *", next_fire_at=due) for _ in range(3)]
    catalogue = office.catalogue
    killed_at(office, where, 2, lambda ports: tick(ports, catalogue))
    for _ in range(100):  # what the dead held is free when the server has noticed, and the tick comes every minute
        office.ticks()
        if all(office.statuses(each) for each in triggers):
            break
        time.sleep(0.1)
    assert [office.statuses(each) for each in triggers] == [["started"]] * 3
    assert len(office.jobs()) == 3


class Died(BaseException):
    pass


def live(office: TriggerOffice, rng: Random) -> None:
    """Events come, sometimes twice; dispatchers and ticks die anywhere; workers take jobs, end them, or are lost."""
    office.trigger(payload_template=WHAT, dedupe_window_seconds=rng.choice([0, 1, 300]))
    office.trigger(payload_template=WHAT, dedupe_window_seconds=0, event_filter={"folder": "/a"})
    office.trigger(BOB, dedupe_window_seconds=300)
    turns = []
    for n in range(rng.randrange(15, 30)):
        match rng.randrange(8):
            case 0 | 1 | 2:
                tenant, folder = rng.choice([ALICE, BOB]), rng.choice(["/a", "/b"])
                for _ in range(rng.choice([1, 1, 2])):
                    office.happens({"folder": folder}, tenant=tenant, event_id=f"e{n}")
            case 3:
                _dying(rng, office.told)
                office.sql("update hearing set due_at = least(due_at, now())")
            case 4:
                _dying(rng, office.ticks)
            case 5:
                turns += office.take(rng.choice([1, 3]))
            case 6 if turns:
                office.do(turns.pop(rng.randrange(len(turns))))
            case _:
                office.pass_time(rng.choice([1, 400]))
    for turn in turns:
        office.do(turn)
    for _ in range(6):  # peace
        office.sql("update hearing set due_at = least(due_at, now())")
        office.ticks()
        office.pass_time()
        office.work()


def _dying(rng: Random, act: Callable[[], object]) -> None:
    left = rng.randrange(1, 12)

    def hook(name: str) -> None:
        nonlocal left
        left -= name in {*TO_A_JOB, *OF_A_SCHEDULE}
        if left == 0:
            raise Died

    watch_points(hook)
    try:
        act()
    except Died:
        pass
    finally:
        watch_points(None)


# What must never be: an event that a trigger wanted and that has no firing; two of them; a firing without a job; a job that
# began, for the last time, before the event that it counts for; two jobs of one payload at the same time.
LOST = """
select t.id, s.id from job_triggers t join signal s on s.tenant_id = t.tenant_id and s.name = t.event_name
where (t.event_filter = '{}' or t.event_filter ->> 'folder' = s.payload ->> 'folder')
  and (select count(*) from trigger_firings f where f.trigger_id = t.id and f.signal_id = s.id) <> 1
"""
UNSERVED = """
select f.* from trigger_firings f join signal s on s.id = f.signal_id
where not exists (select from job_attempts a join run r on r.id = a.job_id
                  where a.job_id = f.run_id and a.started_at >= s.at and r.status = :succeeded)
"""
TWICE = "select run_id from trigger_firings where status = 'started' group by 1 having count(*) > 1"
STRAYS = "select id from run r where kind = 'job' and not exists (select from trigger_firings f where f.run_id = r.id)"
TOGETHER = """
select a.job_id, b.job_id from trigger_firings x join trigger_firings y
  on y.trigger_id = x.trigger_id and y.key = x.key and y.run_id > x.run_id and x.status = 'started' and y.status = 'started'
join job_attempts a on a.job_id = x.run_id join job_attempts b on b.job_id = y.run_id
where a.started_at < b.finished_at and b.started_at < a.finished_at
"""


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(n, marks=pytest.mark.long) for n in range(12, 300))])
def test_no_event_is_lost_and_none_counts_twice(office: TriggerOffice, seed: int) -> None:
    live(office, Random(seed))
    assert office.sql(LOST) == []
    assert office.sql(UNSERVED, succeeded=RunStatus.SUCCEEDED) == []
    assert office.sql(TWICE) == []
    assert office.sql(STRAYS) == []
    assert office.sql(TOGETHER) == []
