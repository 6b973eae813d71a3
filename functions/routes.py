"""Every route of the HTTP API: the kernel's, and those of each kind that has `shared/<kind>/api.py` with a `router`."""

from __future__ import annotations

from functions.catalogue import all_providers, all_routers
from shared.job_queue.triggers import api as triggers
from shared.kernel.api import bulk, connections, failures, gates, now, people, runs, stream
from shared.kernel.vault import live_vault

ROUTERS = (
    people.router,
    now.router,
    failures.router,
    runs.router,
    stream.router,
    bulk.router,
    gates.router,
    connections.routes(all_providers, live_vault()),
    *all_routers(),
    triggers.router,
)
