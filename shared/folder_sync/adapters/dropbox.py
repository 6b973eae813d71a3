"""Dropbox over HTTP: one page per call, each answer read strictly. Tokens are short-lived, and fetched with a refresh token."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from pydantic import Field

from shared.folder_sync.model import Entry, Page
from shared.folder_sync.ports import CursorReset
from shared.kernel.answers import Shape, read_json, shaped
from shared.kernel.errors import Permanent, StepError, Transient
from shared.kernel.http import Answer, Http, Pool
from shared.kernel.tokens import Token

API_URL: Final = "https://api.dropboxapi.com"
PAGE: Final = 500
Text = Annotated[str, Field(min_length=1, max_length=4096)]


class _Token(Shape):
    access_token: Text
    expires_in: Annotated[int, Field(ge=1)]


class _Entry(Shape):
    tag: Annotated[str, Field(alias=".tag", pattern="^(file|folder|deleted)$")]
    path_lower: Text
    id: str | None = None
    rev: str | None = None
    size: Annotated[int, Field(ge=0)] | None = None
    content_hash: str | None = None


class _Page(Shape):
    entries: list[_Entry]
    cursor: Text
    has_more: bool


def log_in(
    base_url: str, app_key: str, app_secret: str, refresh_token: str, *, gate: str, time_left_s: Callable[[], float],
    pool: Pool | None = None,
) -> Token:  # fmt: skip
    secrets = (app_secret, refresh_token)
    http = Http(base_url, name="Dropbox", gate=gate, time_left_s=time_left_s, secrets=secrets, pool=pool)
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": app_key, "client_secret": app_secret}  # fmt: skip
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = http.send("POST", "/oauth2/token", body=urlencode(form).encode(), headers=headers)
    if answer.status in (400, 401):
        raise Permanent(f"Dropbox refuses this account: {_said(http, answer)}", "token_refused")
    if answer.status != 200:
        raise http.refusal(answer, _said(http, answer))
    told = shaped(_Token, read_json(answer.body))
    return Token(told.access_token, told.expires_in)


class Dropbox:
    """`on_refused` is called when the token is."""

    def __init__(
        self, base_url: str, token: Token, *, gate: str, time_left_s: Callable[[], float],
        on_refused: Callable[[], None] = lambda: None, pool: Pool | None = None,
    ) -> None:  # fmt: skip
        self._http = Http(
            base_url, name="Dropbox", gate=gate, time_left_s=time_left_s, secrets=(token.value,), pool=pool
        )
        self._headers = {"authorization": f"Bearer {token.value}", "content-type": "application/json"}
        self._on_refused = on_refused

    def first(self, path: str) -> Page:
        asked = {"path": path, "recursive": True, "include_deleted": False, "limit": PAGE}
        return self._asked("/2/files/list_folder", asked)

    def following(self, cursor: str) -> Page:
        return self._asked("/2/files/list_folder/continue", {"cursor": cursor})

    def _asked(self, path: str, body: Any) -> Page:
        answer = self._http.send("POST", path, body=json.dumps(body).encode(), headers=self._headers)
        if answer.status != 200:
            raise self._refusal(answer)
        told = shaped(_Page, read_json(answer.body))
        entries = [
            Entry(tag=each.tag, path=each.path_lower, id=each.id, rev=each.rev, size=each.size, hash=each.content_hash)
            for each in told.entries
        ]
        return Page(entries=entries, cursor=told.cursor, has_more=told.has_more)

    def _refusal(self, answer: Answer) -> StepError:
        said = _said(self._http, answer)
        if answer.status == 409 and said.startswith("reset"):
            return CursorReset("Dropbox has reset its cursor.", "cursor_reset")
        if answer.status == 409:
            return Permanent(f"Dropbox refuses the folder: {said}", "no_folder")
        if answer.status == 401:
            self._on_refused()
        return self._http.refusal(answer, said)


def _said(http: Http, answer: Answer) -> str:
    """`error_summary` of the API begins with the tag of the error; the log-in has a description."""
    try:
        told = read_json(answer.body)
    except Transient:
        return ""
    said = (told.get("error_summary") or told.get("error_description")) if isinstance(told, dict) else None
    return http.quote(said) if isinstance(said, str) else ""
