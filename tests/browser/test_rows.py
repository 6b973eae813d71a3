"""A row job as a person meets it: a file that is dropped, how it is read, its rows while they are worked on, and again."""

from __future__ import annotations

import io
import re

import openpyxl
import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from infra.local.standins.product_search import API_KEY
from tests.browser.test_queries import tab
from tests.support.browser import Enter, People, Watch, act, expect_state, goto, keeps_nobody_out
from tests.support.scene import Scene
from tests.support.sheets import from_calamine, from_csv, spelled

pytestmark = pytest.mark.full

SLOW_MS = 300_000
DROP = """async ([selector, name, text]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([text], name, { type: "text/csv" }));
    const zone = document.querySelector(selector);
    for (const type of ["dragenter", "dragover", "drop"]) {
        zone.dispatchEvent(new DragEvent(type, { dataTransfer: carried, bubbles: true, cancelable: true }));
    }
}"""


def connect(page: Page) -> None:
    goto(page, "connections")
    page.get_by_role("button", name="Add connection").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Provider").select_option(label="Product search")
    for label, value in (("Name", "search"), ("Account", "main"), ("Api Key", API_KEY)):
        dialog.get_by_label(label).fill(value)
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_text("Added. Check it now.")).to_be_visible()


def products(count: int) -> str:
    """Every tenth is never found; the second and the fourth have nothing to search for."""
    lines = [f"{'missing' if n % 10 == 0 else 'Product'} {n},Acme,note {n}" for n in range(1, count + 1)]
    lines[1] = ",Acme,"
    if count > 3:
        lines[3] = ",Acme,"
    return "\n".join(["What,Brand,Note", *lines]) + "\n"


def saved(lines: list[list[str]]) -> bytes:
    """As a spreadsheet program saves it."""
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for line in lines:
        sheet.append(line)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def scroll_to(page: Page, table: Locator, row: Locator) -> None:
    """The next page of a list is asked for when its end is in sight."""
    for _ in range(SLOW_MS // 250):
        if row.count():
            return
        table.get_by_role("row").last.scroll_into_view_if_needed()
        page.wait_for_timeout(250)
    expect(row).to_be_visible()


def reprocesses_one(page: Page) -> None:
    """The chosen row, counted before anything is done."""
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Reprocess 1 chosen row").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 row would be processed again.")
    dialog.get_by_role("button", name="Reprocess 1 chosen row").click()
    expect(page.get_by_text("1 row will be processed again.").last).to_be_visible()


def test_a_file_from_the_drop_to_rows_that_are_worked_on_again(
    enter: Enter, people: People, cloud: Scene, watch: Watch
) -> None:
    page = enter(people.stranger, alone=True)
    connect(page)

    # It is dropped, and goes straight to the bucket; a file that is none is refused before.
    goto(page, "work/row_job/new")
    keeps_nobody_out(page)
    page.evaluate(DROP, [".drop", "nothing.csv", ""])
    expect(page.get_by_role("alert")).to_contain_text("nothing.csv is empty")
    bucket = cloud.address.outputs["BucketName"]
    refuse = f"{cloud.address.endpoint}/{bucket}"
    page.route(refuse, lambda route: route.fulfill(status=400, headers={"access-control-allow-origin": "*"}))
    watch.expects(400, bucket)
    page.evaluate(DROP, [".drop", "large.csv", products(3)])
    expect(page.get_by_role("alert")).to_contain_text("The file wasn't accepted (400)")
    page.unroute(refuse)
    posted: list[str] = []
    page.on("request", lambda sent: posted.append(sent.url) if sent.method == "POST" else None)
    page.evaluate(DROP, [".drop", "products.csv", products(230)])

    # How it is read, before anything runs. The title is in a column that nobody could guess.
    expect(page.get_by_role("heading", name="Preview")).to_be_visible(timeout=SLOW_MS)
    assert [url for url in posted if f"/{bucket}" in url] == [f"{cloud.address.endpoint}/{bucket}"]
    expect(page.get_by_text("Choose the column that holds the title or the SKU.")).to_be_visible()
    expect(page.get_by_role("button", name="Start job")).to_be_disabled()
    page.get_by_label("Title").select_option("What")
    rows = page.get_by_role("table", name="The first rows as they would be read").get_by_role("row")
    expect(rows).to_have_count(201)
    expect(page.get_by_text("the first 200 rows, 2 would be skipped")).to_be_visible()
    page.get_by_label("Only rows with a problem").check()
    expect(rows).to_have_count(3)
    expect(rows.last).to_contain_text("neither a title nor a SKU")
    assert (
        cloud.runs.sql("select count(*) as n from file_jobs where tenant_id = :t", t=people.stranger.tenant_id)[0]["n"]
        == 0
    )
    page.reload()  # nothing is lost
    page.get_by_label("Title").select_option("What")
    expect(rows).to_have_count(201)
    keeps_nobody_out(page)
    page.get_by_label("Canary (optional)").fill("3")
    page.get_by_role("button", name="Start job").click()

    # The canary's rows, then all of them; paused and resumed on the way.
    expect(page.get_by_role("heading", level=1, name="products.csv")).to_be_visible()
    expect(page.get_by_text("Only the first 3 rows are processed")).to_be_visible(timeout=SLOW_MS)
    table = page.get_by_role("table", name="Rows of the file")
    expect(table.get_by_role("row").filter(has_text="Product 1 Acme")).to_contain_text("Found", timeout=SLOW_MS)
    expect(page.get_by_text("Continues when you process all rows.")).to_be_visible(timeout=SLOW_MS)
    act(page, "Pause")
    expect_state(page, "Paused")
    act(page, "Process all rows")
    expect(page.get_by_text("Only the first 3 rows")).to_have_count(0)
    act(page, "Resume")
    expect(page.get_by_text("of 230 rows")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_text(re.compile("ETA")).first).to_be_visible(timeout=SLOW_MS)  # in the header, or above the rows
    figure = page.locator(".figure")
    expect(figure.first).to_have_text(re.compile(r"^Found\d\d"), timeout=SLOW_MS)
    tenth = table.get_by_role("row").filter(has_text="missing 10 Acme")
    expect(tenth).to_contain_text("Retried later", timeout=SLOW_MS)
    act(page, "Pause")
    expect_state(page, "Paused")
    expect(figure.last).to_have_text("At work0", timeout=SLOW_MS)  # slices in hand end
    keeps_nobody_out(page)

    # A row that comes again later, now: it is found at the end of the list of what is pending, page after page.
    tab(page, "Pending")
    pending = page.get_by_role("table", name="Rows that are pending")
    later = pending.get_by_role("row").filter(has_text="missing 10 Acme").filter(has_text="Retried later")
    scroll_to(page, pending, later)
    expect(pending.get_by_label("Choose row 11", exact=True)).to_have_count(0)  # whose turn it is, it waits for
    later.get_by_label("Choose row 10", exact=True).check()
    keeps_nobody_out(page)
    reprocesses_one(page)
    expect(later).to_have_count(0)

    # Why it went as fast as it did.
    tab(page, "Pace")
    expect(page.get_by_role("img", name="Pace of any retailer")).to_be_visible()
    decisions = page.get_by_role("table", name="Decisions, newest first")
    expect(decisions).to_contain_text(re.compile("grow|unused|recover"))
    keeps_nobody_out(page)

    # Rows that were found, again: counted first, then done.
    tab(page, "Rows")
    page.get_by_role("button", name="Reprocess rows").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("status")).to_contain_text("No row matches.")
    dialog.get_by_label("Found", exact=True).check()
    found = cloud.runs.sql("select count(*) as n from job_items where status = 'DONE'")[0]["n"]
    expect(dialog.get_by_role("status")).to_contain_text(f"{found} rows would be processed again.")
    dialog.get_by_role("button", name="Back").click()
    table.get_by_label("Choose row 1", exact=True).check()
    reprocesses_one(page)
    expect(table.get_by_role("row").nth(1)).to_contain_text(
        "Waiting", timeout=SLOW_MS
    )  # what is said may be of the row before
    noted = cloud.runs.sql("select data from history where type = 'reprocess'")
    assert [row["data"]["rows"] for row in noted] == [1, 1]
    act(page, "Cancel run")
    expect_state(page, "Canceled", timeout=SLOW_MS)

    # All rows are in the grid, page after page, and what still waits is listed on its own, live.
    table.get_by_role("row").last.scroll_into_view_if_needed()
    expect(table.get_by_role("row").filter(has_text=re.compile("^.?60"))).to_be_visible(timeout=SLOW_MS)
    page.get_by_label("Show").select_option("ERROR")
    expect(page.get_by_text("live: rows move while they are worked on")).to_be_visible()
    page.get_by_label("Show").select_option("SKIPPED")
    expect(table.get_by_role("row")).to_have_count(3)
    tab(page, "Pending")
    expect(page.get_by_text("live: rows leave the list while you look")).to_be_visible()
    expect(pending.get_by_role("row").nth(1)).to_contain_text("Acme")
    goto(page, "work/row_job/pending")
    everybody = page.get_by_role("table", name="Pending rows, oldest change first")
    everybody.get_by_role("link", name="products.csv").first.click()

    # Exported, and read back.
    tab(page, "Exports")
    for button in ("Export CSV", "Export XLSX", "Failed rows as XLSX"):
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("table", name="Exports, newest first").get_by_text("Ready")).to_have_count(
            ("Export CSV", "Export XLSX", "Failed rows as XLSX").index(button) + 1, timeout=SLOW_MS
        )
    keeps_nobody_out(page)
    files: dict[str, bytes] = {}
    for name in ("products-results.csv", "products-results.xlsx", "products-failed.xlsx"):
        with page.expect_download() as given:
            page.get_by_role("button", name=f"Download {name}").click()
        files[name] = given.value.path().read_bytes()
    results = from_csv(files["products-results.csv"])
    assert spelled(results) == spelled(from_calamine(files["products-results.xlsx"]))
    assert len(results) == 231

    # A row that failed is fixed in the grid, another one in a spreadsheet that still has both; they are searched for again.
    tab(page, "Rows")
    page.get_by_label("Show").select_option("SKIPPED")
    fourth = table.get_by_role("row").filter(has=page.get_by_role("cell", name="4", exact=True))
    fourth.get_by_role("button", name="Fix").click()
    expect(dialog.get_by_label("Brand")).to_have_value("Acme")
    dialog.get_by_label("What").fill("Product by hand")
    keeps_nobody_out(page)
    dialog.get_by_role("button", name="Fix").click()
    expect(page.get_by_text("Fixed. The row will be processed again.")).to_be_visible()
    expect(fourth).to_have_count(0)
    tab(page, "Exports")
    header, *failed = from_calamine(files["products-failed.xlsx"])
    assert [row[1] for row in failed[:2]] == ["SKIPPED: The row has neither a title nor a SKU."] * 2
    failed[0][2], failed[1][2] = "Product fixed", "Product too late"
    payload: FilePayload = {
        "name": "fixed.xlsx", "mimeType": "application/octet-stream", "buffer": saved([header, *failed[:2], ["nonsense", "", "x", "", ""]]),
    }  # fmt: skip
    page.get_by_label("Upload fixed rows").set_input_files(payload)
    brought = page.get_by_role("table", name="Files of fixed rows, newest first").get_by_role("row").last
    expect(brought).to_contain_text("The key isn't one of a downloaded row.", timeout=SLOW_MS)
    expect(brought).to_contain_text(re.compile("Row 4: The row (was changed after|is being worked on|didn't fail)"))
    tab(page, "Rows")
    for title in ("Product fixed", "Product by hand"):
        expect(table.get_by_role("row").filter(has_text=title)).to_contain_text("Found", timeout=SLOW_MS)
    expect(table.get_by_text("Product too late")).to_have_count(0)
    act(page, "Cancel run")
    expect_state(page, "Canceled", timeout=SLOW_MS)

    # What waits in the inbox becomes a job of its own, by two scans.
    tenant = people.stranger.tenant_id
    cloud.address.client("s3").put_object(Bucket=bucket, Key=f"inbox/{tenant}/more.csv", Body=products(3).encode())
    (search,) = cloud.runs.sql(
        "select id from connection where tenant_id = :t and provider = 'product_search'", t=tenant
    )
    for _ in range(2):
        found = cloud.wait(cloud.runs.start("row_job", {"scan": "s3", "connection": str(search["id"])}, tenant))
        assert found.run["status"] == "succeeded", found
    goto(page, "work/row_job")
    expect(page.get_by_role("link", name="more.csv")).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("link", name="Scan of the inbox").first.click()
    tab(page, "Rows")
    expect(page.get_by_text("This run looks for files.")).to_be_visible()
