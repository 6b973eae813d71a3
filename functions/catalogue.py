"""Every kind of work by name. A kind joins by one line here, built with its ports on the process's engine."""

from __future__ import annotations

import sqlalchemy as sa

from shared.kernel.catalogue import Catalogue
from shared.kernel.connections import Provider
from shared.page_ingest.build import build_ports, nivoda_provider
from shared.page_ingest.steps import page_ingest


def all_kinds(engine: sa.Engine) -> Catalogue:
    return Catalogue(
        page_ingest(build_ports(engine)),
    )


def all_providers() -> list[Provider]:
    """Every upstream that a tenant may have an account of its own at."""
    return [nivoda_provider()]
