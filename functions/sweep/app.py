"""Lambda entry point: clean up what runs left behind, and prune by retention."""

from __future__ import annotations

import os

from functions.catalogue import kinds
from shared.kernel.entry import sweep_handler
from shared.kernel.live import live_engine, live_ports

engine = live_engine(os.environ)
handler = sweep_handler(live_ports(engine=engine), kinds(engine))
