"""The one way a baton leaves: now through the FIFO queue, soon through the delay queue, later through the tick."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shared.kernel.baton import Baton, read_baton
from shared.kernel.decide import LONGEST_QUEUE_DELAY_S
from shared.kernel.log import logger
from shared.kernel.metrics import Metric
from shared.kernel.model import Due
from shared.kernel.points import Point, point
from shared.kernel.ports import Ports
from shared.kernel.queue import Outgoing, QueueError
from shared.kernel.wake import wake


def deliver(ports: Ports, dues: Sequence[Due]) -> list[Due]:
    """Send what is due within the queue's reach. The rows say `sent` already; what fails is made unsent again.

    Answers what was not taken.
    """
    _wake(ports, dues)
    missed = _send(ports, dues)
    if missed:
        _note(ports.store.mark_unsent, missed)
    return missed


def deliver_unsent(ports: Ports, dues: Sequence[Due]) -> None:
    """Send batons whose rows say `unsent` (after a cancel, a resume, a retry), then say that they are sent."""
    _wake(ports, dues)
    reachable = [due for due in dues if due.delay_s <= LONGEST_QUEUE_DELAY_S and not due.pulled]
    missed = _send(ports, reachable)
    sent = [due for due in reachable if due not in missed]
    if sent:
        _note(ports.store.mark_sent, sent)


def _wake(ports: Ports, dues: Sequence[Due]) -> None:
    wake(ports, [(due.wakes, due.delay_s) for due in dues if due.wakes is not None])


def _note(mark: Callable[[Sequence[Due]], None], dues: Sequence[Due]) -> None:
    try:
        mark(dues)
    except Exception:
        # The tick sends once more what it finds unsent or unclaimed; a copy is harmless.
        logger.exception("what was sent could not be noted", extra={"batons": len(dues)})


def _send(ports: Ports, dues: Sequence[Due]) -> list[Due]:
    """Send what is within reach; answers what was not taken."""
    by_queue: dict[str, list[tuple[Due, Outgoing]]] = {}
    for due in dues:
        if due.pulled:
            continue
        if due.delay_s <= 0:
            queue = ports.relay.queue_of(due.baton.kind)
            by_queue.setdefault(queue, []).append((due, _for_fifo(due.baton)))
        elif due.delay_s <= LONGEST_QUEUE_DELAY_S:
            # A standard queue: FIFO queues refuse a delay per message. Its group lets SQS be fair between tenants.
            delayed = Outgoing(body=due.baton.to_json(), group=str(due.tenant_id), delay_s=math.ceil(due.delay_s))
            by_queue.setdefault(ports.relay.delay_queue, []).append((due, delayed))
    missed: list[Due] = []
    for queue, entries in by_queue.items():
        missed += [entries[index][0] for index in _try_send(ports, queue, [outgoing for _, outgoing in entries])]
    if missed:
        ports.meter.count(Metric.SEND_FAILED, len(missed))
    return missed


def _try_send(ports: Ports, queue: str, outgoing: Sequence[Outgoing]) -> Sequence[int]:
    try:
        return ports.queue.send(queue, outgoing)
    except QueueError as error:
        logger.warning("the queue took nothing", extra={"queue": queue, "error": str(error)})
        return range(len(outgoing))
    except Exception:
        # The rows are committed: whatever is wrong with this queue, what the others take must not suffer for it.
        logger.exception("the queue could not be used", extra={"queue": queue})
        return range(len(outgoing))


def _for_fifo(baton: Baton) -> Outgoing:
    return Outgoing(body=baton.to_json(), group=baton.group(), dedup_id=baton.dedup_id())


def forward(ports: Ports, body: str) -> bool:
    """Move a baton whose delay is over into its FIFO queue. False: it was not taken and must come again."""
    point(Point.FORWARD_RECEIVED)
    baton = read_baton(body)
    missed = _try_send(ports, ports.relay.queue_of(baton.kind), [_for_fifo(baton)])
    point(Point.FORWARD_SENT)
    return not missed
