"""Guards that the calls of docs/api.md work as they stand there, by `baton` and by curl, in one shell from top to bottom."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.local.standins.nivoda import NivodaStandIn
from shared.kernel.auth import Role
from tests.api.conftest import acme, door, plain_logger
from tests.support.blocks import blocks_of
from tests.support.door import Door, TenantHouse
from tests.support.gateway import Gateway, served
from tests.support.vaults import mocked_vault

__all__ = ["acme", "door", "plain_logger"]

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "api.md").read_text()
# The first block starts a local cloud, which the door plays here; tests/docs/test_blocks.py runs it too.
_CLOUD, *BLOCKS = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.full
def test_the_calls_of_the_guide_work(
    door: Door, acme: TenantHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shutil.which("curl"), "curl is needed to try what the guide shows"
    command = tmp_path / "baton"
    command.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m infra.cli --home {tmp_path} "$@"\n')
    command.chmod(0o755)
    nivoda, gateway = NivodaStandIn(stones=10), Gateway(door)
    monkeypatch.setenv("BATON_NIVODA_BASE_URL", nivoda.start())
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(tmp_path),
        "BATON_TOKEN": acme.machines[Role.ADMIN].token or "",
    }
    try:
        with mocked_vault(), served(gateway) as url:
            told = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", "\n".join(BLOCKS)],
                env={**environment, "BATON_URL": url}, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
            )  # fmt: skip
    finally:
        nivoda.stop()

    assert told.returncode == 0, told.stdout + told.stderr
    assert "Connected" in told.stdout
    assert "404, as expected" in told.stdout
    assert told.stdout.count("event: line") >= 2
    assert "stand-in-password" not in told.stdout
    assert len(door.call(acme.admin, "GET", "/runs").json()["runs"]) == 2


def test_the_request_of_page_ingest_md_starts_a_run(door: Door, acme: TenantHouse) -> None:
    (block,) = (block for block in blocks_of(ROOT / "docs" / "page-ingest.md") if block.language == "http")
    line, _, body = block.text.partition("\n")
    method, _, path = line.partition(" ")

    assert door.call(acme.member, method, path, json.loads(body)).status == 201
