"""Pictures of every view of the console, light, dark and on a phone: `make screenshots`. `--docs`: those of the README too.

Of what a tenant on a bad day has (tests/browser/seed.py), of an ingestion that was really worked off, and of what `baton demo-data`
makes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from playwright.sync_api import Browser, Page, ViewportSize, expect

from infra.local.deploy import ROOT
from shared.kernel.clock import stopwatch
from tests.browser import seed, seed_jobs
from tests.browser.chromium import NoChromium, browser, find_or_install, this_machine
from tests.browser.demo import demo
from tests.browser.views import DEMO, REAL, VIEWS, View, ids_of
from tests.support.browser import DESK, PHONE, People, Person, console_url, goto, log_in, make_people
from tests.support.scene import Scene, local_cloud

PICTURES = ROOT / ".local" / "screenshots"
DOCS = ROOT / "docs" / "images"
IN_DOCS = {"overview-light": "console-overview", "ingestion-dark": "console-partitions"}
HIGHEST = 2_600
PATIENCE_MS = 120_000  # nobody waits for pictures
LOOKS: dict[str, tuple[str, ViewportSize]] = {
    "light": ("light", DESK),
    "dark": ("dark", DESK),
    "phone": ("light", PHONE),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make screenshots", description=__doc__)
    parser.add_argument("--docs", action="store_true", help="write the pictures of the README")
    parser.add_argument("views", nargs="*", help="only these")
    options = parser.parse_args(arguments)
    try:
        path = find_or_install(this_machine(), print)
    except NoChromium as none:
        print(none)
        return 1
    elapsed = stopwatch()
    expect.set_options(timeout=PATIENCE_MS)
    PICTURES.mkdir(parents=True, exist_ok=True)
    wanted = [view for view in (*VIEWS, *REAL, *DEMO) if not options.views or view.name in options.views]
    with local_cloud(stones=3_000) as scene, browser(path) as chromium:
        people = make_people(scene.address)
        actors = [people.admin.actor, people.member.actor, people.other.actor]
        seeded = seed.every_state(scene.address.database_url, people.admin.tenant_id, actors)
        works = people.foreman
        jobs = seed_jobs.every_job(scene.address.database_url, works.tenant_id, works.actor, people.super_admin.subject)
        ids = ids_of(seeded, jobs) | {"ingested": ingest(scene, people.admin)}
        if any(view in DEMO for view in wanted):
            ids |= demo(scene, people.shopper)
        Photographer(chromium, scene, people, ids, IN_DOCS if options.docs else {}).tour(wanted)
    print(f"{len(wanted) * len(LOOKS)} pictures in {PICTURES.relative_to(ROOT)}  ({elapsed():.0f} s)")
    return 0


def ingest(scene: Scene, person: Person) -> UUID:
    """A real one, so that real pages are in the pictures as well."""
    scene.tenant = person.tenant_id
    run_id = scene.start(2_500, page_size=20, partition_records=400)
    scene.completes(run_id)
    scene.runs.sql("update run set label = 'Nightly, all stones' where id = :id", id=run_id)
    scene.tick()  # it sums up what the last minutes did
    return run_id


class Photographer:
    """`in_docs`: of which of them the first screenful is kept for the documents."""

    def __init__(
        self,
        chromium: Browser,
        scene: Scene,
        people: People,
        ids: Mapping[str, Any],
        in_docs: Mapping[str, str],
    ) -> None:
        self._chromium, self._people, self._ids, self._in_docs = chromium, people, ids, in_docs
        self._url = console_url(scene.address)

    def tour(self, views: list[View]) -> None:
        for look, (scheme, size) in LOOKS.items():
            pages: dict[str, Page] = {}
            for view in views:
                if view.who not in pages:
                    pages[view.who] = self._enter(getattr(self._people, view.who), scheme, size)
                self._take(pages[view.who], view, look)
            for page in pages.values():
                page.context.close()

    def _enter(self, person: Person, scheme: str, size: ViewportSize) -> Page:
        context = self._chromium.new_context(
            base_url=self._url,
            color_scheme=scheme,  # type: ignore[arg-type]
            viewport=size,
            is_mobile=size is PHONE,
            device_scale_factor=2 if size is PHONE else 1,
        )
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto("overview")
        page.get_by_label("Email").wait_for()
        page.screenshot(path=PICTURES / f"login-{'phone' if size is PHONE else scheme}.png")
        log_in(page, person)
        return page

    def _take(self, page: Page, view: View, look: str) -> None:
        goto(page, view.at(self._ids))
        page.evaluate("document.fonts.ready")
        size = LOOKS[look][1]
        whole = page.evaluate(
            "document.documentElement.scrollHeight"
        )  # a frame that is as high as its window ends there
        page.set_viewport_size({"width": size["width"], "height": max(size["height"], min(whole, HIGHEST))})
        page.screenshot(path=PICTURES / f"{view.name}-{look}.png", animations="disabled")
        page.set_viewport_size(size)
        if f"{view.name}-{look}" in self._in_docs:
            page.screenshot(path=DOCS / f"{self._in_docs[f'{view.name}-{look}']}.png", animations="disabled")
        print(f"  {view.name}-{look}.png", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
