"""Saved searches as an admin meets them: their state and coverage, days to backfill, quarantine, companies, the sheet."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from playwright.sync_api import expect

from shared.kernel.clock import new_id, process_time
from tests.browser.seed import owner
from tests.support.browser import Enter, People, goto, keeps_nobody_out, serious_violations, settled
from tests.support.scene import Scene

pytestmark = pytest.mark.full

NAME = "Python in Barcelona"
MADRID = ZoneInfo("Europe/Madrid")
SEED = (
    """insert into connection (id, tenant_id, name, provider, settings, secret_ref, created_by)
       values (:connection, :t, 'board', 'infojobs', '{"client_id": "a"}', '1', 'user:x')""",
    """insert into saved_search (id, tenant_id, name, client, connection, params, query_key, max_pages, max_offers, every_s,
                                 fresh_within_s, seed_floor)
       values (:id, :t, :name, 'infojobs', :connection, '{"q": "python", "province": ["barcelona"]}', 'k', 20, 1000, 86400,
               129600, :floor)""",
    """insert into query_state (tenant_id, query_key, search_id, client, account, zone, seed_floor, next_due_at, fresh_at, status,
                                last_run_at, last_success_at, high_watermark, seed_cursor, covered)
       values (:t, 'k', :id, 'infojobs', 'infojobs:' || cast(:connection as text), 'Europe/Madrid', :floor, now() + interval '1 day',
               now() + interval '1 day', 'SUCCESS', now(), now(), now(), :floor,
               tstzmultirange(tstzrange(:floor, :gap), tstzrange(cast(:gap as timestamptz) + interval '2 days', now())))""",
    """insert into search_quarantine (id, tenant_id, client, key, search_id, query_key, window_from, window_to, problem, payload)
       values (:record, :t, 'infojobs', 'bad-1', :id, 'k', now() - interval '3 days', now() - interval '2 days',
               'title: a text is needed', '{"id": "bad-1", "title": null}')""",
    """insert into ingestion_runs (id, tenant_id, run_id, search_id, query_key, client, purpose, window_from, window_to, status,
                                   stop_reason, finished_at, pages_fetched, offers_fetched)
       values (:record, :t, :record, :id, 'k', 'infojobs', 'head', now() - interval '2 days', now(), 'success',
               'window_exhausted', now(), 3, 120)""",
    """insert into companies (tenant_id, id, client, external_id, name, open_offers, dirty)
       values (:t, :record, 'infojobs', 'c1', 'Acme Robots', 7, false)""",
    "insert into company_feedback (tenant_id, company_id, feedback, said_by) values (:t, :record, 'relevant', 'sheet:x')",
    """insert into offers (tenant_id, client, external_id, company_id, title, location, updated_at, fingerprint, found_by, hash, payload)
       values (:t, 'infojobs', 'o1', :record, 'Robot engineer', 'Barcelona', now(), 'f', array['k'], 'h', '{}')""",
    """insert into search_sheet (id, tenant_id, connection, tab, zone, opens, closes)
       values (:id, :t, :connection, 'Companies', 'Europe/Madrid', '03:00', '06:00')""",
    """insert into sheet_night (tenant_id, sheet_id, night, run_id, opens_at, closes_at, status, rows_written, feedback_read, finished_at, problem)
       values (:t, :id, '2026-11-15', :id, now() - interval '2 days', now() - interval '47 hours', 'synced', 41, 3, now(), null),
              (:t, :id, '2026-11-16', :record, now() - interval '1 day', now() - interval '23 hours', 'missed', 0, 0, now(),
               '{"code": "window_missed", "message": "The sheet was not synced in the night of 2026-11-16."}')""",
)  # fmt: skip


@pytest.fixture(scope="session")
def saved(cloud: Scene, people: People) -> UUID:
    search, now = new_id(), process_time()
    told = {
        "id": search, "t": people.stranger.tenant_id, "connection": new_id(), "name": NAME, "record": new_id(),
        "floor": now - timedelta(days=20), "gap": now - timedelta(days=9),
    }  # fmt: skip
    with owner(cloud.address.database_url) as connection:
        for statement in SEED:
            connection.execute(sa.text(statement), {name: told[name] for name in told if f":{name}" in statement})
    return search


def test_a_search_from_its_coverage_to_a_backfill(enter: Enter, people: People, saved: UUID) -> None:
    page = enter(people.stranger, "work/search/saved")
    row = page.get_by_role("row").filter(has_text=NAME)
    expect(row).to_contain_text("Success")
    expect(row).to_contain_text("Fresh")
    keeps_nobody_out(page)
    row.get_by_role("link", name=NAME).click()
    settled(page)
    days = page.get_by_role("group", name="Covered days").get_by_role("button")
    expect(days).to_have_count(70)
    expect(page.get_by_text("days in Europe/Madrid")).to_be_visible()
    expect(days.nth(69)).to_have_attribute("aria-label", re.compile(f"^{process_time().astimezone(MADRID):%Y-%m-%d}"))
    expect(page.get_by_text("1 gap:")).to_be_visible()
    expect(page.get_by_role("table", name="Executions, newest first")).to_contain_text("120 offers on 3 pages")
    expect(page.get_by_role("table", name="Offers, newest first")).to_contain_text("Acme Robots")
    keeps_nobody_out(page)

    page.get_by_role("button", name="Fill gap").click()
    expect(page.get_by_text("About")).to_be_visible()
    page.get_by_role("button", name="not covered").last.click()
    days.nth(69).click()
    expect(page.get_by_text("About")).to_be_visible()
    page.get_by_role("button", name="Start backfill").click()
    with page.expect_request(lambda request: request.method == "POST" and "backfill" in request.url) as sent:
        page.get_by_role("dialog").get_by_role("button", name="Start backfill").click()
    told: Any = sent.value.post_data_json
    start = datetime.fromisoformat(told["start"])
    assert start.astimezone(MADRID).time() == time(), "a day begins where the board is"
    expect(page.get_by_text("Backfill started.")).to_be_visible()

    quarantine = page.get_by_role("table", name="Quarantined records")
    expect(quarantine).to_contain_text("title: a text is needed")
    quarantine.get_by_role("button", name="Accept").click()
    page.get_by_role("dialog").get_by_role("button", name="Accept").click()
    expect(quarantine).to_be_hidden()

    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()


def test_companies_and_the_nights_of_a_sheet(enter: Enter, people: People, saved: UUID) -> None:
    page = enter(people.stranger, "work/search/companies")
    row = page.get_by_role("row").filter(has_text="Acme Robots")
    expect(row).to_contain_text("Relevant")
    keeps_nobody_out(page)
    goto(page, "work/search/sheets")
    # A tick may have begun the next night meanwhile: it is above them.
    nights = page.get_by_role("table", name="Nights of Companies, newest first").get_by_role("row")
    expect(nights.filter(has_text="Missed").or_(nights.filter(has_text="41 written"))).to_contain_text(
        ["Missed", "41 written"]
    )
    keeps_nobody_out(page)


@pytest.mark.usefixtures("saved")
def test_an_admin_saves_a_search_without_a_command_line(enter: Enter, people: People, cloud: Scene) -> None:
    page = enter(people.stranger, "work/search/new")
    page.get_by_role("main").get_by_role("link", name="Saved searches").click()
    page.get_by_role("button", name="Save a search").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Connection").locator("option")).to_have_text(["board"])
    assert serious_violations(page) == []
    dialog.get_by_label("Name").fill("Go in Girona")
    dialog.get_by_label("Words (optional)").fill("go")
    dialog.get_by_label("Provinces (optional)").fill("girona, barcelona")
    dialog.get_by_label("More parameters (optional)").fill("[]")
    dialog.get_by_role("button", name="Save a search").click()
    expect(dialog.get_by_role("alert")).to_contain_text("write a JSON object")
    dialog.get_by_label("More parameters (optional)").fill('{"salary_min": 30000}')
    dialog.get_by_role("button", name="Save a search").click()

    expect(page.get_by_role("row").filter(has_text="Go in Girona")).to_be_visible()
    with owner(cloud.address.database_url) as connection:
        asked = connection.execute(sa.text("select params from saved_search where name = 'Go in Girona'")).scalar_one()
    assert asked == {"q": "go", "province": ["barcelona", "girona"], "salary_min": 30000}


@pytest.mark.usefixtures("saved")
def test_a_folder_sync_is_started_by_a_form_that_says_what_it_needs(enter: Enter, people: People) -> None:
    page = enter(people.stranger, "work/folder_sync/new")

    expect(page.get_by_role("alert")).to_contain_text("There is no Dropbox connection yet.")
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    assert serious_violations(page) == []
