"""The smallest kind of work that exercises the whole relay: lanes that count, one row per step.

A lane counts from 0 to its target. What else happens on the way is written in the run's params:

delays      seconds between two steps, in turn
gates       the gates that every step passes (`gate`: one)
waits       lanes that wait before each count: [times, seconds]
assets      lanes that make a remote asset first; `same_asset`: the whole run has one; `leaks`: nothing cleans up
splits      lanes that make another one with their first step
final       a second phase
side        so many lanes beside the run, which do not hold it
limits      seconds that a lane may take, by its key; time_limit_s: the run; max_steps: each lane
on_cancel   what a canceled lane does, one word per turn, before it gives up: wait, step, throttled, transient, finish
killers     lanes that kill their process
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shared.kernel.catalogue import Kind, Outside
from shared.kernel.decide import Limits, all_or_nothing
from shared.kernel.errors import Throttled, Transient
from shared.kernel.model import (
    Cancel,
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
    Wait,
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
grant select, insert, delete on tally to baton_worker;
grant select on tally to baton_api
"""

ADD = Statement(
    "tally.add",
    """insert into tally (tenant_id, run_id, lane, n)
       select tenant_id, run_id, key, cast(:n as integer) from turn""",
)

FORGET = Statement(
    "tally.forget",
    """delete from tally where ctid = any(array(
           select ctid from tally where run_id = :run_id and tenant_id = :tenant_id limit :most))""",
)
CANCEL_WAIT_S, CANCEL_STEP_S, CANCEL_THROTTLED_S = 20.0, 3.0, 30.0


class World(Protocol):
    """The outside as the tally sees it."""

    def visit(self, turn: Turn, n: int) -> None:
        """May raise a StepError, any other exception, or never return."""

    def create(self, key: str) -> str: ...
    def find(self, key: str) -> str | None: ...
    def remove(self, remote_id: str | None, key: str) -> None: ...
    def use(self, turn: Turn, remote_id: str) -> None: ...
    def stumbles(self, turn: Turn) -> bool: ...
    def settles(self, run: Run) -> None: ...
    def ends(self, run: Run) -> None: ...


@dataclass(frozen=True, slots=True)
class Tally:
    world: World

    def start(self, tx: Tx, starting: Starting) -> NewRun:
        params = starting.params
        keys = [f"l{n}" for n in range(params["lanes"])]
        sides = [f"side{n}" for n in range(params.get("side", 0))]
        lanes = [self._lane(key, params) for key in keys] + [self._lane(key, params, beside=True) for key in sides]
        return NewRun(params=params, lanes=lanes, time_limit_s=params.get("time_limit_s"))

    def _lane(self, key: str, params: Json, *, beside: bool = False) -> NewLane:
        limit_s = params.get("limits", {}).get(key)
        return NewLane(
            key=key, cursor={"n": 0}, holds_run=not beside, max_steps=params.get("max_steps"), time_limit_s=limit_s
        )

    def take_step(self, turn: Turn, outside: Outside) -> Decision:
        if turn.key.startswith("cleanup"):
            return self._clean_up(outside)
        n, params = turn.cursor["n"], turn.params
        if n >= params["target"]:  # a lane that was done and is restarted in its place
            return Finish()
        times, wait_s = params.get("waits", {}).get(turn.key, (0, 0))
        if turn.cursor.get("waited", 0) < times:
            cursor = {"n": n, "waited": turn.cursor.get("waited", 0) + 1}
            return Wait(after_s=wait_s, cursor=cursor, waits_for="its time")
        if n == 0 and turn.key in params.get("assets", ()):
            self._make_asset(turn, outside)
        self.world.visit(turn, n)
        lanes = [self._lane(f"{turn.key}/s", params)] if n == 0 and turn.key in params.get("splits", ()) else []
        effects = [Effect(ADD, {"n": n})]
        if n + 1 >= params["target"]:
            return Finish(effects=effects, rows=1, lanes=lanes, cursor={"n": n + 1})
        delays: Sequence[float] = params.get("delays", (0,))
        return Continue(cursor={"n": n + 1}, after_s=delays[n % len(delays)], effects=effects, rows=1, lanes=lanes)

    def _make_asset(self, turn: Turn, outside: Outside) -> None:
        key = "asset" if turn.params.get("same_asset") else f"asset-{turn.key}"
        made = outside.once(key, kind="thing", call=self.world.create, look=self.world.find, leaves_asset=True)
        self.world.use(turn, made)

    def on_cancel(self, turn: Turn, outside: Outside) -> Decision:
        done, words = turn.cursor.get("cancel", 0), turn.params.get("on_cancel", ())
        if done >= len(words):
            return Cancel()
        cursor = {**turn.cursor, "cancel": done + 1}
        match words[done]:
            case "wait":
                return Wait(after_s=CANCEL_WAIT_S, cursor=cursor)
            case "finish":
                return Finish(cursor=cursor)
            case "throttled" if self.world.stumbles(turn):
                raise Throttled("stop", CANCEL_THROTTLED_S)
            case "transient" if self.world.stumbles(turn):
                raise Transient("could not be stopped yet")
            case _:
                return Continue(cursor=cursor, after_s=CANCEL_STEP_S)

    def _clean_up(self, outside: Outside) -> Decision:
        for asset in outside.assets():
            self.clean(asset, {}, outside.time_left_s)
            outside.note_cleaned(asset)
        return Finish()

    def clean(self, asset: RemoteCall, params: Json, time_left_s: Callable[[], float]) -> None:
        self.world.remove(asset.remote_id, asset.idempotency_key)

    def settle(self, run: Run, lanes: Sequence[Lane]) -> Settlement:
        self.world.settles(run)
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
        self.world.ends(run)
        if not run.params.get("assets") or run.params.get("leaks"):
            return ()
        return [NewLane(key=f"cleanup/{run.epoch}", holds_run=False)]

    def gates(self, turn: Turn) -> Sequence[str]:
        if turn.key.startswith("cleanup"):
            return ()
        gate = turn.params.get("gate")
        return [gate] if gate else list(turn.params.get("gates", ()))


def forget_rows(tx: Tx, run: Run, most: int) -> int:
    return tx.apply(Effect(FORGET, {"run_id": run.id, "tenant_id": run.tenant_id, "most": most}))


def tally_kind(world: World, limits: Limits | None = None, *, name: str = "tally", forgets: bool = False) -> Kind:
    """The kind under any name; one that forgets has its own rows pruned with its runs."""
    tally = Tally(world)
    return Kind(
        name=name,
        take_step=tally.take_step,
        start=tally.start,
        settle=tally.settle,
        on_end=tally.on_end,
        on_cancel=tally.on_cancel,
        gates=tally.gates,
        clean=tally.clean,
        prune=forget_rows if forgets else None,
        limits=limits or Limits(),
    )


class EasyWorld:
    """What most worlds need not think of."""

    def use(self, turn: Turn, remote_id: str) -> None:
        """The step works with what it was handed."""

    def stumbles(self, turn: Turn) -> bool:
        """Whether a canceled lane cannot stop at its first attempt."""
        return False

    def settles(self, run: Run) -> None:
        """May raise what the kind did not think of."""

    def ends(self, run: Run) -> None:
        """As `settles`."""


class QuietWorld(EasyWorld):
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
