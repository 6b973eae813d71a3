"""The console as people use it: who they are, how they sign in, and what a page must never do while they look at it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit
from uuid import UUID
from weakref import WeakSet

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import ConsoleMessage, Error, Page, Request, Response, ViewportSize, expect

from infra.local.cloud import Address
from infra.local.people import let_in, pool_user
from shared.kernel.auth import Role

PASSWORD = "Correct-horse-12"
TENANT, ELSEWHERE, WORKS, SHOP = "Aurora Gems", "Borealis Stones", "Cirrus Works", "Dune Shop"
PATIENCE_MS = 120_000
DESK: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}


def console_url(address: Address) -> str:
    """Where the local cloud serves the console. Names below `localhost` need no DNS in a browser."""
    port = urlsplit(address.endpoint).port
    return f"http://{address.outputs['ApiId']}.execute-api.localhost:{port}/console/"


@dataclass(frozen=True, slots=True)
class Person:
    email: str
    subject: str
    tenant: str
    tenant_id: UUID

    @property
    def actor(self) -> str:
        return f"user:{self.subject}"


@dataclass(frozen=True, slots=True)
class People:
    """One of each role, and a second member; `stranger` is the admin of another tenant, `foreman` of one that has jobs, `shopper` of
    one that pictures are taken of."""

    viewer: Person
    member: Person
    other: Person
    admin: Person
    super_admin: Person
    stranger: Person
    foreman: Person
    shopper: Person


def make_people(address: Address) -> People:
    def person(name: str, role: Role, tenant: str = TENANT, *, is_super: bool = False) -> Person:
        email = f"{name}@{tenant.split(maxsplit=1)[0].lower()}.example"
        subject = pool_user(address.client("cognito-idp"), address.outputs["UserPoolId"], email, PASSWORD)
        tenant_id = let_in(address.database_url, subject, role, tenant, email, is_super=is_super)
        return Person(email, subject, tenant, tenant_id)

    return People(
        viewer=person("vera", Role.VIEWER),
        member=person("max", Role.MEMBER),
        other=person("mia", Role.MEMBER),
        admin=person("ada", Role.ADMIN),
        stranger=person("stan", Role.ADMIN, ELSEWHERE),
        foreman=person("fay", Role.ADMIN, WORKS),
        super_admin=person("sue", Role.ADMIN, is_super=True),
        shopper=person("sam", Role.ADMIN, SHOP, is_super=True),
    )


# What a browser says of a tab that is behind another one.
HIDE = """(hidden) => {
    Object.defineProperty(document, "visibilityState", { value: hidden ? "hidden" : "visible", configurable: true });
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


ECHOES_OF_A_CUT = frozenset({"net::ERR_INTERNET_DISCONNECTED", "net::ERR_NETWORK_CHANGED"})


class Watch:
    """Everything that is wrong with a page while somebody uses it. What a test provokes it announces first."""

    # Chromium tells what its policy blocked only in the console, and not always: the event is always there.
    TELL_VIOLATIONS = """
        document.addEventListener("securitypolicyviolation", (event) =>
            console.error(`CSP: ${event.effectiveDirective} blocked ${event.blockedURI} ${event.sample}`));
    """

    _told: ClassVar[WeakSet[Page]] = WeakSet()

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._expected: list[tuple[int, str]] = []
        self._was_cut = False

    def follow(self, page: Page) -> None:
        if page not in self._told:
            page.add_init_script(self.TELL_VIOLATIONS)
            self._told.add(page)
        for event, listener in self._listeners():
            page.on(event, listener)

    def leave(self, page: Page) -> None:
        """Somebody else looks at this page from now on."""
        for event, listener in self._listeners():
            page.remove_listener(event, listener)

    def _listeners(self) -> list[tuple[Any, Any]]:
        return [
            ("console", self._console), ("pageerror", self._page_error),
            ("requestfailed", self._request_failed), ("response", self._response),
        ]  # fmt: skip

    def expects(self, status: int, path: str) -> None:
        """Answers of this status at paths with this in them are what the test is about."""
        self._expected.append((status, path))

    @contextmanager
    def network_cut(self, page: Page) -> Iterator[None]:
        self._was_cut = True
        page.context.set_offline(True)
        try:
            yield
        finally:
            page.context.set_offline(False)

    def _console(self, message: ConsoleMessage) -> None:
        # Answers and failures are judged by themselves, below, where it is known what they are.
        if message.type in {"error", "warning"} and not message.text.startswith("Failed to load resource"):
            self.complaints.append(f"console {message.type}: {message.text} ({message.location})")

    def _page_error(self, error: Error) -> None:
        self.complaints.append(f"uncaught: {error}")

    def _request_failed(self, request: Request) -> None:
        # A page aborts what it no longer wants to know; what a cut did may be told after it.
        by_the_cut = self._was_cut and request.failure in ECHOES_OF_A_CUT
        if request.failure != "net::ERR_ABORTED" and not by_the_cut:
            self.complaints.append(f"{request.method} {request.url}: {request.failure}")

    def _response(self, response: Response) -> None:
        is_expected = any(response.status == status and path in response.url for status, path in self._expected)
        if response.status >= 400 and not is_expected:
            self.complaints.append(f"{response.request.method} {response.url}: {response.status}")


def log_in(page: Page, person: Person) -> None:
    """Through the form, as in a local cloud; then the page is where it was to be when it asked who is there."""
    fill_in(page, person, PASSWORD)
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    settled(page)


def fill_in(page: Page, person: Person, password: str) -> None:
    page.get_by_label("Email").fill(person.email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def goto(page: Page, view: str = "overview") -> None:
    """A view by its path below the console, and that it is there."""
    page.goto(view)
    settled(page)


def settled(page: Page) -> None:
    """The view has a heading, and nothing of it is still being fetched."""
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_text("Loading…")).to_have_count(0)


SERIOUS = frozenset({"serious", "critical"})


# A long table's later rows are like its first ones, and each costs axe-core as much.
WHERE = json.dumps({"include": [["html"]], "exclude": [["tbody tr:nth-child(n+11)"]]})


def serious_violations(page: Page) -> list[str]:
    """What axe-core finds that keeps people out, in light; and whether it can be read in the dark, where all else is the same.

    Through the debugger: the page's own policy lets no script in.
    """
    protocol = page.context.new_cdp_session(page)
    try:
        if not page.evaluate("'axe' in window"):
            _evaluate(protocol, AXE_SCRIPT)
        page.emulate_media(color_scheme="light")
        found = _evaluate(protocol, f"axe.run({WHERE}, {{resultTypes: ['violations']}})")["violations"]
        page.emulate_media(color_scheme="dark")
        found += _evaluate(
            protocol,
            f"axe.run({WHERE}, {{resultTypes: ['violations'], runOnly: ['color-contrast', 'link-in-text-block']}})",
        )["violations"]
    finally:
        protocol.detach()
    return [
        f"{each['id']} ({each['impact']}): {each['help']}\n" + "\n".join(f"    {n['html']}" for n in each["nodes"][:5])
        for each in found
        if each["impact"] in SERIOUS
    ]


def keeps_nobody_out(page: Page) -> None:
    """In light and in the dark; and no wider than a phone."""
    desk = page.viewport_size
    assert desk is not None
    assert serious_violations(page) == []
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, "it is wider than a phone"
    page.set_viewport_size(desk)


def _evaluate(protocol: Any, script: str) -> Mapping[str, Any]:
    told = protocol.send(
        "Runtime.evaluate", {"expression": script, "awaitPromise": True, "returnByValue": script is not AXE_SCRIPT}
    )
    assert "exceptionDetails" not in told, told["exceptionDetails"]
    value: Mapping[str, Any] = told["result"].get("value", {})
    return value


def act(page: Page, name: str, reason: str = "") -> None:
    """An action as people do it: its button, the reason, and the same word again in the dialog."""
    page.get_by_role("main").get_by_role("button", name=name, exact=True).first.click()
    dialog = page.get_by_role("dialog")
    if reason:
        dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=name, exact=True).click()
    expect(dialog).to_have_count(0)


def expect_state(page: Page, word: str, timeout: float = PATIENCE_MS) -> None:
    """The word for the state of the run that is looked at, behind its mark."""
    expect(page.locator(".run-state .status")).to_have_text(re.compile(rf"^\W*{word}$"), timeout=timeout)


class Enter(Protocol):
    """`enter(people.admin, "runs")`: the tab that this person has open all day, at that view.

    `alone`: one in a browser that no other test has used or will use, for whoever moves its clock.
    """

    def __call__(self, person: Person, view: str = "overview", *, alone: bool = False) -> Page: ...


@dataclass(frozen=True, slots=True)
class Home:
    """The tab that somebody has open all day, and a script that gives another browser his session."""

    page: Page
    session: str
