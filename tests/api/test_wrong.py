"""Guards that a request that is wrong is refused in our words: by every operation, for every field, and nowhere in pydantic's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from shared.kernel.api.frame import API
from shared.kernel.clock import new_id
from tests.support.door import ANONYMOUS, Answer, Door, TenantHouse

PYDANTICS = re.compile(
    r"Input should|Field required|Extra inputs|(String|List|Value|Data|Dictionary|Tuple|Set|Decimal|Date\w*|UUID) should|Value error|"
    r"valid (string|integer|number|boolean|list|dictionary|UUID|date)|Unable to|Input tag|unable to parse|isn't valid\.",
)
VALUES: list[Any] = [
    None,
    [],
    {},
    {"none": {"of": "ours"}},
    "",
    "\x01nothing",
    -(10**12),
    10**12,
    0.5,
    True,
    ["", 0, {}],
]


def operations(door: Door) -> Iterator[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
    document = door.ask(door.event(ANONYMOUS, "GET", "/openapi.json")).json()
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            schema = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            name = schema.get("$ref", "").rpartition("/")[2]
            yield method.upper(), path.removeprefix(API), told, document["components"]["schemas"].get(name, schema)


def asked(door: Door, tenant: TenantHouse, method: str, path: str, told: Any, body: Any, **query: Any) -> Answer:
    who = tenant.worker if told.get("x-baton-roles") == ["worker"] else door.super_admin.choosing(tenant.id)
    return door.call(who, method, re.sub(r"\{\w+\}", str(new_id()), path), body, **query)


def in_our_words(answer: Answer, asked_for: object) -> bool:
    """Whether it was refused for its form. Nothing is changed by these: no field holds anything that makes sense."""
    assert answer.status != 500, (asked_for, answer.body)
    said = answer.json()
    if answer.status != 422 or not isinstance(said, dict):
        return False
    told = " ".join([said["detail"], *(each["problem"] for each in said.get("fields", ()))])
    assert not PYDANTICS.search(told), (asked_for, told)
    return True


def test_every_operation_refuses_a_wrong_body_in_our_words(door: Door, acme: TenantHouse) -> None:
    refused = 0
    for method, path, told, schema in operations(door):
        if "requestBody" not in told:
            continue
        names = list(schema.get("properties", {}))
        bodies: list[Any] = [
            [],
            7,
            "text",
            {},
            {"nothing_of_ours": 1},
            *(dict.fromkeys(names, value) for value in VALUES),
        ]
        for body in bodies:
            refused += in_our_words(asked(door, acme, method, path, told, body), (method, path, body))
        answer = asked(door, acme, method, path, told, {"nothing_of_ours": 1})
        assert answer.status in (404, 422), answer
        if names and answer.status == 422:
            assert (
                "Unknown field `nothing_of_ours`. Available: " in answer.json()["detail"]
                or "required" in answer.json()["detail"]
            )
    assert refused > 300


def test_every_operation_refuses_a_wrong_question_in_our_words(door: Door, acme: TenantHouse) -> None:
    refused = 0
    for method, path, told, _ in operations(door):
        if method != "GET":
            continue
        names = [each["name"] for each in told.get("parameters", ()) if each["in"] == "query"]
        for name in names:
            for value in ("nothing", "-1", "9" * 30, "", "x" * 2_000):
                answer = asked(door, acme, method, path, told, None, **{name: value})
                refused += in_our_words(answer, (path, name, value))
    assert refused > 100


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "/page-ingestions", {"low": 1, "high": 2}, "`source` is required. Available: nivoda."),
        ("POST", "/page-ingestions", {"source": "openalex", "resources": ["works"]}, "`source` must be nivoda."),
        ("POST", "/page-ingestions", {"source": "nivoda", "low": 1, "high": 2, "pagesize": 5},
         "Unknown field `pagesize`. Available: page_size, source, low, high, "),
        ("POST", "/page-ingestions", {"source": "nivoda", "low": 1, "high": 2, "policy": {"percent": 5}},
         "`policy.rule` is required. Available: all, at_least, critical."),
        ("POST", "/page-ingestions", {"source": "nivoda", "low": 1, "high": 2, "policy": {"rule": "most"}},
         "`policy.rule` must be one of: all, at_least, critical."),
        ("POST", "/runs", {"kind": "page_ingest", "params": {"low": 1, "high": 2}}, "`source` is required. Available: nivoda, "),
        ("POST", "/runs", {"kind": "page_ingest", "params": {"source": "nivod", "low": 1}}, "Unknown source `nivod`. Available: nivoda, "),
        ("POST", "/tokens", {"name": "ci", "role": "owner", "expires_in_days": 0},
         "`role` must be one of: viewer, member, admin, worker. `expires_in_days` must be at least 1."),
        ("POST", "/tokens", [], "The body must be an object."),
        ("GET", "/runs?limit=201", None, "`limit` must be at most 200."),
        ("GET", "/runs?limt=5", None, "Unknown query parameter `limt`. Available: limit, "),
        ("GET", "/runs/nothing", None, "`run_id` must be an ID (a UUID)."),
    ],
)  # fmt: skip
def test_a_refusal_says_which_field_and_what_there_is(
    door: Door, acme: TenantHouse, method: str, path: str, body: Any, said: str
) -> None:
    path, _, query = path.partition("?")
    wanted: dict[str, Any] = dict(pair.split("=") for pair in query.split("&") if pair)
    answer = door.call(acme.admin, method, path, body, **wanted)

    assert answer.status == 422, answer
    assert answer.json()["detail"].startswith(said), answer.json()["detail"]
    assert said.endswith(" ") or answer.json()["detail"] == said
