"""Who signs in, what each role is offered, and how a visit ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser import seed
from tests.support.browser import (
    ELSEWHERE,
    TENANT,
    Enter,
    People,
    Watch,
    fill_in,
    goto,
    log_in,
    serious_violations,
    settled,
)
from tests.support.scene import Scene

pytestmark = pytest.mark.full

KINDS = ["Page ingestion", "Remote query", "Job", "Search cycle", "Row job", "Folder sync"]
USED = "Page ingestion"  # by this tenant; the other kinds are in the menu New alone
EVERYBODY = ["Overview", "Runs", "Failures", USED, "Connections", "Rate limits"]
ADMINS = [*EVERYBODY, "Members", "Tokens", "Audit log", "System"]
GROUPS = ["Monitor", "Work", "Resources", "Settings"]


@pytest.mark.parametrize(
    ("who", "role", "offered"),
    [
        ("viewer", "viewer", EVERYBODY),
        ("member", "member", EVERYBODY),
        ("admin", "admin", ADMINS),
        ("super_admin", "super admin", ADMINS),
    ],
)
def test_each_role_enters_and_is_offered_what_it_may_see(
    enter: Enter, people: People, seeded: seed.Seeded, who: str, role: str, offered: list[str]
) -> None:
    person = getattr(people, who)
    page = enter(person)

    expect(page.get_by_text(f"{person.email}, {role}")).to_be_visible()
    views = page.get_by_role("navigation", name="Main")
    expect(views.get_by_role("listitem").filter(has_text=USED)).to_have_count(1)
    shown = views.get_by_role("listitem").all_inner_texts()
    assert [each for each in shown if each not in KINDS or each == USED] == offered
    assert "Folder sync" not in shown
    lists = [views.get_by_role("list", name=name) for name in GROUPS]
    assert [each.count() for each in lists] == [1, 1, 1, 1 if offered == ADMINS else 0]
    new = page.get_by_role("button", name="New", exact=True)
    expect(new).to_have_count(0 if role == "viewer" else 1)
    if role != "viewer":
        assert page.locator("#new-menu a").all_text_contents() == KINDS


def test_every_view_is_a_click_away(enter: Enter, people: People, seeded: seed.Seeded) -> None:
    page = enter(people.admin)
    links = page.get_by_role("navigation", name="Main")
    for name in [*ADMINS[1:], ADMINS[0]]:
        links.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1, name=name)).to_be_focused()
    settled(page)


def test_what_is_not_for_a_role_is_not_there_for_it(enter: Enter, people: People) -> None:
    page = enter(people.viewer, "members")

    expect(page.get_by_role("heading", level=1, name="Page not found")).to_be_visible()


def test_a_link_leads_through_the_login_to_its_view(page: Page, people: People, watch: Watch) -> None:
    watch.expects(400, "127.0.0.1")
    page.goto("runs?status=failed")
    fill_in(page, people.viewer, "Wrong-horse-12")
    expect(page.get_by_role("alert")).to_contain_text("Incorrect username or password")
    assert serious_violations(page) == []

    log_in(page, people.viewer)

    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    expect(page.get_by_label("Status")).to_have_value("failed")


def test_a_session_is_kept_lent_to_new_tabs_and_ends_in_all(
    page: Page, people: People, watched: Callable[[Page], Page]
) -> None:
    page.goto("overview")
    log_in(page, people.admin)
    page.reload()
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()

    second = watched(page.context.new_page())
    second.goto("rate-limits")
    expect(second.get_by_role("heading", level=1, name="Rate limits")).to_be_visible()

    second.get_by_role("button", name="Log out").click()
    for tab in (second, page):
        expect(tab.get_by_label("Password")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Password")).to_be_visible()


def test_an_access_token_that_has_run_out_is_renewed_unseen(enter: Enter, people: People, watch: Watch) -> None:
    watch.expects(401, "/api/v1/")
    page = enter(people.admin)
    page.evaluate(SPOIL_THE_ACCESS_TOKEN)

    page.reload()

    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()


# Whatever the console keeps: its access token is the one with three parts.
SPOIL_THE_ACCESS_TOKEN = """
for (const [name, kept] of Object.entries(sessionStorage))
    sessionStorage.setItem(name, kept.replace(/("access":"[^".]*[.][^".]*[.])[^"]*"/, '$1spoiled"'));
"""


def test_a_super_admin_looks_into_one_tenant_at_a_time(enter: Enter, people: People, cloud: Scene) -> None:
    url, stranger = cloud.address.database_url, people.stranger
    seed.waiting_runs(url, stranger.tenant_id, 1, label="Theirs alone", by=stranger.actor)
    seed.waiting_runs(url, people.admin.tenant_id, 1, label="Ours alone", by=people.admin.actor)
    page = enter(people.super_admin, f"runs?tenant={people.admin.tenant_id}")
    expect(page.get_by_role("link", name="Ours alone")).to_be_visible()
    for tenant in (TENANT, ELSEWHERE):  # and those that other tests have made
        expect(page.get_by_label("Tenant").get_by_role("option", name=tenant, exact=True)).to_have_count(1)

    page.get_by_label("Tenant").select_option(ELSEWHERE)

    expect(page.get_by_role("link", name="Theirs alone")).to_be_visible()
    expect(page.get_by_role("link", name="Ours alone")).to_have_count(0)
    page.reload()  # the address says which tenant it is
    expect(page.get_by_role("link", name="Theirs alone")).to_be_visible()
    goto(page, f"runs?tenant={people.admin.tenant_id}")
    expect(page.get_by_role("link", name="Theirs alone")).to_have_count(0)


REACHES = """async () => {
    const told = [];
    try {
        sessionStorage.getItem("baton.session");
        told.push("storage");
    } catch { /* an origin of its own has none */ }
    try {
        const tabs = new BroadcastChannel("baton.session");
        tabs.onmessage = ({ data }) => told.push(`channel: ${data.type}`);
        tabs.postMessage({ type: "wanted" });
        tabs.postMessage({ type: "ended" });
        await new Promise((done) => setTimeout(done, 500));
    } catch { /* nor channels */ }
    try {
        await fetch("/api/v1/me");
        told.push("request");
    } catch { /* nor anybody to ask */ }
    return told;
}"""


def test_the_documentation_cannot_reach_the_session_of_the_console(enter: Enter, people: People) -> None:
    console = enter(people.admin)
    docs = console.context.new_page()
    docs.goto(console.url.split("/console/")[0] + "/docs")
    expect(docs.get_by_text("/api/v1/runs").first).to_be_visible()  # and is still there to be read

    assert docs.evaluate(REACHES) == []
    docs.close()
    console.reload()
    expect(console.get_by_text(f"{people.admin.email}, admin")).to_be_visible()  # nor was anybody logged out


def test_nobody_is_moved_into_a_tenant_before_they_accept(enter: Enter, people: People, cloud: Scene) -> None:
    cloud.runs.sql(
        """insert into member (tenant_id, subject, role, added_by, accepted_at) values (:t, :s, 'viewer', 'user:x', null)
           returning 1""",
        t=people.admin.tenant_id, s=people.stranger.subject,
    )  # fmt: skip
    page = enter(people.stranger)
    invitations = page.get_by_role("region", name="Invitations")

    expect(invitations).to_contain_text(f"{people.admin.tenant} invites you as viewer.")
    expect(page.get_by_label("Tenant")).to_have_count(0)
    assert serious_violations(page) == []
    invitations.get_by_role("button", name="Decline").click()

    expect(invitations).to_have_count(0)
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
