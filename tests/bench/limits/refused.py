"""The bare limit of a refused claim: one look at the lane and its run. Never changed together with product code."""

from __future__ import annotations

import uuid

from shared.kernel.flights import Connection
from tests.bench.limits.bare import rows as ask

LOOK = """
select l.status, l.epoch, l.seq, l.claim_token, l.lease_until, l.next_due_at, r.paused_at, now()
from lane l join run r on r.id = l.run_id where l.id = $1
"""


def look(connection: Connection, lane_id: uuid.UUID) -> int:
    """Where the lane stands."""
    ((_, _, seq, *_),) = ask(connection, LOOK, lane_id)
    return int(seq)
