"""A message that came back too often is noted on its lane. This decides nothing: the tick owns the repair."""

from __future__ import annotations

from shared.kernel.baton import UnreadableBaton, read_baton
from shared.kernel.log import logger
from shared.kernel.metrics import Metric
from shared.kernel.model import Problem
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports
from shared.kernel.redact import redact


def note_dead_letter(ports: Ports, body: str, receive_count: int) -> bool:
    """Say on the lane, if this was its current baton, that its message was dead-lettered."""
    ports.meter.count(Metric.DEAD_LETTER)
    try:
        baton = read_baton(body)
    except UnreadableBaton as error:
        logger.error("an unreadable message was dead-lettered", extra={"error": redact(str(error)), "bytes": len(body)})
        return False
    problem = Problem("dead_letter", f"the message of this turn was received {receive_count} times and given up")
    noted = ports.store.note_dead_letter(baton, problem)
    point(Point.DEAD_LETTER_NOTED)
    return noted
