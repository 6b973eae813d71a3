"""Guards the reading of sources: ten APIs shaped from their documentation, each with the right rows and exactly its claim."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from infra.local.standins.server import Reply, Request
from infra.local.standins.sources import APIS, EPOCH, iso, stock
from shared.page_ingest.reader.client import Client
from tests.support.sources import NAMES, SourceRig, simple

CLAIMS = {
    "github": "through T", "stripe": "walked", "shopify": "complete", "salesforce": "complete", "hubspot": "walked",
    "jira": "through T", "zendesk": "through T", "socrata": "complete", "openalex": "complete", "notion": "walked",
}  # fmt: skip
TABLES = {
    "github": "issues", "stripe": "charges", "shopify": "orders", "salesforce": "accounts", "hubspot": "contacts",
    "jira": "issues", "zendesk": "tickets", "socrata": "requests", "openalex": "works", "notion": "pages",
}  # fmt: skip
KEY = {
    "github": "id", "stripe": "id", "shopify": "id", "salesforce": "Id", "hubspot": "id", "jira": "id", "zendesk": "id",
    "socrata": "unique_key", "openalex": "id", "notion": "id",
}  # fmt: skip
WINDOWED = frozenset({"stripe", "shopify", "salesforce", "hubspot", "socrata", "openalex"})


def truth(name: str, api: Any) -> list[str]:
    rows = [api.body(row) for row in api.rows]
    return sorted(str(row[KEY[name]]) for row in rows if "pull_request" not in row)


def opened(sources: SourceRig, name: str, rows: int = 230, **changes: str) -> Any:
    api = APIS[name](rows=stock(rows))
    sources.open({name: api})
    sources.example(
        name, **{f'rate = {{ pace = "{p}" }}': "" for p in ("25/s", "4/s", "10/min", "10/s", "3/s")}, **changes
    )
    return api


def span(name: str) -> dict[str, str]:
    return {"from": iso(EPOCH), "to": iso(EPOCH + timedelta(days=61))} if name in WINDOWED else {}


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_read_and_the_run_claims_what_the_table_says(sources: SourceRig, name: str) -> None:
    api = opened(sources, name)

    run_id = sources.start(name, **span(name))

    assert sources.finish(run_id) == f"succeeded {CLAIMS[name]}", sources.error(run_id)
    assert sorted(sources.keys(f"{name}_{TABLES[name]}")) == truth(name, api)
    assert not sources.standin.surprises


# --- incremental


@pytest.mark.full
def test_a_second_run_asks_for_what_changed_since_the_first(sources: SourceRig) -> None:
    api = opened(sources, "github", rows=229)
    assert sources.read("github") == "succeeded through T"
    asked = len(api.asked)

    sources.pass_time(3_600)
    for row in api.rows[:5]:
        api.touch(row)
    new = api.insert()
    assert sources.read("github") == "succeeded through T"

    queries = [query for method, path, query in api.asked[asked:] if "since" in query]
    first = sources.rows("select created_at from run order by created_at")[0]["created_at"]
    assert {query["since"][0] for query in queries} == {iso(first - timedelta(minutes=10))}
    assert sorted(sources.keys("github_issues")) == truth("github", api)
    assert str(10_000 + new.id) in sources.keys("github_issues")


def test_a_watermark_is_written_with_the_end_of_a_run_and_only_then(sources: SourceRig) -> None:
    opened(sources, "github")
    run_id = sources.start("github")
    while sources.run(run_id)["status"] in ("queued", "running"):
        assert sources.rows("select * from source_mark") == []
        if sources.work_off(1) == 0:
            sources.pass_time(1)

    assert [row["resource"] for row in sources.rows("select * from source_mark")] == ["issues"]


@pytest.mark.full
def test_a_run_that_fails_or_is_partial_moves_no_watermark(sources: SourceRig) -> None:
    api = opened(sources, "github")
    sources.standin.misbehave("server_error", after=1)

    assert sources.read("github") == "failed partitions_failed"
    assert sources.rows("select * from source_mark") == []
    sources.standin.behave()
    assert sources.read("github") == "succeeded through T"
    assert sorted(sources.keys("github_issues")) == truth("github", api)


def test_a_watermark_of_another_file_or_other_settings_does_not_count(sources: SourceRig) -> None:
    api = opened(sources, "zendesk")
    assert sources.read("zendesk") == "succeeded through T"
    text = (sources.folder / "zendesk.toml").read_text()
    (sources.folder / "zendesk.toml").write_text(text.replace('status = "text /status", ', ""))
    sources.files._known = None

    asked = len(api.asked)
    assert sources.read("zendesk") == "succeeded through T"
    assert {query["start_time"][0] for _, _, query in api.asked[asked:]} == {"1167609600"}  # first, in 2007


def test_a_full_run_begins_at_no_watermark(sources: SourceRig) -> None:
    api = opened(sources, "zendesk")
    sources.read("zendesk")
    asked = len(api.asked)

    assert sources.read("zendesk", full=True) == "succeeded through T"
    assert {query["start_time"][0] for _, _, query in api.asked[asked:]} == {"1167609600"}


# --- gone


@pytest.mark.full
def test_what_two_complete_runs_did_not_see_is_gone(sources: SourceRig) -> None:
    api = opened(sources, "openalex")
    sources.read("openalex", **span("openalex"))
    lost = [api.rows[3], api.rows[200]]
    for row in lost:
        api.delete(row)

    assert sources.read("openalex", **span("openalex")) == "succeeded complete"
    assert sources.keys("openalex_works", gone=True) == []
    assert sources.read("openalex", **span("openalex")) == "succeeded complete"
    assert sources.keys("openalex_works", gone=True) == sorted(f"https://openalex.org/W{row.id}" for row in lost)

    api.rows.append(lost[0])
    sources.read("openalex", **span("openalex"))
    assert sources.keys("openalex_works", gone=True) == [f"https://openalex.org/W{lost[1].id}"]


@pytest.mark.full
def test_a_run_judges_only_the_time_that_it_covers(sources: SourceRig) -> None:
    opened(sources, "openalex")
    sources.read("openalex", **span("openalex"))
    part = {"from": iso(EPOCH), "to": iso(EPOCH + timedelta(days=20))}
    for _ in range(2):
        assert sources.read("openalex", **part) == "succeeded complete"

    assert sources.keys("openalex_works", gone=True) == []
    assert all(row["missed_by"] is None for row in sources.table("openalex_works"))


@pytest.mark.full
def test_the_fuse_keeps_a_table_whose_upstream_lost_its_rows(sources: SourceRig) -> None:
    api = opened(sources, "openalex")
    sources.read("openalex", **span("openalex"))
    for row in api.rows[10:60]:
        api.delete(row)
    for _ in range(3):
        sources.read("openalex", **span("openalex"))

    assert sources.keys("openalex_works", gone=True) == []
    (lane, *_) = sources.lanes(
        sources.rows("select id from run order by created_at desc limit 1")[0]["id"], "consolidate/"
    )
    assert lane["cursor"]["fuse"] == "50 of 230 rows would be gone, more than 5 %: none was judged"


@pytest.mark.full
def test_what_a_full_walk_did_not_see_is_looked_up(sources: SourceRig) -> None:
    api = opened(sources, "github", rows=300)
    sources.read("github")
    deleted, hidden = api.rows[1], api.rows[4]
    api.delete(deleted)
    kept = api.rows
    api.rows = [row for row in kept if row is not hidden]  # not listed, but there
    found = type(api).answer

    def answer(self: object, request: object, path: str) -> object:
        api.rows = kept if path.endswith(f"/{hidden.id}") else [row for row in kept if row is not hidden]
        return found(api, request, path)

    sources.standin.apis["github"] = type("Hiding", (type(api),), {"answer": answer})(rows=api.rows, now=api.now)
    assert sources.read("github") == "succeeded through T"  # not a full walk: nothing is looked up
    assert sources.keys("github_issues", gone=True) == []
    assert sources.read("github", full=True) == "succeeded through T"
    assert sources.keys("github_issues", gone=True) == [str(10_000 + deleted.id)]


@pytest.mark.full
def test_404_on_every_look_up_blows_the_fuse(sources: SourceRig) -> None:
    api = opened(sources, "github", rows=200)
    sources.read("github")
    del api.rows[20:100]

    assert sources.read("github", full=True) == "succeeded through T"
    assert sources.keys("github_issues", gone=True) == []
    assert all(row["missed_by"] is None for row in sources.table("github_issues"))


def test_a_flag_of_the_row_says_that_it_is_gone(sources: SourceRig) -> None:
    api = opened(sources, "notion", rows=20)
    api.rows[2].fields["archived"] = True
    sources.read("notion")
    assert sources.keys("notion_pages", gone=True) == ["page-3"]
    api.rows[2].fields["archived"] = False
    sources.read("notion")
    assert sources.keys("notion_pages", gone=True) == []


# --- a process that dies


def test_a_reader_that_dies_in_the_middle_of_a_step_asks_for_one_page_again(
    sources: SourceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str] = []

    def respond(request: Request, _: str) -> Reply:
        places.append(request.query.get("cursor", ["0"])[0])
        at = int(places[-1])
        more = {"next": str(at + 5)} if at + 5 < 60 else {}
        return Reply.json({"items": [{"id": n} for n in range(at, min(at + 5, 60))], "n": 60, **more})

    sources.open({})
    sources.anything.respond = respond
    query = 'limit = "{size}", cursor = "{token}"'
    sources.deploy(simple('token = "/next", size = 5', 'count = { at = "/n" }', query=query))
    run_id = sources.start("any")
    read = Client.page

    def dies(client: Client, *asked: Any) -> Any:
        found = read(client, *asked)
        if len(places) == 5:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Client, "page", dies)
    with pytest.raises(KeyboardInterrupt):
        sources.finish(run_id)
    places.append("dead")

    assert sources.finish(run_id) == "succeeded complete"
    assert len(sources.keys("any_items")) == 60
    assert places == ["0", "5", "10", "15", "20", "dead", *map(str, range(20, 60, 5)), "0"], (
        "the audit counts on the first"
    )
