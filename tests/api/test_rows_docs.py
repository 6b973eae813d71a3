"""Guards that docs/rows.md is true: its requests work in their order, from a key to processed rows, and its settings exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import boto3
import pytest

from infra.local.standins.product_search import SearchStandIn
from shared.kernel import aws
from shared.kernel.baton import Baton
from shared.kernel.metrics import NoMeter
from shared.kernel.model import Signal
from shared.kernel.step import take_turn
from shared.row_job.build import build_ports
from shared.row_job.steps import row_job
from tests.support.door import Door, TenantHouse
from tests.support.pictures import packed, png
from tests.support.rig import BEGINNING
from tests.support.rows import csv_of
from tests.support.vaults import mocked_vault

PAGE = (Path(__file__).parents[2] / "docs" / "rows.md").read_text()
BUCKET = "baton-uploads"


@pytest.fixture(autouse=True)
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[SearchStandIn]:
    with mocked_vault(), SearchStandIn() as standin:
        monkeypatch.setenv("PENDING_DASHBOARD_ENABLED", "true")
        monkeypatch.setenv("BATON_BUCKET", BUCKET)
        monkeypatch.setenv("BATON_ROWS_PROVIDER_URL", standin.start())
        aws.client.cache_clear()
        made = {"LocationConstraint": "eu-central-1"}
        boto3.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=made)
        yield standin
    assert not standin.surprises, standin.surprises


def arrive(door: Door, tenant: TenantHouse, place: dict[str, Any]) -> None:
    """What S3 and the listener of its signal do."""
    is_zip = place["fields"]["Content-Type"] == "application/zip"
    key, content = place["fields"]["key"], packed(("a.png", png(1, 1))) if is_zip else csv_of(12).encode()
    boto3.client("s3").put_object(Bucket=BUCKET, Key=key, Body=content)
    signal = Signal(1, tenant.id, "object.created", {"key": key, "size": len(content)}, BEGINNING)
    kind = row_job(build_ports(door._worker))
    with door.worker_ports.store.begin(tenant.id) as tx:
        assert kind.listens["object.created"](tx, signal) == [], "it is on hold"


def work_off(door: Door, run_id: UUID) -> None:
    kind = row_job(replace(build_ports(door._worker), meter=NoMeter()))
    for _ in range(200):
        lanes = door.sql(
            "select id, kind, epoch, seq, resend_no from lane where run_id = :id and status = 'active'", id=run_id
        )
        if not lanes:
            return
        door.sql("update lane set next_due_at = now() where run_id = :id and status = 'active'", id=run_id)
        for lane in lanes:
            baton = Baton(kind=lane.kind, lane_id=lane.id, epoch=lane.epoch, seq=lane.seq, resend_no=lane.resend_no)
            take_turn(baton, kind, door.worker_ports)
    raise AssertionError("no end")


def scan_twice(door: Door, tenant: TenantHouse, scan_id: str, sent: dict[str, Any]) -> None:
    """The second one takes what the first has seen, and S3 has it as an upload."""
    s3 = boto3.client("s3")
    s3.put_object(Bucket=BUCKET, Key=f"inbox/{tenant.id}/more.csv", Body=csv_of(2).encode())
    work_off(door, UUID(scan_id))
    again = door.call(tenant.admin, "POST", "/ingestion/scan", sent).json()
    work_off(door, UUID(again["id"]))
    (file,) = door.sql("select id from files where tenant_id = :t and name = 'more.csv'", t=tenant.id)
    held = s3.get_object(Bucket=BUCKET, Key=f"uploads/{tenant.id}/rows/{file.id}")["Body"].read()
    assert held == csv_of(2).encode()


@pytest.mark.full
def test_from_a_key_to_processed_rows(door: Door, acme: TenantHouse, cloud: SearchStandIn) -> None:
    door.sql("delete from connection where tenant_id = :t", t=acme.id)
    known: dict[str, str] = {}
    answers: list[Any] = []
    for block in re.findall(r"^```http\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        for name, value in known.items():
            block = block.replace(f"{{{name}}}", value)  # noqa: PLW2901 - the same block, with its names filled in
        line, _, body = block.partition("\n")
        method, _, target = line.partition(" ")
        path, _, query = target.partition("?")
        sent: Any = json.loads(body) if body.strip() else None
        asked: dict[str, Any] = dict(parse_qsl(query))
        answer = door.call(acme.admin, method, path, sent, **asked)
        assert answer.status in (200, 201), (line, answer.body)
        told = answer.json()
        if path == "/row-jobs/uploads":
            known.setdefault("file_id", told["file_id"])
            arrive(door, acme, told)
        if path == "/ingestion/scan":
            scan_twice(door, acme, told["id"], sent)
        if path.endswith("/export"):
            known.setdefault("export_id", told["id"])
            work_off(door, UUID(told["id"]))
        if path == "/row-jobs":
            known["run_id"] = told["id"]
            work_off(door, UUID(told["id"]))
        answers.append(told)

    preview, tried, job, items, row, counted, _, export, _, fixed, pending = *answers[2:4], *answers[5:14]
    assert tried["mapping"] == {"title": "brand", "sku": "sku"}
    assert (len(preview["rows"]), preview["problems"]) == (12, 0)
    assert (job["queue_state"], job["total_items"], job["done"]) == ("DONE", 12, 12)
    assert [each["row_no"] for each in items["items"]] == list(range(1, 13))
    assert dict(zip(items["columns"], items["items"][0]["cells"], strict=True))["found_title"] == "Product 1"
    assert row["result"]["offers"][0]["title"] == "Product 1"
    assert counted == {"rows": 0, "dry_run": True}
    assert (export["status"], export["written"], len(export["files"])) == ("ready", 12, 1)
    assert (fixed["fixed"], fixed["unmatched"][0]["code"]) == (0, "not_failed")
    assert pending["items"] == []
    assert cloud.at_once() == []
    assert len(cloud.asked) == 12
    pace = door.call(acme.admin, "GET", f"/row-jobs/{known['run_id']}/pace").json()
    assert isinstance(pace["decisions"], list)
