"""Wakes: a function that pulls sleeps until it is told that a pull queue may hold something for it.

A wake names a queue and never what lies in it, so a lost one costs time and a spare one nothing: it is always
acknowledged, and the tick sends more as long as something is due.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.kernel.decide import LONGEST_QUEUE_DELAY_S
from shared.kernel.log import logger
from shared.kernel.ports import Ports
from shared.kernel.queue import Outgoing

# At once for one queue: each function that finds more than it can do wakes another.
MOST_WAKES = 10


class Wake(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    v: Annotated[int, Field(ge=1, le=1)] = 1
    queue: Annotated[str, Field(pattern=r"^[a-z][a-z0-9@-]{0,99}$")]


def read_wake(body: str) -> str | None:
    """Which queue; None: it is no wake of a version that this code knows."""
    try:
        return Wake.model_validate_json(body).queue
    except ValidationError:
        return None


def wake(ports: Ports, wanted: Iterable[tuple[str, float]]) -> None:
    """Wake the takers of each queue, in as many seconds. Never fails: the tick looks every minute."""
    if ports.relay.wake_queue is None:
        return
    by_queue: dict[str, list[float]] = {}
    for queue, delay_s in wanted:
        if delay_s <= LONGEST_QUEUE_DELAY_S:
            by_queue.setdefault(queue, []).append(delay_s)
    messages = [
        Outgoing(body=Wake(queue=queue).model_dump_json(), group="", delay_s=math.ceil(delay_s))
        for queue, delays in sorted(by_queue.items())
        for delay_s in sorted(delays)[:MOST_WAKES]
    ]
    if not messages:
        return
    try:
        missed = len(ports.queue.send(ports.relay.wake_queue, messages))
    except Exception:
        logger.exception("functions could not be woken")
        return
    if missed:
        logger.warning("some functions could not be woken", extra={"wakes": missed})
