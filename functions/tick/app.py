"""Lambda entry point: every minute, mend what is overdue."""

from __future__ import annotations

import os

from functions.catalogue import kinds
from shared.kernel.entry import tick_handler
from shared.kernel.live import live_engine, live_ports

engine = live_engine(os.environ)
handler = tick_handler(live_ports(engine=engine), kinds(engine))
