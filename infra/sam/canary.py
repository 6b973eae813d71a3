"""`make deploy CANARY=Canary10Percent10Minutes`: the new code gets a part of the work first, and goes back by itself if alarms ring.

Written into the template that `sam build` made: every function gets versions and the alias `live`, whoever calls it calls
the alias, and CodeDeploy moves the alias. Without it, functions change all at once, as in every emulator.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from infra.sam.architecture import BUILT

ALIAS = "live"
# As CodeDeploy names them.
WAYS = (
    "Canary10Percent5Minutes", "Canary10Percent10Minutes", "Canary10Percent15Minutes", "Canary10Percent30Minutes",
    "Linear10PercentEvery1Minute", "Linear10PercentEvery2Minutes", "Linear10PercentEvery3Minutes",
    "Linear10PercentEvery10Minutes",
)  # fmt: skip
# Called by name, by whoever deploys: what they call is what was deployed.
BY_NAME = frozenset({"MigrateFunction", "PeopleFunction"})
# What the new version could break; with the function's own alarm of errors.
ALARMS = ("Api5xxAlarm", "GivenBackAlarm", "RunsFailedAlarm", "TickMissingAlarm")

Node = dict[str, Any]


class Refused(Exception):
    """Nothing was changed; says why."""


def with_canary(template: Node, way: str) -> Node:
    """The same template, whose functions are replaced `way` by `way`."""
    if way not in WAYS:
        raise Refused(f"CANARY={way} is not known. Available: {', '.join(WAYS)}.")
    resources = template["Resources"]
    moved = {
        name
        for name, each in resources.items()
        if isinstance(each, dict) and each["Type"] == "AWS::Serverless::Function" and name not in BY_NAME
    }
    changed = {
        name: each if isinstance(each, dict) and each["Type"] == "AWS::Serverless::Function" else _by_alias(each, moved)
        for name, each in resources.items()
    }
    for name in moved:
        alarms = [*ALARMS, f"{name.removesuffix('Function')}ErrorsAlarm"]
        properties = {
            **resources[name]["Properties"],
            "AutoPublishAlias": ALIAS,
            "AutoPublishAliasAllProperties": True,  # a change of settings alone moves, too
            "DeploymentPreference": {"Type": way, "Alarms": [{"Ref": alarm} for alarm in alarms]},
        }
        changed[name] = {**resources[name], "Properties": properties}
    return {**template, "Resources": changed}


def _by_alias(node: Any, moved: set[str]) -> Any:
    match node:
        case {"Fn::GetAtt": [str(name), "Arn"]} | {"Ref": str(name)} if name in moved:
            return {"Ref": f"{name}.Alias"}
        case {"Fn::GetAtt": str(path)} if path.removesuffix(".Arn") in moved:
            return {"Ref": f"{path.removesuffix('.Arn')}.Alias"}
        case dict():
            return {key: _by_alias(each, moved) for key, each in node.items()}
        case list():
            return [_by_alias(each, moved) for each in node]
        case _:
            return node


def stamp(way: str, built: Path = BUILT) -> None:
    from samtranslator.yaml_helper import yaml_parse  # noqa: PLC0415 - slow, and mostly nobody asks

    template = built / "template.yaml"
    changed = with_canary(yaml_parse(template.read_text()), way)
    template.write_text(json.dumps(changed, indent=1, default=str) + "\n")  # JSON is YAML


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", nargs="?", default="")
    given = parser.parse_args(argv)
    try:
        if given.way:
            stamp(given.way)
    except Refused as error:
        print(f"baton: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
