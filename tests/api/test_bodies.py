"""Guards what requests and answers are made of: one style of names, and nothing that is accepted and then ignored."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from functions.routes import ROUTERS
from shared.kernel.api.frame import API, make_app
from shared.kernel.auth import Role
from shared.kernel.clock import new_id
from tests.support.door import ANONYMOUS, Door, TenantHouse

SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@pytest.fixture(scope="module")
def document(door: Door) -> Any:
    return door.ask(door.event(ANONYMOUS, "GET", "/openapi.json")).json()


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            yield method.upper(), path.removeprefix(API), told


def test_every_field_and_parameter_is_written_in_one_style(document: Any) -> None:
    schemas = document["components"]["schemas"]
    names = {(title, name) for title, schema in schemas.items() for name in schema.get("properties", ())}
    for _, path, told in operations(document):
        names |= {(path, each["name"]) for each in told.get("parameters", ()) if each["in"] != "header"}

    assert len(names) > 500
    assert {each for each in names if not SNAKE.fullmatch(each[1])} == set()


def test_no_body_takes_a_field_that_nobody_knows(document: Any) -> None:
    schemas, todo, open_ones = document["components"]["schemas"], [], []
    for _, _, told in operations(document):
        todo += [each["schema"] for each in told.get("requestBody", {}).get("content", {}).values()]
    seen: set[str] = set()
    while todo:
        schema = todo.pop()
        if isinstance(schema, list):
            todo += schema
        elif isinstance(schema, dict):
            todo += [inner for inner in schema.values() if isinstance(inner, dict | list)]
            name = schema.get("$ref", "").rpartition("/")[2]
            if name and name not in seen:
                seen.add(name)
                todo.append(schemas[name])
                if "properties" in schemas[name] and schemas[name].get("additionalProperties") is not False:
                    open_ones.append(name)

    assert len(seen) > 40
    assert open_ones == []


def test_no_operation_takes_a_query_parameter_that_nobody_knows(door: Door, acme: TenantHouse, document: Any) -> None:
    boss, worker = door.super_admin.choosing(acme.id), acme.machines[Role.WORKER]
    passed = []
    for method, path, told in operations(document):
        who = worker if told["x-baton-roles"] == ["worker"] else boss
        answer = door.call(who, method, re.sub(r"{.*?}", str(new_id()), path), misspelt="1")
        if answer.status != 422 or "Unknown query parameter `misspelt`." not in answer.body:
            passed.append((method, path, answer.body))

    assert passed == []


def test_every_field_and_parameter_is_read_by_its_operation() -> None:
    """By its name, in what answers the request; a body that is handed on as a whole is read there."""
    app, unread = make_app(lambda: (None, None), "", ROUTERS), []
    routes = [route for route in (*app._static_routes, *app._dynamic_routes) if route.openapi_extensions]
    for route in routes:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(route.func))).body
        assert isinstance(function, ast.FunctionDef)
        names = {each.id for line in function.body for each in ast.walk(line) if isinstance(each, ast.Name)}
        asked = route.dependant
        given = [*asked.path_params, *asked.query_params, *asked.header_params, *asked.body_params]
        unread += [(function.name, each.name) for each in given if each.name not in names]
        for body in asked.body_params:
            shape: Any = body.field_info.annotation
            files = {inspect.getsourcefile(shape) or "", inspect.getsourcefile(route.func) or ""}
            whole = [each for file in files for each in ast.walk(ast.parse(Path(file).read_text()))]
            read = {each.attr for each in whole if isinstance(each, ast.Attribute)}
            is_handed_on = "model_dump(" in inspect.getsource(route.func)
            unread += [(function.name, name) for name in shape.model_fields if name not in read and not is_handed_on]

    assert len(routes) > 100
    assert unread == []


@pytest.mark.parametrize("path", ["/searches/{}", "/jobs/triggers/{}", "/admin/jobs/definitions/{}"])
def test_a_change_to_nothing_is_refused_by_its_field(door: Door, acme: TenantHouse, path: str, document: Any) -> None:
    boss = door.super_admin.choosing(acme.id)
    (schema,) = (told["requestBody"] for method, at, told in operations(document) if method == "PATCH" and re.sub("{.*}", "{}", at) == path)  # fmt: skip
    name = schema["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    fields = [*document["components"]["schemas"][name]["properties"]]

    told = {each: door.call(boss, "PATCH", path.format(new_id()), {each: None}).body for each in fields}

    assert [each for each in fields if f"{each}: must not be null" not in told[each]] in ([], ["concurrency_limit"])
