"""A stand-in for Google's log-in and Sheets v4: it checks signatures, counts requests by the minute, and knows every cell.

By hand: python -m infra.local.standins.google_sheets --port 0. `GET /key.json` on it is the key file of its service account.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from infra.local.standins.server import Reply, Request, StandIn, run_by_hand

EMAIL = "baton@stand-in.iam.gserviceaccount.com"
SPREADSHEET = "stand-in-sheet"
SCOPE = "https://www.googleapis.com/auth/spreadsheets"
AUDIENCE = "https://oauth2.googleapis.com/token"
PER_MINUTE = 60
FIRST_ROWS = 1_000
LONGEST_CELL = 50_000
RANGE = re.compile(r"'((?:[^']|'')*)'!([A-Z]{1,3})(\d+):([A-Z]{1,3})(\d+)")
COLUMNS = 26
FAULTS = {
    "lost_answer": "it is done, and the answer breaks off",
    "expired": "401 for a token that was good",
    "not_shared": "403",
    "sorted": "somebody turns the rows around before it is answered",
    "widened": "somebody adds a column before it is answered",
}
_KEY: list[rsa.RSAPrivateKey] = []


def the_key() -> rsa.RSAPrivateKey:
    """One for the whole process: making one takes a while."""
    if not _KEY:
        _KEY.append(rsa.generate_private_key(public_exponent=65537, key_size=2048))
    return _KEY[0]


def private_key() -> str:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return the_key().private_bytes(serialization.Encoding.PEM, form, plain).decode()


@dataclass(slots=True)
class Grid:
    id: int
    rows: int = FIRST_ROWS
    columns: int = COLUMNS
    cells: dict[tuple[int, int], Any] = field(default_factory=dict)  # by row and column, from 1

    def turn_around(self) -> None:
        last = max((row for row, _ in self.cells), default=1)
        self.cells = {(row if row == 1 else last + 2 - row, column): cell for (row, column), cell in self.cells.items()}

    def insert_column(self, at: int, title: str) -> None:
        """As a reader does it: the others move to the right. From 1."""
        self.columns += 1
        self.cells = {(row, column + (column >= at)): cell for (row, column), cell in self.cells.items()}
        self.cells[1, at] = title

    def column(self, title: str) -> int:
        (found,) = [column for (row, column), cell in self.cells.items() if row == 1 and cell == title]
        return found

    def table(self) -> list[list[Any]]:
        """Every row that is not empty, with all its cells."""
        rows = sorted({row for row, _ in self.cells})
        width = max((column for _, column in self.cells), default=0)
        return [[self.cells.get((row, column), "") for column in range(1, width + 1)] for row in rows]


@dataclass(frozen=True, slots=True)
class _Place:
    """Columns and rows of a grid, from 1."""

    grid: Grid
    left: int
    right: int
    first: int
    last: int


class GoogleSheetsStandIn(StandIn):
    """`clock` gives seconds; `unix` what they are since 1970, for the times in an assertion."""

    name = "google_sheets"
    misbehaves: ClassVar[Mapping[str, str]] = FAULTS

    def __init__(
        self, seed: int = 0, *, budget: int | None = None, clock: Callable[[], float] = lambda: time.time_ns() / 1e9,
        began: float = 0.0, per_minute: int = PER_MINUTE,
    ) -> None:  # fmt: skip
        super().__init__(seed, budget=budget, clock=clock)
        self.began, self.per_minute = began, per_minute
        self.tabs: dict[str, Grid] = {}
        self.tokens: dict[str, float] = {}
        self.times: list[float] = []  # of the requests that counted
        self.log: list[tuple[str, str]] = []
        self.wrong: list[str] = []  # what no careful client would ask for

    # --- the truth

    def tab(self, name: str = "Companies") -> Grid:
        with self.lock:
            return self.tabs.setdefault(name, Grid(len(self.tabs)))

    def busiest_minute(self) -> int:
        times = sorted(self.times)
        return max((sum(1 for other in times if at <= other < at + 60) for at in times), default=0)

    def figures(self) -> Mapping[str, Any]:
        return {"requests": len(self.times), "rows": {name: len(grid.table()) for name, grid in self.tabs.items()}}

    # --- answering

    def serve(self, request: Request) -> Reply:
        if request.path == "/key.json":
            told = {"type": "service_account", "client_email": EMAIL, "private_key": private_key()}
            return Reply.json({**told, "token_uri": AUDIENCE})
        if request.path == "/token":
            faults = self.struck_by("token")
            return self.spoil(self._token(request), faults)
        faults = self.struck_by("sheet")
        with self.lock:
            refused = self._refused(request, faults)
            if refused is not None:
                return refused
            if (said := self.instead(faults)) is not None:
                return said
            if "sorted" in faults:
                for grid in self.tabs.values():
                    grid.turn_around()
            if "widened" in faults:
                for grid in self.tabs.values():
                    grid.insert_column(1, "Notes")
            self.log.append((request.method, unquote(request.path)))
            reply = self._sheet(request)
        if "lost_answer" in faults:
            return Reply(body=reply.body, reset=True)
        return self.spoil(reply, faults)

    def _token(self, request: Request) -> Reply:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if form.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
            return Reply.json({"error": "unsupported_grant_type", "error_description": "Invalid grant_type"}, 400)
        why = self._wrong_assertion(form.get("assertion", ""))
        if why is not None:
            return Reply.json({"error": "invalid_grant", "error_description": why}, 400)
        token = f"ya29.{secrets.token_hex(16)}"
        with self.lock:
            self.tokens[token] = self.now() + 3_599
        return Reply.json({"access_token": token, "expires_in": 3_599, "token_type": "Bearer"})

    def _wrong_assertion(self, assertion: str) -> str | None:
        try:
            said, _, signature = assertion.rpartition(".")
            head, claims = (json.loads(_unpacked(part)) for part in said.split("."))
            the_key().public_key().verify(_unpacked(signature), said.encode(), padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return "Invalid JWT Signature."
        except (ValueError, TypeError):
            return "Invalid JWT."
        now = self.began + self.now()
        if head.get("alg") != "RS256" or claims.get("iss") != EMAIL:
            return "Invalid grant: account not found"
        if claims.get("scope") != SCOPE or claims.get("aud") != AUDIENCE:
            return "Invalid JWT: audience or scope."
        if not (claims["iat"] - 600 <= now <= claims["exp"] <= claims["iat"] + 3_600):
            return "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
        return None

    def _refused(self, request: Request, faults: Mapping[str, Any]) -> Reply | None:
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if "expired" in faults:
            self.tokens.pop(token, None)
        if self.tokens.get(token, 0) <= self.now():
            return _error(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
        now = self.now()
        if sum(1 for at in self.times if at > now - 60) >= self.per_minute:
            said = "Quota exceeded for quota metric 'Write requests' and limit 'Write requests per minute per user'"
            return _error(429, "RESOURCE_EXHAUSTED", said)
        self.times.append(now)
        if "not_shared" in faults:
            return _error(403, "PERMISSION_DENIED", "The caller does not have permission")
        return None

    def _sheet(self, request: Request) -> Reply:
        prefix = f"/v4/spreadsheets/{SPREADSHEET}"
        path = unquote(request.path)
        if not path.startswith(prefix):
            return _error(404, "NOT_FOUND", "Requested entity was not found.")
        body = json.loads(request.body) if request.body else {}
        match request.method, path.removeprefix(prefix):
            case "GET", "":
                sheets = [{"properties": self._properties(name)} for name in self.tabs]
                return Reply.json({"sheets": sheets} if sheets else {"sheets": []})
            case "POST", ":batchUpdate":
                return self._change(body["requests"])
            case "POST", "/values:batchUpdate":
                return self._write(body)
            case "POST", rest if rest.endswith(":append"):
                return self._append(rest.removeprefix("/values/").removesuffix(":append"), body)
            case "GET", "/values:batchGet":
                return self._read(request.query["ranges"])
        self.wrong.append(f"{request.method} {path}")
        return _error(404, "NOT_FOUND", "Requested entity was not found.")

    def _properties(self, name: str) -> dict[str, Any]:
        grid = self.tabs[name]
        return {
            "sheetId": grid.id,
            "title": name,
            "gridProperties": {"rowCount": grid.rows, "columnCount": grid.columns},
        }

    def _change(self, requests: list[Any]) -> Reply:
        replies: list[Any] = []
        for each in requests:
            if "addSheet" in each:
                name = each["addSheet"]["properties"]["title"]
                if name in self.tabs:
                    return _error(400, "INVALID_ARGUMENT", f'A sheet with the name "{name}" already exists.')
                self.tab(name)
                replies.append({"addSheet": {"properties": self._properties(name)}})
            elif "updateSheetProperties" in each:
                told = each["updateSheetProperties"]
                (grid,) = [grid for grid in self.tabs.values() if grid.id == told["properties"]["sheetId"]]
                grid.rows = told["properties"]["gridProperties"]["rowCount"]
                grid.cells = {at: cell for at, cell in grid.cells.items() if at[0] <= grid.rows}
                replies.append({})
            else:
                self.wrong.append(f"a change that may not be repeated: {sorted(each)}")
                return _error(400, "INVALID_ARGUMENT", "Unknown request.")
        return Reply.json({"spreadsheetId": SPREADSHEET, "replies": replies})

    def _place(self, asked: str) -> _Place | Reply:
        """Where a range is. One that is not named in full would be taken for as much as is sent."""
        found = RANGE.fullmatch(asked)
        if found is None or found[1].replace("''", "'") not in self.tabs:
            self.wrong.append(f"a range that is not named in full: {asked}")
            return _error(400, "INVALID_ARGUMENT", f"Unable to parse range: {asked}")
        grid = self.tabs[found[1].replace("''", "'")]
        place = _Place(grid, _number(found[2]), _number(found[4]), int(found[3]), int(found[5]))
        if place.last > grid.rows or place.right > grid.columns:
            return _error(400, "INVALID_ARGUMENT", f"Range ({asked}) exceeds grid limits. Max rows: {grid.rows}, max columns: {grid.columns}")  # fmt: skip
        return place

    def _read(self, ranges: list[str]) -> Reply:
        told = []
        for asked in ranges:
            place = self._place(asked)
            if isinstance(place, Reply):
                return place
            columns = range(place.left, place.right + 1)
            rows = [[place.grid.cells.get((row, column), "") for column in columns] for row in range(place.first, place.last + 1)]  # fmt: skip
            kept = _cut([_cut(row, "") for row in rows], [])
            told.append({"range": asked, "majorDimension": "ROWS", **({"values": kept} if kept else {})})
        return Reply.json({"spreadsheetId": SPREADSHEET, "valueRanges": told})

    def _append(self, asked: str, body: Mapping[str, Any]) -> Reply:
        """After the last row, every time it is asked for."""
        self.wrong.append("append may not be repeated")
        place = self._place(asked)
        assert isinstance(place, _Place)
        grid = place.grid
        first = max((row for row, _ in grid.cells), default=0) + 1
        for row, cells in enumerate(body["values"], first):
            for column, cell in enumerate(cells, 1):
                grid.cells[row, column] = cell
        return Reply.json({"spreadsheetId": SPREADSHEET, "updates": {"updatedRows": len(body["values"])}})

    def _write(self, body: Mapping[str, Any]) -> Reply:
        if body.get("valueInputOption") != "RAW":
            self.wrong.append("cells that are not RAW")
        planned = []
        for each in body["data"]:
            place = self._place(each["range"])
            if isinstance(place, Reply):
                return place
            if [len(row) for row in each["values"]] != [place.right - place.left + 1] * (place.last - place.first + 1):
                self.wrong.append(f"cells of another shape than {each['range']}")
                return _error(400, "INVALID_ARGUMENT", f"Requested writing within range [{each['range']}], but tried writing outside of it.")  # fmt: skip
            if any(len(str(cell)) > LONGEST_CELL for row in each["values"] for cell in row):
                said = f"Your input contains more than the maximum of {LONGEST_CELL} characters in a single cell."
                return _error(400, "INVALID_ARGUMENT", said)
            planned.append((place, each["values"]))
        count = 0
        for place, values in planned:
            grid = place.grid
            for row, cells in enumerate(values, place.first):
                count += 1
                for column, cell in enumerate(cells, place.left):
                    if cell == "":
                        grid.cells.pop((row, column), None)
                    elif cell is not None:
                        formula = body.get("valueInputOption") != "RAW" and str(cell).startswith("=")
                        grid.cells[row, column] = "#EXECUTED" if formula else cell
        return Reply.json({"spreadsheetId": SPREADSHEET, "totalUpdatedRows": count, "responses": []})


def _unpacked(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _number(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    return number


def _cut(cells: list[Any], empty: Any) -> list[Any]:
    kept = list(cells)
    while kept and kept[-1] == empty:
        kept.pop()
    return kept


def _error(status: int, word: str, message: str) -> Reply:
    return Reply.json({"error": {"code": status, "message": message, "status": word}}, status)


def with_a_sheet(standin: GoogleSheetsStandIn) -> GoogleSheetsStandIn:
    """As the local cloud starts it: an empty spreadsheet."""
    standin.tab("Sheet1")
    return standin


if __name__ == "__main__":
    run_by_hand(
        argparse.ArgumentParser(description=__doc__),
        lambda options: with_a_sheet(GoogleSheetsStandIn(options.seed)),
        "an empty spreadsheet",
    )
