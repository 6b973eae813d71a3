"""Every kind of work by name. A kind joins by one line here: `Catalogue(page_ingest(...), ...)`, built with its ports."""

from __future__ import annotations

import os

from shared.kernel.catalogue import Catalogue
from shared.kernel.live import live_engine
from shared.page_ingest.live import live as live_page_ingest
from shared.page_ingest.steps import page_ingest

KINDS = Catalogue(page_ingest(live_page_ingest(live_engine(os.environ))))
