"""Guards that the console is tested as people meet it: Chromium, the deployed template, one user of every role."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser, Page

from infra.local.deploy import ROOT
from tests.browser import seed
from tests.browser.chromium import NONE_TO_BE_HAD, NoChromium, browser, find, this_machine
from tests.support.browser import PATIENCE_MS, People, Person, Watch, console_url, log_in, make_people, settled
from tests.support.scene import Scene, local_cloud

FAILED = ROOT / ".local" / "browser"
OUTCOME = pytest.StashKey[pytest.TestReport]()


class Enter(Protocol):
    """`enter(people.admin, "runs")`: a page of that person's own, logged in, at that view."""

    def __call__(self, person: Person, view: str = "now", **how: Any) -> Page: ...


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
    return seed.every_state(cloud.address.database_url, people.admin.tenant_id, actors)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def open_page(
    chromium: Browser, cloud: Scene, people: People, watch: Watch, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Page]]:
    """A page of a visitor whom nobody knows yet. At the end of the test none may have complained."""
    pages: list[Page] = []

    def opened(**how: Any) -> Page:
        page = chromium.new_context(base_url=console_url(cloud.address), **how).new_page()
        page.set_default_timeout(PATIENCE_MS)
        watch.follow(page)
        pages.append(page)
        return page

    yield opened
    failed = request.node.stash.get(OUTCOME, None)
    for number, page in enumerate(pages):
        if failed is not None and failed.failed:
            name = re.sub(r"[^\w-]+", "_", request.node.name)
            page.screenshot(path=FAILED / f"{name}-{number}.png")
        page.context.close()
    assert watch.complaints == []


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    return open_page()


@pytest.fixture
def enter(open_page: Callable[..., Page]) -> Enter:
    def entered(person: Person, view: str = "now", **how: Any) -> Page:
        page = open_page(**how)
        page.goto(view)
        log_in(page, person)
        settled(page)
        return page

    return entered


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[OUTCOME] = report
    return report
