"""A source as a person meets it: what it can prove, trying and estimating, a run with its claim, rows, the quarantine."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from playwright.sync_api import expect

from tests.browser.seed import owner
from tests.support.browser import Enter, People, goto, keeps_nobody_out, settled
from tests.support.scene import Scene

pytestmark = pytest.mark.full

SLOW_MS = 300_000
QUARANTINED = """insert into source_quarantine (tenant_id, source, connection, resource, key, run_id, partition, page, why, payload, at)
    values (:t, 'openalex', '', 'works', 'W-bad', :t, 'part/works/all', 1, '/cited_by_count is text, not int.', '{"id": "W-bad", "title": "Mended", "cited_by_count": 3}', now())"""


def test_a_source_from_its_claim_to_its_rows(enter: Enter, people: People, cloud: Scene) -> None:
    page = enter(people.stranger, "work/page_ingest/sources")
    row = page.get_by_role("row").filter(has_text="openalex")
    expect(row).to_contain_text("complete")
    expect(row).to_contain_text("exactly as many different rows")
    keeps_nobody_out(page)
    row.get_by_role("link", name="openalex").click()
    settled(page)

    page.get_by_label("From", exact=True).fill("2025-01-01")
    page.get_by_label("To (optional)").fill("2025-02-01")
    page.get_by_role("button", name="Try", exact=True).click()
    expect(page.get_by_text("Nothing was written.")).to_be_visible()
    page.get_by_role("button", name="Estimate").click()
    expect(page.get_by_text("1 partition,")).to_be_visible()
    page.get_by_role("button", name="Start run").click()
    page.get_by_role("link", name="open the run").click()
    settled(page)
    expect(page.get_by_text("exactly as many different rows as were counted")).to_be_visible(timeout=SLOW_MS)
    keeps_nobody_out(page)

    with owner(cloud.address.database_url) as connection:
        connection.execute(sa.text(QUARANTINED), {"t": people.stranger.tenant_id})
    goto(page, "work/page_ingest/sources/openalex/works")
    expect(page.get_by_role("table", name="Rows by key")).to_contain_text("https://openalex.org/W")
    expect(page.get_by_role("table", name="Rows in quarantine")).to_contain_text("W-bad")
    keeps_nobody_out(page)
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("dialog").get_by_role("button", name="Try again").click()
    expect(page.get_by_text("Trying again.")).to_be_visible()
    expect(page.get_by_role("table", name="Rows by key")).to_contain_text("part/works/")
