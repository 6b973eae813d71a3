"""Lambda entry point: clean up what runs left behind, and prune by retention."""

from __future__ import annotations

import os
from dataclasses import replace

from functions.catalogue import kinds
from shared.kernel.entry import sweep_handler
from shared.kernel.live import live_engine, live_ports
from shared.kernel.store import PgStore

engine = live_engine(os.environ)
handler = sweep_handler(replace(live_ports(), store=PgStore(engine)), kinds(engine))
