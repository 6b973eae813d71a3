"""The port to the queues: it keeps every sender inside SQS's rules before anything leaves the process.

QueueError
├── QueueUnavailable   nobody knows whether it happened; ask again later
└── QueueRefused       it did not happen and never will in this form; `code` says why
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_BYTES = 1_048_576
MAX_BATCH = 10
MAX_DELAY_S = 900
MAX_VISIBILITY_S = 43_200
DEDUP_WINDOW_S = 300

_ID = re.compile(r"[!-~]{1,128}")
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WIDEST_CHARACTER_BYTES = 4


class QueueError(Exception):
    """Something between us and a queue went wrong."""


class QueueUnavailable(QueueError):
    """The queue did not answer, or answered that it cannot right now."""


class QueueRefused(QueueError):
    """The queue understood and said no."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message to send."""

    body: str
    group: str
    """FIFO: what must stay in order. Standard: whose share this is (fair queues); empty means nobody's."""
    dedup_id: str | None = None
    """FIFO only, and required there."""
    delay_s: int = 0
    """Standard only: a FIFO queue refuses any delay but none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One delivery of a message; the next delivery of the same message has another receipt."""

    message_id: str
    body: str
    receipt: str
    receive_count: int
    group: str
    dedup_id: str | None


class Queue(Protocol):
    """What a step needs: hand batons on, and give its own back."""

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        """Send any number of messages and name the indexes that were not accepted for certain.

        A message that breaks a rule raises QueueRefused before any is sent. QueueUnavailable means that
        nothing at all is known. An index in the answer may have arrived nevertheless: a copy is harmless.
        """

    def is_empty(self, queue: str) -> bool:
        """Whether it holds no message, waiting, delayed or in flight; it may know this a minute late."""

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:
        """Let the message come back `seconds` from now instead of at the end of its visibility time-out."""


class Consumer(Queue, Protocol):
    """What a poller needs besides; in AWS the event source mapping does this."""

    def receive(self, queue: str, max_messages: int = 1) -> list[Received]:
        """Take up to ten visible messages without waiting for any."""

    def delete(self, queue: str, receipt: str) -> None:
        """Acknowledge one delivery."""

    def purge(self, queue: str) -> None:
        """Throw every message away."""


def is_fifo(queue: str) -> bool:
    """AWS ties the kind of a queue to its name, so the name is enough to know the rules."""
    return queue.endswith(".fifo")


def check_all(queue: str, messages: Sequence[Outgoing]) -> None:
    """Refuse what AWS would refuse."""
    fifo = is_fifo(queue)
    for message in messages:
        check(message, fifo=fifo)


def check(message: Outgoing, *, fifo: bool) -> None:
    """Refuse one message that breaks a rule of its kind of queue."""
    _check_body(message.body)
    if message.group and not _ID.fullmatch(message.group):
        raise _invalid(f"MessageGroupId {message.group!r} is not 1 to 128 letters, digits and punctuation")
    if fifo:
        _check_fifo(message)
    else:
        _check_standard(message)


def _check_body(body: str) -> None:
    if not body:
        raise QueueRefused("MissingParameter", "MessageBody is empty")
    # Printable implies allowed; the slow search only serves line breaks and rare bodies.
    if not body.isprintable() and _FORBIDDEN.search(body):
        raise QueueRefused("InvalidMessageContents", "MessageBody has a character that SQS does not carry")
    if len(body) * _WIDEST_CHARACTER_BYTES > MAX_BYTES and size(body) > MAX_BYTES:
        raise _invalid(f"MessageBody is longer than {MAX_BYTES} bytes")


def _check_fifo(message: Outgoing) -> None:
    if not message.group:
        raise QueueRefused("MissingParameter", "a FIFO queue needs a MessageGroupId")
    if message.dedup_id is None:
        raise _invalid("a FIFO queue without content-based deduplication needs a MessageDeduplicationId")
    if not _ID.fullmatch(message.dedup_id):
        raise _invalid(f"MessageDeduplicationId {message.dedup_id!r} is not 1 to 128 letters, digits and punctuation")
    if message.delay_s != 0:
        raise _invalid(f"DelaySeconds {message.delay_s}: a FIFO queue takes no delay per message")


def _check_standard(message: Outgoing) -> None:
    if message.dedup_id is not None:
        raise _invalid("MessageDeduplicationId is not valid for a standard queue")
    if not 0 <= message.delay_s <= MAX_DELAY_S:
        raise _invalid(f"DelaySeconds {message.delay_s} is not between 0 and {MAX_DELAY_S}")


def check_visibility(seconds: int) -> None:
    """Refuse a visibility time-out that AWS would refuse."""
    if not 0 <= seconds <= MAX_VISIBILITY_S:
        raise _invalid(f"VisibilityTimeout {seconds} is not between 0 and {MAX_VISIBILITY_S}")


def check_count(max_messages: int) -> None:
    """Refuse a receive that AWS would refuse."""
    if not 1 <= max_messages <= MAX_BATCH:
        raise _invalid(f"MaxNumberOfMessages {max_messages} is not between 1 and {MAX_BATCH}")


def batches(messages: Sequence[Outgoing]) -> Iterator[range]:
    """Cut messages, in order, into the index ranges that each fit one SendMessageBatch."""
    start, total = 0, 0
    for index, message in enumerate(messages):
        length = size(message.body)
        if index > start and (index - start == MAX_BATCH or total + length > MAX_BYTES):
            yield range(start, index)
            start, total = index, 0
        total += length
    if start < len(messages):
        yield range(start, len(messages))


def size(body: str) -> int:
    """Count the bytes that SQS counts."""
    return len(body) if body.isascii() else len(body.encode())


def _invalid(message: str) -> QueueRefused:
    return QueueRefused("InvalidParameterValue", message)
