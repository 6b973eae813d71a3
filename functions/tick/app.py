"""Lambda entry point: every minute, mend what is overdue."""

from __future__ import annotations

import os
from dataclasses import replace

from functions.catalogue import kinds
from shared.kernel.entry import tick_handler
from shared.kernel.live import live_engine, live_ports
from shared.kernel.store import PgStore

engine = live_engine(os.environ)
handler = tick_handler(replace(live_ports(), store=PgStore(engine)), kinds(engine))
