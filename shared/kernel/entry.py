"""The one place that knows Lambda's events: it unpacks them, calls the kernel, and answers in Lambda's form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.dead_letter import note_dead_letter
from shared.kernel.handle import handle_baton, handle_delayed
from shared.kernel.log import logger
from shared.kernel.log_json import logged
from shared.kernel.metrics import Meter, Metric, write_out
from shared.kernel.model import REPAIRS
from shared.kernel.ports import Ports
from shared.kernel.pull import pull
from shared.kernel.queue import Received, is_fifo
from shared.kernel.signals import announced
from shared.kernel.sweep import sweep
from shared.kernel.tick import roll_up, tick
from shared.kernel.wake import read_wake

Event = Mapping[str, Any]
Record = Mapping[str, Any]
Answer = dict[str, Any]


class Context(Protocol):
    """What is used of Lambda's context."""

    aws_request_id: str

    def get_remaining_time_in_millis(self) -> int: ...


Handler = Callable[[Event, Context], Answer]


def step_handler(kind: Kind, ports: Ports, kinds: Catalogue | None = None) -> Handler:
    """Takes one turn per message of the kind's FIFO queue. Listeners among `kinds` hear at once of what it ends or says."""
    ports = ports if kinds is None else announced(ports, kinds)
    return _queue_handler(ports, lambda now, message: handle_baton(now, kind, message))


def wake_handler(ports: Ports, kinds: Catalogue, worker: str, lease_s: float, longest_s: float) -> Handler:
    """Takes what is due in the queue that a wake names, one turn at a time, while there is time left for the longest.

    Every wake is acknowledged, whatever happened: what is left is due still, and the tick wakes for it.
    """
    ports = announced(ports, kinds)

    def handler(event: Event, context: Context) -> Answer:
        with invocation(ports, context) as now:
            for record in event["Records"]:
                queue = read_wake(record["body"])
                if queue is None:
                    now.meter.count(Metric.UNREADABLE)
                    logger.error("a message is no wake", extra={"message_id": record["messageId"]})
                    continue
                try:
                    pull(now, kinds, queue, worker, lease_s, longest_s)
                except Exception:
                    now.meter.count(Metric.GIVEN_BACK)
                    logger.exception("a queue could not be worked on", extra={"queue": queue})
        return {"batchItemFailures": []}

    return logged(handler)


def forward_handler(ports: Ports) -> Handler:
    """Moves batons whose delay is over into their FIFO queues."""
    return _queue_handler(ports, handle_delayed)


def dead_letter_handler(ports: Ports) -> Handler:
    """Notes on its lane that a message was given up; the message has then served."""

    def note(now: Ports, message: Received) -> bool:
        note_dead_letter(now, message.body, message.receive_count)
        return True

    return _queue_handler(ports, note)


def tick_handler(ports: Ports, kinds: Catalogue) -> Handler:
    """Mends what is overdue. Whatever fired it, and however often, the rows say what there is to do."""

    def mend(now: Ports) -> Answer:
        report = tick(now, kinds)
        now.meter.count(Metric.REPAIRS, sum(report.lanes[verdict] for verdict in REPAIRS))
        lanes = {str(verdict): count for verdict, count in report.lanes.items()}
        return {
            "lanes": lanes,
            "runs_moved": report.runs_moved,
            "signals_heard": report.signals_heard,
            "finished": report.finished,
        }

    def look_back(now: Ports, since_last_s: float | None) -> None:
        now.meter.count(Metric.CONNECTIONS_USED, now.store.connections_used())
        roll_up(now, since_last_s)

    return _schedule_handler("tick", ports, mend, then=look_back)


def sweep_handler(ports: Ports, kinds: Catalogue) -> Handler:
    """Cleans up and prunes; answers how much of each."""

    def clean_up(now: Ports) -> Answer:
        done = dict(sweep(now, kinds))
        now.meter.count(Metric.SWEEP)
        return done

    return _schedule_handler("sweep", ports, clean_up)


def _queue_handler(ports: Ports, handle: Callable[[Ports, Received], bool]) -> Handler:
    def handler(event: Event, context: Context) -> Answer:
        with invocation(ports, context) as now:
            failed = _failures(event["Records"], lambda record: _is_done(record, now, handle))
            if failed:  # Lambda counts no error: the invocation went well
                now.meter.count(Metric.GIVEN_BACK, len(failed))
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}

    return logged(handler)


def _schedule_handler(
    name: str,
    ports: Ports,
    work: Callable[[Ports], Answer],
    then: Callable[[Ports, float | None], None] = lambda *_: None,
) -> Handler:
    """Unlike a message, a scheduled call may raise: nothing is lost, the alarm sees it, and the next one comes.

    `then` is for what may fail without the work being late; it is told the seconds since the last time.
    """

    def handler(event: Event, context: Context) -> Answer:  # noqa: ARG001 - the event decides nothing
        with invocation(ports, context) as now:
            report = work(now)
            then(now, now.store.beat(name))
        logger.info(name, extra={"report": report})
        return report

    return logged(handler)


@contextmanager
def invocation(ports: Ports, context: Context) -> Iterator[Ports]:
    """The ports of one invocation, which know how much time it has left; its metrics are written at its end."""
    try:
        yield replace(ports, time_left_s=lambda: context.get_remaining_time_in_millis() / 1000)
    finally:
        write_metrics(ports.meter)


def write_metrics(meter: Meter) -> None:
    """At the end of an invocation: whatever becomes of them, what was asked for is answered."""
    try:
        write_out(meter)
    except Exception:
        logger.exception("metrics were not written")


# Powertools' SqsFifoPartialProcessor does the same for 59 more modules, which cost a cold start more than the logger
# and the metrics together, and it raises when a batch fails as a whole: at a batch size of one, that is always.
def _failures(records: list[Record], is_done: Callable[[Record], bool]) -> list[str]:
    """The ids of the messages that must come again. In a FIFO queue nothing may overtake a failure of its group."""
    failed: list[str] = []
    stopped: set[str] = set()
    for record in records:
        group = _group(record) if is_fifo(record["eventSourceARN"]) else None
        if group not in stopped and is_done(record):
            continue
        failed.append(record["messageId"])
        if group is not None:
            stopped.add(group)
    return failed


def _is_done(record: Record, ports: Ports, handle: Callable[[Ports, Received], bool]) -> bool:
    try:
        return handle(ports, _received(record))
    except Exception:
        logger.exception("a message could not be handled", extra={"message_id": record["messageId"]})
        return False


def _received(record: Record) -> Received:
    attributes = record["attributes"]
    return Received(
        message_id=record["messageId"],
        body=record["body"],
        receipt=record["receiptHandle"],
        receive_count=int(attributes["ApproximateReceiveCount"]),
        group=_group(record),
        dedup_id=attributes.get("MessageDeduplicationId"),
    )


def _group(record: Record) -> str:
    return str(record.get("attributes", {}).get("MessageGroupId", ""))
