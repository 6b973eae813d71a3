"""Lambda entry point: every minute, mend what is overdue."""

from __future__ import annotations

from functions.catalogue import all_kinds
from shared.kernel.entry import tick_handler
from shared.kernel.live import live_engine, live_ports

engine = live_engine()
handler = tick_handler(live_ports(engine=engine), all_kinds(engine))
