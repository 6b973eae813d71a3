"""A remote query as a person meets it: the account, the editor, what it is doing, its rows, the file, what it left."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from infra.local.standins.mce import CLIENT_ID, CLIENT_SECRET
from tests.support.browser import Enter, People, expect_state, goto, keeps_nobody_out, settled
from tests.support.scene import Scene

pytestmark = pytest.mark.full

SQL = "/* seconds=4; rows=120 */ select id, name\nfrom people -- everybody\nwhere name <> 'nobody'"
SLOW_MS = 300_000


def connect(page: Page) -> None:
    goto(page, "connections")
    page.get_by_role("button", name="Add connection").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Provider").select_option(label="Marketing Cloud")
    for label, value in (
        ("Name", "marketing"), ("Subdomain", "mc563885gzs27c5t9"), ("Client Id", CLIENT_ID), ("Mid", "7281698"),
        ("Client Secret", CLIENT_SECRET),
    ):  # fmt: skip
        dialog.get_by_label(label).fill(value)
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_text("Added. Check it now.")).to_be_visible()


def tab(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Run").get_by_role("link", name=name, exact=True).click()
    settled(page)


def test_a_query_from_the_account_to_the_downloaded_file(
    enter: Enter, people: People, cloud: Scene, tmp_path: Path
) -> None:
    page = enter(people.stranger, alone=True)
    goto(page, "work/query_run/new")
    expect(page.get_by_role("alert")).to_contain_text("There is no Marketing Cloud connection yet")
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    connect(page)

    goto(page, "work/query_run/new")
    expect(page.get_by_label("Business unit (MID)")).to_have_value("7281698")
    editor = page.get_by_label("SQL")
    editor.fill(SQL)
    page.get_by_label("Snippet name").fill("Everybody")
    keeps_nobody_out(page)
    editor.press("Control+Enter")

    expect(page.get_by_role("heading", level=1, name="Everybody")).to_be_visible()
    tab(page, "Query")
    stages = page.get_by_role("list", name="Stages").get_by_role("listitem")
    expect(stages.filter(has_text="Poll")).to_contain_text("Running", timeout=SLOW_MS)
    expect(page.get_by_role("definition").filter(has_text="select list, as text")).to_be_visible()
    expect(page.get_by_role("region", name="SQL")).to_contain_text("from people -- everybody")
    tab(page, "Rows")
    expect(page.get_by_text("Rows are shown when the query has finished.")).to_be_visible()
    expect_state(page, "Succeeded", timeout=SLOW_MS)

    # Its rows, page by page, and all of them as a file.
    expect(page.get_by_text("120 rows", exact=True)).to_be_visible()
    rows = page.get_by_role("table", name="Rows of the result").get_by_role("row")
    expect(rows).to_have_count(51)
    page.get_by_role("button", name="Next").click()
    expect(rows.filter(has_text="row 99 of")).to_be_visible()
    page.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(21)
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    keeps_nobody_out(page)
    with page.expect_download(timeout=SLOW_MS) as download:
        page.get_by_role("button", name="Download CSV").click()
    file = tmp_path / "rows.csv"
    download.value.save_as(file)
    with file.open(newline="") as opened:
        found = list(csv.DictReader(opened))
    assert [row["id"] for row in found] == [str(n) for n in range(120)]

    # What polling did, and what is left.
    tab(page, "Query")
    expect(page.get_by_text("Ready", exact=True)).to_be_visible()
    assert stages.filter(has_text="Succeeded").count() == 4
    keeps_nobody_out(page)
    goto(page, "work/query_run")
    expect(page.get_by_role("link", name="Everybody")).to_be_visible()
    page.get_by_role("navigation", name="Remote queries").get_by_role("link", name="Polls to ready").click()
    expect(page.get_by_role("table", name="Queries by how many polls they took")).to_contain_text("1")
    keeps_nobody_out(page)
    goto(page, "work/query_run/leftovers")
    expect(page.get_by_role("table", name="Left by ended runs")).to_contain_text("Data extension")
    cloud.runs.sql(
        """insert into query_stray (tenant_id, account, kind, key, first_seen_at, last_seen_at)
           values (:t, 'mce@7281698', 'query_definition', 'BTN_0123456789abcdef', now(), now())""",
        t=people.stranger.tenant_id,
    )
    goto(page, "work/query_run/leftovers")
    expect(page.get_by_role("table", name="Unknown", exact=True)).to_contain_text("BTN_0123456789abcdef")
    keeps_nobody_out(page)


def test_a_query_that_fails_says_why(enter: Enter, people: People) -> None:
    page = enter(people.stranger, alone=True)
    goto(page, "work/query_run/new")
    if page.get_by_role("alert").count():
        connect(page)
        goto(page, "work/query_run/new")
    page.get_by_label("SQL").fill("/* invalid=Invalid column name 'nmae' */ select nmae from people")
    page.get_by_role("button", name="Start").click()
    expect_state(page, "Failed", timeout=SLOW_MS)
    expect(page.get_by_role("main")).to_contain_text("Marketing Cloud rejects the query: Invalid column name")
    tab(page, "Rows")
    expect(page.get_by_text("it has no rows")).to_be_visible()
