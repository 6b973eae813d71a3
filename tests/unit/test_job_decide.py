"""The rules of jobs that need nothing but themselves: schemas, payloads, and what is kept of a command's output."""

from __future__ import annotations

from typing import Any

import pytest

from shared.job_queue import decide
from shared.job_queue.adapters import schemas
from shared.job_queue.model import Finished
from shared.kernel.errors import Refused

OBJECT = {"type": "object", "additionalProperties": False}
BODY = "MIIEowIBAAKCAQEA7x\nabcdEFGH12345678==\n"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{BODY}-----END RSA PRIVATE KEY-----\n"


def schema_of(**properties: Any) -> dict[str, Any]:
    return {**OBJECT, "properties": properties}


@pytest.mark.parametrize("name", ["properties", "enum", "const", "default", "examples", "pattern"])
@pytest.mark.parametrize(
    "hidden",
    [{"$ref": "http://127.0.0.1:9/x"}, {"patternProperties": {"(a+)+$": {}}}, {"properties": {"x": {"pattern": "a"}}}],
)
@pytest.mark.parametrize("where", ["dependentSchemas", "$defs", "dependencies"])
def test_no_name_of_an_argument_hides_what_a_schema_must_not_say(name: str, hidden: Any, where: str) -> None:
    with pytest.raises(Refused, match="is not supported"):
        decide.checked_schema({**schema_of(**{name: {"type": "string"}}), where: {name: hidden}})


def test_an_argument_may_be_called_what_it_likes() -> None:
    named = schema_of(pattern={"type": "string"}, enum={"enum": [{"$ref": "as a value"}]})
    assert decide.checked_schema({**named, "dependentSchemas": {"pattern": {"required": ["enum"]}}})


FORMATS = {
    "date-time": ("2026-11-16T08:00:00.5+01:00", ["soon", "2026-11-16T08:00:00", "2026-02-30T08:00:00Z"]),
    "uri": ("https://example.com/a?b=c", ["example.com", "a b:c", "http://[::1"]),
    "hostname": ("db-1.example.com", ["-a.example.com", "a..b", "a" * 64]),
    "uuid": ("6f46a1d8-6e2b-4ecf-8b46-9ec2e6a37f09", ["\uff16f46a1d8-6e2b-4ecf-8b46-9ec2e6a37f09", "x"]),
    "regex": ("a+", ["(", "(" * 30_000, "a{1,99999999999}"]),
    "date": ("2026-11-16", ["2026-13-01"]),
    "email": ("a@example.com", ["a"]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_that_a_schema_may_name_is_enforced(name: str) -> None:
    schema, (good, bad) = schema_of(x={"type": "string", "format": name}), FORMATS[name]
    schemas.check_schema(schema)
    schemas.validate(schema, {"x": good})
    for each in bad:
        with pytest.raises(Refused, match=r"payload\.x"):
            schemas.validate(schema, {"x": each})


def test_a_format_that_nobody_would_check_is_refused() -> None:
    with pytest.raises(Refused, match=r"'json-pointer' is not checked\. Available: date, date-time"):
        schemas.check_schema(schema_of(x={"items": {"format": "json-pointer"}}))


def test_items_are_told_apart_without_comparing_each_with_every_other() -> None:
    """Each pair that is compared would ask the items for their length: six thousand of them took half a minute."""
    compared = 0

    class Item(dict[str, int]):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return dict.__eq__(self, other)

        __hash__ = None

        def __len__(self) -> int:
            nonlocal compared
            compared += 1
            return dict.__len__(self)

    schema = schema_of(x={"type": "array", "uniqueItems": True})
    schemas.validate(schema, {"x": [Item(a=n) for n in range(300)]})
    assert compared < 3_000


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, 1.0], False), ([1, True], True), ([{"a": 1, "b": 2}, {"b": 2, "a": 1.0}], False), ([[1], [1, 2]], True),
        (["a", "a"], False), ([0, False, "0", None], True), ([[{"a": 1}], [{"a": 1}]], False),
        ([1e300, 2], True), ([1e300, 1e300], False), ([2.0**63, -(2.0**63)], True),
    ],
)  # fmt: skip
def test_items_are_alike_as_json_has_it(items: list[Any], unique: bool) -> None:
    schema = schema_of(x={"type": "array", "uniqueItems": True})
    if unique:
        schemas.validate(schema, {"x": items})
    else:
        with pytest.raises(Refused, match="non-unique"):
            schemas.validate(schema, {"x": items})


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        (f"before it\n{KEY}after it\n", "before it\n***\nafter it\n"),
        (KEY.replace("\n", "\r\n") + "after it\n", "***\nafter it\n"),
        (f"{BODY}-----END RSA PRIVATE KEY-----\nafter it\n", "***\nafter it\n"),  # its beginning was cut off
        (KEY[:-40], "***"),  # its end is still to come
        (f"-----BEGIN PRIVATE KEY-----\n{BODY}It failed: no such file\n", "***\nIt failed: no such file\n"),
        ("-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----\n",) * 2,
    ],
)
def test_of_a_private_key_no_line_is_kept(printed: str, kept: str) -> None:
    assert decide.tail(printed.encode(), cut=False) == kept
    assert decide.told_tail(printed) == kept


def test_a_command_that_a_function_had_no_time_for_is_told_as_such() -> None:
    ended = Finished(exit_code=None, timed_out=True)
    assert decide.problem_of(ended, 60, 60.0).message == "The command was stopped after 60 seconds."
    assert decide.problem_of(ended, 3600, 840.0).message == (
        "The command was stopped after 840 seconds: its function had no more time. The job may take 3600 seconds; "
        "run it on a worker."
    )
