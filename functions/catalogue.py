"""Every kind of work by name. A kind joins by one line here: `Catalogue(page_ingest(...), ...)`, built with its ports."""

from __future__ import annotations

from shared.kernel.catalogue import Catalogue

KINDS = Catalogue()
