"""The decisions of example_kind. Pure: no clock, no database, no network."""

from __future__ import annotations

from shared.example_kind.model import ExampleKindParams
from shared.kernel.model import Continue, Decision, Effect, Finish


def after_note(params: ExampleKindParams, n: int, note: Effect) -> Decision:
    """Note number `n` is written in the same commit that moves the lane to the next one."""
    cursor = {"n": n + 1}
    if n + 1 == params.times:
        return Finish(effects=[note], rows=1, cursor=cursor)
    return Continue(cursor=cursor, after_s=params.every_s, effects=[note], rows=1)
