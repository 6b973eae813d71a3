"""What every queue must do, asked of each: the one in memory, moto, MiniStack, and any other service at BATON_SQS_ENDPOINT."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import boto3
import moto.sqs.models as moto_sqs
import pytest
from botocore.config import Config
from moto import mock_aws

from infra.local.ministack import MiniStack
from shared.kernel.queue import Consumer, Outgoing, QueueRefused, Received
from shared.kernel.queue_memory import MemoryQueue, QueueSettings
from shared.kernel.queue_sqs import SqsQueue

STEPS, DEAD, WHOLE, LATER, LATER_DEAD = "steps.fifo", "dead.fifo", "whole.fifo", "later", "later-dead"
VISIBILITY_S = 2
SETTINGS = {
    DEAD: QueueSettings(fifo=True, visibility_s=VISIBILITY_S),
    STEPS: QueueSettings(
        fifo=True, visibility_s=VISIBILITY_S, max_receive_count=2, dead_letter=DEAD, dedup_scope="messageGroup"
    ),
    WHOLE: QueueSettings(fifo=True, visibility_s=VISIBILITY_S, dedup_scope="queue"),
    LATER_DEAD: QueueSettings(fifo=False, visibility_s=VISIBILITY_S),
    LATER: QueueSettings(fifo=False, visibility_s=VISIBILITY_S, max_receive_count=2, dead_letter=LATER_DEAD),
}
ENDPOINT = os.environ.get("BATON_SQS_ENDPOINT", "")
SERIAL = itertools.count(1)
ONLY_ON: dict[str, tuple[str, ...]] = {}
Test = TypeVar("Test", bound=Callable[..., None])

DEVIATIONS = {
    "moto": {
        "test_a_duplicate_of_a_deleted_message_is_not_delivered": "looks for duplicates only in the queue itself",
        "test_a_purge_does_not_forget_dedup_ids": "looks for duplicates only in the queue itself",
        "test_the_dedup_id_of_a_dead_letter_still_swallows_a_second_send": "looks for duplicates only in the queue itself",
        "test_with_scope_message_group_the_same_id_in_another_group_is_no_duplicate": "knows only the scope queue",
        "test_a_duplicate_is_answered_with_the_message_id_of_its_original": "gives a duplicate an id of its own",
        "test_fifo_refuses_to_delete_with_an_expired_receipt": "honours every receipt there ever was",
        "test_fifo_refuses_to_delete_with_the_receipt_of_an_earlier_delivery": "honours every receipt there ever was",
        "test_fifo_refuses_to_change_visibility_with_an_expired_receipt": "honours every receipt there ever was",
        "test_fifo_refuses_to_change_visibility_with_the_receipt_of_an_earlier_delivery": "honours every receipt there ever was",
        "test_standard_accepts_an_expired_receipt_for_a_change_of_visibility_and_changes_nothing": "hides the message again",
        "test_the_service_itself_refuses_a_dedup_id_on_a_standard_queue": "does not look",
        "test_the_service_itself_refuses_a_blank_in_an_id": "does not look",
        "test_the_service_itself_takes_the_good_entries_of_a_batch_with_a_bad_one": "refuses the whole batch",
    },
    "ministack": {
        "test_deleting_twice_is_accepted": "forgets a receipt with its message",
        "test_fifo_refuses_to_delete_with_an_expired_receipt": "honours the newest receipt for ever",
        "test_fifo_refuses_to_change_visibility_with_an_expired_receipt": "honours the newest receipt for ever",
        "test_standard_accepts_a_delete_with_the_receipt_of_an_earlier_delivery": "treats standard as FIFO",
        "test_standard_accepts_an_expired_receipt_for_a_change_of_visibility_and_changes_nothing": "hides the message again",
        "test_the_service_itself_refuses_a_delay_of_901": "does not look",
        "test_the_service_itself_refuses_a_dedup_id_on_a_standard_queue": "does not look",
        "test_the_service_itself_refuses_a_blank_in_an_id": "does not look",
    },
}


# --- backends ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A queue under test, the way to let time pass for it, and its raw client if it has one."""

    queue: Consumer
    wait: Callable[[float], None]
    raw: Any = None
    url: Callable[[str], str] = str


class Clock:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += seconds


class CreepingClock(Clock):
    """Moves a little at every look, as real time does; moto shows a message only after its moment, not at it."""

    def now(self) -> float:
        self.at += 0.0001
        return self.at


def memory_backend(_monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    clock = Clock()
    yield Backend(queue=MemoryQueue(SETTINGS, clock.now, random.Random(7)), wait=clock.advance)


def moto_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    clock = CreepingClock()
    monkeypatch.setattr(moto_sqs, "unix_time", clock.now)
    monkeypatch.setattr(moto_sqs, "unix_time_millis", lambda: clock.now() * 1000)
    with mock_aws():
        yield sqs_backend(sqs_client(None), clock.advance)


def ministack_backend(_monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    yield from backend_at(ministack().url, ministack().access_key)


def endpoint_backend(_monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    yield from backend_at(ENDPOINT)


def backend_at(endpoint: str, access_key: str = "test") -> Iterator[Backend]:
    backend = sqs_backend(sqs_client(endpoint, access_key), time.sleep)
    yield backend
    for name in SETTINGS:
        backend.raw.delete_queue(QueueUrl=backend.url(name))


@functools.cache
def ministack() -> MiniStack:
    """One for all tests of the process; its guard ends it when the process ends."""
    directory = tempfile.mkdtemp(prefix="baton-contract-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    server = MiniStack.start(Path(directory))
    atexit.register(server.stop)
    return server


@functools.cache
def sqs_client(endpoint: str | None, access_key: str = "test") -> Any:
    session = boto3.session.Session(access_key, access_key, region_name="us-east-1")
    return session.client("sqs", endpoint_url=endpoint, config=Config(ignore_configured_endpoint_urls=True))


def sqs_backend(client: Any, wait: Callable[[float], None]) -> Backend:
    prefix = f"contract-{os.getpid()}-{next(SERIAL)}"
    urls: dict[str, str] = {}
    for name, settings in SETTINGS.items():
        attributes = queue_attributes(client, settings, urls)
        urls[name] = client.create_queue(QueueName=f"{prefix}-{name}", Attributes=attributes)["QueueUrl"]
    return Backend(queue=SqsQueue(client, urls), wait=lambda s: wait(s + 0.05), raw=client, url=urls.__getitem__)


def queue_attributes(client: Any, settings: QueueSettings, urls: dict[str, str]) -> dict[str, str]:
    attributes = {"VisibilityTimeout": str(settings.visibility_s)}
    if settings.fifo:
        attributes |= {"FifoQueue": "true", "DeduplicationScope": settings.dedup_scope}
    if settings.dedup_scope == "messageGroup":
        attributes["FifoThroughputLimit"] = "perMessageGroupId"
    if settings.dead_letter is not None:
        answer = client.get_queue_attributes(QueueUrl=urls[settings.dead_letter], AttributeNames=["QueueArn"])
        policy = {
            "deadLetterTargetArn": answer["Attributes"]["QueueArn"],
            "maxReceiveCount": settings.max_receive_count,
        }
        attributes["RedrivePolicy"] = json.dumps(policy)
    return attributes


MAKERS = {"memory": memory_backend, "moto": moto_backend, "ministack": ministack_backend}
MAKERS |= {"endpoint": endpoint_backend} if ENDPOINT else {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the backends that can take it; a known deviation must fail, or its entry is out of date."""
    if "backend" in metafunc.fixturenames:
        test = metafunc.function.__name__
        names = [name for name in MAKERS if name in ONLY_ON.get(test, MAKERS)]
        metafunc.parametrize("backend", [pytest.param(n, marks=marks(n, test)) for n in names], indirect=True)


def marks(backend: str, test: str) -> list[pytest.MarkDecorator]:
    reason = DEVIATIONS.get(backend, {}).get(test)
    if reason is None:
        return []
    return [pytest.mark.xfail(strict=True, reason=reason, raises=(AssertionError, pytest.fail.Exception, QueueRefused))]


def only_on(*names: str) -> Callable[[Test], Test]:
    def note(test: Test) -> Test:
        ONLY_ON[test.__name__] = names
        return test

    return note


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    yield from MAKERS[request.param](monkeypatch)


# --- words of the tests -----------------------------------------------------------------------------------------------


def step(body: str, group: str = "lane-1", dedup_id: str | None = None) -> Outgoing:
    return Outgoing(body=body, group=group, dedup_id=dedup_id or f"d{next(SERIAL)}")


def note(body: str, delay_s: int = 0) -> Outgoing:
    return Outgoing(body=body, group="tenant-1", delay_s=delay_s)


def receive_one(backend: Backend, queue: str = STEPS) -> Received:
    [received] = backend.queue.receive(queue)
    return received


def bodies(backend: Backend, queue: str, max_messages: int = 10) -> list[str]:
    return [received.body for received in backend.queue.receive(queue, max_messages)]


def drain(backend: Backend, queue: str) -> list[Received]:
    """Receive and delete until nothing comes any more."""
    drained: list[Received] = []
    for _ in range(50):
        batch = backend.queue.receive(queue, 10)
        if not batch:
            return drained
        for received in batch:
            backend.queue.delete(queue, received.receipt)
        drained += batch
    pytest.fail("the queue never runs dry")


def wear_out(backend: Backend, queue: str) -> None:
    """Receive as often as the redrive policy allows, never deleting."""
    for _ in range(2):
        for received in backend.queue.receive(queue, 10):
            backend.queue.change_visibility(queue, received.receipt, 0)


# --- both kinds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_a_message_arrives_with_everything_it_was_sent_with(backend: Backend, queue: str) -> None:
    message = step("hello\n\u00fc \U0001f600") if queue == STEPS else note("hello\n\u00fc \U0001f600")

    assert backend.queue.send(queue, [message]) == []

    received = receive_one(backend, queue)
    assert (received.body, received.group, received.dedup_id) == (message.body, message.group, message.dedup_id)
    assert received.receive_count == 1


def test_nothing_is_received_from_an_empty_queue(backend: Backend) -> None:
    assert backend.queue.receive(STEPS, 10) == []
    assert backend.queue.receive(LATER, 10) == []


def test_sending_nothing_is_accepted(backend: Backend) -> None:
    assert backend.queue.send(STEPS, []) == []


def test_more_than_ten_messages_are_sent_in_order(backend: Backend) -> None:
    assert backend.queue.send(STEPS, [step(str(n)) for n in range(23)]) == []

    assert [received.body for received in drain(backend, STEPS)] == [str(n) for n in range(23)]


def test_more_than_a_mebibyte_is_sent_in_several_batches(backend: Backend) -> None:
    halves = [step(letter * 600_000, group=letter) for letter in "abc"]

    assert backend.queue.send(STEPS, halves) == []

    assert sorted(received.body[0] for received in drain(backend, STEPS)) == ["a", "b", "c"]


@pytest.mark.full
@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_a_received_message_is_invisible_until_its_time_out_and_then_comes_again(backend: Backend, queue: str) -> None:
    backend.queue.send(queue, [step("a") if queue == STEPS else note("a")])
    first = receive_one(backend, queue)

    assert backend.queue.receive(queue) == []
    backend.wait(VISIBILITY_S)

    again = receive_one(backend, queue)
    assert (again.message_id, again.body, again.receive_count) == (first.message_id, "a", 2)


@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_every_receive_gives_another_receipt(backend: Backend, queue: str) -> None:
    backend.queue.send(queue, [step("a") if queue == STEPS else note("a")])
    first = receive_one(backend, queue)
    backend.queue.change_visibility(queue, first.receipt, 0)

    assert receive_one(backend, queue).receipt != first.receipt


@pytest.mark.full
@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_a_deleted_message_does_not_come_again(backend: Backend, queue: str) -> None:
    backend.queue.send(queue, [step("a") if queue == STEPS else note("a")])
    backend.queue.delete(queue, receive_one(backend, queue).receipt)
    backend.wait(VISIBILITY_S)

    assert backend.queue.receive(queue) == []


@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_deleting_twice_is_accepted(backend: Backend, queue: str) -> None:
    backend.queue.send(queue, [step("a") if queue == STEPS else note("a")])
    receipt = receive_one(backend, queue).receipt

    backend.queue.delete(queue, receipt)
    backend.queue.delete(queue, receipt)

    assert backend.queue.receive(queue) == []


@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_visibility_zero_brings_a_message_back_at_once(backend: Backend, queue: str) -> None:
    backend.queue.send(queue, [step("a") if queue == STEPS else note("a")])
    backend.queue.change_visibility(queue, receive_one(backend, queue).receipt, 0)

    assert bodies(backend, queue) == ["a"]


@pytest.mark.full
@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_a_longer_visibility_counts_from_the_change(backend: Backend, queue: str) -> None:
    backend.queue.send(queue, [step("a") if queue == STEPS else note("a")])
    held = receive_one(backend, queue)
    backend.wait(1)
    backend.queue.change_visibility(queue, held.receipt, 3)
    backend.wait(2)
    assert backend.queue.receive(queue) == []
    backend.wait(1)

    assert bodies(backend, queue) == ["a"]


@pytest.mark.full
def test_a_changed_visibility_is_forgotten_at_the_next_receive(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("a")])
    backend.queue.change_visibility(STEPS, receive_one(backend).receipt, 1)
    backend.wait(1)
    receive_one(backend)
    backend.wait(1)

    assert backend.queue.receive(STEPS) == []


@pytest.mark.parametrize("seconds", [-1, 43_201])
def test_a_visibility_outside_twelve_hours_is_refused(backend: Backend, seconds: int) -> None:
    backend.queue.send(STEPS, [step("a")])
    held = receive_one(backend)

    with pytest.raises(QueueRefused):
        backend.queue.change_visibility(STEPS, held.receipt, seconds)


@pytest.mark.full
def test_visibility_can_be_stretched_to_nearly_twelve_hours(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("a")])

    backend.queue.change_visibility(STEPS, receive_one(backend).receipt, 43_100)

    backend.wait(VISIBILITY_S)
    assert backend.queue.receive(STEPS) == []


@only_on("memory", "moto")
def test_twelve_hours_of_visibility_are_the_sum_since_the_receive(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("a")])
    held = receive_one(backend)
    backend.queue.change_visibility(STEPS, held.receipt, 40_000)
    backend.wait(30_000)

    with pytest.raises(QueueRefused):
        backend.queue.change_visibility(STEPS, held.receipt, 20_000)


@pytest.mark.parametrize("count", [0, 11])
def test_a_receive_of_none_or_more_than_ten_is_refused(backend: Backend, count: int) -> None:
    with pytest.raises(QueueRefused):
        backend.queue.receive(STEPS, count)


@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_a_receipt_that_was_never_given_is_refused(backend: Backend, queue: str) -> None:
    with pytest.raises(QueueRefused):
        backend.queue.delete(queue, "nonsense")
    with pytest.raises(QueueRefused):
        backend.queue.change_visibility(queue, "nonsense", 1)


@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_the_visibility_of_a_deleted_message_cannot_change(backend: Backend, queue: str) -> None:
    backend.queue.send(queue, [step("a") if queue == STEPS else note("a")])
    receipt = receive_one(backend, queue).receipt
    backend.queue.delete(queue, receipt)

    with pytest.raises(QueueRefused):
        backend.queue.change_visibility(queue, receipt, 1)


@pytest.mark.full
@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_a_purge_leaves_nothing_behind(backend: Backend, queue: str) -> None:
    backend.queue.send(queue, [step("a"), step("b")] if queue == STEPS else [note("a"), note("b"), note("c", 1)])
    backend.queue.receive(queue)

    backend.queue.purge(queue)

    backend.wait(VISIBILITY_S)
    assert backend.queue.receive(queue, 10) == []


@pytest.mark.full
@pytest.mark.parametrize("queue", [STEPS, LATER])
def test_a_queue_knows_whether_it_is_empty(backend: Backend, queue: str) -> None:
    assert backend.queue.is_empty(queue)
    backend.queue.send(queue, [step("a")] if queue == STEPS else [note("a", 1)])
    assert not backend.queue.is_empty(queue), "what is delayed is there"

    backend.wait(1)
    (received,) = backend.queue.receive(queue)
    assert not backend.queue.is_empty(queue), "what is in somebody's hands is there"

    backend.queue.delete(queue, received.receipt)
    assert backend.queue.is_empty(queue)


def test_a_queue_that_does_not_exist_is_refused(backend: Backend) -> None:
    with pytest.raises(QueueRefused):
        backend.queue.receive("nowhere.fifo")
    with pytest.raises(QueueRefused):
        backend.queue.send("nowhere.fifo", [step("a")])
    with pytest.raises(QueueRefused):
        backend.queue.is_empty("nowhere.fifo")


# --- order and groups (FIFO) ------------------------------------------------------------------------------------------


def test_a_group_is_delivered_in_the_order_it_was_sent(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("1", "x"), step("1", "y"), step("2", "x"), step("2", "y"), step("3", "x")])

    drained = drain(backend, STEPS)

    assert [r.body for r in drained if r.group == "x"] == ["1", "2", "3"]
    assert [r.body for r in drained if r.group == "y"] == ["1", "2"]


def test_a_message_in_flight_blocks_its_group(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("1"), step("2")])
    receive_one(backend)

    assert backend.queue.receive(STEPS, 10) == []


def test_a_message_in_flight_blocks_what_is_sent_to_its_group_later(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("1")])
    receive_one(backend)
    backend.queue.send(STEPS, [step("2")])

    assert backend.queue.receive(STEPS, 10) == []


def test_a_message_in_flight_does_not_block_another_group(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("1", "x"), step("2", "x"), step("1", "y")])
    first = receive_one(backend)

    other = receive_one(backend)

    assert {first.group, other.group} == {"x", "y"}


def test_a_delete_frees_the_group(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("1"), step("2")])
    backend.queue.delete(STEPS, receive_one(backend).receipt)

    assert receive_one(backend).body == "2"


def test_one_receive_may_take_several_of_a_group_and_blocks_it_until_the_last_is_gone(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("1"), step("2"), step("3")])
    one, two = backend.queue.receive(STEPS, 2)
    assert (one.body, two.body) == ("1", "2")

    backend.queue.delete(STEPS, one.receipt)
    assert backend.queue.receive(STEPS) == []
    backend.queue.delete(STEPS, two.receipt)

    assert receive_one(backend).body == "3"


def test_a_message_that_returns_while_another_of_its_group_is_in_flight_still_waits(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("1"), step("2")])
    one, two = backend.queue.receive(STEPS, 2)

    backend.queue.change_visibility(STEPS, two.receipt, 0)
    assert backend.queue.receive(STEPS, 10) == []
    backend.queue.change_visibility(STEPS, one.receipt, 0)

    assert bodies(backend, STEPS) == ["1", "2"]


@pytest.mark.full
def test_a_message_that_timed_out_comes_before_its_successors(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("1"), step("2")])
    receive_one(backend)
    backend.wait(VISIBILITY_S)

    assert bodies(backend, STEPS) == ["1", "2"]


# --- deduplication (FIFO) ---------------------------------------------------------------------------------------------


def test_a_duplicate_is_accepted_and_not_delivered(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("first", dedup_id="d")])

    assert backend.queue.send(STEPS, [step("second", dedup_id="d")]) == []

    assert [received.body for received in drain(backend, STEPS)] == ["first"]


def test_a_duplicate_inside_one_send_is_accepted_and_not_delivered(backend: Backend) -> None:
    assert backend.queue.send(STEPS, [step("first", dedup_id="d"), step("second", dedup_id="d")]) == []

    assert [received.body for received in drain(backend, STEPS)] == ["first"]


def test_a_duplicate_of_a_message_in_flight_is_not_delivered(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("first", dedup_id="d")])
    held = receive_one(backend)
    backend.queue.send(STEPS, [step("second", dedup_id="d")])
    backend.queue.delete(STEPS, held.receipt)

    assert backend.queue.receive(STEPS) == []


def test_a_duplicate_of_a_deleted_message_is_not_delivered(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("first", dedup_id="d")])
    backend.queue.delete(STEPS, receive_one(backend).receipt)

    assert backend.queue.send(STEPS, [step("second", dedup_id="d")]) == []

    assert backend.queue.receive(STEPS) == []


@only_on("memory", "moto")
def test_a_duplicate_is_still_swallowed_just_before_five_minutes(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("first", dedup_id="d")])
    backend.wait(299)
    backend.queue.send(STEPS, [step("second", dedup_id="d")])

    assert [received.body for received in drain(backend, STEPS)] == ["first"]


@only_on("memory", "moto")
def test_a_dedup_id_is_free_again_after_five_minutes(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("first", dedup_id="d")])
    backend.wait(300)
    backend.queue.send(STEPS, [step("second", dedup_id="d")])

    assert [received.body for received in drain(backend, STEPS)] == ["first", "second"]


@only_on("memory", "moto")
def test_a_duplicate_does_not_lengthen_the_five_minutes(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("first", dedup_id="d")])
    backend.wait(200)
    backend.queue.send(STEPS, [step("second", dedup_id="d")])
    backend.wait(100)
    backend.queue.send(STEPS, [step("third", dedup_id="d")])

    assert [received.body for received in drain(backend, STEPS)] == ["first", "third"]


def test_with_scope_message_group_the_same_id_in_another_group_is_no_duplicate(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("a", "x", "d"), step("b", "y", "d")])

    assert sorted(received.body for received in drain(backend, STEPS)) == ["a", "b"]


def test_with_scope_queue_the_same_id_in_another_group_is_a_duplicate(backend: Backend) -> None:
    backend.queue.send(WHOLE, [step("a", "x", "d"), step("b", "y", "d")])

    assert [received.body for received in drain(backend, WHOLE)] == ["a"]


def test_a_purge_does_not_forget_dedup_ids(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("first", dedup_id="d")])
    backend.queue.purge(STEPS)
    backend.queue.send(STEPS, [step("second", dedup_id="d")])

    assert backend.queue.receive(STEPS) == []


@only_on("moto", "ministack", "endpoint")
def test_a_duplicate_is_answered_with_the_message_id_of_its_original(backend: Backend) -> None:
    request = {"MessageBody": "a", "MessageGroupId": "x", "MessageDeduplicationId": "d"}

    answers = [backend.raw.send_message(QueueUrl=backend.url(STEPS), **request) for _ in range(2)]

    assert answers[0]["MessageId"] == answers[1]["MessageId"]


# --- receipts ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_fifo_refuses_to_delete_with_an_expired_receipt(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("a")])
    expired = receive_one(backend)
    backend.wait(VISIBILITY_S)

    with pytest.raises(QueueRefused):
        backend.queue.delete(STEPS, expired.receipt)

    assert receive_one(backend).body == "a"


@pytest.mark.full
def test_fifo_refuses_to_delete_with_the_receipt_of_an_earlier_delivery(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("a")])
    earlier = receive_one(backend)
    backend.wait(VISIBILITY_S)
    receive_one(backend)

    with pytest.raises(QueueRefused):
        backend.queue.delete(STEPS, earlier.receipt)


@pytest.mark.full
def test_fifo_refuses_to_change_visibility_with_an_expired_receipt(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("a")])
    expired = receive_one(backend)
    backend.wait(VISIBILITY_S)

    with pytest.raises(QueueRefused):
        backend.queue.change_visibility(STEPS, expired.receipt, 10)


@pytest.mark.full
def test_fifo_refuses_to_change_visibility_with_the_receipt_of_an_earlier_delivery(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("a")])
    earlier = receive_one(backend)
    backend.wait(VISIBILITY_S)
    receive_one(backend)

    with pytest.raises(QueueRefused):
        backend.queue.change_visibility(STEPS, earlier.receipt, 0)


@pytest.mark.full
def test_standard_deletes_with_the_newest_receipt_even_when_it_has_expired(backend: Backend) -> None:
    backend.queue.send(LATER, [note("a")])
    expired = receive_one(backend, LATER)
    backend.wait(VISIBILITY_S)

    backend.queue.delete(LATER, expired.receipt)

    assert backend.queue.receive(LATER) == []


@pytest.mark.full
def test_standard_accepts_a_delete_with_the_receipt_of_an_earlier_delivery(backend: Backend) -> None:
    backend.queue.send(LATER, [note("a")])
    earlier = receive_one(backend, LATER)
    backend.wait(VISIBILITY_S)
    receive_one(backend, LATER)

    backend.queue.delete(LATER, earlier.receipt)


@pytest.mark.full
def test_standard_accepts_an_expired_receipt_for_a_change_of_visibility_and_changes_nothing(backend: Backend) -> None:
    backend.queue.send(LATER, [note("a")])
    expired = receive_one(backend, LATER)
    backend.wait(VISIBILITY_S)

    backend.queue.change_visibility(LATER, expired.receipt, 10)

    assert bodies(backend, LATER) == ["a"]


# --- delay (standard) -------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_delayed_message_comes_when_its_delay_is_over(backend: Backend) -> None:
    backend.queue.send(LATER, [note("later", 1), note("now")])

    assert bodies(backend, LATER) == ["now"]
    backend.wait(1)

    assert bodies(backend, LATER) == ["later"]


@only_on("memory", "moto")
def test_a_delay_of_fifteen_minutes_is_kept_to_the_end(backend: Backend) -> None:
    backend.queue.send(LATER, [note("later", 900)])
    backend.wait(899)
    assert backend.queue.receive(LATER) == []
    backend.wait(1)

    assert bodies(backend, LATER) == ["later"]


def test_a_standard_queue_delivers_every_message_in_some_order(backend: Backend) -> None:
    backend.queue.send(LATER, [note(str(n)) for n in range(12)])

    assert sorted(received.body for received in drain(backend, LATER)) == sorted(str(n) for n in range(12))


def test_messages_of_one_tenant_do_not_block_each_other_in_a_standard_queue(backend: Backend) -> None:
    backend.queue.send(LATER, [note("a"), note("b")])

    assert {receive_one(backend, LATER).body, receive_one(backend, LATER).body} == {"a", "b"}


# --- refusals: before anything is sent --------------------------------------------------------------------------------

REFUSED = [
    pytest.param(STEPS, Outgoing(body="a", group="x", dedup_id="d", delay_s=1), id="a delay on FIFO"),
    pytest.param(STEPS, Outgoing(body="a", group="x"), id="no dedup id on FIFO"),
    pytest.param(STEPS, Outgoing(body="a", group="", dedup_id="d"), id="no group on FIFO"),
    pytest.param(STEPS, Outgoing(body="a", group="x" * 129, dedup_id="d"), id="a group of 129"),
    pytest.param(STEPS, Outgoing(body="a", group="x", dedup_id="d" * 129), id="a dedup id of 129"),
    pytest.param(STEPS, Outgoing(body="a", group="x", dedup_id="d e"), id="a blank in an id"),
    pytest.param(STEPS, Outgoing(body="a", group="\u00fc", dedup_id="d"), id="a letter outside ASCII in an id"),
    pytest.param(STEPS, Outgoing(body="", group="x", dedup_id="d"), id="an empty body"),
    pytest.param(STEPS, Outgoing(body="\x00", group="x", dedup_id="d"), id="a control character"),
    pytest.param(STEPS, Outgoing(body="a" * 1_048_577, group="x", dedup_id="d"), id="a byte too many"),
    pytest.param(STEPS, Outgoing(body="\u00fc" * 524_289, group="x", dedup_id="d"), id="two bytes too many"),
    pytest.param(LATER, Outgoing(body="a", group="t", dedup_id="d"), id="a dedup id on standard"),
    pytest.param(LATER, Outgoing(body="a", group="t", delay_s=901), id="a delay of 901"),
    pytest.param(LATER, Outgoing(body="a", group="t", delay_s=-1), id="a negative delay"),
]


@pytest.mark.parametrize(("queue", "message"), REFUSED)
def test_a_message_against_the_rules_is_refused_and_nothing_is_sent(
    backend: Backend, queue: str, message: Outgoing
) -> None:
    good = step("good") if queue == STEPS else note("good")

    with pytest.raises(QueueRefused):
        backend.queue.send(queue, [good, message])

    assert backend.queue.receive(queue, 10) == []


def test_the_longest_ids_and_the_largest_body_are_accepted(backend: Backend) -> None:
    longest = Outgoing(body="a" * 1_048_576, group="!" * 128, dedup_id="~" * 128)

    assert backend.queue.send(STEPS, [longest]) == []

    received = receive_one(backend)
    assert (received.group, received.dedup_id, len(received.body)) == (longest.group, longest.dedup_id, 1_048_576)


@only_on("moto", "ministack", "endpoint")
@pytest.mark.parametrize(
    ("queue", "request_"),
    [
        pytest.param(
            STEPS, {"MessageGroupId": "x", "MessageDeduplicationId": "d", "DelaySeconds": 1}, id="a delay on FIFO"
        ),
        pytest.param(STEPS, {"MessageGroupId": "x"}, id="no dedup id on FIFO"),
        pytest.param(STEPS, {"MessageDeduplicationId": "d"}, id="no group on FIFO"),
    ],
)
def test_the_service_itself_refuses_what_the_port_refuses(
    backend: Backend, queue: str, request_: dict[str, Any]
) -> None:
    with pytest.raises(backend.raw.exceptions.ClientError):
        backend.raw.send_message(QueueUrl=backend.url(queue), MessageBody="a", **request_)


@only_on("moto", "ministack", "endpoint")
def test_the_service_itself_refuses_a_delay_of_901(backend: Backend) -> None:
    with pytest.raises(backend.raw.exceptions.ClientError):
        backend.raw.send_message(QueueUrl=backend.url(LATER), MessageBody="a", DelaySeconds=901)


@only_on("moto", "ministack", "endpoint")
def test_the_service_itself_refuses_a_dedup_id_on_a_standard_queue(backend: Backend) -> None:
    with pytest.raises(backend.raw.exceptions.ClientError):
        backend.raw.send_message(QueueUrl=backend.url(LATER), MessageBody="a", MessageDeduplicationId="d")


@only_on("moto", "ministack", "endpoint")
def test_the_service_itself_refuses_a_blank_in_an_id(backend: Backend) -> None:
    with pytest.raises(backend.raw.exceptions.ClientError):
        backend.raw.send_message(
            QueueUrl=backend.url(STEPS), MessageBody="a", MessageGroupId="x y", MessageDeduplicationId="d"
        )


@only_on("moto", "ministack", "endpoint")
def test_the_service_itself_accepts_an_explicit_delay_of_none_on_fifo(backend: Backend) -> None:
    backend.raw.send_message(
        QueueUrl=backend.url(STEPS), MessageBody="a", MessageGroupId="x", MessageDeduplicationId="d", DelaySeconds=0
    )

    assert receive_one(backend).body == "a"


@only_on("moto", "ministack", "endpoint")
def test_the_service_itself_takes_the_good_entries_of_a_batch_with_a_bad_one(backend: Backend) -> None:
    good = {"Id": "0", "MessageBody": "a", "MessageGroupId": "x", "MessageDeduplicationId": "d"}
    bad = good | {"Id": "1", "MessageDeduplicationId": "e", "DelaySeconds": 1}

    answer = raw_batch(backend, [good, bad])

    assert [entry["Id"] for entry in answer.get("Successful", [])] == ["0"]
    assert [entry["Id"] for entry in answer.get("Failed", [])] == ["1"]


def raw_batch(backend: Backend, entries: list[dict[str, Any]]) -> dict[str, Any]:
    try:
        return dict(backend.raw.send_message_batch(QueueUrl=backend.url(STEPS), Entries=entries))
    except backend.raw.exceptions.ClientError:
        return {}


# --- dead letters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queue", "dead"), [(STEPS, DEAD), (LATER, LATER_DEAD)])
def test_a_worn_out_message_moves_at_the_receive_that_would_exceed_the_limit(
    backend: Backend, queue: str, dead: str
) -> None:
    message = step("poison") if queue == STEPS else note("poison")
    backend.queue.send(queue, [message])
    wear_out(backend, queue)
    assert backend.queue.receive(dead) == []

    assert backend.queue.receive(queue) == []

    letter = receive_one(backend, dead)
    assert (letter.body, letter.group, letter.dedup_id) == (message.body, message.group, message.dedup_id)


def test_a_dead_letter_keeps_its_message_id_and_goes_on_counting(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("poison")])
    held = receive_one(backend)
    backend.queue.change_visibility(STEPS, held.receipt, 0)
    backend.queue.change_visibility(STEPS, receive_one(backend).receipt, 0)
    backend.queue.receive(STEPS)

    letter = receive_one(backend, DEAD)

    assert (letter.message_id, letter.receive_count) == (held.message_id, 3)


def test_a_group_goes_on_in_the_receive_that_moves_its_poison(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("poison")])
    wear_out(backend, STEPS)
    backend.queue.send(STEPS, [step("next")])

    assert bodies(backend, STEPS) == ["next"]
    assert bodies(backend, DEAD) == ["poison"]


def test_dead_letters_of_a_group_arrive_in_order(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("1"), step("2")])
    wear_out(backend, STEPS)
    backend.queue.receive(STEPS)

    assert [received.body for received in drain(backend, DEAD)] == ["1", "2"]


def test_the_dedup_id_of_a_dead_letter_still_swallows_a_second_send(backend: Backend) -> None:
    backend.queue.send(STEPS, [step("poison", dedup_id="d")])
    wear_out(backend, STEPS)
    backend.queue.receive(STEPS)
    backend.queue.send(STEPS, [step("again", dedup_id="d")])

    assert backend.queue.receive(STEPS) == []


# --- the adapter's own ------------------------------------------------------------------------------------------------


@only_on("moto", "ministack", "endpoint")
def test_a_queue_without_a_given_address_is_found_by_its_name(backend: Backend) -> None:
    name = backend.url(STEPS).rsplit("/", 1)[1]
    finding = SqsQueue(backend.raw)

    finding.send(name, [step("a")])

    assert [received.body for received in finding.receive(name)] == ["a"]


def test_every_known_deviation_names_a_test() -> None:
    assert {test for tests in DEVIATIONS.values() for test in tests} <= set(globals())
