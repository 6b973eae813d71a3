"""Lambda entry point: an event from outside (an upload, or our bus) becomes one signal."""

from __future__ import annotations

import os

from shared.kernel.intake import intake_handler
from shared.kernel.live import live_ports

handler = intake_handler(live_ports(), os.environ.get("BATON_BUCKET"))
