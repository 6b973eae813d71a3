"""Guards that every function can be deployed as it stands: it is imported with its real ports and given its event."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from shared.kernel.baton import read_baton
from shared.kernel.settings import Relay
from tests.support.lambda_calls import FakeContext

ROOT = Path(__file__).parents[2]
EVENTS = {path.stem: path for path in (ROOT / "events").glob("*.json")}
FUNCTIONS = sorted(path.parent.name for path in (ROOT / "functions").glob("*/app.py"))


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch, url_as: Callable[[str], str]) -> Iterator[Any]:
    for name, value in {
        "DATABASE_URL": url_as("baton_worker"),
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield boto3.client("sqs")


def test_every_function_has_an_event_and_every_event_a_function() -> None:
    assert sorted(EVENTS) == FUNCTIONS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_its_event(
    sqs: Any, name: str, database_url: str, url_as: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    event = json.loads(EVENTS[name].read_text())
    if name == "migrate":
        monkeypatch.setenv("DATABASE_URL", database_url)  # as the owner
    if name == "people":
        monkeypatch.setenv("DATABASE_URL", url_as("baton_people"))  # it alone may add people, and does nothing else
    for record in event.get("Records", ()):
        if "kind" not in json.loads(record["body"]):
            continue  # a wake names no lane, and nothing is sent on
        queue = Relay().queue_of(read_baton(record["body"]).kind)
        sqs.create_queue(QueueName=queue, Attributes={"FifoQueue": "true"})

    answer = _handler(name)(event, FakeContext())

    json.dumps(answer)
    assert answer.get("batchItemFailures", []) == []


def test_the_forwarder_puts_its_message_into_the_queue_of_its_kind(sqs: Any) -> None:
    event = json.loads(EVENTS["forward"].read_text())
    url = sqs.create_queue(QueueName="baton-query-run.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]

    _handler("forward")(event, FakeContext())

    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == event["Records"][0]["body"]


def test_the_forwarder_gives_back_what_its_queue_does_not_take(sqs: Any) -> None:
    event = json.loads(EVENTS["forward"].read_text())

    answer = _handler("forward")(event, FakeContext())

    assert answer == {"batchItemFailures": [{"itemIdentifier": event["Records"][0]["messageId"]}]}


def test_a_tick_says_what_it_did(sqs: Any) -> None:
    answer = _handler("tick")(json.loads(EVENTS["tick"].read_text()), FakeContext())

    assert answer == {"lanes": {}, "runs_moved": 0, "signals_heard": 0, "finished": True}


def _handler(name: str) -> Callable[[Any, Any], dict[str, Any]]:
    """As in a new process: a function builds its ports when it is imported."""
    sys.modules.pop(f"functions.{name}.app", None)
    handler: Callable[[Any, Any], dict[str, Any]] = importlib.import_module(f"functions.{name}.app").handler
    return handler
