"""The queues as SQS has them: it guards its callers against partial failures that look like success."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as NoConnectionError

from shared.kernel.log import logger
from shared.kernel.queue import (
    Outgoing,
    QueueRefused,
    QueueUnavailable,
    Received,
    batches,
    check_all,
    check_count,
    check_visibility,
)

_NETWORK = (NoConnectionError, HTTPClientError, IncompleteReadError)
_THROTTLED = frozenset(
    {
        "RequestThrottled",
        "RequestThrottledException",
        "ThrottlingException",
        "Throttling",
        "TooManyRequestsException",
        "OverLimit",
        "KmsThrottled",
        "KMS.ThrottlingException",
        "ServiceUnavailable",
        "InternalError",
        "InternalFailure",
    }
)
_HELD = [f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")]
_ATTRIBUTES = ["ApproximateReceiveCount", "MessageGroupId", "MessageDeduplicationId"]


class SqsQueue:
    """Answers to the Consumer port through a boto3 SQS client; it never sleeps and never sends twice by itself."""

    def __init__(self, client: Any, urls: Mapping[str, str] | None = None) -> None:
        self._client = client
        self._urls = dict(urls or {})

    def send(self, queue: str, messages: Sequence[Outgoing]) -> list[int]:
        check_all(queue, messages)
        refused: list[int] = []
        for batch in batches(messages):
            try:
                refused += self._send_batch(queue, batch, messages)
            except QueueUnavailable as error:
                # What follows is not tried: it would wait as long again, and could overtake its own group.
                logger.warning("send to %s stopped at %d of %d: %s", queue, batch.start, len(messages), error)
                return [*refused, *range(batch.start, len(messages))]
        return refused

    def receive(self, queue: str, max_messages: int = 1) -> list[Received]:
        check_count(max_messages)
        with _translated():
            answer = self._client.receive_message(
                QueueUrl=self._url(queue), MaxNumberOfMessages=max_messages, MessageSystemAttributeNames=_ATTRIBUTES
            )
        return [_received(message) for message in answer.get("Messages", [])]

    def delete(self, queue: str, receipt: str) -> None:
        with _translated():
            self._client.delete_message(QueueUrl=self._url(queue), ReceiptHandle=receipt)

    def change_visibility(self, queue: str, receipt: str, seconds: int) -> None:
        check_visibility(seconds)
        with _translated():
            self._client.change_message_visibility(
                QueueUrl=self._url(queue), ReceiptHandle=receipt, VisibilityTimeout=seconds
            )

    def is_empty(self, queue: str) -> bool:
        with _translated():
            held = self._client.get_queue_attributes(QueueUrl=self._url(queue), AttributeNames=_HELD)["Attributes"]
        return not any(int(held[name]) for name in _HELD)

    def purge(self, queue: str) -> None:
        with _translated():
            self._client.purge_queue(QueueUrl=self._url(queue))

    def _send_batch(self, queue: str, batch: range, messages: Sequence[Outgoing]) -> list[int]:
        entries = [_entry(index, messages[index]) for index in batch]
        with _translated():
            answer = self._client.send_message_batch(QueueUrl=self._url(queue), Entries=entries)
        for failure in answer.get("Failed", []):
            logger.warning("%s did not take a message: %s %s", queue, failure["Code"], failure.get("Message", ""))
        accepted = {int(success["Id"]) for success in answer.get("Successful", [])}
        return [index for index in batch if index not in accepted]

    def _url(self, queue: str) -> str:
        url = self._urls.get(queue)
        if url is None:
            url = self._urls[queue] = str(self._client.get_queue_url(QueueName=queue)["QueueUrl"])
        return url


def _entry(index: int, message: Outgoing) -> dict[str, Any]:
    entry: dict[str, Any] = {"Id": str(index), "MessageBody": message.body}
    if message.group:
        entry["MessageGroupId"] = message.group
    if message.dedup_id is not None:
        entry["MessageDeduplicationId"] = message.dedup_id
    else:
        entry["DelaySeconds"] = message.delay_s  # a zero too: left out, the queue's own delay would apply
    return entry


def _received(message: Mapping[str, Any]) -> Received:
    attributes = message.get("Attributes", {})
    return Received(
        message_id=message["MessageId"],
        body=message["Body"],
        receipt=message["ReceiptHandle"],
        receive_count=int(attributes.get("ApproximateReceiveCount", 1)),
        group=attributes.get("MessageGroupId", ""),
        dedup_id=attributes.get("MessageDeduplicationId"),
    )


@contextmanager
def _translated() -> Iterator[None]:
    """Turn botocore's errors into the two that matter: ask again later, or never in this form."""
    try:
        yield
    except ClientError as error:
        raise _client_error(error) from error
    except _NETWORK as error:
        raise QueueUnavailable(str(error)) from error
    except BotoCoreError as error:
        raise QueueRefused(type(error).__name__, str(error)) from error


def _client_error(error: ClientError) -> QueueRefused | QueueUnavailable:
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = str(error.response.get("Error", {}).get("Message", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _THROTTLED or status >= 500:
        return QueueUnavailable(f"{code}: {message}")
    return QueueRefused(code, message)
