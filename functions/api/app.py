"""Lambda entry point: the HTTP API."""

from __future__ import annotations

import os

from infra.migrations.head import newest_revision
from shared.kernel.api import api_handler
from shared.kernel.live import live_engine
from shared.kernel.store import PgStore

handler = api_handler(PgStore(live_engine(os.environ)).health, newest_revision())
