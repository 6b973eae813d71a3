"""Guards that alarms and the dashboard ask for metrics that somebody counts, by the dimensions they are counted with: CloudWatch
shows an empty graph for any others, and an alarm on nothing never rings."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.template import ROOT, load, of_type

TEMPLATE = load(ROOT / "template.yaml")
OURS = {"Fn::Sub": "Baton/${Stage}"}
Counted = tuple[str, frozenset[str]]


@cache
def counted() -> set[Counted]:
    """Every metric that the code counts, with the names of its dimensions."""
    trees = [
        ast.parse(path.read_text()) for folder in ("shared", "functions") for path in Path(ROOT / folder).rglob("*.py")
    ]
    names = {
        f"{made.name}.{line.targets[0].id}": str(line.value.value)
        for tree in trees for made in ast.walk(tree) if isinstance(made, ast.ClassDef)
        for line in made.body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) and isinstance(line.value, ast.Constant)
    }  # fmt: skip
    return {
        (name, frozenset(str(each.arg) for each in call.keywords))
        for tree in trees for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ("count", "_count") and call.args
        if (name := names.get(ast.unparse(call.args[0]))) is not None
    }  # fmt: skip


@pytest.mark.full
def test_no_alarm_waits_for_a_metric_that_nobody_counts() -> None:
    alarms = {
        name: alarm for name, alarm in of_type(TEMPLATE, "AWS::CloudWatch::Alarm").items() if alarm["Namespace"] == OURS
    }
    asked = {
        name: (alarm["MetricName"], frozenset(each["Name"] for each in alarm.get("Dimensions", [])))
        for name, alarm in alarms.items()
    }

    assert len(asked) >= 8
    assert {name: wanted for name, wanted in asked.items() if wanted not in counted()} == {}


def test_no_graph_of_the_dashboard_stays_empty() -> None:
    body = of_type(TEMPLATE, "AWS::CloudWatch::Dashboard")["Dashboard"]["DashboardBody"]["Fn::Sub"]
    searched = re.findall(r"SEARCH\('\{\\\"Baton/\$\{Stage\}\\\",([\w,]+)\} MetricName=\\\"(\w+)\\\"", body)
    asked = {(name, frozenset(dimensions.split(","))) for dimensions, name in searched}
    asked |= {(name, frozenset()) for name in re.findall(r'\["Baton/\$\{Stage\}", "(\w+)"\]', body)}

    assert len(asked) >= 15
    assert asked - counted() == set()
    assert "{Baton/" not in body, "a stage may have a hyphen, and such a name must stand in quotes"
