"""Log lines as JSON for CloudWatch: only Lambda's entry points import this, and every text passes the redactor."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from aws_lambda_powertools import Logger

from shared.kernel.log import logger
from shared.kernel.redact import LONGEST, redact, redact_json


def json_log() -> Logger:
    """Give the one logger its JSON form (once per process); its level is LOG_LEVEL, else INFO."""
    # The stack trace as a structure would repeat the exception's text beside the redactor.
    return Logger(service=logger.name, json_serializer=to_line, serialize_stacktrace=False, utc=True, use_rfc3339=True)


class FunctionFailed(Exception):
    """What Lambda may know of a failure: it logs an exception's text as it is, and hands it to whoever called."""


def logged(handler: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A handler as Lambda calls it: with a log, and with no exception that has not passed the redactor."""
    log = json_log()

    def guarded(event: Any, context: Any) -> Any:
        try:
            return handler(event, context)
        except Exception as error:
            logger.exception("the function failed")
            failed = FunctionFailed(redact(f"{type(error).__name__}: {error}"))
        raise failed  # not in the handler of the other one, which would come along as its context

    return log.inject_lambda_context(guarded, clear_state=True)


def to_line(record: dict[str, Any]) -> str:
    clean = {key: _end(value) if isinstance(value, str) else redact_json(value) for key, value in record.items()}
    return json.dumps(clean, default=lambda value: redact(str(value)), skipkeys=True, separators=(",", ":"))


def _end(text: str) -> str:
    """The last lines of a long text: a traceback says at its end what went wrong. Whole lines, because what is cut in
    the middle may have lost the name of a secret and kept its value."""
    if len(text) <= LONGEST:
        return redact(text)
    lines, kept, room = text.splitlines(), 0, LONGEST
    while kept < len(lines) and len(lines[-kept - 1]) < room:
        room -= len(lines[-kept - 1]) + 1
        kept += 1
    return redact("\n".join(lines[-kept:]) if kept else lines[-1])
