"""Guards payload templates: whole values with their types, and nothing that could be evaluated, however it is asked."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from shared.job_queue.model import LARGEST_PAYLOAD
from shared.job_queue.triggers import template
from shared.job_queue.triggers.model import Cause
from shared.job_queue.triggers.template import DEEPEST_PATH, check_filter, check_template, fits, literals, render
from shared.kernel.errors import Refused

EVENT = {"provider_id": "p1", "folder": {"path": "/a", "size": 3, "tags": ["x", {"y": None}]}, "ok": True, "n": 1.5}


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("{{event.provider_id}}", "p1"),
        ("{{ event.folder.size }}", 3),
        ("{{event.ok}}", True),
        ("{{event.n}}", 1.5),
        ("{{event.folder}}", EVENT["folder"]),
        ("{{event.folder.tags.1.y}}", None),
        ("plain", "plain"),
        ("{event.ok}", "{event.ok}"),
    ],
)
def test_a_placeholder_is_what_it_names_with_its_type(place: str, expected: object) -> None:
    check_template({"a": place}, "event")
    assert render({"a": place}, Cause(event=EVENT)) == {"a": expected}


def test_what_an_event_lacks_is_left_out_and_a_list_cannot_have_holes() -> None:
    wanted = {"a": "{{event.nowhere.at.all}}", "b": {"c": "{{event.folder.9}}", "d": 1}}
    assert render(wanted, Cause(event=EVENT)) == {"b": {"d": 1}}
    with pytest.raises(Refused) as refused:
        render({"a": ["{{event.nowhere}}"]}, Cause(event=EVENT))
    assert refused.value.code == "missing_value"


@pytest.mark.parametrize(
    "attack",
    [
        "{{event.__class__.__mro__}}",
        "{{''.__class__.__mro__[1].__subclasses__()}}",
        "{{event.a}} and {{event.b}}",
        "{{event.a|upper}}",
        "{{event['a']}}",
        "{{event}}",
        "{{config}}",
        "{{schedule.fire_at}}",
        "{{'x' * 100000000}}",
        "{{event.a}}\n",
        "{{{{event.a}}}}",
        "{{event.a{{event.b}}}}",
        "{{event.é}}",
        "{{event." + ".".join("a" * (DEEPEST_PATH + 1)) + "}}",
        "{{event." + "a" * 65 + "}}",
        "{{" + "event." * 5_000 + "}}",
    ],
)
def test_whatever_else_stands_in_braces_is_refused_when_the_trigger_is_made(attack: str) -> None:
    with pytest.raises(Refused) as refused:
        check_template({"a": {"b": [attack]}}, "event")
    assert refused.value.code == "bad_template"
    assert len(refused.value.message) < 500


@pytest.mark.parametrize("path", ["__class__", "items", "keys.0", "get", "0", "a.__dict__"])
def test_a_path_sees_json_and_nothing_of_the_objects_that_hold_it(path: str) -> None:
    assert template.look_up({"a": {}}, path) is template.MISSING


def test_templates_and_what_comes_of_them_are_bounded() -> None:
    deep: dict[str, Any] = {}
    for _ in range(template.DEEPEST_TEMPLATE + 1):
        deep = {"a": deep}
    for bad in (deep, {"a": list(range(template.MOST_VALUES))}, {"a": "x" * template.LARGEST_TEMPLATE}):
        with pytest.raises(Refused):
            check_template(bad, "event")
    large = {"big": "x" * (LARGEST_PAYLOAD // 2)}
    rendered: list[int] = []
    counted = {f"a{n}": "{{event.big}}" for n in range(300)}
    check_template(counted, "event")
    with pytest.raises(Refused) as refused:
        render(_Counting(counted, rendered), Cause(event=large))
    assert refused.value.code == "payload_too_large"
    assert len(rendered) <= 3  # it stops when there is no more room: the work is bounded, not only its result


class _Counting(dict[str, Any]):
    def __init__(self, of: dict[str, Any], seen: list[int]) -> None:
        super().__init__(of)
        self.seen = seen

    def items(self) -> Any:
        for name, value in super().items():
            self.seen.append(1)
            yield name, value


def test_a_value_from_an_event_is_never_a_template_itself() -> None:
    assert render({"a": "{{event.a}}"}, Cause(event={"a": "{{event.b}}", "b": 1})) == {"a": "{{event.b}}"}


def test_a_schedule_has_its_due_time_and_its_trigger() -> None:
    wanted = {"at": "{{schedule.fire_at}}", "by": "{{schedule.trigger_id}}"}
    check_template(wanted, "schedule")
    cause = Cause(schedule={"fire_at": "2026-01-01T00:00:00+00:00", "trigger_id": "t"})
    assert render(wanted, cause) == {"at": "2026-01-01T00:00:00+00:00", "by": "t"}
    for bad in ("{{schedule.now}}", "{{event.a}}"):
        with pytest.raises(Refused):
            check_template({"a": bad}, "schedule")


def test_arguments_without_a_placeholder_are_known_beforehand() -> None:
    assert literals({"a": 1, "b": "{{event.a}}", "c": {"d": ["{{event.a}}"]}, "e": {"f": ["x"]}}) == {
        "a": 1,
        "e": {"f": ["x"]},
    }


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, True),
        ({"folder.path": "/a"}, True),
        ({"folder.path": "/b"}, False),
        ({"ok": True, "folder.size": 3.0}, True),
        ({"ok": 1}, False),
        ({"folder.size": "3"}, False),
        ({"folder.tags.1.y": None}, True),
        ({"nowhere": None}, False),
    ],
)
def test_a_filter_compares_values_as_they_are(wanted: dict[str, Any], expected: bool) -> None:
    check_filter(wanted)
    assert fits(wanted, EVENT) is expected


@pytest.mark.parametrize(
    "bad", [{"__class__": 1}, {"a b": 1}, {"": 1}, {"a": {}}, {"a": []}, {f"a{n}": 1 for n in range(11)}]
)
def test_a_filter_is_read_strictly(bad: dict[str, Any]) -> None:
    assert orjson.dumps(bad)
    with pytest.raises(Refused) as refused:
        check_filter(bad)
    assert refused.value.code == "bad_filter"
