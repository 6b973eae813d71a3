"""Who may do what with remote queries."""

from __future__ import annotations

from uuid import UUID

from tests.support.cells import READERS, STARTERS, Cells
from tests.support.door import Door, TenantHouse


def queried(door: Door, tenant: TenantHouse, run_id: UUID) -> None:
    """Makes a run look like a remote query."""
    door.sql(
        """update run set kind = 'query_run', params = '{"sql_text": "select 1", "mid": "1"}' where id = :id""",
        id=run_id,
    )
    door.sql(
        "update lane set kind = 'query_run', key = 'query', cursor = '{}' where run_id = :id and key = 'l0'", id=run_id
    )
    door.sql("insert into query_run (run_id, tenant_id) values (:id, :t)", id=run_id, t=tenant.id)


CELLS = {
    "start_query_run": Cells(roles=STARTERS, body={"sql_text": "select a from b", "mid": "1"}, ok=201),
    "get_query_run": Cells(roles=READERS, target="run", prepare=queried),
    "list_query_rows": Cells(roles=READERS, target="run", prepare=queried, ok=409),
    "list_query_runs": Cells(roles=READERS),
    "cancel_query_run": Cells(roles=STARTERS, target="run", prepare=queried, body={"reason": "enough"}),
    "download_query_rows": Cells(roles=READERS, target="run", prepare=queried, ok=409),
    "list_left_assets": Cells(roles=READERS),
}
