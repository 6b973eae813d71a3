"""Who may do what with row jobs."""

from __future__ import annotations

from uuid import UUID

from tests.support.cells import READERS, STARTERS, Cells, Named
from tests.support.door import Door, TenantHouse

UNKNOWN = str(UUID(int=9))


def rowed(door: Door, tenant: TenantHouse, run_id: UUID) -> None:
    """Makes a run look like a row job with a file and one row that failed."""
    door.sql(
        """update run set kind = 'row_job', params = jsonb_build_object('file_id', id) where id = :id""", id=run_id
    )
    door.sql(
        "update lane set kind = 'row_job', key = 'work:0:0', cursor = '{}' where run_id = :id and key = 'l0'", id=run_id
    )
    door.sql(
        """insert into files (id, tenant_id, name, size, created_by)
           select id, tenant_id, 'rows.csv', 9, created_by from run where id = :id""", id=run_id,
    )  # fmt: skip
    door.sql(
        """insert into file_jobs (run_id, tenant_id, file_id, user_id, job_type, slots, process_upto, read_at, columns)
           select id, tenant_id, id, created_by, 'csv', 1, 5, now(), '["title"]' from run where id = :id""", id=run_id,
    )  # fmt: skip
    door.sql(
        """insert into job_items (run_id, row_no, tenant_id, user_id, job_type, slot, status, input_json, due_at, updated_at)
           select id, 1, tenant_id, created_by, 'csv', 0, 'ERROR', '{}', now(), now() from run where id = :id""", id=run_id,
    )  # fmt: skip


def with_two_rows(door: Door, tenant: TenantHouse, run_id: UUID) -> None:
    rowed(door, tenant, run_id)
    door.sql(
        """insert into job_items (run_id, row_no, tenant_id, user_id, job_type, slot, status, input_json, due_at, updated_at)
           select run_id, 2, tenant_id, user_id, job_type, slot, status, input_json, due_at, updated_at
           from job_items where run_id = :id""", id=run_id,
    )  # fmt: skip


def paused(door: Door, tenant: TenantHouse, run_id: UUID) -> None:
    rowed(door, tenant, run_id)
    assert door.call(tenant.member, "POST", f"/runs/{run_id}/pause", {}).status == 200


def ended(door: Door, tenant: TenantHouse, run_id: UUID) -> None:
    rowed(door, tenant, run_id)
    door.sql("update run set status = 'canceled', finished_at = now() where id = :id", id=run_id)
    door.sql("update lane set status = 'canceled' where run_id = :id", id=run_id)


def an_upload(door: Door, tenant: TenantHouse) -> Named:
    file_id = door.sql(
        """insert into files (id, tenant_id, name, created_by)
           select gen_random_uuid(), :t, 'rows.csv', :who returning id""", t=tenant.id, who=f"user:{tenant.member.subject}",
    )[0].id  # fmt: skip
    return {"file_id": str(file_id)}


def an_export(door: Door, tenant: TenantHouse) -> Named:
    run_id = door.start(tenant, lanes=1)
    rowed(door, tenant, run_id)
    made = door.call(tenant.member, "POST", f"/row-jobs/{run_id}/export")
    assert made.status == 201, made.body
    return {"run_id": str(run_id), "export_id": made.json()["id"]}


FIX = {"rows": [{"row_no": 1, "hash": "0" * 16, "input": {"title": "x"}}]}
CELLS = {
    "create_row_upload": Cells(roles=STARTERS, body={"name": "rows.csv", "size": 100}, ok=503),
    "get_row_upload": Cells(roles=READERS, target="run", make=an_upload, names=["file_id"]),
    "preview_row_upload": Cells(roles=READERS, target="run", make=an_upload, names=["file_id"], ok=409),
    "start_row_job": Cells(roles=STARTERS, body={"file_id": UNKNOWN}, ok=422),
    "scan_for_files": Cells(roles=STARTERS, body={"source": "ftp"}, ok=422),
    "get_row_job": Cells(roles=READERS, target="run", prepare=rowed),
    "list_row_items": Cells(roles=READERS, target="run", prepare=with_two_rows),
    "get_row_item": Cells(roles=READERS, target="run", prepare=rowed),
    "list_pending": Cells(roles=READERS),
    "export_row_job": Cells(roles=READERS, target="run", prepare=rowed, ok=201),
    "list_row_exports": Cells(roles=READERS, target="run", prepare=rowed),
    "get_row_export": Cells(roles=READERS, target="run", make=an_export, names=["export_id"]),
    "resubmit_row_job": Cells(roles=STARTERS, target="run", prepare=rowed, body={"file_id": UNKNOWN}, ok=422),
    "list_row_fixes": Cells(roles=READERS, target="run", prepare=rowed),
    "fix_row_items": Cells(roles=STARTERS, target="run", prepare=rowed, body=FIX),
    "list_pace_decisions": Cells(roles=READERS, target="run", prepare=rowed),
    "kick_off_row_job": Cells(roles=STARTERS, target="run", prepare=rowed, body={}),
    "pause_row_job": Cells(roles=STARTERS, target="run", prepare=rowed, body={}),
    "resume_row_job": Cells(roles=STARTERS, target="run", prepare=paused, body={}),
    "promote_row_job": Cells(roles=STARTERS, target="run", prepare=rowed, body={}),
    "reprocess_row_job": Cells(roles=STARTERS, target="run", prepare=rowed, body={"dry_run": True}),
    "delete_row_job": Cells(roles=STARTERS, target="run", prepare=ended),
}
