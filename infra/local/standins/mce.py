"""A stand-in for Marketing Cloud Engagement on the real wire protocol: tokens, SOAP, REST.

It knows the truth: which queries ran and when, what was asked about them, what is left. A query is told what to do by a
comment, `/* seconds=40; rows=7 */` (also `error=text` and `invalid=text`); without one it takes 5 seconds and answers a few
rows. Rows arrive one by one while it runs, as in the real system, where rows prove nothing about the end.

Its own misbehaviours, beside the common ones:

    early_completed   CompletedDate is set from the first poll on, and the status stays Queued for ever
    stays_queued      the status stays Queued for ever, without a date
    no_status         it knows of no such task
    odd_status        ` COMPLETE ` instead of Complete
    error_message     an ErrorMsg although the status is no error
    queued_error      a query that fails says so by its ErrorMsg alone: the status stays Queued
    not_running       isrunning says false although it runs
    still_running     isrunning says true although it does not
    odd_running       isrunning answers `{}`
    text_running      isrunning answers the text "false"
    no_rowset         404 in place of rows
    rate_limited      SOAP fault 17
    odd_fault         SOAP fault 5
    blocked           429 without Retry-After, errorcode 50200
    duplicate_key     a create is done and answered with "already exists"
    token_expired     the token is refused, as if it had expired
"""

from __future__ import annotations

import argparse
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar
from urllib.parse import unquote
from uuid import UUID
from xml.etree.ElementTree import Element, ParseError
from xml.sax.saxutils import escape

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from infra.local.standins.faults import COMMON, Misbehaviour
from infra.local.standins.server import Reply, Request, StandIn, run_by_hand

CLIENT_ID, CLIENT_SECRET = "stand-in-client", "stand-in-secret"  # they open nothing
TOKEN_LIVES_S = 1_079
OWN: Mapping[str, set[str]] = {  # what each of them concerns; nothing: everything
    **{
        key: {"status"}
        for key in ("early_completed", "stays_queued", "no_status", "odd_status", "error_message", "queued_error")
    },
    **{key: {"isrunning"} for key in ("not_running", "still_running", "odd_running", "text_running")},
    **{key: set[str]() for key in ("rate_limited", "odd_fault", "blocked", "token_expired")},
    "no_rowset": {"rowset"},
    "duplicate_key": {"create DataExtension", "create QueryDefinition"},
}
E, P = "{http://schemas.xmlsoap.org/soap/envelope/}", "{http://exacttarget.com/wsdl/partnerAPI}"
XSI_TYPE = "{http://www.w3.org/2001/XMLSchema-instance}type"
TOLD = re.compile(r"/\*(.*?)\*/", re.DOTALL)
QUERY = re.compile(r"/automation/v1/queries/([^/]+)/actions/isrunning/?")
ROWSET = re.compile(r"/data/v1/customobjectdata/key/([^/]+)/rowset")
PAGE = 2_500


class MceMisbehaviour(Misbehaviour):
    like: str = ""  # concerns only what has this in its SQL or key

    def model_post_init(self, _: Any) -> None:
        if self.fault not in OWN and self.fault not in COMMON:
            raise ValueError(f"there is no misbehaviour {self.fault}")

    def concerns(self, operation: str, facts: Mapping[str, Any]) -> bool:
        own = OWN.get(self.fault)
        return (
            Misbehaviour.concerns(self, operation, facts)
            and (not own or operation in own)
            and self.like in str(facts.get("sql", ""))
        )


@dataclass(slots=True)
class Target:
    id: str
    key: str
    columns: list[str]
    kept_days: int = 1
    made: list[dict[str, str]] = field(default_factory=list)  # rows of queries that are over
    by: Activity | None = None  # who writes now


@dataclass(slots=True)
class Definition:
    id: str
    key: str
    sql: str
    target_key: str


@dataclass(slots=True)
class Activity:
    """One execution of a query."""

    task_id: str
    definition: Definition
    started_at: float
    ends_at: float
    rows: list[dict[str, str]]
    error: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about one query: which, about what, when."""

    what: str
    key: str
    at: float
    size: int = 0  # of the page that was asked for


class MceStandIn(StandIn):
    name = "mce"
    misbehaviours: ClassVar[type[Misbehaviour]] = MceMisbehaviour

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__(seed, **options)
        self.client_id, self.client_secret = CLIENT_ID, CLIENT_SECRET
        self.token_lives_s = TOKEN_LIVES_S
        self.names_columns = False
        self.keys_a_page = PAGE
        self.token_uses: int | None = None  # a token dies after so many
        self.taken_says = "{} with this CustomerKey already exists."
        self.missing_code = "310002"
        self.says_complete_early = False  # the status is Complete from the first poll on
        self.rows_late_s = 0.0  # how long after the end of a query some of its rows cannot be read yet
        self._rest_of: dict[str, list[tuple[str, str]]] = {}  # what a retrieve has not answered yet, by its request id
        self.targets: dict[str, Target] = {}
        self.definitions: dict[str, Definition] = {}
        self.activities: list[Activity] = []
        self.asked: list[Asked] = []
        self.wrong: list[str] = []  # what nobody may do to us
        self._tokens: dict[str, tuple[str, float]] = {}
        self._used: Counter[str] = Counter()
        self._local = threading.local()
        self._random = Random(f"mce {seed}")  # noqa: S311 - repeatable, not secret

    # --- the truth

    def plan(self, sql: str) -> dict[str, str]:
        pairs = [pair.split("=", 1) for comment in TOLD.findall(sql) for pair in comment.split(";") if "=" in pair]
        return {name.strip(): value.strip() for name, value in pairs}

    def truth(self, sql: str) -> list[dict[str, str]]:
        """The rows that a query answers, always the same for the same text."""
        count = int(self.plan(sql).get("rows", "3"))
        return [{"id": str(n), "name": f"row {n} of {len(sql)}"} for n in range(count)]

    def is_running(self, definition_id: str) -> bool:
        now = self.now()
        return any(each.definition.id == definition_id and each.ends_at > now for each in self.activities)

    def performs(self, key: str) -> int:
        return sum(each.definition.key == key for each in self.activities)

    def left(self) -> list[str]:
        """Everything that is still there."""
        with self.lock:
            return sorted([*self.targets, *(each.key for each in self.definitions.values())])

    def _visible(self, target: Target) -> list[dict[str, str]]:
        """The rows as somebody sees them now: while a query writes, some of them."""
        by, now = target.by, self.now()
        if by is None:
            return target.made
        if by.ends_at <= now < by.ends_at + self.rows_late_s:
            return by.rows[: len(by.rows) * 3 // 5]
        if now >= by.ends_at:
            return by.rows if not by.error else by.rows[: len(by.rows) // 2]  # there is no rollback
        share = (now - by.started_at) / (by.ends_at - by.started_at)
        return by.rows[: int(len(by.rows) * share)]

    # --- the wire

    def serve(self, request: Request) -> Reply:
        self._local.slow_s = 0.0
        with self.lock:
            if request.path == "/v2/token":
                reply = self._token(request)
            elif request.path == "/Service.asmx":
                reply = self._soap(request)
            else:
                reply = self._rest(request)
        self.wait(self._local.slow_s)
        return reply

    def instead(self, faults: Mapping[str, Misbehaviour]) -> Reply | None:
        """A slow answer keeps nobody else waiting."""
        if how := faults.get("slow"):
            self._local.slow_s = how.seconds
        return super().instead({name: how for name, how in faults.items() if name != "slow"})

    def obey(self, orders: Mapping[str, Any]) -> None:
        if "token_lives_s" in orders:
            self.token_lives_s = int(orders["token_lives_s"])
        if orders.get("forget_tokens"):
            self._tokens.clear()

    def figures(self) -> Mapping[str, Any]:
        return {"left": self.left(), "performs": len(self.activities), "wrong": self.wrong}

    def _token(self, request: Request) -> Reply:
        faults = self.struck_by("token")
        asked = json.loads(request.body)
        known = asked.get("client_id") == self.client_id and asked.get("client_secret") == self.client_secret
        if (
            not known
            or asked.get("grant_type") != "client_credentials"
            or not str(asked.get("account_id", "")).isdigit()
        ):
            refusal = {"error": "invalid_client", "error_description": "Client authentication failed."}
            return self.spoil(Reply.json(refusal, 401), faults)
        token = f"token-{self._random.getrandbits(64):x}"
        self._tokens[token] = (asked["account_id"], self.now() + self.token_lives_s)
        base = f"http://{request.headers['Host']}/"
        said: dict[str, Any] = {
            "access_token": token, "token_type": "Bearer", "expires_in": self.token_lives_s, "scope": "automations_read",
            "rest_instance_url": base, "soap_instance_url": base,
        }  # fmt: skip
        return self.spoil(Reply.json(said), faults)

    def _knows(self, token: str) -> bool:
        _, until = self._tokens.get(token, ("", 0.0))
        self._used[token] += 1
        return until > self.now() and (self.token_uses is None or self._used[token] <= self.token_uses)

    # --- REST

    def _rest(self, request: Request) -> Reply:
        for method, shape, operation, answer in (
            ("POST", re.compile("/automation/v1/queries/actions/validate"), "validate", self._validate),
            ("GET", QUERY, "isrunning", self._isrunning),
            ("GET", ROWSET, "rowset", self._rowset),
        ):
            found = shape.fullmatch(request.path)
            if found is not None and request.method == method:
                return self._answer_rest(request, operation, found, answer)
        self.calls["unknown path"] += 1
        return Reply.json({"message": "Not Found", "errorcode": 0}, 404)

    def _answer_rest(
        self, request: Request, operation: str, found: re.Match[str], answer: Callable[..., Reply]
    ) -> Reply:
        about = unquote(found[1]) if found.groups() else ""
        definition = self.definitions.get(about)
        key = definition.key if definition else about
        faults = self.struck_by(operation, sql=self._sql_of(key))
        self._note(operation, key, faults, int(request.query.get("$pageSize", ["0"])[0]))
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not self._knows(token) or "token_expired" in faults:
            return Reply.json({"message": "Not Authorized", "errorcode": 0, "documentation": ""}, 401)
        if "blocked" in faults:
            said = {"message": "Your requests are temporarily blocked.", "errorcode": 50200}
            return Reply.json(said, 429)
        return self.spoil(answer(request, about, faults), faults)

    def _validate(self, request: Request, _about: str, _faults: Mapping[str, Any]) -> Reply:
        sql = json.loads(request.body).get("Text")
        if not isinstance(sql, str):
            return Reply.json({"message": "Text is required", "errorcode": 10001}, 400)
        plan = self.plan(sql)
        if "invalid" in plan or not re.match(r"\s*(/\*.*?\*/\s*)*select\b", sql, re.IGNORECASE | re.DOTALL):
            message = plan.get("invalid", "Incorrect syntax")
            return Reply.json({"queryValid": False, "errors": [{"message": message}], "warnings": []})
        said: dict[str, Any] = {"queryValid": True, "errors": [], "warnings": []}
        if self.names_columns:
            said["columns"] = [{"name": "id", "type": "Number"}, {"name": "name", "type": "Text", "maxLength": 100}]
        return Reply.json(said)

    def _isrunning(self, _: Request, definition_id: str, faults: Mapping[str, Any]) -> Reply:
        if "odd_running" in faults:
            return Reply.json({})
        if definition_id not in self.definitions:
            return Reply.json({"message": "Not Found", "errorcode": 30003}, 404)
        running = self.is_running(definition_id)
        if running and "not_running" in faults:
            running = False
        if "still_running" in faults:
            running = True
        said: Any = str(running).lower() if "text_running" in faults else running
        return Reply.json({"queryDefinitionId": definition_id, "isRunning": said})

    def _rowset(self, request: Request, key: str, faults: Mapping[str, Any]) -> Reply:
        target = self.targets.get(key)
        if target is None or "no_rowset" in faults:
            message = f"Data extension fields cannot be retrieved for key {key}."
            return Reply.json({"message": message, "errorcode": 10003}, 404)
        page, size = int(request.query["$page"][0]), min(int(request.query["$pageSize"][0]), PAGE)
        rows = self._visible(target)
        shown = rows[(page - 1) * size : page * size]
        said: dict[str, Any] = {
            "links": {"self": f"/v1/customobjectdata/token/t/rowset?$page={page}"}, "requestToken": "t",
            "customObjectId": target.id, "customObjectKey": key, "pageSize": size, "page": page, "count": len(rows), "top": 0,
        }  # fmt: skip
        if shown:  # an empty data extension has no items at all
            said["items"] = [{"keys": {}, "values": row} for row in shown]
        return Reply.json(said)

    # --- SOAP

    def _soap(self, request: Request) -> Reply:
        try:
            root = fromstring(request.body)
            (body,) = root.findall(f"{E}Body")
            (asked,) = list(body)
        except (ParseError, DefusedXmlException, ValueError):
            return Reply(status=400, body=b"Bad Request", headers={"Content-Type": "text/html"})
        action = request.headers.get("SOAPAction", "")
        names = {
            "Create": "CreateRequest", "Retrieve": "RetrieveRequestMsg", "Perform": "PerformRequestMsg", "Delete": "DeleteRequest",
        }  # fmt: skip
        if asked.tag != P + names.get(action, "?"):
            return Reply(status=400, body=b"Bad Request", headers={"Content-Type": "text/html"})
        operation, key = self._named(action, asked)
        faults = self.struck_by(operation, sql=self._sql_of(key) or _text(asked, "Objects", "QueryText"))
        self._note(operation, key, faults)
        token = root.findtext(f"{E}Header/{{http://exacttarget.com}}fueloauth") or ""
        if not self._knows(token) or "token_expired" in faults:
            return _fault("q0:Security", "Token Expired")
        if "rate_limited" in faults:
            return _fault("soap:Server", "Rate Limited", 17)
        if "odd_fault" in faults:
            return _fault("soap:Server", "Something is odd", 5)
        answers: dict[str, Callable[[Element, Mapping[str, Any]], str]] = {
            "Create": self._create, "Retrieve": self._retrieve, "Perform": self._perform, "Delete": self._delete,
        }  # fmt: skip
        if (said := self.instead(faults)) is not None:
            return said
        reply = _envelope(answers[action](asked, faults))
        return self.spoil(reply, {name: how for name, how in faults.items() if name not in ("slow", "throttle", "server_error", "html")})  # fmt: skip

    def _note(self, operation: str, key: str, faults: Mapping[str, Any], size: int = 0) -> None:
        """What is turned away before it is looked at was not asked."""
        away = faults.keys() & {"throttle", "blocked", "rate_limited"}
        self.asked.append(Asked(f"refused {operation}" if away else operation, key, self.now(), size))

    def _named(self, action: str, asked: Element) -> tuple[str, str]:
        """The operation's name, and the key of what it is about."""
        if action == "Retrieve":
            type_ = _text(asked, "RetrieveRequest", "ObjectType")
            value = _text(asked, "RetrieveRequest", "Filter", "Value")
            if type_ == "AsyncActivityStatus":
                return "status", next((each.definition.key for each in self.activities if each.task_id == value), value)
            return f"find {type_}", value
        if action == "Perform":
            found = self.definitions.get(_text(asked, "Definitions", "Definition", "ObjectID"))
            return "perform", found.key if found else ""
        type_ = asked[0].get(XSI_TYPE, "")
        object_id = _text(asked, "Objects", "ObjectID")
        key = _text(asked, "Objects", "CustomerKey") or (
            self.definitions[object_id].key if object_id in self.definitions else object_id
        )
        return f"{action.lower()} {type_}", key

    def _sql_of(self, key: str) -> str:
        found = next((each.sql for each in self.definitions.values() if key in (each.key, each.target_key)), "")
        return found or next((each.definition.sql for each in self.activities if key in (each.definition.key, each.definition.target_key)), "")  # fmt: skip

    def _create(self, asked: Element, faults: Mapping[str, Any]) -> str:
        (made,) = asked
        type_, key = made.get(XSI_TYPE, ""), _text(asked, "Objects", "CustomerKey")
        taken = key in self.targets or any(each.key == key for each in self.definitions.values())
        if not 0 < len(key) <= 36:
            return _created("Error", "CustomerKey must have 1 to 36 characters.", type_)
        if taken:
            return _created("Error", self.taken_says.format(type_), type_)
        new_id = str(UUID(int=self._random.getrandbits(128), version=4))
        if type_ == "DataExtension":
            columns = [each.findtext(f"{P}Name") or "" for each in made.findall(f"{P}Fields/{P}Field")]
            if not columns or "" in columns:
                return _created("Error", "A data extension needs fields.", type_)
            kept = int(_text(asked, "Objects", "DataRetentionPeriodLength") or 0)
            if _text(asked, "Objects", "DataRetentionPeriod") != "Days" or not kept:
                return _created("Error", "A retention period is needed.", type_)
            self.targets[key] = Target(new_id, key, columns, kept)
        else:
            target = _text(asked, "Objects", "DataExtensionTarget", "CustomerKey")
            if target not in self.targets or _text(asked, "Objects", "CategoryID") == "0":
                return _created("Error", "The target data extension does not exist.", type_)
            self.definitions[new_id] = Definition(new_id, key, _text(asked, "Objects", "QueryText"), target)
        if "duplicate_key" in faults:
            return _created("Error", self.taken_says.format(type_), type_)
        return _created("OK", f"{type_} created.", type_, new_id)

    def _perform(self, asked: Element, _: Mapping[str, Any]) -> str:
        object_id = _text(asked, "Definitions", "Definition", "ObjectID")
        definition = self.definitions.get(object_id)
        if definition is None or definition.target_key not in self.targets:
            result = "<StatusCode>Error</StatusCode><StatusMessage>Object not found</StatusMessage><ErrorCode>310002</ErrorCode>"
            return f"<PerformResponseMsg xmlns='{P[1:-1]}'><Results><Result>{result}</Result></Results><OverallStatus>Error</OverallStatus></PerformResponseMsg>"
        target = self.targets[definition.target_key]
        if self.is_running(object_id) or self._visible(target):
            self.wrong.append(f"a second start of {definition.key} while the first one could be seen")
        plan = self.plan(definition.sql)
        error, now = plan.get("error", ""), self.now()
        activity = Activity(
            task_id=str(10_684 + len(self.activities)),
            definition=definition,
            started_at=now,
            ends_at=now + float(plan.get("seconds", "5")),
            rows=self.truth(definition.sql),
            error=error,
        )
        self.activities.append(activity)
        target.by = activity
        task = f"<Task><StatusCode>OK</StatusCode><StatusMessage>OK</StatusMessage><ID>{activity.task_id}</ID></Task>"
        return (
            f"<PerformResponseMsg xmlns='{P[1:-1]}'><Results><Result><StatusCode>OK</StatusCode>"
            f"<StatusMessage>QueryDefinition perform called successfully</StatusMessage>{task}</Result></Results>"
            "<OverallStatus>OK</OverallStatus><OverallStatusMessage/><RequestID>r</RequestID></PerformResponseMsg>"
        )

    def _retrieve(self, asked: Element, faults: Mapping[str, Any]) -> str:
        type_, value = (_text(asked, "RetrieveRequest", *path) for path in (("ObjectType",), ("Filter", "Value")))
        operator = _text(asked, "RetrieveRequest", "Filter", "SimpleOperator")
        if type_ == "AsyncActivityStatus":
            return _retrieved(self._status(value, faults))
        held: dict[str, str] = (
            {each.key: each.id for each in self.targets.values()}
            if type_ == "DataExtension"
            else {each.key: each.id for each in self.definitions.values()}
        )
        found = [
            (key, object_id)
            for key, object_id in held.items()
            if (key.startswith(value.removesuffix("%")) if operator == "like" else key == value)
        ]
        if continued := _text(asked, "RetrieveRequest", "ContinueRequest"):
            found = self._rest_of.pop(continued, [])
        shown, rest = found[: self.keys_a_page], found[self.keys_a_page :]
        request_id = str(UUID(int=self._random.getrandbits(128), version=4))
        if rest:
            self._rest_of[request_id] = rest
        return _retrieved(
            "".join(
                f"<Results><ObjectID>{object_id}</ObjectID><CustomerKey>{escape(key)}</CustomerKey></Results>"
                for key, object_id in shown
            ),
            "MoreDataAvailable" if rest else "OK",
            request_id,
        )

    def _status(self, task_id: str, faults: Mapping[str, Any]) -> str:
        activity = next((each for each in self.activities if each.task_id == task_id), None)
        if activity is None or "no_status" in faults:
            return ""
        over = self.now() >= activity.ends_at
        status = ("Error" if activity.error else "Complete") if over or self.says_complete_early else "Queued"
        message = activity.error if over else ""
        dated = over
        if "early_completed" in faults or "stays_queued" in faults:
            status, message = "Queued", ""
            dated = "early_completed" in faults
        if "queued_error" in faults:
            status, dated = "Queued", False
        if "odd_status" in faults:
            status = f" {status.upper()} "
        if "error_message" in faults:
            message = "Some rows were skipped."
        pairs = [("Status", status), *([("CompletedDate", "1/16/2026 10:54:35 AM")] if dated else [])]
        pairs += [("ErrorMsg", message)] if message else []
        self._random.shuffle(pairs)
        inside = "".join(
            f"<Property><Name>{name}</Name><Value>{escape(value)}</Value></Property>" for name, value in pairs
        )
        return f"<Results><Type>AsyncActivityStatus</Type><Properties>{inside}</Properties></Results>"

    def _delete(self, asked: Element, _: Mapping[str, Any]) -> str:
        (what,) = asked
        if what.get(XSI_TYPE) == "DataExtension":
            key = _text(asked, "Objects", "CustomerKey")
            found = self.targets.pop(key, None) is not None
            used = [each for each in self.definitions.values() if each.target_key == key and self.is_running(each.id)]
        else:
            definition = self.definitions.get(_text(asked, "Objects", "ObjectID"))
            used = [definition] if definition is not None and self.is_running(definition.id) else []
            found = definition is not None
            if definition is not None:
                del self.definitions[definition.id]
        self.wrong += [f"{each.key} was removed while it ran" for each in used]
        said = (
            "<StatusCode>OK</StatusCode><StatusMessage>deleted</StatusMessage>"
            if found
            else f"<StatusCode>Error</StatusCode><StatusMessage>It does not exist.</StatusMessage><ErrorCode>{self.missing_code}</ErrorCode>"
        )
        status = "OK" if found else "Error"
        return f"<DeleteResponse xmlns='{P[1:-1]}'><Results>{said}</Results><RequestID>r</RequestID><OverallStatus>{status}</OverallStatus></DeleteResponse>"

    # --- how we were treated

    def questions(self, key: str) -> Counter[str]:
        """How often each thing was asked about one query or its data."""
        return Counter(each.what for each in self.asked if each.key == key)


def _text(element: Element, *path: str) -> str:
    return (element.findtext("/".join(f"{P}{name}" for name in path)) or "").strip()


def _envelope(body: str, status: int = 200) -> Reply:
    text = (
        '<?xml version="1.0" encoding="utf-8"?><soap:Envelope xmlns:soap="http://schemas.xmlsoap.org/soap/envelope/" '
        'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:wsa="http://schemas.xmlsoap.org/ws/2004/08/addressing">'
        f"<soap:Header><wsa:Action>Response</wsa:Action></soap:Header><soap:Body>{body}</soap:Body></soap:Envelope>"
    )
    return Reply(status=status, body=text.encode(), headers={"Content-Type": "text/xml; charset=utf-8"})


def _fault(code: str, text: str, number: int | None = None) -> Reply:
    detail = (
        ""
        if number is None
        else f"<detail><apifault><Code>{number}</Code><Message>{text}</Message></apifault></detail>"
    )
    return _envelope(
        f"<soap:Fault><faultcode>{code}</faultcode><faultstring>{text}</faultstring>{detail}</soap:Fault>", 500
    )


def _created(status: str, message: str, type_: str, new_id: str = "") -> str:
    ids = (
        f"<NewID>0</NewID><NewObjectID>{new_id}</NewObjectID>" if new_id else "<ErrorCode>2</ErrorCode><NewID>0</NewID>"
    )
    result = (
        f"<StatusCode>{status}</StatusCode><StatusMessage>{escape(message)}</StatusMessage><OrdinalID>0</OrdinalID>{ids}"
        f'<Object xsi:type="{type_}"/>'
    )
    return f"<CreateResponse xmlns='{P[1:-1]}'><Results>{result}</Results><RequestID>r</RequestID><OverallStatus>{status}</OverallStatus></CreateResponse>"


def _retrieved(results: str, status: str = "OK", request_id: str = "r") -> str:
    head = f"<OverallStatus>{status}</OverallStatus><RequestID>{request_id}</RequestID>"
    return f"<RetrieveResponseMsg xmlns='{P[1:-1]}'>{head}{results}</RetrieveResponseMsg>"


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for Marketing Cloud Engagement.")
    run_by_hand(parser, lambda asked: MceStandIn(asked.seed), f"client id {CLIENT_ID}, client secret {CLIENT_SECRET}")


if __name__ == "__main__":
    main()
