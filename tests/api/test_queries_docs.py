"""Guards that docs/queries.md is true: its requests work in their order, from credentials to rows, and its settings exist."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import pytest

from infra.local.standins.mce import MceStandIn
from shared.kernel import aws
from shared.kernel.auth import Role
from shared.kernel.baton import Baton
from shared.kernel.files import S3Files
from shared.kernel.metrics import NoMeter
from shared.kernel.step import take_turn
from shared.query_run import api
from shared.query_run.build import build_ports
from shared.query_run.model import PollConfig
from shared.query_run.ports import QueryMetric
from shared.query_run.steps import query_run
from tests.support.door import Door, TenantHouse
from tests.support.gateway import Gateway, served
from tests.support.vaults import mocked_vault

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "queries.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def without_cloud(block: str) -> str:
    """The door plays the cloud here; tests/docs/test_blocks.py runs the block in a real one."""
    return block.removeprefix('make up\nexport PATH="$PWD/.venv/bin:$PATH"\n')


def work_off(door: Door, run_id: UUID) -> None:
    """Its steps as a worker takes them, each when it is due."""
    quick = PollConfig(initial_delay_ms=100, rowset_ready_initial_delay_ms=100, rowset_settle_ms=100)
    ports = replace(build_ports(door._worker), config=quick, meter=NoMeter())
    for _ in range(100):
        if door.value("select status from run where id = :id", id=run_id) not in ("queued", "running"):
            return
        take_turn(door.baton(run_id), query_run(ports), door.worker_ports)
        time.sleep(0.1)


@pytest.mark.full
def test_from_credentials_to_rows(door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    api._tokens.clear()
    door.sql("delete from connection where tenant_id = :t", t=acme.id)
    run_id, answers = None, []
    with mocked_vault(), MceStandIn() as standin:
        monkeypatch.setenv("BATON_MCE_BASE_URL", standin.start())
        for block in blocks("http"):
            line, _, body = block.partition("\n")
            method, _, target = line.partition(" ")
            path, _, query = target.replace("{run_id}", str(run_id)).partition("?")
            sent: Any = json.loads(body) if body.strip() else None
            asked: dict[str, Any] = dict(parse_qsl(query))
            answer = door.call(acme.admin, method, path, sent, **asked)
            assert answer.status in (200, 201), (block, answer.body)
            answers.append(answer.json())
            if (method, path) == ("POST", "/query-runs"):
                run_id = UUID(answer.json()["id"])
                monkeypatch.setattr(standin, "plan", lambda _: {"seconds": "0", "rows": "3"})
                work_off(door, run_id)

        _, _, shown, rows, download, listed, left = answers
        assert (download["status"], download["rows"]) == ("preparing", 3)
        assert [each["id"] for each in listed["query_runs"]] == [str(run_id)]
        assert (shown["status"], shown["row_count"], shown["columns_from"]) == ("ready", 3, "select list, as text")
        assert [row["id"] for row in rows["rows"]] == ["0", "1", "2"]
        assert {asset["kind"] for asset in left["assets"]} == {"data_extension", "query_definition"}
        assert not standin.surprises


class Bucket(BaseHTTPRequestHandler):
    """Hands out what is in the bucket, as a link to it does."""

    def do_GET(self) -> None:
        body = aws.client("s3").get_object(Bucket="baton-files", Key=self.path[1:])["Body"].read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.full
def test_the_commands_work_from_credentials_to_a_downloaded_file(
    door: Door, acme: TenantHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api._tokens.clear()
    door.sql("delete from connection where tenant_id = :t", t=acme.id)
    command = tmp_path / "baton"
    command.write_text(f'#!/bin/sh\nexec env PYTHONPATH={ROOT} {sys.executable} -m infra.cli --home {tmp_path} "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(tmp_path),
        "BATON_TOKEN": acme.machines[Role.ADMIN].token or "",
    }  # fmt: skip
    bucket, ended = ThreadingHTTPServer(("127.0.0.1", 0), Bucket), threading.Event()
    with mocked_vault(), MceStandIn() as standin, served(Gateway(door)) as url:
        monkeypatch.setenv("BATON_MCE_BASE_URL", standin.start())
        monkeypatch.setattr(standin, "plan", lambda _: {"seconds": "1", "rows": "12"})
        monkeypatch.setenv("BATON_BUCKET", "baton-files")
        at = {"LocationConstraint": "eu-central-1"}
        aws.client("s3").create_bucket(Bucket="baton-files", CreateBucketConfiguration=at)
        where = f"http://127.0.0.1:{bucket.server_address[1]}"
        monkeypatch.setattr(S3Files, "link", lambda _, key, name, seconds: f"{where}/{key}")
        threads = [threading.Thread(target=bucket.serve_forever), threading.Thread(target=work_on, args=(door, ended))]
        for thread in threads:
            thread.start()
        try:
            told = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", without_cloud(blocks("sh")[0])],
                env={**environment, "BATON_URL": url}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
            )  # fmt: skip
        finally:
            ended.set()
            bucket.shutdown()
            for thread in threads:
                thread.join()
            bucket.server_close()

    assert told.returncode == 0, told.stdout + told.stderr
    assert "10 of 12 rows" in told.stdout
    assert "12 rows in people.csv" in told.stdout
    with (tmp_path / "people.csv").open(newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == [str(n) for n in range(12)]


def work_on(door: Door, ended: threading.Event) -> None:
    """A worker that takes whatever is due."""
    quick = PollConfig(initial_delay_ms=100, rowset_ready_initial_delay_ms=100, rowset_settle_ms=100)
    kind = query_run(replace(build_ports(door._worker), config=quick, meter=NoMeter()))
    while not ended.wait(0.1):
        for lane in door.sql(
            "select id, epoch, seq, resend_no from lane where kind = 'query_run' and status = 'active' and next_due_at <= now()"
        ):
            baton = Baton(kind="query_run", lane_id=lane["id"], epoch=lane["epoch"], seq=lane["seq"], resend_no=lane["resend_no"])  # fmt: skip
            take_turn(baton, kind, door.worker_ports)


def test_every_metric_is_named() -> None:
    assert {str(metric) for metric in QueryMetric} == set(re.findall(r"`(Query[A-Z]\w+)`", PAGE))


@pytest.mark.full
def test_the_stand_in_starts_as_the_page_says() -> None:
    _, command = blocks("sh")
    _, *arguments = command.split()
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.terminate()


def test_every_block_is_tried() -> None:
    assert len(re.findall(r"^```\w+$", PAGE, flags=re.MULTILINE)) == len([*blocks("http"), *blocks("sh")])
