"""Google Sheets v4 over HTTP, as a service account: one request per call, each answer read strictly.

Cells are written RAW, so that a name that begins with "=" is a name; and to fixed ranges, so that a request whose answer
was lost can be sent again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from pydantic import Field

from shared.kernel.answers import Shape, read_json, shaped
from shared.kernel.errors import Permanent, StepError, Throttled, Transient, bad_answer
from shared.kernel.http import Answer, Http, Pool, retry_after_s
from shared.kernel.tokens import Token, TokenRefused
from shared.search.sheets.model import HEADER, Block, Tab

SHEETS_URL: Final = "https://sheets.googleapis.com"
TOKEN_URL: Final = "https://oauth2.googleapis.com"  # noqa: S105 - an address
SCOPE: Final = "https://www.googleapis.com/auth/spreadsheets"
AUDIENCE: Final = "https://oauth2.googleapis.com/token"
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
LIVES_S: Final = 3_600
MINUTE_S: Final = 60.0  # its quotas are filled again every minute, and it promises no Retry-After
LAST_COLUMN: Final = "ABCDEFG"[len(HEADER) - 1]


class _Token(Shape):
    access_token: Annotated[str, Field(min_length=1, max_length=4096)]
    expires_in: Annotated[int, Field(ge=1)]


class _Grid(Shape):
    rowCount: Annotated[int, Field(ge=0)]  # noqa: N815 - its names on the wire


class _Properties(Shape):
    sheetId: Annotated[int, Field(ge=0)]  # noqa: N815
    title: str
    gridProperties: _Grid | None = None  # noqa: N815 - a chart has none


class _Sheet(Shape):
    properties: _Properties


class _Spreadsheet(Shape):
    sheets: list[_Sheet]


class _Values(Shape):
    values: list[list[Any]] = Field(default_factory=list)  # absent if all is empty


class _Written(Shape):
    spreadsheetId: str  # noqa: N815


class _Added(Shape):
    properties: _Properties


class _AddReply(Shape):
    addSheet: _Added  # noqa: N815


class _Replies(Shape):
    replies: list[Any]


def signed(client_email: str, private_key: str, now: datetime) -> str:
    """The assertion by which a service account logs in: RS256, an hour at most."""
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - only who logs in needs it
    from cryptography.hazmat.primitives.asymmetric import padding, rsa  # noqa: PLC0415

    written_out = private_key.replace("\\n", "\n")  # as it stands in the service account's file, between its quotes
    try:
        key = serialization.load_pem_private_key(written_out.encode(), password=None)
    except (ValueError, TypeError):
        raise Permanent("private_key: not a private key in PEM form.", "bad_settings") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise Permanent("private_key: a service account has an RSA key.", "bad_settings")
    issued = int(now.timestamp())
    claims = {"iss": client_email, "scope": SCOPE, "aud": AUDIENCE, "iat": issued, "exp": issued + LIVES_S}
    said = f"{_part({'alg': 'RS256', 'typ': 'JWT'})}.{_part(claims)}"
    return f"{said}.{_base64(key.sign(said.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _part(value: Any) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def log_in(
    token_url: str, client_email: str, private_key: str, now: datetime, *, gate: str, time_left_s: Callable[[], float],
    pool: Pool | None = None,
) -> Token:  # fmt: skip
    assertion = signed(client_email, private_key, now)
    http = Http(
        token_url, name="Google", gate=gate, time_left_s=time_left_s, secrets=(private_key, assertion), pool=pool
    )
    body = urlencode({"grant_type": GRANT, "assertion": assertion}).encode()
    headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
    answer = http.send("POST", "/token", body=body, headers=headers)
    if answer.status in (400, 401):
        raise Permanent(f"Google refuses this service account: {_said(http, answer)}", "token_refused")
    if answer.status != 200:
        raise http.refusal(answer, _said(http, answer))
    told = shaped(_Token, read_json(answer.body))
    return Token(told.access_token, told.expires_in)


class GoogleSheet:
    """`on_refused` is called when the token is."""

    def __init__(
        self, base_url: str, spreadsheet_id: str, token: Token, *, client_email: str, gate: str,
        time_left_s: Callable[[], float],
        on_refused: Callable[[], None] = lambda: None, pool: Pool | None = None,
    ) -> None:  # fmt: skip
        self._spreadsheet_id, self._on_refused = spreadsheet_id, on_refused
        self._path = f"/v4/spreadsheets/{quote(spreadsheet_id, safe='')}"
        self._headers = {
            "authorization": f"Bearer {token.value}", "accept": "application/json", "content-type": "application/json"
        }  # fmt: skip
        self._client_email, self._gate = client_email, gate
        self._http = Http(
            base_url, name="Google Sheets", gate=gate, time_left_s=time_left_s, secrets=(token.value,), pool=pool
        )

    def look(self, tab: str) -> Tab | None:
        fields = "sheets.properties(sheetId,title,gridProperties.rowCount)"
        told = shaped(_Spreadsheet, self._asked("GET", "", query={"fields": fields}))
        for each in told.sheets:
            if each.properties.title == tab:
                return _tab(each.properties)
        return None

    def add_tab(self, tab: str) -> Tab:
        """Asked for again it is refused: whoever repeats this looks first."""
        added = {"addSheet": {"properties": {"title": tab, "gridProperties": {"frozenRowCount": 1}}}}
        told = shaped(_Replies, self._asked("POST", ":batchUpdate", body={"requests": [added]}))
        if len(told.replies) != 1:
            raise bad_answer("Google Sheets did not say which tab it has added.")
        return _tab(shaped(_AddReply, told.replies[0]).addSheet.properties)

    def grow(self, grid: int, rows: int) -> None:
        """To so many rows, not by so many: it may be asked for again."""
        properties = {"sheetId": grid, "gridProperties": {"rowCount": rows}}
        asked = {"updateSheetProperties": {"properties": properties, "fields": "gridProperties.rowCount"}}
        shaped(_Replies, self._asked("POST", ":batchUpdate", body={"requests": [asked]}))

    def read(self, tab: str, first: int, last: int) -> Sequence[Sequence[Any]]:
        asked = quote(f"{_named(tab)}!A{first}:{LAST_COLUMN}{last}", safe="")
        query = {"majorDimension": "ROWS", "valueRenderOption": "UNFORMATTED_VALUE"}
        values = shaped(_Values, self._asked("GET", f"/values/{asked}", query=query)).values
        if len(values) > last - first + 1 or any(len(row) > len(HEADER) for row in values):
            raise bad_answer("Google Sheets sent more cells than were asked for.")
        return values

    def write(self, tab: str, blocks: Sequence[Block]) -> None:
        data = [
            {"range": f"{_named(tab)}!A{block.row}", "majorDimension": "ROWS", "values": [list(row) for row in block.values]}
            for block in blocks
        ]  # fmt: skip
        told = self._asked("POST", "/values:batchUpdate", body={"valueInputOption": "RAW", "data": data})
        if shaped(_Written, told).spreadsheetId != self._spreadsheet_id:
            raise bad_answer("Google Sheets speaks of another spreadsheet.")

    def _asked(self, method: str, path: str, *, query: dict[str, str] | None = None, body: Any = None) -> Any:
        told = None if body is None else json.dumps(body).encode()
        answer = self._http.send(method, self._path + path, query=query, body=told, headers=self._headers)
        if answer.status != 200:
            raise self._refusal(answer)
        return read_json(answer.body)

    def _refusal(self, answer: Answer) -> StepError:
        said = _said(self._http, answer)
        if answer.status == 429:
            wait_s = max(MINUTE_S, retry_after_s(answer.headers) or 0.0)
            return Throttled(self._gate, wait_s, f"Google Sheets asks to wait: {said}")
        if answer.status == 403:
            return Permanent(f"Google Sheets refuses: {said} Share the sheet with {self._client_email}.", "not_shared")
        if answer.status == 404:
            return Permanent(f"Spreadsheet not found: {said}", "no_spreadsheet")
        if answer.status == 401:
            self._on_refused()
            return TokenRefused(f"Google Sheets does not accept the token: {said}")
        return self._http.refusal(answer, said)


def _tab(properties: _Properties) -> Tab:
    if properties.gridProperties is None:
        raise Permanent(f"The tab {properties.title[:100]} is no table.", "no_table")
    return Tab(properties.sheetId, properties.gridProperties.rowCount)


def _named(tab: str) -> str:
    return "'" + tab.replace("'", "''") + "'"


def _said(http: Http, answer: Answer) -> str:
    """`error` is an object of the API, and a word with a description of the log-in."""
    try:
        told = read_json(answer.body)
    except Transient:
        return ""
    error = told.get("error") if isinstance(told, dict) else None
    said = error.get("message") if isinstance(error, dict) else told.get("error_description") if error else None
    return http.quote(said) if isinstance(said, str) else ""
