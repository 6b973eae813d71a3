"""Which tests run, in which order, and which of them share a process.

Three rings: `make quick` (unit tests, without Postgres), `make test` (the product), `make check` (everything but `long`). A test
that only `make check` runs is marked `full`; one that only `make verify` runs is marked `long`. A path that somebody names
is run as a whole: `pytest tests/chaos` needs no option.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadScopeScheduling

# A kind's tests bear one of its words in the name of their file, or its own name as their parameter.
WORDS = {
    "folder_sync": ("folder", "folder_sync"),
    "job": ("job", "jobs", "workers", "command_ends", "pull"),
    "page_ingest": ("page_ingest", "nivoda", "coverage"),
    "query_run": ("query", "queries", "mce"),
    "row_job": ("row", "rows", "inboxes", "scans"),
    "search": ("search", "searches", "sheets"),
    "source": ("source", "sources"),
    "triggers": ("trigger", "triggers", "event_to_folder"),
}
# What takes longest starts first; the many short ones fill the gaps at the end.
FIRST = ("tests/browser/", "tests/scenarios/", "tests/docs/", "tests/chaos/", "tests/template/", "tests/simulation/")
# Tests that share a local cloud are run by one process: those of scenarios, and each half of the browser's.
SHARED = (r"tests/browser/test_[a-q]", r"tests/browser/", r"tests/scenarios/")
# Each test by itself: they share nothing, and a file of them would keep one process busy to the end.
ALONE = ("tests/simulation/",)
# How a module says that all of its tests are of `make check`.
WHOLLY = "\npytestmark = pytest.mark.full\n"


def belongs_to(kind: str, nodeid: str) -> bool:
    path, _, test = nodeid.partition("::")
    file = path.rpartition("/")[2].removeprefix("test_").removesuffix(".py")
    words = re.compile(rf"(^|_)({'|'.join(WORDS[kind])})(_|$)")
    _, _, parameters = test.partition("[")
    own = re.compile(rf"(^|-){kind}(-|$)")
    return bool(words.search(file)) or bool(own.search(parameters.removesuffix("]"))) or f"tests/kinds/{kind}/" in path


def need_no_postgres(paths: Iterable[str]) -> bool:
    return all(path.startswith(("tests/unit", "tests/mutants")) for path in paths)


def place(nodeid: str) -> int:
    return next((number for number, folder in enumerate(FIRST) if nodeid.startswith(folder)), len(FIRST))


def company(nodeid: str) -> str:
    """Tests with the same answer run one after the other in one process."""
    cloud = next((cloud for cloud in SHARED if re.match(cloud, nodeid)), None)
    return cloud or (nodeid if nodeid.startswith(ALONE) else nodeid.partition("::")[0])


def in_ring(ring: str, marks: Iterable[str]) -> bool:
    """`test` leaves out the marked ones, `full` is the rest, `all` both."""
    return ring == "all" or (ring == "full") == ("full" in marks)


def leaves_out(ring: str, module: str) -> bool:
    """Whether no test of a module is in the ring, as far as its text says: then it need not be imported."""
    return (ring == "test" and WHOLLY in module) or (
        ring == "full" and "mark.full" not in module and "@tenths" not in module
    )


def tenths() -> pytest.MarkDecorator:
    """Of many schedules `make test` plays the first tenth, and `make check` the other nine."""
    others = pytest.param(range(1, 10), id="others", marks=pytest.mark.full)
    return pytest.mark.parametrize("tenths", [pytest.param(range(1), id="first"), others])


class InCompany(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out whole files, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return company(nodeid)
