"""Lambda entry point: every minute, mend what is overdue."""

from __future__ import annotations

from functions.catalogue import KINDS
from shared.kernel.entry import tick_handler
from shared.kernel.live import live_ports

handler = tick_handler(live_ports(), KINDS)
