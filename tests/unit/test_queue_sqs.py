"""The SQS adapter when AWS fails: which indexes it names, which errors it raises, and when it stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError

from shared.kernel.queue import MAX_BYTES, Outgoing, QueueError, QueueRefused, QueueUnavailable, batches
from shared.kernel.queue_sqs import SqsQueue

Answer = Callable[[list[dict[str, Any]]], dict[str, Any]]


class FakeSqs:
    """Answers each batch by the script, then takes everything; counts what it was asked."""

    def __init__(self, *script: Answer | Exception, lookup: Exception | None = None) -> None:
        self.script = list(script)
        self.lookup = lookup
        self.batches: list[list[dict[str, Any]]] = []
        self.lookups: list[str] = []

    def get_queue_url(self, *, QueueName: str) -> dict[str, str]:  # noqa: N803 - as boto3 spells it
        self.lookups.append(QueueName)
        if self.lookup is not None:
            raise self.lookup
        return {"QueueUrl": f"https://sqs/{QueueName}"}

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        self.batches.append(Entries)
        answer = self.script.pop(0) if self.script else takes_all
        if isinstance(answer, Exception):
            raise answer
        return answer(Entries)

    def receive_message(self, **_: Any) -> dict[str, Any]:
        answer = self.script.pop(0)
        assert isinstance(answer, Exception)
        raise answer


def takes_all(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Successful": [{"Id": entry["Id"]} for entry in entries]}


def takes_all_but(*bodies: str) -> Answer:
    def answer(entries: list[dict[str, Any]]) -> dict[str, Any]:
        failed = [entry for entry in entries if entry["MessageBody"] in bodies]
        return takes_all([entry for entry in entries if entry not in failed]) | {
            "Failed": [{"Id": entry["Id"], "Code": "InternalError", "SenderFault": False} for entry in failed]
        }

    return answer


def client_error(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "SendMessageBatch",
    )


def steps(count: int) -> list[Outgoing]:
    return [Outgoing(body=str(n), group=f"lane-{n}", dedup_id=str(n)) for n in range(count)]


TRANSIENT = [
    pytest.param(client_error("RequestThrottled"), id="throttled"),
    pytest.param(client_error("ThrottlingException"), id="throttled by its other name"),
    pytest.param(client_error("Whatever", 503), id="a server error"),
    pytest.param(EndpointConnectionError(endpoint_url="https://sqs"), id="no connection"),
    pytest.param(ReadTimeoutError(endpoint_url="https://sqs"), id="no answer"),
]


def test_partial_failures_are_named_by_their_place_in_the_whole_send() -> None:
    client = FakeSqs(takes_all_but("3"), takes_all_but("10", "14"))

    assert SqsQueue(client).send("steps.fifo", steps(15)) == [3, 10, 14]


def test_an_entry_the_answer_does_not_mention_was_not_accepted() -> None:
    client = FakeSqs(lambda entries: takes_all(entries[1:]))

    assert SqsQueue(client).send("steps.fifo", steps(3)) == [0]


@pytest.mark.parametrize("failure", TRANSIENT)
def test_a_batch_that_fails_as_a_whole_names_all_its_indexes_and_nothing_more_is_tried(failure: Exception) -> None:
    client = FakeSqs(takes_all_but("4"), failure)

    assert SqsQueue(client).send("steps.fifo", steps(25)) == [4, *range(10, 25)]
    assert len(client.batches) == 2


@pytest.mark.parametrize("failure", TRANSIENT)
def test_a_queue_whose_address_cannot_be_asked_accepted_nothing(failure: Exception) -> None:
    client = FakeSqs(lookup=failure)

    assert SqsQueue(client).send("steps.fifo", steps(2)) == [0, 1]
    assert client.batches == []


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (client_error("AccessDenied", 403), "AccessDenied"),
        (client_error("AWS.SimpleQueueService.NonExistentQueue"), "AWS.SimpleQueueService.NonExistentQueue"),
        (NoCredentialsError(), "NoCredentialsError"),
    ],
)
def test_a_failure_that_time_will_not_mend_is_refused(failure: Exception, code: str) -> None:
    with pytest.raises(QueueRefused) as refused:
        SqsQueue(FakeSqs(failure)).send("steps.fifo", steps(1))

    assert refused.value.code == code
    assert isinstance(refused.value, QueueError)


@pytest.mark.parametrize("failure", TRANSIENT)
def test_a_receive_without_an_answer_is_unavailable(failure: Exception) -> None:
    with pytest.raises(QueueUnavailable):
        SqsQueue(FakeSqs(failure)).receive("steps.fifo")


def test_an_address_is_asked_once() -> None:
    client = FakeSqs()
    queue = SqsQueue(client)
    queue.send("steps.fifo", steps(12))
    queue.send("steps.fifo", steps(1))

    assert client.lookups == ["steps.fifo"]


def test_a_given_address_is_never_asked() -> None:
    client = FakeSqs()
    SqsQueue(client, {"steps.fifo": "https://sqs/steps"}).send("steps.fifo", steps(1))

    assert client.lookups == []


def test_fifo_entries_carry_no_delay_and_standard_entries_always_do() -> None:
    client = FakeSqs()
    queue = SqsQueue(client)
    queue.send("steps.fifo", [Outgoing(body="a", group="x", dedup_id="d")])
    queue.send("later", [Outgoing(body="a", group="t"), Outgoing(body="a", group="", delay_s=900)])

    assert client.batches == [
        [{"Id": "0", "MessageBody": "a", "MessageGroupId": "x", "MessageDeduplicationId": "d"}],
        [
            {"Id": "0", "MessageBody": "a", "MessageGroupId": "t", "DelaySeconds": 0},
            {"Id": "1", "MessageBody": "a", "DelaySeconds": 900},
        ],
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([1] * 10, [range(10)], id="ten fit"),
        pytest.param([1] * 11, [range(10), range(10, 11)], id="eleven do not"),
        pytest.param([MAX_BYTES, 1], [range(1), range(1, 2)], id="a full message travels alone"),
        pytest.param([MAX_BYTES - 1, 1, 1], [range(2), range(2, 3)], id="a mebibyte together fits"),
    ],
)
def test_a_batch_holds_ten_messages_and_a_mebibyte(sizes: list[int], expected: list[range]) -> None:
    messages = [Outgoing(body="a" * size, group="t") for size in sizes]

    assert list(batches(messages)) == expected


def test_a_batch_is_measured_in_bytes_not_in_characters() -> None:
    messages = [Outgoing(body="\u00fc" * (MAX_BYTES // 4), group="t") for _ in range(3)]

    assert list(batches(messages)) == [range(2), range(2, 3)]
