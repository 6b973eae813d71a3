"""The product search over real HTTP, by a stand-in that speaks its protocol and misbehaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.local.standins.product_search import API_KEY, SearchStandIn
from shared.kernel.http import new_pool
from shared.row_job.adapters.hands import Threads
from shared.row_job.adapters.search import HttpSearch
from shared.row_job.decide import Answered
from shared.row_job.model import Item, Strategy
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
