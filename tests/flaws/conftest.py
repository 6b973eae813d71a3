from __future__ import annotations

from tests.support.ingest import ingest, page_by_page
from tests.support.lambda_calls import plain_logger
from tests.support.rig import make_rig, rig, rig_database

__all__ = ["ingest", "make_rig", "page_by_page", "plain_logger", "rig", "rig_database"]
