"""Every route of the HTTP API. A kind of work joins by one line here."""

from __future__ import annotations

from functions.catalogue import all_providers
from shared.kernel.api import bulk, connections, gates, now, people, runs, stream
from shared.kernel.vault import live_vault
from shared.page_ingest import api as page_ingest

ROUTERS = (
    people.router,
    now.router,
    runs.router,
    stream.router,
    bulk.router,
    gates.router,
    connections.routes(all_providers(), live_vault()),
    page_ingest.router,
)
