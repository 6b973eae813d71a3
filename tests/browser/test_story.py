"""From the alarm to the fix, as a person goes: what the Overview says while upstreams fail, and how many clicks it takes.

Each test has a tenant of its own, so that what the Overview counts is what the test did.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Locator, Page, expect

from infra.local.people import let_in, pool_user
from infra.local.standins.dropbox import APP_KEY, APP_SECRET, REFRESH_TOKEN
from infra.local.standins.nivoda import PASSWORD as NIVODA_PASSWORD
from infra.local.standins.nivoda import USERNAME
from infra.migrations.head import VERSIONS
from shared.kernel.auth import Role
from tests.browser import seed
from tests.browser.seed import Seeded
from tests.support.browser import (
    PASSWORD,
    Enter,
    People,
    Person,
    Watch,
    expect_state,
    goto,
    serious_violations,
    settled,
)
from tests.support.scene import Scene

pytestmark = pytest.mark.full

SLOW_MS = 300_000
MOST_CLICKS = 3


@pytest.fixture
def new_admin(cloud: Scene, request: pytest.FixtureRequest) -> Person:
    """Of a tenant in which nothing has happened yet."""
    tenant = f"Delta {abs(hash(request.node.name)) % 10**8}"
    email = f"dora@{tenant.replace(' ', '-').lower()}.example"
    subject = pool_user(cloud.address.client("cognito-idp"), cloud.address.outputs["UserPoolId"], email, PASSWORD)
    return Person(email, subject, tenant, let_in(cloud.address.database_url, subject, Role.ADMIN, tenant, email))


class Clicks:
    """Counts them. What is typed is no click."""

    def __init__(self) -> None:
        self.count = 0

    def on(self, target: Locator) -> None:
        target.click()
        self.count += 1


CALL = """async ([method, path, body]) => {
    const access = Object.values(sessionStorage).map((kept) => /"access":"([^"]+)"/.exec(kept)?.[1]).find(Boolean);
    const tenant = new URL(location.href).searchParams.get("tenant");
    const headers = { authorization: `Bearer ${access}`, "content-type": "application/json", ...(tenant && { "x-tenant-id": tenant }) };
    const answer = await fetch(new URL(`../api/v1/${path}`, document.baseURI), { method, headers, body: body && JSON.stringify(body) });
    return [answer.status, await answer.json()];
}"""


def call(page: Page, method: str, path: str, body: Any = None) -> Any:
    status, told = page.evaluate(CALL, [method, path, body])
    assert status < 300, told
    return told


def connect(page: Page, provider: str, settings: dict[str, str], secret: dict[str, str]) -> str:
    body = {"provider": provider, "name": "main", "settings": settings, "secret": secret}
    return str(call(page, "POST", "connections", body)["id"])


def ingest(page: Page, label: str, connection: str | None = None, **said: Any) -> UUID:
    body = {"source": "nivoda", "low": 200, "high": 260, "label": label, **said}
    return UUID(
        call(page, "POST", "page-ingestions", {**body, **({"connection": connection} if connection else {})})["id"]
    )


def attention(page: Page, text: str | re.Pattern[str]) -> Locator:
    return page.get_by_role("table", name="What needs attention").get_by_role("row").filter(has_text=text)


def tile(page: Page, name: str) -> Locator:
    return page.locator(".figure").filter(has=page.get_by_text(name, exact=True)).get_by_role("link")


def test_a_wrong_password_is_fixed_and_what_failed_of_it_succeeds(
    enter: Enter, new_admin: Person, cloud: Scene
) -> None:
    page = enter(new_admin)
    expect(page.get_by_text("Nothing is running.")).to_be_visible()
    expect(page.get_by_text("scheduler")).to_have_count(0)  # a tenant, or a cloud, that has just begun is no alarm
    connection = connect(page, "nivoda", {"username": USERNAME}, {"password": "not this one"})
    run_id = ingest(page, "Partner feed", connection)
    assert cloud.wait(run_id).run["status"] == "failed"
    goto(page)
    row = attention(page, "Partner feed").or_(attention(page, "Nivoda"))
    expect(row).to_have_count(1)
    expect(row).to_contain_text("Failed")
    expect(row).not_to_contain_text("could not be divided")  # the root of it, not what it led to
    assert serious_violations(page) == []
    clicks = Clicks()

    clicks.on(row.get_by_role("button", name="Fix connection"))
    dialog = page.get_by_role("dialog", name="Fix connection")
    dialog.get_by_label("Password").fill("nor this")
    dialog.get_by_role("button", name="Save and retry").click()
    expect(dialog.get_by_role("alert")).to_contain_text("still refuses this account")  # and nothing was retried
    assert cloud.runs.progress(run_id).run["epoch"] == 1
    assert serious_violations(page) == []
    dialog.get_by_label("Password").fill(NIVODA_PASSWORD)
    clicks.on(dialog.get_by_role("button", name="Save and retry"))

    expect(page.get_by_text("Connected; retrying.")).to_be_visible()
    assert cloud.wait(run_id).run["status"] == "succeeded"
    expect(row).to_have_count(0)
    assert clicks.count <= MOST_CLICKS


def test_an_upstream_that_answers_503_shows_retrying_and_never_an_eta(
    enter: Enter, new_admin: Person, cloud: Scene
) -> None:
    """After some of it went well, so that there would be something to reckon an ETA from."""
    page = enter(new_admin)
    cloud.begin()
    # The plan and a few pages go well, then nothing does.
    cloud.cloud.nivoda.misbehave("server_error", status=503, on=["page"], after=4)
    run_id = ingest(page, "In an outage", high=2000, page_size=50, partition_records=100)

    def fails(progress: Any) -> bool:
        told = call(page, "GET", f"runs/{run_id}")
        failing = told["progress"]["failing"]
        assert told["eta"] is None or failing == 0, "no ETA while anything fails"
        return bool(failing) and all(lane["attempts"] for lane in cloud.lanes(run_id) if lane["status"] == "active")

    cloud.wait(run_id, until=fails)
    cloud.wait(run_id, until=lambda _: put_off(cloud, run_id))
    goto(page)
    row = attention(page, "In an outage")
    expect(row).to_contain_text("Retrying")
    expect(row).to_contain_text("503")
    expect(page.get_by_text("All is well")).to_have_count(0)
    expect(page.get_by_text(re.compile(r"\bETA\b"))).to_have_count(0)
    tile(page, "retrying").click()
    expect(page.get_by_role("row").filter(has_text="In an outage")).to_contain_text("Retrying")
    expect(page.get_by_text(re.compile(r"\bETA\b"))).to_have_count(0)
    page.get_by_role("link", name="In an outage").click()
    expect_state(page, "Retrying")
    expect(page.get_by_text(re.compile(r"\bETA\b"))).to_have_count(0)

    cloud.cloud.nivoda.behave()
    page.get_by_role("main").get_by_role("button", name="Run now").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Run now").click()
    expect_state(page, "Succeeded", timeout=SLOW_MS)
    page.get_by_role("navigation", name="Run").get_by_role("link", name="Timeline").click()
    lines = page.get_by_role("list", name="Events").get_by_role("listitem")
    expect(lines.filter(has_text="First failure")).to_have_count(1)
    expect(lines.filter(has_text="First failure")).to_contain_text("503")
    expect(lines.filter(has_text="Recovered")).to_have_count(1)
    expect(lines.filter(has_text="Audit")).not_to_have_count(0)  # phases have names


def test_a_closed_gate_with_twelve_waiting_lanes_is_one_line_and_one_action(
    enter: Enter, people: People, seeded: Seeded
) -> None:
    page = enter(people.admin)
    expect(attention(page, "Throttled")).to_have_count(1)
    expect(attention(page, "Throttled").get_by_role("button")).to_have_count(1)
    attention(page, "Throttled").get_by_role("link").click()
    lanes = page.get_by_role("table", name="Lanes with their latest steps")
    line = lanes.get_by_role("row").filter(has=page.locator(".status-throttled"))
    expect(line).to_have_count(1)
    expect(line).to_contain_text("12 lanes")
    expect(line.get_by_role("button", name="Open rate limit")).to_have_count(1)
    expect(lanes.get_by_role("button", name="Run now")).to_have_count(0)
    line.get_by_role("button", name="12 lanes").click()
    expect(line).to_have_count(13)
    assert serious_violations(page) == []


def test_a_run_is_found_by_part_of_its_label_with_the_keyboard_alone(
    enter: Enter, people: People, seeded: Seeded
) -> None:
    page = enter(people.admin, "rate-limits")
    page.keyboard.press("Control+k")
    box = page.get_by_role("combobox", name="Search runs, pages and actions")
    expect(box).to_be_focused()
    page.keyboard.type("LAB GROWN, first")
    expect(page.get_by_role("option", name=re.compile("Lab grown, first pass"))).to_be_visible()
    assert serious_violations(page) == []
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Lab grown, first pass")).to_be_focused()
    expect(box).to_have_count(0)

    # And in a list: through its rows, and into one of them.
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type("backfill")
    rows = page.get_by_role("table", name="Runs, newest first").get_by_role("row").filter(has=page.get_by_role("cell"))
    expect(rows.filter(has_text="Backfill 2024")).to_have_count(1)
    expect(rows).to_have_count(1)
    page.get_by_role("heading", level=1).focus()
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="Backfill 2024")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Backfill 2024")).to_be_visible()
    # A whole row opens what it shows, and times are in the reader's zone or in UTC.
    goto(page, "runs?q=backfill")
    rows.first.get_by_text("The run is paused.").click()
    expect_state(page, "Paused")
    page.get_by_role("button", name="UTC").click()
    settled(page)
    assert "UTC" in (page.locator("main time").first.get_attribute("title") or "")
    page.get_by_role("button", name="UTC").click()


# --- every reason to wait


def why_codes() -> set[str]:
    """Those that the database gives, from the newest statement that says why."""
    told = [path.read_text().partition("function why(asked uuid)")[2] for path in sorted(VERSIONS.glob("[0-9]*_*.py"))]
    newest = [text for text in told if "at_work" in text][-1]
    return set(re.findall(r"select \d, '(\w+)'", newest.partition('"""')[0]))


LATER = "next_due_at = now() + interval '1 hour'"
# By code: what makes a run wait for it, what the Overview says, the button that frees it, and how to see that it did.
WAITS: dict[str, tuple[str, str, str, str]] = {
    "unsent": ("next_due_at = now(), sent_at = null", "isn't sent yet", "Run now", "select resend_no > 0 as done from lane where run_id = :id"),  # before it is overdue
    "paused": ("", "The run is paused.", "Resume", "select paused_at is null as done from run where id = :id"),
    "gate": (f"{LATER}, waits_for = 'gate:lab'", "Rate-limited by lab", "Open rate limit", "select next_due_at <= now() as done from lane where run_id = :id"),
    "retrying": (f"{LATER}, attempts = 2, last_error = '{{\"code\": \"x\", \"message\": \"It broke.\"}}'", "It broke.", "Run now", "select next_due_at <= now() as done from lane where run_id = :id"),
    "due_later": (f"{LATER}, waits_for = 'a reply'", "Waiting for a reply.", "Run now", "select next_due_at <= now() as done from lane where run_id = :id"),
}  # fmt: skip
# Not for a button: one is at work, one has ended (a run that failed is retried: see the story), two are the queue of jobs, below.
ELSEWHERE = {"at_work", "ended", "queued", "inactive"}


def test_every_reason_to_wait_is_seen_at_once_and_freed_within_three_clicks(
    enter: Enter, new_admin: Person, cloud: Scene
) -> None:
    assert {*WAITS, *ELSEWHERE} == why_codes()
    page = enter(new_admin)
    url, actor = cloud.address.database_url, new_admin.actor
    cloud.runs.sql(
        "insert into gate (tenant_id, key, state, until) values (:t, 'lab', 'closed', now() + interval '2 hours')",
        t=new_admin.tenant_id,
    )
    runs: dict[str, UUID] = {}
    for code, (lane, *_) in WAITS.items():
        (runs[code],) = seed.waiting_runs(url, new_admin.tenant_id, 1, label=f"Waits: {code}", by=actor)
        if lane:
            cloud.runs.sql("update lane set waits_for = null where run_id = :id", id=runs[code])
            cloud.runs.sql(f"update lane set {lane} where run_id = :id", id=runs[code])
        else:
            cloud.runs.sql("update run set paused_at = now() where id = :id", id=runs[code])
        cloud.runs.sql("update run set status = 'running', started_at = now() where id = :id", id=runs[code])
    for code, (_, says, button, freed) in WAITS.items():
        goto(page)  # a line that leaves the list moves what is clicked from under the pointer
        run_id, clicks = runs[code], Clicks()
        row = page.get_by_role("row").filter(has_text=f"Waits: {code}")
        expect(row).to_contain_text(says)  # the cause: no click at all

        clicks.on(row.get_by_role("button", name=button))
        dialog = page.get_by_role("dialog")
        dialog.get_by_label(re.compile("^Reason")).fill("a test")
        clicks.on(dialog.get_by_role("button").last)

        expect(dialog).to_have_count(0)
        told = cloud.runs.sql(freed, id=run_id)
        assert any(row["done"] for row in told) or len(told) > 1, code  # a lane that was taken at once has made others
        assert clicks.count <= MOST_CLICKS
        cloud.runs.sql("delete from lane where run_id = :id", id=run_id)  # or somebody would go on with it
        cloud.runs.sql(
            "update run set status = 'canceled', finished_at = now(), paused_at = null where id = :id", id=run_id
        )


def test_a_dialog_stays_when_its_line_leaves_the_list(
    enter: Enter, new_admin: Person, cloud: Scene, watch: Watch
) -> None:
    watch.expects(409, "/wake")
    page = enter(new_admin)
    url, actor = cloud.address.database_url, new_admin.actor
    (run_id,) = seed.waiting_runs(url, new_admin.tenant_id, 1, label="Waits and then not", by=actor)
    cloud.runs.sql("update run set status = 'running', started_at = now() where id = :id", id=run_id)
    goto(page)
    row = page.get_by_role("row").filter(has_text="Waits and then not")
    row.get_by_role("button", name="Run now").click()
    dialog = page.get_by_role("dialog", name="Run now: Waits and then not")
    dialog.get_by_label(re.compile("^Reason")).fill("half a rea")

    cloud.runs.sql("delete from lane where run_id = :id", id=run_id)
    cloud.runs.sql("update run set status = 'canceled', finished_at = now() where id = :id", id=run_id)
    expect(page.locator("main").get_by_text("Waits and then not")).to_have_count(
        0, timeout=SLOW_MS
    )  # it was read again
    expect(dialog.get_by_label(re.compile("^Reason"))).to_have_value("half a rea")
    dialog.get_by_role("button", name="Run now").click()
    expect(dialog.get_by_role("alert")).to_be_visible()  # the API says why not
    dialog.get_by_role("button", name="Back").click()
    expect(dialog).to_have_count(0)

    # But not another page.
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_role("button", name="Bulk actions").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_jobs_that_wait_lead_to_their_queue_and_to_what_is_inactive(
    enter: Enter, people: People, cloud: Scene, jobs: dict[str, UUID]
) -> None:
    page = enter(people.foreman)
    row = page.get_by_role("table", name="Open runs by what they wait for").get_by_role("row")
    expect(row.filter(has_text="Waiting for a worker in the queue gpu.")).to_have_count(1)
    row.filter(has_text="Waiting for a worker").get_by_role("link", name="Show queue").click()
    expect(page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()

    there = f"overview?tenant={people.foreman.tenant_id}"
    page = enter(people.super_admin, there, alone=True)
    row = page.get_by_role("table", name="Open runs by what they wait for").get_by_role("row")
    known = call(page, "GET", "admin/jobs/definitions")["definitions"]
    path = next(f"admin/jobs/definitions/{each['id']}" for each in known if each["key"] == "train-keyword-models")
    call(page, "PATCH", path, {"is_active": False})
    try:
        goto(page, there)
        expect(row.filter(has_text="its definition is inactive")).to_have_count(1)  # the cause: no click at all
        clicks = Clicks()
        clicks.on(row.filter(has_text="its definition is inactive").get_by_role("link", name="Definitions"))
        expect(page.get_by_role("heading", level=1, name="Job definitions")).to_be_visible()
        line = page.get_by_role("row").filter(has_text="train-keyword-models")
        clicks.on(line.get_by_role("button", name="Activate"))
        clicks.on(page.get_by_role("dialog").get_by_role("button", name="Activate"))
        expect(line.get_by_role("button", name="Deactivate")).to_be_visible()
        assert clicks.count <= MOST_CLICKS
    finally:
        call(page, "PATCH", path, {"is_active": True})


# --- the whole story


def test_an_incident_over_several_kinds_from_the_alarm_to_the_audit(
    enter: Enter, new_admin: Person, cloud: Scene
) -> None:
    page = enter(new_admin)
    cloud.begin()
    nivoda, dropbox = cloud.cloud.nivoda, cloud.cloud.standins["dropbox"]
    connection = connect(
        page, "dropbox", {"app_key": APP_KEY}, {"app_secret": APP_SECRET, "refresh_token": REFRESH_TOKEN}
    )

    # An upstream refuses, throttles, and another one answers 500.
    nivoda.misbehave("errors", message="Cannot query field 'lab_grown'", code="GRAPHQL_VALIDATION_FAILED", on=["count"])
    failed = [ingest(page, f"Nightly {n}") for n in range(7)]
    for run_id in failed:
        assert cloud.wait(run_id).run["status"] == "failed"
    nivoda.behave()
    nivoda.misbehave("throttle", retry_after="600", on=["page"])
    throttled = ingest(page, "Lab grown")
    dropbox.misbehave("server_error", status=500)
    retrying = UUID(
        call(page, "POST", "runs", {"kind": "folder_sync", "params": {"connection": connection}, "label": "Photos"})[
            "id"
        ]
    )
    in_state(page, cloud, throttled, "throttled")
    in_state(page, cloud, retrying, "retrying")
    cloud.wait(retrying, until=lambda _: put_off(cloud, retrying))

    # The Overview shows it, each by its cause.
    goto(page)
    expect(page.get_by_text("1 run retrying, 1 run throttled, 7 runs failed in the last 24 hours.")).to_be_visible()
    refused = attention(page, "lab_grown")
    expect(refused).to_have_count(1)
    expect(refused.get_by_role("cell").nth(2)).to_have_text("7")
    expect(attention(page, "Photos")).to_contain_text("500")
    assert serious_violations(page) == []

    # The cause is found: one of them in full, over time.
    refused.get_by_role("link").click()
    cause = page.locator(".wanted")
    expect(cause).to_contain_text("lab_grown")
    expect(cause.get_by_role("img", name=re.compile(r"Failed runs per 6 hours.* 7$"))).to_be_visible()
    expect(cause.get_by_role("link", name="Nightly")).to_be_visible()
    expect(cause).to_contain_text('"high": 260')
    assert serious_violations(page) == []

    # The upstreams are well again. The rate limit is opened.
    nivoda.behave()
    dropbox.behave()
    goto(page)
    act_in(page, attention(page, "Lab grown"), "Open rate limit", "Nivoda says that it is over")
    expect(page.get_by_text(re.compile(r"Opened; \d+ lanes? continued\."))).to_be_visible()
    act_in(page, attention(page, "Photos"), "Run now", "Dropbox is back")

    # What failed is retried in bulk: counted, tried on five, then the rest.
    goto(page, "failures")
    page.locator(".causes tbody").filter(has_text="lab_grown").get_by_role("button", name="Retry").click()
    dialog = page.get_by_role("dialog", name="Retry failed runs")
    expect(dialog.get_by_role("status")).to_contain_text("7 runs")
    dialog.get_by_label("Reason").fill("the query is right again")
    assert serious_violations(page) == []
    dialog.get_by_role("button", name="Try 5 first").click()
    expect(dialog.get_by_role("status")).to_contain_text("5 succeeded, 0 failed again", timeout=SLOW_MS)
    dialog.get_by_role("button", name="Retry the other 2 runs").click()
    expect(page.get_by_text("Retry: 2 runs done.")).to_be_visible()

    # All ends right.
    for run_id in (*failed, throttled, retrying):
        assert cloud.wait(run_id).run["status"] == "succeeded"
    goto(page)
    expect(page.get_by_role("table", name="What needs attention")).to_have_count(0)
    expect(page.get_by_text("Nothing is running.")).to_be_visible()
    expect(tile(page, "Failed in 24 h")).to_have_text("0")

    # And the audit tells who did what, and why.
    goto(page, "audit-log")
    lines = page.get_by_role("row")
    for action, why, times in (
        ("gate.open", "Nivoda says that it is over", 1),
        ("run.wake", "Dropbox is back", 1),
        ("run.retry", "the query is right again", 7),
    ):
        expect(lines.filter(has_text=action).filter(has_text=why).filter(has_text=new_admin.email)).to_have_count(times)


def act_in(page: Page, row: Locator, name: str, reason: str) -> None:
    row.get_by_role("button", name=name).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("^Reason")).fill(reason)
    dialog.get_by_role("button").last.click()
    expect(dialog).to_have_count(0)


def put_off(cloud: Scene, run_id: UUID) -> bool:
    """Its next attempts come when somebody asks for them, not in the middle of a click."""
    later = "update lane set next_due_at = now() + interval '1 hour' where run_id = :id and attempts > 0 and claim_token is null returning id"
    soon = (
        "select id from lane where run_id = :id and status = 'active' and next_due_at < now() + interval '30 minutes'"
    )
    return bool(cloud.runs.sql(later, id=run_id)) and not cloud.runs.sql(soon, id=run_id)


def in_state(page: Page, cloud: Scene, run_id: UUID, state: str) -> None:
    said: Callable[[Any], bool] = lambda _: call(page, "GET", f"runs/{run_id}")["state"] == state  # noqa: E731
    cloud.wait(run_id, until=said)
