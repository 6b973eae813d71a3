"""Who may do what with jobs."""

from __future__ import annotations

from typing import Any

from shared.kernel.clock import new_id
from tests.kinds.job import trigger_cells
from tests.support.cells import ADMINS, READERS, STARTERS, SUPERS, Cells, Named
from tests.support.door import Door, TenantHouse

COMMAND = "sync-dropbox"
KEY = "of-the-matrix"  # definitions are everybody's: other tests change those of the commands' own names
TOKEN = "0198a000-0000-7000-8000-000000000001"
WORKERS = frozenset({"worker"})


def defined(door: Door, tenant: TenantHouse) -> str:
    asked = {"key": KEY, "command": COMMAND}
    made = door.call(door.super_admin.choosing(tenant.id), "POST", "/admin/jobs/definitions", asked)
    assert made.status in {201, 409}, made
    return str(door.value("select id from job_definitions where key = :key", key=KEY))


def a_definition(door: Door, tenant: TenantHouse) -> Named:
    return {"definition_id": defined(door, tenant)}


def a_job(door: Door, tenant: TenantHouse) -> Named:
    defined(door, tenant)
    made = door.call(tenant.member, "POST", "/jobs", {"definition_key": KEY})
    assert made.status == 201, made
    return {"job_id": made.json()["id"]}


def some_jobs(door: Door, tenant: TenantHouse) -> Named:
    return a_job(door, tenant) | a_job(door, tenant)


def a_tried_job(door: Door, tenant: TenantHouse) -> Named:
    job = a_job(door, tenant)
    door.sql(
        """insert into job_attempts (job_id, attempt_no, tenant_id, worker_id, status)
           select cast(:id as uuid), n, :t, 'w', 'failed' from generate_series(1, 3) n""",
        id=job["job_id"],
        t=tenant.id,
    )
    return job


def a_first_attempt(door: Door, tenant: TenantHouse) -> Named:
    return a_tried_job(door, tenant) | {"attempt_no": "1"}


def an_ended_job(door: Door, tenant: TenantHouse) -> Named:
    job = a_job(door, tenant)
    assert door.call(tenant.member, "POST", f"/jobs/{job['job_id']}/cancel", {}).status == 200
    return job


def a_new_definition() -> dict[str, Any]:
    return {"key": f"d-{new_id()}", "command": COMMAND}


JOB: dict[str, Any] = {"target": "job", "make": a_job, "names": ["job_id"]}


def a_claimed_job(door: Door, tenant: TenantHouse) -> Named:
    job = a_job(door, tenant)
    door.sql(
        "update lane set claim_token = :token, lease_until = now() + interval '1 h' where run_id = cast(:id as uuid)",
        token=TOKEN, id=job["job_id"],
    )  # fmt: skip
    return job


CLAIMED: dict[str, Any] = {**JOB, "make": a_claimed_job}

CELLS = {
    **trigger_cells.CELLS,
    "sign_off_worker": Cells(roles=WORKERS, body={"worker_id": "w"}),
    "claim_jobs": Cells(roles=WORKERS, make=a_definition, body={"worker_id": "w", "queues": ["default"]}),
    "heartbeat_job": Cells(roles=WORKERS, **CLAIMED, body={"claim_token": TOKEN}),
    "complete_job": Cells(roles=WORKERS, **CLAIMED, body={"claim_token": TOKEN}),
    "fail_job": Cells(roles=WORKERS, **CLAIMED, body={"claim_token": TOKEN, "exit_code": 1}),
    "list_definitions": Cells(roles=READERS),
    "make_definition": Cells(roles=SUPERS, body=a_new_definition, ok=201),
    "change_definition": Cells(
        roles=SUPERS,
        target="definition",
        make=a_definition,
        names=["definition_id"],
        body={"max_attempts": 3},
        of_all=True,
    ),
    "list_workers": Cells(roles=SUPERS),
    "get_job_limit": Cells(roles=ADMINS),
    "put_job_limit": Cells(roles=SUPERS, body={"concurrency_limit": None}),
    "add_job": Cells(roles=STARTERS, make=a_definition, body={"definition_key": KEY}, ok=201),
    "add_jobs": Cells(roles=STARTERS, make=a_definition, body={"jobs": [{"definition_key": KEY}]}),
    "list_jobs": Cells(roles=READERS, make=some_jobs, query={"status": "queued", "source": "manual"}),
    "summarize_jobs": Cells(roles=READERS),
    "get_job": Cells(roles=READERS, **JOB),
    "list_attempts": Cells(roles=READERS, **{**JOB, "make": a_tried_job}),
    "get_attempt": Cells(roles=READERS, **{**JOB, "make": a_first_attempt}),
    "cancel_job": Cells(roles=STARTERS, **JOB, body={}),
    "retry_job": Cells(roles=STARTERS, **{**JOB, "make": an_ended_job}, body={}),
}
