"""Payloads against their schemas. Formats are enforced, and nothing is fetched from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, best_match

from shared.kernel.errors import Refused

FORMATS = FormatChecker()


def check_schema(schema: Mapping[str, Any]) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise Refused("bad_schema", f"arg_schema: {error.message[:300]}") from None


def validate(schema: Mapping[str, Any], payload: Mapping[str, Any]) -> None:
    error = best_match(Draft202012Validator(schema, format_checker=FORMATS).iter_errors(payload))
    if error is not None:
        where = ".".join(["payload", *map(str, error.absolute_path)])
        raise Refused("bad_payload", f"{where}: {error.message[:300]}")
