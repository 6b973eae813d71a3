"""Guards that sam accepts the templates with every lint rule, and that they keep the rules written for cfn-guard."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shared.kernel.live import live_url
from shared.kernel.settings import Relay
from tests.support.template import ROOT, Node, Values, functions, load, stages

TEMPLATES = ["template.yaml", "infra/sam/database.yaml"]
GUARD = """
import json, sys, cfn_guard_rs
given = json.load(sys.stdin)
reports = [cfn_guard_rs.run_checks(template, given["rules"]) for template in given["templates"]]
print(json.dumps([{"passed": each.compliant, "failed": [one.Rule.name for one in each.not_compliant]} for each in reports]))
"""
SAM_LOCAL = """
import json, sys
from samcli.lib.providers.sam_function_provider import SamFunctionProvider
from samcli.lib.providers.sam_stack_provider import SamLocalStackProvider
stacks, _ = SamLocalStackProvider.get_stacks("template.yaml", parameter_overrides=json.load(sys.stdin), language_extensions_enabled=True)
print(json.dumps({each.name: each.environment["Variables"] for each in SamFunctionProvider(stacks).get_all()}))
"""


def ask(python: Path, script: str, given: object) -> Any:
    told = subprocess.run(
        [python, "-c", script], input=json.dumps(given), cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(told.stdout)


@pytest.mark.full
@pytest.mark.parametrize("template", TEMPLATES)
def test_sam_finds_nothing_to_complain_about(sam: Path, template: str) -> None:
    environment = {**os.environ, "SAM_CLI_TELEMETRY": "0"}
    told = subprocess.run(
        [sam / "sam", "validate", "--lint", "--region", "eu-central-1", "-t", template],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert told.returncode == 0, told.stdout + told.stderr


def test_the_templates_keep_the_rules_for_every_template_and_each_rule_can_fail(sam: Path) -> None:
    whole = [load(ROOT / template) for template in TEMPLATES]
    broken = [load(ROOT / template) for _, template, _ in BROKEN]
    for template, (_, _, breaks) in zip(broken, BROKEN, strict=True):
        breaks(template)
    rules = (ROOT / "infra" / "sam" / "rules.guard").read_text()

    reports = ask(sam / "python", GUARD, {"templates": whole + broken, "rules": rules})

    assert [report["failed"] for report in reports] == [[], []] + [[rule] for rule, *_ in BROKEN]
    assert set(re.findall(r"^rule (\w+)", rules, re.MULTILINE)) == {rule for rule, *_ in BROKEN}
    assert {*reports[0]["passed"], *reports[1]["passed"]} == {rule for rule, *_ in BROKEN}


def properties(template: Node, name: str) -> Node:
    found: Node = template["Resources"][name]["Properties"]
    return found


WORLD = [{"CidrIp": "0.0.0.0/0", "IpProtocol": "-1"}]
AURORA = "infra/sam/database.yaml"
BROKEN: list[tuple[str, str, Callable[[Node], object]]] = [
    ("queues_are_encrypted", "template.yaml", lambda t: properties(t, "DelayQueue").update(SqsManagedSseEnabled=False)),
    ("buckets_are_closed", "template.yaml", lambda t: properties(t, "Bucket")["PublicAccessBlockConfiguration"].update(BlockPublicAcls=False)),
    ("logs_leave", "template.yaml", lambda t: properties(t, "TickLogs").pop("RetentionInDays")),
    ("clusters_are_safe", AURORA, lambda t: properties(t, "Cluster").update(StorageEncrypted=False)),
    ("instances_are_private", AURORA, lambda t: properties(t, "Writer").update(PubliclyAccessible=True)),
    ("databases_log_nobodys_rows", AURORA, lambda t: properties(t, "Settings")["Parameters"].update(log_parameter_max_length_on_error="-1")),
    ("no_door_is_open_to_the_world", AURORA, lambda t: properties(t, "DatabaseGroup").update(SecurityGroupIngress=WORLD)),
]  # fmt: skip


@pytest.mark.full
def test_sam_local_sees_the_variables_that_its_env_file_overrides(sam: Path) -> None:
    """`sam local invoke` passes on only what the template declares; the rest of an env file is dropped in silence."""
    given = dict(pair.split("=", 1) for pair in local_invoke()["parameter_overrides"])
    declared = ask(sam / "python", SAM_LOCAL, given)
    file: dict[str, dict[str, str]] = json.loads((ROOT / local_invoke()["env_vars"]).read_text())
    everywhere = file.pop("Parameters")

    assert set(declared) == set(functions(load(ROOT / "template.yaml")))
    assert set(file) <= set(declared)
    for name, variables in declared.items():
        told = {**everywhere, **file.get(name, {})}
        assert set(told) <= set(variables)
        # What sam cannot work out (an !If) it leaves empty, so nothing may stay that a function needs.
        environment = {key: value if isinstance(value, str) else "" for key, value in variables.items()} | told
        Relay.from_env(environment)
        live_url(environment)
        assert environment["AWS_ENDPOINT_URL"] == "http://localstack:4566"


SAM_IMAGES = """
import json, sys
from samcli.lib.providers.sam_function_provider import SamFunctionProvider
from samcli.lib.providers.sam_stack_provider import SamLocalStackProvider
from samcli.local.docker.lambda_image import LambdaImage, Runtime
stacks, _ = SamLocalStackProvider.get_stacks("template.yaml", parameter_overrides=json.load(sys.stdin), language_extensions_enabled=True)
print(json.dumps({each.name: [Runtime.get_image_name_tag(each.runtime, each.architectures[0] if isinstance(each.architectures[0], str) else "arm64"), each.handler]
                  for each in SamFunctionProvider(stacks).get_all()}))
"""


@pytest.mark.full
def test_no_function_lacks_an_event_and_a_command_to_invoke_it_in_a_container(sam: Path) -> None:
    """What Docker would be told: which image of Lambda, which handler, which event. That it starts, only Docker can show."""
    guide = (ROOT / "docs" / "deploy.md").read_text().partition("## `sam local invoke`")[2].partition("\n## ")[0]
    told = ask(sam / "python", SAM_IMAGES, {"Stage": "local"})

    for name, settings in functions(load(ROOT / "template.yaml")).items():
        folder = settings["Handler"].split(".")[1]
        assert re.search(rf"^\$SAM {name} +-e events/{folder}\.json", guide, re.MULTILINE), f"{name} has no command"
        assert json.loads((ROOT / "events" / f"{folder}.json").read_text())
        assert told[name] == ["python:3.13-arm64", settings["Handler"]]
        assert (ROOT / "functions" / folder / "app.py").exists()


def test_no_function_logs_in_as_another_ones_role() -> None:
    file = json.loads((ROOT / local_invoke()["env_vars"]).read_text())
    roles = {name: sa.make_url(each["DATABASE_URL"]).username for name, each in file.items() if "DATABASE_URL" in each}

    assert roles == {
        "Parameters": "baton_worker",
        "ApiFunction": "baton_api",
        "PeopleFunction": "baton_people",
        "MigrateFunction": "postgres",
    }


def test_the_containers_are_those_that_the_env_file_names() -> None:
    compose = load(ROOT / "infra" / "local" / "compose.yaml")
    urls = json.dumps(json.loads((ROOT / local_invoke()["env_vars"]).read_text()))

    assert set(compose["services"]) == {"localstack", "postgres"}
    assert urls.count("@postgres:5432/baton?") == urls.count("DATABASE_URL")
    assert compose["networks"] == {"baton-local": {"name": local_invoke()["docker_network"]}}
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_localstack_gets_the_queues_of_the_template() -> None:
    template = load(ROOT / "template.yaml")
    values = Values(template, stages()["local"])
    script = (ROOT / "infra" / "local" / "localstack" / "queues.sh").read_text()

    wanted = {
        values.of(each["Properties"]["QueueName"])
        for each in template["Resources"].values()
        if each["Type"] == "AWS::SQS::Queue"
    }
    assert {word for word in script.split() if word.startswith("baton-local-")} == wanted


def local_invoke() -> dict[str, Any]:
    config = tomllib.loads((ROOT / "samconfig.toml").read_text())
    found: dict[str, Any] = config["local"]["local_invoke"]["parameters"]
    return found
