"""Guards that a canary moves every caller: nobody goes on calling the old code, or the new one, past the alias."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

from infra.sam.canary import ALARMS, ALIAS, BY_NAME, WAYS, Refused, stamp, with_canary
from tests.support.template import ROOT, Node, functions, load

WAY = "Canary10Percent10Minutes"
TEMPLATE = load(ROOT / "template.yaml")


class NoPolicies:
    def load(self) -> dict[str, str]:
        return {}


@pytest.fixture(scope="module")
def deployed() -> Iterator[Node]:
    """As CloudFormation gets it from the transform of SAM."""
    template = with_canary(copy.deepcopy(TEMPLATE), WAY)
    template["Transform"] = "AWS::Serverless-2016-10-31"
    for each in functions(template):
        template["Resources"][each]["Properties"]["CodeUri"] = "s3://x/y.zip"
    template["Globals"]["Function"].pop("CodeUri", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_DEFAULT_REGION", "eu-central-1")  # it asks boto3, for the partition
        yield transform(json.loads(json.dumps(template)), {}, NoPolicies())


def of(deployed: Node, kind: str) -> dict[str, Any]:
    return {name: each for name, each in deployed["Resources"].items() if each["Type"] == kind}


def test_no_queue_schedule_rule_or_gateway_calls_a_function_past_its_alias(deployed: Node) -> None:
    callers = {
        **{name: each["Properties"]["FunctionName"] for name, each in of(deployed, "AWS::Lambda::EventSourceMapping").items()},
        **{name: each["Properties"]["Target"]["Arn"] for name, each in of(deployed, "AWS::Scheduler::Schedule").items()},
        **{name: each["Properties"]["Targets"][0]["Arn"] for name, each in of(deployed, "AWS::Events::Rule").items()},
        **{name: each["Properties"]["FunctionName"] for name, each in of(deployed, "AWS::Lambda::Permission").items()},
        "gateway": deployed["Resources"]["HttpApiIntegration"]["Properties"]["IntegrationUri"],
    }  # fmt: skip

    assert len(callers) > 15
    assert {name: ref for name, ref in callers.items() if not str(ref.get("Ref", "")).endswith(f"Alias{ALIAS}")} == {}
    role = deployed["Resources"]["SchedulerRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"][0]
    assert role["Resource"] == [{"Ref": f"TickFunctionAlias{ALIAS}"}, {"Ref": f"SweepFunctionAlias{ALIAS}"}]


def test_no_version_stays_when_an_alarm_rings(deployed: Node) -> None:
    aliases, groups = of(deployed, "AWS::Lambda::Alias"), of(deployed, "AWS::CodeDeploy::DeploymentGroup")

    assert len(aliases) == len(groups) == len(functions(TEMPLATE)) - len(BY_NAME)
    assert all("CodeDeployLambdaAliasUpdate" in each["UpdatePolicy"] for each in aliases.values())
    for name, group in groups.items():
        alarms = {alarm["Name"]["Ref"] for alarm in group["Properties"]["AlarmConfiguration"]["Alarms"]}
        assert alarms >= set(ALARMS), name
        assert alarms <= set(deployed["Resources"])
        assert "DEPLOYMENT_STOP_ON_ALARM" in group["Properties"]["AutoRollbackConfiguration"]["Events"]


def test_without_a_canary_there_are_no_aliases() -> None:
    assert "AutoPublishAlias" not in json.dumps(TEMPLATE, default=str)


def test_a_built_template_is_changed_in_place(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text((ROOT / "template.yaml").read_text())

    stamp(WAY, tmp_path)

    written = yaml_parse((tmp_path / "template.yaml").read_text())
    assert written["Resources"]["TickFunction"]["Properties"]["AutoPublishAlias"] == ALIAS
    assert written["Resources"]["TickFunction"]["Properties"]["AutoPublishAliasAllProperties"] is True
    assert written["Resources"]["TickSchedule"]["Properties"]["Target"]["Arn"] == {"Ref": "TickFunction.Alias"}


def test_a_way_that_codedeploy_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="Available: Canary10Percent5Minutes"):
        with_canary(TEMPLATE, "Canary50")
    assert WAY in WAYS


@pytest.mark.parametrize(("given", "steps"), [("", 0), (f"CANARY={WAY}", 1)])
def test_make_deploys_a_canary_only_if_it_is_asked_to(given: str, steps: int) -> None:
    told = subprocess.run(
        ["make", "-n", "deploy", *given.split()], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert told.stdout.count(f"infra.sam.canary {WAY}") == steps
