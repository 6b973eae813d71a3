"""What Lambda hands to a function: events of SQS and a context; and a logger as it was before an entry point took it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from shared.kernel.log import logger
from shared.kernel.queue import Received

ARN = "arn:aws:sqs:eu-central-1:123456789012:"


@dataclass
class FakeContext:
    left_ms: int = 30_000
    function_name: str = "baton-test"
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = "arn:aws:lambda:eu-central-1:123456789012:function:baton-test"
    aws_request_id: str = "c6af9ac6-7b61-11e6-9a41-93e8deadbeef"
    tenant_id: str | None = None

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms


def sqs_record(message: Received, queue: str) -> dict[str, Any]:
    attributes = {"ApproximateReceiveCount": str(message.receive_count), "SentTimestamp": "1767225600000"}
    if message.group:
        attributes["MessageGroupId"] = message.group
    if message.dedup_id is not None:
        attributes["MessageDeduplicationId"] = message.dedup_id
    return {
        "messageId": message.message_id,
        "receiptHandle": message.receipt,
        "body": message.body,
        "attributes": attributes,
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": ARN + queue,
        "awsRegion": "eu-central-1",
    }


def a_message(body: str, *, number: int = 1, group: str = "g", receive_count: int = 1) -> Received:
    return Received(
        message_id=f"m{number}",
        body=body,
        receipt=f"r{number}",
        receive_count=receive_count,
        group=group,
        dedup_id=f"d{number}",
    )


@pytest.fixture(autouse=True)
def plain_logger() -> Iterator[None]:
    """An entry point gives the process's logger a JSON handler; other tests must not inherit it."""
    yield
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    for mark in ("init", "powertools_handler", "powertools_buffer_config", "powertools_buffer_cache"):
        logger.__dict__.pop(mark, None)
    logger.setLevel(logging.NOTSET)
