"""Lambda entry point: one SQS message takes one step of row_job."""

from __future__ import annotations

from functions.catalogue import all_kinds
from shared.kernel.entry import step_handler
from shared.kernel.live import live_engine, live_ports

engine = live_engine()
kinds = all_kinds(engine)
handler = step_handler(kinds["row_job"], live_ports(engine=engine), kinds)
