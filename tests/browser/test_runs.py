"""Runs: started, watched and moved by whoever may; seen by whoever may see them, and by nobody else."""

from __future__ import annotations

import re
import threading
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Locator, Page, expect

from shared.kernel.model import fingerprint
from tests.browser import seed
from tests.browser.seed import Seeded
from tests.support.browser import Enter, People, Person, Watch, act, expect_state, goto
from tests.support.scene import Scene

pytestmark = pytest.mark.full


def test_a_page_ingestion_is_started_watched_and_moved(
    enter: Enter, people: People, cloud: Scene, pages: threading.Event
) -> None:
    page = enter(people.member, "work/page_ingest/new")
    page.get_by_label("From price").fill("200")
    page.get_by_label("To price").fill("900")
    page.get_by_label("Label").fill("Started in a browser")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", level=1, name="Started in a browser")).to_be_visible()
    run_id = UUID(re.findall(r"[0-9a-f-]{36}", page.url)[-1])
    expect_state(page, "Running")

    act(page, "Pause", reason="to look at it")
    expect_state(page, "Paused")
    act(page, "Resume")
    expect_state(page, "Running")
    act(page, "Cancel run")
    pages.set()
    expect_state(page, "Canceled")
    act(page, "Retry")
    expect_state(page, "Succeeded", timeout=300_000)

    page.get_by_role("navigation", name="Run").get_by_role("link", name="Timeline").click()
    lines = page.get_by_role("list", name="Events").get_by_role("listitem")
    expect(lines.filter(has=page.get_by_text("Succeeded", exact=True))).to_have_count(1)
    told = [line.split("\n")[1] for line in reversed(lines.all_inner_texts())]
    assert [each for each in told if each not in {"Next phase", "Started"}] == [
        "Created", "Paused", "Resumed", "Cancel requested", "Canceled", "Retried", "Succeeded",
    ]  # fmt: skip
    expect(lines.filter(has=page.get_by_text("Paused", exact=True))).to_contain_text("to look at it")
    assert cloud.runs.progress(run_id).run["status"] == "succeeded"


def test_a_form_that_is_wrong_says_which_field(enter: Enter, people: People, watch: Watch) -> None:
    watch.expects(422, "/page-ingestions")
    page = enter(people.member, "work/page_ingest/new")
    page.get_by_label("From price").fill("900")
    page.get_by_label("To price").fill("200")
    page.get_by_role("button", name="Start").click()

    expect(page.get_by_role("alert")).to_contain_text("he price range is empty")


ACTIONS = (
    "New", "Pause", "Resume", "Cancel run", "Retry", "Run now", "Restart", "Bulk actions", "Start", "Open", "Close",
    "Close rate limit", "Add connection", "Check", "Change", "Delete",
)  # fmt: skip


def test_a_viewer_cannot_act(enter: Enter, people: People, seeded: Seeded, watch: Watch) -> None:
    page = enter(people.viewer, "runs")
    for view in (
        "runs",
        f"runs/{seeded.gated}",
        f"runs/{seeded.failed}",
        f"runs/{seeded.paused}",
        "rate-limits",
        "connections",
    ):
        goto(page, view)
        for name in ACTIONS:
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)

    # And what no button offers, the API refuses.
    watch.expects(403, "/api/v1/")
    answers = api(page, people.viewer, [
        ["POST", f"runs/{seeded.running}/cancel", {"reason": "x"}],
        ["POST", f"runs/{seeded.failed}/retry", {"reason": "x"}],
        ["POST", "runs/bulk", {"mode": "preview", "action": "cancel", "reason": "x"}],
        ["POST", "page-ingestions", {"source": "nivoda", "low": 200, "high": 300}],
        ["POST", f"gates/{seed.GATE}/open", {"reason": "x"}],
        ["GET", "audit", None],
    ])  # fmt: skip
    assert answers == [403] * 6


def test_a_member_sees_only_their_own(enter: Enter, people: People, cloud: Scene, watch: Watch) -> None:
    watch.expects(404, "/api/v1/")
    url, tenant = cloud.address.database_url, people.member.tenant_id
    seed.waiting_runs(url, tenant, 1, label="Mine", by=people.member.actor)
    (hers,) = seed.waiting_runs(url, tenant, 1, label="Hers", by=people.other.actor)

    expect(enter(people.other, "runs").get_by_role("link", name="Hers")).to_be_visible()
    page = enter(people.member, "runs")
    expect(page.get_by_role("link", name="Mine", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Hers")).to_have_count(0)
    expect_nothing_at(page, hers)


def test_another_tenant_sees_nothing(enter: Enter, people: People, seeded: Seeded, watch: Watch) -> None:
    watch.expects(404, "/api/v1/")
    page = enter(people.stranger, "runs?label=Nightly%2C+natural+stones")
    expect(page.get_by_text("No run matches.")).to_be_visible()
    for view in ("rate-limits", "connections", "audit-log"):
        goto(page, view)
        expect(page.get_by_role("cell").filter(has_text=re.compile("nivoda|rapnet|partner"))).to_have_count(0)
    expect_nothing_at(page, seeded.running)


def expect_nothing_at(page: Page, run_id: UUID) -> None:
    """Another's run answers exactly like one that never was."""
    said = []
    for each in (run_id, UUID(int=run_id.int ^ 1)):
        page.goto(f"runs/{each}")
        expect(page.get_by_role("alert")).to_be_visible()
        said.append(page.get_by_role("main").inner_text().replace(str(each), ""))
    assert said[0] == said[1]


def test_filters_live_in_the_address(enter: Enter, people: People, seeded: Seeded) -> None:
    page = enter(people.admin, "runs")
    page.get_by_label("Status").select_option("failed")
    rows = rows_of(page)
    expect(rows.first).to_contain_text("Failed")
    expect(rows.filter(has_text="Succeeded")).to_have_count(0)
    assert "status=failed" in page.url

    page.reload()
    expect(page.get_by_label("Status")).to_have_value("failed")
    search = page.get_by_label("Search", exact=True).and_(page.get_by_role("searchbox"))
    search.fill("LAB gro")
    expect(rows.filter(has_not_text="Nightly, lab grown")).to_have_count(0)
    expect(page.get_by_role("button", name="Bulk actions")).to_have_count(0)  # what is searched for is not counted
    search.fill("")
    expect(rows.filter(has_text="Melee").first).to_be_visible()
    search.fill(str(seeded.failed)[-8:])
    expect(rows).to_have_count(1)
    page.get_by_label("Status").select_option("")
    page.go_back()
    expect(page.get_by_label("Status")).to_have_value("failed")
    search.fill("Backfill 2024")
    expect(page.get_by_text("No run matches.")).to_be_visible()
    page.get_by_label("Status").select_option("paused")
    expect(rows.filter(has_text="Backfill 2024")).to_have_count(1)
    page.get_by_label("Status").select_option("failed")
    page.get_by_role("link", name="Show all").click()
    expect(rows.filter(has_text="Succeeded").first).to_be_visible()


def test_a_run_tells_why_it_waits_and_why_it_failed(enter: Enter, people: People, seeded: Seeded) -> None:
    page = enter(people.admin, f"runs/{seeded.gated}")
    expect(page.get_by_role("main")).to_contain_text(f"Rate-limited by {seed.GATE}: 429 Too Many Requests")
    expect(
        page.get_by_role("img", name=re.compile(r"Lane \$[\d,]+ . \$[\d,]+: the last \d+ steps")).first
    ).to_be_visible()

    goto(page, f"runs/{seeded.failed}")
    expect_state(page, "Failed")
    box = page.locator(".error-box")
    expect(box.get_by_role("strong")).to_have_text(seed.REFUSED.message)  # the root of it first
    expect(box).to_contain_text("1 of 19 partitions failed")
    expect(box).to_contain_text("Lane $17,000 \N{EN DASH} $30,000")
    box.get_by_role("link", name="Runs with this cause").click()
    expect(page).to_have_url(re.compile(rf"/failures\?cause={fingerprint(seed.REFUSED.code, seed.REFUSED.message)}"))
    expect(page.locator(".wanted")).to_contain_text(seed.REFUSED.message)


def test_a_lane_that_waits_runs_now(enter: Enter, people: People, cloud: Scene) -> None:
    admin = people.admin
    (run_id,) = seed.waiting_runs(cloud.address.database_url, admin.tenant_id, 1, label="Asleep", by=admin.actor)
    page = enter(admin, f"runs/{run_id}")
    expect(page.get_by_text(f"Waiting for {seed.WAITING}")).not_to_have_count(0)

    act(page, "Run now", reason="no need to wait")

    expect(page.get_by_text("Running now: 1 lane.", exact=True)).to_be_visible()
    goto(page, f"runs/{run_id}/timeline")
    expect(page.get_by_role("listitem").filter(has_text="Run now")).to_contain_text("no need to wait")


def rows_of(page: Page) -> Locator:
    return page.get_by_role("table", name="Runs, newest first").get_by_role("row").filter(has=page.get_by_role("cell"))


def api(page: Page, person: Person, requests: list[Any]) -> list[int]:
    """What the API says to this page's own visitor, asked beside the console."""
    answers: list[int] = page.evaluate(ASK, requests)
    return answers


ASK = """async (requests) => {
    const access = Object.values(sessionStorage).map((kept) => /"access":"([^"]+)"/.exec(kept)?.[1]).find(Boolean);
    const statuses = [];
    for (const [method, path, body] of requests) {
        const headers = { authorization: `Bearer ${access}`, "content-type": "application/json" };
        const url = new URL(`../api/v1/${path}`, document.baseURI);
        statuses.push((await fetch(url, { method, headers, body: body && JSON.stringify(body) })).status);
    }
    return statuses;
}"""


def test_a_gap_in_the_coverage_leads_to_the_form_that_fills_it(enter: Enter, people: People, seeded: Seeded) -> None:
    page = enter(people.admin, "work/page_ingest/coverage")
    table = page.get_by_role("table", name="Prices and the days on which they were read")
    expect(table.get_by_role("img").first).to_have_attribute("aria-label", re.compile("complete on"))
    link = table.get_by_role("link", name=re.compile("^Ingest"))
    low, high = re.findall(r"[\d,]+", link.last.get_attribute("aria-label") or "")
    link.last.click()
    expect(page.get_by_role("heading", level=1, name="New page ingestion")).to_be_visible()
    expect(page.get_by_label("From price")).to_have_value(low.replace(",", ""))
    expect(page.get_by_label("To price")).to_have_value(high.replace(",", ""))
