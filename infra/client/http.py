"""The HTTP API as a client sees it: one call, one answer, and every refusal as one clear sentence."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import SplitResult, urlencode, urlsplit

import urllib3

API = "/api/v1"
MACHINES = "/machine"
MACHINE_TOKEN = "baton_"  # noqa: S105 - how machine tokens begin
CONNECT_S, READ_S = 5.0, 35.0  # the gateway gives up after 30
SECONDS = urllib3.Timeout(connect=CONNECT_S, read=READ_S)
MOST_A_PAGE = 100
PASSING = frozenset({429, 502, 503, 504})
MOST_AGAIN, AGAIN_AFTER_S = 300, 1.0
POOL = urllib3.PoolManager(retries=False)


class Refusal(RuntimeError):
    """What was asked is not done; the message says why, and what to do."""

    def __init__(self, message: str, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.problem = problem or {"detail": message}


class Unanswered(Refusal):
    """Nobody said no: the way there was cut, or the API is busy. Whoever only looks may ask again."""


class Session(Protocol):
    """Who asks: the token of the moment, and a new one when the old is over."""

    def token(self) -> str: ...
    def renew(self) -> bool: ...

    @property
    def remedy(self) -> str:
        """What helps if its token is refused."""

    @property
    def tenant(self) -> str | None:
        """Which tenant is meant if nobody says so."""


@dataclass(frozen=True, slots=True)
class Client:
    url: str
    session: Session
    tenant: str | None = None

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, None, query)

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, key: str | None = None, within_s: float = READ_S
    ) -> Any:
        """`within_s`: an answer that comes later is of no use any more."""
        return self._call("POST", path, body, {}, {"Idempotency-Key": key} if key else {}, within_s)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._call("PATCH", path, body, {})

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._call("PUT", path, body, {})

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path, None, {})

    def listing(self, path: str, name: str, most: int, **query: Any) -> Any:
        """A list as the API answers it. If it takes several pages, the first with the rows of all, and `next` of the last."""
        answer = self.get(path, **query, limit=min(most, MOST_A_PAGE))
        rows, cursor = answer[name], answer["next"]
        while cursor is not None and len(rows) < most:
            page = self.get(path, **query, limit=min(most - len(rows), MOST_A_PAGE), cursor=cursor)
            rows, cursor = [*rows, *page[name]], page["next"]
        return {**answer, name: rows, "next": cursor}

    def pages(self, path: str, name: str, most: int, **query: Any) -> Iterator[Any]:
        """The rows of a list, page after page, until there are enough."""
        cursor = None
        while most > 0:
            page = self.get(path, **query, limit=min(most, MOST_A_PAGE), cursor=cursor)
            yield from page[name]
            most -= len(page[name])
            cursor = page["next"]
            if cursor is None:
                return

    def _call(
        self, method: str, path: str, body: Any, query: Mapping[str, Any], headers: Mapping[str, str] | None = None,
        within_s: float = READ_S,
    ) -> Any:  # fmt: skip
        asked = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
        for is_second in (False, True):
            token = self.session.token()
            door = MACHINES if token.startswith(MACHINE_TOKEN) else ""
            sent = {"authorization": f"Bearer {token}", "accept": "application/json", **(headers or {})}
            tenant = self.tenant or self.session.tenant
            sent |= {"x-tenant-id": tenant} if tenant else {}
            where = f"{self.url}{door}{API}{path}{'?' + asked if asked else ''}"
            status, answer = ask(method, where, sent, body, within_s)
            if status == 401 and not is_second and self.session.renew():
                continue
            return _read(self.url, method, status, answer, self.session.remedy)
        raise AssertionError


@dataclass(frozen=True, slots=True)
class Patient(Client):
    """For whoever watches: while nobody answers it asks again, for five minutes. `tell` hears of it once."""

    tell: Callable[[str], None] = print

    def get(self, path: str, **query: Any) -> Any:
        for left in reversed(range(MOST_AGAIN)):
            try:
                return Client.get(self, path, **query)
            except Unanswered as error:
                if not left:
                    raise
                if left == MOST_AGAIN - 1:
                    self.tell(f"{error}; trying again")
                time.sleep(AGAIN_AFTER_S)
        raise AssertionError

    @classmethod
    def like(cls, client: Client, tell: Callable[[str], None]) -> Patient:
        return cls(client.url, client.session, client.tenant, tell)


def ask(
    method: str, url: str, headers: Mapping[str, str], body: Any = None, within_s: float = READ_S
) -> tuple[int, bytes]:
    """One request. A local cloud gives each API a name below `localhost`, which not every resolver knows."""
    parts, host = _place(url)
    sent = {**({} if body is None else {"content-type": "application/json"}), **headers}
    if host.endswith(".localhost"):
        sent["host"] = parts.netloc
        url = url.replace(f"//{parts.netloc}", f"//127.0.0.1:{parts.port or 80}", 1)
    elif parts.scheme != "https" and host not in {"localhost", "127.0.0.1", "::1"}:
        raise Refusal(f"{parts.scheme}://{parts.netloc} is not encrypted. A token is only sent over https://")
    try:
        answer = POOL.request(
            method,
            url,
            body=None if body is None else json.dumps(body).encode(),
            headers=sent,
            timeout=urllib3.Timeout(connect=min(CONNECT_S, within_s), read=min(READ_S, within_s)),
            redirect=False,
        )
    except urllib3.exceptions.HTTPError as error:
        fix = ". Run `baton status` to see what is running, `baton up` to fix it" if host.endswith(".localhost") else ""
        raise Unanswered(f"{parts.scheme}://{parts.netloc} is not responding ({type(error).__name__}){fix}") from None
    except ValueError:  # of http.client, which sends no line break and nothing beyond Latin-1 in a header
        raise Refusal(
            "BATON_TOKEN, the tenant or the key has a line break or a character in it that can't be sent"
        ) from None
    return answer.status, answer.data


def _place(url: str) -> tuple[SplitResult, str]:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise Refusal(f"{url} is not an address: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise Refusal(f"{url.partition('/api/')[0]} is not the address of an API. It starts with https://")
    return parts, host


# What the gateway in front of the API answers itself, without a word of ours: its body is a `message` and nothing else.
_HELD_UP = "the API didn't answer in time, or as many of its functions are running as may. Try again in a few seconds"
GATEWAYS = {
    403: "the gateway in front of the API refused the request (403). A firewall may be in the way, or the address is another API's",
    413: "the request is larger than the gateway takes (413). A body is JSON of 256 KiB at most; files go to the place that an upload names",
    429: "too many requests at once (429). Try again in a few seconds, and with fewer at a time",
    500: "the API's function couldn't be run, or ended without an answer (500). Its log says why: `baton logs`, or CloudWatch",
    502: f"{_HELD_UP} (502)",
    503: f"{_HELD_UP} (503)",
    504: f"{_HELD_UP} (504)",
}
UNSURE = "It may have been done all the same: look before you send it again, or send it with the same --key"


def _read(url: str, method: str, status: int, answer: bytes, remedy: str) -> Any:
    try:
        said = json.loads(answer) if answer else {}
    except ValueError:
        said = None
    not_ours = f"{url} did not answer as Baton's API does. Its address is the stack's output ApiUrl, without a path"
    if status < 400:
        if said is None:  # a page of something else, or of the console
            raise Refusal(not_ours)
        return said
    problem = said if isinstance(said, dict) else {}
    if status == 401:
        raise Refusal(remedy, problem)
    if status == 404 and "detail" not in problem:  # the gateway's own, which has no such path, or not yet
        raise Unanswered(not_ours, {"status": status, **problem})
    detail = problem.get("detail") or GATEWAYS.get(status) or problem.get("message") or f"the API answered {status}"
    if "detail" not in problem and status >= 500 and method != "GET":
        detail = f"{detail}. {UNSURE}"
    refused = Unanswered if status in PASSING else Refusal
    raise refused(str(detail), {"status": status, **problem})
