"""Lambda entry point: the HTTP API. Each kind of work brings its routes."""

from __future__ import annotations

import os
from pathlib import Path

from functions.catalogue import all_kinds
from functions.routes import ROUTERS
from infra.migrations.head import newest_revision
from shared.kernel.api.console import Console, live_login, live_uploads
from shared.kernel.api.desk import Front
from shared.kernel.api.frame import api_handler
from shared.kernel.api.room import Room
from shared.kernel.live import live_engine, live_ports
from shared.kernel.store import PgStore
from shared.row_job.rows_api import pages_off

engine = live_engine()
kinds = all_kinds(engine)
front = Front(engine, live_ports(engine=engine), kinds, Room())
folder = Path(__file__).with_name("console")
console = Console(folder, live_login(os.environ), tuple(kinds), live_uploads(os.environ), pages_off(os.environ))
handler = api_handler(front, PgStore(engine).health, newest_revision(), ROUTERS, console)
