"""Every kind of work by name. A kind joins by one line here: `Catalogue(page_ingest(...), ...)`, built with its ports."""

from __future__ import annotations

import sqlalchemy as sa

from shared.kernel.catalogue import Catalogue
from shared.page_ingest.live import live as live_page_ingest
from shared.page_ingest.steps import page_ingest


def kinds(engine: sa.Engine) -> Catalogue:
    """The kinds on one engine: what a process does to its database goes through one connection."""
    return Catalogue(page_ingest(live_page_ingest(engine)))
