"""The relay's promise kept by the deployed template: real queues, real functions, killed and robbed on the way."""

from __future__ import annotations

import json

import pytest

from infra.local.deploy import STACK
from infra.local.runs import Progress, environment_of
from shared.kernel.baton import Baton
from shared.kernel.model import Json
from shared.kernel.queue import Outgoing
from tests.support.scene import Scene

pytestmark = pytest.mark.full


def test_more_than_sixteen_hops_in_one_lane(scene: Scene) -> None:
    """Lambda would stop such a chain after sixteen hops, had its function not said that it means it."""
    run_id = scene.start(402, page_size=4)

    now = scene.completes(run_id)

    assert max(lane["steps"] for lane in now.lanes) > 16
    assert scene.repairs(run_id) == []


def test_a_delay_of_two_seconds_goes_through_the_delay_queue(scene: Scene) -> None:
    scene.cloud.nivoda.misbehave("throttle", budget=1, retry_after="2")
    forwarded = invocations(scene, "forward")
    run_id = scene.start(20)

    scene.completes(run_id)

    assert invocations(scene, "forward") > forwarded
    assert scene.repairs(run_id) == []
    assert scene.runs.figures(run_id)["seconds"] >= 2


def test_a_delay_of_over_fifteen_minutes_is_promoted_by_the_tick(scene: Scene) -> None:
    scene.cloud.nivoda.misbehave("throttle", budget=1, retry_after="1000")
    run_id = scene.start(20)
    (lane,) = scene.wait(run_id, lambda now: now.lanes[0]["last_error"]).lanes
    assert lane["due_in_s"] > 900
    assert scene.lanes(run_id)[0]["sent_at"] is None, "no queue can keep it for so long"

    scene.pass_time(run_id, int(lane["due_in_s"]) - 3)
    scene.tick()

    scene.completes(run_id)
    assert "promoted" not in scene.repairs(run_id), "a promotion is no repair"


def test_a_crash_is_delivered_again_and_the_run_completes(scene: Scene) -> None:
    scene.at_page(2, scene.kill_the_step)
    run_id = scene.start(120)

    scene.completes(run_id)

    assert len(scene.killed) == 1
    assert scene.repairs(run_id) == [], "the queue gave it back by itself"


def test_poison_shows_on_its_lane_and_a_retry_completes_the_run(scene: Scene) -> None:
    scene.at_every_page(scene.kill_the_step)
    run_id = scene.start(20)

    while len(scene.killed) < 5:
        before = len(scene.killed)
        scene.wait(run_id, lambda _: len(scene.killed) > before)  # noqa: B023 - called at once
        scene.pass_time(run_id, 100)  # the lease of the dead process runs out
        scene.tick()
    scene.wait(run_id)

    (part,) = [lane for lane in scene.lanes(run_id) if lane["key"].startswith("part:")]
    assert (part["status"], part["last_error"]["code"]) == ("failed", "poison")
    assert scene.runs.row(run_id)["status"] == "failed"
    scene.cloud.nivoda.before_each = None
    scene.runs.retry(run_id)
    assert scene.completes(run_id).run["epoch"] == 2


def test_every_queue_purged_in_the_middle_of_a_run_and_it_completes(scene: Scene) -> None:
    scene.at_page(3, scene.purge)
    run_id = scene.start(300, partition_records=40)
    scene.wait(run_id, lambda now: stands_still(scene, now))

    scene.pass_time(run_id, 200)
    scene.tick()

    scene.completes(run_id)
    assert scene.repairs(run_id)


def test_a_repair_within_five_minutes_is_delivered(scene: Scene) -> None:
    """The queue swallows a baton that it has seen, for five minutes, and answers that all is well: a repair has a new name."""
    scene.at_page(3, scene.purge)
    run_id = scene.start(300, partition_records=40)
    scene.wait(run_id, lambda now: stands_still(scene, now))
    lost = next(lane for lane in scene.lanes(run_id) if lane["status"] == "active")
    baton = Baton(
        kind="page_ingest", lane_id=lost["id"], epoch=lost["epoch"], seq=lost["seq"], resend_no=lost["resend_no"]
    )
    queue = scene.runs.ports.relay.queue_of("page_ingest")
    again = Outgoing(body=baton.to_json(), group=baton.group(), dedup_id=baton.dedup_id())
    assert scene.runs.ports.queue.send(queue, [again]) == [], "accepted"
    scene.wait(run_id, lambda now: stands_still(scene, now))
    (still,) = [lane for lane in scene.lanes(run_id) if lane["id"] == lost["id"]]
    assert (still["status"], still["seq"]) == ("active", lost["seq"]), "and swallowed"

    scene.pass_time(run_id, 200)
    scene.tick()

    scene.completes(run_id)
    assert "unclaimed" in scene.repairs(run_id)


def test_aws_killed_and_empty_again_and_the_run_completes(scene: Scene) -> None:
    run_id = scene.start(120, page_size=8)
    scene.wait(run_id, lambda now: now.rows >= 20)

    scene.cloud.ministack.crash()
    scene.cloud.ministack.launch()
    scene.deploy_again()

    assert not scene.runs.progress(run_id).ended
    scene.pass_time(run_id, 200)
    scene.tick()
    scene.completes(run_id)
    assert scene.repairs(run_id)


def test_a_dead_letter_is_noted_on_its_lane(scene: Scene) -> None:
    scene.cloud.nivoda.misbehave("throttle", budget=1, retry_after="1000")
    run_id = scene.start(20)
    scene.wait(run_id, lambda now: now.lanes[0]["due_in_s"] > 900)
    (lane,) = scene.lanes(run_id)
    baton = Baton(kind="page_ingest", lane_id=lane["id"], epoch=lane["epoch"], seq=lane["seq"], resend_no=0)
    dead = Outgoing(body=baton.to_json(), group="g", dedup_id=baton.dedup_id())

    scene.runs.ports.queue.send(f"{STACK}-page-ingest-dead.fifo", [dead])

    scene.wait(run_id, lambda now: (now.lanes[0]["last_error"] or {}).get("code") == "dead_letter")
    scene.runs.cancel(run_id)
    scene.wait(run_id)


def test_functions_enter_the_database_as_the_workers_role(scene: Scene) -> None:
    environment: Json = environment_of(scene.address, "page_ingest")

    assert "baton_worker:" in environment["DATABASE_URL"]
    assert "postgres@" not in json.dumps(environment)


def stands_still(scene: Scene, now: Progress) -> bool:
    """Nothing lies in a queue, nobody is at work and nothing is about to be sent, though the run has not ended."""
    queue = scene.runs.ports.relay.queue_of("page_ingest")
    if now.ended or len(now.lanes) <= 2 or any(lane["at_work"] for lane in now.lanes) or depth(scene, queue):
        return False
    open_lanes = [lane for lane in scene.lanes(now.run["id"]) if lane["status"] == "active"]
    return all(lane["sent_at"] for lane in open_lanes) and not depth(scene, queue)


def depth(scene: Scene, queue: str) -> int:
    sqs = scene.address.client("sqs")
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=sqs.get_queue_url(QueueName=queue)["QueueUrl"], AttributeNames=names)
    return sum(int(found["Attributes"][name]) for name in names)


def invocations(scene: Scene, function: str) -> int:
    logs = scene.address.client("logs")
    try:
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName=f"/aws/lambda/{STACK}-{function}")
        return sum(event["message"].startswith("START ") for page in pages for event in page["events"])
    except logs.exceptions.ResourceNotFoundException:
        return 0
