"""Lambda entry point: move batons whose delay is over from the delay queue into their FIFO queues."""

from __future__ import annotations

from shared.kernel.entry import forward_handler
from shared.kernel.live import live_ports

handler = forward_handler(live_ports())
