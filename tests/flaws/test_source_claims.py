"""Guards the claim of a run against what the upstream, the file or a refused commit can do to it: never more than was proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from infra.local.standins.server import Reply, Request
from shared.page_ingest.reader import plan
from shared.page_ingest.reader import steps as reader
from shared.page_ingest.reader.client import Client
from shared.page_ingest.reader.model import ConsolidateCursor
from shared.page_ingest.reader.settle import settle
from shared.page_ingest.source.compile import compile_source
from tests.support.ingest import a_turn
from tests.support.rig import BEGINNING
from tests.support.source_model import NextPhase, Outside, World, asked, outcome, rows, world
from tests.support.sources import simple

PAGES = {
    "token": ('token = "/next", size = 10', 'c = "{token}", n = "{size}"'),
    "number": ('number = 1, sorted_by = "upstream", size = 10', 'c = "{number}", n = "{size}"'),
    "offset": ('offset = 0, sorted_by = "upstream", size = 10', 'c = "{offset}", n = "{size}"'),
}
CAPPED = 'count = { at = "/total", exact = false }'


def a_page(style: str, request: Request, ids: list[int], total: int) -> dict[str, Any]:
    at = int(asked(request, "c", "1" if style == "number" else "0"))
    begin = (at - 1) * 10 if style == "number" else at
    more = begin + 10 if begin + 10 < len(ids) else None
    return {"items": rows(*ids[begin : begin + 10]), "next": more, "total": total}


# --- counts that prove nothing


@pytest.mark.parametrize("style", sorted(PAGES))
def test_a_list_is_read_beyond_the_cap_of_its_count(style: str) -> None:
    """Many searches count to a cap. Whoever took that for the length would stop in the middle of the list."""
    ids = list(range(2_500))
    page, query = PAGES[style]

    made = world(simple(page, CAPPED, query=query), lambda request, _: a_page(style, request, ids, 100))

    assert outcome(made.run())[0] == "walked"
    assert len(made.seen("items")) == 2_500


def test_an_approximate_count_is_no_second_witness_of_the_end() -> None:
    ids, empty = list(range(100)), iter([True])
    page, query = PAGES["number"]

    def respond(request: Request, _: str) -> Any:
        told = a_page("number", request, ids, 30)
        return {**told, "items": []} if asked(request, "c") == "6" and next(empty, False) else told

    made = world(simple(page, CAPPED, query=query), respond)

    assert outcome(made.run())[0] == "walked"
    assert len(made.seen("items")) == 100


def test_a_capped_count_does_not_make_a_full_first_page_the_whole_list() -> None:
    """The token is elsewhere, and the count is that of the page."""

    def respond(request: Request, _: str) -> Any:
        size = int(asked(request, "n"))
        return {"items": rows(*range(size)), "meta": {"next": "more"}, "total": size}

    page, query = PAGES["token"]

    claim, why = outcome(world(simple(page, CAPPED, query=query), respond).run())

    assert claim == "failed"
    assert "names no next one" in why


# --- partitions


def divided(values: str) -> World:
    """An instant with thirty rows of the kinds a, b and c, divided by these."""

    def respond(request: Request, _: str) -> Any:
        kind = asked(request, "v")
        found = [each for each in range(30) if not kind or "abc"[each % 3] == kind]
        return {"items": rows(*found), "total": len(found)}

    text = simple(
        'token = "/next"', 'count = { at = "/total" }', f'split = {{ window = "PT1M", most = 10, then = {{ values = {values} }} }}',
        query='c = "{token}", f = "{from}", t = "{to}", v = "{value}"',
    )  # fmt: skip
    span: dict[str, Any] = {"from": "2025-01-01T00:00:00Z", "to": "2025-01-01T00:00:01Z"}
    return world(text, respond, **span)


def test_rows_that_have_none_of_the_listed_values_are_missed_by_every_partition() -> None:
    made = divided('["a", "b"]')

    assert outcome(made.run())[0] == "drifted"
    assert len(made.seen("items")) == 20


def test_an_instant_that_is_divided_by_all_of_its_values_is_complete() -> None:
    made = divided('["a", "b", "c"]')

    assert outcome(made.run())[0] == "complete"
    assert len(made.seen("items")) == 30


def test_the_whole_is_what_was_there_before_then_divided_it() -> None:
    window = {"resource": "items", "from": "x", "to": "y"}

    assert plan.undivided(window) is None
    assert plan.undivided({**window, "then": True, "at": 1, "value": "a"}) == window
    assert plan.undivided({**window, "then": True, "low": 1, "high": 2}) == window
    value = {"resource": "items", "at": 1, "value": "a"}
    assert plan.undivided({**value, "then": True, "low": 1, "high": 2}) == value


# --- rows of a parent

CHILDREN = """source = "any"
hosts = ["api.example.com"]
auth = "none"
[resources.p]
get = "/p"
page = { link = "next" }
rows = "/items"
key = ["/id"]
[resources.items]
get = "/p/{parent}/items"
"""
BY_NUMBER = (
    CHILDREN
    + """query = { c = "{number}", n = "{size}" }
page = { number = 1, sorted_by = "upstream", size = 3 }
rows = "/items"
key = ["/id"]
split = { parent = "p", key = "/id" }
"""
)


LATER: list[str | None] = ["2025-01-01T00:00:00Z"] * 100


@pytest.mark.parametrize("careless", ["a", "b", "c"])
def test_the_children_of_one_parent_that_were_not_read_to_their_end_are_remembered(careless: str) -> None:
    """Whichever parent it was, and whatever came after it."""

    def respond(request: Request, path: str) -> Any:
        if path == "/p":
            return {"items": rows("a", "b", "c")}
        parent = path.split("/")[2]
        if parent == careless:  # no number turns its pages
            return {"items": rows(*(f"{parent}{n}" for n in range(3)))}
        return {"items": rows(f"{parent}1") if asked(request, "c") == "1" else []}

    claim, why = outcome(world(BY_NUMBER, respond).run())

    assert claim == "drifted"
    assert "the second page was the first one again" in why


@pytest.mark.parametrize(("full", "through"), [(False, [None, *LATER]), (True, LATER)])
def test_the_list_of_a_parent_is_asked_for_as_it_was_begun(full: bool, through: list[str | None]) -> None:
    """Another run ends meanwhile and leaves a watermark: from there the rest of the list would be another list. A full run
    begins at none."""
    text = CHILDREN + (
        'query = { c = "{offset}", n = "{size}", s = "{since}" }\npage = { offset = 0, sorted_by = "upstream", size = 10 }\n'
        'rows = "/items"\nkey = ["/id"]\nsplit = { parent = "p", key = "/id" }\nsince = { field = "/u" }\n'
    )
    sent: list[str] = []

    def respond(request: Request, path: str) -> Any:
        if path == "/p":
            return {"items": rows("a")}
        sent.append(asked(request, "s"))
        return a_page("offset", request, list(range(200)), 0)

    made = world(text, respond, full=full)
    find, told = made.store.next_parent, iter(through)
    made.store.next_parent = lambda turn, **params: (  # type: ignore[method-assign]
        None if (found := find(turn, **params)) is None else {**found, "through": next(told)}
    )

    made.run()

    assert len(sent) > 20
    assert set(sent) == {""}
    assert len(made.seen("items")) == 200


# --- the time that a run got to

KEYSET = simple(
    'after = "/u", order = "asc /u", size = 2',
    'since = { field = "/u" }',
    query='a = "{after}", n = "{size}", s = "{since}"',
)


def test_rows_of_one_instant_can_be_skipped_so_changes_by_their_time_are_only_walked() -> None:
    every = [{"id": 1, "u": 1}, {"id": 2, "u": 2}, {"id": 3, "u": 2}, {"id": 4, "u": 3}]

    def respond(request: Request, _: str) -> Any:
        return {"items": [row for row in every if row["u"] > int(asked(request, "a", "0"))][:2]}

    made = world(KEYSET, respond)

    assert outcome(made.run())[0] == "walked"
    assert made.seen("items") == {"1", "2", "4"}  # as the upstream lists it: nobody can see the third


@pytest.mark.parametrize(
    ("old", "new", "claim"),
    [
        ('key = ["/id"]', 'key = ["/id"]', "walked"),
        ('key = ["/id"]', 'key = ["/u", "/id"]', "walked"),
        ('after = "/u", order = "asc /u"', 'after = "/id", order = "asc /id"', "through T"),
    ],
)
def test_only_a_whole_key_names_one_place_among_rows_that_move(old: str, new: str, claim: str) -> None:
    assert compile_source("any.toml", KEYSET.replace(old, new).encode()).claim == claim


CHANGES = 'split = { window = "P1D" }'


def consolidation(made: World) -> ConsolidateCursor:
    made.run()
    found = settle(made._run(), [made._lane(key) for key in made.lanes])
    assert isinstance(found, NextPhase)
    return ConsolidateCursor.read(found.lanes[0].cursor)


@pytest.mark.parametrize(
    ("split", "to", "through"),
    [
        (CHANGES, {}, "2026-01-01T10:00:00Z"),
        (CHANGES, {"to": "2025-12-30T06:00:00Z"}, "2025-12-30T06:00:00Z"),
        ('split = { window = "P1D", as = "date" }', {}, "2026-01-01T00:00:00Z"),
    ],
)
def test_changes_were_read_up_to_the_end_of_the_last_window(split: str, to: dict[str, str], through: str) -> None:
    """And not up to the start of the run, if that was later."""
    text = simple('token = "/next"', split, query='c = "{token}", updated_from = "{from}", updated_to = "{to}"')
    span: dict[str, Any] = {"from": "2025-12-29", **to}
    made = world(text, lambda *_: {"items": []}, **span)
    begun = BEGINNING.replace(year=2026, month=1, day=1, hour=10, minute=0, second=0, microsecond=0)
    made.lanes["plan/0"][0] = {**made.lanes["plan/0"][0], "t": plan.said(begun)}

    found = consolidation(made)

    assert (found.claim, found.t) == ("through T", through)


def test_changes_that_the_upstream_shows_late_are_not_claimed() -> None:
    text = simple('token = "/next"', 'since = { field = "/u", lag = "PT5M" }', query='c = "{token}", s = "{since}"')

    found = consolidation(world(text, lambda *_: {"items": []}))

    assert (found.claim, found.t) == ("through T", plan.said(BEGINNING - timedelta(minutes=5)))


def test_a_list_is_not_counted_again_under_other_settings() -> None:
    """A connection that is pointed elsewhere between the last page and the audit: the counts of two lists can agree."""
    settings: dict[str, Any] = {}

    def respond(*_: Any) -> Any:
        return {"items": rows(1, 2), "total": 2}

    made = world(simple('token = "/next"', 'count = { at = "/total" }', query='c = "{token}"'), respond)
    made.ports = replace(
        made.ports,
        client=lambda compiled, *_: Client(source=compiled.source, settings=settings, secret={}, wire=made.wire),
    )
    for key in ("plan/0", "part/items/all"):
        made._step(key)
    settings["repo"] = "another"

    claim, why = outcome(made.run())

    assert claim == "failed"
    assert "The settings of the connection have changed" in why


def test_the_audit_leaves_the_reserve_to_others_too() -> None:
    def respond(request: Request, _: str) -> Any:
        found = Reply.json({"items": rows(asked(request, "v")), "total": 1})
        return replace(found, headers={**found.headers, "X-Left": "3", "X-Reset": "60"})

    rate = 'rate = { left = "header:x-left", resets = "header:x-reset", resets_as = "seconds", reserve = 5 }'
    text = simple(
        'token = "/next"', 'count = { at = "/total" }', 'split = { values = ["a", "b", "c"] }', query='c = "{token}", v = "{value}"',
        head=[rate],
    )  # fmt: skip
    made = world(text, respond)
    made._work_off()
    found = settle(made._run(), [made._lane(key) for key in made.lanes])
    assert isinstance(found, NextPhase)
    made._add(found.lanes)
    before = len(made.wire.sent)

    made._step(found.lanes[0].key)

    assert len(made.wire.sent) == before + 1, "and then it waits until there are more"
    assert outcome(made.run())[0] == "complete"


# --- a commit that was refused


def test_pages_of_a_step_that_could_not_be_committed_are_not_read_twice() -> None:
    """The claim was given back and is not counted, so the next one looks like the first. If the list were read again from
    where the step began, rows that were seen before and are gone by now would stand for rows that it misses."""
    ids, hidden = list(range(1, 31)), 0

    def respond(request: Request, _: str) -> Any:
        told = a_page("token", request, ids, len(ids))
        return {**told, "items": [row for row in told["items"] if row["id"] != hidden]}

    made = world(simple('token = "/next"', 'count = { at = "/total" }', query='c = "{token}"'), respond)
    made._step("plan/0")
    turn = replace(
        a_turn(1), key="part/items/all", seq=0, cursor=made.lanes["part/items/all"][0], params=made.params, now=BEGINNING,
        attempts=0, claims=1,
    )  # fmt: skip
    take: Callable[[], Any] = lambda: reader.Reader(made.ports).take_step(turn, Outside(made.store, turn))  # type: ignore[arg-type]  # noqa: E731
    take()
    asked_before = len(made.wire.sent)
    ids, hidden = [each for each in range(1, 32) if each != 5], 25

    decision = take()

    assert not decision.cursor["clean"]
    assert len(made.wire.sent) - asked_before == 1, "only the page that was not kept"


# --- what a cursor keeps


@pytest.mark.parametrize("token", ["a\x00b", "\ud800", 2**70, -(2**70)])
def test_a_token_that_cannot_be_kept_is_not_understood(token: Any) -> None:
    made = world(simple('token = "/next"', query='c = "{token}"'), lambda *_: {"items": rows(1), "next": token})

    claim, why = outcome(made.run())

    assert claim == "failed"
    assert "/next" in why


@pytest.mark.parametrize("key", [2**64 - 1, -(2**63)])
def test_the_largest_numbers_are_places_too(key: int) -> None:
    page = 'after = "/id", order = "asc /id", size = 2'

    def respond(request: Request, _: str) -> Any:
        return {"items": [] if asked(request, "a") else rows(key)}

    assert outcome(world(simple(page, query='a = "{after}", n = "{size}"'), respond).run())[0] == "walked"


@pytest.mark.parametrize(
    ("values", "claim"),
    [
        (["a" * 9_000, "a" * 9_000 + "b"], "walked"),
        (["b" * 9_000, "a" * 9_000], "drifted"),
        (["a\ud800", "a\x00"], "walked"),
        ([None, None], "drifted"),
        ([{"deep": [1] * 5_000}, 1], "drifted"),
        ([2**70, 2**70], "drifted"),
        (["missing", "missing"], "drifted"),
        ([1, 2.5], "walked"),
    ],
)
def test_whatever_rows_are_in_order_by_fits_into_a_cursor(values: list[Any], claim: str) -> None:
    """One row a page, so that the order is that of what was kept. The model holds every cursor to 8 KiB."""

    every = [{"id": n, **({} if value == "missing" else {"u": value})} for n, value in enumerate(values, 1)]

    def respond(request: Request, _: str) -> Any:
        at = int(asked(request, "a", "0"))
        return {"items": every[at : at + 1]}

    text = simple('after = "/id", order = "asc /u", size = 1', query='a = "{after}", n = "{size}"')

    assert outcome(world(text, respond, recrawls=0).run())[0] == claim
