"""The page of triggers as a tenant's admin uses it: a schedule with its next runs, an event that is tried and then sent."""

from __future__ import annotations

from uuid import UUID

import pytest
import sqlalchemy as sa
from playwright.sync_api import expect

from tests.browser.seed import owner
from tests.browser.seed_jobs import define
from tests.support.browser import Enter, People, Watch, serious_violations
from tests.support.scene import Scene

pytestmark = pytest.mark.full

KEY = "nightly-training"
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.fixture(scope="session")
def defined(cloud: Scene, people: People, jobs: dict[str, UUID]) -> None:
    with owner(cloud.address.database_url) as connection:
        define(connection, people.super_admin.subject, KEY, command="train-keyword-models", arg_schema=NOTHING)


def test_a_schedule_is_added_with_its_next_runs_and_run_now(
    enter: Enter, people: People, defined: None, watch: Watch
) -> None:
    watch.expects(422, "/jobs/triggers")
    page = enter(people.foreman, "work/job/triggers")
    page.get_by_role("button", name="Add trigger").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Label").fill("Nightly training")
    dialog.get_by_label("Job", exact=True).select_option(KEY)
    dialog.get_by_label("Schedule").fill("0 0 31 2 *")
    dialog.get_by_label("Timezone").fill("Europe/Madrid")
    dialog.get_by_role("button", name="Add trigger").click()
    expect(dialog.get_by_role("alert")).to_contain_text("cron_expr")
    dialog.get_by_label("Schedule").fill("30 2 * * *")
    dialog.get_by_role("button", name="Show next runs").click()
    expect(dialog.get_by_role("list", name="Next runs").get_by_role("listitem")).to_have_count(10)
    assert serious_violations(page) == []
    dialog.get_by_role("button", name="Add trigger").click()
    row = page.get_by_role("row").filter(has_text="Nightly training")
    expect(row).to_contain_text("02:30")
    expect(row).to_contain_text("not run yet")

    row.get_by_role("button", name="Run now").click()
    dialog.get_by_role("button", name="Run now").click()
    expect(row.get_by_role("img")).to_have_attribute("aria-label", "1 firing, 0 skipped; last: Started a job")
    row.get_by_role("link", name="Nightly training").click()
    expect(page.get_by_role("table", name="Firings")).to_contain_text("Manual")
    assert serious_violations(page) == []


def test_every_trigger_of_many_is_listed(cloud: Scene, enter: Enter, people: People, defined: None) -> None:
    """Guards that those behind the first page are there, too."""
    with owner(cloud.address.database_url) as connection:
        many = sa.text(
            """insert into job_triggers (id, tenant_id, label, is_enabled, trigger_type, event_name, event_filter, definition_id,
                                         payload_template, dedupe_window_seconds, created_by)
               select gen_random_uuid(), :tenant, 'Many ' || n, false, 'event', 'many.things', '{}', d.id, '{}', 300, 'user:x'
               from generate_series(1, 120) n cross join job_definitions d where d.key = :key"""
        )
        connection.execute(many, {"tenant": people.foreman.tenant_id, "key": KEY})
    try:
        page = enter(people.foreman, "work/job/triggers")
        rows = page.get_by_role("table", name="Triggers").get_by_role("row").filter(has_text="Many ")
        expect(rows.first).to_be_visible()
        for _ in range(20):
            if rows.count() >= 120:
                break
            page.mouse.wheel(0, 20_000)
            page.wait_for_timeout(250)
        expect(page.get_by_text("New schedules use")).to_be_visible()
        assert rows.count() == 120
    finally:
        with owner(cloud.address.database_url) as connection:
            connection.execute(sa.text("delete from job_triggers where label like 'Many %'"))


def test_an_event_is_tried_before_it_is_sent(enter: Enter, people: People, defined: None) -> None:
    page = enter(people.foreman, "work/job/triggers")
    page.get_by_role("button", name="Add trigger").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Label").fill("On new lists")
    dialog.get_by_label("Job", exact=True).select_option(KEY)
    dialog.get_by_label("Starts").select_option("event")
    dialog.get_by_label("Event", exact=True).fill("list.created")
    dialog.get_by_label("Only if").fill('{"size": 2}')
    dialog.get_by_role("button", name="Add trigger").click()
    page.get_by_role("link", name="On new lists").click()
    page.get_by_label("Sample event").fill('{"size": 1}')
    page.get_by_role("button", name="Test").click()
    expect(page.get_by_role("status").filter(has_text="filter")).to_be_visible()
    page.get_by_label("Sample event").fill('{"size": 2}')
    page.get_by_role("button", name="Test").click()
    expect(page.get_by_text("The job would start with these arguments")).to_be_visible()
    page.get_by_role("button", name="Turn off").click()
    page.get_by_role("dialog").get_by_role("button", name="Turn off").click()
    expect(page.get_by_role("button", name="Turn on")).to_be_visible()
