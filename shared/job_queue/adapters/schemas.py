"""Payloads against their schemas. Formats are enforced, and nothing is fetched from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError, best_match

from shared.kernel.errors import Refused

FORMATS = FormatChecker()


def check_schema(schema: Mapping[str, Any]) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise Refused("bad_schema", f"arg_schema: {error.message[:300]}") from None


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Draft202012Validator:
    return Draft202012Validator(orjson.loads(schema), format_checker=FORMATS)


def validate(schema: Mapping[str, Any], payload: Mapping[str, Any]) -> None:
    error = best_match(_validator(orjson.dumps(schema)).iter_errors(payload))
    if error is not None:
        where = ".".join(["payload", *map(str, error.absolute_path)])
        raise Refused("bad_payload", f"{where}: {error.message[:300]}")
