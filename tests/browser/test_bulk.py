"""One action on every run that matches: counted, shown, and only then done."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import seed
from tests.support.browser import Enter, People
from tests.support.scene import Scene

pytestmark = pytest.mark.full

MANY = 70  # more than one batch


def paused(cloud: Scene, label: str) -> int:
    (row,) = cloud.runs.sql("select count(*) as n from run where label = :label and paused_at is not null", label=label)
    return int(row["n"])


def open_dialog(page: Page) -> Locator:
    page.get_by_role("button", name="Bulk actions").click()
    return page.get_by_role("dialog", name="Bulk actions")


def test_what_matches_is_counted_first_and_then_done(enter: Enter, people: People, cloud: Scene) -> None:
    url, admin = cloud.address.database_url, people.stranger  # where no other test counts rows
    seed.waiting_runs(url, admin.tenant_id, MANY, label="Bulk: these", by=admin.actor)
    seed.waiting_runs(url, admin.tenant_id, 2, label="Bulk: not these", by=admin.actor)
    page = enter(admin, "runs?label=Bulk%3A+these")
    dialog = open_dialog(page)
    dialog.get_by_label("Action").select_option("Pause")
    dialog.get_by_label("Reason").fill("the source is being moved")

    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text(f"{MANY} runs")
    assert paused(cloud, "Bulk: these") == 0
    dialog.get_by_role("button", name=f"Pause {MANY} runs").click()

    expect(page.get_by_text(f"Pause: {MANY} runs done.")).to_be_visible()
    assert paused(cloud, "Bulk: these") == MANY
    assert paused(cloud, "Bulk: not these") == 0
    lines = cloud.runs.sql(
        """select distinct data ->> 'reason' as reason from history join run on run.id = history.run_id
           where run.label = 'Bulk: these' and type = 'paused'"""
    )
    assert [line["reason"] for line in lines] == ["the source is being moved"]
    expect(page.get_by_role("row").filter(has_text="Paused").first).to_be_visible()


def test_a_member_acts_on_their_own_and_what_was_counted_is_counted_again_when_it_changes(
    enter: Enter, people: People, cloud: Scene
) -> None:
    url, tenant = cloud.address.database_url, people.member.tenant_id
    seed.waiting_runs(url, tenant, 3, label="Bulk: shared name", by=people.member.actor)
    seed.waiting_runs(url, tenant, 4, label="Bulk: shared name", by=people.other.actor)
    page = enter(people.member, "runs?label=Bulk%3A+shared+name")
    dialog = open_dialog(page)
    dialog.get_by_label("Action").select_option("Pause")
    dialog.get_by_label("Reason").fill("x")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text("3 runs")

    dialog.get_by_label("Action").select_option("Resume")
    expect(dialog.get_by_role("status")).to_have_count(0)
    dialog.get_by_role("button", name="Preview").click()

    expect(dialog.get_by_role("status")).to_contain_text("There are no runs to resume")
    dialog.get_by_role("button", name="Back").click()
    expect(dialog).to_have_count(0)
    assert paused(cloud, "Bulk: shared name") == 0
