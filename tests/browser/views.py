"""Every view of the console, in one place: what is tested for everybody, and what pictures are taken of."""

from __future__ import annotations

from dataclasses import dataclass

from tests.browser.seed import Seeded


@dataclass(frozen=True, slots=True)
class View:
    """`path` below the console; `{running}` stands for the id of the seeded run of that name. `title` is its heading.

    `twin`: made of the same parts as another view here; it is pictured, and not tested again.
    """

    name: str
    path: str
    title: str
    who: str = "admin"
    twin: bool = False

    def at(self, seeded: Seeded) -> str:
        return self.path.format_map({name: getattr(seeded, name) for name in Seeded.__slots__})


VIEWS = (
    View("now", "now", "Now"),
    View("runs", "runs", "Runs"),
    View("runs-failed", "runs?status=failed", "Runs", twin=True),
    View("run", "runs/{running}", "Nightly, natural stones", twin=True),
    View("run-failed", "runs/{failed}", "Nightly, lab grown"),
    View("run-gated", "runs/{gated}", "Lab grown, first pass"),
    View("ingestions", "ingestions", "Page ingestion"),
    View("ingestion", "ingestions/{running}", "Nightly, natural stones"),
    View("ingestion-start", "ingestions/start", "Start a page ingestion"),
    View("gates", "gates", "Gates"),
    View("connections", "connections", "Connections"),
    View("audit", "audit", "Audit"),
    View("health", "health", "Health"),
    View("people", "people", "People"),
    View("quiet", "now", "Now", who="stranger"),
    View("runs-empty", "runs", "Runs", who="stranger", twin=True),
    View("nowhere", "somewhere", "Nothing is here"),
)
