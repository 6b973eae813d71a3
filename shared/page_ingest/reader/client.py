"""A source as one step may ask it: a request of the file filled in and sent, its answer sorted by what the file calls it."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import unquote, unquote_plus, urlencode

import orjson

from shared.kernel.answers import read_json
from shared.kernel.errors import Permanent, StepError, Throttled, Transient, bad_answer
from shared.kernel.http import LONGEST_WAIT_S, Answer, AnswerTooLarge, SlowUpstream
from shared.kernel.tokens import Token, TokenRefused
from shared.page_ingest.ports import PageTooBig
from shared.page_ingest.reader import answers, fill
from shared.page_ingest.reader.answers import MISSING, PageRead
from shared.page_ingest.reader.walk import Asked
from shared.page_ingest.source.model import ErrorRule, Rate, Resource, Source

TOKEN_LIVES_S = 3_600  # when the upstream does not say
OAUTH = frozenset({"client_credentials", "refresh_token"})
ERRORS = ("/error_description", "/error/message", "/errors/0/message", "/errors/0", "/error")
REASONS = ("/error_description", "/message", "/error/message", "/errors/0/message", "/0/message", "/error")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(eq=False)
class Expired(Transient):
    """The upstream does not know the place in its list any more."""

    code: str = "expired"


class Wire(Protocol):
    """What carries a question to a host of the file and brings the answer, whole and bounded."""

    def send(
        self,
        host: str,
        method: str,
        target: str,
        *,
        query: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer: ...
    def refusal(self, answer: Answer, said: str) -> StepError: ...
    def throttled(self, headers: Mapping[str, str], said: str) -> Throttled: ...
    def quote(self, text: str, *secrets: str) -> str: ...


@dataclass(slots=True, kw_only=True)
class Client:
    """`token`: what a log-in gave; `save`: where a rotated refresh token is kept. `pause`: the quota is nearly used up."""

    source: Source
    settings: Mapping[str, Any]
    secret: Mapping[str, str] = field(repr=False)
    wire: Wire
    token: str | None = field(default=None, repr=False)
    save: Callable[[str, str], None] | None = None
    newest: Callable[[], Mapping[str, str]] | None = None  # the secret as it is now
    before: Callable[[], None] = lambda: None  # waits for its turn, or raises Later
    now: datetime | None = None  # of the database, for upstreams that do not say their own
    pause: Throttled | None = None
    asked: int = 0

    # --- questions

    def page(self, resource: Resource, part: Mapping[str, Any], since: str | None, asked: Asked) -> PageRead:
        words = fill.words_of(resource, self.settings, part, since) | asked.words
        question = fill.filled(self.source, resource.request, words)
        try:
            answer, body = self._ask(question, resource, link=asked.link)
        except (SlowUpstream, AnswerTooLarge) as error:
            raise PageTooBig(error.message) from None
        except _Empty:
            return PageRead(rows=(), at_end=True)
        path = question.path if asked.link is None else asked.link.partition("?")[0]
        url = f"https://{question.host}{path}"
        read = answers.read_page(resource, body, answer.headers, asked.size, url, answer.body)
        if not read.rows and (said := self._error_in(body)):
            raise Transient(f"{self.source.name} answered an empty list with an error. {said}", code="upstream_error")
        return read if not isinstance(read.next, str) else _with_next(read, self._stripped(read.next))

    def count(self, resource: Resource, part: Mapping[str, Any], since: str | None) -> tuple[int, bool]:
        """How many rows there are, and whether that proves anything."""
        assert resource.count is not None
        words = fill.words_of(resource, self.settings, part, since)
        if resource.count.request is None:
            page = resource.page
            first = {"number": page.first, "offset": 0, "token": page.first}.get(page.style)
            words |= {"size": page.size, **({page.style: first} if first is not None else {})}
        question = fill.filled(self.source, fill.count_request(resource), words)
        try:
            _, body = self._ask(question, resource)
        except _Empty:
            return 0, False
        return answers.read_count(resource, body)

    def is_gone(self, resource: Resource, columns: Mapping[str, Any]) -> bool:
        """Whether the upstream says that it does not have this row. Only its own words for that count: a row that cannot be
        asked for, or that has moved elsewhere, is not judged."""
        try:
            host, path = fill.placed(self.source, resource.gone.look, {**columns, **self.settings})
        except Permanent:
            return False
        answer = self._send(fill.Filled(method="GET", host=host, path=path, query={}), None)
        body = _body(answer)
        rule = self._rule(answer, body)
        # What a rule says of a status alone is about lists; of a single row the status means what `gone` says.
        if rule is not None and rule.says_more and rule.means != "empty":
            raise self._sorted(answer, body, resource) or bad_answer("The answer is not understood.")
        if answer.status in resource.gone.status:
            return True
        if 200 <= answer.status < 400:
            return False
        raise self._sorted(answer, body, resource) or self.wire.refusal(answer, "")

    def log_in(self) -> Token:
        """A new access token. A rotated refresh token is kept first: if that fails, the access token is used by nobody."""
        auth = self.source.auth
        if (
            self.newest is not None
        ):  # another step may have changed it between the beginning of this one and its turn to log in
            self.secret = self.newest()
        host, path = fill.placed(self.source, auth.url, self.settings)
        form = {
            "grant_type": auth.way,
            "client_id": self.secret[auth.fields[0]],
            "client_secret": self.secret[auth.fields[1]],
        }
        if auth.scope:
            form["scope"] = auth.scope
        if auth.way == "refresh_token":
            form["refresh_token"] = self.secret[auth.fields[2]]
        self.asked += 1
        answer = self.wire.send(
            host, "POST", path, query={}, body=urlencode(form).encode(),
            headers={"content-type": "application/x-www-form-urlencoded", "accept": "application/json"},
        )  # fmt: skip
        body = _body(answer)
        if answer.status in (400, 401, 403):
            raise Permanent(
                f"The log-in was refused ({answer.status}): change the connection, or log in again. {self._said(body)}",
                code="bad_credentials",
            )
        if answer.status != 200:
            raise self.wire.refusal(answer, self._said(body))
        token, lives = answers.at(body, "/access_token"), answers.at(body, "/expires_in")
        if not isinstance(token, str) or not 0 < len(token) <= 8_192 or not token.isascii() or not token.isprintable():
            raise bad_answer("The log-in answered without an access token.")
        rotated = answers.at(body, "/refresh_token")
        if auth.way == "refresh_token" and isinstance(rotated, str) and rotated and rotated != form["refresh_token"]:
            if self.save is None:
                raise Permanent(
                    "The refresh token was changed, and there is nowhere to keep it.", code="bad_credentials"
                )
            self.save(auth.fields[2], rotated)
        return Token(token, int(lives) if type(lives) in (int, float) and 1 <= lives <= 10**7 else TOKEN_LIVES_S)

    # --- one exchange

    def _ask(self, question: fill.Filled, resource: Resource, link: str | None = None) -> tuple[Answer, Any]:
        answer = self._send(question, link)
        body = _body(answer)
        error = self._sorted(answer, body, resource)
        if error is not None:
            raise error
        if body is MISSING:
            read_json(answer.body)  # says what it is instead
            raise bad_answer("The answer is empty.")
        return answer, body

    def _send(self, question: fill.Filled, link: str | None) -> Answer:
        self.before()
        headers = {"accept": "application/json", **{name.lower(): value for name, value in self.source.headers.items()}}
        query = dict(question.query)
        target = question.path
        if link is not None:
            target, query = link, {}
        body = None
        if question.method == "POST":
            body = orjson.dumps(question.body)
            headers["content-type"] = "application/json"
        self._authorize(headers, query)
        if link is not None and query:
            target, query = f"{target}{'&' if '?' in target else '?'}{urlencode(query)}", {}
        self.asked += 1
        answer = self.wire.send(question.host, question.method, target, query=query, body=body, headers=headers)
        self.pause = self._nearly_used_up(self.source.rate, answer)
        return answer

    def _authorize(self, headers: dict[str, str], query: dict[str, str]) -> None:
        auth = self.source.auth
        if auth.way in OAUTH:
            headers["authorization"] = f"Bearer {self.token}"
        elif auth.way == "bearer":
            headers["authorization"] = f"Bearer {self.secret[auth.fields[0]]}"
        elif auth.way == "basic":
            both = ":".join(self.secret[name] for name in auth.fields)
            headers["authorization"] = f"Basic {base64.b64encode(both.encode()).decode()}"
        elif auth.way == "header":
            headers[auth.name.lower()] = self.secret[auth.fields[0]]
        elif auth.way == "query":
            query[auth.name] = self.secret[auth.fields[0]]

    def _sorted(self, answer: Answer, body: Any, resource: Resource) -> Exception | None:
        """What this answer is called; None: it is one."""
        said, rule = self._said(body), self._rule(answer, body)
        match None if rule is None else rule.means:
            case "throttled":
                return self.wire.throttled(answer.headers, said or str(answer.status))
            case "too_big":
                return PageTooBig(f"{self.source.name} cannot answer so much ({answer.status}).")
            case "login":
                return self._refused(f"{self.source.name} wants a new log-in ({answer.status}). {said}")
            case "expired":
                return Expired(f"{self.source.name} does not know the place in its list any more. {said}")
            case "empty":
                return _Empty()
            case "transient":
                return Transient(f"{self.source.name} answered with an error. {said}", code="upstream_error")
            case "permanent":
                return Permanent(
                    f"{self.source.name} refuses the request ({answer.status}). {said}", code="request_refused"
                )
        if answer.status == 202:
            return Transient(f"{self.source.name} has no answer yet (202).", code="not_ready")
        if 200 <= answer.status < 300:
            failed = resource.request.verb == "graphql" and answers.at(body, "/errors") not in (MISSING, None, [])
            return (
                Transient(f"{self.source.name} answered with an error. {said}", code="upstream_error")
                if failed
                else None
            )
        if answer.status == 413:
            return PageTooBig(f"{self.source.name} cannot answer so much (413).")
        if answer.status == 401:
            return self._refused(f"{self.source.name} refuses our access (401). {said}")
        if 300 <= answer.status < 400:
            return Permanent(f"{self.source.name} redirects ({answer.status}): it was not followed.", code="redirected")
        return self.wire.refusal(answer, said)

    def _rule(self, answer: Answer, body: Any) -> ErrorRule | None:
        return answers.rule_for(self.source.errors, answer.status, answer.headers, None if body is MISSING else body)

    def _refused(self, said: str) -> StepError:
        """A token can be fetched anew. A key that stands in the connection is what it is."""
        if self.source.auth.way in OAUTH:
            return TokenRefused(said)
        return Permanent(f"{said} Change the connection.", code="bad_credentials")

    def _said(self, body: Any) -> str:
        """The reason in the upstream's words, if it gives one where most do."""
        return self._first_text(body, REASONS)

    def _error_in(self, body: Any) -> str:
        """The error that stands beside the rows, in words."""
        return self._first_text(body, ERRORS) if isinstance(body, dict) else ""

    def _first_text(self, body: Any, pointers: Sequence[str]) -> str:
        for pointer in pointers:
            found = answers.at(body, pointer) if body is not MISSING else MISSING
            if isinstance(found, str) and found:
                return self.wire.quote(found, self.token or "", *self.secret.values())
        return ""

    def _nearly_used_up(self, rate: Rate, answer: Answer) -> Throttled | None:
        """Once no more than the reserve is left, everybody with this account waits until there is more."""
        if rate.left is None or rate.resets is None:
            return None
        left = answer.headers.get(rate.left.removeprefix("header:"), "").strip()
        if not left.isascii() or not left.isdigit() or int(left[:12]) > rate.reserve:
            return None
        wait_s = self._resets_in(
            answer.headers.get(rate.resets.removeprefix("header:"), "").strip(), rate, answer.headers
        )
        if wait_s is None or wait_s <= 0:
            return None
        said = f"{left} requests are left, of which {rate.reserve} are for others"
        told = {**answer.headers, "retry-after": str(int(min(wait_s, LONGEST_WAIT_S)) + 1)}
        return self.wire.throttled(told, said)

    def _resets_in(self, text: str, rate: Rate, headers: Mapping[str, str]) -> float | None:
        try:
            here = parsedate_to_datetime(headers["date"]) if "date" in headers else self.now
            now = 0.0 if here is None else here.timestamp()
            if rate.resets_as == "date":
                found = parsedate_to_datetime(text) if "," in text else datetime.fromisoformat(text)
                return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() - now
            number = float(text)
            if not math.isfinite(number):
                return None
        except (ValueError, TypeError, OverflowError):
            return None
        return number if rate.resets_as == "seconds" else None if here is None else number - now

    def _stripped(self, place: str) -> str:
        """A place as a cursor may keep it: no secret is in it, however it came there."""
        auth = self.source.auth
        if auth.way == "query" and f"{auth.name}=" in unquote_plus(place) and place.startswith("/"):
            place = answers.without(place, auth.name)
        spelled = (place, unquote(place), unquote_plus(place))
        for secret in (*self.secret.values(), self.token or ""):
            if len(secret) >= 6 and any(secret in each for each in spelled):
                raise Permanent(
                    "The upstream repeats the secret in the place of the next page: it was not kept.", "echoed_secret"
                )
        return place


class _Empty(Exception):
    """What the file calls an empty list."""


def _with_next(read: PageRead, next_: str) -> PageRead:
    return PageRead(
        rows=read.rows, next=next_, at_end=read.at_end, count=read.count, exact=read.exact, ordered=read.ordered,
        first=read.first, last=read.last,
    )  # fmt: skip


def _body(answer: Answer) -> Any:
    """The JSON of an answer; MISSING: it has none that can be read."""
    if not answer.body:
        return MISSING
    try:
        return read_json(answer.body.removeprefix(BYTE_ORDER_MARK))
    except Transient:
        return MISSING
