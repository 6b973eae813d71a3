"""Reads CloudFormation templates as plain data: `!Ref X` is {"Ref": "X"}, and values can be worked out for a stage."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
NO_VALUE = object()
PSEUDO = {
    "AWS::AccountId": "123456789012",
    "AWS::Region": "eu-central-1",
    "AWS::Partition": "aws",
    "AWS::NoValue": NO_VALUE,
}

Node = dict[str, Any]


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML with CloudFormation's short forms."""


def _short_form(loader: _Loader, suffix: str, node: yaml.Node) -> Any:
    name = suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
        return {name: value.split(".", 1) if suffix == "GetAtt" else value}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)
    return {name: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _short_form)


def load(path: Path) -> Node:
    loaded: Node = yaml.load(path.read_text(), Loader=_Loader)
    return loaded


def of_type(template: Node, kind: str) -> dict[str, Node]:
    """The properties of every resource of a type, by logical id."""
    return {name: each.get("Properties", {}) for name, each in template["Resources"].items() if each["Type"] == kind}


def functions(template: Node) -> dict[str, Node]:
    """Functions as SAM sees them: the properties of each laid over the globals."""
    shared = template["Globals"]["Function"]
    return {
        name: {**shared, **own, "Environment": {"Variables": {**_variables(shared), **_variables(own)}}}
        for name, own in of_type(template, "AWS::Serverless::Function").items()
    }


def mappings(template: Node) -> Iterator[tuple[str, Node, str, Node]]:
    """Every queue that a function takes messages from: (function's id, event, queue's id, queue)."""
    queues = of_type(template, "AWS::SQS::Queue")
    for name, function in functions(template).items():
        for event in function.get("Events", {}).values():
            if event["Type"] == "SQS":
                queue = event["Properties"]["Queue"]["Fn::GetAtt"][0]
                yield name, event["Properties"], queue, queues[queue]


def stages() -> dict[str, dict[str, str]]:
    """What samconfig.toml hands over for each of its stages."""
    config = tomllib.loads((ROOT / "samconfig.toml").read_text())
    return {
        name: dict(pair.split("=", 1) for pair in table["deploy"]["parameters"]["parameter_overrides"])
        for name, table in config.items()
        if isinstance(table, dict)
    }


class Values:
    """What expressions of a template come to when it is deployed with some parameters."""

    def __init__(self, template: Node, given: Mapping[str, str]) -> None:
        self._template = template
        self.parameters: dict[str, Any] = {name: each.get("Default") for name, each in template["Parameters"].items()}
        self.parameters |= given

    def of(self, node: Any) -> Any:
        match node:
            case {"Ref": str(name)}:
                return PSEUDO[name] if name in PSEUDO else self.parameters.get(name, f"<{name}>")
            case {"Fn::Sub": str(text)}:
                return re.sub(r"\$\{([\w:.]+)\}", lambda found: str(self.of({"Ref": found[1]})), text)
            case {"Fn::If": [condition, yes, no]}:
                return self.of(yes if self.holds({"Condition": condition}) else no)
            case {"Fn::Join": [separator, parts]}:
                found = self.of(parts)
                return separator.join(found if isinstance(found, list) else [str(found)])
            case dict():
                return {name: self.of(value) for name, value in node.items()}
            case list():
                return [value for each in node if (value := self.of(each)) is not NO_VALUE]
            case _:
                return node

    def holds(self, condition: Any) -> bool:
        match condition:
            case {"Condition": str(name)}:
                return self.holds(self._template["Conditions"][name])
            case {"Fn::Not": [one]}:
                return not self.holds(one)
            case {"Fn::Or": list(many)}:
                return any(self.holds(each) for each in many)
            case {"Fn::Equals": [left, right]}:
                return str(self.of(left)) == str(self.of(right))
            case _:
                raise NotImplementedError(str(condition))

    def number(self, node: Any) -> int:
        return int(self.of(node))


def _variables(function: Node) -> Node:
    found: Node = function.get("Environment", {}).get("Variables", {})
    return found
