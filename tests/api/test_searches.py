"""Guards saved searches at the front door: what makes no sense is refused with its field, and nothing of it is kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from shared.kernel.clock import new_id
from shared.search import api
from tests.support.door import Door, TenantHouse

CONNECT = """insert into connection (id, tenant_id, name, provider, settings, secret_ref, created_by)
values (:id, :t, 'main', :provider, cast(:settings as jsonb), '1', 'user:x')"""
QUARANTINE = """insert into search_quarantine (id, tenant_id, client, key, search_id, query_key, window_from, window_to, problem, payload)
select :id, tenant_id, client, 'k', search_id, query_key, now() - interval '1 day', now(), 'no title', '{}' from query_state
where tenant_id = :t and search_id = :s and active"""
SEARCH: dict[str, Any] = {
    "name": "python", "client": "infojobs", "connection": "main", "params": {"q": "python"}, "seed_from": "2026-11-01",
}  # fmt: skip


@pytest.fixture
def board(door: Door, acme: TenantHouse) -> TenantHouse:
    door.sql(CONNECT, id=new_id(), t=acme.id, provider="infojobs", settings='{"client_id": "a"}')
    return acme


def save(door: Door, tenant: TenantHouse) -> str:
    made = door.call(tenant.admin, "POST", "/searches", SEARCH)
    assert made.status == 201, made
    return str(made.json()["id"])


def test_history_cannot_begin_in_the_future(door: Door, board: TenantHouse) -> None:
    """Days are those of the board."""
    today = door.value("select (now() at time zone 'Europe/Madrid')::date")
    refused = door.call(board.admin, "POST", "/searches", {**SEARCH, "seed_from": str(today + timedelta(days=1))})
    assert (refused.status, refused.code) == (422, "bad_range")
    assert "is in the future at InfoJobs (Europe/Madrid). Use today or an earlier day." in refused.json()["detail"]

    made = door.call(board.admin, "POST", "/searches", {**SEARCH, "seed_from": str(today)})

    assert made.status == 201, made
    assert door.call(board.admin, "GET", f"/searches/{made.json()['id']}").json()["zone"] == "Europe/Madrid"


def test_a_paused_search_stays_paused_when_its_parameters_change(door: Door, board: TenantHouse) -> None:
    path = f"/searches/{save(door, board)}"
    assert door.call(board.admin, "POST", f"{path}/pause", {"reason": "holidays"}).status == 200
    for query in ("java", "python"):  # another query, and the one that it was
        assert door.call(board.admin, "PATCH", path, {"params": {"q": query}}).status == 200
        assert door.call(board.admin, "GET", path).json()["paused"]
        assert door.value("select count(*) from query_state where tenant_id = :t and active", t=board.id) == 0
    assert door.call(board.admin, "POST", f"{path}/resume", {}).status == 200
    assert door.value("select count(*) from query_state where tenant_id = :t and active", t=board.id) == 1


def test_a_paused_board_is_paused_for_a_new_account_too(door: Door, board: TenantHouse) -> None:
    save(door, board)
    assert door.call(board.admin, "POST", "/search-clients/infojobs/pause", {"reason": "contract ends"}).status == 200
    door.sql(
        CONNECT.replace("'main'", "'other'"),
        id=new_id(),
        t=board.id,
        provider="infojobs",
        settings='{"client_id": "b"}',
    )
    other = {**SEARCH, "name": "java", "params": {"q": "java"}, "connection": "other"}
    assert door.call(board.admin, "POST", "/searches", other).status == 201
    closed = "select count(*) from gate where tenant_id = :t and state <> 'open' and until > now() + interval '1 year'"
    assert door.value(closed, t=board.id) == 2
    assert door.call(board.admin, "POST", "/search-clients/infojobs/resume", {}).status == 200
    assert door.value(closed, t=board.id) == 0


def test_what_is_in_quarantine_belongs_to_the_query_and_not_to_whoever_saved_it(door: Door, board: TenantHouse) -> None:
    """Other parameters begin with a clean history; the old ones, saved again, with what they had."""
    path = f"/searches/{save(door, board)}"
    record = new_id()
    door.sql(QUARANTINE, id=record, t=board.id, s=path.removeprefix("/searches/"))
    assert in_quarantine(door, board, path) == (1, 1, 1)
    assert door.call(board.admin, "PATCH", path, {"params": {"q": "java"}}).status == 200
    assert in_quarantine(door, board, path) == (0, 0, 0)
    assert door.call(board.admin, "DELETE", path).status == 200
    path = f"/searches/{save(door, board)}"
    assert in_quarantine(door, board, path) == (1, 1, 1)
    assert door.call(board.admin, "POST", f"{path}/quarantine/{record}/accept", {}).status == 200
    assert in_quarantine(door, board, path) == (0, 0, 0)


def in_quarantine(door: Door, tenant: TenantHouse, path: str) -> tuple[int, int, int]:
    search = door.call(tenant.admin, "GET", path).json()
    records = door.call(tenant.admin, "GET", f"{path}/quarantine").json()["records"]
    return search["in_quarantine"], len(search["unclean"]), len(records)


def test_a_sheet_that_is_added_again_is_synced_in_its_new_window(door: Door, acme: TenantHouse) -> None:
    """That is how a window is changed: the night that waits for the old one must not keep it."""
    settings = '{"client_email": "a@b", "spreadsheet_id": "s"}'
    door.sql(CONNECT, id=new_id(), t=acme.id, provider="google_sheets", settings=settings)
    opens, closes = (
        door.value("select to_char(now() at time zone 'UTC' + make_interval(hours => :h), 'HH24:MI')", h=h)
        for h in (2, 3)
    )
    late = {"connection": "main", "zone": "UTC", "opens": opens, "closes": closes}
    first = door.call(acme.admin, "POST", "/search-sheets", late).json()
    due = "select next_due_at <= now() from lane where run_id = :id"
    assert not door.value(due, id=first["run_id"])
    assert door.call(acme.admin, "DELETE", f"/search-sheets/{first['id']}").status == 200
    again = door.call(acme.admin, "POST", "/search-sheets", {**late, "opens": "00:00", "closes": "00:00"}).json()
    (sheet,) = door.call(acme.admin, "GET", "/search-sheets").json()["sheets"]
    (night,) = sheet["nights"]
    assert (again, night["status"], night["run_id"]) == (first, "waiting", first["run_id"])
    assert night["opens_at"][11:16] == night["closes_at"][11:16] == "00:00"
    assert door.value(
        "select opens_at <= now() and now() < closes_at from sheet_night where run_id = :id", id=first["run_id"]
    )
    assert door.value(due, id=first["run_id"])


def test_a_search_and_a_sheet_of_the_same_key_are_the_same(door: Door, board: TenantHouse) -> None:
    """Without it, whoever asks again after a lost answer is told that somebody else has the name."""
    settings = '{"client_email": "a@b", "spreadsheet_id": "s"}'
    door.sql(CONNECT, id=new_id(), t=board.id, provider="google_sheets", settings=settings)
    for path, body in (("/searches", SEARCH), ("/search-sheets", {"connection": "main", "zone": "UTC"})):
        key = {"Idempotency-Key": path}
        first, again = (door.call(board.admin, "POST", path, body, headers=key) for _ in range(2))
        assert (first.status, again.status, again.body) == (201, 201, first.body)


@pytest.mark.parametrize(
    ("window", "code"),
    [
        ({"zone": "Europe/Atlantis"}, "unknown_timezone"),
        ({"zone": "../../etc/passwd"}, "unknown_timezone"),
        ({"zone": "localtime"}, "unknown_timezone"),  # whose?
        ({"zone": "right/Europe/Madrid"}, "unknown_timezone"),  # half a minute off
        ({"opens": "03:00Z"}, "bad_window"),
        ({"closes": "06:00+02:00"}, "bad_window"),
        ({"opens": "24:00"}, "invalid"),
    ],
)
def test_a_window_that_means_something_else_elsewhere_is_refused(
    door: Door, acme: TenantHouse, window: dict[str, Any], code: str
) -> None:
    settings = '{"client_email": "a@b", "spreadsheet_id": "s"}'
    door.sql(CONNECT, id=new_id(), t=acme.id, provider="google_sheets", settings=settings)
    answer = door.call(acme.admin, "POST", "/search-sheets", {"connection": "main", **window})
    assert (answer.status, answer.code) == (422, code)
    assert door.call(acme.admin, "GET", "/search-sheets").json()["sheets"] == []


@pytest.mark.parametrize("params", [{"q": "   "}, {"province": ["barcelona", "\u3000"]}, {"city": "ﷺ" * 200}])
def test_parameters_that_say_nothing_or_too_much_in_their_one_form_are_refused(
    door: Door, board: TenantHouse, params: dict[str, Any]
) -> None:
    refused = door.call(board.admin, "POST", "/searches", {**SEARCH, "params": params})
    assert (refused.status, refused.json()["code"]) == (422, "bad_params")
    path = f"/searches/{save(door, board)}"
    assert door.call(board.admin, "PATCH", path, {"params": params}).status == 422


def test_a_search_that_was_saved_under_older_rules_can_be_changed(door: Door, board: TenantHouse) -> None:
    search = save(door, board)
    door.sql("""update saved_search set params = '{"q": ""}' where id = :s""", s=search)
    changed = door.call(board.admin, "PATCH", f"/searches/{search}", {"params": {"q": "java"}})
    assert changed.status == 200, changed
    assert changed.json()["changes"] == [{"parameter": "q", "before": "", "after": "java"}]


def test_whoever_has_all_the_searches_there_may_be_is_told_so(
    door: Door, board: TenantHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(door, board)
    again = door.call(board.admin, "POST", "/searches", SEARCH)
    monkeypatch.setattr(api, "MOST_SEARCHES", 1)
    another = door.call(board.admin, "POST", "/searches", {**SEARCH, "name": "java", "params": {"q": "java"}})
    assert [(each.status, each.json()["code"]) for each in (again, another)] == [
        (409, "search_exists"), (409, "too_many_searches"),
    ]  # fmt: skip


def test_caps_cadence_account_and_floor_can_be_changed_and_the_history_stays(door: Door, board: TenantHouse) -> None:
    search = save(door, board)
    door.sql(
        "update query_state set seed_cursor = seed_floor + interval '5 days', covered = '{[2026-10-10, 2026-10-12)}' where search_id = :s",
        s=search,
    )
    before = door.call(board.admin, "GET", f"/searches/{search}").json()
    asked = {"max_pages": 7, "max_offers": 70, "every_hours": 6, "fresh_within_hours": 12, "seed_from": "2026-09-01"}

    changed = door.call(board.admin, "PATCH", f"/searches/{search}", asked).json()

    assert changed["is_another_query"] is False
    assert {each["parameter"] for each in changed["changes"]} == {
        "max_pages", "max_offers", "every_hours", "fresh_within_hours", "seed_floor",
    }  # fmt: skip
    after = door.call(board.admin, "GET", f"/searches/{search}").json()
    assert {name: after[name] for name in asked if name != "seed_from"} == {
        k: v for k, v in asked.items() if k != "seed_from"
    }
    assert after["seed_floor"] < before["seed_floor"]
    assert after["history_open"], "there is more of it to read now"
    assert (after["covered"], after["query_key"]) == (before["covered"], before["query_key"])
    assert door.call(board.admin, "PATCH", f"/searches/{search}", asked).json()["changes"] == []
    unknown = door.call(board.admin, "PATCH", f"/searches/{search}", {"connection": "nobody's"})
    assert (unknown.status, unknown.code) == (422, "unknown_connection")


def test_what_stops_an_account_is_shown_on_all_its_searches(door: Door, board: TenantHouse) -> None:
    first = save(door, board)
    other = door.call(board.admin, "POST", "/searches", {**SEARCH, "name": "java", "params": {"q": "java"}}).json()[
        "id"
    ]
    account = door.value("select account from query_state where search_id = :s", s=first)
    door.sql(
        "insert into gate (tenant_id, key, state, until, reason) values (:t, :key, 'closed', now() + interval '6 hours', 'asked to wait')",
        t=board.id, key=account,
    )  # fmt: skip

    told = [door.call(board.viewer, "GET", f"/searches/{each}").json() for each in (first, other)]

    assert {each["held_because"] for each in told} == {"asked to wait"}
    assert {each["held_until"] is not None for each in told} == {True}
