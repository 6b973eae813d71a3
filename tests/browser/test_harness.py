"""The watch over pages: whatever a page does wrong is told, and a page that does nothing wrong is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.support.browser import Watch, serious_violations

pytestmark = pytest.mark.full

HERE = "http://a.localhost/"
POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; require-trusted-types-for 'script'"
FRAME = "<!doctype html><html lang=en><head><title>t</title></head><body><main><h1>Here</h1>{}</main></body></html>"


class Site:
    """A page of our own, answered by the test itself: nothing leaves the browser."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.watch = Watch()
        self.script = self.body = ""
        self.watch.follow(page)
        self.page.route("**/*", self._answer)

    def show(self, body: str = "", script: str = "") -> list[str]:
        self.body, self.script = body, script
        self.page.goto(HERE)
        self.page.evaluate(
            "fetch('last').then(() => new Promise(requestAnimationFrame))"
        )  # all before it has been told
        return self.watch.complaints

    def _answer(self, route: Route) -> None:
        match route.request.url.removeprefix(HERE):
            case "":
                tag = '<script src="app.js"></script>' if self.script else ""
                headers = {"content-security-policy": POLICY}
                route.fulfill(body=FRAME.format(self.body) + tag, content_type="text/html", headers=headers)
            case "app.js":
                route.fulfill(body=self.script, content_type="text/javascript")
            case "gone":
                route.abort("connectionrefused")
            case path if path.isdigit():
                route.fulfill(status=int(path), body="{}")
            case _:
                route.fulfill(status=204)


@pytest.fixture(scope="module")
def the_site(chromium: Browser) -> Iterator[Site]:
    site = Site(chromium.new_context().new_page())
    yield site
    site.page.context.close()


@pytest.fixture
def site(the_site: Site) -> Site:
    the_site.page.goto("about:blank")
    the_site.watch.complaints.clear()
    return the_site


def test_a_good_page_is_not_complained_of(site: Site) -> None:
    assert site.show("<p>All is well.</p>", "fetch('200'); console.log('hello')") == []


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("console.error('oh no')", "console error: oh no"),
        ("throw new Error('nobody caught me')", "uncaught: nobody caught me"),
        ("Promise.reject(new Error('nobody caught me'))", "uncaught: nobody caught me"),
        ("fetch('500')", "http://a.localhost/500: 500"),
        ("fetch('gone').catch(() => 0)", "http://a.localhost/gone: net::ERR_CONNECTION_REFUSED"),
        ("fetch('https://elsewhere.example/').catch(() => 0)", "connect-src blocked https://elsewhere.example/"),
        ("document.body.innerHTML = '<b>'", "require-trusted-types-for"),
    ],
)
def test_what_a_page_does_wrong_is_told(site: Site, script: str, complaint: str) -> None:
    complaints = site.show(script=script)

    assert any(complaint in each for each in complaints), complaints


def test_an_inline_style_is_told(site: Site) -> None:
    assert any("style-src-attr blocked inline" in each for each in site.show('<p style="color: red">red</p>'))


def test_what_a_test_provokes_is_no_complaint(site: Site) -> None:
    site.watch.expects(403, "/403")
    assert site.show(script="fetch('403')") == []
    assert site.show(script="fetch('404')") != []


def test_what_keeps_people_out_is_found(site: Site) -> None:
    site.show("<button></button>")
    assert any(found.startswith("button-name (critical)") for found in serious_violations(site.page))
    site.show("<button>Go</button>")
    assert serious_violations(site.page) == []
