"""Every kind of work by name. A kind joins by one line here, built with its ports on the process's engine."""

from __future__ import annotations

import sqlalchemy as sa

from shared.kernel.catalogue import Catalogue
from shared.page_ingest.live import live as live_page_ingest
from shared.page_ingest.steps import page_ingest


def all_kinds(engine: sa.Engine) -> Catalogue:
    return Catalogue(
        page_ingest(live_page_ingest(engine)),
    )
