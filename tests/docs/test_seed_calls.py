"""Guards that docs/seed-calls.md is true: each of its calls is answered as it says, in order, and its names exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl
from uuid import UUID

import pytest

from infra.cli import main
from shared.kernel.auth import Role
from shared.query_run.model import PollConfig
from shared.row_job.model import RowSettings
from shared.search.api import SaveSearch, Search
from tests.api.conftest import acme, door, plain_logger
from tests.api.test_rows_docs import arrive, cloud
from tests.kinds.page_ingest.cells import partitioned
from tests.support.door import Answer, Door, TenantHouse
from tests.support.psql import psql

__all__ = ["acme", "cloud", "door", "plain_logger"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "seed-calls.md").read_text()
KEYS = "key in ('sync-dropbox', 'recompute-trained-tags')"
# A line of a table, or a block and what is written below it.
CALL = re.compile(
    r"^\|[^\n]*\| `(?P<line>[A-Z]+ /[^`]*)`(?: `(?P<inline>{[^`]*})`)? \| (?P<told>\d+ ?[^|\n]*)\|$"
    r"|^```http\n(?P<block>[A-Z]+ /[^\n]*)\n(?P<body>[^`]*)```\n\n→ (?P<below>\d+.*?)(?=\n\n)",
    re.MULTILINE | re.DOTALL,
)


class Call(NamedTuple):
    method: str
    target: str
    body: str
    told: str


def calls() -> Iterator[Call]:
    for found in CALL.finditer(PAGE):
        method, _, target = (found["line"] or found["block"]).partition(" ")
        yield Call(method, target, found["inline"] or found["body"] or "", found["told"] or found["below"])


@pytest.fixture
def names(door: Door, acme: TenantHouse) -> Iterator[dict[str, str]]:
    """What the page calls `{…}`. Definitions are everybody's: those of other tests are set aside."""
    aside = f"update job_definitions set key = key || '-' || left(md5(random()::text), 8) where {KEYS}"
    door.sql(aside)
    yield {}
    door.sql(aside)


def keep(door: Door, tenant: TenantHouse, call: Call, answer: Answer, names: dict[str, str]) -> None:
    """What later calls need of this one, and what somebody else does meanwhile."""
    told = answer.json() if answer.body.startswith("{") else {}
    match call.method, call.target:
        case "POST", "/query-runs":
            names["query_run_id"] = told["id"]
        case "POST", "/row-jobs/uploads":
            names["file_id"] = told["file_id"]
            arrive(door, tenant, told)
        case "POST", "/row-jobs":
            names["run_id"] = told["id"]
            rows_that_failed(door, tenant, UUID(told["id"]))
        case "POST", "/page-ingestions":
            names["ingestion_id"] = told["id"]
            partitioned(door, tenant, UUID(told["id"]))
        case "POST", "/admin/jobs/definitions":
            names["definition_id"] = told["id"]
        case "POST", "/jobs":
            names["job_id"] = told["id"]
            again = door.call(tenant.admin, "POST", "/jobs", json.loads(call.body))
            assert (again.status, again.json()) == (200, told)
            assert set(re.findall(r"`(\w+)`", call.told)) == set(told)
            assert (told["tenant_id"], told["status"]) == (str(tenant.id), "queued")
            other = {"definition_key": "recompute-trained-tags"}
            names["other_job_id"] = door.call(tenant.admin, "POST", "/jobs", other).json()["id"]
        case "POST", "/jobs/triggers":
            names["trigger_id"] = told["id"]
        case "POST", "/worker/jobs/claim":
            assert {each["id"] for each in told["jobs"]} == {names["job_id"], names["other_job_id"]}
            names["claim_token"] = told["jobs"][0]["claim_token"]
        case _:
            names["next"] = told.get("next") or ""


def rows_that_failed(door: Door, tenant: TenantHouse, run_id: UUID) -> None:
    door.sql(
        """insert into job_items (run_id, row_no, tenant_id, user_id, job_type, slot, status, input_json, normalized_json,
                                  due_at, updated_at)
           select :id, n, :t, :who, 'csv', 0, 'ERROR', '{}', '{"title": "x"}', now(), now() from generate_series(1, 2) n""",
        id=run_id, t=tenant.id, who=tenant.admin.actor,
    )  # fmt: skip


def test_every_call_is_answered_as_the_page_says(door: Door, acme: TenantHouse, names: dict[str, str]) -> None:
    tried = list(calls())
    assert len(tried) == PAGE.count("```http") + len(re.findall(r"^\|.*\| \d{3}\b.*\|$", PAGE, re.MULTILINE)) > 50
    for call in tried:
        target, body = (
            re.sub(r"(?<!{){(\w+)}(?!})", lambda found: names[found[1]], text) for text in (call.target, call.body)
        )
        path, _, query = target.partition("?")
        asked: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
        boss = door.super_admin.choosing(acme.id)
        who = boss if "/admin/" in path else acme.machines[Role.WORKER] if "/worker/" in path else acme.admin
        answer = door.call(who, call.method, path, body or None, **asked)
        status, code = int(call.told[:3]), re.match(r"\d{3} `(\w+)`", call.told)
        assert answer.status == status, (call, answer.body)
        if status >= 400:
            assert code is not None, call
            assert answer.code == code[1], (call, answer.body)
            assert "(decisions/" in call.told, f"why? {call}"
            named = re.findall(r"`(\w+)`", call.told)[1:]
            assert [name for name in named if name not in answer.json()["detail"]] == [], (call, answer.body)
        else:
            keep(door, acme, call, answer, names)
            if call.target.endswith("after={next}"):
                assert [row["row_no"] for row in answer.json()["items"]] == [2]

    found = [len(psql(door.owner.url, each, acme.id)) for each in queries(names["ingestion_id"])]
    assert found == [1, 0, 0, 1, 0, 1]


def queries(run_id: str) -> list[str]:
    return [
        each.replace("your-run-id", run_id)
        for each in re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    ]


def test_the_settings_and_fields_exist() -> None:
    settings = {f"BATON_ROWS_{name}".upper() for name in RowSettings.model_fields}
    settings |= {f"BATON_QUERY_{name}".upper() for name in PollConfig.model_fields}
    template = (ROOT / "template.yaml").read_text()
    table = PAGE.partition("## Settings")[2]
    here = [name for line in table.splitlines()[4:] for name in re.findall(r"`([A-Z_0-9]+)`", line.split("|")[2])]
    assert [name for name in here if name not in settings and f" {name}: " not in template] == []
    fields = {*Search.model_fields, *SaveSearch.model_fields}
    table = PAGE.partition("## Saved searches")[2].partition("\n## ")[0]
    named = [name for line in re.findall(r"^\|.*\| (`.*) \|$", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)]  # fmt: skip
    assert len(named) > 10
    assert set(named) <= fields


def test_the_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"\| `baton ([^`]+)` \|", PAGE)
    assert len(lines) == 5
    for line in lines:
        words = line.split()
        command = words[:2] if not words[1].startswith("-") else words[:1]
        with pytest.raises(SystemExit) as ended:
            main([*command, "start", "--help"] if command == ["ingest"] else [*command, "--help"])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert all(option in said for option in re.findall(r"--[a-z-]+", line))
