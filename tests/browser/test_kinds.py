"""The frame for every kind of work: one file joins it, none is needed, and a broken one costs nobody else anything."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from playwright.sync_api import Page, Route, expect

from infra.local.deploy import ROOT
from shared.kernel.api.console import Console, Login
from tests.browser import seed
from tests.browser.seed import Seeded
from tests.support.browser import PHONE, Enter, People, expect_state, goto, serious_violations, settled
from tests.support.scene import Scene

pytestmark = pytest.mark.full

# What somebody who adds a kind would write, and all of it.
WEATHER = """
import { html } from "../vendor/preact.js";
import { Action, Field, Heading, NewRun, STARTS, Section, useMay } from "../parts.js";

const New = ({ kind }) => html`<${NewRun} kind=${kind} request=${(given) => ({ path: "page-ingestions", body: { source: "nivoda", low: Number(given.get("low")), high: 400 } })}>
  <${Field} label="Stations">${(id) => html`<input id=${id} name="low" required />`}<//><//>`;
const Stations = ({ path }) => html`<${Heading} title="Stations" /><p>Every station${path.length ? `, ${path.join("/")}` : ""}.</p>`;
const Forecast = ({ run }) => html`<${Section} title="Forecast"><p>Sunny for ${run.params.source}.</p><//>`;
const Actions = ({ run, reload }) => useMay(STARTS) && html`<${Action} label="Recalibrate" explains="Reads the stations again." action=${async () => reload()} done=${`Recalibrated ${run.label}.`} />`;

export default {
  title: "Weather",
  New, Actions,
  pages: [{ path: "stations", title: "Stations", View: Stations }, { path: "secrets", title: "Secrets", roles: [], View: Stations }],
  tabs: [{ path: "forecast", title: "Forecast", View: Forecast }],
  facts: (run) => [["Sky", run.params.low]],
  laneName: (key) => key === "plan" ? "Station 7" : null,
  moved: ([first]) => first === "barometer" ? "work/weather" : null,
};
"""


NOTHING: Mapping[str, str] = {}


class Deploy(Protocol):
    def __call__(self, page: Page, kinds: Sequence[str], off: Mapping[str, str] = ..., **files: str | None) -> None: ...


@pytest.fixture
def deployed(tmp_path: Path) -> Deploy:
    """The console as the product serves it where other kinds are deployed; `files`: what their views are, None: without one."""

    def deploy(page: Page, kinds: Sequence[str], off: Mapping[str, str] = NOTHING, **files: str | None) -> None:
        folder = shutil.copytree(ROOT / "functions" / "api" / "console", tmp_path / "console")
        for kind, text in files.items():
            path = folder / "kinds" / f"{kind}.js"
            path.unlink(missing_ok=True) if text is None else path.write_text(text)
        login = json.loads(page.locator('meta[name="baton-login"]').get_attribute("content") or "")
        console = Console(folder, Login(**login), kinds, off=off)

        def answer(route: Route) -> None:
            path = urlsplit(route.request.url).path
            told = console.answer({"rawPath": path, "headers": {}, "requestContext": {"http": {"method": "GET"}}})
            route.fulfill(status=told["statusCode"], headers=told["headers"], body=told["body"])

        page.route("**/console/**", answer)

    return deploy


def a_weather_run(cloud: Scene, people: People, label: str) -> UUID:
    (run_id,) = seed.waiting_runs(
        cloud.address.database_url, people.stranger.tenant_id, 1, label=label, by=people.stranger.actor
    )
    cloud.runs.sql("update run set kind = 'weather' where id = :id", id=run_id)
    cloud.runs.sql("update lane set kind = 'weather' where run_id = :id", id=run_id)
    return run_id


def test_a_made_up_kind_joins_by_one_file(enter: Enter, people: People, cloud: Scene, deployed: Deploy) -> None:
    run_id = a_weather_run(cloud, people, "Rain in Antwerp")
    seed.waiting_runs(cloud.address.database_url, people.stranger.tenant_id, 1, label="x", by=people.stranger.actor)
    page = enter(people.stranger, alone=True)
    deployed(page, ["page_ingest", "weather"], weather=WEATHER)
    goto(page, "overview")
    work = page.get_by_role("navigation", name="Main").get_by_role("list", name="Work")
    assert work.get_by_role("listitem").all_inner_texts() == ["Page ingestion", "Weather"]
    expect(page.get_by_role("table", name="Open runs by kind").get_by_role("link", name="Weather")).to_be_visible()

    # Its list, its pages, an old address.
    work.get_by_role("link", name="Weather").click()
    expect(page.get_by_role("heading", level=1, name="Weather")).to_be_focused()
    expect(page.get_by_role("link", name="Rain in Antwerp")).to_be_visible()
    pages = page.get_by_role("navigation", name="Weather")
    assert pages.get_by_role("listitem").all_inner_texts() == ["Runs", "Stations"]
    assert serious_violations(page) == []
    pages.get_by_role("link", name="Stations").click()
    expect(page.get_by_text("Every station.")).to_be_visible()
    goto(page, "work/weather/stations/7")
    expect(page.get_by_text("Every station, 7.")).to_be_visible()
    goto(page, "work/weather/secrets")
    expect(page.get_by_role("heading", level=1, name="Page not found")).to_be_visible()
    page.goto("barometer?label=Rain+in+Antwerp")
    page.wait_for_url("**/console/work/weather?label=Rain+in+Antwerp")

    # A run: its facts, its lanes' names, its action, its tab.
    page.get_by_role("link", name="Rain in Antwerp").click()
    expect(page.get_by_role("definition").filter(has_text="200")).to_be_visible()
    expect(page.get_by_role("cell", name="Station 7")).to_be_visible()
    page.get_by_role("button", name="Recalibrate").click()
    page.get_by_role("dialog").get_by_role("button", name="Recalibrate").click()
    expect(page.get_by_text("Recalibrated Rain in Antwerp.")).to_be_visible()
    tabs = page.get_by_role("navigation", name="Run")
    assert tabs.get_by_role("listitem").all_inner_texts() == ["Overview", "Forecast", "Timeline", "Parameters"]
    tabs.get_by_role("link", name="Forecast").click()
    expect(page.get_by_text("Sunny for nivoda.")).to_be_visible()
    expect(page).to_have_url(re.compile(rf"/console/runs/{run_id}/forecast$"))
    expect_state(page, "Stalled")  # it has no code here, only a face

    # Its form, from the one menu.
    page.get_by_role("button", name="New", exact=True).click()
    page.locator("#new-menu").get_by_role("link", name="Weather").click()
    expect(page.get_by_role("heading", level=1, name="New weather")).to_be_focused()
    page.get_by_label("Stations").fill("399")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("$399 \N{EN DASH} $400").first).to_be_visible()  # what it started is a page ingestion


def test_a_page_that_is_turned_off_has_no_tab_and_says_why(enter: Enter, people: People, deployed: Deploy) -> None:
    page = enter(people.stranger, alone=True)
    why = "The list of pending rows is turned off. To turn it on, deploy with PendingDashboardEnabled=true."
    deployed(page, ["row_job"], off={"row_job/pending": why})

    goto(page, "work/row_job")
    expect(page.get_by_role("heading", level=1, name="Row jobs")).to_be_visible()
    expect(page.get_by_role("link", name="Pending")).to_have_count(0)
    goto(page, "work/row_job/pending")
    expect(page.get_by_role("heading", level=1, name="Pending")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text(why)


def test_a_kind_without_a_file_still_works(enter: Enter, people: People, deployed: Deploy) -> None:
    page = enter(people.member, alone=True)
    deployed(page, ["page_ingest"], page_ingest=None)
    goto(page, "work/page_ingest")
    expect(page.get_by_role("heading", level=1, name="Page ingest")).to_be_visible()
    page.get_by_role("button", name="New", exact=True).click()
    page.locator("#new-menu").get_by_role("link", name="Page ingest").click()
    params = page.get_by_label("Parameters")
    for wrong, told in (("{low: 200}", "isn't valid JSON"), ("[200]", "write a JSON object")):
        params.fill(wrong)
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_role("alert")).to_contain_text(told)
    assert serious_violations(page) == []
    params.fill('{"source": "nivoda", "low": 200, "high": 260}')
    page.get_by_label("Label").fill("From JSON")

    page.get_by_role("button", name="Start").click()

    expect(page.get_by_role("heading", level=1, name="From JSON")).to_be_visible()
    expect_state(page, "Succeeded", timeout=300_000)
    assert page.get_by_role("navigation", name="Run").get_by_role("listitem").all_inner_texts() == [
        "Overview", "Timeline", "Parameters",
    ]  # fmt: skip
    expect(page.get_by_role("cell", name="plan", exact=True)).to_be_visible()
    page.get_by_role("navigation", name="Run").get_by_role("link", name="Parameters").click()
    expect(page.get_by_role("main")).to_contain_text('"high": 260')


@pytest.mark.parametrize("broken", ["export default {", "throw new Error('oops')"], ids=["syntax", "error"])
def test_a_broken_file_costs_its_own_kind_its_view_and_nobody_else_anything(
    enter: Enter, people: People, deployed: Deploy, broken: str
) -> None:
    page = enter(people.stranger, alone=True)
    deployed(page, ["page_ingest", "weather"], weather=broken)

    goto(page, "work/weather")
    expect(page.get_by_role("heading", level=1, name="Weather")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("couldn't be loaded, so the general one is shown")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Page ingestion").click()
    settled(page)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_old_addresses_lead_to_where_their_views_have_gone(enter: Enter, people: People, seeded: Seeded) -> None:
    page = enter(people.admin)
    for old, new in (
        ("now", "overview"),
        ("gates", "rate-limits"),
        ("audit", "audit-log"),
        ("health", "system"),
        ("people", "members"),
        ("ingestions?status=failed", r"work/page_ingest\?status=failed"),
        ("ingestions/start", "work/page_ingest/new"),
        (f"ingestions/{seeded.running}", f"runs/{seeded.running}/partitions"),
    ):
        page.goto(old)
        expect(page).to_have_url(re.compile(rf"/console/{new}$"))
    settled(page)
    expect(page.get_by_role("table", name="Partitions by price, with their pages")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile(r"/console/work/page_ingest/new$"))  # an old address is not gone back to


def test_a_partition_is_called_by_its_prices_and_never_running_while_it_only_fails(
    enter: Enter, people: People, seeded: Seeded
) -> None:
    page = enter(people.admin, f"runs/{seeded.retrying}")
    expect_state(page, "Retrying")
    expect(page.get_by_text(re.compile("ETA"))).to_have_count(0)
    expect(page.get_by_role("main")).not_to_contain_text("part:")
    expect(page.get_by_role("main")).to_contain_text("Next attempt in")
    page.get_by_role("navigation", name="Run").get_by_role("link", name="Partitions").click()
    rows = page.get_by_role("table", name="Partitions by price, with their pages").get_by_role("row")
    expect(rows.filter(has_text="Retrying").first).to_be_visible()
    expect(rows.filter(has_text="Running")).to_have_count(0)
    expect(rows.filter(has_text="$200 \N{EN DASH} $260").first).to_be_visible()


def test_the_menus_open_and_close_by_hand_and_by_keyboard(enter: Enter, people: People) -> None:
    page = enter(people.admin)
    new = page.get_by_role("button", name="New", exact=True)
    entry = page.locator("#new-menu").get_by_role("link", name="Page ingestion")
    new.press("Enter")
    expect(entry).to_be_visible()
    assert serious_violations(page) == []
    entry.press("Escape")
    expect(new).to_be_focused()
    assert new.get_attribute("aria-expanded") == "false"

    page.set_viewport_size(PHONE)
    views = page.get_by_role("navigation", name="Main")
    expect(views.get_by_role("link", name="Runs")).to_be_hidden()
    views.get_by_role("button", name="Overview").click()
    expect(views.get_by_role("link", name="Runs")).to_be_visible()
    assert serious_violations(page) == []
    views.get_by_role("link", name="Runs").click()
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    expect(views.get_by_role("link", name="Failures")).to_be_hidden()
