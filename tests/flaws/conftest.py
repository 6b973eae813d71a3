from __future__ import annotations

from tests.support.ingest import ingest, page_by_page
from tests.support.lambda_calls import plain_logger
from tests.support.queries import queries
from tests.support.rig import make_rig, rig, rig_database
from tests.support.searches import searches

__all__ = ["ingest", "make_rig", "page_by_page", "plain_logger", "queries", "rig", "rig_database", "searches"]
