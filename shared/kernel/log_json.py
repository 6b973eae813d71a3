"""Log lines as JSON for CloudWatch: only Lambda's entry points import this, and every text passes the redactor."""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools import Logger

from shared.kernel.log import logger
from shared.kernel.redact import LONGEST, redact


def json_log() -> Logger:
    """Give the one logger its JSON form (once per process); its level is LOG_LEVEL, else INFO."""
    # The stack trace as a structure would repeat the exception's text beside the redactor.
    return Logger(service=logger.name, json_serializer=to_line, serialize_stacktrace=False, utc=True, use_rfc3339=True)


def to_line(record: dict[str, Any]) -> str:
    clean = {key: redact(_end(value)) if isinstance(value, str) else value for key, value in record.items()}
    return json.dumps(clean, default=lambda value: redact(str(value)), skipkeys=True, separators=(",", ":"))


def _end(text: str) -> str:
    """The last lines of a long text: a traceback says at its end what went wrong."""
    if len(text) <= LONGEST:
        return text
    tail = text[-LONGEST + 1 :]
    return tail.partition("\n")[2] or tail
