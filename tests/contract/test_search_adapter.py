"""The product search over real HTTP, by a stand-in that speaks its protocol and misbehaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import orjson
import pytest

from infra.local.standins.product_search import API_KEY, SearchStandIn
from infra.local.standins.server import Reply
from shared.kernel.http import new_pool
from shared.row_job import build
from shared.row_job.adapters.hands import Threads
from shared.row_job.adapters.search import HttpSearch
from shared.row_job.decide import Answered
from shared.row_job.model import Item, RowJobParams, Strategy
from shared.row_job.ports import Call


@pytest.fixture
def standin() -> Iterator[SearchStandIn]:
    with SearchStandIn() as standin:
        yield standin


def client(standin: SearchStandIn, key: str = API_KEY, left_s: float = 10.0) -> HttpSearch:
    url = standin.start()
    return HttpSearch(url, key, locale="es-ES", currency="EUR", time_left_s=lambda: left_s, pool=new_pool())


def item(title: str = "Acme X200", n: int = 1) -> Item:
    return Item(row_no=n, attempts=1, normalized={"title": title, "brand": "Acme", "sku": "X"})


def test_what_is_found_and_what_is_not(standin: SearchStandIn) -> None:
    search = client(standin)

    found = search.find(item(), Strategy.EXACT_SKU, ["shop1.example"], "1:1")
    assert (found.what, found.offers[0].title, found.offers[0].currency) == ("found", "Acme X200", "EUR")
    assert search.find(item("missing"), Strategy.TITLE_ONLY, [], "2:1").what == "not_found"
    refused = search.find(item("vague"), Strategy.TITLE_ONLY, [], "3:1")
    assert (refused.what, refused.message) == ("invalid", "The product search refuses this row: Say more about it.")
    assert [(each.key, each.domain, each.strategy) for each in standin.asked][:2] == [
        ("1:1", "shop1.example", "exact_sku"), ("2:1", "any", "title_only"),
    ]  # fmt: skip


def test_a_limit_of_a_domain_says_how_long_to_wait(standin: SearchStandIn) -> None:
    search = client(standin)
    standin.obey({"limits": {"shop1.example": 1}})
    search.find(item(), Strategy.EXACT_SKU, ["shop1.example"], "1:1")

    told = search.find(item(), Strategy.EXACT_SKU, ["shop1.example"], "2:1")

    assert told.what == "throttled"
    assert 0 < told.retry_after_s <= 1
    assert search.find(item(), Strategy.EXACT_SKU, ["shop2.example"], "3:1").what == "found"


@pytest.mark.parametrize(
    ("fault", "how", "what"),
    [
        ("server_error", {}, "failed"),
        ("html", {}, "failed"),
        ("truncated", {}, "failed"),
        ("reset", {}, "failed"),
        ("throttle", {"retry_after": "7"}, "throttled"),
        ("throttle", {}, "throttled"),
        ("huge", {"by": 40}, "failed"),
    ],
)
def test_nothing_that_is_not_understood_is_taken_for_an_answer(
    standin: SearchStandIn, fault: str, how: dict[str, object], what: str
) -> None:
    search = client(standin)
    standin.misbehave(fault, budget=1, **how)

    answer = search.find(item(), Strategy.TITLE_ONLY, [], "1:1")

    assert answer.what == what
    assert API_KEY not in (answer.message or "")
    assert search.find(item(), Strategy.TITLE_ONLY, [], "1:2").what == "found"


def test_no_more_offers_are_kept_than_were_asked_for(standin: SearchStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    real = standin._answer

    def many(wanted: Mapping[str, Any], domain: str) -> Reply:
        told = orjson.loads(real(wanted, domain).body)
        return Reply.json({**told, "results": [{**told["results"][0], "score": n} for n in range(90)]})

    monkeypatch.setattr(standin, "_answer", many)

    answer = client(standin).find(item(), Strategy.TITLE_ONLY, [], "1:1")

    assert [offer.score for offer in answer.offers] == [0, 1, 2, 3, 4], "the first are the best"


def test_a_call_takes_no_longer_than_the_setting_says(standin: SearchStandIn) -> None:
    standin.takes_s = 3.0
    env = {"BATON_ROWS_PROVIDER_URL": standin.start(), "BATON_ROWS_PROVIDER_TIMEOUT_MS": "100"}
    account = build.search_provider(env).account({"account": "main"}, {"api_key": API_KEY})
    search = build._connected(env, account, RowJobParams(file_id=UUID(int=0)), lambda: 60.0)

    assert search.find(item(), Strategy.TITLE_ONLY, [], "1:1").what == "slow"


def test_a_wrong_key_is_said_without_the_key(standin: SearchStandIn) -> None:
    answer = client(standin, key="secret-key-1").find(item(), Strategy.TITLE_ONLY, [], "1:1")

    assert answer.what == "refused"
    assert "Change the connection" in str(answer.message)
    assert "secret-key-1" not in str(answer)


def test_calls_run_at_once_and_each_is_answered_once(standin: SearchStandIn) -> None:
    search = client(standin)
    standin.takes_s = 0.1
    with Threads(8) as hands:
        for n in range(8):

            def ask(n: int = n) -> Answered:
                return search.find(item(f"p{n}"), Strategy.TITLE_ONLY, [], f"{n}:1")

            hands.submit(ask, Call(item(n=n), "any", 1))
        hands.submit(lambda: (_ for _ in ()).throw(KeyError("surprise")), Call(item(n=8), "any", 1))
        got: list[tuple[Call, Answered]] = []
        while len(got) < 9:
            got += hands.collect(5)

    assert sorted(call.item.row_no for call, _ in got) == list(range(9))
    assert [answer.what for call, answer in got if call.item.row_no == 8] == ["failed"]
    assert standin.at_once() == []


@pytest.mark.parametrize(
    ("said", "least_s", "most_s"),
    [("date", 80, 91), (" 7 ", 7, 7), ("1.5", 1.5, 1.5), ("99999999", 3600, 3600), ("soon", 0, 0)],
)
def test_a_wait_is_understood_in_whatever_form_it_is_said(
    standin: SearchStandIn, said: str, least_s: float, most_s: float
) -> None:
    search = client(standin)
    standin.misbehave("throttle", budget=1, retry_after=said, seconds=90)

    answer = search.find(item(), Strategy.TITLE_ONLY, [], "1:1")

    assert answer.what == "throttled"
    assert least_s <= answer.retry_after_s <= most_s


@pytest.mark.full
def test_a_call_that_takes_too_long_is_slow_and_not_failed(standin: SearchStandIn) -> None:
    search = client(standin, left_s=3.1)
    standin.misbehave("slow", budget=1, seconds=5)

    assert search.find(item(), Strategy.TITLE_ONLY, [], "1:1").what == "slow"


def test_what_is_found_can_be_kept_whatever_characters_it_holds(standin: SearchStandIn) -> None:
    answer = client(standin).find(item("Acme\x00 X200"), Strategy.TITLE_ONLY, [], "1:1")

    assert [each.title for each in answer.offers] == ["Acme\N{REPLACEMENT CHARACTER} X200"]
