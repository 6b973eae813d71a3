"""Guards that docs/searches.md is true: its requests work in their order, from an account to offers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import pytest

from infra.cli import main
from infra.local.standins.boards import InfoJobsStandIn, with_offers
from infra.local.standins.google_sheets import GoogleSheetsStandIn, private_key
from shared.kernel.step import take_turn
from shared.search.build import build_ports
from shared.search.model import CLIENTS
from shared.search.ports import SearchMetric
from shared.search.sheets.steps import SheetMetric
from shared.search.steps import search
from tests.support.door import Door, TenantHouse
from tests.support.vaults import mocked_vault

pytestmark = pytest.mark.full

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


def sync(door: Door, sheet_run: str) -> None:
    """The steps of a night. Each request has its slot, which a test need not wait for."""
    kind = search(build_ports(door._worker))
    for _ in range(40):
        if door.value("select status from run where id = :id", id=sheet_run) not in ("queued", "running"):
            return
        door.sql("update lane set next_due_at = now() where run_id = :id and status = 'active'", id=sheet_run)
        take_turn(door.baton(UUID(sheet_run)), kind, door.worker_ports)


def test_from_a_first_search_to_a_filled_sheet(door: Door, acme: TenantHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    door.sql("delete from connection where tenant_id = :t", t=acme.id)
    search_id = None
    answers: dict[str, Any] = {}
    now = door.value("select now()")
    with mocked_vault(), InfoJobsStandIn() as standin, GoogleSheetsStandIn() as google:
        with_offers(standin, days=20, per_day=10)
        monkeypatch.setenv("BATON_GOOGLE_SHEETS_BASE_URL", google.start())
        monkeypatch.setenv("BATON_INFOJOBS_BASE_URL", standin.start())
        for block in blocks("http"):
            line, _, body = block.partition("\n")
            method, _, target = line.partition(" ")
            known = answers.get("GET /search-companies", {"companies": [{"id": None}]})["companies"]
            company_id = known[0]["id"]
            path, _, query = target.replace("{search_id}", str(search_id)).replace("{company_id}", str(company_id)).partition("?")  # fmt: skip
            text = re.sub(r"2026-11-0(\d)", lambda found: _day(now, int(found[1])), body)
            sent: Any = json.loads(text) if text.strip() else None
            if sent and "private_key" in sent.get("secret", {}):
                sent["secret"]["private_key"] = private_key()
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
            if (method, path) == ("POST", "/search-sheets"):
                sync(door, answer.json()["run_id"])
        assert not [*standin.surprises, *google.surprises, *google.wrong]
        rows = google.tab().table()
    shown = answers["GET /searches/{search_id}"]
    assert (shown["status"], shown["fresh"], shown["problem"]) == ("SUCCESS", True, None)
    assert shown["covered"]
    assert len(answers["GET /searches/{search_id}/offers"]["offers"]) == 20
    companies = answers["GET /search-companies"]["companies"]
    assert [row[0] for row in rows] == ["Id", *(each["id"] for each in companies)]
    assert {row[1]: row[2] for row in rows[1:]} == {each["name"]: each["open_offers"] for each in companies}
    (sheet,) = answers["GET /search-sheets"]["sheets"]
    assert (sheet["nights"][-1]["status"], sheet["nights"][-1]["rows_written"]) == ("synced", len(companies))
    assert [each["parameter"] for each in answers["PATCH /searches/{search_id}"]["changes"]] == ["province"]
    assert answers["GET /searches/{search_id}/runs"]["runs"][-1]["stop_reason"] == "window_exhausted"
    assert answers["POST /searches/{search_id}/backfill"]["estimate"]["requests"] >= 1


def _day(now: Any, n: int) -> str:
    """The days of the page are in the past, not far from today."""
    return str((now - timedelta(days=12 - n)).date())


def test_every_metric_and_parameter_is_named() -> None:
    metrics = {str(metric) for metric in (*SearchMetric, *SheetMetric)}
    assert metrics == set(re.findall(r"^\| `((?:Search|Sheet)\w+)`", PAGE, flags=re.MULTILINE))
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
    first, second, _ = blocks("sh")
    lines = [re.sub(r"^\w+=\$\(|^.*\| ", "", line) for line in [*first.splitlines(), *second.splitlines()]]
    for line in (line for line in lines if line.startswith("baton ")):
        _, group, name, *_ = line.split()
        with pytest.raises(SystemExit) as ended:
            main([group, name, "--help"])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert all(option in said for option in re.findall(r"--[a-z-]+", line))
