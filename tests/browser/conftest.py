"""Guards that the console is tested as people meet it: Chromium, the deployed template, one user of every role."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Generator, Iterator
from functools import cache
from uuid import UUID

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from infra.local.deploy import ROOT
from tests.browser import seed, seed_jobs
from tests.browser.chromium import NONE_TO_BE_HAD, NoChromium, browser, find, this_machine
from tests.support.browser import (
    DESK,
    HIDE,
    PATIENCE_MS,
    Enter,
    Home,
    People,
    Person,
    Watch,
    console_url,
    log_in,
    make_people,
    settled,
)
from tests.support.scene import Scene, local_cloud

FAILED = ROOT / ".local" / "browser"
expect.set_options(timeout=PATIENCE_MS)
COLD_MS = 3 * PATIENCE_MS  # a first page starts several copies of the function, on a machine that may be busy
OUTCOME = pytest.StashKey[pytest.TestReport]()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    try:
        path = find(this_machine())
    except NoChromium as wrong:
        pytest.fail(str(wrong), pytrace=False)
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail(NONE_TO_BE_HAD, pytrace=False)
        pytest.skip(NONE_TO_BE_HAD)
    with browser(path) as running:
        yield running


@pytest.fixture(scope="session")
def cloud(chromium: Browser) -> Iterator[Scene]:
    """Asked for after a browser was found: without one nothing is started."""
    with local_cloud(stones=1_500) as scene:
        yield scene


@pytest.fixture(scope="session")
def people(cloud: Scene) -> People:
    return make_people(cloud.address)


@pytest.fixture(scope="session")
def seeded(cloud: Scene, people: People) -> seed.Seeded:
    """The tenant's runs in every state."""
    actors = [people.admin.actor, people.member.actor, people.other.actor]
    return seed.every_state(cloud.address.database_url, people.admin.tenant_id, actors, ended=6)


@pytest.fixture(scope="session")
def jobs(cloud: Scene, people: People) -> dict[str, UUID]:
    """A tenant's jobs of every sort, by name."""
    works = people.foreman
    return seed_jobs.every_job(cloud.address.database_url, works.tenant_id, works.actor, people.super_admin.subject)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def watched(watch: Watch, request: pytest.FixtureRequest) -> Iterator[Callable[[Page], Page]]:
    """Pages that a test uses: at its end none may have complained. A test that fails leaves pictures of them."""
    pages: list[Page] = []

    def follow(page: Page) -> Page:
        if page not in pages:
            watch.follow(page)
            pages.append(page)
        return page

    yield follow
    report = request.node.stash.get(OUTCOME, None)
    for number, page in enumerate(pages):
        if report is not None and report.failed:
            name = re.sub(r"[^\w-]+", "_", request.node.name)
            page.screenshot(path=FAILED / f"{name}-{number}.png")
        watch.leave(page)
        page.evaluate(HIDE, True)  # a tab that stays open asks for nothing meanwhile
    assert watch.complaints == []


@pytest.fixture
def open_page(chromium: Browser, cloud: Scene, people: People) -> Iterator[Callable[[], Page]]:
    """A page in a browser of its own, which knows nothing yet."""
    contexts: list[BrowserContext] = []

    def opened() -> Page:
        contexts.append(chromium.new_context(base_url=console_url(cloud.address)))
        contexts[-1].set_default_navigation_timeout(COLD_MS)
        return contexts[-1].new_page()

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def page(open_page: Callable[[], Page], watched: Callable[[Page], Page]) -> Page:
    return watched(open_page())


@pytest.fixture(scope="session")
def home_of(chromium: Browser, cloud: Scene) -> Callable[[Person], Home]:
    @cache
    def begun(person: Person) -> Home:
        page, watch = chromium.new_context(base_url=console_url(cloud.address)).new_page(), Watch()
        page.set_default_navigation_timeout(COLD_MS)
        watch.follow(page)
        page.goto("overview")
        log_in(page, person)
        watch.leave(page)
        assert watch.complaints == []
        kept = page.evaluate("JSON.stringify(Object.entries(sessionStorage))")
        session = (
            f"if (sessionStorage.length === 0) for (const [name, kept] of {kept}) sessionStorage.setItem(name, kept)"
        )
        return Home(page, session)

    return begun


@pytest.fixture
def enter(open_page: Callable[[], Page], watched: Callable[[Page], Page], home_of: Callable[[Person], Home]) -> Enter:
    def entered(person: Person, view: str = "overview", *, alone: bool = False) -> Page:
        home = home_of(person)
        page = watched(open_page() if alone else home.page)
        if alone:
            page.add_init_script(home.session)
        else:
            page.evaluate("localStorage.removeItem('baton.tenant')")  # which another test may have looked into
        page.set_viewport_size(DESK)
        page.emulate_media(color_scheme="light")
        page.goto(view)
        expect(page.get_by_role("navigation", name="Main")).to_be_visible()
        settled(page)
        return page

    return entered


@pytest.fixture
def pages(cloud: Scene) -> Iterator[threading.Event]:
    """While it is not set, steps wait for the page they asked for: nobody has to be quicker than a run."""
    released = threading.Event()

    def wait() -> None:
        assert released.wait(300), "nobody let the pages go"

    cloud.at_every_page(wait)
    yield released
    released.set()
    cloud.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[OUTCOME] = report
    if report.skipped and NONE_TO_BE_HAD in str(report.longrepr):
        report.longrepr = (__file__, 1, NONE_TO_BE_HAD)  # of one place, so that all of them are told in one line
    return report
