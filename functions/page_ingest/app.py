"""Lambda entry point: one SQS message takes one step of an ingestion: a few counts, one page, or one batch."""

from __future__ import annotations

from shared.kernel.entry import step_handler
from shared.kernel.live import live_engine, live_ports
from shared.page_ingest.build import build_ports
from shared.page_ingest.steps import page_ingest

engine = live_engine()
handler = step_handler(page_ingest(build_ports(engine)), live_ports(engine=engine))
