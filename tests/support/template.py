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


class _Loader(yaml.CSafeLoader):  # type: ignore[misc]
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
    """The template with its loops written out, as CloudFormation's AWS::LanguageExtensions does it."""
    loaded: Node = yaml.load(path.read_text(), Loader=_Loader)
    if "Resources" in loaded:
        loaded["Resources"] = _unrolled(loaded["Resources"], loaded.get("Mappings", {}))
    return loaded


def _unrolled(resources: Node, mappings: Node) -> Node:
    written: Node = {}
    for name, resource in resources.items():
        if not name.startswith("Fn::ForEach::"):
            written[name] = resource
            continue
        variable, values, body = resource
        for value in values:
            written |= {
                _named(key, variable, value): _with(each, variable, value, mappings) for key, each in body.items()
            }
    return written


def _named(text: str, variable: str, value: str) -> str:
    return text.replace(f"${{{variable}}}", value)


def _with(node: Any, variable: str, value: str, mappings: Node) -> Any:
    """A part of a loop's body for one of its values; what is then known is worked out."""
    match node:
        case {"Ref": name} if name == variable:
            return value
        case {"Fn::FindInMap": list(arguments)}:
            name, first, second, *rest = (_with(each, variable, value, mappings) for each in arguments)
            if isinstance(first, str) and isinstance(second, str):
                found = mappings[name][first]
                return found[second] if not rest or second in found else rest[0]["DefaultValue"]
            return {"Fn::FindInMap": [name, first, second, *rest]}
        case {"Fn::Sub": str(text)}:
            text = _named(text, variable, value)
            return {"Fn::Sub": text} if "${" in text else text
        case {"Fn::Sub": [str(text), dict(given)]}:
            text = _named(text, variable, value)
            for name, each in given.items():
                text = _named(text, name, str(_with(each, variable, value, mappings)))
            return {"Fn::Sub": text}
        case dict():
            return {key: _with(each, variable, value, mappings) for key, each in node.items()}
        case list():
            return [_with(each, variable, value, mappings) for each in node]
        case _:
            return node


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
            case {"Fn::FindInMap": [name, first, second]}:
                return self._template["Mappings"][self.of(name)][str(self.of(first))][self.of(second)]
            case {"Fn::Split": [separator, text]}:
                return str(self.of(text)).split(separator)
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
            case {"Fn::And": list(many)}:
                return all(self.holds(each) for each in many)
            case {"Fn::Equals": [left, right]}:
                return str(self.of(left)) == str(self.of(right))
            case _:
                raise NotImplementedError(str(condition))

    def broken_rules(self) -> list[str]:
        """What the template's own Rules say to these parameters."""
        return [
            assertion["AssertDescription"]
            for rule in self._template["Rules"].values()
            if "RuleCondition" not in rule or self.holds(rule["RuleCondition"])
            for assertion in rule["Assertions"]
            if not self.holds(assertion["Assert"])
        ]

    def number(self, node: Any) -> int:
        return int(self.of(node))


def _variables(function: Node) -> Node:
    found: Node = function.get("Environment", {}).get("Variables", {})
    return found
