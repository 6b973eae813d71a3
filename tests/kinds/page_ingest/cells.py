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


def sourced(door: Door, tenant: TenantHouse, run_id: UUID) -> None:
    """Makes a run look like one of a source, with a partition and a claim."""
    door.sql(
        """update run set kind = 'page_ingest', params = '{"source": "openalex", "from": "2025-01-01"}' where id = :id""",
        id=run_id,
    )
    door.sql(
        """update lane set kind = 'page_ingest', key = 'part/works/' || key,
               cursor = '{"part": {"resource": "works"}, "crawl": 1, "pages": 1, "received": 2, "quarantined": 0, "clean": true}'
           where run_id = :id""",
        id=run_id,
    )


def source_rows(door: Door, tenant: TenantHouse) -> None:
    """Two rows in the table of a source, and two in its quarantine."""
    for key in ("a", "b"):
        door.sql(
            """insert into openalex_works (tenant_id, connection, source_key, rest, hash, run_id, partition, page, said_by, said_at)
               values (:t, '', :key, '{}', 'h', :t, 'p', 1, :t, now()) on conflict do nothing""",
            t=tenant.id, key=key,
        )  # fmt: skip
        door.sql(
            """insert into source_quarantine (tenant_id, source, connection, resource, key, run_id, partition, page, why, payload, at)
               values (:t, 'openalex', '', 'works', :key, :t, 'p', 1, 'w', '{}', now()) on conflict do nothing""",
            t=tenant.id, key=key,
        )  # fmt: skip


TRIED = {"source": "openalex", "from": "2025-01-01", "to": "2025-01-02"}
CELLS = {
    "list_sources": Cells(roles=READERS),
    "try_source": Cells(roles=STARTERS, body=TRIED, ok=400),  # nobody answers here
    "estimate_source": Cells(roles=STARTERS, body=TRIED, ok=400),
    "get_source_run": Cells(roles=READERS, target="run", prepare=sourced),
    "list_source_partitions": Cells(roles=READERS, target="run", prepare=sourced),
    "list_source_rows": Cells(roles=READERS, query={"source": "openalex", "resource": "works"}),
    "list_source_quarantine": Cells(roles=READERS, query={"source": "openalex"}),
    "start_page_ingestion": Cells(roles=STARTERS, body={"source": "nivoda", "low": 0, "high": 9}, ok=201),
    "get_page_ingestion": Cells(roles=READERS, target="run", prepare=partitioned),
    "list_partitions": Cells(roles=READERS, target="run", prepare=partitioned, query={"heat": 5}),
    "get_coverage": Cells(roles=READERS),
}
