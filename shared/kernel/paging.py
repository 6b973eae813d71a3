"""Cursors of keyset lists: signed, and bound to the tenant, the reader and the filter they were made for."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

LARGEST_PAGE = 200
USUAL_PAGE = 50
LONGEST_CURSOR = 1_000


class BadCursor(Exception):
    """Not a cursor of this list: cut, changed, of another filter or another tenant. All look the same."""


class Pager:
    """Makes and reads the cursors of one list for one reader."""

    def __init__(self, key: bytes, scope: Sequence[str], question: Mapping[str, Any]) -> None:
        asked = orjson.dumps([list(scope), dict(question)], option=orjson.OPT_SORT_KEYS, default=str)
        self._key = hmac.digest(key, hashlib.sha256(asked).digest(), "sha256")

    def cursor(self, place: Sequence[Any]) -> str:
        """Where the next page begins."""
        body = orjson.dumps(list(place), default=str)
        return _text(body) + "." + _text(self._sign(body))

    def place(self, cursor: str | None) -> list[Any] | None:
        if cursor is None:
            return None
        try:
            if len(cursor) > LONGEST_CURSOR:
                raise BadCursor
            body, signature = (_bytes(part) for part in cursor.split("."))
        except (ValueError, binascii.Error, UnicodeEncodeError):
            raise BadCursor from None
        if not hmac.compare_digest(signature, self._sign(body)):
            raise BadCursor
        place: list[Any] = orjson.loads(body)
        return place

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")[:18]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
