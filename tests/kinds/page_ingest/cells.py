"""Who may do what with page ingestions."""

from __future__ import annotations

from uuid import UUID

from tests.support.cells import READERS, STARTERS, Cells
from tests.support.door import Door, TenantHouse


def partitioned(door: Door, tenant: TenantHouse, run_id: UUID) -> None:
    """Makes a run look like an ingestion with two partitions."""
    door.sql(
        """update run set kind = 'page_ingest', params = '{"source": "nivoda", "low": 0, "high": 9}' where id = :id""",
        id=run_id,
    )
    door.sql(
        """update lane set kind = 'page_ingest', key = 'part:' || key,
               cursor = '{"low": 0, "high": 9, "crawl": 1, "offset": 0, "duplicates": 0, "split": false, "clean": false}'
           where run_id = :id""",
        id=run_id,
    )


CELLS = {
    "start_page_ingestion": Cells(roles=STARTERS, body={"source": "nivoda", "low": 0, "high": 9}, ok=201),
    "get_page_ingestion": Cells(roles=READERS, target="run", prepare=partitioned),
    "list_partitions": Cells(roles=READERS, target="run", prepare=partitioned, query={"heat": 5}),
}
