"""Answers that a hostile or broken Marketing Cloud could give: each is understood for what it is, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from defusedxml.ElementTree import fromstring

from infra.local.standins.mce import MceStandIn
from infra.local.standins.server import Reply, Request
from shared.kernel.errors import Permanent, StepError, Throttled, Transient
from shared.kernel.http import new_pool
from shared.kernel.tokens import Token, TokenRefused
from shared.query_run.adapters.mce import Mce
from shared.query_run.export import as_csv
from shared.query_run.model import Column

pytestmark = pytest.mark.full

E, P = "http://schemas.xmlsoap.org/soap/envelope/", "http://exacttarget.com/wsdl/partnerAPI"
GUID = "2f5d0f0e-8a6e-4f0e-9d2a-000000000001"
KEY = "BTN_" + "a" * 32


class Scripted(MceStandIn):
    """Every request but that for a token is answered as told, and remembered."""

    reply: Reply
    heard: list[Request]
    token_text: str | None = None

    def serve(self, request: Request) -> Reply:
        if request.path == "/v2/token":
            reply = super().serve(request)
            if self.token_text is None:
                return reply
            return Reply.json({**json.loads(reply.body), "access_token": self.token_text})
        self.heard.append(request)
        return self.reply


class Line:
    def __init__(self, standin: Scripted, mce: Mce, token: Token) -> None:
        self.standin, self.mce, self.token = standin, mce, token

    def soap(self, body: str, status: int = 200, *, envelope: str = E) -> None:
        text = f'<s:Envelope xmlns:s="{envelope}"><s:Body>{body}</s:Body></s:Envelope>'
        self.raw(text.encode(), status, "text/xml; charset=utf-8")

    def retrieved(self, inside: str, *, ns: str = P) -> None:
        self.soap(f'<RetrieveResponseMsg xmlns="{ns}"><OverallStatus>OK</OverallStatus>{inside}</RetrieveResponseMsg>')

    def status(self, *pairs: tuple[str, str]) -> None:
        inside = "".join(f"<Property><Name>{name}</Name><Value>{value}</Value></Property>" for name, value in pairs)
        self.retrieved(f"<Results><Properties>{inside}</Properties></Results>")

    def json(self, value: Any, status: int = 200) -> None:
        self.raw(json.dumps(value).encode(), status)

    def raw(self, body: bytes, status: int = 200, content_type: str = "application/json") -> None:
        self.standin.reply = Reply(status=status, body=body, headers={"Content-Type": content_type})


@pytest.fixture
def line() -> Iterator[Line]:
    pool = new_pool()
    with Scripted() as standin:
        standin.heard = []
        mce = Mce(standin.start(), standin.client_id, standin.client_secret, "1", time_left_s=lambda: 10.0, pool=pool)
        yield Line(standin, mce, mce.authenticate())
        pool.clear()
    assert not standin.surprises, standin.surprises


ASKED: dict[str, Callable[[Line], Any]] = {
    "status": lambda line: line.mce.status(line.token, "1"),
    "start": lambda line: line.mce.start(line.token, GUID),
    "create": lambda line: line.mce.create_target(line.token, KEY, [Column(name="id")]),
    "find": lambda line: line.mce.find_query(line.token, KEY),
    "delete": lambda line: line.mce.delete_target(line.token, KEY),
    "keys": lambda line: line.mce.keys(line.token, "QueryDefinition", "BTN_", 10),
}
REST: dict[str, Callable[[Line], Any]] = {
    "running": lambda line: line.mce.is_running(line.token, GUID),
    "rows": lambda line: line.mce.rows(line.token, KEY, 1, 10),
    "validate": lambda line: line.mce.validate(line.token, "select 1 as a"),
}


# --- statuses


@pytest.mark.parametrize("said", ["Complete", " complete\t", "COMPLETE", "\n  CoMpLeTe  \n", "&#160;Complete&#160;"])
def test_complete_is_complete_however_it_is_written(line: Line, said: str) -> None:
    line.status(("Status", said))
    found = line.mce.status(line.token, "1")
    assert found is not None
    assert found.status == "complete"


@pytest.mark.parametrize("said", [
    "Completed?", "Abgeschlossen", "完了", "Complete with errors", "0", "true", "null", "Incomplete", "Processing", "",
    "\u0421omplete",  # with a Cyrillic letter
])  # fmt: skip
def test_any_other_word_is_not_complete_and_no_error(line: Line, said: str) -> None:
    line.status(("Status", said))
    found = line.mce.status(line.token, "1")
    assert found is not None
    assert found.status not in ("complete", "error")


@pytest.mark.parametrize("pairs", [
    [("Status", "Queued"), ("Status", "Complete")], [("", "Complete")], [("Status", "Complete"), ("Status", "Complete")],
])  # fmt: skip
def test_a_status_that_is_told_twice_is_not_told(line: Line, pairs: list[tuple[str, str]]) -> None:
    line.status(*pairs)
    with pytest.raises(Transient):
        line.mce.status(line.token, "1")


def test_names_of_properties_are_found_in_any_case(line: Line) -> None:
    line.status(("status", "Error"), ("errormsg", "no"), ("COMPLETEDDATE", "1/1/2026"))
    found = line.mce.status(line.token, "1")
    assert found is not None
    assert (found.status, found.error_msg, found.completed) == ("error", "no", True)


# --- envelopes


@pytest.mark.parametrize("cut", [1, 40, 120, -1, -12, -30])
@pytest.mark.parametrize("how", ASKED)
def test_an_answer_that_is_cut_is_unknown(line: Line, how: str, cut: int) -> None:
    line.status(("Status", "Complete"))
    line.raw(line.standin.reply.body[:cut], 200, "text/xml")
    with pytest.raises(Transient):
        ASKED[how](line)


@pytest.mark.parametrize("ns", ["", "http://exacttarget.com/wsdl/partnerAPI/", "urn:other", P.upper()])
def test_an_answer_in_another_namespace_is_unknown(line: Line, ns: str) -> None:
    line.retrieved("<Results><Properties><Property><Name>Status</Name><Value>Complete</Value></Property></Properties></Results>", ns=ns)  # fmt: skip
    with pytest.raises(Transient):
        line.mce.status(line.token, "1")
    line.soap(f'<RetrieveResponseMsg xmlns="{P}"><OverallStatus>OK</OverallStatus></RetrieveResponseMsg>', envelope="http://www.w3.org/2003/05/soap-envelope")  # fmt: skip
    with pytest.raises(Transient):
        line.mce.find_query(line.token, KEY)


@pytest.mark.parametrize("how", ASKED)
def test_a_page_for_people_and_an_answer_to_another_question_are_unknown(line: Line, how: str) -> None:
    line.raw(b"<!doctype html><html><body>Maintenance</body></html>", 200, "text/html")
    with pytest.raises(Transient):
        ASKED[how](line)
    line.soap(f'<VersionInfoResponseMsg xmlns="{P}"><OverallStatus>OK</OverallStatus></VersionInfoResponseMsg>')
    with pytest.raises(Transient):
        ASKED[how](line)


@pytest.mark.parametrize("encoding", ["foo", "hex", "utf-7", "idna", "shift_jis"])
def test_an_answer_in_an_encoding_that_nobody_knows_is_unknown(line: Line, encoding: str) -> None:
    line.raw(f'<?xml version="1.0" encoding="{encoding}"?><a/>'.encode(), 200, "text/xml")
    with pytest.raises(Transient):
        line.mce.status(line.token, "1")


def test_an_answer_about_another_object_is_not_the_one_that_was_asked_for(line: Line) -> None:
    """Whoever adopted it would remove it in the end."""
    line.retrieved(f"<Results><ObjectID>{GUID}</ObjectID><CustomerKey>somebody's</CustomerKey></Results>")
    for find in (line.mce.find_query, line.mce.find_target):
        with pytest.raises(Transient):
            find(line.token, KEY)


def test_the_text_of_a_query_arrives_as_it_is(line: Line) -> None:
    line.raw(b"")
    text = "select 'a\r\nb\rc\td ]]> &amp; <x> \N{GRINNING FACE}' as a from [t]"
    with pytest.raises(Transient):
        line.mce.create_query(line.token, KEY, text, KEY, GUID)
    sent = fromstring(line.standin.heard[-1].body)
    assert [each.text for each in sent.iter(f"{{{P}}}QueryText")] == [text]


@pytest.mark.parametrize("token", ["", "a b", "a\r\nx-evil: 1", "\u00e9", "a\x00", "x" * 5_000])
def test_a_token_that_is_no_header_is_none(line: Line, token: str) -> None:
    line.standin.token_text = token
    with pytest.raises(Transient) as refused:
        line.mce.authenticate()
    assert "evil" not in str(refused.value)


def test_a_long_story_from_marketing_cloud_is_kept_short(line: Line) -> None:
    line.status(("Status", "Q" * 100_000), ("ErrorMsg", "x" * 100_000))
    found = line.mce.status(line.token, "1")
    assert found is not None
    assert (len(found.status), len(found.error_msg)) <= (100, 2_000)


def test_an_entity_is_never_expanded(line: Line) -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
    line.raw(f'{bomb}<s:Envelope xmlns:s="{E}"><s:Body>&b;</s:Body></s:Envelope>'.encode(), 200, "text/xml")
    with pytest.raises(Transient):
        line.mce.status(line.token, "1")


# --- faults


def fault(code: str, text: str, number: str = "", ns: str = "") -> str:
    detail = f'<detail><apifault xmlns="{ns}"><Code>{number}</Code></apifault></detail>' if number else ""
    return f"<s:Fault><faultcode>{code}</faultcode><faultstring>{text}</faultstring>{detail}</s:Fault>"


@pytest.mark.parametrize(("body", "status", "error"), [
    (fault("q0:Security", "Token Expired"), 500, TokenRefused), (fault("wsse:Security", "Login Failed"), 500, TokenRefused),
    (fault("s:Server", "The token is invalid"), 500, TokenRefused), (fault("s:Server", "Token Expired"), 200, TokenRefused),
    (fault("s:Server", "Rate Limited", "17"), 500, Throttled), (fault("s:Server", "Rate Limited", " 17 "), 500, Throttled),
    (fault("s:Server", "rate limit exceeded"), 500, Throttled), (fault("s:Server", "Rate Limited", "17", P), 200, Throttled),
    (fault("s:Server", "x", "-1"), 500, Transient), (fault("s:Server", "x", "99999999999999"), 500, Transient),
    (fault("s:Server", "x", "seventeen"), 500, Transient), (fault("", ""), 500, Transient),
    (fault("s:Client", "no such thing", "310007"), 500, Permanent), (fault("s:Server", "login", "12"), 500, Permanent),
])  # fmt: skip
@pytest.mark.parametrize("how", ["status", "start"])
def test_faults_with_odd_codes_are_sorted_by_who_tries_again(
    line: Line, body: str, status: int, error: type[StepError], how: str
) -> None:
    line.soap(body, status)
    with pytest.raises(error) as caught:
        ASKED[how](line)
    assert isinstance(caught.value, TokenRefused) == (error is TokenRefused)


@pytest.mark.parametrize("status", [201, 202, 204, 301, 302, 418, 502, 503, 504])
@pytest.mark.parametrize("how", [*ASKED, *REST])
def test_no_other_status_is_a_yes(line: Line, how: str, status: int) -> None:
    if how in REST:
        line.json({"isRunning": False, "queryValid": True, "count": 0, "page": 1}, status)
    else:
        line.status(("Status", "Complete"))
        line.raw(b"" if status == 204 else line.standin.reply.body, status, "text/xml")
    with pytest.raises(StepError):
        {**ASKED, **REST}[how](line)


# --- a start


@pytest.mark.parametrize("task", [
    "", "<Task/>", "<Task><ID/></Task>", "<Task><ID>0</ID></Task>", "<Task><ID>-3</ID></Task>", "<Task><ID>12 OR 1=1</ID></Task>",
    "<Task><ID>1.5</ID></Task>", f"<Task><ID>{'9' * 40}</ID></Task>", "<Task><ID>١٢</ID></Task>",
])  # fmt: skip
def test_a_start_without_a_proper_task_is_a_lost_answer(line: Line, task: str) -> None:
    result = f"<Result><StatusCode>OK</StatusCode>{task}</Result>"
    line.soap(f'<PerformResponseMsg xmlns="{P}"><Results>{result}</Results><OverallStatus>OK</OverallStatus></PerformResponseMsg>')  # fmt: skip
    with pytest.raises(Transient):
        line.mce.start(line.token, GUID)


def test_a_task_that_failed_to_start_is_no_start(line: Line) -> None:
    """The call as a whole is OK, the task in it is not."""
    task = "<Task><StatusCode>Error</StatusCode><StatusMessage>Unable to queue</StatusMessage><ID>77</ID></Task>"
    line.soap(f'<PerformResponseMsg xmlns="{P}"><Results><Result><StatusCode>OK</StatusCode>{task}</Result></Results><OverallStatus>OK</OverallStatus></PerformResponseMsg>')  # fmt: skip
    with pytest.raises(Permanent, match="Unable to queue"):
        line.mce.start(line.token, GUID)


@pytest.mark.parametrize("new_id", ["", "0", "not-a-guid", "{2f5d0f0e-8a6e-4f0e-9d2a-000000000001}", GUID + "/../x"])
def test_an_object_without_a_proper_id_was_not_made(line: Line, new_id: str) -> None:
    result = f"<StatusCode>OK</StatusCode><NewID>0</NewID><NewObjectID>{new_id}</NewObjectID>"
    line.soap(f'<CreateResponse xmlns="{P}"><Results>{result}</Results><OverallStatus>OK</OverallStatus></CreateResponse>')  # fmt: skip
    with pytest.raises(Transient):
        line.mce.create_target(line.token, KEY, [Column(name="id")])


# --- whether it runs


@pytest.mark.parametrize("said", [
    {}, [], None, 0, False, "false", {"isRunning": None}, {"isRunning": 0}, {"isRunning": "False"}, {"isrunning": False},
    {"isRunning": {}}, {"isRunning": []}, [{"isRunning": False}], {"error": "x", "isRunning": "no"},
    {"queryDefinitionId": "11111111-1111-4111-8111-111111111111", "isRunning": False},
])  # fmt: skip
def test_whatever_is_not_true_or_false_of_this_query_is_unknown(line: Line, said: Any) -> None:
    line.json(said)
    with pytest.raises(Transient):
        line.mce.is_running(line.token, GUID)


def test_an_answer_that_says_both_is_unknown(line: Line) -> None:
    line.raw(b'{"isRunning": true, "isRunning": false}')
    with pytest.raises(Transient):
        line.mce.is_running(line.token, GUID)


# --- rows


@pytest.mark.parametrize("said", [
    {"count": "3", "page": 1}, {"count": -1, "page": 1}, {"page": 1}, {"count": 1, "page": 2, "items": []},
    {"count": 0, "page": 1, "items": [{"values": {"a": "1"}}]}, {"count": 99, "page": 1, "items": [{}] * 11},
    {"count": 3, "page": 1, "items": None}, {"count": 3, "page": 1, "items": [1]}, {"count": True, "page": 1},
    {"count": 3, "page": 1, "items": []}, {"count": 3, "page": 1, "items": [{"keys": {}, "values": {"a": "1"}}]},
    {"count": 0, "page": 1, "customObjectKey": "another"},
    {"count": 10**30, "page": 1, "items": [{"values": {"a": "1"}}] * 10},
])  # fmt: skip
def test_rows_that_do_not_add_up_are_unknown(line: Line, said: Any) -> None:
    line.json(said)
    with pytest.raises(Transient):
        line.mce.rows(line.token, KEY, 1, 10)


def test_numbers_and_nulls_stay_what_they_are(line: Line) -> None:
    line.raw(
        b'{"count": 1, "page": 1, "items": [{"keys": {"Id": 7}, "values": {"a": null, "b": 1.10, "c": true, "d": "x"}}]}'
    )
    (row,) = line.mce.rows(line.token, KEY, 1, 10).rows
    assert (row["Id"], row["a"], row["c"], row["d"]) == ("7", None, "true", "x")


def test_half_a_character_breaks_no_file(line: Line) -> None:
    line.raw(
        rb'{"count": 1, "page": 1, "items": [{"values": {"a": "x\ud83d", "b": "\uD83D\uDE00", "c": "\udc00y", "d": null}}]}'
    )
    (row,) = line.mce.rows(line.token, KEY, 1, 10).rows
    assert row == {
        "a": "x\N{REPLACEMENT CHARACTER}",
        "b": "\N{GRINNING FACE}",
        "c": "\N{REPLACEMENT CHARACTER}y",
        "d": None,
    }
    assert as_csv([list(row.values())])


# --- validation


@pytest.mark.parametrize("told", [[{"name": "a"}, {"name": "A"}], [{"name": f"c{n}"} for n in range(1_001)]])
def test_columns_that_no_data_extension_can_have_are_not_told(line: Line, told: Any) -> None:
    line.json({"queryValid": True, "columns": told})
    assert line.mce.validate(line.token, "select 1 as a").columns is None


@pytest.mark.parametrize(
    "said", [{}, {"queryValid": "true"}, {"queryValid": 1}, [], {"valid": True}, {"queryValid": None}]
)
def test_a_validation_that_says_nothing_is_skipped(line: Line, said: Any) -> None:
    line.json(said)
    with pytest.raises(Transient):
        line.mce.validate(line.token, "select 1 as a")


@pytest.mark.parametrize("said", [
    {"queryValid": False}, {"queryValid": False, "errors": [None, 3, {"x": 1}]}, {"queryValid": False, "errors": None},
    {"queryValid": False, "errors": "Incorrect syntax"}, {"queryValid": False, "errorMessage": "x" * 50_000},
])  # fmt: skip
def test_a_query_that_is_rejected_is_rejected_whatever_the_reason_looks_like(line: Line, said: Any) -> None:
    line.json(said)
    found = line.mce.validate(line.token, "select 1 as a")
    assert not found.valid
    assert 0 < len(found.message) < 1_000


# --- listing


def test_a_list_that_never_ends_ends(line: Line) -> None:
    line.soap(f'<RetrieveResponseMsg xmlns="{P}"><OverallStatus>MoreDataAvailable</OverallStatus><RequestID>r</RequestID></RetrieveResponseMsg>')  # fmt: skip
    with pytest.raises(Transient):
        line.mce.keys(line.token, "QueryDefinition", "BTN_", 500)
    assert len(line.standin.heard) <= 20


def test_a_deletion_that_is_refused_is_not_done(line: Line) -> None:
    result = "<StatusCode>Error</StatusCode><StatusMessage>In use</StatusMessage><ErrorCode>310010</ErrorCode>"
    line.soap(f'<DeleteResponse xmlns="{P}"><Results>{result}</Results><OverallStatus>Error</OverallStatus></DeleteResponse>')  # fmt: skip
    with pytest.raises(Permanent):
        line.mce.delete_target(line.token, KEY)


# --- numbers, and our own token in their mouth


def test_a_number_keeps_every_digit_that_it_has(line: Line) -> None:
    """A decimal of 18 digits is no float: the nearest one is another number."""
    line.raw(
        b'{"count": 1, "page": 1, "items": [{"keys": {"id": 12345678901234567890}, '
        b'"values": {"price": 12345678901234.5678, "rate": 1.10, "big": 1e5, "none": null, "yes": true}}]}'
    )
    (row,) = line.mce.rows(line.token, KEY, 1, 10).rows
    assert row == {
        "id": "12345678901234567890", "price": "12345678901234.5678", "rate": "1.10", "big": "1e5", "none": None, "yes": "true",
    }  # fmt: skip


@pytest.mark.parametrize("what", ["create", "delete", "start"])
def test_a_refusal_that_repeats_our_token_is_told_without_it(line: Line, what: str) -> None:
    answer = {"create": "CreateResponse", "delete": "DeleteResponse", "start": "PerformResponseMsg"}[what]
    refused = f"<StatusCode>Error</StatusCode><StatusMessage>not with {line.token.value}</StatusMessage>"
    refused = f"<Result>{refused}</Result>" if what == "start" else refused
    line.soap(f'<{answer} xmlns="{P}"><OverallStatus>Error</OverallStatus><Results>{refused}</Results></{answer}>')
    line.mce.find_target = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(Permanent, match=r"not with \*\*\*"):
        ASKED[what](line)
