"""Lambda entry point: clean up what runs left behind, and prune by retention."""

from __future__ import annotations

from functions.catalogue import KINDS
from shared.kernel.entry import sweep_handler
from shared.kernel.live import live_ports

handler = sweep_handler(live_ports(), KINDS)
