"""What changes while somebody looks: shown by itself, once, however often the network is cut; nothing while nobody looks."""

from __future__ import annotations

import threading

import pytest
from playwright.sync_api import Page, Request, Route, expect

from infra.local.deploy import ROOT
from tests.browser import seed
from tests.support.blocks import blocks_of
from tests.support.browser import HIDE, Enter, People, Watch, expect_state, settled
from tests.support.scene import Scene

pytestmark = pytest.mark.full


def test_the_end_of_a_run_appears_after_the_network_was_cut(
    enter: Enter, people: People, cloud: Scene, watch: Watch, pages: threading.Event
) -> None:
    cloud.tenant = people.admin.tenant_id
    run_id = cloud.start(60)
    page = enter(people.admin, f"runs/{run_id}/timeline")
    expect_state(page, "Running")
    lines = page.get_by_role("list", name="Events").get_by_role("listitem")
    expect(lines.filter(has_text="Created")).to_have_count(1)

    with watch.network_cut(page):
        pages.set()
        assert cloud.wait(run_id).run["status"] == "succeeded"
        expect(page.get_by_text("Connection lost; reconnecting")).to_be_visible()
        expect_state(page, "Running")

    expect_state(page, "Succeeded")
    expect(lines.filter(has_text="Succeeded")).to_have_count(1)
    expect(lines.filter(has_text="Created")).to_have_count(1)
    told = cloud.runs.sql("select count(*) as n from history where run_id = :id", id=run_id)
    expect(lines).to_have_count(told[0]["n"])


def test_the_list_shows_what_begins_while_somebody_looks(enter: Enter, people: People, cloud: Scene) -> None:
    admin = people.admin
    page = enter(admin, "runs?label=Begun+meanwhile", alone=True)
    page.clock.install()
    page.reload()
    expect(page.get_by_text("No run matches.")).to_be_visible()

    seed.waiting_runs(cloud.address.database_url, admin.tenant_id, 1, label="Begun meanwhile", by=admin.actor)
    page.clock.run_for(10_000)

    expect(page.get_by_role("link", name="Begun meanwhile")).to_be_visible()


def test_what_cannot_be_had_is_asked_for_again_but_not_without_a_pause(
    enter: Enter, people: People, watch: Watch, seeded: seed.Seeded
) -> None:
    page = enter(people.admin, "runs", alone=True)
    views = page.get_by_role("navigation", name="Main")
    views.get_by_role("link", name="Rate limits").click()
    settled(page)
    asked: list[str] = []
    page.on("request", lambda request: note(asked, request))
    page.clock.install()
    with watch.network_cut(page):
        views.get_by_role("link", name="Runs").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.clock.run_for(20_000)
        assert 1 <= len(asked) <= 10, asked

    page.clock.run_for(10_000)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("link", name="Nightly, natural stones").first).to_be_visible()


def test_the_reader_of_events_in_the_api_guide_tells_every_line_once(
    enter: Enter, people: People, cloud: Scene, seeded: seed.Seeded, watch: Watch
) -> None:
    """As it stands there, with the visitor's token; the gateway refuses its first request."""
    (code,) = [block.text for block in blocks_of(ROOT / "docs" / "api.md") if block.language == "js"]
    page = enter(people.admin, "overview", alone=True)
    cuts: list[str] = []

    def answered_late(route: Route) -> None:
        if cuts:
            return route.continue_()
        cuts.append(route.request.url)
        return route.fulfill(status=503, json={"message": "Service Unavailable"})

    page.route("**/events", answered_late)
    watch.expects(503, "/events")
    ended, told = page.evaluate(
        f"""async (run) => {{
            {code}
            const told = [];
            const {{ access }} = JSON.parse(sessionStorage.getItem("baton.session"));
            const api = new URL("../api/v1", document.baseURI).href;
            return [await follow(api, access, run, (name, said) => told.push([name, said.n ?? null])), told];
        }}""",
        str(seeded.succeeded),
    )

    assert cuts
    assert ended == 204
    lines = [n for name, n in told if name == "line"]
    known = cloud.runs.sql("select n from history where run_id = :id order by n", id=seeded.succeeded)
    assert lines == [row["n"] for row in known]
    assert told[0][0] == "snapshot"


def test_a_tab_that_nobody_sees_asks_nothing(enter: Enter, people: People, cloud: Scene) -> None:
    admin = people.admin
    (run_id,) = seed.waiting_runs(cloud.address.database_url, admin.tenant_id, 1, label="Hidden", by=admin.actor)
    page = enter(admin, f"runs/{run_id}", alone=True)
    page.clock.install()
    page.reload()
    expect_state(page, "Waiting")
    asked: list[str] = []
    page.on("request", lambda request: note(asked, request))

    page.evaluate(HIDE, True)
    page.wait_for_load_state("networkidle")  # what was under way
    asked.clear()
    page.clock.run_for(60_000)
    assert asked == []

    page.evaluate(HIDE, False)
    page.clock.run_for(15_000)
    answered(page, asked)


def note(asked: list[str], request: Request) -> None:
    if "/api/v1/" in request.url:
        asked.append(request.url)


def answered(page: Page, asked: list[str]) -> None:
    page.wait_for_load_state("networkidle")
    assert any("/events" in url for url in asked), asked
