"""The deployed functions by themselves: fired by their schedule, called with their event, replaced by new code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from infra.local.deploy import ROOT, STACK, TEMPLATE
from infra.local.invoke import InvokeError, invoke
from infra.local.runs import configuration_of, functions_of
from infra.sam.artifact import SOURCES
from tests.support.scene import Scene

pytestmark = pytest.mark.full

FUNCTIONS = sorted(path.parent.name for path in (ROOT / "functions").glob("*/app.py"))


def test_every_function_is_deployed_and_nothing_else(scene: Scene) -> None:
    assert functions_of(scene.address) == FUNCTIONS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_its_event_without_docker(scene: Scene, name: str) -> None:
    event = (ROOT / "events" / f"{name}.json").read_text()

    answer = json.loads(
        invoke(configuration_of(scene.address, name), scene.address.endpoint, scene.address.access_key, event)
    )

    assert answer.get("batchItemFailures", []) == []


def test_a_function_that_raises_is_an_error(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvokeError, match=f"{STACK}-forward failed"):
        invoke(
            configuration_of(scene.address, "forward"),
            scene.address.endpoint,
            scene.address.access_key,
            '{"no": "records"}',
        )

    assert "KeyError" in capfd.readouterr().err


def test_the_schedule_fires_the_tick(scene: Scene) -> None:
    """The deployed schedule does it within the minute; the same with another time does it within seconds."""
    scene.cloud.nivoda.misbehave("throttle", budget=1, retry_after="1000")
    run_id = scene.start(20)
    (lane,) = scene.wait(run_id, lambda now: now.lanes[0]["due_in_s"] > 900).lanes
    scene.pass_time(run_id, int(lane["due_in_s"]) + 1)
    scheduler = scene.address.client("scheduler")
    deployed = scheduler.get_schedule(Name=f"{STACK}-tick")
    assert (deployed["ScheduleExpression"], deployed["State"]) == ("rate(1 minute)", "ENABLED")

    now = scene.runs.sql("select now() at time zone 'utc' as now")[0]["now"]
    scheduler.create_schedule(
        Name="once",
        ScheduleExpression=f"at({now:%Y-%m-%dT%H:%M:%S})",
        ActionAfterCompletion="DELETE",
        **{name: deployed[name] for name in ("FlexibleTimeWindow", "Target")},
    )

    scene.completes(run_id)
    assert scene.repairs(run_id) == ["unsent"]


def test_new_code_is_deployed_and_the_same_code_is_not(scene: Scene, tmp_path: Path) -> None:
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / TEMPLATE.name, tmp_path)
    app = tmp_path / "functions" / "tick" / "app.py"
    app.write_text(app.read_text() + "\nhandler = lambda event, context: {'new': 'code'}\n")
    assert scene.tick().keys() == {"lanes", "runs_moved", "signals_heard", "finished"}
    assert not scene.cloud.deploy().changed

    changed = scene.cloud.deploy(root=tmp_path)

    assert changed.changed
    assert scene.tick() == {"new": "code"}
    assert scene.cloud.deploy().changed
    assert scene.tick().keys() == {"lanes", "runs_moved", "signals_heard", "finished"}
