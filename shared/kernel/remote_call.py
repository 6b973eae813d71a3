"""Calls to the outside that must not happen twice: the intent first, then the trace, then the call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.kernel.errors import Later, Overtaken
from shared.kernel.model import Effect, Intent, Looks, RemoteCall, Turn
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports, Row

LOOKS_FOR_A_TRACE = "a trace of a call whose answer was lost"


@dataclass(frozen=True, slots=True)
class Calls:
    """What one turn may do outside."""

    turn: Turn
    ports: Ports

    def time_left_s(self) -> float:
        return self.ports.time_left_s()

    def once(
        self,
        key: str,
        *,
        kind: str,
        call: Callable[[str], str],
        look: Callable[[str], str | None],
        leaves_asset: bool = False,
        looks: Looks = Looks(),  # noqa: B008 - frozen
    ) -> str:
        """Answer the remote id of the one call with this key in the run's epoch, making it only if it left no trace.

        The call itself is at least once: whoever dies between making and confirming it makes the next one look.
        """
        turn, store = self.turn, self.ports.store
        intent = store.intend(turn, key, kind, leaves_asset)
        if intent is None:
            raise Overtaken
        point(Point.REMOTE_INTENDED)
        if intent.confirmed and intent.remote_id is not None:
            return intent.remote_id
        record = RemoteCall(
            run_id=turn.run_id,
            tenant_id=turn.tenant_id,
            run_kind=turn.kind,
            epoch=turn.run_epoch,
            key=key,
            kind=kind,
            remote_id=None,
        )
        remote_id = None if intent.fresh else self._trace(intent, key, looks, lambda: look(record.idempotency_key))
        if remote_id is None:
            remote_id = call(record.idempotency_key)
        point(Point.REMOTE_CALLED)
        store.confirm(record, remote_id)
        point(Point.REMOTE_CONFIRMED)
        return remote_id

    def _trace(self, intent: Intent, key: str, looks: Looks, look: Callable[[], str | None]) -> str | None:
        """Look as often as the upstream needs to show what it started; None: it never heard of the call."""
        since_last_s = looks.apart_s if intent.looked_s is None else intent.looked_s
        wait_s = max(looks.first_s - intent.age_s, looks.apart_s - since_last_s if intent.looks else 0.0)
        if wait_s > 0:
            raise Later(wait_s, LOOKS_FOR_A_TRACE)
        found = look()
        if found is not None or looks == Looks():
            return found
        seen = intent.looks + 1
        is_last = seen >= looks.times
        # The last look makes room for the next call: that one is an intent of its own, and its age counts from now.
        if not self.ports.store.note_look(self.turn, key, 0 if is_last else seen):
            raise Overtaken
        point(Point.REMOTE_LOOKED)
        if not is_last:
            raise Later(looks.apart_s, LOOKS_FOR_A_TRACE)
        return None

    def write(self, effect: Effect) -> list[Row]:
        rows = self.ports.store.write_held(self.turn, effect)
        if rows is None:
            raise Overtaken
        point(Point.STEP_WROTE)
        return rows

    def assets(self) -> list[RemoteCall]:
        """What the run had left outside, confirmed or not, when this lane was created."""
        return self.ports.store.assets(self.turn.lane_id)

    def note_cleaned(self, asset: RemoteCall) -> None:
        """Removing an asset may happen twice; that it is gone is noted once."""
        self.ports.store.note_cleaned(asset)
