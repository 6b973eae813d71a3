"""The one logger. Lambda's entry points give it a JSON formatter; a library call must not configure logging."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

logger = logging.getLogger("baton")
_ABOUT: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))


@contextmanager
def about(**said: object) -> Iterator[None]:
    """Every line that is logged within says this too, unless it says otherwise itself."""
    known = {name: str(value) for name, value in said.items() if value is not None}
    token = _ABOUT.set({**_ABOUT.get(), **known})
    try:
        yield
    finally:
        _ABOUT.reset(token)


def _say(record: logging.LogRecord) -> bool:
    for name, value in _ABOUT.get().items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True


logger.addFilter(_say)
