"""Lambda entry point: note on its lane that a message was given up."""

from __future__ import annotations

from shared.kernel.entry import dead_letter_handler
from shared.kernel.live import live_ports

handler = dead_letter_handler(live_ports())
