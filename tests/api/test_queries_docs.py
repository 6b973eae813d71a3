"""Guards that docs/queries.md is true: its requests work in their order, from credentials to rows, and its settings exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import pytest

from infra.local.standins.mce import MceStandIn
from shared.kernel.metrics import NoMeter
from shared.kernel.step import take_turn
from shared.query_run import api
from shared.query_run.build import build_ports
from shared.query_run.model import PollConfig
from shared.query_run.ports import QueryMetric
from shared.query_run.steps import query_run
from tests.support.door import Door, TenantHouse
from tests.support.vaults import mocked_vault

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "queries.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def work_off(door: Door, run_id: UUID) -> None:
    """Its steps as a worker takes them, each when it is due."""
    quick = PollConfig(initial_delay_ms=100, rowset_ready_initial_delay_ms=100)
    ports = replace(build_ports(door._worker), config=quick, meter=NoMeter())
    for _ in range(100):
        if door.value("select status from run where id = :id", id=run_id) not in ("queued", "running"):
            return
        take_turn(door.baton(run_id), query_run(ports), door.worker_ports)
        time.sleep(0.1)


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
            if path == "/query-runs":
                run_id = UUID(answer.json()["id"])
                monkeypatch.setattr(standin, "plan", lambda _: {"seconds": "0", "rows": "3"})
                work_off(door, run_id)

        _, _, shown, rows, left = answers
        assert (shown["status"], shown["row_count"], shown["columns_from"]) == ("ready", 3, "select list, as text")
        assert [row["id"] for row in rows["rows"]] == ["0", "1", "2"]
        assert {asset["kind"] for asset in left["assets"]} == {"data_extension", "query_definition"}
        assert not standin.surprises


def test_every_setting_and_metric_is_named() -> None:
    named = {name.lower() for line in PAGE.splitlines() for name in re.findall(r"`([A-Z][A-Z_]+)`", line)} - {"select"}
    assert named - {"baton_query_"} == set(PollConfig.model_fields)
    assert {str(metric) for metric in QueryMetric} == set(re.findall(r"`(Query[A-Z]\w+)`", PAGE))


def test_the_stand_in_starts_as_the_page_says() -> None:
    (command,) = blocks("sh")
    _, *arguments = command.split()
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.terminate()


def test_every_block_is_tried() -> None:
    assert len(re.findall(r"^```\w+$", PAGE, flags=re.MULTILINE)) == len([*blocks("http"), *blocks("sh")])
