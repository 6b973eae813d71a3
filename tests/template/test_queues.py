"""Guards that the queues of the template take what the relay sends, and that no FIFO queue is ever asked for a delay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import boto3
import pytest
from moto import mock_aws

from shared.kernel.baton import Baton
from shared.kernel.deliver import deliver
from shared.kernel.model import Due
from shared.kernel.ports import Ports
from shared.kernel.queue_sqs import SqsQueue
from shared.kernel.settings import Relay
from tests.support.template import ROOT, Values, functions, load, of_type, stages
from tests.template.rules import KINDS

TEMPLATE = load(ROOT / "template.yaml")
LANE, TENANT = UUID(int=1), UUID(int=2)


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("sqs", region_name="eu-central-1")


@pytest.mark.parametrize("stage", sorted(stages()))
def test_every_kind_and_every_delay_finds_its_queue(sqs: Any, stage: str) -> None:
    values = Values(TEMPLATE, stages()[stage])
    for queue in of_type(TEMPLATE, "AWS::SQS::Queue").values():
        names = ("FifoQueue", "DeduplicationScope", "FifoThroughputLimit", "VisibilityTimeout", "DelaySeconds")
        attributes = {name: str(values.of(queue[name])) for name in names if name in queue}
        attributes |= {"FifoQueue": "true"} if queue.get("FifoQueue") else {}
        sqs.create_queue(QueueName=values.of(queue["QueueName"]), Attributes=attributes)
    sent: list[dict[str, Any]] = []
    sqs.meta.events.register("provide-client-params.sqs.SendMessageBatch", lambda params, **_: sent.append(params))
    variables = functions(TEMPLATE)["TickFunction"]["Environment"]["Variables"]
    relay = Relay.from_env({name: str(values.of(value)) for name, value in variables.items()})
    ports = Ports(store=None, queue=SqsQueue(sqs), relay=relay)  # type: ignore[arg-type] # only what fails is written

    batons = [Baton(v=1, kind=kind, lane_id=LANE, epoch=1, seq=0, resend_no=0) for kind in KINDS]
    deliver(ports, [Due(baton, TENANT, delay_s) for baton in batons for delay_s in (0, 0.5, 900)])

    entries = [(params["QueueUrl"], entry) for params in sent for entry in params["Entries"]]
    assert len(entries) == 3 * len(KINDS)
    assert {entry.get("DelaySeconds") for url, entry in entries if url.endswith(".fifo")} == {None}
    assert {entry.get("DelaySeconds") for url, entry in entries if not url.endswith(".fifo")} == {1, 900}
