"""Guards that `baton demo-data` fills every view: runs of all kinds in all states, all of them real."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.demo import client_of, demo
from tests.browser.views import DEMO
from tests.support.browser import PHONE, Enter, People, goto, serious_violations
from tests.support.scene import Scene

STATES = {"succeeded", "failed", "canceled", "paused", "throttled", "retrying", "waiting", "queued"}
KINDS = {"page_ingest", "query_run", "row_job", "job", "search", "folder_sync"}


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_every_view_is_full_and_keeps_nobody_out(enter: Enter, people: People, cloud: Scene) -> None:
    ids = demo(cloud, people.shopper)

    runs = list(client_of(cloud, people.shopper).pages("/runs", "runs", 200))
    assert {run["kind"] for run in runs} == KINDS
    assert STATES - {run["state"] for run in runs} == set()
    page = enter(people.shopper, alone=True)
    for view in DEMO:
        goto(page, view.at(ids))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("not found", exact=False)).to_have_count(0)
        found = serious_violations(page)
        page.set_viewport_size(PHONE)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (
            f"{view.name} is wider than a phone"
        )
        assert found + serious_violations(page) == [], view.name
        page.set_viewport_size({"width": 1280, "height": 800})
