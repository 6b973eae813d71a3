"""The smallest kind of work that is pulled: a parcel is carried in one step, or in several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from shared.kernel.catalogue import NO_CAP, Kind, Outside
from shared.kernel.decide import Limits
from shared.kernel.model import (
    Already,
    Continue,
    Decision,
    Effect,
    Ending,
    Finish,
    Lane,
    LaneChange,
    LaneStatus,
    NewLane,
    NewRun,
    Offer,
    Problem,
    Run,
    RunStatus,
    Settlement,
    Starting,
    Statement,
    Turn,
)
from shared.kernel.ports import Tx
from shared.kernel.retry import Backoff

NAME = "parcel"
QUEUE = "parcels"
CARTS = UUID(int=0xCA27)
VANS = UUID(int=0x7A2)
LIMITS = Limits(max_attempts=3, backoff=Backoff(first_s=10, most_s=60))

# No unique key on purpose: a parcel that is carried twice must show.
SCHEMA = """
create table carried (tenant_id uuid not null, run_id uuid not null, epoch integer not null, stage integer not null);
alter table carried enable row level security;
alter table carried force row level security;
create policy tenant_only on carried to baton_worker, baton_api
    using (tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid))
    with check (tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid));
create policy owner_all on carried to baton_owner using (true);
grant select, insert on carried to baton_worker;
grant select on carried to baton_api
"""
CLASSES = f"""
insert into pull_queue (name) values ('parcels') on conflict do nothing;
insert into pull_class (id, queue) values ('{CARTS}', 'parcels'), ('{VANS}', 'parcels')
on conflict (id) do update set is_open = true, most_running = null, running = null
"""

CARRIED = Statement(
    "parcel.carried",
    """insert into carried (tenant_id, run_id, epoch, stage)
       select tenant_id, run_id, epoch, cast(:stage as integer) from turn""",
    many="""insert into carried (tenant_id, run_id, epoch, stage)
       select tenant_id, run_id, epoch, cast(given ->> 'stage' as integer) from turn""",
)


@dataclass(frozen=True, slots=True)
class Parcel:
    carry: Callable[[Turn], None]

    def start(self, tx: Tx, starting: Starting) -> NewRun | Already:
        params = starting.params
        offer = Offer(
            class_id=UUID(params.get("class", str(CARTS))),
            priority=params.get("priority", 100),
            dedupe_key=params.get("key"),
        )
        lane = NewLane(key="carry", cursor={"stage": 0}, delay_s=params.get("delay_s", 0), offer=offer)
        return NewRun(params=params, lanes=[lane], time_limit_s=params.get("time_limit_s"))

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        self.carry(turn)
        stage = turn.cursor["stage"]
        effects = [Effect(CARRIED, {"stage": stage})]
        if stage + 1 >= turn.params.get("stages", 1):
            return Finish(effects=effects, rows=1)
        return Continue(cursor={"stage": stage + 1}, after_s=turn.params.get("pause_s", 0), effects=effects, rows=1)


def ending(turn: Turn, change: LaneChange) -> Ending:
    return _ending(change.status, change.problem)


def settle(run: Run, lanes: Sequence[Lane]) -> Settlement:
    (lane,) = lanes
    problem = lane.last_error
    return _ending(lane.status, None if problem is None else Problem(problem["code"], problem["message"]))


def _ending(status: LaneStatus, problem: Problem | None) -> Ending:
    if status is LaneStatus.DONE:
        return Ending(RunStatus.SUCCEEDED, "done")
    if status is LaneStatus.CANCELED:
        return Ending(RunStatus.CANCELED, "canceled")
    return Ending(RunStatus.FAILED, "dead_letter", problem)


def parcel_kind(carry: Callable[[Turn], Any] = lambda _: None, limits: Limits = LIMITS) -> Kind:
    parcel = Parcel(carry)
    return Kind(
        name=NAME, take_step=parcel.take_step, start=parcel.start, settle=settle, ending=ending, delivery="pull",
        limits=limits, most_open_runs=NO_CAP,
    )  # fmt: skip
