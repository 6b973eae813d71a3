"""A stand-in for Dropbox: it knows every file and every change, pages both, forgets cursors and empties pages on demand.

By hand: python -m infra.local.standins.dropbox --port 0
"""

from __future__ import annotations

import argparse
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qs

from infra.local.standins.server import Reply, Request, StandIn, run_by_hand

APP_KEY, APP_SECRET, REFRESH_TOKEN = "baton-app", "stand-in-secret", "stand-in-refresh"  # they open nothing
FAULTS = {
    "reset": "the cursor is forgotten",
    "empty_page": "no entries, and more follow",
    "same_cursor": "no entries, and more follow, from the same place again",
    "expired": "401 for a token that was good",
    "too_many": "429 in its own words",
}


class DropboxStandIn(StandIn):
    """Changes are numbered; a cursor says which of them its holder knows, or how far a listing has come."""

    name = "dropbox"
    misbehaves: ClassVar[Mapping[str, str]] = FAULTS

    def __init__(
        self, seed: int = 0, *, budget: int | None = None, clock: Callable[[], float] = time.monotonic, page: int = 500
    ) -> None:
        super().__init__(seed, budget=budget, clock=clock)
        self.page = page
        self.files: dict[str, dict[str, Any]] = {}
        self.changes: list[dict[str, Any]] = []
        self.cursors: dict[str, tuple[list[dict[str, Any]], int, str]] = {}  # what is left, what is known, the folder
        self.tokens: dict[str, float] = {}

    # --- the truth

    def put(self, path: str, size: int = 1, *, folder: bool = False) -> None:
        """A file takes the place of whatever was there, and of all below it: only the file itself is told of."""
        with self.lock:
            if not folder:
                self.files = {
                    each: entry for each, entry in self.files.items() if not each.startswith(f"{path.lower()}/")
                }
            rev = f"{len(self.changes):09x}"
            digest = hashlib.sha256(f"{path}{rev}".encode()).hexdigest()
            entry: dict[str, Any] = {".tag": "folder" if folder else "file", "id": f"id:{digest[:20]}"}
            entry |= {"name": path.rsplit("/", 1)[-1], "path_lower": path.lower()}
            self.files[path.lower()] = entry if folder else {**entry, "rev": rev, "size": size, "content_hash": digest}
            self.changes.append(self.files[path.lower()])

    def delete(self, path: str) -> None:
        """And all below it: only the folder itself is told of."""
        with self.lock:
            gone = path.lower()
            self.files = {each: entry for each, entry in self.files.items() if each != gone and not each.startswith(f"{gone}/")}  # fmt: skip
            self.changes.append({".tag": "deleted", "name": path.rsplit("/", 1)[-1], "path_lower": gone})

    def truth(self, folder: str = "") -> dict[str, str | None]:
        """Every path in the folder, with its revision."""
        return {path: entry.get("rev") for path, entry in self.files.items() if path.startswith(f"{folder}/")}

    def figures(self) -> Mapping[str, Any]:
        return {"files": len(self.files), "changes": len(self.changes)}

    # --- answering

    def serve(self, request: Request) -> Reply:
        if request.path == "/oauth2/token":
            return self.spoil(self._token(request), self.struck_by("token"))
        faults = self.struck_by("list")
        with self.lock:
            reply = self._listed(request, faults)
        return self.spoil(reply, {name: how for name, how in faults.items() if name != "reset"})

    def _token(self, request: Request) -> Reply:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        wanted = {"grant_type": "refresh_token", "refresh_token": REFRESH_TOKEN, "client_id": APP_KEY, "client_secret": APP_SECRET}  # fmt: skip
        if form != wanted:
            return Reply.json({"error": "invalid_grant", "error_description": "refresh token is invalid"}, 400)
        token = f"sl.{secrets.token_hex(12)}"
        self.tokens[token] = self.now() + 14_400
        return Reply.json({"access_token": token, "token_type": "bearer", "expires_in": 14_400})

    def _listed(self, request: Request, faults: Mapping[str, Any]) -> Reply:
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if "expired" in faults:
            self.tokens.pop(token, None)
        if self.tokens.get(token, 0) <= self.now():
            return _error(401, "expired_access_token/...", "expired_access_token")
        if "too_many" in faults:
            told = {"error_summary": "too_many_requests/..", "error": {"reason": {".tag": "too_many_requests"}, "retry_after": 300}}  # fmt: skip
            return Reply(status=429, body=json.dumps(told).encode(), headers={"Retry-After": "300"})
        body = json.loads(request.body)
        if request.path == "/2/files/list_folder":
            path = body["path"]
            if path and path not in self.files:
                return _error(409, "path/not_found/..", "path")
            left = [entry for each, entry in sorted(self.files.items()) if each.startswith(f"{path}/")]
            return self._page(left, len(self.changes), path, faults)
        if request.path != "/2/files/list_folder/continue":
            return Reply.json({"error": "unknown route"}, 404)
        kept = self.cursors.get(body["cursor"])
        if kept is None or "reset" in faults:
            return _error(409, "reset/..", "reset")
        left, known, path = kept
        if "same_cursor" in faults:
            return Reply.json({"entries": [], "cursor": body["cursor"], "has_more": True})
        if not left:
            left = [each for each in self.changes[known:] if each["path_lower"].startswith(f"{path}/")]
            known = len(self.changes)
        return self._page(left, known, path, faults)

    def _page(self, left: list[dict[str, Any]], known: int, path: str, faults: Mapping[str, Any]) -> Reply:
        size = 0 if "empty_page" in faults else self.page
        entries, rest = left[:size], left[size:]
        cursor = secrets.token_urlsafe(24)
        self.cursors[cursor] = (rest, known, path)
        has_more = bool(rest) or "empty_page" in faults
        return Reply.json({"entries": entries, "cursor": cursor, "has_more": has_more})


def _error(status: int, summary: str, tag: str) -> Reply:
    return Reply.json({"error_summary": summary, "error": {".tag": tag}}, status)


def with_photos(standin: DropboxStandIn, count: int = 1_200) -> DropboxStandIn:
    """As the local cloud starts it: a folder of photos."""
    standin.put("/Photos", folder=True)
    for n in range(count):
        standin.put(f"/Photos/{n:04d}.jpg", 1_000 + n)
    return standin


if __name__ == "__main__":
    run_by_hand(
        argparse.ArgumentParser(description=__doc__),
        lambda options: with_photos(DropboxStandIn(options.seed)),
        "a folder of photos",
    )
