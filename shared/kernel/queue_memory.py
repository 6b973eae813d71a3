"""An SQS in memory under a clock that its owner turns: it guards our tests against an emulator's kindness.

What AWS leaves open is decided here by the injected `rng`, so that many seeds meet every case:
- which message of a standard queue comes next, and which free group of a FIFO queue;
- whether a standard queue heeds a delete with an older receipt ("succeeds, but might not be deleted").

What was chosen where AWS's own text is thin:
- An expired or superseded receipt: FIFO refuses it for delete and for a change of visibility. Standard deletes with the
  newest receipt even when that has expired, and answers a change of visibility with ok and no effect.
- A receipt of a message that is gone: delete answers ok, a change of visibility is refused, on both kinds.
- A purge does not clear the memory of deduplication ids.
- A move to the dead-letter queue is never deduplicated there and registers nothing; the receive count that a consumer
  sees goes on, while the dead-letter queue's own limit counts from zero.
- Twelve hours of visibility count from the latest receive. Retention and the limit of 120,000 in flight are left out.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Literal, TypeVar

from shared.kernel.queue import (
    DEDUP_WINDOW_S,
    MAX_VISIBILITY_S,
    Outgoing,
    QueueRefused,
    Received,
    check,
    check_all,
    check_count,
    check_visibility,
    is_fifo,
)

T = TypeVar("T")
_STALE_TIMERS_ALLOWED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How one queue was created."""

    fifo: bool
    visibility_s: int = 30
    max_receive_count: int | None = None
    dead_letter: str | None = None
    dedup_scope: Literal["queue", "messageGroup"] = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A message as it lies in a queue."""

    message_id: str
    body: str
    group: str
    dedup_id: str | None
    receive_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything in one queue, oldest first; a message that waits behind its group is visible, as in AWS's counts."""

    visible: tuple[Stored, ...]
    in_flight: tuple[Stored, ...]
    delayed: tuple[Stored, ...]


class MemoryQueue:
    """Every queue of one simulated account; answers to the Consumer port."""

    def __init__(self, settings: Mapping[str, QueueSettings], now: Callable[[], float], rng: random.Random) -> None:
        for name, one in settings.items():
            _check_settings(name, one, settings)
        self._now = now
        self._lock = threading.Lock()
        numbers = itertools.count(1)  # shared: a message that moves must not meet a number of its old queue again
        self._boxes = {name: _Box(name, one, rng, numbers) for name, one in settings.items()}

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        check_all(queue, messages)
        with self._lock:
            box = self._box(queue)
            for message in messages:
                box.accept(message, self._now())
        return []

    def send_one(self, queue: str, message: Outgoing) -> str:
        """Send and tell the message id; a duplicate is told the id of its original."""
        check(message, fifo=is_fifo(queue))
        with self._lock:
            return self._box(queue).accept(message, self._now())

    def receive(self, queue: str, max_messages: int = 1) -> list[Received]:
        check_count(max_messages)
        with self._lock:
            box, now = self._box(queue), self._now()
            received, worn_out = box.receive(max_messages, now)
            for message in worn_out:
                self._boxes[str(box.settings.dead_letter)].adopt(message, now)
            return received

    def delete(self, queue: str, receipt: str) -> None:
        with self._lock:
            self._box(queue).delete(receipt, self._now())

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:
        check_visibility(seconds)
        with self._lock:
            self._box(queue).change_visibility(receipt, seconds, self._now())

    def purge(self, queue: str) -> None:
        with self._lock:
            self._box(queue).purge()

    def is_empty(self, queue: str) -> bool:
        contents = self.messages(queue)
        return not (contents.visible or contents.in_flight or contents.delayed)

    def messages(self, queue: str) -> Contents:
        """Look at a queue without touching it."""
        with self._lock:
            return self._box(queue).contents(self._now())

    def next_change(self, queue: str) -> float | None:
        """Tell when the next delay or visibility time-out ends, so that a virtual clock can jump there."""
        with self._lock:
            return self._box(queue).next_change(self._now())

    def _box(self, queue: str) -> _Box:
        box = self._boxes.get(queue)
        if box is None:
            raise QueueRefused("AWS.SimpleQueueService.NonExistentQueue", f"there is no queue {queue!r}")
        return box


def _check_settings(name: str, one: QueueSettings, every: Mapping[str, QueueSettings]) -> None:
    if one.fifo != is_fifo(name):
        raise ValueError(f"{name}: a FIFO queue's name ends in .fifo, no other does")
    if (one.max_receive_count is None) != (one.dead_letter is None):
        raise ValueError(f"{name}: max_receive_count and dead_letter come together")
    if one.max_receive_count is not None and one.max_receive_count < 1:
        raise ValueError(f"{name}: max_receive_count is at least 1")
    if one.dead_letter is not None and (one.dead_letter not in every or every[one.dead_letter].fifo != one.fifo):
        raise ValueError(f"{name}: the dead-letter queue must exist and be of the same kind")
    check_visibility(one.visibility_s)


class _State(Enum):
    VISIBLE = 1
    IN_FLIGHT = 2
    DELAYED = 3


class _Message:
    __slots__ = (
        "body",
        "dedup_id",
        "group",
        "id",
        "order",
        "receipt",
        "receive_count",
        "received_at",
        "state",
        "timer",
        "tries",
    )

    def __init__(self, message_id: str, message: Outgoing, order: int) -> None:
        self.id = message_id
        self.body = message.body
        self.group = message.group
        self.dedup_id = message.dedup_id
        self.order = order
        self.state = _State.VISIBLE
        self.receive_count = 0  # what consumers see; survives the move to a dead-letter queue
        self.tries = 0  # what this queue's redrive policy counts
        self.receipt = ""
        self.received_at = 0.0
        self.timer = 0


class _Bag(Generic[T]):
    """Things to draw from at random; adding, drawing and discarding cost the same however many there are."""

    __slots__ = ("_items", "_places")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._places: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        assert item not in self._places, "a thing lies in one place"
        self._places[item] = len(self._items)
        self._items.append(item)

    def discard(self, item: T) -> None:
        place = self._places.pop(item, None)
        if place is None:
            return
        last = self._items.pop()
        if last is not item:
            self._items[place] = last
            self._places[last] = place

    def draw(self, rng: random.Random) -> T:
        item = self._items[int(rng.random() * len(self._items))]
        self.discard(item)
        return item


class _StandardShelf:
    """The visible messages of a standard queue: any may come next."""

    def __init__(self) -> None:
        self._visible: _Bag[_Message] = _Bag()

    def put(self, message: _Message) -> None:
        self._visible.add(message)

    put_back = put

    def remove(self, message: _Message) -> None:
        self._visible.discard(message)

    def take(self, most: int, limit: float, rng: random.Random) -> tuple[list[_Message], list[_Message]]:
        taken: list[_Message] = []
        worn_out: list[_Message] = []
        while self._visible and len(taken) < most:
            message = self._visible.draw(rng)
            (taken if message.tries < limit else worn_out).append(message)
        return taken, worn_out


class _Group:
    __slots__ = ("in_flight", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: list[tuple[int, _Message]] = []
        self.in_flight = 0


class _FifoShelf:
    """The visible messages of a FIFO queue: in order within a group, and none while one of the group is in flight."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._free: _Bag[_Group] = _Bag()

    def put(self, message: _Message) -> None:
        group = self._groups.get(message.group)
        if group is None:
            group = self._groups[message.group] = _Group(message.group)
        heapq.heappush(group.waiting, (message.order, message))
        if len(group.waiting) == 1 and not group.in_flight:
            self._free.add(group)

    def put_back(self, message: _Message) -> None:
        group = self._groups[message.group]
        heapq.heappush(group.waiting, (message.order, message))
        self._landed(group)

    def remove(self, message: _Message) -> None:
        # Only a message in flight can be removed from a FIFO queue: an expired receipt is refused.
        self._landed(self._groups[message.group])

    def take(self, most: int, limit: float, rng: random.Random) -> tuple[list[_Message], list[_Message]]:
        taken: list[_Message] = []
        worn_out: list[_Message] = []
        while self._free and len(taken) < most:
            group = self._free.draw(rng)
            while group.waiting and len(taken) < most:
                _, message = heapq.heappop(group.waiting)
                if message.tries < limit:
                    group.in_flight += 1
                    taken.append(message)
                else:
                    worn_out.append(message)
            self._forget_if_empty(group)
        return taken, worn_out

    def _landed(self, group: _Group) -> None:
        group.in_flight -= 1
        if group.waiting and not group.in_flight:
            self._free.add(group)
        self._forget_if_empty(group)

    def _forget_if_empty(self, group: _Group) -> None:
        if not group.waiting and not group.in_flight:
            del self._groups[group.name]


class _Dedup:
    """The ids of the last five minutes, whatever became of their messages."""

    def __init__(self, *, per_group: bool) -> None:
        self._per_group = per_group
        self._originals: dict[tuple[str, str | None], str] = {}
        self._oldest_first: deque[tuple[float, tuple[str, str | None]]] = deque()

    def original(self, message: Outgoing, now: float) -> str | None:
        while self._oldest_first and self._oldest_first[0][0] + DEDUP_WINDOW_S <= now:
            del self._originals[self._oldest_first.popleft()[1]]
        return self._originals.get(self._key(message))

    def remember(self, message: Outgoing, message_id: str, now: float) -> None:
        key = self._key(message)
        self._originals[key] = message_id
        self._oldest_first.append((now, key))

    def _key(self, message: Outgoing) -> tuple[str, str | None]:
        return (message.group if self._per_group else "", message.dedup_id)


class _Box:
    """One queue: what is in it, and the timers that bring messages back."""

    def __init__(self, name: str, settings: QueueSettings, rng: random.Random, numbers: itertools.count[int]) -> None:
        self.settings = settings
        self._name = name
        self._rng = rng
        self._numbers = numbers
        self._limit = float("inf") if settings.max_receive_count is None else settings.max_receive_count
        self._dedup = _Dedup(per_group=settings.dedup_scope == "messageGroup")
        self.purge()

    def purge(self) -> None:
        self._shelf: _StandardShelf | _FifoShelf = _FifoShelf() if self.settings.fifo else _StandardShelf()
        self._live: dict[str, _Message] = {}
        self._timers: list[tuple[float, int, _Message]] = []

    def accept(self, outgoing: Outgoing, now: float) -> str:
        if self.settings.fifo:
            original = self._dedup.original(outgoing, now)
            if original is not None:
                return original
        order = next(self._numbers)
        message = _Message(f"m{order}", outgoing, order)
        if self.settings.fifo:
            self._dedup.remember(outgoing, message.id, now)
        self._live[message.id] = message
        if outgoing.delay_s:
            message.state = _State.DELAYED
            self._arm(message, now + outgoing.delay_s)
        else:
            self._shelf.put(message)
        return message.id

    def adopt(self, message: _Message, now: float) -> None:
        """Take over a message that wore out its source queue."""
        self._settle(now)
        message.order = next(self._numbers)
        message.tries = 0
        self._live[message.id] = message
        self._shelf.put(message)

    def receive(self, most: int, now: float) -> tuple[list[Received], list[_Message]]:
        self._settle(now)
        taken, worn_out = self._shelf.take(most, self._limit, self._rng)
        for message in worn_out:
            del self._live[message.id]
        return [self._hand_out(message, now) for message in taken], worn_out

    def delete(self, receipt: str, now: float) -> None:
        message = self._find(receipt, now)
        if message is None:
            return
        if self.settings.fifo:
            self._refuse_unless_held(message, receipt, "The receipt handle has expired.")
        elif message.receipt != receipt and self._rng.random() < 0.5:
            return
        message.timer = 0
        del self._live[message.id]
        self._shelf.remove(message)

    def change_visibility(self, receipt: str, seconds: int, now: float) -> None:
        message = self._find(receipt, now)
        if message is None:
            raise _bad_receipt(receipt, "Message does not exist or is not available for visibility timeout change.")
        if self.settings.fifo:
            self._refuse_unless_held(message, receipt, "The receipt handle has expired.")
        elif not _holds(message, receipt):
            return
        if now + seconds > message.received_at + MAX_VISIBILITY_S:
            raise QueueRefused("InvalidParameterValue", f"visibility beyond {MAX_VISIBILITY_S} s since the receive")
        if seconds:
            self._arm(message, now + seconds)
        else:
            self._surface(message)

    def contents(self, now: float) -> Contents:
        self._settle(now)
        return Contents(
            visible=self._stored(_State.VISIBLE),
            in_flight=self._stored(_State.IN_FLIGHT),
            delayed=self._stored(_State.DELAYED),
        )

    def next_change(self, now: float) -> float | None:
        self._settle(now)
        while self._timers and self._timers[0][2].timer != self._timers[0][1]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _hand_out(self, message: _Message, now: float) -> Received:
        message.state = _State.IN_FLIGHT
        message.receive_count += 1
        message.tries += 1
        message.received_at = now
        message.receipt = f"{self._name}|{message.id}|{message.receive_count}"
        self._arm(message, now + self.settings.visibility_s)
        return Received(
            message_id=message.id,
            body=message.body,
            receipt=message.receipt,
            receive_count=message.receive_count,
            group=message.group,
            dedup_id=message.dedup_id,
        )

    def _find(self, receipt: str, now: float) -> _Message | None:
        self._settle(now)
        parts = receipt.split("|")
        if len(parts) != 3 or parts[0] != self._name:
            raise QueueRefused("ReceiptHandleIsInvalid", f"{receipt!r} is no receipt of {self._name}")
        return self._live.get(parts[1])

    def _refuse_unless_held(self, message: _Message, receipt: str, reason: str) -> None:
        if not _holds(message, receipt):
            raise _bad_receipt(receipt, reason)

    def _arm(self, message: _Message, due: float) -> None:
        if len(self._timers) > _STALE_TIMERS_ALLOWED + 4 * len(self._live):
            self._timers = [entry for entry in self._timers if entry[2].timer == entry[1]]
            heapq.heapify(self._timers)
        message.timer = next(self._numbers)
        heapq.heappush(self._timers, (due, message.timer, message))

    def _settle(self, now: float) -> None:
        """Bring back whatever became visible since the last look."""
        while self._timers and self._timers[0][0] <= now:
            _, timer, message = heapq.heappop(self._timers)
            if message.timer == timer:
                self._surface(message)

    def _surface(self, message: _Message) -> None:
        was_in_flight = message.state is _State.IN_FLIGHT
        message.state = _State.VISIBLE
        message.timer = 0
        if was_in_flight:
            self._shelf.put_back(message)
        else:
            self._shelf.put(message)

    def _stored(self, state: _State) -> tuple[Stored, ...]:
        found = sorted((m for m in self._live.values() if m.state is state), key=lambda m: m.order)
        return tuple(
            Stored(message_id=m.id, body=m.body, group=m.group, dedup_id=m.dedup_id, receive_count=m.receive_count)
            for m in found
        )


def _holds(message: _Message, receipt: str) -> bool:
    return message.state is _State.IN_FLIGHT and message.receipt == receipt


def _bad_receipt(receipt: str, reason: str) -> QueueRefused:
    return QueueRefused(
        "InvalidParameterValue", f"Value {receipt} for parameter ReceiptHandle is invalid. Reason: {reason}"
    )
