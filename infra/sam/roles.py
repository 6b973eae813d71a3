"""`python -m infra.sam.roles > docs/roles.md`: what every function's role allows, as template.yaml has it. Tests compare the two."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from infra.sam.artifact import ROOT

Node = dict[str, Any]

HEAD = """# What every role allows

Written from `template.yaml` by `python -m infra.sam.roles > docs/roles.md`. Why each needs it: [who may do what](deploy.md#who-may-do-what).
`(if …)` names the condition of the template under which it is there at all; a name without an ARN is a resource or a parameter of
the template. Nothing else is allowed to any function, and no managed policy of AWS is attached.
"""


def page(template: Node) -> str:
    resources = template["Resources"]
    roles = {name: each for name, each in _of(resources, "AWS::Serverless::Function") if "Role" in each["Properties"]}
    lines = [HEAD, "## Functions", ""]
    for name, function in sorted(roles.items()):
        role = resources[function["Properties"]["Role"]["Fn::GetAtt"][0]]["Properties"]
        folder = function["Properties"]["Handler"].split(".")[1]
        lines += [f"### `{folder}`", ""]
        lines += [f"- {each}" for each in _attached(role.get("ManagedPolicyArns", []))]
        lines += [f"- {each}" for policy in role["Policies"] for each in _statements(policy["PolicyDocument"])]
        lines.append("")
        assert name.endswith("Function")
    lines += ["## Policies that several functions share", ""]
    for name, policy in sorted(_of(resources, "AWS::IAM::ManagedPolicy")):
        when = f" (if {policy['Condition']})" if "Condition" in policy else ""
        lines += [f"### {name}{when}", "", policy["Properties"]["Description"], ""]
        lines += [f"- {each}" for each in _statements(policy["Properties"]["PolicyDocument"])]
        lines.append("")
    lines += ["## Others", ""]
    used = {function["Properties"]["Role"]["Fn::GetAtt"][0] for function in roles.values()}
    for name, role in sorted(_of(resources, "AWS::IAM::Role")):
        if name not in used:
            lines += [f"### {name}", ""]
            lines += [
                f"- {each}" for one in role["Properties"]["Policies"] for each in _statements(one["PolicyDocument"])
            ]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _of(resources: Node, kind: str) -> list[tuple[str, Node]]:
    return [(name, each) for name, each in resources.items() if isinstance(each, dict) and each["Type"] == kind]


def _attached(arns: list[Any]) -> Iterator[str]:
    for each in arns:
        match each:
            case {"Fn::If": [condition, {"Ref": name}, _]}:
                yield f"[{name}](#{_anchor(name, condition)}) (if {condition})"
            case {"Ref": name}:
                yield f"[{name}](#{name.lower()})"
            case _:
                yield f"`{each}`"


def _anchor(name: str, condition: str) -> str:
    """Of a policy's heading: most are there under the very condition under which they are attached."""
    return f"{name}-if-{condition}".lower()


def _statements(document: Node) -> Iterator[str]:
    for each in document["Statement"]:
        match each:
            case {"Fn::If": [condition, dict(statement), _]} if "Effect" in statement:
                yield f"{_said(statement)} (if {condition})"
            case _:
                yield _said(each)


def _said(statement: Node) -> str:
    actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
    given = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
    allowed = "" if statement["Effect"] == "Allow" else "**denied**: "
    only = f", only where {_plain(statement['Condition'])}" if "Condition" in statement else ""
    return f"{allowed}{', '.join(f'`{each}`' for each in actions)} on {', '.join(map(_resource, given))}{only}"


def _resource(node: Any) -> str:
    match node:
        case {"Fn::If": [condition, one, _]}:
            return f"{_resource(one)} (if {condition})"
        case {"Fn::GetAtt": [name, "Arn"]} | {"Ref": name}:
            return f"`{name}`"
        case {"Fn::Sub": str(text)}:
            text = re.sub(r"^arn:\$\{AWS::Partition\}:([\w-]+):\$\{AWS::Region\}:\$\{AWS::AccountId\}:", r"\1:", text)
            return f"`{text}`"
        case _:
            return f"`{node}`"


def _plain(condition: Node) -> str:
    said = []
    for how, pairs in condition.items():
        for key, value in pairs.items():
            shown = value.get("Fn::Sub", value) if isinstance(value, dict) else value
            said.append(f"`{key}` {how} `{shown}`")
    return " and ".join(said)


def parse(text: str) -> Node:
    from samtranslator.yaml_helper import yaml_parse  # noqa: PLC0415 - slow

    found: Node = yaml_parse(text)
    return found


if __name__ == "__main__":
    sys.stdout.write(page(parse((ROOT / "template.yaml").read_text())))
