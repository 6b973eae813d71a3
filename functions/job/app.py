"""Lambda entry point: a wake names a pull queue; the jobs that are due there are run one after the other."""

from __future__ import annotations

import os
from dataclasses import replace

from functions.catalogue import all_kinds
from shared.job_queue.build import LEASE_S, longest_turn_s
from shared.kernel.clock import patience
from shared.kernel.entry import wake_handler
from shared.kernel.live import live_engine, live_ports

PATIENCE_S = 10.0  # with a database that is away when a command has ended

engine = live_engine()
worker = f"lambda:{os.environ.get('AWS_LAMBDA_LOG_STREAM_NAME', '')[-100:] or os.getpid()}"
ports = replace(live_ports(engine=engine), waits_for_database=patience(PATIENCE_S))
handler = wake_handler(ports, all_kinds(engine), worker, LEASE_S, longest_turn_s(os.environ))
