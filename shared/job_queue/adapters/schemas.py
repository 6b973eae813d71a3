"""Payloads against their schemas. Formats are enforced, nothing is fetched from anywhere, and no payload takes long to judge."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import orjson
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend

from shared.job_queue import decide
from shared.kernel.errors import Refused

SHORT = 512  # bytes of a payload whose verdict is remembered
# The library knows some formats only if other libraries are there; without them it lets everything pass, and says nothing.
FORMATS = FormatChecker()
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_HOST_PART = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_TIME_WITH_ZONE = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _is_uuid(value: object) -> bool:
    return not isinstance(value, str) or _UUID.fullmatch(value) is not None


def _is_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    return _TIME_WITH_ZONE.fullmatch(value) is not None and bool(datetime.fromisoformat(value.upper()))


def _is_uri(value: object) -> bool:
    if not isinstance(value, str):
        return True
    return re.search(r"[^!-~]", value) is None and bool(urlsplit(value).scheme)


def _is_host(value: object) -> bool:
    if not isinstance(value, str):
        return True
    return len(value) <= 253 and all(_HOST_PART.fullmatch(part) for part in value.split("."))


def _is_regex(value: object) -> bool:
    return not isinstance(value, str) or bool(re.compile(value))


FORMATS.checks("uuid")(_is_uuid)
FORMATS.checks("date-time", raises=ValueError)(_is_time)
FORMATS.checks("uri", raises=ValueError)(_is_uri)
FORMATS.checks("hostname")(_is_host)
FORMATS.checks("regex", raises=(re.error, RecursionError, OverflowError))(_is_regex)


def _unique(validator: Any, wanted: Any, items: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ARG001 - its shape
    """As the library has it, but for its time: it compares every item with every other."""
    if not wanted or not validator.is_type(items, "array"):
        return
    if len({orjson.dumps(_alike(each), option=orjson.OPT_SORT_KEYS) for each in items}) < len(items):
        yield ValidationError(f"{str(items)[:200]} has non-unique elements")


def _alike(value: Any) -> Any:
    """1 and 1.0 are one number in a schema. Beyond 64 bits there are only floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, dict):
        return {name: _alike(each) for name, each in value.items()}
    return [_alike(each) for each in value] if isinstance(value, list) else value


_Validator = extend(Draft202012Validator, {"uniqueItems": _unique})


def check_schema(schema: Mapping[str, Any]) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise Refused("bad_schema", f"arg_schema: {error.message[:300]}") from None
    if unknown := decide.formats(schema) - FORMATS.checkers.keys():
        known = ", ".join(sorted(FORMATS.checkers))
        raise Refused("bad_schema", f"arg_schema: format {min(unknown)[:80]!r} is not checked. Available: {known}.")


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    return _Validator(orjson.loads(schema), format_checker=FORMATS)


def validate(schema: Mapping[str, Any], payload: Mapping[str, Any]) -> None:
    said, asked = orjson.dumps(schema), orjson.dumps(payload)
    wrong = _known_fault(said, asked) if len(asked) <= SHORT else _fault(said, payload)
    if wrong is not None:
        raise Refused("bad_payload", wrong)


@lru_cache(maxsize=1024)
def _known_fault(schema: bytes, payload: bytes) -> str | None:
    """Many jobs of a definition have the same short payload, or none: it is judged once."""
    return _fault(schema, orjson.loads(payload))


def _fault(schema: bytes, payload: Mapping[str, Any]) -> str | None:
    error = best_match(_validator(schema).iter_errors(payload))
    if error is None:
        return None
    where = ".".join(["payload", *map(str, error.absolute_path)])
    return f"{where}: {error.message[:300]}"
