"""Every kind of work once, from the request to the page that shows it, in the deployed template.

All start at once, as a tenant's would; each ends with what its upstream has, no more and no less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import expect

from infra.client.http import Client
from infra.local import demo_data
from infra.local.standins.boards import Board
from infra.local.standins.dropbox import DropboxStandIn
from infra.local.standins.mce import MceStandIn
from infra.local.standins.sources import SourcesStandIn
from shared.kernel.clock import process_time
from tests.browser.demo import client_of
from tests.support.browser import Enter, People, Person, expect_state, goto
from tests.support.scene import Scene

SQL = "select id, name from people /* seconds=1; rows=40 */"
PATIENCE_S = 300.0
LOW, HIGH = 200, 1_000
FIRST_DAY, LAST_DAY = "2025-01-01", "2025-01-15"
TITLES = [f"Product {n}" for n in range(12)]
TRIGGER = "Tags after a change"
ON_EVENT = {
    "label": TRIGGER, "trigger_type": "event", "event_name": "provider.folder.updated",
    "definition_key": "photo-tags", "payload_template": {"path_prefix": "{{event.folder_path}}"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Started:
    cloud: Scene
    client: Client
    person: Person
    runs: dict[str, str]
    search: str
    since: datetime

    def ends_well(self, name: str) -> str:
        run_id = self.runs[name]
        self.comes(lambda: self.client.get(f"/runs/{run_id}")["state"] in demo_data.ENDED, f"the end of {name}")
        run = self.client.get(f"/runs/{run_id}")
        assert run["state"] == "succeeded", run
        return run_id

    def comes(self, it: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not it():
            assert time.monotonic() < deadline, f"{what} didn't come\n{self.cloud.cloud.ministack.log_tail()}"
            time.sleep(0.2)

    def rows(self, sql: str) -> list[Any]:
        return [tuple(row.values()) for row in self.cloud.runs.sql(sql, t=self.person.tenant_id)]


@pytest.fixture(scope="module")
def started(people: People, cloud: Scene) -> Started:
    client = client_of(cloud, people.shopper)
    tenant = demo_data._Tenant(client, cloud.address.upstreams, print)
    tenant._accounts(demo_data.ACCOUNTS)
    tenant._definitions()
    client.post("/jobs/triggers", ON_EVENT)
    since = (process_time() - timedelta(days=2)).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    search = {"name": "python", "client": "infojobs", "connection": "main", "params": {"q": "python"}}
    products = "\n".join(["title,brand", *(f"{each},Acme" for each in TITLES)]).encode()
    runs = {
        "page_ingest": tenant._ingest("catalogue", "main", LOW, HIGH),
        "source": tenant._start("page_ingest", {"source": "openalex", "from": FIRST_DAY, "to": LAST_DAY}, "works"),
        "query_run": tenant._query("people", SQL),
        "row_job": tenant._upload("products.csv", products, {"connection": "search"}),
        "job": tenant._job("photo-tags", {"path_prefix": "/photos"}),
        "folder_sync": tenant._start("folder_sync", {"connection": "photos", "path": "/photos"}, "photos"),
    }
    client.post("/events", {"name": "provider.folder.updated", "payload": {"folder_path": "/from-the-event"}})
    saved = client.post("/searches", {**search, "seed_from": f"{since:%Y-%m-%d}"})["id"]
    return Started(cloud, client, people.shopper, runs, saved, since)


def test_an_ingestion_has_every_record_of_the_catalogue(started: Started) -> None:
    run_id = started.ends_well("page_ingest")

    stones = {s.id for s in started.cloud.cloud.nivoda.stones if LOW * 100 <= s.price_cents < HIGH * 100}
    found = started.cloud.runs.sql("select external_id from diamond where source_run = :id", id=run_id)
    assert {row["external_id"] for row in found} == stones != set()


def test_a_source_run_has_every_record_of_its_days(started: Started) -> None:
    started.ends_well("source")

    sources = started.cloud.cloud.standins["sources"]
    assert isinstance(sources, SourcesStandIn)
    bodies = [sources.apis["openalex"].body(row) for row in sources.apis["openalex"].rows]
    works = {body["id"] for body in bodies if FIRST_DAY <= body["publication_date"] < LAST_DAY}
    assert (
        {row[0] for row in started.rows("select source_key from openalex_works where tenant_id = :t")} == works != set()
    )


def test_a_query_has_every_row_of_its_result(started: Started) -> None:
    run_id = started.ends_well("query_run")

    mce = started.cloud.cloud.standins["mce"]
    assert isinstance(mce, MceStandIn)
    rows = started.client.get(f"/query-runs/{run_id}/rows", page_size="100")["rows"]
    assert sorted(row["id"] for row in rows) == sorted(row["id"] for row in mce.truth(SQL))


def test_a_row_job_has_worked_on_every_row_of_its_file(started: Started) -> None:
    run_id = started.ends_well("row_job")

    items = started.client.get(f"/row-jobs/{run_id}/items", limit="100", sort="row_no")["items"]
    assert [(item["input_summary"]["title"], item["status"]) for item in items] == [(each, "DONE") for each in TITLES]


def test_a_job_has_run_for_its_tenant(started: Started) -> None:
    run_id = started.ends_well("job")

    (attempt,) = started.client.get(f"/jobs/{run_id}/attempts")["attempts"]
    assert f"started for tenant {started.person.tenant_id}" in attempt["stdout_tail"]


def test_an_event_has_started_a_job(started: Started) -> None:
    def done() -> list[Any]:
        jobs = started.client.get("/jobs")["jobs"]
        return [job for job in jobs if job["payload"] == {"path_prefix": "/from-the-event"} and job["status"] == "succeeded"]  # fmt: skip

    started.comes(done, "the job that the event started")
    assert len(done()) == 1


def test_a_folder_has_every_file(started: Started) -> None:
    started.ends_well("folder_sync")

    dropbox = started.cloud.cloud.standins["dropbox"]
    assert isinstance(dropbox, DropboxStandIn)
    entries = "select name, rev from folder_entry where tenant_id = :t and path = '/photos'"
    assert dict(started.rows(entries)) == dropbox.truth("/photos") != {}


def test_a_search_has_every_offer_since_its_first_day(started: Started) -> None:
    board = started.cloud.cloud.standins["infojobs"]
    assert isinstance(board, Board)

    def missing() -> set[str]:
        shown = {each.id for each in board.shown(None) if each.at >= started.since.timestamp()}
        return shown - {row[0] for row in started.rows("select external_id from offers where tenant_id = :t")}

    started.comes(lambda: not missing(), "every offer since the day before yesterday")


def test_the_console_shows_all_of_them(started: Started, enter: Enter) -> None:
    tenant = f"?tenant={started.person.tenant_id}"
    page = enter(started.person, f"runs{tenant}", alone=True)
    for name in started.runs:
        goto(page, f"runs/{started.ends_well(name)}{tenant}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect_state(page, "Succeeded")
    goto(page, f"work/search/saved/{started.search}{tenant}")
    expect(page.get_by_role("table", name="Offers, newest first").get_by_role("row").nth(1)).to_be_visible()
    goto(page, f"work/job/triggers{tenant}")
    expect(page.get_by_role("row").filter(has_text=TRIGGER)).to_be_visible()
