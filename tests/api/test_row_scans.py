"""Guards that a scan of an FTP server or a folder works as it is deployed: a connection, a scan asked for, an upload in S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import boto3
import pytest

from infra.local.standins.ftp import PASSWORD, USER, FtpStandIn
from tests.api.test_rows_docs import BUCKET, cloud, work_off
from tests.support.door import Door, TenantHouse
from tests.support.rows import csv_of

__all__ = ["cloud"]
SEARCH = {"provider": "product_search", "name": "find", "settings": {"account": "main"}, "secret": {"api_key": "k"}}


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, door: Door, acme: TenantHouse) -> Path:
    """Where a server may be on this machine, and a folder can be scanned."""
    monkeypatch.setenv("BATON_STAGE", "local")
    monkeypatch.setenv("BATON_ROWS_FOLDER", str(tmp_path))
    door.sql("delete from connection where tenant_id = :t", t=acme.id)
    door.sql("delete from scanned_files where tenant_id = :t", t=acme.id)
    assert door.call(acme.admin, "POST", "/connections", SEARCH).status == 201
    return tmp_path


def scan(door: Door, tenant: TenantHouse, body: dict[str, Any]) -> None:
    made = door.call(tenant.member, "POST", "/ingestion/scan", {"connection": "find", **body})
    assert made.status == 201, made.body
    work_off(door, UUID(made.json()["id"]))
    assert door.call(tenant.member, "GET", f"/runs/{made.json()['id']}").json()["status"] == "succeeded"


def uploaded(door: Door, tenant: TenantHouse, name: str) -> list[bytes]:
    found = door.sql("select id, created_by from files where tenant_id = :t and name = :n", t=tenant.id, n=name)
    assert {row.created_by for row in found} <= {tenant.member.actor}
    keys = [f"uploads/{tenant.id}/rows/{row.id}" for row in found]
    return [boto3.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys]


def test_a_file_of_an_ftp_server_becomes_an_upload(door: Door, acme: TenantHouse) -> None:
    with FtpStandIn() as server:
        place = {"host": "127.0.0.1", "port": server.port, "user": USER, "directory": "/out", "tls": False}
        made = door.call(
            acme.admin, "POST", "/connections",
            {"provider": "ftp", "name": "supplier", "settings": place, "secret": {"password": PASSWORD}},
        )  # fmt: skip
        assert made.status == 201, made.body
        checked = door.call(acme.admin, "POST", f"/connections/{made.json()['id']}/check", {})
        assert checked.status == 200, checked.body
        server.put("prices.csv", csv_of(3).encode())
        for _ in range(3):
            scan(door, acme, {"source": "ftp", "server": "supplier"})

    assert uploaded(door, acme, "prices.csv") == [csv_of(3).encode()]
    assert sum(each.startswith("RETR") for each in server.asked) == 1, "it was fetched once"


def test_a_file_of_the_folder_becomes_an_upload(door: Door, acme: TenantHouse, local: Path) -> None:
    (local / str(acme.id)).mkdir()
    (local / str(acme.id) / "stock.csv").write_text(csv_of(2))
    for _ in range(2):
        scan(door, acme, {"source": "folder"})

    assert uploaded(door, acme, "stock.csv") == [csv_of(2).encode()]


@pytest.mark.parametrize("directory", ["../etc", "a/../b", "/.ssh", "x\r\nDELE y"])
def test_the_directory_of_a_server_leads_nowhere_else(door: Door, acme: TenantHouse, directory: str) -> None:
    place = {"host": "ftp.supplier.example", "user": "x", "directory": directory}

    made = door.call(
        acme.admin,
        "POST",
        "/connections",
        {"provider": "ftp", "name": "x", "settings": place, "secret": {"password": "p"}},
    )

    assert made.status == 422
