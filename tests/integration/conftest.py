from __future__ import annotations

from tests.support.ingest import ingest
from tests.support.rig import make_rig, rig, rig_database

__all__ = ["ingest", "make_rig", "rig", "rig_database"]
