"""Lambda entry point: an event from outside (an upload, or our bus) becomes one signal."""

from __future__ import annotations

import os

from functions.catalogue import all_kinds
from shared.kernel.intake import intake_handler
from shared.kernel.live import live_engine, live_ports

engine = live_engine()
handler = intake_handler(live_ports(engine=engine), os.environ.get("BATON_BUCKET"), all_kinds(engine))
