"""A tenant's jobs in every state, definitions and workers, written with the owner's SQL: for pictures and tests of pages."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from shared.job_queue import store
from shared.kernel import db
from shared.kernel.clock import new_id
from tests.browser.seed import ASLEEP, id_at, insert, owner

QUEUE = "gpu"  # no worker of a test takes from it
WORKER = "gpu-box-1:4711:7f3a9c"
SCHEMA = {
    "type": "object",
    "properties": {
        "model": {"type": "string", "enum": ["siglip", "clip"], "description": "Which model to train."},
        "seconds": {"type": "number", "minimum": 0, "maximum": 600, "title": "Time to spend", "default": 0},
        "path_prefix": {"type": "string", "maxLength": 200, "description": "Only below this folder."},
        "fail": {"type": "boolean"},
    },
    "required": ["model"],
    "additionalProperties": False,
}
LOG = "\n".join(f"epoch {n:>3}  loss {2.4 / (n + 1):.4f}  lr 3e-4" for n in range(60)) + "\n"


def define(connection: sa.Connection, subject: str, key: str, **said: Any) -> UUID:
    definition_id = new_id()
    row = {
        "id": str(definition_id), "key": key, "description": "", "command": key, "arg_schema": SCHEMA, "timeout_seconds": 3600,
        "max_attempts": 3, "queue": QUEUE, "executor": "worker", "concurrency_limit": None, "is_active": True, "version": 1,
        **said,
    }  # fmt: skip
    assert connection.execute(store.PUT_DEFINITION, {"subject": subject, "definition": db.jsonb(row)}).scalar_one()
    return definition_id


def every_job(url: str, tenant_id: UUID, by: str, super_admin: str) -> dict[str, UUID]:
    """One job of each sort, by name."""
    with owner(url) as connection:
        now: datetime = connection.execute(sa.text("select now()")).scalar_one()
        connection.execute(
            sa.text("insert into super_admin (subject) values (:s) on conflict do nothing"), {"s": super_admin}
        )
        train = define(connection, super_admin, "train-keyword-models", concurrency_limit=2,
                       description="Trains the models that tag images by keyword.")  # fmt: skip
        define(
            connection, super_admin, "recompute-zeroshot-tags", is_active=False, description="Tags every image anew."
        )
        made = {}
        for name, said in SORTS.items():
            made[name] = _job(connection, tenant_id, train, by, now, said)
        insert(connection, "job_workers", [
            {"worker_id": WORKER, "hostname": "gpu-box-1", "version": "1.4.0", "queues": [QUEUE], "started_at": now - timedelta(days=2),
             "last_seen_at": now + ASLEEP, "running_count": 1, "metadata": {}},
            {"worker_id": "gpu-box-2:812:11c0de", "hostname": "gpu-box-2", "version": "1.3.9", "queues": [QUEUE, "urgent"],
             "started_at": now - timedelta(days=9), "last_seen_at": now - timedelta(minutes=12), "running_count": 0, "metadata": {}},
        ])  # fmt: skip
    return made


FAILED = "The command exited with code 1. Last error line: RuntimeError: CUDA out of memory"
# How old it is, its status and outcome, and its attempts: status, minutes, exit code.
SORTS: dict[str, dict[str, Any]] = {
    "succeeded": {"age": 300, "status": "succeeded", "outcome": "done", "tried": [("failed", 2, 1), ("succeeded", 9, 0)]},
    "canceled": {"age": 240, "status": "canceled", "outcome": "canceled", "tried": [("canceled", 1, None)]},
    "dead": {"age": 95, "status": "failed", "outcome": "dead_letter", "tried": [("failed", 2, 1), ("timeout", 60, None), ("failed", 3, 1)]},
    "retrying": {"age": 30, "status": "running", "tried": [("failed", 4, 1)], "later": 7},
    "scheduled": {"age": 20, "status": "queued", "tried": [], "later": 600},
    "running": {"age": 12, "status": "running", "tried": [("running", 5, None)], "taken": True},
    "queued": {"age": 4, "status": "queued", "tried": []},
    "behind": {"age": 3, "status": "queued", "tried": []},
}  # fmt: skip


def _job(
    connection: sa.Connection, tenant_id: UUID, definition: UUID, by: str, now: datetime, said: Mapping[str, Any]
) -> UUID:
    rng = random.Random(said["age"])
    began = now - timedelta(minutes=said["age"])
    run_id, lane_id = id_at(began, rng), id_at(began, rng)
    is_over = "outcome" in said
    ended = began + timedelta(minutes=2 + sum(minutes for _, minutes, _ in said["tried"]))
    problem = (
        {"code": "exit_code", "message": FAILED}
        if said.get("outcome") == "dead_letter" or said.get("later") == 7
        else None
    )
    due = now + timedelta(minutes=said["later"]) if "later" in said else began
    insert(connection, "run", [{
        "id": str(run_id), "tenant_id": str(tenant_id), "kind": "job", "label": "train-keyword-models", "status": said["status"],
        "outcome": said.get("outcome"), "epoch": 1, "check_at": now + ASLEEP, "created_by": by, "created_at": began, "source": "api",
        "started_at": began if said["tried"] else None, "finished_at": ended if is_over else None,
        "error": problem if is_over else None,
        "params": {"definition_key": "train-keyword-models", "definition_id": str(definition), "version": 1, "command": "train-keyword-models",
                   "arg_schema": SCHEMA, "timeout_seconds": 3600, "max_attempts": 3, "payload": {"model": "siglip", "seconds": 30}},
    }])  # fmt: skip
    insert(connection, "lane", [{
        "id": str(lane_id), "run_id": str(run_id), "tenant_id": str(tenant_id), "kind": "job", "key": "run", "holds_run": True,
        "status": {"succeeded": "done", "failed": "failed", "canceled": "canceled"}.get(said["status"], "active"), "epoch": 1, "seq": 0,
        "resend_no": 0, "resends": 0, "claims": 0, "cursor": {}, "next_due_at": due, "check_at": "infinity", "steps": 0, "max_steps": 1000,
        "attempts": 1 if said.get("later") == 7 else 0, "last_error": problem, "created_at": began, "updated_at": ended if is_over else began,
        "class_id": str(definition), "priority": 100,
    }])  # fmt: skip
    connection.execute(
        sa.text("update offer set queued_at = :at where lane_id = :id and due"), {"at": began, "id": lane_id}
    )
    at = began + timedelta(seconds=9)
    for number, (status, minutes, code) in enumerate(said["tried"], 1):
        end = at + timedelta(minutes=minutes)
        insert(connection, "job_attempts", [{
            "job_id": str(run_id), "attempt_no": number, "tenant_id": str(tenant_id), "worker_id": WORKER, "pid": 20_000 + number,
            "started_at": at, "finished_at": None if status == "running" else end, "exit_code": code, "status": status, "stdout_tail": LOG,
            "stderr_tail": "RuntimeError: CUDA out of memory\n" if status == "failed" else None,
            "error_text": {"failed": FAILED, "timeout": "The command was stopped after 3600 seconds.", "canceled": "Canceled."}.get(status),
        }])  # fmt: skip
        at = end
    if said.get("taken"):
        connection.execute(
            sa.text(
                "update lane set claim_token = :t, lease_until = now() + interval '30 days', claims = 1 where id = :id"
            ),
            {"t": new_id(), "id": lane_id},
        )
        connection.execute(
            sa.text("update offer set taken_at = :at, worker = :w where lane_id = :id"),
            {"at": began + timedelta(seconds=9), "w": WORKER, "id": lane_id},
        )
    connection.execute(sa.text("update pull_line set head = least(head, :at)"), {"at": began})
    return run_id
