"""Guards sources against upstreams that lie, wander, hide and overflow: a run may fail, and never claims what is not so."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from infra.local.standins.server import Reply, Request
from shared.kernel import http
from shared.kernel.errors import Permanent
from shared.kernel.http import is_public, new_pool
from shared.page_ingest.reader.wire import HttpWire, door
from tests.support.source_model import asked, outcome, rows, world
from tests.support.sources import simple

TOKEN = 'token = "/next", size = 5'
BY_TOKEN = 'limit = "{size}", cursor = "{token}"'
COUNTED = 'count = { at = "/n" }'
SECRET = "s3cret-value"


# --- pages that lead nowhere, in circles, or elsewhere


@pytest.mark.parametrize("length", [1, 2, 3, 7, 40])
def test_tokens_that_come_again_fail_the_partition(length: int) -> None:
    def respond(request: Request, _: str) -> Any:
        at = int(asked(request, "cursor", "0"))
        return {"items": rows(f"r{at}"), "next": str(at % length + 1)}

    claim, why = outcome(world(simple(TOKEN, query=BY_TOKEN), respond).run())
    assert (claim, "the place of a page came twice" in why) == ("failed", True)


def test_a_key_that_does_not_move_on_fails_the_partition() -> None:
    page = 'after = "/id", order = "asc /id", size = 2'
    run = world(simple(page, query='limit = "{size}", after = "{after}"'), lambda *_: {"items": rows(1, 2)})
    assert "leads in circles" in outcome(run.run())[1]


@pytest.mark.parametrize(
    "link",
    [
        "https://evil.example/items?cursor=2", "http://api.example.com/items", "//evil.example/items", "https://10.0.0.8/items",
        "https://api.example.com:8443/items", "https://me@api.example.com/items", "https://api.example.com@evil.example/",
        "https://169.254.169.254/latest/meta-data", "file:///etc/passwd", "https://API.example.com.evil.example/items",
    ],
)  # fmt: skip
@pytest.mark.parametrize("style", ["next", "link"])
def test_a_link_to_another_origin_is_not_followed(style: str, link: str) -> None:
    def respond(*_: Any) -> Reply:
        body = json.dumps({"items": rows(1), "next": link}).encode()
        return Reply(body=body, headers={"Link": f'<{link}>; rel="next"'})

    page = 'next = "/next"' if style == "next" else 'link = "next"'
    made = world(simple(page, query="", auth='{ bearer = "token" }'), respond, {"token": SECRET})
    claim, why = outcome(made.run())
    assert claim == "failed"
    assert "another host" in why or "not a" in why
    assert {host for host, _ in made.wire.sent} == {"api.example.com"}


@pytest.mark.parametrize(
    "link", ["/a/../admin", "/%2e%2e/admin", "../items?x=1", "/it ems", "/x\\y", "https://api.example.com"]
)
def test_a_link_that_is_no_plain_path_is_not_followed(link: str) -> None:
    made = world(simple('next = "/next"'), lambda *_: {"items": rows(1), "next": link})
    assert outcome(made.run())[0] == "failed"
    assert {target for _, target in made.wire.sent} == {"/items"}


def test_a_redirect_is_not_followed() -> None:
    there = Reply(body=b"", status=302, headers={"Location": "https://evil.example/"})
    assert (
        "redirects (302): it was not followed"
        in outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: there).run())[1]
    )


def test_a_secret_is_stripped_from_links_and_never_kept_in_a_cursor() -> None:
    def respond(request: Request, _: str) -> Any:
        assert asked(request, "key") == SECRET
        at = int(asked(request, "p", "0"))
        more = {"next": f"https://api.example.com/items?p={at + 1}&key={SECRET}"} if at < 3 else {}
        return {"items": rows(at), **more}

    made = world(simple('next = "/next"', auth='{ query = "key", key = "api_key" }'), respond, {"api_key": SECRET})
    while any(lane[1] == "active" for lane in made.lanes.values()):
        made._work_off()
        assert SECRET not in json.dumps([lane[0] for lane in made.lanes.values()])
    assert outcome(made.run())[0] == "walked"
    assert made.seen("items") == {"0", "1", "2", "3"}


def test_a_token_that_repeats_the_secret_is_not_kept() -> None:
    made = world(
        simple(TOKEN, query=BY_TOKEN, auth='{ bearer = "token" }'),
        lambda *_: {"items": rows(1), "next": f"x{SECRET}y"},
        {"token": SECRET},
    )
    claim, why = outcome(made.run())
    assert (claim, "repeats the secret" in why, SECRET in why) == ("failed", True, False)


@pytest.mark.parametrize("way", ['{ bearer = "token" }', '{ query = "api_key", key = "token" }'])
@pytest.mark.parametrize("spelled", ["s3cr%65t%2fva lue%2b", "s3cret%2fva+lue%2B", "s3cret/va%20lue%2B"])
def test_a_secret_is_known_however_a_link_spells_it(spelled: str, way: str) -> None:
    """The parameter that carries it is taken out; anywhere else it ends the reading."""
    secret, name = "s3cret/va lue+", "api_key" if "query" in way else "other"

    def respond(request: Request, _: str) -> Any:
        more = (
            {}
            if asked(request, "p")
            else {"next": f"/items?p=1&{name.replace('_', '%5f')}={spelled.replace(' ', '+')}"}
        )
        return {"items": rows(int(asked(request, "p", "0"))), **more}

    made = world(simple('next = "/next"', auth=way), respond, {"token": secret})
    claim, why = outcome(made.run())

    assert claim == ("walked" if "query" in way else "failed"), why
    assert "s3cr" not in json.dumps([lane[0] for lane in made.lanes.values()])
    assert ("repeats the secret" in why) is (claim == "failed")


def test_a_secret_in_an_error_is_not_repeated() -> None:
    said = Reply.json({"message": f"bad token {SECRET}"}, 400)
    made = world(simple(TOKEN, query=BY_TOKEN, auth='{ bearer = "token" }'), lambda *_: said, {"token": SECRET})
    made.wire._http = http.Http("https://x.example", name="any", gate="g", time_left_s=lambda: 9.0, secrets=[SECRET])
    assert outcome(made.run()) == ("failed", "1 of 1 partitions failed: any refuses the request (400): bad token ***")


@pytest.mark.parametrize("style", ["token", "next"])
def test_a_place_longer_than_a_cursor_may_be_fails_the_partition(style: str) -> None:
    page = TOKEN if style == "token" else 'next = "/next"'
    made = world(
        simple(page, query=BY_TOKEN if style == "token" else ""),
        lambda *_: {"items": rows(1), "next": "/" + "x" * 7_500},
    )
    assert "longer than a cursor may be" in outcome(made.run())[1]


# --- answers that say something else


@pytest.mark.parametrize(
    "body",
    [
        {"error": "quota"}, {"items": None}, {"items": {"0": {}}}, {"items": "none"}, [], None, "ok", {"items": [None]},
        {"items": [[1]]}, {"items": [{"name": "no key"}]}, {"items": [{"id": None}]}, {"items": [{"id": ""}]},
        {"items": [{"id": {"a": 1}}]}, {"items": [{"id": True}]}, {"items": [{"id": "a\u0000b"}]}, {"items": [{"id": "x" * 501}]},
    ],
)  # fmt: skip
def test_an_answer_that_is_not_understood_is_never_an_empty_page(body: Any) -> None:
    claim, why = outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: body).run())
    assert claim == "failed", why


@pytest.mark.parametrize("said", [b"<html>soon</html>", b"", b'{"items": [', b"\xff\xfe", b"[" * 100_000])
def test_an_answer_that_is_no_json_is_an_error(said: bytes) -> None:
    assert outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: Reply(body=said)).run())[0] == "failed"


def test_graphql_errors_beside_data_are_errors() -> None:
    text = """source = "any"
hosts = ["api.example.com"]
auth = "none"
graphql = "/graphql"
[resources.items]
graphql = 'query($n:Int,$c:String){x(first:$n,after:$c){nodes{id}}}'
variables = { n = "{size}", c = "{token}" }
page = { token = "/data/next", size = 5 }
rows = "/data/items"
key = ["/id"]
"""
    body = {"data": {"items": rows(1), "next": None}, "errors": [{"message": "half of it failed"}]}
    assert outcome(world(text, lambda *_: body).run()) == (
        "failed",
        "1 of 1 partitions failed: any answered with an error. half of it failed",
    )


@pytest.mark.parametrize("said", [{}, {"more": None}, {"more": "false"}, {"more": 0}])
def test_an_end_that_is_not_said_is_no_end(said: dict[str, Any]) -> None:
    text = simple('token = "/next", more = "/more", size = 5', query=BY_TOKEN)
    assert outcome(world(text, lambda *_: {"items": rows(1), **said}).run())[0] == "failed"


def test_more_without_a_place_is_an_error() -> None:
    text = simple('token = "/next", more = "/more", size = 5', query=BY_TOKEN)
    assert "does not say where" in outcome(world(text, lambda *_: {"items": rows(1), "more": True}).run())[1]


def test_empty_pages_without_end_fail_the_partition() -> None:
    def respond(request: Request, _: str) -> Any:
        return {"items": [], "next": str(int(asked(request, "cursor", "0")) + 1)}

    assert "pages in a row have no rows" in outcome(world(simple(TOKEN, query=BY_TOKEN), respond).run())[1]


def test_an_empty_page_in_the_middle_is_not_the_end() -> None:
    pages = {"": (rows(1), "a"), "a": ([], "b"), "b": (rows(2), None)}

    def respond(request: Request, _: str) -> Any:
        found, following = pages[asked(request, "cursor")]
        return {"items": found, "next": following}

    made = world(simple(TOKEN, query=BY_TOKEN), respond)
    assert outcome(made.run())[0] == "walked"
    assert made.seen("items") == {"1", "2"}


@pytest.mark.parametrize("style", ["offset", "number", "after"])
def test_a_short_page_is_not_the_end(style: str) -> None:
    """Pages of any length, some empty: only what comes after the last row, twice, is the end."""
    page = {
        "offset": 'offset = 0, sorted_by = "upstream", size = 6', "number": 'number = 1, sorted_by = "upstream", size = 6',
        "after": 'after = "/id", order = "asc /id", size = 6',
    }[style]  # fmt: skip
    word = {"offset": "offset", "number": "number", "after": "after"}[style]
    calls = iter(range(10_000))

    def respond(request: Request, _: str) -> Any:
        at = int(asked(request, word, "0"))
        if style == "number":
            found = list(range((at - 1) * 6 + 1, min(at * 6, 40) + 1)) if at <= 7 else []
            return {"items": rows(*found) if next(calls) != 2 else []}
        first = at + 1
        cut = 6 if next(calls) % 3 else 2
        return {"items": rows(*range(first, min(first + cut, 41)))}

    made = world(simple(page, query=f'limit = "{{size}}", {word} = "{{{word}}}"'), respond)
    assert outcome(made.run())[0] == "walked"
    assert len(made.seen("items")) == 40


def test_a_cap_that_is_reached_is_an_error_and_not_the_end() -> None:
    def respond(request: Request, _: str) -> Any:
        at = int(asked(request, "cursor", "0"))
        return {"items": rows(*range(at, at + 5)), "next": str(at + 5) if at < 15 else None, "n": 999}

    text = simple(
        'token = "/next", size = 5, most = 20', 'split = { values = ["a"] }', query=BY_TOKEN + ', v = "{value}"'
    )
    assert "ends at 20 rows" in outcome(world(text, respond).run())[1]


def test_twenty_thousand_rows_in_one_instant_are_divided_by_something_else() -> None:
    """A window of a second cannot be halved: the second key does."""

    def chosen(request: Request) -> list[int]:
        low, high = int(asked(request, "low", "0")), int(asked(request, "high", "100"))
        at = range(20_000) if int(asked(request, "from")) <= 1_735_689_600 < int(asked(request, "to")) else range(0)
        return [n for n in at if low <= n % 100 < high]

    def respond(request: Request, path: str) -> Any:
        found = chosen(request)
        if path == "/count":
            return {"n": len(found)}
        at = int(asked(request, "cursor", "0"))
        return {"items": rows(*found[at : at + 1_000]), "next": str(at + 1_000) if at + 1_000 < len(found) else None}

    query = 'limit = "{size}", cursor = "{token}", from = "{from}", to = "{to}", low = "{low}", high = "{high}"'
    text = simple(
        'token = "/next", size = 1000, most = 10_000', 'count = { get = "/count", at = "/n" }',
        'split = { window = "P1D", as = "unix", most = 9_000, then = { numbers = [0, 100] } }', query=query,
    )  # fmt: skip
    made = world(text, respond, None, begin="2025-01-01", to="2025-01-02")
    assert outcome(made.run())[0] == "complete"
    assert len(made.seen("items")) == 20_000


@pytest.mark.parametrize("off", [-1, 1])
def test_a_count_that_is_off_by_one_is_never_complete(off: int) -> None:
    made = world(simple(TOKEN, COUNTED, query=BY_TOKEN), lambda *_: {"items": rows(1, 2, 3), "n": 3 + off})
    claim, why = outcome(made.run())
    assert claim == "drifted"
    assert "3 different ones were read" in why


def test_a_count_that_changes_in_the_audit_is_never_complete() -> None:
    calls = iter(range(100))
    made = world(
        simple(TOKEN, COUNTED, query=BY_TOKEN), lambda *_: {"items": rows(1, 2), "n": 2 + next(calls) % 2}, recrawls=1
    )
    assert outcome(made.run())[0] == "drifted"


def test_a_count_that_is_only_exact_at_first_proves_nothing() -> None:
    calls = iter(range(100))

    def respond(*_: Any) -> Any:
        return {"items": rows(1, 2), "n": 2, "precision": "EXACT" if next(calls) % 2 == 0 else "AT_LEAST"}

    text = simple(TOKEN, 'count = { at = "/n", exact = { "/precision" = "EXACT" } }', query=BY_TOKEN)
    assert outcome(world(text, respond, recrawls=1).run())[0] == "drifted"


@pytest.mark.parametrize("count", [None, "many", -1, 1.5, True, [2], {"n": 2}])
def test_a_count_that_is_none_is_an_error(count: Any) -> None:
    assert (
        outcome(world(simple(TOKEN, COUNTED, query=BY_TOKEN), lambda *_: {"items": rows(1), "n": count}).run())[0]
        == "failed"
    )


def test_rows_twice_on_a_page_do_not_make_up_for_one_that_is_missing() -> None:
    made = world(simple(TOKEN, COUNTED, query=BY_TOKEN), lambda *_: {"items": rows(1, 2, 2), "n": 3})
    assert outcome(made.run())[0] == "drifted"


def test_a_page_with_far_more_rows_than_were_asked_for_is_refused() -> None:
    assert outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_: {"items": rows(*range(500))}).run())[0] == "failed"


def test_a_row_too_large_or_too_deep_is_no_row() -> None:
    deep: Any = 1
    for _ in range(34):
        deep = [deep]
    for row in ({"id": 1, "x": "y" * 300_000}, {"id": 1, "x": deep}):
        assert outcome(world(simple(TOKEN, query=BY_TOKEN), lambda *_, row=row: {"items": [row]}).run())[0] == "failed"


def test_a_list_in_another_order_than_the_file_says_has_drifted() -> None:
    page = 'after = "/id", order = "asc /id", more = "/more", size = 5'

    def respond(request: Request, _: str) -> Any:
        at = int(asked(request, "after", "0"))
        return {"items": rows(at + 2, at + 1), "more": at < 3}

    text = simple(page, query='limit = "{size}", after = "{after}"')
    assert outcome(world(text, respond, recrawls=0).run())[0] == "drifted"


def test_an_expired_token_restarts_its_partition_and_what_was_seen_before_does_not_count() -> None:
    state = {"calls": 0}

    def respond(request: Request, _: str) -> Any:
        state["calls"] += 1
        at = int(asked(request, "cursor", "0"))
        if state["calls"] == 3:
            return Reply.json({"error": "gone"}, 410)
        shown = range(at, at + 5) if state["calls"] < 3 else range(at + 100, at + 105)
        return {"items": rows(*shown), "next": str(at + 5) if at < 10 else None, "n": 15}

    text = simple(TOKEN, COUNTED, query=BY_TOKEN, head=['errors = [{ status = 410, is = "expired" }]'])
    made = world(text, respond, recrawls=0)
    assert outcome(made.run())[0] == "complete"
    assert made.seen("items") == {str(n) for n in range(100, 115)}


def test_a_place_that_is_forgotten_for_ever_fails_the_partition() -> None:
    text = simple(TOKEN, query=BY_TOKEN, head=['errors = [{ status = 410, is = "expired" }]'])
    made = world(
        text, lambda request, _: Reply.json({}, 410) if asked(request, "cursor") else {"items": rows(1), "next": "2"}
    )
    assert "forgot the place" in outcome(made.run())[1]


@pytest.mark.parametrize("style", ["token", "number", "offset"])
def test_a_page_that_is_too_big_is_asked_for_by_halves(style: str) -> None:
    page, word = {
        "token": ('token = "/next", size = 40', "token"), "number": ('number = 1, sorted_by = "upstream", size = 40', "number"),
        "offset": ('offset = 0, sorted_by = "upstream", size = 40', "offset"),
    }[style]  # fmt: skip

    def respond(request: Request, _: str) -> Any:
        size = int(asked(request, "limit"))
        if size > 10:
            return Reply.json({}, 413)
        at = int(asked(request, word, "1" if style == "number" else "0"))
        first = (at - 1) * size if style == "number" else at
        found = list(range(100))[first : first + size]
        return {"items": rows(*found), "next": str(first + size) if first + size < 100 else None}

    made = world(simple(page, query=f'limit = "{{size}}", {word} = "{{{word}}}"'), respond)
    assert outcome(made.run())[0] == "walked"
    assert len(made.seen("items")) == 100


def test_a_file_that_calls_a_refusal_empty_reads_an_empty_list() -> None:
    text = simple(TOKEN, query=BY_TOKEN, head=['errors = [{ status = 404, is = "empty" }]'])
    assert outcome(world(text, lambda *_: Reply.json({}, 404)).run())[0] == "walked"


@pytest.mark.parametrize("resets", ["nan", "inf", "-inf", "1e400", "x", "", "-5", "99999999999999999999"])
@pytest.mark.parametrize("format_", ["unix", "seconds", "date"])
def test_a_reset_that_makes_no_sense_stops_nobody_for_ever(resets: str, format_: str) -> None:
    head = [f'rate = {{ left = "header:x-left", resets = "header:x-resets", resets_as = "{format_}", reserve = 3 }}']

    def respond(*_: Any) -> Reply:
        return Reply(body=json.dumps({"items": rows(1)}).encode(), headers={"X-Left": "1", "X-Resets": resets})

    assert outcome(world(simple(TOKEN, query=BY_TOKEN, head=head), respond).run())[0] == "walked"


# --- where requests go


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1", "172.16.3.4", "192.168.1.1", "127.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "::1",
        "fe80::1", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "255.255.255.255", "x",
    ],
)  # fmt: skip
def test_a_private_address_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(address)


def asking(pool: http.Pool | None = None) -> HttpWire:
    return HttpWire("any", ["api.example.com"], gate="any", time_left_s=lambda: 6.0, pool=pool)


def send(wire: HttpWire, host: str = "api.example.com") -> Any:
    return wire.send(host, "GET", "/items", query={}, body=None, headers={})


@pytest.mark.parametrize("found", [["10.0.0.8"], ["8.8.8.8", "10.0.0.8"], ["::1"]])
def test_a_name_that_leads_into_a_private_network_is_not_asked(
    found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    def connect(*_: Any) -> None:
        raise AssertionError("connected")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(http._PlainSocket, "connect", connect)
    with pytest.raises(Permanent, match="private network"):
        send(asking())


def test_a_name_is_looked_up_once_and_that_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look-up could lead elsewhere: what was checked is what is connected to."""
    looked, connected = [], []

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        looked.append(host)
        address = "8.8.8.8" if len(looked) == 1 else "10.0.0.8"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def connect(_: Any, address: tuple[str, int]) -> None:
        connected.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(http._PlainSocket, "connect", connect)
    with pytest.raises(Permanent, match="private network"):
        send(asking(new_pool(public=True)))
    assert connected == ["8.8.8.8"]


def test_a_host_that_the_file_does_not_list_is_not_asked() -> None:
    with pytest.raises(Permanent, match="not one of the hosts"):
        send(asking(), "evil.example")


@pytest.mark.parametrize("url", ["http://10.0.0.1:80", "https://stand-in.example", "http://127.0.0.1.evil.example"])
def test_the_door_for_stand_ins_leads_to_this_machine_alone(url: str) -> None:
    with pytest.raises(ValueError, match="on this machine"):
        door(url)


@pytest.mark.parametrize("value", ["..", ".", "a/../b", "/x", "x/"])
def test_a_value_cannot_leave_its_place_in_a_path(value: str) -> None:
    text = simple(TOKEN, 'split = { values = ["x"] }', query=BY_TOKEN).replace(
        'get = "/items"', 'get = "/items/{value}"'
    )
    text = text.replace('["x"]', json.dumps([value]))
    made = world(text, lambda *_: {"items": []})
    found = made.run()
    paths = {target for _, target in made.wire.sent}
    assert all(path.startswith("/items/") and ".." not in path.split("/") for path in paths), (paths, found)
