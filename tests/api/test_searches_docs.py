"""Guards that docs/searches.md is true: its requests work in their order, from an account to offers, and its settings exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from infra.client.cli import main
from infra.local.standins.boards import InfoJobsStandIn, with_offers
from shared.kernel.step import take_turn
from shared.search.build import build_ports
from shared.search.model import CLIENTS, SearchConfig
from shared.search.ports import SearchMetric
from shared.search.steps import search
from tests.support.door import Door, TenantHouse
from tests.support.vaults import mocked_vault

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "searches.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def work_off(door: Door, tenant: TenantHouse) -> None:
    """The steps of the open cycle, as a worker takes them."""
    kind = search(build_ports(door._worker))
    run_id = door.value("select run_id from search_cycle where tenant_id = :t and ended_at is null", t=tenant.id)
    for _ in range(60):
        if door.value("select status from run where id = :id", id=run_id) not in ("queued", "running"):
            return
        take_turn(door.baton(run_id), kind, door.worker_ports)


def test_from_an_account_to_offers(door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    door.sql("delete from connection where tenant_id = :t", t=acme.id)
    search_id, answers = None, {}
    now = door.value("select now()")
    with mocked_vault(), InfoJobsStandIn() as standin:
        with_offers(standin, days=20, per_day=10)
        monkeypatch.setenv("BATON_INFOJOBS_BASE_URL", standin.start())
        for block in blocks("http"):
            line, _, body = block.partition("\n")
            method, _, target = line.partition(" ")
            path, _, query = target.replace("{search_id}", str(search_id)).partition("?")
            text = re.sub(r"2026-11-0(\d)", lambda found: _day(now, int(found[1])), body)
            sent: Any = json.loads(text) if text.strip() else None
            asked: dict[str, Any] = {
                name: re.sub(r"2026-11-0(\d)", lambda found: _day(now, int(found[1])), value)
                for name, value in parse_qsl(query)
            }
            answer = door.call(acme.admin, method, path, sent, **asked)
            assert answer.status in (200, 201), (block, answer.body)
            answers[f"{method} {target.partition('?')[0]}"] = answer.json()
            if (method, path) == ("POST", "/searches"):
                search_id = answer.json()["id"]
                work_off(door, acme)
        assert not standin.surprises
    shown = answers["GET /searches/{search_id}"]
    assert (shown["status"], shown["fresh"], shown["problem"]) == ("SUCCESS", True, None)
    assert shown["covered"]
    assert len(answers["GET /searches/{search_id}/offers"]["offers"]) == 20
    assert answers["GET /search-companies"]["companies"]
    assert [each["parameter"] for each in answers["PATCH /searches/{search_id}"]["changes"]] == ["province"]
    assert answers["GET /searches/{search_id}/runs"]["runs"][-1]["stop_reason"] == "window_exhausted"
    assert answers["POST /searches/{search_id}/backfill"]["estimate"]["requests"] >= 1


def _day(now: Any, n: int) -> str:
    """The days of the page are in the past, not far from today."""
    return str((now - timedelta(days=12 - n)).date())


def test_every_setting_metric_and_parameter_is_named() -> None:
    named = {name.lower() for line in PAGE.splitlines() for name in re.findall(r"^\| `([A-Z][A-Z_]+)`", line)}
    assert named - {"idle", "running", "success", "error"} == set(SearchConfig.model_fields)
    assert {str(metric) for metric in SearchMetric} == set(re.findall(r"^\| `(Search\w+)`", PAGE, flags=re.MULTILINE))
    for client in CLIENTS.values():
        (row,) = re.findall(rf"^\| `{client.name}` \|(.*)\|$", PAGE, flags=re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", row)) == set(client.identity.model_fields)


def test_the_stand_in_starts_as_the_page_says() -> None:
    *_, command = blocks("sh")
    _, *arguments = command.split()
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.terminate()


def test_the_commands_of_the_page_exist(capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = blocks("sh")
    for line in first.splitlines():
        _, group, name, *_ = line.split()
        with pytest.raises(SystemExit) as ended:
            main([group, name, "--help"])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert all(option in said for option in re.findall(r"--[a-z-]+", line))
