"""Guards sources against files that were written in a hurry and upstreams with odd habits: what works is read, and what
does not never looks like a short list."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from infra.local.standins.server import Reply, Request
from shared.kernel import db
from shared.kernel.errors import StepError, Transient
from shared.page_ingest.reader import answers, fill, plan
from shared.page_ingest.reader.answers import kept_origin
from shared.page_ingest.reader.store import base_of
from shared.page_ingest.source.compile import compile_source
from shared.page_ingest.source.model import Resource
from tests.support.ingest import a_turn
from tests.support.source_model import asked, outcome, rows, world
from tests.support.sources import simple

TOKEN = 'token = "/next", size = 5'
BY_TOKEN = 'limit = "{size}", cursor = "{token}"'
OFFSET = 'offset = 0, sorted_by = "upstream", size = 8'
BY_OFFSET = 'limit = "{size}", offset = "{offset}"'
NUMBER = 'number = 1, sorted_by = "upstream", size = 8'
BY_NUMBER = 'limit = "{size}", page = "{number}"'


def resource(text: str) -> Resource:
    (each,) = compile_source("any.toml", text.encode()).resources
    return each.resource


# --- links


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ('<https://x/?p=2>; rel="next"', "https://x/?p=2"),
        ("<https://x/?p=2>; rel=next", "https://x/?p=2"),
        ("<https://x/?p=2>; rel='next'", "https://x/?p=2"),
        ('<https://x/?p=2>;REL="Next"', "https://x/?p=2"),
        ('<https://x/?p=2> ; rel = "prefetch next" ; title="a, <b>; c"', "https://x/?p=2"),
        ('<https://x/?p=2>; title="say \\"no, <y>; rel=last"; rel=next', "https://x/?p=2"),
        (', ,<https://x/?p=1>; rel="prev",, <https://x/?p=2>; rel="next";,', "https://x/?p=2"),
        ('<https://x/?p=2>; rel="next", <https://x/?p=2>; rel="last"', "https://x/?p=2"),
        ('<https://x/?p=2,3;4>; rel="next"', "https://x/?p=2,3;4"),
        ('<https://x/?p=9>; title="; rel=next"; rel="last"', None),
        ('<https://x/?p=9>; rel="prev"; rel="next"', None),
        ('<https://x/?p=9>; rel="nextish"', None),
        ("<https://x/?p=9>; rel", None),
        ("<https://x/?p=9>", None),
        ("", None),
    ],
)
def test_a_link_header_is_read_as_the_standard_has_it(header: str, found: str | None) -> None:
    assert answers._linked(header) == found


@pytest.mark.parametrize(
    "header",
    [
        "https://x/?p=2; rel=next",
        '<https://x/?p=2; rel="next"',
        '<https://x/?p=2>; rel="next',
        '<https://x/?p=2>; rel="next" <https://x/?p=3>; rel="next"',
        '<https://x/?p=2>; rel="next", <https://x/?p=3>; rel="next"',
        "next",
    ],
)
def test_a_link_header_that_cannot_be_read_is_no_end(header: str) -> None:
    with pytest.raises(Transient):
        answers._linked(header)


@pytest.mark.parametrize("piece", ["<a>; b", "<a>;", "<a>; b=", "<a>; b=c;", '<a>; b="\\"', "<"])
def test_a_link_header_takes_no_longer_than_its_length(piece: str) -> None:
    """Each of these made a pattern that goes back look at all pairs of blanks: seconds of a step, or minutes."""
    for filler in (" ", "\t", ";", ",", '"', "\\"):
        with suppress(Transient):
            answers._linked(piece + filler * 27_000 + '"')


@pytest.mark.parametrize(
    ("link", "page", "found"),
    [
        ("?cursor=2", "/v1/items", "/v1/items?cursor=2"),
        ("items?cursor=2", "/v1/items", "/v1/items?cursor=2"),
        ("more/of?x=1", "/v1/items", "/v1/more/of?x=1"),
        ("/v2/items?cursor=2#top", "/v1/items", "/v2/items?cursor=2"),
        ("https://API.example.com:443/items?c=%2F..", "/items", "/items?c=%2F.."),
        ("/items?at=2025-01-01T00:00:00+02:00", "/items", "/items?at=2025-01-01T00:00:00+02:00"),
    ],
)
def test_a_relative_link_begins_at_the_page_that_names_it(link: str, page: str, found: str) -> None:
    assert kept_origin(link, f"https://api.example.com{page}") == found


def test_a_link_without_a_path_keeps_that_of_the_page_before_it_and_not_of_the_file() -> None:
    pages: Mapping[str, tuple[list[Any], str | bool]] = {
        "/items": (rows(1), "/v2/list?p=1"),
        "/v2/list?p=1": (rows(2), "?p=2"),
        "/v2/list?p=2": (rows(3), "rest?p=3"),
        "/v2/rest?p=3": (rows(4), False),
    }

    def respond(request: Request, path: str) -> Any:
        found, following = pages[f"{path}?p={asked(request, 'p')}" if asked(request, "p") else path]
        return {"items": found, "next": following}

    made = world(simple('next = "/next"'), respond)
    assert outcome(made.run())[0] == "walked"
    assert made.seen("items") == {"1", "2", "3", "4"}


# --- pages that are not turned


@pytest.mark.parametrize("count", ["", 'count = { at = "/count" }'])
@pytest.mark.parametrize("style", ["token", "next", "link"])
def test_a_file_that_looks_for_the_next_page_in_the_wrong_place_fails(style: str, count: str) -> None:
    """The list would look as if it had one page, for ever; also with a count that is only that of the page."""
    page = {"token": 'token = "/nxt", size = 6', "next": 'next = "/nxt", size = 6', "link": 'link = "next", size = 6'}
    query = 'limit = "{size}", cursor = "{token}"' if style == "token" else 'limit = "{size}"'

    def respond(request: Request, _: str) -> Any:
        at, size = int(asked(request, "cursor", "0")), int(asked(request, "limit"))
        found = rows(*range(at, min(at + size, 40)))
        return {"items": found, "next": str(at + size), "count": len(found)}

    claim, why = outcome(world(simple(page[style], count, query=query), respond).run())
    assert (claim, "names no next one" in why) == ("failed", True), why


@pytest.mark.parametrize("obeys", [True, False])
def test_a_list_that_is_exactly_one_page_long_is_read(obeys: bool) -> None:
    """Half of it, asked for once more, names a next page; or the upstream sends what it likes, and nothing can be told."""

    def respond(request: Request, _: str) -> Any:
        at, size = int(asked(request, "cursor", "0")), int(asked(request, "limit")) if obeys else 5
        return {"items": rows(*range(at, min(at + size, 5))), "next": str(at + size) if at + size < 5 else None}

    made = world(simple(TOKEN, query=BY_TOKEN), respond)
    assert outcome(made.run())[0] == "walked"
    assert len(made.seen("items")) == 5
    assert len(made.wire.sent) == 2


@pytest.mark.parametrize("count", ["", 'count = { at = "/n" }', 'count = { at = "/n", exact = false }'])
@pytest.mark.parametrize("style", ["offset", "number"])
def test_an_upstream_that_ignores_what_turns_its_pages_is_not_read_to_its_end(style: str, count: str) -> None:
    page, query = {"offset": (OFFSET, BY_OFFSET), "number": (NUMBER, BY_NUMBER)}[style]
    made = world(simple(page, count, query=query), lambda *_: {"items": rows(*range(8)), "n": 3_000}, recrawls=0)
    claim, why = outcome(made.run())
    assert claim == "drifted", why
    assert len(made.wire.sent) < 2_000


def test_an_upstream_that_repeats_its_last_page_beyond_the_end_is_read() -> None:
    def respond(request: Request, _: str) -> Any:
        at = min(int(asked(request, "page")), 3)
        return {"items": rows(*range((at - 1) * 8, min(at * 8, 21)))}

    made = world(simple(NUMBER, query=BY_NUMBER), respond)
    assert outcome(made.run())[0] == "walked"
    assert len(made.seen("items")) == 21


@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_same_rows_under_ever_new_tokens_fail_the_partition(length: int) -> None:
    def respond(request: Request, _: str) -> Any:
        at = int(asked(request, "cursor", "0"))
        return {"items": rows(f"r{at % length}"), "next": str(at + 1)}

    made = world(simple(TOKEN, query=BY_TOKEN), respond)
    assert "the same rows come again and again" in outcome(made.run())[1]
    assert len(made.wire.sent) < 60


def test_equal_rows_without_a_key_are_no_circle() -> None:
    def respond(request: Request, _: str) -> Any:
        at = int(asked(request, "cursor", "0"))
        return {"items": [{"v": 0}], "next": str(at + 1) if at < 50 else ""}

    text = simple(TOKEN, query=BY_TOKEN).replace('key = ["/id"]', 'key = "hash"')
    assert outcome(world(text, respond).run())[0] == "walked"


@pytest.mark.parametrize("nothing", [None, "", False])
def test_an_upstream_says_in_several_ways_that_nothing_follows(nothing: Any) -> None:
    made = world(simple(TOKEN, query=BY_TOKEN), lambda *_: {"items": rows(1), "next": nothing})
    assert outcome(made.run())[0] == "walked"


@pytest.mark.parametrize("place", [True, 1.5, [], {}, ["x"]])
def test_a_place_that_is_none_of_these_is_no_end(place: Any) -> None:
    assert outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: {"items": rows(1), "next": place}).run())[0] == (
        "failed"
    )


def test_an_offset_that_counts_pages_is_not_read_to_its_end() -> None:
    """Page 5 instead of row 5 is empty, and so is page 8: not even the rows that were there are found again."""

    def respond(request: Request, _: str) -> Any:
        at = int(asked(request, "offset")) * 8
        return {"items": rows(*range(at, min(at + 8, 30)))}

    claim, why = outcome(world(simple(OFFSET, query=BY_OFFSET), respond, recrawls=0).run())
    assert (claim, "not found again" in why) == ("drifted", True)


def test_an_offset_behind_which_an_upstream_shows_nothing_is_no_end() -> None:
    def respond(request: Request, _: str) -> Any:
        at = int(asked(request, "offset"))
        return {"items": rows(*range(at, min(at + 8, 100))) if at < 40 else []}

    assert outcome(world(simple(OFFSET, query=BY_OFFSET), respond, recrawls=0).run())[0] == "drifted"


def test_an_empty_page_by_offset_that_was_a_hiccup_is_asked_for_again() -> None:
    calls = iter(range(1_000))

    def respond(request: Request, _: str) -> Any:
        at = int(asked(request, "offset"))
        return {"items": [] if next(calls) in (3, 6) else rows(*range(at, min(at + 8, 30)))}

    made = world(simple(OFFSET, query=BY_OFFSET), respond, recrawls=0)
    assert outcome(made.run())[0] == "walked"
    assert len(made.seen("items")) == 30


@pytest.mark.parametrize("style", ["next", "link"])
def test_a_page_that_was_slow_once_does_not_begin_the_list_anew(style: str) -> None:
    """A smaller page of such a list begins at the start: only one that fails again and again is worth that."""
    state = {"slow": 2, "calls": 0}

    def respond(request: Request, _: str) -> Any:
        state["calls"] += 1
        at = int(asked(request, "at", "0"))
        if at == 30 and state["slow"]:
            state["slow"] -= 1
            return Reply.json({}, 413)
        more = f"/items?limit=5&at={at + 5}" if at < 50 else ""
        body = json.dumps({"items": rows(*range(at, at + 5)), "next": more}).encode()
        return Reply(body=body, headers={"Link": f'<{more}>; rel="next"'} if more else {})

    page = f'{"next" if style == "next" else "link"} = "{"/next" if style == "next" else "next"}", size = 5'
    made = world(simple(page, query='limit = "{size}"'), respond)
    assert outcome(made.run())[0] == "walked"
    assert state["calls"] == 11 + 2


# --- answers


@pytest.mark.parametrize(
    "beside",
    [{"error": "quota"}, {"error": {"message": "quota"}}, {"errors": ["quota"]}, {"errors": [{"message": "quota"}]}],
)
def test_an_error_beside_an_empty_list_is_an_error(beside: dict[str, Any]) -> None:
    claim, why = outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: {"items": [], **beside}).run())
    assert (claim, "quota" in why) == ("failed", True)


@pytest.mark.parametrize(
    "beside", [{"error": None}, {"error": False}, {"errors": []}, {"error": ""}, {"message": "ok"}]
)
def test_the_place_of_an_error_may_be_empty(beside: dict[str, Any]) -> None:
    assert outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: {"items": [], **beside}).run())[0] == "walked"


def test_an_answer_that_is_only_promised_is_no_empty_list() -> None:
    claim, why = outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: Reply.json({"items": []}, 202)).run())
    assert (claim, "no answer yet (202)" in why) == ("failed", True)


def test_an_answer_may_begin_with_a_byte_order_mark() -> None:
    body = b"\xef\xbb\xbf" + json.dumps({"items": rows(1)}).encode()
    assert outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: Reply(body=body)).run())[0] == "walked"


@pytest.mark.parametrize("ids", [(1, None), (1, 1.5), (1, True), (1, [2]), ("a", "")])
def test_a_key_that_becomes_something_else_fails_the_partition(ids: tuple[Any, ...]) -> None:
    claim, why = outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: {"items": rows(*ids)}).run())
    assert (claim, "to know it by" in why) == ("failed", True)


def test_ids_beyond_what_a_float_can_hold_stay_apart() -> None:
    ids = [2**53, 2**53 + 1, 2**63 + 1, 10**40]
    made = world(simple(TOKEN, 'count = { at = "/n" }', query=BY_TOKEN), lambda *_: {"items": rows(*ids), "n": 4})
    assert outcome(made.run())[0] == "complete"
    assert made.seen("items") == {str(each) for each in ids}


COLUMNS = 'columns = { i = "int /v", n = "number /v", t = "text /v", at = "time /v", d = "date /v", b = "bool /v", j = "json /v" }'


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        (2**53 + 1, {"i": 2**53 + 1, "n": 2**53 + 1}),
        (2**63, {"n": str(2**63)}),
        (-(10**29), {"n": str(-(10**29))}),
        (10**30, {}),
        (9007199254740994.0, {"n": 9007199254740994.0}),
        (5.0, {"i": 5, "n": 5.0}),
        (1e300, {"n": 1e300}),
        ("1e5", {"t": "1e5"}),
        ("12345678901234567.89", {"n": "12345678901234567.89", "t": "12345678901234567.89"}),
        ("2025-03-30T02:30:00+01:00", {"at": "2025-03-30T01:30:00+00:00", "d": "2025-03-30"}),
        ("2025-10-26T02:30:00+02:00", {"at": "2025-10-26T00:30:00+00:00", "d": "2025-10-26"}),
        ("2025-01-01T00:00:00-11:30", {"at": "2025-01-01T11:30:00+00:00", "d": "2025-01-01"}),
        ("2025-01-01T00:00:00", {"at": "2025-01-01T00:00:00+00:00", "d": "2025-01-01"}),
        ("0001-01-01T00:00:00+14:00", {"d": "0001-01-01"}),
        ("2025-02-30", {}),
        ("Wed, 01 Jan 2025 00:00:00 GMT", {}),
        (None, {}),
        (True, {"b": True}),
        ({"a": [1]}, {}),
    ],
)
def test_a_value_goes_into_a_column_as_it_was_written_or_not_at_all(value: Any, fits: Mapping[str, Any]) -> None:
    made = resource(simple(TOKEN, COLUMNS, query=BY_TOKEN))
    row = answers.read_row(made, {"id": 1, "v": value})
    found = dict(zip([column.name for column in made.columns], row.cols, strict=True))
    text = {"t": value} if isinstance(value, str) else {}
    assert {name: each for name, each in found.items() if each is not None and name != "j"} == {**text, **fits}
    db.jsonb(list(row.cols))  # whatever it is, it can be sent


VALUES: Mapping[str, list[Any]] = {
    "text": ["a", "", "a\x00b", "\ud800", "\u2028", "é", 1, True, ["a"]],
    "int": [0, -(2**63), 2**63 - 1, 2**63, -(2**63) - 1, 5.0, 5.5, "5", True],
    "number": [1, 1.5, 0.1, 2**63, 10**29, 10**30, 1e300, float("inf"), float("nan"), "1.50", "1e5", " 1", "12", True],
    "time": ["2025-01-01T00:00:00Z", "2024-02-29T23:59:59Z", "2025-02-30T00:00:00Z", "2025-01-01T00:00:00+01:00",
             "2025-01-01 00:00:00Z", "٢٠٢٥-01-01T00:00:00Z", "2025-01-01", 1],
    "bool": [True, False, 1, 0, "true"],
    "date": ["2025-01-01", "2025-02-30", "2025-01-01T00:00:00Z", 20250101],
    "json": [{"a": [1]}, "a\x00", [], 1],
}  # fmt: skip


@pytest.mark.parametrize("type_", VALUES)
def test_a_page_is_read_as_its_rows_are_one_by_one(type_: str) -> None:
    """Columns whose every value fits are looked at as a whole; what comes out is the same, whatever stands beside it."""
    made = resource(simple(TOKEN, f'columns = {{ v = "{type_} /v" }}', query=BY_TOKEN))
    values = [*VALUES[type_], None]
    for pair in [[each] for each in values] + [[a, b] for a in values for b in values]:
        for key in (int, str, lambda n: "" if n == 1 else "k" * 501 if n == 2 else "\u2028"):
            rows = [{"id": key(n), "v": value} for n, value in enumerate([*pair, *pair])] + [{"id": key(9)}]
            assert _read_together(made, rows) == _read_one_by_one(made, rows)


@pytest.mark.parametrize(
    "more",
    ["", 'keep = { absent = ["/x"] }', 'keep = { equal = { "/v" = "a" } }', 'gone = { flag = "/v", equals = "a" }'],
)
@pytest.mark.parametrize("large", ["", "x" * answers.LARGEST_ROW])
def test_a_page_whose_rows_are_decided_on_is_read_as_its_rows_are_one_by_one(more: str, large: str) -> None:
    made = resource(simple(TOKEN, 'columns = { v = "text /v" }', more, query=BY_TOKEN))
    rows = [{"id": str(n), "v": v, "x": x, "l": large} for n, (v, x) in enumerate([("a", None), ("b", 1), ("a", 1)])]
    assert _read_together(made, rows) == _read_one_by_one(made, rows)


def _read_together(made: Resource, rows: list[Any]) -> Any:
    body = {"items": rows, "next": None}
    return _told(
        lambda: answers.read_page(made, body, {}, 500, "https://api.example.com/", json.dumps(body).encode()).rows
    )


def _read_one_by_one(made: Resource, rows: list[Any]) -> Any:
    return _told(lambda: [answers.read_row(made, row) for row in rows])


def _told(read: Callable[[], Sequence[answers.Row]]) -> Any:
    try:
        return [(*row[:3], db.jsonb(list(row.cols)), row.why) for row in read()]
    except StepError as error:
        return str(error)


@pytest.mark.parametrize("row", [1, "x", None, [1], True])
def test_a_row_that_is_no_object_fails_the_partition(row: Any) -> None:
    claim, why = outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: {"items": [{"id": 1}, row]}).run())
    assert (claim, "instead of an object" in why) == ("failed", True)


# --- windows


@pytest.mark.parametrize("zone", ["Z", "+02:00", "-11:00"])
@pytest.mark.parametrize("window", ["P1D", "PT1H", "P1M", "P7D"])
@pytest.mark.parametrize("as_", ["time", "unix", "unix_ms", "date"])
def test_windows_leave_no_gap_and_no_overlap_whatever_the_clocks_do(as_: str, window: str, zone: str) -> None:
    """Over both changes of the clocks, the end of February and that of a year: one window begins where another ends."""
    if as_ == "date" and window == "PT1H":
        return
    ends = ["", ', to = "included"'] if as_ != "time" else [""]
    for begin, end in (("2024-02-28", "2024-03-31"), ("2025-03-29", "2025-04-01"), ("2025-10-25", "2026-01-02")):
        for to in ends:
            made = resource(
                simple(
                    TOKEN, f'split = {{ window = "{window}", as = "{as_}"{to} }}', query=BY_TOKEN + ', f = "{from}", t = "{to}"'
                )
            )  # fmt: skip
            parts = plan.roots(
                made, f"{begin}T00:00:00{zone}", f"{end}T00:00:00{zone}", datetime(2030, 1, 1, tzinfo=UTC)
            )
            words = [fill.words_of(made, {}, part, None) for part in parts]
            for before, then in pairwise(words):
                assert _next(before["to"], included=bool(to)) == then["from"]


def _next(to: Any, *, included: bool) -> Any:
    if not included:
        return to
    return to + 1 if isinstance(to, int) else _day_after(to)


def _day_after(day: str) -> str:
    return datetime.fromordinal(datetime.fromisoformat(day).toordinal() + 1).date().isoformat()


def test_a_window_ends_with_the_run_and_is_never_of_the_future() -> None:
    made = resource(
        simple(TOKEN, 'split = { window = "P1M" }', query=BY_TOKEN + ', f = "{from}", t = "{to}"'),
    )
    parts: Sequence[Any] = plan.roots(made, "2025-01-01", "2099-01-01", datetime(2025, 1, 31, 12, 30, 15, tzinfo=UTC))
    assert [(part["from"], part["to"]) for part in parts] == [("2025-01-01T00:00:00Z", "2025-01-31T12:30:15Z")]


# --- a process that dies


@pytest.mark.parametrize("style", ["token", "offset"])
@pytest.mark.parametrize("at", [1, 4, 7])
def test_whoever_dies_in_the_middle_of_a_step_asks_for_one_page_again(at: int, style: str) -> None:
    page, query = {"token": (TOKEN, BY_TOKEN), "offset": (OFFSET, BY_OFFSET)}[style]
    word = {"token": "cursor", "offset": "offset"}[style]
    places: list[str] = []

    def respond(request: Request, _: str) -> Any:
        places.append(asked(request, word, "0"))
        if len(places) == at + 1:
            raise MemoryError  # nobody catches it
        first, size = int(places[-1]), int(asked(request, "limit"))
        found = list(range(100))[first : first + size]
        return {"items": rows(*found), "next": str(first + size) if first + size < 100 else None, "n": 100}

    made = world(simple(page, 'count = { at = "/n" }', query=query), respond)
    with pytest.raises(MemoryError):
        made.run()
    assert outcome(made.run())[0] == "complete"
    assert len(made.seen("items")) == 100
    in_the_audit = 1
    assert len(places) - len(set(places)) <= 1 + in_the_audit


def test_a_place_is_of_the_step_that_wrote_it() -> None:
    turn = replace(a_turn(1), cursor={"pages": 3, "place": "x"})
    assert base_of(turn) == base_of(replace(turn, seq=9, attempts=2, claims=4, cursor={"place": "x", "pages": 3}))
    assert base_of(turn) != base_of(replace(turn, epoch=2))
    assert base_of(turn) != base_of(replace(turn, cursor={"pages": 4, "place": "x"}))


# --- rows that are not plain


def _nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("others", [0, 40])
@pytest.mark.parametrize(("levels", "state"), [(31, "row"), (32, "quarantined"), (300, "quarantined")])
def test_a_row_that_is_nested_too_deeply_waits_in_quarantine_whatever_stands_beside_it(
    levels: int, state: str, others: int
) -> None:
    text = simple(
        'token = "/next", size = 50', 'columns = { a = "text /a" }', 'contract = "quarantine"',
        query='limit = "{size}", cursor = "{token}"',
    )  # fmt: skip
    items = [*rows(*range(others)), {"id": "deep", "x": _nested(levels)}]
    made = world(text, lambda *_: {"items": items})
    assert outcome(made.run())[0] == "walked"
    assert made.store.raw["items", "deep"][2] == state


def test_a_nul_never_reaches_the_database() -> None:
    made = resource(simple(TOKEN, 'columns = { t = "text /t" }', query=BY_TOKEN))
    page = {"items": [{"id": 1, "t": "a\x00b", "u": ["\x00"]}]}
    raw = json.dumps(page).encode()
    (row,) = answers.read_page(made, page, {}, 5, "https://api.example.com/items", raw).rows
    assert "\\u0000" not in db.jsonb([row.body.decode(), row.cols])
