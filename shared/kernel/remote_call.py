"""Calls to the outside that must not happen twice: the intent first, then the trace, then the call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.kernel.errors import Overtaken
from shared.kernel.model import RemoteCall, Turn
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports


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
    ) -> str:
        """Answer the remote id of the one call with this key in this epoch, making it only if it left no trace.

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
            epoch=turn.epoch,
            key=key,
            kind=kind,
            remote_id=None,
        )
        remote_id = None if intent.fresh else look(record.idempotency_key)
        if remote_id is None:
            remote_id = call(record.idempotency_key)
        point(Point.REMOTE_CALLED)
        store.confirm(record, remote_id)
        point(Point.REMOTE_CONFIRMED)
        return remote_id

    def assets(self) -> list[RemoteCall]:
        """What the run had left outside, confirmed or not, when this lane was created."""
        return self.ports.store.assets(self.turn.lane_id)

    def note_cleaned(self, asset: RemoteCall) -> None:
        """Removing an asset may happen twice; that it is gone is noted once."""
        self.ports.store.note_cleaned(asset)
