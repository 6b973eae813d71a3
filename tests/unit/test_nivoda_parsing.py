"""Answers of Nivoda read strictly: garbage of any sort is a declared error and never a page, a count or a token."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.kernel.errors import StepError, Transient
from shared.kernel.http import Http
from shared.page_ingest.adapters.nivoda_answers import AsksToWait, read_count, read_page, read_token
from shared.page_ingest.model import Page, PriceRange

HTTP = Http("https://upstream.example", name="Nivoda", gate="nivoda", time_left_s=lambda: 60.0)
PRICES = PriceRange(low=0, high=100_000)
TEXT = st.text(st.characters() | st.sampled_from(["\x00", "\ud800", "\udfff", '"', "\\"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.integers(-(2**80), 2**80) | st.floats() | TEXT
KEYS = (
    st.sampled_from(["data", "errors", "as", "diamonds_by_query", "items", "id", "price", "diamond", "message"]) | TEXT
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))

RULE = settings(max_examples=60, deadline=None)


def an_item(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {"id": f"offer {number}", "price": 100 * number, "diamond": {"id": f"stone-{number}"}, **changes}


def a_page(*items: Any) -> dict[str, Any]:
    return {"data": {"as": {"diamonds_by_query": {"items": list(items)}}}}


def body(answer: Any) -> bytes:
    return json.dumps(answer).encode()


def read(answer: Any, limit: int = 50) -> Page:
    return read_page(body(answer), PRICES, limit)


@st.composite
def damaged(draw: st.DrawFn, answer: Any) -> Any:
    """The answer with any one of its values replaced by anything."""
    paths = list(all_paths(answer, ()))
    return replaced(answer, draw(st.sampled_from(paths)), draw(JSON))


def all_paths(value: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, each in inner for deeper in all_paths(each, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


@RULE
@given(st.binary(max_size=200) | JSON.map(body))
def test_arbitrary_answers_raise_declared_errors_only(answer: bytes) -> None:
    for reader in (read_token, read_count, lambda answer: read_page(answer, PRICES, 50)):
        with pytest.raises(StepError):
            reader(answer)


@RULE
@given(damaged(a_page(an_item(1), an_item(2, extra={"deep": ["text"]}))))
def test_a_damaged_page_is_an_error_or_says_exactly_what_it_holds(answer: Any) -> None:
    try:
        page = read(answer)
    except StepError:
        return
    items = answer["data"]["as"]["diamonds_by_query"]["items"]
    assert page.fetched == len(items)
    assert page.ids == tuple(item["diamond"]["id"] for item in items)
    assert not answer.get("errors")
    orjson.loads(b"[" + b",".join(item.body for item in page.items) + b"]")


@RULE
@given(damaged({"data": {"as": {"diamonds_by_query_count": 5}}}))
def test_a_damaged_count_is_an_error_or_the_very_number(answer: Any) -> None:
    try:
        count = read_count(body(answer))
    except StepError:
        return
    assert type(count) is int
    assert 0 <= count == answer["data"]["as"]["diamonds_by_query_count"]


@RULE
@given(st.binary(max_size=60))
def test_a_page_that_is_cut_or_followed_by_anything_is_no_page(noise: bytes) -> None:
    whole = body(a_page(an_item()))

    for at in range(0, len(whole), 7):
        with pytest.raises(Transient):
            read_page(whole[:at], PRICES, 50)
    if noise.strip(b" \t\r\n"):
        with pytest.raises(Transient):
            read_page(whole + noise, PRICES, 50)


@pytest.mark.full
@RULE
@given(JSON)
def test_whatever_an_item_carries_can_be_stored_and_is_always_stored_alike(extra: Any) -> None:
    try:
        pages = [read(a_page(an_item(extra=extra))) for _ in range(2)]
    except Transient:
        return
    stored = [page.items[0].body for page in pages]
    assert stored[0] == stored[1]
    assert b"\\u0000" not in stored[0]


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(an_item(price=-1), id="negative price"),
        pytest.param(an_item(price=1.5), id="fractional price"),
        pytest.param(an_item(price=100.0), id="price as a float"),
        pytest.param(an_item(price="100"), id="price as text"),
        pytest.param(an_item(price=True), id="price as a truth value"),
        pytest.param(an_item(price=None), id="no price"),
        pytest.param(an_item(price=10**20), id="price beyond a bigint"),
        pytest.param(an_item(id=""), id="empty offer id"),
        pytest.param(an_item(id=5), id="offer id as a number"),
        pytest.param(an_item(diamond={}), id="no stone id"),
        pytest.param(an_item(diamond=None), id="no stone"),
        pytest.param(an_item(diamond={"id": "  "}), id="blank stone id"),
        pytest.param(an_item(diamond={"id": "a\x00"}), id="NUL in an id"),
        pytest.param(an_item(diamond={"id": "a\ud800"}), id="lone surrogate in an id"),
        pytest.param(an_item(diamond={"id": "x" * 201}), id="endless id"),
        pytest.param(an_item(extra=float("nan")), id="NaN"),
        pytest.param(an_item(extra=float("inf")), id="Infinity"),
        pytest.param(an_item(extra={"a\x00": 1, "a\ud800": 2}), id="keys that would become one"),
        pytest.param(None, id="null item"),
    ],
)
def test_an_item_without_sound_ids_and_price_spoils_its_page(item: Any) -> None:
    with pytest.raises(Transient) as caught:
        read(a_page(an_item(2), item))

    assert caught.value.code == "bad_answer"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{}", id="empty object"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"data":null}', id="null data"),
        pytest.param(b'{"data":null,"errors":[]}', id="null data and no errors"),
        pytest.param(b'{"data":{},"errors":"oops"}', id="errors that are no list"),
        pytest.param(b'{"data":{"as":{"diamonds_by_query":{"items":null}}}}', id="null items"),
        pytest.param(b'{"data":{"as":{"diamonds_by_query":null}}}', id="null page"),
        pytest.param(b'{"data":{"as":{"diamonds_by_query":{"items":[],"items":[]}}}}', id="a key twice"),
        pytest.param(
            b'{"data":{"as":{"diamonds_by_query":{"items":[],"items":[],"x":"\\u003a"}}}}', id="a key twice, in hiding"
        ),
        pytest.param(b'{"data":{"as":{"diamonds_by_query":{"items":[],"x":1e999}}}}', id="a number beyond numbers"),
        pytest.param(b'{"data":{"as":{"diamonds_by_query":{"items":[],"x":' + b"9" * 5_000 + b"}}}}", id="long number"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="an abyss"),
        pytest.param(body(a_page()).decode().encode("utf-16"), id="another encoding"),
        pytest.param(b"<html></html>", id="HTML"),
        pytest.param(b"\x1f\x8b\x08\x00", id="compressed"),
    ],
)
def test_an_answer_that_is_not_understood_is_no_empty_page(answer: bytes) -> None:
    with pytest.raises(Transient) as caught:
        read_page(answer, PRICES, 50)

    assert caught.value.code == "bad_answer"


def test_errors_beside_data_win() -> None:
    with pytest.raises(Transient, match="half of it"):
        read({**a_page(an_item()), "errors": [{"message": "only half of it"}]})


def test_an_empty_list_of_items_is_an_empty_page() -> None:
    assert read({**a_page(), "errors": None}) == Page(items=(), fetched=0, ids=())


def test_an_abyss_within_an_item_is_refused() -> None:
    deep: Any = "bottom"
    for _ in range(100):
        deep = [deep]

    with pytest.raises(Transient, match="deep"):
        read(a_page(an_item(extra=deep)))


def test_an_integer_beyond_64_bits_becomes_text() -> None:
    assert read(a_page(an_item(extra=2**70))).items[0].body.count(f'"extra":"{2**70}"'.encode()) == 1


def test_prices_in_another_unit_are_noticed_instead_of_filtered_away() -> None:
    dollars = [an_item(number, price=1_500 + number) for number in range(10)]

    with pytest.raises(Transient, match="No price on the page"):
        read_page(body(a_page(*dollars)), PriceRange(low=1_000, high=2_000), 50)


def test_stones_that_were_not_asked_for_are_named_and_those_at_a_border_are_not_among_them() -> None:
    near = [an_item(number, price=price) for number, price in enumerate([99_900, 100_000, 199_999, 200_000, 200_099])]
    far = [an_item(number, price=price) for number, price in enumerate([99_899, 200_100, 900_000], start=len(near))]

    page = read_page(body(a_page(*near, *far)), PriceRange(low=1_000, high=2_000), 50)

    assert (len(page.items), page.fetched, page.foreign) == (2, 8, frozenset(page.ids[len(near) :]))


def test_a_page_of_stones_that_all_cost_the_upper_border_keeps_none_of_them() -> None:
    page = read_page(
        body(a_page(*(an_item(number, price=2_000_00) for number in range(10)))), PriceRange(low=1_000, high=2_000), 50
    )

    assert (page.items, page.fetched) == ((), 10)


def a_log_in(token: Any) -> bytes:
    return body({"data": {"authenticate": {"username_and_password": {"token": token}}}})


@pytest.mark.parametrize("token", ["opaque", "a.b.c", "e30.e30.e30", "a.####.c", "....", "a.WzFd.c"])
def test_a_token_that_does_not_tell_its_life_is_trusted_for_an_hour(token: str) -> None:
    assert read_token(a_log_in(token)).expires_in_s == 3_600


@pytest.mark.parametrize("token", ["", "two words", "é", "line\nbreak", "x" * 9_000, 5, None])
def test_what_cannot_be_a_token_is_none(token: Any) -> None:
    with pytest.raises(Transient, match="token"):
        read_token(a_log_in(token))


def test_a_message_about_limits_is_a_throttle() -> None:
    with pytest.raises(AsksToWait, match="Rate limit reached"):
        read({"data": None, "errors": [{"message": "Rate limit reached"}]})


@RULE
@given(st.text(max_size=40), st.text(max_size=40))
def test_a_wait_is_within_bounds_whatever_the_headers_say(retry_after: str, date: str) -> None:
    throttled = HTTP.throttled({"retry-after": retry_after, "date": date}, "429")

    assert 1 <= throttled.retry_after_s <= 21_600
    assert "NaN" not in throttled.message


@pytest.mark.parametrize(("low", "high"), [(5, 5), (6, 5), (-1, 5), (0, 2**31)])
def test_a_price_range_that_holds_nothing_or_cannot_be_asked_for_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="price range"):
        PriceRange(low=low, high=high)
