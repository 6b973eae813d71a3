"""Lambda entry point: clean up what runs left behind, and prune by retention."""

from __future__ import annotations

from functions.catalogue import all_kinds
from shared.kernel.entry import sweep_handler
from shared.kernel.live import live_engine, live_ports

engine = live_engine()
handler = sweep_handler(live_ports(engine=engine), all_kinds(engine))
