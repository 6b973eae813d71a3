"""The smallest kind of work that exercises the whole relay: lanes that count, one row per step.

A lane counts from 0 to its target. What else happens on the way is written in the run's params:
delays, a gate, a remote asset, a split, a second phase, steps that fail or kill their process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shared.kernel.catalogue import Kind, Outside
from shared.kernel.decide import Limits, all_or_nothing
from shared.kernel.model import (
    Continue,
    Decision,
    Effect,
    Ending,
    Finish,
    Json,
    Lane,
    NewLane,
    NewRun,
    NextPhase,
    RemoteCall,
    Run,
    RunStatus,
    Settlement,
    Starting,
    Statement,
    Turn,
)
from shared.kernel.ports import Tx

# No unique key on purpose: a step that commits twice must show.
SCHEMA = """
create table tally (tenant_id uuid not null, run_id uuid not null, lane text not null, n integer not null, canary text);
alter table tally enable row level security;
alter table tally force row level security;
create policy tenant_only on tally to baton_worker, baton_api
    using (tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid))
    with check (tenant_id = (select nullif(current_setting('app.tenant', true), '')::uuid));
create policy owner_all on tally to baton_owner using (true);
grant select, insert on tally to baton_worker;
grant select on tally to baton_api
"""

ADD = Statement(
    "tally.add",
    """insert into tally (tenant_id, run_id, lane, n)
       select tenant_id, run_id, key, cast(:n as integer) from turn""",
)


class World(Protocol):
    """The outside as the tally sees it."""

    def visit(self, turn: Turn, n: int) -> None:
        """May raise a StepError, any other exception, or never return."""

    def create(self, key: str) -> str: ...
    def find(self, key: str) -> str | None: ...
    def remove(self, remote_id: str | None, key: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Tally:
    world: World

    def start(self, tx: Tx, starting: Starting) -> NewRun:
        params = starting.params
        lanes = [
            NewLane(key=f"l{n}", cursor={"n": 0}, max_steps=params.get("max_steps")) for n in range(params["lanes"])
        ]
        return NewRun(params=params, lanes=lanes, time_limit_s=params.get("time_limit_s"))

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        if turn.key.startswith("cleanup"):
            return self._clean_up(outside)
        n, params = turn.cursor["n"], turn.params
        if n >= params["target"]:  # a lane that was done and is restarted in its place
            return Finish()
        if n == 0 and turn.key in params.get("assets", ()):
            outside.once(
                f"asset-{turn.key}", kind="thing", call=self.world.create, look=self.world.find, leaves_asset=True
            )
        self.world.visit(turn, n)
        lanes = (
            [NewLane(key=f"{turn.key}/s", cursor={"n": 0})] if n == 0 and turn.key in params.get("splits", ()) else []
        )
        effects = [Effect(ADD, {"n": n})]
        if n + 1 >= params["target"]:
            return Finish(effects=effects, rows=1, lanes=lanes, cursor={"n": n + 1})
        delays: Sequence[float] = params.get("delays", (0,))
        return Continue(cursor={"n": n + 1}, after_s=delays[n % len(delays)], effects=effects, rows=1, lanes=lanes)

    def _clean_up(self, outside: Outside) -> Decision:
        for asset in outside.assets():
            self.clean(asset, {}, outside.time_left_s)
            outside.note_cleaned(asset)
        return Finish()

    def clean(self, asset: RemoteCall, params: Json, time_left_s: Callable[[], float]) -> None:
        self.world.remove(asset.remote_id, asset.idempotency_key)

    def settle(self, run: Run, lanes: Sequence[Lane]) -> Settlement:
        verdict = all_or_nothing(run, lanes)
        has_final = any(lane.key == "final" for lane in lanes)
        if (
            isinstance(verdict, Ending)
            and verdict.status is RunStatus.SUCCEEDED
            and run.params.get("final")
            and not has_final
        ):
            return NextPhase([NewLane(key="final", cursor={"n": 0})])
        return verdict

    def on_end(self, tx: Tx, run: Run, ending: Ending) -> Sequence[NewLane]:
        if not run.params.get("assets") or run.params.get("leaks"):
            return ()
        return [NewLane(key=f"cleanup/{run.epoch}", holds_run=False)]

    def gates(self, turn: Turn) -> Sequence[str]:
        gate = turn.params.get("gate")
        return [gate] if gate and not turn.key.startswith("cleanup") else []


def tally_kind(world: World, limits: Limits | None = None) -> Kind:
    tally = Tally(world)
    return Kind(
        name="tally",
        take_step=tally.take_step,
        start=tally.start,
        settle=tally.settle,
        on_end=tally.on_end,
        gates=tally.gates,
        clean=tally.clean,
        limits=limits or Limits(),
    )


class QuietWorld:
    """An outside where everything works."""

    def __init__(self, visit: Callable[[Turn, int], Any] | None = None) -> None:
        self.things: dict[str, str] = {}
        self._visit = visit

    def visit(self, turn: Turn, n: int) -> None:
        if self._visit is not None:
            self._visit(turn, n)

    def create(self, key: str) -> str:
        return self.things.setdefault(key, f"thing-{len(self.things)}")

    def find(self, key: str) -> str | None:
        return self.things.get(key)

    def remove(self, remote_id: str | None, key: str) -> None:
        self.things.pop(key, None)
