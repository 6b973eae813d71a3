"""Every view for everybody: nothing that keeps people out, in light and dark and on a phone; light to load, and flat to scroll."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from tests.browser import seed
from tests.browser.seed import Seeded
from tests.browser.views import VIEWS, View, ids_of
from tests.support.browser import (
    PHONE,
    Enter,
    Home,
    People,
    Person,
    goto,
    keeps_nobody_out,
    serious_violations,
    settled,
)
from tests.support.scene import Scene

pytestmark = pytest.mark.full

MOST_BYTES = 150_000


@pytest.mark.parametrize("view", [view for view in VIEWS if not view.twin], ids=lambda view: view.name)
def test_a_view_keeps_nobody_out(
    view: View, enter: Enter, people: People, seeded: Seeded, jobs: dict[str, UUID]
) -> None:
    """That nothing is wrong in its console, its requests and with its policy is watched, as in every test."""
    page = enter(getattr(people, view.who), view.at(ids_of(seeded, jobs)))
    expect(page.get_by_role("heading", level=1, name=view.title)).to_be_visible()

    keeps_nobody_out(page)


@pytest.mark.long
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_view_keeps_nobody_out_by_any_rule_in_any_look(
    view: View, enter: Enter, people: People, seeded: Seeded, jobs: dict[str, UUID]
) -> None:
    page = enter(getattr(people, view.who), view.at(ids_of(seeded, jobs)))
    on_a_desk = serious_violations(page)
    page.set_viewport_size(PHONE)

    assert on_a_desk + serious_violations(page) == []


def test_a_dialog_takes_the_keyboard_and_gives_it_back(enter: Enter, people: People, seeded: Seeded) -> None:
    page = enter(people.admin, f"runs/{seeded.running}")
    button = page.get_by_role("button", name="Pause", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Pause run")
    expect(dialog).to_be_visible()
    assert serious_violations(page) == []

    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(button).to_be_focused()


class Transfers:
    """The bytes that came over the network, as the browser's own protocol counts them, headers included."""

    def __init__(self, page: Page) -> None:
        self._bytes = 0
        self._page = page
        self._protocol = page.context.new_cdp_session(page)
        self._protocol.on("Network.loadingFinished", self._finished)
        self._protocol.send("Network.enable")

    def fetched_by(self, visit: Callable[[], object], *, without_cache: bool = False) -> int:
        """Until the view is there."""
        if without_cache:
            self._protocol.send("Network.clearBrowserCache")
        self._bytes = 0
        visit()
        expect(self._page.get_by_role("row").filter(has=self._page.get_by_role("cell")).first).to_be_visible()
        settled(self._page)
        return self._bytes

    def _finished(self, event: dict[str, Any]) -> None:
        self._bytes += int(event["encodedDataLength"])


def test_the_first_view_is_light(page: Page, people: People, seeded: Seeded, home_of: Callable[[Person], Home]) -> None:
    """Of somebody whose browser has seen nothing of it before; and whoever comes again has most of it."""
    page.add_init_script(home_of(people.admin).session)
    transfers = Transfers(page)

    for path in ("overview", "runs"):
        first = transfers.fetched_by(partial(page.goto, path), without_cache=True)
        again = transfers.fetched_by(page.reload)
        assert 10_000 < first < MOST_BYTES
        assert again < first / 2


PAGE_ROWS = 50


@pytest.mark.parametrize(
    ("runs", "screens"),
    [(500, 30), pytest.param(1_000_000, 300, marks=[pytest.mark.long, pytest.mark.timeout(1_200)])],
    ids=["500", "a million"],
)
def test_a_long_list_scrolls_at_a_flat_cost(
    runs: int, screens: int, enter: Enter, people: People, cloud: Scene
) -> None:
    label = f"Archive of {runs}"
    seed.ended_runs(cloud.address.database_url, people.stranger.tenant_id, runs, by=people.stranger.actor, label=label)
    page = enter(people.stranger, f"runs?label={label.replace(' ', '+')}")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "cursor=" in request.url else None)
    body = page.get_by_role("table", name="Runs, newest first")
    expect(body.get_by_text(label).first).to_be_visible()
    most_rows, seen = 0, [len(set(asked))]

    for _ in range(screens):
        page.evaluate(
            "scrollBy(0, 1_400), new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
        )
        expect(page.get_by_text("Loading…")).to_have_count(0)
        most_rows = max(most_rows, page.evaluate("document.querySelectorAll('tbody tr:not([aria-hidden])').length"))
        seen.append(len(set(asked)))

    walked = seen[-1]
    assert walked >= (runs // PAGE_ROWS - 1 if runs == 500 else 100), "it did not scroll"
    assert most_rows <= 6 * PAGE_ROWS, "rows that nobody sees are not drawn"
    assert max(after - before for before, after in pairwise(seen)) <= 2, (
        "a screen asks for a page or two, however far down"
    )
    # And back to the top: what was there is there again.
    page.evaluate("scrollTo(0, 0)")  # a key scrolls by an animation, which a busy machine may not draw
    expect(body.get_by_text(label).first).to_be_in_viewport()


def test_every_view_is_reached_and_left_by_the_keyboard(enter: Enter, people: People, seeded: Seeded) -> None:
    page = enter(people.admin, "overview")
    for key, title in (
        ("r", "Runs"),
        ("1", "Page ingestion"),
        ("l", "Rate limits"),
        ("s", "System"),
        ("o", "Overview"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1, name=title)).to_be_focused()
    goto(page, "runs")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
    page.get_by_role("heading", level=1).focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Shortcuts")).to_be_visible()
    assert serious_violations(page) == []
