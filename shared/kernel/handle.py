"""What happens to one message, whatever brought it. True: it is done with. False: it must come again."""

from __future__ import annotations

from shared.kernel.baton import UnreadableBaton, read_baton
from shared.kernel.catalogue import Kind
from shared.kernel.deliver import forward
from shared.kernel.log import logger
from shared.kernel.metrics import Metric
from shared.kernel.ports import Ports
from shared.kernel.queue import QueueError, Received
from shared.kernel.redact import redact
from shared.kernel.retry import SURPRISE
from shared.kernel.step import Lost, take_turn


def handle_baton(ports: Ports, kind: Kind, message: Received) -> bool:
    """Take the turn that a message names. What cannot be read goes back and ends in the dead-letter queue."""
    try:
        baton = read_baton(message.body)
    except UnreadableBaton as error:
        return _refuse_unreadable(ports, message, error)
    if baton.kind != kind.name:
        return _refuse_unreadable(ports, message, UnreadableBaton(f"a baton of {baton.kind} came to {kind.name}"))
    outcome = take_turn(baton, kind, ports)
    if outcome is not Lost.GIVEN_BACK:
        return True
    wait_s = SURPRISE.delay_s(message.receive_count, ports.chance.fraction())
    try:
        ports.queue.change_visibility(ports.relay.queue_of(kind.name), message.receipt, int(wait_s))
    except QueueError as error:
        logger.warning("a message keeps its visibility", extra={"error": str(error)})
    return False


def handle_delayed(ports: Ports, message: Received) -> bool:
    """Forward a baton whose delay is over."""
    try:
        return forward(ports, message.body)
    except UnreadableBaton as error:
        return _refuse_unreadable(ports, message, error)


def _refuse_unreadable(ports: Ports, message: Received, error: UnreadableBaton) -> bool:
    ports.meter.count(Metric.UNREADABLE)
    logger.error("a message is no baton", extra={"error": redact(str(error)), "message_id": message.message_id})
    return False
