"""Marketing Cloud Engagement as a remote system: one call per question, every failure sorted by who tries again.

Its SOAP answers an expired token and a throttle with the status 500, and refuses business requests with the status 200.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, get_args
from urllib.parse import quote as url_quoted
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

from pydantic import Field, ValidationError

from shared.kernel.answers import Shape, read_json, shaped
from shared.kernel.errors import Permanent, StepError, Throttled, Transient, bad_answer
from shared.kernel.http import Answer, Http, Pool, retry_after_s, safe_base_url
from shared.kernel.tokens import Token, TokenRefused
from shared.query_run.adapters import soap
from shared.query_run.model import DOMAIN, MOST_COLUMNS, ActivityStatus, Column, Rowset, Validation

NAME: Final = "Marketing Cloud"
RATE_LIMITED: Final = 17
SOAP_WAIT_S: Final = 30.0  # its throttle never says how long
MOST_LISTS: Final = 20
TRY_AGAIN: Final = frozenset({2, 9, 10, 13})
TYPES: Final = {name.casefold(): name for name in get_args(Column.model_fields["type"].annotation)}
JSON_HEADERS: Final = {"content-type": "application/json", "accept": "application/json"}


class _Token(Shape):
    access_token: Annotated[str, Field(pattern=r"^[!-~]{1,4096}$")]  # it becomes part of a header
    expires_in: Annotated[int, Field(ge=1)]
    rest_instance_url: str
    soap_instance_url: str


class _Running(Shape):
    isRunning: bool  # noqa: N815 - its name on the wire
    queryDefinitionId: str | None = None  # noqa: N815


class _Row(Shape):
    keys: dict[str, Any] = Field(default_factory=dict)
    values: dict[str, Any] = Field(default_factory=dict)


class _Rowset(Shape):
    count: Annotated[int, Field(ge=0, le=10**15)]
    page: Annotated[int, Field(ge=1)]
    items: list[_Row] = Field(default_factory=list)
    customObjectKey: str | None = None  # noqa: N815 - its name on the wire


class _Validated(Shape):
    queryValid: bool  # noqa: N815 - its name on the wire
    errors: Any = None
    errorMessage: str | None = None  # noqa: N815
    columns: list[Any] | None = None


class Mce:
    """One business unit of one account, for one step. `auth_url` is where tokens come from; the token names the rest."""

    def __init__(
        self,
        auth_url: str,
        client_id: str,
        client_secret: str,
        mid: str,
        *,
        time_left_s: Callable[[], float],
        gate: str = "mce",
        pool: Pool | None = None,
    ) -> None:
        self._auth_url = safe_base_url(auth_url)
        self._client_id, self._client_secret, self._mid = client_id, client_secret, mid
        self._gate, self._time_left_s, self._pool = gate, time_left_s, pool

    # --- the token

    def authenticate(self) -> Token:
        http = self._http(self._auth_url, "")
        asked = {
            "grant_type": "client_credentials",
            "client_id": self._client_id,
            "client_secret": self._client_secret,
            "account_id": self._mid,
        }
        answer = http.send("POST", "/v2/token", body=json.dumps(asked).encode(), headers=JSON_HEADERS)
        if answer.status in (400, 401, 403):
            why = _reason(answer, http, "")
            raise Permanent(f"{NAME} refuses the client id and secret for MID {self._mid}: {why}", "bad_credentials")
        if answer.status != 200:
            raise http.refusal(answer, _reason(answer, http, ""))
        got = shaped(_Token, read_json(answer.body))
        places = {"rest": self._place(got.rest_instance_url), "soap": self._place(got.soap_instance_url)}
        return Token(got.access_token, got.expires_in, places)

    def _place(self, url: str) -> str:
        """Where a token may be sent: a host of Marketing Cloud, or this machine if the tokens come from here too."""
        url = url if "://" in url else f"https://{url}"
        try:
            safe = safe_base_url(url)
        except ValueError as error:
            raise bad_answer(f"{NAME} names an address that cannot be used: {error}.") from None
        own = urlsplit(self._auth_url).netloc
        netloc = urlsplit(safe).netloc
        if netloc != own and not (netloc.endswith(DOMAIN) and safe.startswith("https://")):
            raise bad_answer(f"{NAME} names an address that is not its own.")
        return safe

    # --- execute

    def validate(self, token: Token, sql: str) -> Validation:
        answer = self._rest(token, "POST", "/automation/v1/queries/actions/validate", body={"Text": sql})
        said = shaped(_Validated, read_json(answer.body))
        if said.queryValid:
            return Validation(valid=True, columns=_columns(said.columns))
        errors = said.errors if isinstance(said.errors, list) else [said.errors]
        told = [said.errorMessage, *(_error_text(each) for each in errors)]
        message = "; ".join(each for each in told if each) or "it gives no reason"
        return Validation(valid=False, message=self._http("", token.value).quote(message))

    def create_target(self, token: Token, key: str, columns: Sequence[Column], kept_days: int = 1) -> str:
        result = self._change(token, "Create", soap.create_target(key, key, columns, kept_days))
        return self._created(token, result, lambda: self.find_target(token, key))

    def find_target(self, token: Token, key: str) -> str | None:
        return self._find(token, "DataExtension", key)

    def create_query(self, token: Token, key: str, sql: str, target_key: str, target_id: str) -> str:
        result = self._change(token, "Create", soap.create_query(key, key, sql, target_key, target_id))
        return self._created(token, result, lambda: self.find_query(token, key))

    def find_query(self, token: Token, key: str) -> str | None:
        return self._find(token, "QueryDefinition", key)

    def start(self, token: Token, object_id: str) -> str:
        element = soap.expect(self._soap(token, "Perform", soap.perform(object_id)), "PerformResponseMsg")
        result = soap.one_result(element, inside="Result")
        if not result.ok:
            raise self._refused(token, result)
        if (why := soap.task_refusal(result)) is not None:  # the call is OK, the task in it is not
            raise self._refused(token, replace(result, message=why))
        return soap.task_id(result)

    # --- poll

    def status(self, token: Token, task_id: str) -> ActivityStatus | None:
        """None: it knows of no such task (yet)."""
        asked = soap.retrieve(
            "AsyncActivityStatus", ("Status", "ErrorMsg", "CompletedDate"), ("TaskID", "equals", task_id)
        )
        return soap.activity_status(self._retrieve(token, asked))

    def is_running(self, token: Token, object_id: str) -> bool:
        wanted = soap.guid(object_id)
        path = f"/automation/v1/queries/{wanted}/actions/isrunning/"
        said = shaped(_Running, read_json(self._rest(token, "GET", path).body))
        if said.queryDefinitionId is not None and soap.guid(said.queryDefinitionId) != wanted:
            raise bad_answer("The answer is about another query than the one that was asked for.")
        return said.isRunning

    def rows(self, token: Token, key: str, page: int, size: int) -> Rowset:
        path = f"/data/v1/customobjectdata/key/{url_quoted(key, safe='')}/rowset"
        answer = self._rest(token, "GET", path, query={"$page": str(page), "$pageSize": str(size)})
        found = shaped(_Rowset, read_json(answer.body))
        if found.page != page or found.customObjectKey not in (None, key):
            raise bad_answer("The answer is another page of rows than the one that was asked for.")
        if len(found.items) != max(0, min(size, found.count - (page - 1) * size)):
            raise bad_answer(f"The answer has {len(found.items)} rows on page {page} of {found.count} rows in all.")
        if any(
            isinstance(value, float) for item in found.items for value in (*item.keys.values(), *item.values.values())
        ):
            found = shaped(_Rowset, json.loads(answer.body, parse_float=str))  # the digits that it has, not the nearest
        rows = [_row(item) for item in found.items]
        if b"\\ud" in answer.body.lower():  # only written like this can half a character get here, which no file takes
            rows = [{_whole(name): value and _whole(value) for name, value in row.items()} for row in rows]
        text = json.dumps([found.count, rows], sort_keys=True)
        return Rowset(count=found.count, rows=rows, mark=hashlib.sha256(text.encode()).hexdigest()[:16])

    # --- clean up

    def delete_query(self, token: Token, object_id: str) -> None:
        self._delete(token, soap.delete("QueryDefinition", ObjectID=object_id))

    def delete_target(self, token: Token, key: str) -> None:
        self._delete(token, soap.delete("DataExtension", CustomerKey=key))

    def keys(self, token: Token, type_: str, prefix: str, most: int) -> list[str]:
        """The keys of what is there, by how they begin."""
        asked = soap.retrieve(type_, ("CustomerKey",), ("CustomerKey", "like", f"{prefix}%"))
        found: list[str] = []
        for _ in range(MOST_LISTS):
            element = self._retrieve(token, asked)
            found += [
                key for each in soap.retrieved(element) if (key := (soap.field(each, "CustomerKey") or "").strip())
            ]
            request_id = soap.request_id(element)
            if soap.overall(element) != "MoreDataAvailable" or len(found) >= most or not request_id:
                return [key for key in found if key.startswith(prefix)][:most]
            asked = soap.continued(type_, request_id)
        raise bad_answer(f"{NAME} has no end to what it lists.")

    def _delete(self, token: Token, body: str) -> None:
        result = self._change(token, "Delete", body)
        if not result.ok and result.error_code != soap.MISSING_OBJECT:
            raise self._refused(token, result)

    # --- SOAP

    def _find(self, token: Token, type_: str, key: str) -> str | None:
        asked = soap.retrieve(type_, ("ObjectID", "CustomerKey"), ("CustomerKey", "equals", key))
        found = soap.retrieved(self._retrieve(token, asked))
        if len(found) > 1:
            raise bad_answer(f"The answer has {len(found)} objects with one key.")
        if found and (soap.field(found[0], "CustomerKey") or "").strip() not in ("", key):
            raise bad_answer("The answer is about another object than the one that was asked for.")
        return soap.guid(soap.field(found[0], "ObjectID")) if found else None

    def _retrieve(self, token: Token, body: str) -> Element:
        element = soap.expect(self._soap(token, "Retrieve", body), "RetrieveResponseMsg")
        status = soap.overall(element)
        if status not in ("OK", "MoreDataAvailable"):
            raise self._business(status, token)
        return element

    def _change(self, token: Token, action: str, body: str) -> soap.Result:
        element = soap.expect(self._soap(token, action, body), f"{action}Response")
        return soap.one_result(element)

    def _created(self, token: Token, result: soap.Result, find: Callable[[], str | None]) -> str:
        """Whoever is refused looks whether it is there, in whatever words that is said: nobody else makes this key."""
        if result.ok:
            return soap.new_object_id(result)
        found = find()
        if found is not None:
            return found
        raise self._refused(token, result)

    def _refused(self, token: Token, result: soap.Result) -> StepError:
        said = self._http("", token.value).quote(result.message or f"error {result.error_code}")
        return Permanent(f"{NAME} refuses the request: {said}", "request_refused")

    def _business(self, status: str, token: Token) -> StepError:
        said = self._http("", token.value).quote(status)
        if "do not match with the fields" in status:
            return Permanent(f"{NAME} does not know what was asked for: {said}", "bad_request")
        return bad_answer(f"{NAME} could not answer: {said}")

    def _soap(self, token: Token, action: str, body: str) -> Element:
        http = self._http(token.extra.get("soap", ""), token.value)
        headers = {"content-type": "text/xml; charset=utf-8", "soapaction": action}
        answer = http.send("POST", "/Service.asmx", body=soap.envelope(token.value, body), headers=headers)
        if answer.status not in (200, 500):
            if answer.status == 400:
                raise Permanent(f"{NAME} did not understand the request (400).", "bad_request")
            raise http.refusal(answer)
        try:
            element = soap.read_body(answer.body)
        except Transient:
            if answer.status == 500:
                raise http.refusal(answer) from None
            raise
        fault = soap.read_fault(element)
        if fault is not None:
            raise self._fault(fault, answer, http)
        if answer.status != 200:
            raise http.refusal(answer)
        return element

    def _fault(self, fault: soap.Fault, answer: Answer, http: Http) -> StepError:
        said = http.quote(fault.text or fault.code)
        if fault.api_code == RATE_LIMITED or re.search(r"rate limit", fault.text, re.IGNORECASE):
            wait_s = max(SOAP_WAIT_S, retry_after_s(answer.headers) or 0)
            return Throttled(gate=self._gate, retry_after_s=wait_s, message=f"{NAME} asks to wait ({said}).")
        if fault.code.endswith(":Security") or re.search(r"token (is )?(expired|invalid)", fault.text, re.IGNORECASE):
            return TokenRefused(f"{NAME} refuses our token: {said}")
        if fault.api_code == 12:
            return Permanent(f"{NAME} refuses access: {said}", "bad_credentials")
        if fault.api_code is None or fault.api_code in TRY_AGAIN:
            return Transient(f"{NAME} failed: {said}", code="server_error")
        return Permanent(f"{NAME} refuses the request ({fault.api_code}): {said}", "request_refused")

    # --- REST

    def _rest(
        self, token: Token, method: str, path: str, *, query: dict[str, str] | None = None, body: Any = None
    ) -> Answer:
        http = self._http(token.extra.get("rest", ""), token.value)
        headers = {**JSON_HEADERS, "authorization": f"Bearer {token.value}"}
        sent = None if body is None else json.dumps(body).encode()
        answer = http.send(method, path, query=query, body=sent, headers=headers)
        if answer.status == 200:
            return answer
        said = _reason(answer, http, token.value)
        if answer.status == 403:
            raise Permanent(f"{NAME} does not allow this account to do that (403): {said}", "forbidden")
        raise http.refusal(answer, said)

    def _http(self, base_url: str, token: str) -> Http:
        secrets = [self._client_secret, token]
        return Http(
            base_url or self._auth_url, name=NAME, gate=self._gate, time_left_s=self._time_left_s, secrets=secrets,
            pool=self._pool,
        )  # fmt: skip


def _reason(answer: Answer, http: Http, token: str) -> str:
    """What a refusal says, if it says anything in words."""
    try:
        said = read_json(answer.body)
    except Transient:
        return ""
    if not isinstance(said, dict):
        return ""
    text = next(
        (said[name] for name in ("message", "error_description", "error") if isinstance(said.get(name), str)), ""
    )
    return http.quote(text, token)


def _error_text(error: Any) -> str:
    if isinstance(error, str):
        return error
    if isinstance(error, dict):
        return next((error[name] for name in ("message", "errorMessage") if isinstance(error.get(name), str)), "")
    return ""


def _columns(told: list[Any] | None) -> list[Column] | None:
    """The columns that a validation names, if it does and all of them are understood."""
    if not told or len(told) > MOST_COLUMNS:
        return None
    try:
        columns = [
            Column.model_validate(
                {
                    "name": each["name"],
                    "type": TYPES[str(each.get("type", "Text")).casefold()],
                    "max_length": each.get("maxLength"),
                }
            )
            for each in told
        ]
    except (KeyError, TypeError, AttributeError, ValidationError):
        return None
    return columns if len({column.name.casefold() for column in columns}) == len(columns) else None


def _whole(text: str) -> str:
    """Half of a surrogate pair becomes a replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _row(item: _Row) -> dict[str, str | None]:
    """Keys and values together; a number stays the text that it is on the wire."""
    both = {**item.keys, **item.values}
    both.pop("_CustomObjectKey", None)
    return {
        str(name): None if value is None else value if isinstance(value, str) else json.dumps(value)
        for name, value in both.items()
    }
