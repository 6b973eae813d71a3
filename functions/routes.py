"""Every route of the HTTP API. A kind of work joins by one line here."""

from __future__ import annotations

from shared.kernel.api import bulk, events, gates, people, runs
from shared.page_ingest import api as page_ingest

ROUTERS = (
    people.router,
    runs.router,
    events.router,
    bulk.router,
    gates.router,
    page_ingest.router,
)
