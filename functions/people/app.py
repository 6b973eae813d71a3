"""Lambda entry point: add a person to a tenant, on behalf of whoever deploys."""

from __future__ import annotations

from shared.kernel.live import live_engine
from shared.kernel.people import people_handler

handler = people_handler(live_engine())
