"""The pages of jobs as people use them: a super admin defines one, a tenant adds, reads, cancels and retries."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from tests.browser.seed import owner
from tests.browser.seed_jobs import define
from tests.support.browser import Enter, People, Watch, act, expect_state, serious_violations, settled
from tests.support.scene import Scene

pytestmark = pytest.mark.full

KEY = "recompute-trained-tags"
SCHEMA = """{"type": "object", "additionalProperties": false, "required": ["model"], "properties": {
  "model": {"type": "string", "enum": ["siglip", "clip"]}, "seconds": {"type": "number", "title": "Time to spend", "maximum": 9},
  "path_prefix": {"type": "string"}, "fail": {"type": "boolean"}}}"""


@pytest.fixture(scope="session")
def defined(cloud: Scene, people: People, jobs: dict[str, UUID]) -> None:
    """A job that a function of the cloud runs."""
    with owner(cloud.address.database_url) as connection:
        define(connection, people.super_admin.subject, KEY, executor="lambda", timeout_seconds=60, max_attempts=1,
                         queue="default")  # fmt: skip


def test_a_super_admin_defines_a_job_and_holds_it(enter: Enter, people: People, jobs: dict[str, UUID]) -> None:
    page = enter(people.super_admin, "work/job/definitions")
    page.get_by_role("button", name="Add definition").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key", exact=True).fill("sync-dropbox")
    dialog.get_by_label("Arguments").fill("{")
    dialog.get_by_role("button", name="Add definition").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Arguments: this isn't valid JSON")
    dialog.get_by_label("Arguments").fill(SCHEMA)
    assert serious_violations(page) == []
    dialog.get_by_role("button", name="Add definition").click()
    row = page.get_by_role("row").filter(has_text="sync-dropbox")
    expect(row).to_contain_text("Active")
    expect(row).to_contain_text("v1")

    row.get_by_role("button", name="Edit").click()
    dialog.get_by_label("Description").fill("Reads what changed.")
    dialog.get_by_role("button", name="Edit").click()
    expect(row).to_contain_text("Reads what changed.")
    expect(row).to_contain_text("v2")
    row.get_by_role("button", name="Deactivate").click()
    dialog.get_by_role("button", name="Deactivate").click()
    expect(row).to_contain_text("Inactive")

    page = enter(people.foreman, "work/job/definitions")
    expect(page.get_by_role("row").filter(has_text="sync-dropbox")).to_be_visible()
    expect(page.get_by_role("button", name="Edit")).to_have_count(0)
    tabs = page.get_by_role("navigation", name="Jobs").get_by_role("listitem")
    assert tabs.all_inner_texts() == ["Jobs", "Definitions", "Triggers"]


def test_a_job_is_added_by_its_schemas_form_and_its_log_is_read(
    enter: Enter, people: People, defined: None, watch: Watch
) -> None:
    watch.expects(422, "/jobs")
    page = enter(people.foreman, "work/job")
    page.get_by_role("button", name="New", exact=True).click()
    page.locator("#new-menu").get_by_role("link", name="Job", exact=True).click()
    page.get_by_label("Definition").select_option(KEY)
    expect(page.get_by_label("Model")).to_have_attribute("required", "")
    page.get_by_label("Model").select_option("clip")
    page.get_by_label("Path prefix").fill("-rf")
    page.get_by_role("button", name="Add job").click()
    expect(page.get_by_role("alert")).to_contain_text("a value cannot start with '-'")
    page.get_by_label("Path prefix").fill("/photos")
    page.get_by_label("Dedupe key").fill("tags")
    page.get_by_role("button", name="Add job").click()

    expect(page).to_have_url(re.compile(r"/runs/[0-9a-f-]{36}/attempts$"))
    expect_state(page, "Succeeded", timeout=300_000)
    log = page.get_by_role("log", name="Output")
    expect(log).to_contain_text(f"{KEY}: done")
    expect(page.get_by_role("table", name="Arguments")).to_contain_text("/photos")
    assert serious_violations(page) == []


def test_a_broken_job_is_retried_from_its_page(enter: Enter, people: People, defined: None) -> None:
    page = enter(people.foreman, f"work/job/new?definition={KEY}")
    page.get_by_label("Fail").select_option("yes")
    page.get_by_role("button", name="Add job").click()
    expect_state(page, "Failed", timeout=300_000)
    expect(page.get_by_text("dead letter", exact=True)).to_be_visible()
    expect(page.get_by_role("log", name="Errors")).to_contain_text("failed because --fail was set")

    act(page, "Retry", "try again")
    expect(page.get_by_text("Attempt 2", exact=True)).to_be_visible(timeout=300_000)
    expect_state(page, "Failed", timeout=300_000)


def test_the_queue_says_how_it_stands_and_why_a_job_waits(enter: Enter, people: People, jobs: dict[str, UUID]) -> None:
    page = enter(people.foreman, "work/job")
    for status in ("Queued", "Running", "Dead letter"):
        expect(page.locator(".figure").filter(has_text=status).get_by_role("link")).not_to_have_text("0")
    rows = page.get_by_role("table", name="Jobs, newest first").get_by_role("row")
    running = rows.filter(has=page.locator(f"a[href*='{jobs['running']}']"))
    expect(running).to_contain_text("gpu-box-1")
    page.get_by_label("Status").select_option("Dead letter")
    page.wait_for_url("**/work/job?status=dead_letter")
    expect(rows.filter(has=page.locator(f"a[href*='{jobs['dead']}']"))).to_be_visible()
    expect(running).to_have_count(0)

    page.goto(f"runs/{jobs['behind']}/attempts")
    settled(page)
    expect(page.get_by_role("main")).to_contain_text(re.compile(r"jobs? (is|are) ahead of it|Next in line"))
    page.goto(f"runs/{jobs['dead']}/attempts")
    settled(page)
    expect(page.get_by_role("log", name="Errors")).to_contain_text("CUDA out of memory")
    page.get_by_text("Attempt 2", exact=True).click()
    expect(page.get_by_text("stopped after 3600 seconds")).to_be_visible()


def test_a_waiting_job_is_canceled_from_the_list_and_dead_letters_are_counted_before_they_are_retried(
    enter: Enter, people: People, jobs: dict[str, UUID]
) -> None:
    page = enter(people.foreman, "work/job")
    row = page.get_by_role("row").filter(has=page.locator(f"a[href*='{jobs['scheduled']}']"))
    row.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("Canceled")

    page.get_by_role("button", name="Retry dead letters").click()
    dialog = page.get_by_role("dialog", name="Retry dead letters")
    dialog.get_by_label("Definition").select_option("train-keyword-models")
    dialog.get_by_label("Reason").fill("more memory")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text("This will retry 1 job.")
    assert serious_violations(page) == []
    dialog.get_by_role("button", name="Back").click()


def test_a_log_grows_while_somebody_looks(enter: Enter, people: People, cloud: Scene, jobs: dict[str, UUID]) -> None:
    page = enter(people.foreman, f"runs/{jobs['running']}/attempts")
    log = page.get_by_role("log", name="Output")
    expect(log).to_contain_text("epoch  59")
    cloud.runs.sql(
        "update job_attempts set stdout_tail = stdout_tail || 'epoch  60 is new' where job_id = :id", id=jobs["running"]
    )
    expect(log).to_contain_text("epoch  60 is new")
    at_the_end: bool = log.evaluate("(log) => log.scrollTop + log.clientHeight >= log.scrollHeight - 8")
    assert at_the_end


def test_super_admins_see_workers_and_every_tenants_queue(enter: Enter, people: People, jobs: dict[str, UUID]) -> None:
    page: Page = enter(people.super_admin, "work/job/workers")
    expect(page.get_by_role("status").filter(has_text="1 worker hasn't been seen")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="gpu-box-2")).to_contain_text("Stale")
    page.get_by_role("navigation", name="Jobs").get_by_role("link", name="All tenants").click()
    page.get_by_role("table", name="Jobs by tenant").get_by_role("link", name="Cirrus Works").click()
    page.wait_for_url(re.compile(rf"tenant={people.foreman.tenant_id}"))
    expect(page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()
    page = enter(people.foreman, "work/job/workers")
    expect(page.get_by_role("heading", level=1, name="Page not found")).to_be_visible()
