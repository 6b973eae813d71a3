"""Every view of the console, in one place: what is tested for everybody, and what pictures are taken of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

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

    def at(self, ids: Mapping[str, Any]) -> str:
        return self.path.format_map(ids)


def ids_of(seeded: Seeded, jobs: Mapping[str, UUID]) -> dict[str, Any]:
    runs = {name: getattr(seeded, name) for name in Seeded.__slots__}
    return runs | {f"job_{name}": job_id for name, job_id in jobs.items()}


VIEWS = (
    View("overview", "overview", "Overview"),
    View("runs", "runs", "Runs"),
    View("runs-failed", "runs?status=failed", "Runs", twin=True),
    View("failures", "failures", "Failures"),
    View("run", "runs/{running}", "Nightly, natural stones", twin=True),
    View("run-failed", "runs/{failed}", "Nightly, lab grown"),
    View("run-throttled", "runs/{gated}", "Lab grown, first pass"),
    View("run-retrying", "runs/{retrying}", "Melee, below 1000", twin=True),
    View("run-paused", "runs/{paused}", "Backfill 2024", twin=True),
    View("run-stalled", "runs/{late}", "Partner feed, hourly", twin=True),
    View("partitions", "runs/{running}/partitions", "Nightly, natural stones"),
    View("timeline", "runs/{paused}/timeline", "Backfill 2024"),
    View("parameters", "runs/{running}/parameters", "Nightly, natural stones", twin=True),
    View("work", "work/page_ingest", "Page ingestion", twin=True),
    View("coverage", "work/page_ingest/coverage", "Coverage"),
    View("new", "work/page_ingest/new", "New page ingestion"),
    View("queries", "work/query_run", "Remote queries", twin=True),
    View("query-new", "work/query_run/new", "New remote query"),
    View("query-polls", "work/query_run/polls", "Polls to ready"),
    View("query-leftovers", "work/query_run/leftovers", "Leftovers"),
    View("row-job-new", "work/row_job/new", "New row job", twin=True),
    View("jobs", "work/job", "Jobs", who="foreman"),
    View("jobs-empty", "work/job", "Jobs", who="stranger", twin=True),
    View("job-running", "runs/{job_running}/attempts", "train-keyword-models", who="foreman"),
    View("job-dead", "runs/{job_dead}/attempts", "train-keyword-models", who="foreman", twin=True),
    View("job-queued", "runs/{job_behind}/attempts", "train-keyword-models", who="foreman", twin=True),
    View("job-overview", "runs/{job_retrying}", "train-keyword-models", who="foreman", twin=True),
    View("job-new", "work/job/new", "New job", who="foreman"),
    View("definitions", "work/job/definitions", "Job definitions", who="super_admin"),
    View("workers", "work/job/workers", "Workers", who="super_admin"),
    View("jobs-everywhere", "work/job/tenants", "Jobs of all tenants", who="super_admin"),
    View("connections", "connections", "Connections"),
    View("rate-limits", "rate-limits", "Rate limits"),
    View("members", "members", "Members"),
    View("tokens", "tokens", "Tokens"),
    View("audit-log", "audit-log", "Audit log"),
    View("system", "system", "System"),
    View("system-everywhere", "system", "System", who="super_admin", twin=True),
    View("quiet", "overview", "Overview", who="stranger"),
    View("runs-empty", "runs", "Runs", who="stranger", twin=True),
    View("failures-empty", "failures", "Failures", who="stranger", twin=True),
    View("not-found", "somewhere", "Page not found"),
)

# Of an ingestion that the local cloud has worked off: what is said to be complete is.
REAL = (View("ingestion", "runs/{ingested}/partitions", "", twin=True),)

# Of what `baton demo-data` makes: real runs of every kind. `{demo_rows}` and the like stand for the newest run of a label.
DEMO = tuple(
    View(f"demo-{name}", f"{path}?tenant={{shop}}", "", who="shopper", twin=True)
    for name, path in (
        ("overview", "overview"),
        ("runs", "runs"),
        ("failures", "failures"),
        ("ingestions", "work/page_ingest"),
        ("coverage", "work/page_ingest/coverage"),
        ("sources", "work/page_ingest/sources"),
        ("ingestion", "runs/{demo_ingestion}/partitions"),
        ("refused", "runs/{demo_refused}"),
        ("retrying", "runs/{demo_retrying}"),
        ("throttled", "runs/{demo_throttled}"),
        ("row-job", "runs/{demo_rows}/rows"),
        ("row-job-pace", "runs/{demo_rows}/pace"),
        ("row-job-pending", "work/row_job/pending"),
        ("row-job-canary", "runs/{demo_canary}"),
        ("query", "runs/{demo_query}/query"),
        ("query-rows", "runs/{demo_query}/rows"),
        ("folder", "runs/{demo_folder}"),
        ("jobs", "work/job"),
        ("triggers", "work/job/triggers"),
        ("job-dead", "runs/{dead}/attempts"),
        ("searches", "work/search/saved"),
        ("search", "work/search/saved/{search}"),
        ("search-cycle", "runs/{demo_cycle}"),
        ("companies", "work/search/companies"),
        ("sheets", "work/search/sheets"),
        ("connections", "connections"),
        ("rate-limits", "rate-limits"),
        ("audit-log", "audit-log"),
    )
)
