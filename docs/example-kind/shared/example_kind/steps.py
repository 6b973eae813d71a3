"""The steps of example_kind: one note per step. The relay commits them."""

from __future__ import annotations

from shared.example_kind import decide, store
from shared.example_kind.model import KIND, LANE, ExampleKindParams
from shared.kernel.catalogue import Kind, Outside
from shared.kernel.decide import Limits
from shared.kernel.model import Decision, Effect, Finish, NewLane, NewRun, Run, Starting, Turn
from shared.kernel.params import parse
from shared.kernel.ports import Tx


def start(tx: Tx, starting: Starting) -> NewRun:  # noqa: ARG001 - this one neither reads nor writes
    wanted = parse(ExampleKindParams, starting.params)
    return NewRun(
        params=wanted.model_dump(mode="json"), lanes=[NewLane(key=LANE, cursor={"n": 0})], label=wanted.text[:100]
    )


def take_step(turn: Turn, outside: Outside) -> Decision:  # noqa: ARG001 - nothing outside is asked
    params, n = ExampleKindParams.model_validate(dict(turn.params)), int(turn.cursor["n"])
    if n >= params.times:  # a lane that was done and is restarted in its place
        return Finish()
    return decide.after_note(params, n, Effect(store.WRITE_NOTE, {"n": n, "body": params.text}))


def prune(tx: Tx, run: Run, most: int) -> int:
    return tx.apply(Effect(store.PRUNE, {"run_id": run.id, "most": most}))


def example_kind(limits: Limits | None = None) -> Kind:
    return Kind(name=KIND, take_step=take_step, start=start, prune=prune, limits=limits or Limits())
