"""Guards that docs/triggers.md is true: its requests work in their order, and its tables name what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

from shared.job_queue.triggers.model import FiringStatus, Skipped
from tests.support.door import Door, TenantHouse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "triggers.md").read_text()
SYNC = {
    "key": "sync-dropbox",
    "arg_schema": {
        "type": "object",
        "properties": {"provider_id": {"type": "string", "format": "uuid"}, "path_prefix": {"type": "string"}},
        "required": ["provider_id"],
        "additionalProperties": False,
    },
}


def define(door: Door, tenant: TenantHouse, body: dict[str, Any]) -> None:
    made = door.call(door.super_admin.choosing(tenant.id), "POST", "/admin/jobs/definitions", body)
    if made.status == 409:
        found = door.value("select id from job_definitions where key = :key", key=body["key"])
        schema = {"arg_schema": body.get("arg_schema", {})}
        made = door.call(door.super_admin.choosing(tenant.id), "PATCH", f"/admin/jobs/definitions/{found}", schema)
    assert made.status in {200, 201}, made


def test_from_a_trigger_to_its_firings(door: Door, acme: TenantHouse) -> None:
    for key in ("recompute-trained-tags", "train-keyword-models"):
        define(door, acme, {"key": key})
    define(door, acme, SYNC)
    trigger_id: UUID | None = None
    answers: list[Any] = []
    for block in re.findall(r"^```http\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        line, _, body = block.partition("\n")
        method, _, target = line.partition(" ")
        path, _, query = target.replace("{trigger_id}", str(trigger_id)).partition("?")
        asked: dict[str, Any] = dict(parse_qsl(query))
        answer = door.call(acme.admin, method, path, json.loads(body) if body.strip() else None, **asked)
        assert answer.status in {200, 201, 202}, (block, answer)
        answers.append(answer.json())
        if (method, path) == ("POST", "/jobs/triggers"):
            trigger_id = UUID(answer.json()["id"])

    _, tested, accepted, firings, _, _, times, _, preview, ran, _, _ = answers
    assert tested["payload"] == {"provider_id": "3f2b8c9e-6c1f-4a55-9c43-1d2d60a0f7aa", "path_prefix": "/photos"}
    assert accepted == {"id": "change-4711", "again": False}
    assert [each["status"] for each in firings["firings"]] == ["started"]
    assert len(times["times"]) == len(preview["times"]) == 10
    assert ran["status"] == "started"


def test_the_tables_name_what_there_is() -> None:
    statuses = re.findall(r"^\| `(\w+)` \|", PAGE.partition("| `status` |")[2].partition("\n\n")[0], re.MULTILINE)
    assert set(statuses) == set(FiringStatus)
    reasons = PAGE.partition("`reason`: ")[2].partition(" |")[0]
    assert set(re.findall(r"`(\w+)`", reasons)) == set(Skipped)
