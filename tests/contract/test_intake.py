"""Guards that an event from outside becomes exactly one signal of its tenant, or is refused with a reason and no retry."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from shared.kernel import db
from shared.kernel.catalogue import Catalogue, Kind
from shared.kernel.intake import Unreadable, intake_handler, read_event
from shared.kernel.metrics import Metric
from shared.kernel.model import Finish
from shared.kernel.ports import Ports
from shared.kernel.queue_sqs import SqsQueue
from shared.kernel.store import PgStore
from tests.support.databases import as_user
from tests.support.lambda_calls import FakeContext

EVENT: dict[str, Any] = json.loads((Path(__file__).parents[2] / "events" / "intake.json").read_text())
BUCKET = "baton-dev-bucket"
TENANT = UUID("2f1d9c1e-6f0a-4f6e-9d0b-0c9f2e1a7b34")
SAID: dict[str, Any] = {
    "version": "0",
    "id": "0e8b9d6c-1111-4222-8333-944455556666",
    "detail-type": "Baton Signal",
    "source": "shop",
    "detail": {"tenant_id": str(TENANT), "name": "order.placed", "payload": {"order": 7}},
}


class Counted:
    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def count(self, metric: str, value: float = 1, /, **dimensions: str) -> None:
        if metric is Metric.EVENT:
            self.outcomes.append(dimensions["outcome"])


@pytest.fixture
def engine(module_database_url: str) -> sa.Engine:
    with db.connect_engine(module_database_url, pool="none").begin() as connection:
        connection.execute(sa.text("truncate signal"))
    return db.connect_engine(as_user(module_database_url, "baton_worker"), pool="none")


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def ports(engine: sa.Engine, counted: Counted) -> Ports:
    return Ports(store=PgStore(engine), queue=SqsQueue(None), meter=counted)


def signals(engine: sa.Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(sa.text("select tenant_id, name, payload from signal order by id")))


def changed(event: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    other = copy.deepcopy(event)
    *way, last = path.split("/")
    place = other
    for name in way:
        place = place[name]
    place[last] = value
    return other


@pytest.mark.full
def test_an_upload_is_one_signal_however_often_it_is_told(ports: Ports, engine: sa.Engine, counted: Counted) -> None:
    handler = intake_handler(ports, BUCKET, Catalogue())
    again = changed(EVENT, "id", "another-delivery-of-the-same-object")

    answers = [handler(event, FakeContext())["outcome"] for event in (EVENT, EVENT, again)]

    assert answers == counted.outcomes == ["taken", "again", "again"]
    (signal,) = signals(engine)
    assert (signal.tenant_id, signal.name) == (TENANT, "object.created")
    assert signal.payload["key"] == f"uploads/{TENANT}/customers.csv"


def test_the_next_version_of_an_object_is_another_signal(ports: Ports, engine: sa.Engine) -> None:
    handler = intake_handler(ports, BUCKET, Catalogue())

    handler(EVENT, FakeContext())
    handler(changed(EVENT, "detail/object/version-id", "next"), FakeContext())

    assert len(signals(engine)) == 2


def test_what_was_put_on_the_bus_is_one_signal(ports: Ports, engine: sa.Engine) -> None:
    handler = intake_handler(ports, BUCKET, Catalogue())

    answers = [handler(SAID, FakeContext())["outcome"] for _ in range(2)]

    assert answers == ["taken", "again"]
    assert signals(engine) == [(TENANT, "order.placed", {"order": 7})]


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"source": "aws.s3"},
        {"source": ["aws.s3"]},
        changed(EVENT, "detail-type", "Object Deleted"),
        changed(EVENT, "detail/bucket/name", "somebody-elses"),
        changed(EVENT, "detail/object/key", "exports/x/y.csv"),
        changed(EVENT, "detail/object/key", "uploads/not-an-id/y.csv"),
        changed(EVENT, "detail/object/key", f"uploads/{TENANT}"),
        changed(EVENT, "detail/object/key", f"uploads/{TENANT}/"),
        changed(EVENT, "detail/object/size", -1),
        changed(EVENT, "detail/object/size", 2**64),
        changed(EVENT, "detail/object/key", f"uploads/{TENANT}/a\x00b"),
        changed(EVENT, "detail/object/key", f"uploads/{TENANT}/\ud800"),
        changed(EVENT, "detail/object/etag", "\x00"),
        changed(EVENT, "detail/object/version-id", "\ud800"),
        changed(SAID, "id", "\ud800"),
        changed(SAID, "source", "\ud800"),
        changed(SAID, "detail-type", "Order"),
        changed(SAID, "detail/tenant_id", "everybody"),
        changed(SAID, "detail/name", "Order Placed"),
        changed(SAID, "detail/name", "run.succeeded"),
        changed(SAID, "detail/name", "object.created"),
        changed(SAID, "detail/payload", "text"),
        changed(SAID, "detail/payload", {"long": "x" * 70_000}),
        changed(SAID, "detail/more", 1),
    ],
)
def test_what_is_no_event_of_ours_is_refused_once_and_for_all(
    ports: Ports, engine: sa.Engine, counted: Counted, event: dict[str, Any]
) -> None:
    answer = intake_handler(ports, BUCKET, Catalogue())(event, FakeContext())

    assert answer["outcome"] == "refused"
    assert counted.outcomes == ["refused"]
    assert signals(engine) == []


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"deeper": value}
    return value


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"a": {"b": "x\x00y"}}, "a.b: a NUL character"),
        ({"\x00": 1}, "a key with a NUL character"),
        ({"a": ["fine", "\ud800"]}, "a[1]: half of a surrogate pair"),
        ({"a": 2**64}, "a: a number beyond 64 bits"),
        ({"a": -(2**63) - 1}, "a: a number beyond 64 bits"),
        ({"a": float("inf")}, "a: not a finite number"),
        (deep(300), "nested more than"),
        (deep(100_000), "nested more than"),
    ],
    ids=["nul", "nul in a key", "surrogate", "huge", "hugely negative", "infinite", "deep", "very deep"],
)
def test_a_payload_that_postgres_cannot_keep_is_refused_by_its_place(
    ports: Ports, engine: sa.Engine, payload: dict[str, Any], named: str
) -> None:
    answer = intake_handler(ports, BUCKET, Catalogue())(changed(SAID, "detail/payload", payload), FakeContext())

    assert answer["outcome"] == "refused"
    assert named in answer["reason"]
    assert signals(engine) == []


def test_a_payload_at_the_limits_is_kept_as_it_came(ports: Ports, engine: sa.Engine) -> None:
    payload = {"largest": 2**64 - 1, "smallest": -(2**63), "text": "\\u0000 \U0001f600", "none": None, "deep": deep(30)}

    intake_handler(ports, BUCKET, Catalogue())(changed(SAID, "detail/payload", payload), FakeContext())

    ((_, _, kept),) = signals(engine)
    assert kept == payload


@pytest.mark.parametrize("name", ["run.succeeded", "object.created", "queries.ready", "query_run.ready", "query_run.x"])
def test_nobody_outside_says_what_only_baton_says(ports: Ports, engine: sa.Engine, name: str) -> None:
    kinds = Catalogue(Kind(name="queries", take_step=lambda *_: Finish(), says=["query_run."]))

    answer = intake_handler(ports, BUCKET, kinds)(changed(SAID, "detail/name", name), FakeContext())

    assert answer["outcome"] == "refused"
    assert "query_run." in answer["reason"], "it says which names are taken"
    assert signals(engine) == []


def test_a_refusal_does_not_repeat_what_the_event_carried() -> None:
    with pytest.raises(Unreadable) as caught:
        read_event(changed(SAID, "detail/tenant_id", "canary-in-the-mine"), BUCKET)

    assert "detail.tenant_id" in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_database_that_is_away_makes_the_event_come_again(ports: Ports, counted: Counted) -> None:
    away = PgStore(db.connect_engine("postgresql://baton_worker@127.0.0.1:1/x", pool="none"))

    with pytest.raises(Exception, match=r"(?i)connection"):
        intake_handler(Ports(store=away, queue=ports.queue, meter=counted), BUCKET, Catalogue())(EVENT, FakeContext())

    assert counted.outcomes == []
