"""Lambda entry point: one SQS message takes one step of folder_sync."""

from __future__ import annotations

from functions.catalogue import all_kinds
from shared.kernel.entry import step_handler
from shared.kernel.live import live_engine, live_ports

engine = live_engine()
kinds = all_kinds(engine)
handler = step_handler(kinds["folder_sync"], live_ports(engine=engine), kinds)
