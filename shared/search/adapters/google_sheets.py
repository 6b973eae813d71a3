"""Google Sheets v4 over HTTP, as a service account: one request per call, each answer read strictly.

Cells are written RAW, so that a name that begins with "=" is a name; and to fixed ranges, so that a request whose answer
was lost can be sent again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from pydantic import Field

from shared.kernel.answers import Shape, read_json, shaped
from shared.kernel.errors import Permanent, StepError, Throttled, Transient, bad_answer
from shared.kernel.http import Answer, Http, Pool, retry_after_s
from shared.kernel.tokens import Token, TokenRefused
from shared.search.sheets.model import HEADER, Block, Tab, letters, plain_titles, side_by_side

SHEETS_URL: Final = "https://sheets.googleapis.com"
TOKEN_URL: Final = "https://oauth2.googleapis.com"  # noqa: S105 - an address
SCOPE: Final = "https://www.googleapis.com/auth/spreadsheets"
AUDIENCE: Final = "https://oauth2.googleapis.com/token"
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
LIVES_S: Final = 3_600
MINUTE_S: Final = 60.0  # its quotas are filled again every minute, and it promises no Retry-After


class _Token(Shape):
    access_token: Annotated[str, Field(min_length=1, max_length=4096)]
    expires_in: Annotated[int, Field(ge=1)]


class _Grid(Shape):
    rowCount: Annotated[int, Field(ge=0)]  # noqa: N815 - its names on the wire
    columnCount: Annotated[int, Field(ge=0)]  # noqa: N815


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


class _Ranges(Shape):
    valueRanges: list[_Values]  # noqa: N815


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
        fields = "sheets.properties(sheetId,title,gridProperties(rowCount,columnCount))"
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

    def titles(self, tab: str, width: int) -> Sequence[Any]:
        ((titles,),) = self._values([_range(tab, 0, width - 1, 1, 1)], [(1, width)])
        return titles

    def read(self, tab: str, columns: Sequence[int], first: int, last: int) -> Sequence[Sequence[Any]] | None:
        """With the titles in the same request: whoever adds a column in between moves the others."""
        groups = side_by_side(columns)
        asked = [
            _range(tab, columns[group[0]], columns[group[-1]], *rows)
            for rows in ((1, 1), (first, last))
            for group in groups
        ]
        shapes = [(count, len(group)) for count in (1, last - first + 1) for group in groups]
        found = self._values(asked, shapes)
        heads, bodies = found[: len(groups)], found[len(groups) :]
        (titles,) = _in_our_order(groups, heads)
        return _in_our_order(groups, bodies) if plain_titles(titles) == list(HEADER) else None

    def _values(self, ranges: Sequence[str], shapes: Sequence[tuple[int, int]]) -> list[list[list[Any]]]:
        """The cells of each range, with the empty ones that are left out at its ends."""
        query = {"ranges": ranges, "majorDimension": "ROWS", "valueRenderOption": "UNFORMATTED_VALUE"}
        told = shaped(_Ranges, self._asked("GET", "/values:batchGet", query=query)).valueRanges
        if len(told) != len(ranges):
            raise bad_answer("Google Sheets sent other ranges than were asked for.")
        found = []
        for each, (rows, width) in zip(told, shapes, strict=True):
            if len(each.values) > rows or any(len(row) > width for row in each.values):
                raise bad_answer("Google Sheets sent more cells than were asked for.")
            whole = [*each.values, *([] for _ in range(rows - len(each.values)))]
            found.append([[*row, *[""] * (width - len(row))] for row in whole])
        return found

    def write(self, tab: str, columns: Sequence[int], blocks: Sequence[Block]) -> None:
        data = []
        for block in blocks:
            of = columns[: len(block.values[0])]
            last = block.row + len(block.values) - 1
            for group in side_by_side(of):
                asked = _range(tab, of[group[0]], of[group[-1]], block.row, last)
                values = [[row[number] for number in group] for row in block.values]
                data.append({"range": asked, "majorDimension": "ROWS", "values": values})
        told = self._asked("POST", "/values:batchUpdate", body={"valueInputOption": "RAW", "data": data})
        if shaped(_Written, told).spreadsheetId != self._spreadsheet_id:
            raise bad_answer("Google Sheets speaks of another spreadsheet.")

    def _asked(
        self, method: str, path: str, *, query: Mapping[str, str | Sequence[str]] | None = None, body: Any = None
    ) -> Any:
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
    return Tab(properties.sheetId, properties.gridProperties.rowCount, properties.gridProperties.columnCount)


def _named(tab: str) -> str:
    return "'" + tab.replace("'", "''") + "'"


def _range(tab: str, left: int, right: int, first: int, last: int) -> str:
    return f"{_named(tab)}!{letters(left)}{first}:{letters(right)}{last}"


def _in_our_order(groups: Sequence[Sequence[int]], ranges: Sequence[Sequence[Sequence[Any]]]) -> list[list[Any]]:
    order = [number for group in groups for number in group]
    rows = [[cell for part in parts for cell in part] for parts in zip(*ranges, strict=True)]
    return [[row[order.index(number)] for number in range(len(order))] for row in rows]


def _said(http: Http, answer: Answer) -> str:
    """`error` is an object of the API, and a word with a description of the log-in."""
    try:
        told = read_json(answer.body)
    except Transient:
        return ""
    error = told.get("error") if isinstance(told, dict) else None
    said = error.get("message") if isinstance(error, dict) else told.get("error_description") if error else None
    return http.quote(said) if isinstance(said, str) else ""
