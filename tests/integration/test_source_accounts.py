"""Guards what sources do with accounts, files and rows that do not fit: tokens, digests, settings, contracts, the quarantine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from infra.local.standins.server import Reply, Request
from infra.local.standins.sources import SECRET, Salesforce, iso, stock
from shared.kernel import run as runs
from shared.kernel.connections import NoVault
from shared.kernel.errors import Permanent, Refused
from shared.page_ingest.reader.build import Clients
from shared.page_ingest.reader.client import Client
from shared.page_ingest.reader.files import secret_model
from shared.page_ingest.reader.model import SourceParams
from shared.page_ingest.source.compile import compile_source
from tests.support.ingest import a_turn
from tests.support.rig import BEGINNING, TENANT
from tests.support.sources import SourceRig, simple

TOKEN, BY_TOKEN = 'token = "/next", size = 5', 'limit = "{size}", cursor = "{token}"'
OTHER = UUID(int=0xB0)


def asked(request: Request, name: str, default: str = "") -> str:
    return request.query.get(name, [default])[0]


def pages(*rows: dict[str, Any], size: int = 5) -> Callable[[Request, str], Reply]:
    """A list by token that stands still."""

    def respond(request: Request, path: str) -> Reply:
        at = int(asked(request, "cursor", "0"))
        more = str(at + size) if at + size < len(rows) else None
        return Reply.json({"items": rows[at : at + size], "next": more, "n": len(rows)})

    return respond


def opened(sources: SourceRig, text: str, respond: Any) -> None:
    sources.open({})
    sources.deploy(text)
    sources.anything.respond = respond


# --- tokens


def test_a_refused_token_is_forgotten_and_another_is_fetched_once(sources: SourceRig) -> None:
    api = Salesforce(rows=stock(230))
    sources.open({"salesforce": api})
    sources.example("salesforce")
    run_id = sources.start("salesforce", **{"from": "2025-01-01", "to": "2025-03-03"})
    sources.work_off(3)
    api.token = "sf-token-2"

    assert sources.finish(run_id) == "succeeded complete"
    assert api.logins == 2


REFRESHED = """
auth = { oauth = "refresh_token", url = "/token", client_id = "id", client_secret = "secret", refresh_token = "refresh" }
"""


class Rotating:
    """An upstream whose every log-in changes the refresh token. It knows which one is good, and counts log-ins."""

    def __init__(self, sources: SourceRig) -> None:
        self.sources, self.good, self.access = sources, "refresh-1", ""
        self.kept_before_use: list[bool] = []
        self.logins = 0
        self.list = pages(*({"id": n} for n in range(12)))

    def __call__(self, request: Request, path: str) -> Reply:
        if path == "/token":
            if f"refresh_token={self.good}&" not in request.body.decode() + "&":
                return Reply.json({"error": "invalid_grant"}, 400)
            self.logins += 1
            self.good, self.access = f"refresh-{self.logins + 1}", f"access-{self.logins}"
            return Reply.json({"access_token": self.access, "refresh_token": self.good, "expires_in": 600})
        if request.headers.get("authorization") != f"Bearer {self.access}":
            return Reply.json({}, 401)
        self.kept_before_use.append(self.good in json.dumps(self.sources.vault.kept) and self.current() == self.good)
        return self.list(request, path)

    def current(self) -> str:
        """The refresh token that a step would use now: that of the version which the row names."""
        row = self.sources.rows("select secret_ref from connection")[0]
        return next(iter(self.sources.vault.kept.values()))[int(row["secret_ref"][1:]) - 1]["refresh"]


@pytest.mark.full
def test_a_rotated_refresh_token_is_kept_before_its_access_token_is_used(sources: SourceRig) -> None:
    upstream = Rotating(sources)
    text = simple(TOKEN, query=BY_TOKEN).replace('auth = "none"', REFRESHED.strip())
    opened(sources, text, upstream)
    sources.connect("any", {}, {"id": "id", "secret": SECRET, "refresh": "refresh-1"})

    assert sources.read("any") == "succeeded walked"
    sources.pass_time(3_600)
    assert sources.read("any") == "succeeded walked"

    assert upstream.logins == 2
    assert upstream.kept_before_use
    assert all(upstream.kept_before_use)
    assert upstream.current() == upstream.good == "refresh-3"


def test_if_a_rotated_token_cannot_be_kept_its_access_token_is_not_used(sources: SourceRig) -> None:
    upstream = Rotating(sources)
    opened(sources, simple(TOKEN, query=BY_TOKEN).replace('auth = "none"', REFRESHED.strip()), upstream)
    sources.connect("any", {}, {"id": "id", "secret": SECRET, "refresh": "refresh-1"})

    def renew(name: str, secret: Any) -> str:
        raise RuntimeError("the vault is down")

    sources.vault.renew = renew  # type: ignore[method-assign]
    assert sources.read("any", time_limit_s=600).startswith("failed")
    assert upstream.kept_before_use == []


def a_client(sources: SourceRig) -> Client:
    """As a step has it from its beginning on."""
    compiled = sources.files.all()["any"]
    params = SourceParams(source="any", connection=sources.connections["any"])
    clients = Clients(sources.engine, sources.vault, sources.store, sources.standin.start())
    return clients(compiled, params, replace(a_turn(1), tenant_id=TENANT), lambda: 30.0)


def test_a_log_in_uses_the_refresh_token_that_is_kept_by_then(sources: SourceRig) -> None:
    """A step that was frozen between its beginning and its turn to log in: another one has changed the token meanwhile."""
    upstream = Rotating(sources)
    opened(sources, simple(TOKEN, query=BY_TOKEN).replace('auth = "none"', REFRESHED.strip()), upstream)
    sources.connect("any", {}, {"id": "id", "secret": SECRET, "refresh": "refresh-1"})
    frozen, other = a_client(sources), a_client(sources)
    other.log_in()

    assert frozen.log_in().value == "access-2"
    assert upstream.current() == upstream.good == "refresh-3"


def test_a_connection_that_is_changed_during_a_log_in_stays_changed(sources: SourceRig) -> None:
    upstream = Rotating(sources)
    opened(sources, simple(TOKEN, query=BY_TOKEN).replace('auth = "none"', REFRESHED.strip()), upstream)
    sources.connect("any", {}, {"id": "id", "secret": SECRET, "refresh": "refresh-1"})
    (name,) = sources.vault.kept

    def respond(request: Request, path: str) -> Reply:
        version = sources.vault.put(name, {"id": "id", "secret": "new-secret", "refresh": "refresh-of-a-person"})
        sources.rows("update connection set secret_ref = :version returning id", version=version)
        return upstream(request, path)

    sources.anything.respond = respond
    with pytest.raises(NoVault, match="The connection was changed"):
        a_client(sources).log_in()

    assert upstream.current() == "refresh-of-a-person"


def test_a_refused_log_in_repeats_no_token_that_it_has_just_read(sources: SourceRig) -> None:
    opened(
        sources, simple(TOKEN, query=BY_TOKEN).replace('auth = "none"', REFRESHED.strip()),
        lambda request, _: Reply.json({"error_description": f"no {request.body.decode().partition('refresh_token=')[2]}"}, 400),
    )  # fmt: skip
    sources.connect("any", {}, {"id": "id", "secret": SECRET, "refresh": "refresh-1"})
    client = a_client(sources)
    (name,) = sources.vault.kept
    version = sources.vault.put(name, {"id": "id", "secret": SECRET, "refresh": "refresh-2-of-another-step"})
    sources.rows("update connection set secret_ref = :version returning id", version=version)

    with pytest.raises(Permanent) as refused:
        client.log_in()

    assert "refresh-2-of-another-step" not in refused.value.message


@pytest.mark.parametrize("way", ['{ bearer = "token" }', '{ header = "X-Key", key = "token" }'])
def test_a_key_that_no_header_can_carry_is_refused_when_it_is_given(way: str) -> None:
    source = compile_source("any.toml", simple(TOKEN, query=BY_TOKEN, auth=way).encode()).source

    with pytest.raises(ValidationError, match="cannot be sent in a header"):
        secret_model(source).model_validate({"token": "\N{LEFT DOUBLE QUOTATION MARK}key"})
    secret_model(source).model_validate({"token": "caf\N{LATIN SMALL LETTER E WITH ACUTE}"})
    basic = compile_source(
        "any.toml", simple(TOKEN, query=BY_TOKEN, auth='{ basic = ["user", "key"] }').encode()
    ).source
    secret_model(basic).model_validate({"user": "me", "key": "\N{EURO SIGN}"})


def test_a_key_that_is_refused_fails_at_once_and_says_what_to_do(sources: SourceRig) -> None:
    opened(sources, simple(TOKEN, query=BY_TOKEN, auth='{ bearer = "token" }'), lambda *_: Reply.json({}, 401))
    sources.connect("any", {}, {"token": SECRET})
    run_id = sources.start("any")
    assert sources.finish(run_id, 60) == "failed partitions_failed"
    assert "Change the connection" in sources.error(run_id)


def test_one_connections_429_does_not_stop_another(sources: SourceRig) -> None:
    def respond(request: Request, path: str) -> Reply:
        if request.headers.get("authorization") == "Bearer first-key":
            return Reply(body=b"{}", status=429, headers={"Retry-After": "3000"})
        return pages({"id": 1})(request, path)

    opened(sources, simple(TOKEN, query=BY_TOKEN, auth='{ bearer = "token" }'), respond)
    first = sources.connect("any", {}, {"token": "first-key"})
    second = sources.connect("any", {}, {"token": "second-key"})
    waiting, going = sources.start("any", connection=first), sources.start("any", connection=second)
    assert sources.finish(going, 120) == "succeeded walked"
    assert sources.run(waiting)["status"] == "running"


@pytest.mark.parametrize("why", ["count", "half", "offset"])
def test_a_page_that_leads_to_another_question_is_read_at_any_pace(sources: SourceRig, why: str) -> None:
    """At ten a minute a step has one question. Whoever asks for the page first each time never gets to the second."""
    asked_for: list[str] = []

    def respond(request: Request, path: str) -> Reply:
        size, at = int(asked(request, "n", "6")), int(asked(request, "c", "0"))
        rows = [{"id": n} for n in range(at, min(at + size, 6 if why == "half" else 12))]
        more = {"next": str(at + size)} if at + size < (6 if why == "half" else 12) else {}
        asked_for.append(path)
        return Reply.json({"n": 12} if path == "/count" else {"items": rows, **more})

    page, word = ('offset = 0, sorted_by = "upstream"', "offset") if why == "offset" else ('token = "/next"', "token")
    counts = [] if why == "half" else ['count = { get = "/count", at = "/n" }']
    text = simple(
        f"{page}, size = 6", *counts, query=f'c = "{{{word}}}", n = "{{size}}"', head=['rate = { pace = "10/min" }']
    )
    opened(sources, text, respond)

    assert sources.finish(sources.start("any"), 300) == f"succeeded {'walked' if why == 'half' else 'complete'}"
    assert len(asked_for) <= 12


def test_the_reserve_is_left_for_others(sources: SourceRig) -> None:
    calls = []

    def respond(request: Request, path: str) -> Reply:
        calls.append(sources.now)
        found = pages(*({"id": n} for n in range(30)))(request, path)
        told = {"X-Left": str(max(0, 12 - len(calls))), "X-Resets": "1000" if sources.now < 900 else "0"}
        return Reply(body=found.body, headers=told)

    rate = ['rate = { left = "header:x-left", resets = "header:x-resets", resets_as = "seconds", reserve = 9 }']
    opened(sources, simple(TOKEN, query=BY_TOKEN, head=rate), respond)
    assert sources.read("any").startswith("succeeded")
    assert len([at for at in calls if at < 900]) == 3
    assert len(sources.keys("any_items")) == 30


# --- what a run is about


def test_a_file_that_means_something_else_stops_the_runs_that_pinned_it(sources: SourceRig) -> None:
    text = simple(TOKEN, query=BY_TOKEN)
    opened(sources, text, pages(*({"id": n} for n in range(200))))
    run_id = sources.start("any")
    sources.work_off(2)
    (sources.folder / "any.toml").write_text(text.replace("size = 5", "size = 4") + "\n# and a comment")
    sources.files._known = None
    assert sources.finish(run_id) == "failed partitions_failed"
    assert "has changed since this run started" in sources.error(run_id)


def test_a_comment_strands_no_run(sources: SourceRig) -> None:
    text = simple(TOKEN, query=BY_TOKEN)
    opened(sources, text, pages(*({"id": n} for n in range(200))))
    run_id = sources.start("any")
    sources.work_off(2)
    (sources.folder / "any.toml").write_text(f"# a comment\n{text}")
    sources.files._known = None
    assert sources.finish(run_id) == "succeeded walked"


def test_a_connection_that_is_pointed_elsewhere_stops_its_runs(sources: SourceRig) -> None:
    text = simple(TOKEN, query=BY_TOKEN, head=['settings = { shelf = "segment" }']).replace(
        '"/items"\nquery', '"/{shelf}"\nquery'
    )
    opened(sources, text, pages(*({"id": n} for n in range(200))))
    sources.connect("any", {"shelf": "a"}, {})
    run_id = sources.start("any")
    sources.work_off(2)
    sources.rows('update connection set settings = \'{"shelf": "b"}\' returning id')
    assert sources.finish(run_id) == "failed partitions_failed"
    assert "settings of the connection have changed" in sources.error(run_id)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"source": "nothing"}, "Unknown source `nothing`"), ({"resources": ["x"]}, "resources: x is unknown"),
        ({"tighten": {"items.size": 50}}, "can only be smaller"), ({"tighten": {"items.x": 1}}, "cannot be changed"),
        ({"digest": "sha256:" + "0" * 64}, "digest:"), ({"connection": "no"}, "connection:"), ({"what": 1}, "what"),
        ({"from": "yesterday"}, "from"), ({"from": "0001-01-01T00:00+01:00"}, "is not a day or a time"),
        ({"to": "9999-12-31T23:59-01:00"}, "is not a day or a time"), ({"from": "2025-13-01"}, "is not a day or a time"), ({"policy": {"rule": "critical", "prices": [1]}}, "policy"),
    ],
)  # fmt: skip
def test_a_bad_parameter_is_refused_by_its_name(sources: SourceRig, params: dict[str, Any], said: str) -> None:
    opened(sources, simple(TOKEN, query=BY_TOKEN), pages())
    with pytest.raises(Refused, match=said):
        sources.start(**{"source": "any", **params})
    assert sources.rows("select id from run") == []


def test_a_table_that_does_not_fit_the_file_is_named_before_anything_is_asked_with_what_to_do(
    sources: SourceRig,
) -> None:
    opened(sources, simple(TOKEN, query=BY_TOKEN), pages())
    with sources.owner.connect() as connection:
        connection.exec_driver_sql("drop table any_items")
    missing = "Table any_items is missing. Write its migration with `baton source migration sources/any.toml`"
    with pytest.raises(Refused, match=missing):
        sources.start("any")
    sources.deploy(simple(TOKEN, query=BY_TOKEN))
    edited(sources, simple(TOKEN, COLUMNS, query=BY_TOKEN))
    with pytest.raises(
        Refused, match=r"Table any_items has no column n\. .* `baton source migration sources/any.toml --again`"
    ):
        sources.start("any")
    sources.deploy(simple(TOKEN, COLUMNS, query=BY_TOKEN))
    edited(sources, simple(TOKEN, COLUMNS, query=BY_TOKEN).replace('n = "int /n"', 'n = "time /n"'))
    changed = (
        "Column n of table any_items is bigint, but the file needs timestamp with time zone. Give the column a new name"
    )
    with pytest.raises(Refused, match=changed):
        sources.start("any")


def edited(sources: SourceRig, text: str) -> None:
    """The file alone: its tables stay as they are."""
    (sources.folder / "any.toml").write_text(text)
    sources.files._known = None


def test_a_tenant_may_ask_for_less_at_once(sources: SourceRig) -> None:
    sizes = set()

    def respond(request: Request, path: str) -> Reply:
        sizes.add(asked(request, "limit"))
        return pages({"id": 1}, {"id": 2}, {"id": 3}, size=2)(request, path)

    opened(sources, simple(TOKEN, query=BY_TOKEN), respond)
    assert sources.read("any", tighten={"items.size": 2}) == "succeeded walked"
    assert sizes == {"2"}


def test_rows_of_two_connections_and_two_tenants_stay_apart(sources: SourceRig) -> None:
    def respond(request: Request, path: str) -> Reply:
        whose = (request.headers.get("authorization") or "")[7:]
        return pages(*({"id": n, "whose": whose} for n in range(1, 4)))(request, path)

    text = simple(TOKEN, 'columns = { whose = "text /whose" }', query=BY_TOKEN, auth='{ bearer = "token" }')
    opened(sources, text, respond)
    first, second = (sources.connect("any", {}, {"token": f"key-{name}"}) for name in "ab")
    third = sources.connect("any", {}, {"token": "key-c"}, OTHER)
    for connection, tenant in ((first, TENANT), (second, TENANT), (third, OTHER)):
        sources.finish(sources.start("any", connection=connection, tenant=tenant))
    found = {(row["tenant_id"], row["connection"], row["whose"]) for row in sources.table("any_items")}
    assert found == {(TENANT, first, "key-a"), (TENANT, second, "key-b"), (OTHER, third, "key-c")}
    assert len(sources.table("any_items")) == 9
    with pytest.raises(Refused, match="no connection"):
        sources.start("any", connection=third)


# --- rows and their columns

COLUMNS = 'columns = { n = "int /n", at = "time /at", day = "date /day", price = "number /price", ok = "bool /ok", tags = "json /tags", name = "text /name" }'  # fmt: skip


def test_columns_have_their_types(sources: SourceRig) -> None:
    row = {
        "id": "a",
        "n": 7,
        "at": "2025-01-02T03:04:05+02:00",
        "day": "2025-01-02",
        "price": "12.50",
        "ok": True,
        "tags": ["x"],
        "name": "é",
    }
    opened(sources, simple(TOKEN, COLUMNS, query=BY_TOKEN), pages(row, {"id": "b"}))
    sources.read("any")
    first, second = sources.table("any_items")
    assert (first["n"], iso(first["at"]), str(first["day"]), str(first["price"])) == (
        7,
        "2025-01-02T01:04:05Z",
        "2025-01-02",
        "12.50",
    )
    assert (first["ok"], first["tags"], first["name"], first["rest"]) == (True, ["x"], "é", row)
    assert second["n"] is second["at"] is second["tags"] is None


BAD = {"id": "bad", "n": "seven"}


@pytest.mark.parametrize("said", ["2025-01-02x03:04:05Z", "2025-01-02\x0003:04:05Z", "2025-01-02T030405.0Z"])
def test_a_time_that_python_understands_is_one_that_postgres_does(sources: SourceRig, said: str) -> None:
    opened(sources, simple(TOKEN, 'columns = { at = "time /at" }', query=BY_TOKEN), pages({"id": 1, "at": said}))

    assert sources.read("any", time_limit_s=600) == "succeeded walked"
    assert iso(sources.table("any_items")[0]["at"]) == "2025-01-02T03:04:05Z"


def test_evolve_keeps_a_row_that_does_not_fit_without_the_value(sources: SourceRig) -> None:
    opened(sources, simple(TOKEN, COLUMNS, query=BY_TOKEN), pages({"id": "a", "n": 1}, BAD))
    sources.read("any")
    assert [(row["source_key"], row["n"]) for row in sources.table("any_items")] == [("a", 1), ("bad", None)]
    assert sources.table("any_items")[1]["rest"] == BAD


def test_stop_fails_the_partition(sources: SourceRig) -> None:
    opened(sources, simple(TOKEN, COLUMNS, 'contract = "stop"', query=BY_TOKEN), pages({"id": "a"}, BAD))
    run_id = sources.start("any")
    assert sources.finish(run_id) == "failed partitions_failed"
    assert "/n is text, not int" in sources.error(run_id)


def test_quarantined_rows_are_counted_kept_apart_and_tried_again(sources: SourceRig) -> None:
    text = simple(TOKEN, COLUMNS, 'contract = "quarantine"', 'count = { at = "/n" }', 'gone = "unseen"', query=BY_TOKEN)
    opened(sources, text, pages({"id": "a", "n": 1}, BAD))
    assert sources.read("any") == "succeeded complete"
    assert sources.keys("any_items") == ["a"]
    (row,) = sources.rows("select * from source_quarantine")
    assert (row["key"], row["why"], row["payload"], row["resource"]) == ("bad", "/n is text, not int.", BAD, "items")

    # Nothing has changed: it does not fit, and stays. As it came last, it is tried again.
    assert sources.read("any", replay=True) == "succeeded replayed"
    sources.anything.respond = pages({"id": "a", "n": 1}, {**BAD, "n": "eight"})
    sources.read("any")
    assert [row["payload"]["n"] for row in sources.rows("select * from source_quarantine")] == ["eight"]
    # The file learns that it is a text, and its table with it.
    fixed = text.replace('n = "int /n"', 'n = "text /n"')
    sources.deploy(fixed)
    assert sources.read("any", replay=True) == "succeeded replayed"
    assert [(each["source_key"], each["n"]) for each in sources.table("any_items")] == [("bad", "eight")]
    assert sources.rows("select * from source_quarantine") == []


def test_a_replay_does_not_overrule_a_run_that_is_still_reading(sources: SourceRig) -> None:
    text = simple(TOKEN, COLUMNS, 'contract = "quarantine"', query=BY_TOKEN)
    opened(sources, text, pages(BAD))
    sources.read("any")
    sources.deploy(text.replace('n = "int /n"', 'n = "text /n"'))
    sources.anything.respond = pages({**BAD, "n": "eight"})
    reading = sources.start("any")
    while not sources.rows("select key from source_raw where run_id = :id and resource <> ''", id=reading):
        assert sources.work_off(1)
    runs.pause_run(sources.ports, TENANT, reading)
    sources.now += 1

    assert sources.read("any", replay=True) == "succeeded replayed"
    assert [row["n"] for row in sources.table("any_items")] == ["seven"]
    runs.resume_run(sources.ports, TENANT, reading)

    assert sources.finish(reading) == "succeeded walked"
    assert [row["n"] for row in sources.table("any_items")] == ["eight"]
    assert sources.rows("select * from source_quarantine") == []


def test_a_row_leaves_the_quarantine_when_the_upstream_mends_it(sources: SourceRig) -> None:
    text = simple(TOKEN, COLUMNS, 'contract = "quarantine"', query=BY_TOKEN)
    opened(sources, text, pages(BAD))
    sources.read("any")
    sources.anything.respond = pages({"id": "bad", "n": 8})
    sources.read("any")
    assert sources.rows("select * from source_quarantine") == []
    assert sources.keys("any_items") == ["bad"]


def test_a_row_says_where_it_comes_from(sources: SourceRig) -> None:
    opened(sources, simple(TOKEN, query=BY_TOKEN), pages(*({"id": n} for n in range(7))))
    run_id = sources.start("any")
    sources.finish(run_id)
    assert {(row["run_id"], row["partition"]) for row in sources.table("any_items")} == {(run_id, "part/items/all")}


def test_composite_keys_and_keys_by_hash(sources: SourceRig) -> None:
    rows = [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "y"}]
    text = simple(TOKEN, query=BY_TOKEN).replace('key = ["/id"]', 'key = ["/a", "/b"]')
    opened(sources, text, pages(*rows))
    sources.read("any")
    assert sources.keys("any_items") == ['[1,"x"]', '[1,"y"]']
    sources.deploy(text.replace('key = ["/a", "/b"]', 'key = "hash"'))
    sources.read("any")
    assert len(sources.keys("any_items")) == 2


# --- partitions

FAMILY = """
source = "any"
hosts = ["api.example.com"]
auth = "none"
[resources.shops]
get = "/shops"
query = { limit = "{size}", cursor = "{token}" }
page = { token = "/next", size = 5 }
rows = "/items"
key = ["/id"]
[resources.orders]
get = "/shops/{parent}/orders"
query = { limit = "{size}", cursor = "{token}", since = "{since}" }
page = { token = "/next", size = 5 }
rows = "/items"
key = ["/id"]
split = { parent = "shops", key = "/id" }
since = { field = "/at" }
"""


@pytest.mark.full
def test_rows_of_a_parent_are_read_after_it_each_with_a_watermark_of_its_own(sources: SourceRig) -> None:
    shops, seen = 450, []

    def respond(request: Request, path: str) -> Reply:
        if path == "/shops":
            return pages(*({"id": f"s{n:04d}"} for n in range(shops)))(request, path)
        shop = path.split("/")[2]
        seen.append((shop, asked(request, "since")))
        many = 7 if shop == "s0003" else 1
        return pages(*({"id": f"{shop}-{n}", "at": "2025-06-01T00:00:00Z"} for n in range(many)))(request, path)

    opened(sources, FAMILY, respond)
    run_id = sources.start("any")
    assert sources.finish(run_id) == "succeeded walked"
    assert len(sources.keys("any_orders")) == 450 + 6
    slices = [lane["cursor"] for lane in sources.lanes(run_id, "part/orders/")]
    assert [each["received_before"] for each in slices] == [200 + 6, 200, 50]
    assert {since for _, since in seen} == {""}
    assert sources.rows("select * from source_mark") == []  # walked: nobody knows whether a shop was missed


COUNTED_FAMILY = FAMILY.replace(
    'key = ["/id"]\n[resources.orders]', 'key = ["/id"]\ncount = { at = "/n" }\n[resources.orders]'
)


class Shops:
    """Shops that are counted, each with its orders. `said`: what was asked of each. `odd`: what a shop answers instead."""

    def __init__(self, sources: SourceRig, *shops: str, text: str = COUNTED_FAMILY) -> None:
        self.shops: list[dict[str, Any]] = [{"id": shop} for shop in shops]
        self.orders = {shop: [f"{shop}-1"] for shop in shops}
        self.said: dict[str, str] = {}
        self.odd: dict[str, Reply] = {}
        opened(sources, text, self)

    def __call__(self, request: Request, path: str) -> Reply:
        if path == "/shops":
            return pages(*self.shops)(request, path)
        shop = path.split("/")[2]
        self.said[shop] = asked(request, "since")
        orders = ({"id": each, "at": "2025-06-01T00:00:00Z"} for each in self.orders.get(shop, []))
        return self.odd.get(shop) or pages(*orders)(request, path)


def test_each_parent_goes_on_at_its_own_watermark_and_a_new_one_begins_at_the_start(sources: SourceRig) -> None:
    upstream = Shops(sources, "a", "b")
    begun = BEGINNING + timedelta(seconds=sources.now)
    run_id = sources.start("any")

    assert sources.finish(run_id) == "succeeded through T"

    marks = sources.rows("select resource, part, through, run_id from source_mark order by part")
    assert [tuple(mark.values()) for mark in marks] == [("orders", shop, begun, run_id) for shop in "ab"]
    upstream.shops.append({"id": "c"})
    upstream.orders["c"] = ["c-1"]
    assert sources.read("any") == "succeeded through T"
    from_there = iso(begun - timedelta(minutes=10))
    assert upstream.said == {"a": from_there, "b": from_there, "c": ""}
    assert sources.keys("any_orders") == ["a-1", "b-1", "c-1"]


@pytest.mark.full
@pytest.mark.parametrize("values", [["open", "closed", "a/b c"]])
def test_a_partition_for_each_listed_value(sources: SourceRig, values: list[str]) -> None:
    paths = set()

    def respond(request: Request, path: str) -> Reply:
        paths.add(path)
        return pages({"id": f"{path}-1"})(request, path)

    text = simple(TOKEN, f"split = {{ values = {json.dumps(values)} }}", query=BY_TOKEN)
    opened(sources, text.replace('get = "/items"', 'get = "/by/{value}"'), respond)
    assert sources.read("any") == "succeeded walked"
    assert paths == {"/by/open", "/by/closed", "/by/a%2Fb%20c"}


@pytest.mark.full
def test_a_partition_that_fails_makes_a_run_partial_if_that_is_allowed(sources: SourceRig) -> None:
    def respond(request: Request, path: str) -> Reply:
        return Reply.json({}, 400) if asked(request, "v") == "c" else pages({"id": asked(request, "v")})(request, path)

    text = simple(TOKEN, 'split = { values = ["a", "b", "c"] }', query=BY_TOKEN + ', v = "{value}"')
    opened(sources, text, respond)
    assert sources.read("any", policy={"rule": "at_least", "percent": 60}) == "succeeded partial"
    assert sources.keys("any_items") == ["a", "b"]
    assert sources.read("any") == "failed partitions_failed"
