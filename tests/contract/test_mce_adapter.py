"""The Marketing Cloud adapter against the stand-in's wire protocol: what it reads, and how every failure is sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.local.standins.mce import MceStandIn
from infra.local.standins.server import Reply
from shared.kernel.errors import Permanent, StepError, Throttled, Transient
from shared.kernel.http import new_pool
from shared.kernel.tokens import Token, TokenRefused
from shared.query_run.adapters.mce import Mce
from shared.query_run.model import Column

KEY, QUERY = "BTN_" + "a" * 32, "BTN_" + "b" * 32
SQL = "/* seconds=10; rows=5 */ select id, name from people where a < 3 and b = 'x & y'"


class Place:
    def __init__(self) -> None:
        self.clock = 0.0
        self.standin = MceStandIn(clock=lambda: self.clock)
        self.url = self.standin.start()
        self.pool = new_pool()
        self.mce = self.client()
        self.token = self.mce.authenticate()

    def client(self, secret: str | None = None) -> Mce:
        secret = secret or self.standin.client_secret
        return Mce(
            self.url, self.standin.client_id, secret, "7281698", time_left_s=lambda: 30.0, gate="g", pool=self.pool
        )

    def started(self) -> str:
        """The id of a query that runs."""
        target = self.mce.create_target(self.token, KEY, [Column(name="id"), Column(name="name")])
        query = self.mce.create_query(self.token, QUERY, SQL, KEY, target)
        self.task = self.mce.start(self.token, query)
        return query


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.pool.clear()
    made.standin.stop()
    assert not made.standin.surprises, made.standin.surprises


def test_a_query_from_token_to_deletion(place: Place) -> None:
    mce, token = place.mce, place.token
    assert token.expires_in_s == 1_079
    assert mce.validate(token, SQL).valid
    query = place.started()
    assert place.standin.definitions[query].sql == SQL, "escaped on its way, and the same when it arrives"
    assert mce.find_query(token, QUERY) == query
    assert mce.find_target(token, "BTN_other") is None
    status = mce.status(token, place.task)
    assert status is not None
    assert (status.status, status.completed) == ("queued", False)
    assert mce.is_running(token, query) is True
    place.clock = 5.0
    assert mce.rows(token, KEY, 1, 50).count == 2, "half of the time, some of the rows"
    place.clock = 10.0
    status = mce.status(token, place.task)
    assert status is not None
    assert (status.status, status.completed) == ("complete", True)
    assert mce.is_running(token, query) is False
    page = mce.rows(token, KEY, 2, 2)
    assert (page.count, [row["id"] for row in page.rows]) == (5, ["2", "3"])
    assert mce.keys(token, "DataExtension", "BTN_", 10) == [KEY]
    mce.delete_query(token, query)
    mce.delete_target(token, KEY)
    assert place.standin.left() == []
    assert mce.find_query(token, QUERY) is None


def test_what_is_gone_already_is_deleted(place: Place) -> None:
    place.mce.delete_target(place.token, KEY)
    place.mce.delete_query(place.token, "2f5d0f0e-8a6e-4f0e-9d2a-000000000001")


def test_an_empty_result_has_no_items_and_is_a_result(place: Place) -> None:
    place.mce.create_target(place.token, KEY, [Column(name="id")])
    found = place.mce.rows(place.token, KEY, 1, 50)
    assert (found.count, found.rows) == (0, [])


def test_who_creates_what_is_there_finds_it(place: Place) -> None:
    place.standin.misbehave("duplicate_key", budget=1)
    made = place.mce.create_target(place.token, KEY, [Column(name="id")])
    assert made == place.standin.targets[KEY].id


def test_validation_names_what_is_wrong_and_what_comes(place: Place) -> None:
    wrong = place.mce.validate(place.token, "/* invalid=Incorrect syntax near 'form' */ select a form b")
    assert not wrong.valid
    assert "near 'form'" in wrong.message
    place.standin.names_columns = True
    told = place.mce.validate(place.token, SQL).columns
    assert told == [Column(name="id", type="Number"), Column(name="name", type="Text", max_length=100)]


def test_a_wrong_secret_is_nobodys_to_try_again_and_is_not_repeated(place: Place) -> None:
    with pytest.raises(Permanent) as caught:
        place.client("another-secret").authenticate()
    assert caught.value.code == "bad_credentials"
    assert "another-secret" not in str(caught.value)


ASK: dict[str, Callable[[Place], Any]] = {
    "soap": lambda place: place.mce.status(place.token, "1"),
    "rest": lambda place: place.mce.rows(place.token, KEY, 1, 1),
}


@pytest.mark.parametrize("how", ASK)
def test_an_expired_token_is_refused_not_a_failure_of_the_server(place: Place, how: str) -> None:
    place.clock = 2_000.0
    with pytest.raises(TokenRefused):
        ASK[how](place)


def test_a_soap_throttle_is_a_throttle_though_it_is_a_500(place: Place) -> None:
    place.standin.misbehave("rate_limited")
    with pytest.raises(Throttled) as caught:
        ASK["soap"](place)
    assert caught.value.retry_after_s >= 30
    assert caught.value.gate == "g"


@pytest.mark.parametrize(("fault", "how", "wait_s"), [
    ("throttle", {"retry_after": "5"}, 5), ("throttle", {}, 30), ("blocked", {}, 30),
])  # fmt: skip
def test_rest_throttles_with_and_without_a_time(place: Place, fault: str, how: dict[str, Any], wait_s: float) -> None:
    place.standin.misbehave(fault, **how)
    with pytest.raises(Throttled) as caught:
        ASK["rest"](place)
    assert caught.value.retry_after_s == wait_s


@pytest.mark.parametrize("fault", ["server_error", "html", "truncated", "reset"])
@pytest.mark.parametrize("how", ASK)
def test_what_is_no_proper_answer_is_unknown(place: Place, fault: str, how: str) -> None:
    place.mce.create_target(place.token, KEY, [Column(name="id")])
    place.standin.misbehave(fault)
    with pytest.raises(Transient) as caught:
        ASK[how](place)
    assert not isinstance(caught.value, TokenRefused)


@pytest.mark.parametrize("fault", ["odd_running", "text_running", "html", "server_error", "truncated"])
def test_only_true_and_false_say_whether_it_runs(place: Place, fault: str) -> None:
    query = place.started()
    place.standin.misbehave(fault, on=["isrunning"])
    with pytest.raises(Transient):
        place.mce.is_running(place.token, query)


def test_an_id_that_is_none_never_becomes_part_of_an_address(place: Place) -> None:
    before = sum(place.standin.calls.values())
    for bad in ("../../data/v1", "0", "a/b", "2f5d0f0e8a6e4f0e9d2a000000000001"):
        with pytest.raises(Transient):
            place.mce.is_running(place.token, bad)
    assert sum(place.standin.calls.values()) == before
    place.mce.create_target(place.token, KEY, [Column(name="id")])
    with pytest.raises(StepError):
        place.mce.rows(place.token, "../" + KEY, 1, 1)
    assert place.standin.asked[-1].key == "../" + KEY, "one segment, whatever is in it"


def test_a_task_that_is_not_known_has_no_status(place: Place) -> None:
    assert place.mce.status(place.token, "999") is None


class Says(MceStandIn):
    """One answer, whatever is asked."""

    reply: Reply

    def serve(self, request: Any) -> Reply:
        return super().serve(request) if request.path == "/v2/token" else self.reply


SOAP = '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>{}</s:Body></s:Envelope>'
PARTNER = "http://exacttarget.com/wsdl/partnerAPI"


def retrieved(inside: str) -> str:
    return SOAP.format(f'<RetrieveResponseMsg xmlns="{PARTNER}">{inside}</RetrieveResponseMsg>')


@pytest.mark.parametrize(("status", "body", "error"), [
    (200, "", Transient), (200, "<a/>", Transient), (200, SOAP.format(""), Transient), (200, SOAP.format("<a/><b/>"), Transient),
    (200, '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', Transient),
    (200, retrieved(""), Transient),
    (200, retrieved("<OverallStatus>Error: no such thing</OverallStatus>"), Transient),
    (200, retrieved("<OverallStatus>Error: The Request Property(s) X do not match with the fields of Y</OverallStatus>"), Permanent),
    (200, retrieved("<OverallStatus>OK</OverallStatus><Results/><Results/>"), Transient),
    (400, "<html>Bad Request</html>", Permanent),
    (503, "busy", Transient), (500, "busy", Transient), (200, "\x00", Transient),
    (500, SOAP.format("<s:Fault><faultcode>s:Server</faultcode><faultstring>x</faultstring><detail><a><Code>12</Code></a></detail></s:Fault>"), Permanent),
    (500, SOAP.format("<s:Fault><faultcode>s:Server</faultcode><faultstring>x</faultstring><detail><a><Code>9</Code></a></detail></s:Fault>"), Transient),
    (500, SOAP.format("<s:Fault><faultcode>s:Server</faultcode><faultstring>x</faultstring></s:Fault>"), Transient),
])  # fmt: skip
def test_soap_answers_that_are_not_understood_are_never_a_status(
    status: int, body: str, error: type[StepError]
) -> None:
    pool = new_pool()
    with Says() as standin:
        standin.reply = Reply(status=status, body=body.encode(), headers={"Content-Type": "text/xml"})
        mce = Mce(standin.start(), standin.client_id, standin.client_secret, "1", time_left_s=lambda: 30.0, pool=pool)
        with pytest.raises(error) as caught:
            mce.status(mce.authenticate(), "1")
        assert not isinstance(caught.value, TokenRefused)
        pool.clear()


@pytest.mark.parametrize(
    "url", ["https://evil.example/", "http://10.0.0.1/", "ftp://x", "https://marketingcloudapis.com.evil/"]
)
def test_a_token_is_sent_to_marketing_cloud_only(place: Place, url: str) -> None:
    with pytest.raises(Transient):
        place.mce._place(url)
    assert place.mce._place("mc1.rest.marketingcloudapis.com/") == "https://mc1.rest.marketingcloudapis.com"


def test_a_token_is_good_for_what_its_answer_names(place: Place) -> None:
    assert set(place.token.extra) == {"rest", "soap"}
    assert isinstance(place.token, Token)
    assert place.token.value not in repr(place.token)
