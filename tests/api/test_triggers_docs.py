"""Guards that docs/triggers.md is true: its requests work in their order, and its tables name what there is."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import pytest

from shared.job_queue.triggers.model import FiringStatus, Skipped
from tests.api.test_client import Command
from tests.support.databases import ServerAdmin
from tests.support.door import Door, TenantHouse, open_door
from tests.support.gateway import Gateway, served
from tests.support.house import tally_database
from tests.support.vaults import mocked_vault

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


@pytest.fixture
def fresh_door(postgres_server: ServerAdmin, template: str) -> Iterator[Door]:
    """As after the first `make up`: nobody has defined a job yet."""
    with tally_database(postgres_server, template) as url, open_door(url) as door:
        yield door


def additions(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of the page that add something, each with what is piped into it."""
    script = re.sub(r"\\?\n\s+", " ", "".join(re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)))
    for given, command in re.findall(r"(?:echo '([^']*)' \| )?baton ((?:definition|connection) add .*)", script):
        yield given, shlex.split(command)


def test_from_a_fresh_cloud_to_the_firings_of_a_trigger(
    fresh_door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    door = fresh_door
    acme = door.new_tenant()
    door.sql("insert into super_admin (subject) values (:s)", s=acme.admin.subject)  # as the local cloud's login is
    for name in ("BATON_URL", "BATON_TOKEN", "BATON_TENANT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BATON_TENANT", str(acme.id))
    gateway = Gateway(door)
    gateway.people["ann@example.com"] = ("a-pass", acme.admin.subject or "")
    with served(gateway) as url, mocked_vault():
        baton = Command(gateway, url, tmp_path, capsys)
        typed = [("a-pass\n", ["login", "ann@example.com", "--password-stdin"]), *additions(PAGE)]
        for given, words in typed:
            monkeypatch.setattr("sys.stdin", io.StringIO(given))
            baton(*words)
    assert [words[:3] for _, words in typed[1:]] == [
        ["definition", "add", "nightly-tags"], ["connection", "add", "dropbox"], ["definition", "add", "sync-dropbox"],
    ]  # fmt: skip
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
    assert tested["payload"] == {"provider_id": "photos", "path_prefix": "/photos"}
    assert accepted == {"id": "change-4711", "again": False}
    assert [each["status"] for each in firings["firings"]] == ["started"]
    assert len(times["times"]) == len(preview["times"]) == 10
    assert ran["status"] == "started"


def test_the_tables_name_what_there_is() -> None:
    statuses = re.findall(r"^\| `(\w+)` \|", PAGE.partition("| `status` |")[2].partition("\n\n")[0], re.MULTILINE)
    assert set(statuses) == set(FiringStatus)
    reasons = PAGE.partition("`reason`: ")[2].partition(" |")[0]
    assert set(re.findall(r"`(\w+)`", reasons)) == set(Skipped)
